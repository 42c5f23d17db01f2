//! Work that is done after a process has ended, by a copy of it, so that nobody waits for it.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;

/// A copy of this process that waits to be let go: by a drop, or by this process's end.
#[derive(Debug)]
pub struct Follower {
    _go: OwnedFd,
}

impl Follower {
    /// Has a copy of this process do `work` once it is let go, in a process group of its own, with the null device for
    /// its standard descriptors.
    ///
    /// It closes every other descriptor before it begins: a process that has closed its own by then does not wait for
    /// what the kernel does at the last closing. A copy takes a fraction of the time that starting a program does.
    ///
    /// # Errors
    ///
    /// ResourceBusy where this process has other threads, which the copy would not have; what pipe(2), open(2) and
    /// fork(2) say.
    pub fn stand_by(work: impl FnOnce()) -> io::Result<Self> {
        if !is_alone()? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        // SAFETY: this process has one thread, so that the copy has all there is, and no lock in it is held by anybody
        // else.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(go);
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| follow(&wait, &null, work)));
                // SAFETY: it ends at once, and nothing of the original's is run or written a second time.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Self { _go: go }),
        }
    }
}

/// Whether this process has one thread. One that was joined is listed until the kernel has taken it apart, which is
/// waited for.
fn is_alone() -> io::Result<bool> {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        if std::fs::read_dir("/proc/self/task")?.take(2).count() == 1 {
            return Ok(true);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(false)
}

fn follow(wait: &OwnedFd, null: &std::fs::File, work: impl FnOnce()) {
    let _ = rustix::process::setpgid(None, None);
    // It keeps no mount busy. The original stays where it is: it may run a command again.
    let _ = rustix::process::chdir("/");
    let _ = rustix::stdio::dup2_stdin(null);
    let _ = rustix::stdio::dup2_stdout(null);
    let _ = rustix::stdio::dup2_stderr(null);
    while matches!(rustix::io::read(wait, &mut [0; 1]), Err(rustix::io::Errno::INTR)) {}
    // SAFETY: nothing is used any more that a descriptor belongs to: the work gets none, and what owned them is never
    // dropped.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    work();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_other_threads_has_none() {
        // The one that runs the tests is another.
        let refused = std::thread::spawn(|| Follower::stand_by(|| {})).join().unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }
}
