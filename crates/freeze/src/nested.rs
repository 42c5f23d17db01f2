//! All namespaces beside the first process's that a clone has again.

use crate::descriptors::Found;
use crate::freeze::Subject;
use crate::image::FileKind;
use crate::ipc_spaces;
use crate::mount_spaces::Spaces;
use crate::namespaces::{Beside, HOST_NAMES, IPC, MOUNTS, NETWORK};
use crate::net_spaces;
use crate::open_namespaces::{OpenNamespace, OpenNamespaces};
use crate::proc_file::malformed;
use crate::refusal::Refusal;
use crate::tree::Member;
use pando_kernel::CallError;
use pando_kernel::network::Network;

/// They.
#[derive(Debug)]
pub(crate) struct Nested {
    init: i32,
    pub(crate) mounts: Spaces,
    pub(crate) host_names: Beside,
    pub(crate) ipc: Beside,
    pub(crate) nets: Beside,
    /// What is in each of those.
    pub(crate) networks: Vec<Network>,
    /// On which device the message queues of each ipc namespace are, and what shows the devices of each network.
    queues: Vec<String>,
    devices: Vec<String>,
    open: OpenNamespaces,
}

impl Nested {
    /// Those that some processes are in.
    pub(crate) fn of(subject: &Subject<'_>, members: &[Member]) -> Result<Self, CallError> {
        let beside = |kind| Beside::of(kind, subject.init, members);
        Ok(Self {
            init: subject.init,
            mounts: Spaces::of(subject, members)?,
            host_names: beside(HOST_NAMES)?,
            ipc: beside(IPC)?,
            nets: beside(NETWORK)?,
            networks: Vec::new(),
            queues: Vec::new(),
            devices: Vec::new(),
            open: OpenNamespaces::default(),
        })
    }

    /// Adds those that only their descriptors lead to, and says what stands in the way of all.
    pub(crate) fn complete(
        &mut self,
        descriptors: &[(&Member, Vec<Found>)],
        stopped: bool,
    ) -> Result<Vec<Refusal>, CallError> {
        self.open = OpenNamespaces::of(self.init, descriptors);
        for beside in [&mut self.host_names, &mut self.ipc, &mut self.nets] {
            beside.add(&self.open);
        }
        let mut refusals = self.open.objections(self.init, |one| self.place(one).is_some());
        let (queues, held) = ipc_spaces::look(&self.ipc, stopped)?;
        let (networks, strange) = net_spaces::look(&self.nets)?;
        (self.queues, self.networks) = (queues, networks);
        if self.mounts.have_devices() {
            self.devices = net_spaces::devices(&self.nets, stopped);
        }
        let is_nested = |device: &str| self.queues_on(device).or(self.devices_on(device)).is_some();
        refusals.extend(self.mounts.objections(is_nested));
        refusals.extend(held.into_iter().chain(strange));
        Ok(refusals)
    }

    /// Which one of its kind an open one is; none of the image's own if the first process's. `None` if it is of no use in a clone.
    fn place(&self, one: &OpenNamespace) -> Option<Option<usize>> {
        match one.kind {
            MOUNTS => self.mounts.place(&one.link),
            HOST_NAMES => self.host_names.place(&one.link),
            IPC => self.ipc.place(&one.link),
            NETWORK => self.nets.place(&one.link),
            kind => kind.of(self.init).is_ok_and(|home| home == one.link).then_some(None),
        }
    }

    /// The ipc namespace whose message queues are on a device.
    pub(crate) fn queues_on(&self, device: &str) -> Option<usize> {
        self.queues.iter().position(|other| other == device)
    }

    /// The network namespace whose devices are shown by what is on a device.
    pub(crate) fn devices_on(&self, device: &str) -> Option<usize> {
        self.devices.iter().position(|other| other == device)
    }

    /// What a descriptor of a namespace is.
    pub(crate) fn file(&self, found: &Found) -> Result<FileKind, CallError> {
        let found = self.open.find(found).and_then(|one| Some((one.kind.flag, self.place(one)?)));
        let (kind, space) = found.ok_or_else(|| malformed("looking for a namespace"))?;
        Ok(FileKind::Namespace { kind, space })
    }
}
