//! A process that is held by a descriptor. Its number may be another process's the moment after its end, so what is
//! opened by that is believed only if the descriptor says afterwards that it has not ended.

use super::pidfd;
use crate::file::confined::Root;
use crate::mistake::planted;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Mistake on purpose: who has the pid is taken for the process.
const BELIEVED: &str = "pids-are-believed";

/// A process, held by its descriptor. Copies hold the same one.
#[derive(Clone, Debug)]
pub struct HeldProcess {
    pid: i32,
    /// None of one that had ended before it could be held.
    descriptor: Option<Arc<OwnedFd>>,
}

impl HeldProcess {
    /// The process of a descriptor, which had this pid when it was opened.
    pub fn new(pid: i32, descriptor: OwnedFd) -> Self {
        Self { pid, descriptor: Some(Arc::new(descriptor)) }
    }

    /// One that has ended, and of which only its former pid is known. Nothing is opened of it.
    pub fn ended(pid: i32) -> Self {
        Self { pid, descriptor: None }
    }

    /// The pid, to be told to people and to be looked up in what was noted of it. Whatever is opened by it goes through
    /// [`HeldProcess::opened`].
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its descriptor, unless it had ended before it could be held.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|descriptor| descriptor.as_fd())
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.descriptor().is_none_or(pidfd::has_ended)
    }

    /// Sends a signal by number, to this process or to nobody.
    ///
    /// # Errors
    ///
    /// ESRCH where it has gone; EPERM where it may not be signalled.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        if planted(BELIEVED) {
            return pidfd::send_signal(pidfd::open(self.pid)?, number);
        }
        pidfd::send_signal(self.descriptor().ok_or_else(gone)?, number)
    }

    /// What is opened, or read, by the pid: it is the process's own, or an error.
    ///
    /// # Errors
    ///
    /// As of `open`; ESRCH where the process has ended, whoever has its pid.
    pub fn opened<T>(&self, open: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
        let descriptor = self.descriptor().ok_or_else(gone)?;
        let opened = open(self.pid);
        // It was so before, if it is so afterwards: nobody gets the pid of a process that has not ended.
        if pidfd::has_ended(descriptor) && !planted(BELIEVED) { Err(gone()) } else { opened }
    }

    /// The root directory of the process.
    ///
    /// # Errors
    ///
    /// ESRCH where the process has ended; those of open(2).
    pub fn root(&self) -> io::Result<Root> {
        self.opened(|pid| Ok(Root::of_process(pid)?))
    }

    /// A namespace of the process, by its name below /proc/PID/ns: by the descriptor alone where the kernel can
    /// (`PIDFD_GET_*_NAMESPACE`, since Linux 6.11), else by the pid.
    ///
    /// # Errors
    ///
    /// ESRCH where the process has ended; EACCES where it may not be looked at.
    pub fn namespace(&self, name: &str) -> io::Result<OwnedFd> {
        let descriptor = self.descriptor().ok_or_else(gone)?;
        match request(name).filter(|_| !planted(BELIEVED)).map(|request| ask(descriptor, request)) {
            None => {}
            // An older kernel.
            Some(Err(error)) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {}
            Some(asked) => return asked,
        }
        self.opened(|pid| File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from))
    }
}

/// As the kernel says it of a process that is not there.
fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// The request for a namespace of a kind (linux/pidfd.h): `_IO(0xff, …)`.
fn request(name: &str) -> Option<libc::c_ulong> {
    const FIRST: libc::c_ulong = 0xff00;
    let number = match name {
        "cgroup" => 1,
        "ipc" => 2,
        "mnt" => 3,
        "net" => 4,
        "pid" => 5,
        "user" => 9,
        "uts" => 10,
        _ => return None,
    };
    Some(FIRST | number)
}

fn ask(process: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<OwnedFd> {
    // SAFETY: these calls take no argument, and touch no memory.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), request, 0) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    fn held(child: &Child) -> HeldProcess {
        let pid = child.id().cast_signed();
        HeldProcess::new(pid, pidfd::open(pid).unwrap())
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn its_namespaces_are_those_below_proc() {
        let child = sleeper();
        let process = held(&child);
        for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
            let own = std::fs::metadata(format!("/proc/self/ns/{name}")).unwrap();
            let found = rustix::fs::fstat(process.namespace(name).unwrap()).unwrap();
            assert_eq!(found.st_ino, std::os::unix::fs::MetadataExt::ino(&own), "{name}");
        }
        assert!(process.namespace("none").is_err() && process.root().is_ok() && !process.has_ended());
        end(child);
    }

    #[test]
    fn nothing_is_had_of_one_that_has_ended_whoever_has_its_number() {
        let (former, other) = (sleeper(), sleeper());
        let process = HeldProcess { pid: other.id().cast_signed(), ..held(&former) };
        end(former);
        for process in [process.clone(), HeldProcess::ended(process.pid)] {
            let errors = [
                process.namespace("mnt").map(drop),
                process.root().map(drop),
                process.opened(|pid| super::super::read(pid, "stat")).map(drop),
                process.signal(libc::SIGKILL),
            ];
            assert!(process.has_ended());
            for result in errors {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESRCH));
            }
        }
        // During the look is no better than before it.
        let (late, other) = (held(&other), other);
        let opened = late.opened(|pid| {
            let opened = super::super::read(pid, "stat");
            end(other);
            opened
        });
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
