//! From a plan to a process: opens what the plan wants, and hands both to a shim.

use crate::devices;
use crate::given_device;
use crate::plan::{Plan, Want};
use crate::root::Owner;
use crate::shim::ShimLink;
use crate::volume;
use pando_api::Volume;
use pando_kernel::file::operator_path::OperatorPath;
use pando_kernel::mistake::planted;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::process::{held::HeldProcess, identity::ProcessId};
use pando_kernel::{CallError, Context, memory, socket::packet};
use pando_limit::view::View;
use pando_shim::{ADMITTED, IN_FILE, IN_MESSAGE, MAX_REST, ROUSED, Request};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What a plan's wants are made of.
#[derive(Debug, Default)]
pub struct Supplies<'a> {
    /// The volumes of the spec.
    pub volumes: &'a [Volume],
    /// What their paths lead to, in the same order.
    pub volume_sources: &'a [OperatorPath],
    /// The ids that the guest has on the host.
    pub owner: Option<Owner<'a>>,
    /// The guest's root file system, detached.
    pub root: Option<Tree>,
    /// The cgroup to be born in.
    pub cgroup: Option<PathBuf>,
    /// What /dev is to be, where that is there already.
    pub dev: Option<&'a Tree>,
    /// An empty directory of the host.
    pub empty: Option<&'a Path>,
    /// A directory of the host that holds nothing but those of [`crate::plan::STAGE`], empty.
    pub stage: Option<&'a Path>,
    /// The caller's standard descriptors, or the socket for a terminal's master.
    pub stdio: &'a [OwnedFd],
    /// The guest's first process, held by its descriptor.
    pub first: Option<&'a HeldProcess>,
    /// The process whose mounts are seen in place of the first process's, and whose objects of System V: one in a
    /// transaction's view.
    pub view_of: Option<ProcessId>,
    /// The program that comes along.
    pub program: Option<&'a OwnedFd>,
    /// A socket to the process that answers system calls.
    pub supervisor: Option<&'a OwnedFd>,
    /// An eventfd for the word of the command's end.
    pub word: Option<&'a OwnedFd>,
    /// What is shown in place of files of the kernel's.
    pub views: Vec<(View, Tree)>,
    /// The hosts file and the resolver configuration of a guest that does not have the host's.
    pub names: Option<(&'a Path, &'a Path)>,
}

/// A launch that was sent to a shim.
#[derive(Debug)]
pub struct Launched {
    /// Where the process reports: see [`crate::shim::read_report`].
    pub report: OwnedFd,
}

/// A descriptor of ours or of the caller's.
enum Supply<'a> {
    Own(OwnedFd),
    Lent(BorrowedFd<'a>),
}

impl AsFd for Supply<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Lent(fd) => *fd,
        }
    }
}

/// Opens what the plan wants and sends the launch. The answer comes on the link.
pub fn launch(link: &ShimLink, plan: &Plan, supplies: &mut Supplies<'_>) -> Result<Launched, CallError> {
    let what = || "sending a plan to a shim".into();
    let start = plan.start.ok_or_else(|| std::io::Error::other("it begins no process")).context(what)?;
    let (steps, opened) = (steps(plan)?, supplies.open(plan)?);
    let (report, theirs) = packet::pair().context(|| "making a socket pair".into())?;
    let mut fds = vec![steps.as_fd(), theirs.as_fd()];
    fds.extend(opened.iter().map(AsFd::as_fd));
    link.send(Request::Launch(start), &fds).context(what)?;
    rustix::io::ioctl_fionbio(&report, true).context(what)?;
    Ok(Launched { report })
}

/// Opens what the rest of a plan wants and sends it to the process that waits for it at the other end of `report`.
pub fn go_on(report: &OwnedFd, plan: &Plan, supplies: &mut Supplies<'_>) -> Result<(), CallError> {
    let opened = supplies.open(plan)?;
    let mut fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    let in_message = [&[IN_MESSAGE], plan.bytes()].concat();
    let sent = if in_message.len() <= MAX_REST {
        packet::send(report, &in_message, &fds)
    } else {
        let steps = steps(plan)?;
        fds.push(steps.as_fd());
        packet::send(report, &[IN_FILE], &fds)
    };
    sent.context(|| "sending the rest of a plan to a guest's first process".into())
}

/// Tells the process at the other end of `report` that its guest has been admitted: it was sent a plan that waits for
/// that.
pub fn admit(report: &OwnedFd) -> Result<(), CallError> {
    packet::send(report, &[ADMITTED], &[]).context(|| "telling a guest's first process that it is admitted".into())
}

/// Wakes the process at the other end of `report`, to which the rest of its plan will go in a moment, on another
/// processor than this thread runs on. To wake one that sleeps takes an eighth of what a start takes.
pub fn rouse(report: &OwnedFd, first: &HeldProcess) -> std::io::Result<()> {
    let process = Pid::from_raw(first.pid());
    let allowed = sched_getaffinity(process)?;
    let mut others = allowed;
    others.unset(sched_getcpu());
    if others.count() > 0 {
        sched_setaffinity(process, &others)?;
        if first.has_ended() {
            // Its number was another's, which goes on as it was.
            return sched_setaffinity(process, &allowed).map_err(Into::into);
        }
        packet::send(report, &roused(&allowed), &[])?;
    }
    Ok(())
}

