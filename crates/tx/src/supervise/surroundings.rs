//! What is outside of a transaction: the host, or the target that the transaction is about.

use super::local_socket;
use super::system_v::Kind;
use crate::state::target::Target;
use nix::sched::{CloneFlags, setns};
use pando_kernel::cgroup::tree;
use pando_kernel::process;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The outside. A process of a target finds things by the names that they have there, which the host may have for
/// others.
#[derive(Clone, Debug)]
pub(super) struct Surroundings(Option<Target>);

impl Surroundings {
    /// Those of a transaction about a target, or about the host.
    pub(super) fn new(target: Option<&Target>) -> Self {
        Self(target.cloned())
    }

    /// The processes whose namespaces are those outside, as /proc has them.
    fn process(&self) -> io::Result<String> {
        self.0.as_ref().map_or_else(|| Ok("self".to_owned()), |target| Ok(target.process()?.to_string()))
    }

    /// The link of the namespace that objects of System V are in.
    pub(super) fn objects(&self) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/{}/ns/ipc", self.process()?))
    }

    /// Whether there is an object of System V with a key. Where that cannot be told there is.
    pub(super) fn has(&self, kind: Kind, key: i32) -> bool {
        let Some(target) = &self.0 else { return kind.has_here(key) };
        let look = || {
            let namespace = target.opened(|pid| File::open(format!("/proc/{pid}/ns/ipc")))?;
            // The file shows what is in the namespace of the thread that opens it, and this one ends right away.
            let looking = std::thread::Builder::new()
                .name("pando-keys".into())
                .spawn(move || setns(namespace, CloneFlags::CLONE_NEWIPC).map_or(true, |()| kind.has_here(key)));
            io::Result::Ok(looking?.join().unwrap_or(true))
        };
        look().unwrap_or(true)
    }

    /// The names without a file that somebody there can be reached by.
    pub(super) fn names(&self) -> io::Result<BTreeSet<Vec<u8>>> {
        local_socket::names(&self.process()?)
    }

    /// The pids of who is there.
    pub(super) fn processes(&self) -> Vec<i32> {
        self.0.as_ref().map_or_else(
            || process::all().unwrap_or_default(),
            |target| tree::members(&target.others, "cgroup.procs", tree::Bounds::ALL).ids,
        )
    }

    /// Its root directory, and the path that the kernel shows for that here.
    pub(super) fn root(&self) -> io::Result<(File, PathBuf)> {
        let root = File::open(self.0.as_ref().map_or_else(|| Ok(PathBuf::from("/")), Target::root)?)?;
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd()))?;
        Ok((root, shown))
    }
}
