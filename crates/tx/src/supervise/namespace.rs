//! What a process enters by setns(2), as far as it matters: a namespace of mounts, or of objects of System V.

use super::receiver::pid_of_descriptor;
use nix::sched::CloneFlags;
use pando_kernel::seccomp::notify::Call;
use std::io;
use std::path::{Path, PathBuf};

/// The kinds that lead around a view, as the kernel's links name them.
const MATTER: [&str; 2] = ["mnt", "ipc"];

/// What is entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Some of what a process has, by its descriptor.
    OfProcess(i32),
    /// One namespace.
    Namespace {
        /// Its kind, by the kernel's word.
        kind: &'static str,
        /// What tells it from all others.
        link: PathBuf,
    },
}

impl Entered {
    /// What the first argument of a call leads to; nothing if that is no matter, or the kernel will refuse it.
    ///
    /// # Errors
    ///
    /// That it cannot be looked at.
    pub(super) fn by(call: &Call) -> io::Result<Option<Self>> {
        let (descriptor, wanted) = (call.arguments[0] as i32, call.arguments[1] as i32);
        if let Some(pid) = pid_of_descriptor(call.pid, descriptor)? {
            let matters = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
            return Ok((wanted & matters.bits() != 0).then_some(Self::OfProcess(pid)));
        }
        match std::fs::read_link(format!("/proc/{}/fd/{descriptor}", call.pid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            link => link.map(|link| kind_of(&link).map(|kind| Self::Namespace { kind, link })),
        }
    }
}

/// The kind of a namespace whose link this is, if it matters.
fn kind_of(link: &Path) -> Option<&'static str> {
    let (word, number) = link.to_str()?.split_once(":[")?;
    MATTER.into_iter().find(|kind| word == *kind && number.ends_with(']'))
}

/// The link of a process's namespace.
pub(super) fn namespace_of(pid: i32, kind: &str) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_told_by_their_links() {
        assert_eq!(kind_of(Path::new("mnt:[4026531841]")), Some("mnt"));
        assert_eq!(kind_of(Path::new("ipc:[7]")), Some("ipc"));
        assert_eq!((kind_of(Path::new("net:[7]")), kind_of(Path::new("/mnt:[7"))), (None, None));
    }
}