/// What a process is roused with: it takes these processors back itself, which it may be on its way to where it is
/// roused too early to know.
fn roused(allowed: &CpuSet) -> Vec<u8> {
    let byte = |byte| (0..8).fold(0, |bits, bit| bits | u8::from(allowed.is_set(byte * 8 + bit)) << bit);
    std::iter::once(ROUSED).chain((0..CpuSet::MAX_CPU / 8).map(byte)).collect()
}

/// A plan's steps, as a file in memory.
fn steps(plan: &Plan) -> Result<OwnedFd, CallError> {
    memory::file::sealed("pando-plan", plan.bytes(), false).context(|| "putting a plan into memory".into())
}

impl<'a> Supplies<'a> {
    /// What the plan wants.
    fn open(&mut self, plan: &Plan) -> Result<Vec<Supply<'a>>, CallError> {
        plan.wants.iter().map(|want| self.supply(*want)).collect()
    }

    fn supply(&mut self, want: Want) -> Result<Supply<'a>, CallError> {
        let missing = || std::io::Error::other("it was not supplied");
        let lent = |fd: Option<&'a OwnedFd>| {
            fd.map(|fd| Supply::Lent(fd.as_fd())).ok_or_else(missing).context(|| format!("looking for {want:?}"))
        };
        let own = |tree: Tree| Supply::Own(tree.into());
        let first_id = self.owner.map_or(0, |owner| owner.first_id);
        match want {
            Want::Cgroup => {
                let path =
                    self.cgroup.take().ok_or_else(missing).context(|| "looking for the guest's cgroup".into())?;
                let directory = File::open(&path).context(|| format!("opening {}", path.display()))?;
                Ok(Supply::Own(directory.into()))
            }
            Want::Root => {
                self.root.take().map(own).ok_or_else(missing).context(|| "looking for the root file system".into())
            }
            Want::Devices => match self.dev {
                Some(tree) => Ok(Supply::Lent(tree.as_fd())),
                None => devices::tree(first_id).map(own),
            },
            Want::HostSys => read_only(Path::new("/sys")).map(own),
            Want::Empty(_) => self.directory(self.empty, want),
            Want::Stage => self.directory(self.stage, want),
            Want::Resolver => self.names.map_or_else(resolver, |(_, resolver)| read_only(resolver)).map(own),
            Want::Hosts => {
                let (hosts, _) =
                    self.names.ok_or_else(missing).context(|| "looking for the guest's hosts file".into())?;
                read_only(hosts).map(own)
            }
            Want::Volume(number) => {
                let found = self.volumes.get(number).zip(self.volume_sources.get(number));
                let (one, source) = found.ok_or_else(missing).context(|| format!("looking for {want:?}"))?;
                volume::tree(one, source, self.owner.map(|owner| owner.namespace)).map(own)
            }
            Want::Namespace(name) => {
                let first =
                    self.first.ok_or_else(missing).context(|| "looking for the guest's first process".into())?;
                let open = |pid: i32| File::open(format!("/proc/{pid}/ns/{name}"));
                let opened = match self.view_of.filter(|_| ["mnt", "ipc"].contains(&name)) {
                    Some(holder) => holder.opened(open).map(OwnedFd::from),
                    None => first.namespace(name),
                };
                opened.map(Supply::Own).context(|| format!("opening the {name} namespace of a process"))
            }
            // Mistake on purpose: a guest's process has the host's root open.
            Want::Stdio(0) if planted("hosts-root-as-input") => {
                let root = File::open("/").context(|| "opening /".into())?;
                Ok(Supply::Own(root.into()))
            }
            Want::Stdio(number) => {
                let own = self.stdio.get(number).map_or(Ok(None), given_device::own)?;
                own.map_or_else(|| lent(self.stdio.get(number)), |own| Ok(Supply::Own(own)))
            }
            Want::Terminal => lent(self.stdio.first()),
            Want::Program => lent(self.program),
            Want::Word => lent(self.word),
            Want::Supervisor => lent(self.supervisor),
            Want::View(view) => {
                let found = self.views.iter().position(|(known, _)| *known == view);
                let tree = found.map(|found| self.views.swap_remove(found).1);
                tree.map(own).ok_or_else(missing).context(|| format!("looking for {want:?}"))
            }
        }
    }
}

impl<'a> Supplies<'a> {
    fn directory(&self, path: Option<&Path>, want: Want) -> Result<Supply<'a>, CallError> {
        let missing = || std::io::Error::other("it was not supplied");
        let path = path.ok_or_else(missing).context(|| format!("looking for {want:?}"))?;
        read_only(path).map(|tree| Supply::Own(tree.into()))
    }
}

/// The files at a path of the host, without the mounts below, as nobody can change them.
pub fn read_only(path: &Path) -> Result<Tree, CallError> {
    let tree = Tree::clone_of(path, false)?;
    let attributes = Attributes::MOUNT_ATTR_RDONLY
        | Attributes::MOUNT_ATTR_NOSUID
        | Attributes::MOUNT_ATTR_NODEV
        | Attributes::MOUNT_ATTR_NOEXEC;
    tree.set_attributes(false, attributes)?;
    Ok(tree)
}

/// The host's resolver configuration, wherever its link leads.
fn resolver() -> Result<Tree, CallError> {
    const PATH: &str = "/etc/resolv.conf";
    let path = std::fs::canonicalize(PATH).unwrap_or_else(|_| PathBuf::from("/dev/null"));
    read_only(&path)
}
