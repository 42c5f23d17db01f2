//! Control groups of version 2 that stand still for a bounded time, whatever becomes of the process that wants it.
//!
//! ```text
//!   this process ──freezes──▶ groups ◀──thaws── keeper: when the time is over, or this process has ended
//! ```
//!
//! The keeper is a process that needs nothing of a disk and nobody's answer: who stands still may be what these wait
//! for. It must not be in one of the groups itself, and so must not be this process, whose group it has.

use crate::process::inheritance::close_all_but;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Groups that stand still until this is dropped, or the time is over.
#[derive(Debug)]
pub struct TimedFreeze {
    groups: Vec<(PathBuf, File)>,
    keeper: OwnedFd,
    pid: i32,
    /// Its other end is at its end when this process is at its own, however that came.
    life: Option<OwnedFd>,
}

/// What the keeper needs, made before it is: it may not allocate.
struct Prepared {
    wait: i32,
    groups: Vec<i32>,
    kept: Vec<i32>,
    longest: libc::timespec,
}

impl Drop for TimedFreeze {
    fn drop(&mut self) {
        self.end();
    }
}

impl TimedFreeze {
    /// Begins to freeze groups and all below them (cgroup.freeze, since Linux 5.2). One that is gone is left out.
    ///
    /// # Errors
    ///
    /// What opening their files says, pipe(2) and clone3(2).
    pub fn begin(groups: &[PathBuf], longest: Duration) -> io::Result<Self> {
        let open = |group: &PathBuf| match File::options().write(true).open(group.join("cgroup.freeze")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map(|opened| (group.clone(), opened))),
        };
        let groups = groups.iter().filter_map(open).collect::<io::Result<Vec<_>>>()?;
        let (wait, life) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let numbers: Vec<i32> = groups.iter().map(|(_, file)| file.as_raw_fd()).collect();
        let mut kept = numbers.clone();
        kept.push(wait.as_raw_fd());
        kept.sort_unstable();
        let longest =
            libc::timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: i64::from(longest.subsec_nanos()) };
        let (pid, keeper) = keeper(&Prepared { wait: wait.as_raw_fd(), groups: numbers, kept, longest })?;
        let frozen = Self { groups, keeper, pid, life: Some(life) };
        for (_, mut file) in frozen.groups.iter().map(|(path, file)| (path, file)) {
            // It may have gone.
            let _ = file.write(b"1");
        }
        Ok(frozen)
    }

    /// Whether all of them stand still.
    pub fn is_complete(&self) -> bool {
        self.groups.iter().all(|(group, _)| stands_still(group))
    }

    /// Whether they go on, since the time is over.
    pub fn has_lapsed(&self) -> bool {
        crate::process::pidfd::has_ended(&self.keeper)
    }

    /// Lets them go on: whether they did already.
    pub fn end(&mut self) -> bool {
        let lapsed = self.has_lapsed();
        if self.life.take().is_some() {
            for (_, mut file) in self.groups.iter().map(|(path, file)| (path, file)) {
                let _ = file.write(b"0");
            }
            let mut status = 0;
            // SAFETY: the status is an int, as the call wants; the keeper is a child of this process, and ends now.
            unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        }
        lapsed
    }
}

fn stands_still(group: &Path) -> bool {
    match std::fs::read_to_string(group.join("cgroup.events")) {
        Ok(text) => text.lines().any(|line| line == "frozen 1" || line == "populated 0"),
        Err(_) => true,
    }
}

fn keeper(prepared: &Prepared) -> io::Result<(i32, OwnedFd)> {
    let mut process: i32 = -1;
    // SAFETY: the structure is plain numbers, for which zero means "nothing".
    let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
    clone.flags = libc::CLONE_PIDFD as u64;
    clone.pidfd = (&raw mut process) as u64;
    // SAFETY: no memory is shared, so the child returns here on a copy of this stack; being the copy of one thread of
    // perhaps many, it makes only system calls, which take no lock, and never returns from this block.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, &raw const clone, size_of_val(&clone));
        if pid == 0 {
            keep(prepared);
        }
        pid
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok((pid as i32, unsafe { OwnedFd::from_raw_fd(process) }))
}

/// The keeper's life.
///
/// # Safety
///
/// Only in a child that shares no memory with its parent.
unsafe fn keep(prepared: &Prepared) -> ! {
    // SAFETY: all of it is system calls on numbers, on this stack and on memory that `prepared` owns.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        close_all_but(&prepared.kept);
        let mut end = libc::pollfd { fd: prepared.wait, events: libc::POLLIN, revents: 0 };
        let mut left = prepared.longest;
        // The kernel counts down what is left.
        let none = std::ptr::null::<u64>();
        while libc::syscall(libc::SYS_ppoll, &raw mut end, 1, &raw mut left, none, 8) < 0
            && *libc::__errno_location() == libc::EINTR
        {}
        for group in &prepared.groups {
            libc::syscall(libc::SYS_write, *group, c"0".as_ptr(), 1);
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::Instant;

    /// A group with a process in it; nothing where none can be made.
    fn group(name: &str) -> Option<(PathBuf, Child)> {
        let root = super::super::Hierarchies::detect().ok()?.unified?;
        let group = root.join(format!("pando-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        Some((group, child))
    }

    fn remove((group, mut child): (PathBuf, Child)) {
        child.kill().unwrap();
        child.wait().unwrap();
        while std::fs::remove_dir(&group).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {}
    }

    fn until(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_group_stands_still_until_it_is_let_go() {
        let Some(scene) = group("let-go") else { return };
        let mut frozen = TimedFreeze::begin(&[scene.0.clone(), "/nowhere".into()], Duration::from_secs(60)).unwrap();
        until(|| frozen.is_complete());
        assert!(!frozen.end() && !stands_still(&scene.0));
        remove(scene);
    }

    #[test]
    fn a_group_goes_on_when_its_time_is_over() {
        let Some(scene) = group("time") else { return };
        let mut frozen = TimedFreeze::begin(std::slice::from_ref(&scene.0), Duration::from_millis(100)).unwrap();
        until(|| frozen.has_lapsed());
        assert!(!stands_still(&scene.0) && frozen.end());
        remove(scene);
    }
}
