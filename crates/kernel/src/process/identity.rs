//! Which process a remembered pid meant. The kernel gives a pid to another process once its own has gone, on a machine
//! with a small `kernel.pid_max` within a minute.

use super::start_time;
use std::io;

/// A process, told from a later one with the same pid by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// The pid of the process, as this process sees it.
    pub pid: i32,
    /// When it started, in clock ticks since boot; 0 where nobody has noted that.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this pid now.
    ///
    /// # Errors
    ///
    /// ENOENT and ESRCH where there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: start_time(pid)? })
    }

    /// One that has gone, and that nobody is who has its pid by now.
    pub fn gone(pid: i32) -> Self {
        Self { pid, started: u64::MAX }
    }

    /// The calling process itself.
    ///
    /// # Errors
    ///
    /// Where there is no /proc.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id().cast_signed())
    }

    /// Whether it is there, if only as a zombie.
    pub fn is_there(&self) -> bool {
        start_time(self.pid).is_ok_and(|started| self.started == 0 || started == self.started)
    }

    /// What is opened by the pid, if that was this process's still when it was opened.
    ///
    /// # Errors
    ///
    /// As of `open`; NotFound where the process has gone, whoever has its pid.
    pub fn opened<T>(&self, open: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
        let opened = open(self.pid)?;
        // It was so before, if it is so afterwards: nobody gets a pid that is in use.
        match self.is_there() {
            true => Ok(opened),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "the process has gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn nothing_is_opened_of_whoever_has_the_pid_of_one_that_is_gone() {
        let own = ProcessId::own().unwrap();
        let open = |pid: i32| File::open(format!("/proc/{pid}/ns/mnt"));
        assert!(own.is_there() && own.opened(open).is_ok());
        let former = ProcessId { started: own.started - 1, ..own };
        assert!(!former.is_there() && !ProcessId::gone(own.pid).is_there());
        assert_eq!(former.opened(open).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(ProcessId { started: 0, ..own }.is_there());
    }
}
