//! Hearing of changes to a mount namespace (`poll(2)` on `/proc/PID/mountinfo`, since Linux 2.6.15; see
//! proc_pid_mountinfo(5)).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;

/// The mounts of the namespace that the calling thread was in. A process with a copy of its descriptor hears of the
/// same changes.
#[derive(Debug)]
pub struct MountWatch(OwnedFd);

impl MountWatch {
    /// Begins to listen for changes to this process's mounts.
    ///
    /// # Errors
    ///
    /// Those of opening /proc/self/mountinfo.
    pub fn begin() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open("/proc/thread-self/mountinfo", flags, Mode::empty())?))
    }

    /// Whether nothing has been mounted, moved, unmounted, or mounted otherwise since. That something was is told once.
    pub fn is_silent(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::PRI)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

impl From<OwnedFd> for MountWatch {
    /// One that another process began.
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<MountWatch> for OwnedFd {
    /// Readable with priority (POLLPRI) when there is something to hear.
    fn from(watch: MountWatch) -> Self {
        watch.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_remount};

    #[test]
    fn what_is_mounted_or_mounted_otherwise_is_heard_of_once_and_what_is_read_is_not() {
        let at = tempfile::tempdir().unwrap();
        let in_a_namespace = || {
            // SAFETY: of a thread that nobody else uses.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                return eprintln!("skipped: mount namespaces take root");
            }
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            let watch = MountWatch::begin().unwrap();
            let elsewhere = MountWatch::from(watch.0.try_clone().unwrap());
            std::fs::read("/proc/thread-self/mountinfo").unwrap();
            assert!(watch.is_silent());
            mount("none", at.path(), "tmpfs", MountFlags::empty(), None).unwrap();
            assert!(!elsewhere.is_silent());
            assert!(watch.is_silent());
            mount_remount(at.path(), MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
            assert!(!watch.is_silent());
        };
        std::thread::scope(|scope| scope.spawn(in_a_namespace).join().unwrap());
    }
}
