//! All namespaces beside the first process's that a clone has again.

use crate::capture::mount_spaces::Spaces;
use crate::capture::{ipc, networks, user_spaces};
use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK, USERS};
use crate::image::{FileKind, HostNames, Process};
use crate::inspect::descriptors::Found;
use crate::inspect::namespaces::{Beside, Space};
use crate::inspect::open_namespaces::{OpenNamespace, OpenNamespaces};
use crate::inspect::proc_file::malformed;
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use crate::subject::Subject;
use pando_kernel::network::Network;
use pando_kernel::{CallError, Context, namespace::uts};
use std::fs::File;

/// The namespaces beside the first process's that frozen processes are in.
#[derive(Debug)]
pub(crate) struct Nested {
    init: i32,
    pub(crate) mounts: Spaces,
    pub(crate) host_names: Beside,
    pub(crate) ipc: Beside,
    pub(crate) nets: Beside,
    pub(crate) users: Beside,
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
            users: beside(USERS)?,
            networks: Vec::new(),
            queues: Vec::new(),
            devices: Vec::new(),
            open: OpenNamespaces::default(),
        })
    }

    /// Adds those that only their descriptors lead to, and says what stands in the way of all.
    pub(crate) fn complete(
        &mut self,
        members: &[Member],
        descriptors: &[(&Member, Vec<Found>)],
        stopped: bool,
    ) -> Result<Vec<Refusal>, CallError> {
        self.open = OpenNamespaces::of(self.init, descriptors);
        for beside in [&mut self.host_names, &mut self.ipc, &mut self.nets, &mut self.users] {
            beside.add(&self.open);
        }
        let mut refusals = self.open.objections(self.init, |one| self.place(one).is_some());
        let (queues, held) = ipc::look(&self.ipc, stopped)?;
        let (networks, strange) = networks::look(&self.nets)?;
        (self.queues, self.networks) = (queues, networks);
        if self.mounts.have_devices() {
            self.devices = networks::devices(&self.nets, stopped);
        }
        let is_nested = |device: &str| self.queues_on(device).or(self.devices_on(device)).is_some();
        refusals.extend(self.mounts.objections(members, is_nested));
        refusals.extend(held.into_iter().chain(strange));
        refusals.extend(user_spaces::objections(&self.users, members, self.init, self.others().into_iter())?);
        Ok(refusals)
    }

    /// All but user namespaces, each with what leads to it, and what is to be said where it belongs to one of those.
    fn others(&self) -> Vec<(String, Refusal)> {
        let belongs = |kind: Kind| format!("{} that belongs to a user namespace of its own", kind.name);
        let beside = [(HOST_NAMES, &self.host_names), (IPC, &self.ipc), (NETWORK, &self.nets)];
        let plain = beside.into_iter().flat_map(|(kind, beside)| {
            let refusal = move |space: &Space| (space.at.clone(), space.refusal(belongs(kind), user_spaces::STOP));
            beside.all().iter().map(refusal)
        });
        let kind = belongs(MOUNTS);
        let mounts = self.mounts.refusals(&kind, user_spaces::STOP);
        plain.chain(mounts.map(|(outer, refusal)| (MOUNTS.at(outer), refusal))).collect()
    }

    /// Which one of its kind an open one is; none of the image's own if the first process's. `None` if it is of no use
    /// in a clone.
    fn place(&self, one: &OpenNamespace) -> Option<Option<usize>> {
        match one.kind {
            MOUNTS => self.mounts.place(&one.link),
            HOST_NAMES => self.host_names.place(&one.link),
            IPC => self.ipc.place(&one.link),
            NETWORK => self.nets.place(&one.link),
            USERS => self.users.place(&one.link),
            kind => kind.of(self.init).is_ok_and(|home| home == one.link).then_some(None),
        }
    }

    /// Notes which ones a process is in.
    pub(crate) fn note(&self, outer: i32, process: &mut Process) -> Result<(), CallError> {
        process.host_names = self.host_names.of_process(outer)?;
        process.mount_space = self.mounts.of_process(outer);
        process.ipc_space = self.ipc.of_process(outer)?;
        process.net_space = self.nets.of_process(outer)?;
        process.user_space = self.users.of_process(outer)?;
        Ok(())
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

/// Those of an image.
pub(crate) fn capture_host_names(spaces: &Beside) -> Result<Vec<HostNames>, CallError> {
    let names = |space: &Space| {
        let what = || format!("reading the host name of {}", space.at);
        let (host, domain) = uts::names(File::open(&space.at).context(what)?).context(what)?;
        Ok(HostNames { host, domain })
    };
    spaces.all().iter().map(names).collect()
}
