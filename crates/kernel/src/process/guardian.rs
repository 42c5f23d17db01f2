//! A process that does what this one cannot do any more once it is killed.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// The number that the pipe has in the guardian; those below are the standard ones.
const PIPE: i32 = 3;

/// Bytes of the kernel's signal set.
const SIGNAL_SET: usize = 8;

/// One that stands by. It is in a session of its own: what a terminal or a shell kills together with this process does
/// not reach it. Dropped, it is called off.
#[derive(Debug)]
pub struct Guardian {
    pid: i32,
    process: OwnedFd,
    /// Its other end is at its end when this process is at its own, however that came.
    _life: OwnedFd,
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // It waits, and has nothing to lose.
        let _ = crate::process::pidfd::send_signal(&self.process, libc::SIGKILL);
        let pid = rustix::process::Pid::from_raw(self.pid);
        let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
    }
}

/// What it needs, made before it is: it may not allocate.
struct Prepared {
    program: CString,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    wait: i32,
    null: i32,
    _strings: [Vec<CString>; 2],
}

impl Guardian {
    /// Has one stand by, to execute `program`, which is a path, with these arguments should this process end before the
    /// guardian is called off. It inherits the environment but for what is named in `without`, and has the null device
    /// for its standard descriptors.
    ///
    /// # Errors
    ///
    /// Those of fork(2), and InvalidInput for a word with a zero byte.
    pub fn stand_by(program: &OsString, arguments: &[OsString], without: &[&str]) -> io::Result<Self> {
        let (wait, life) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        let prepared = prepare(program, arguments, without, wait.as_raw_fd(), null.as_raw_fd())?;
        let mut process: i32 = -1;
        // SAFETY: the structure is plain numbers, for which zero means "nothing".
        let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
        clone.flags = libc::CLONE_PIDFD as u64;
        clone.pidfd = (&raw mut process) as u64;
        clone.exit_signal = libc::SIGCHLD as u64;
        // SAFETY: no memory is shared, so the child returns here on a copy of this stack; being the copy of one thread
        // of perhaps many, it makes only system calls, which take no lock, and never returns from this block.
        let pid = unsafe {
            let pid = libc::syscall(libc::SYS_clone3, &raw const clone, size_of_val(&clone));
            if pid == 0 {
                guard(&prepared);
            }
            pid
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        Ok(Self { pid: pid as i32, process, _life: life })
    }
}

fn prepare(program: &OsString, arguments: &[OsString], without: &[&str], wait: i32, null: i32) -> io::Result<Prepared> {
    let c = |text: &OsString| CString::new(text.as_bytes()).map_err(io::Error::from);
    let words: Vec<CString> = arguments.iter().map(c).collect::<io::Result<_>>()?;
    let variables = std::env::vars_os().filter(|(name, _)| !without.iter().any(|one| name == one));
    let pair = |(mut text, value): (OsString, OsString)| {
        text.push("=");
        text.push(value);
        c(&text)
    };
    let variables: Vec<CString> = variables.map(pair).collect::<io::Result<_>>()?;
    let pointers = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect::<Vec<_>>()
    };
    Ok(Prepared {
        program: c(program)?,
        arguments: pointers(&words),
        environment: pointers(&variables),
        wait,
        null,
        _strings: [words, variables],
    })
}

/// The guardian's life.
///
/// # Safety
///
/// Only in a child that shares no memory with its parent; the pointers of `prepared` must be what [`prepare`] made.
unsafe fn guard(prepared: &Prepared) -> ! {
    // SAFETY: all of it is system calls on numbers and on memory that `prepared` owns. The pipe has a number above the
    // standard ones, since those are open.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        for standard in 0..PIPE {
            libc::syscall(libc::SYS_dup3, prepared.null, standard, 0);
        }
        // Refused where it has that number already.
        libc::syscall(libc::SYS_dup3, prepared.wait, PIPE, 0);
        // Locks that this process holds must end with it, and so must its end of the pipe.
        libc::syscall(libc::SYS_close_range, PIPE + 1, u32::MAX, 0);
        let mut byte = 0_u8;
        loop {
            let count = libc::syscall(libc::SYS_read, PIPE, &raw mut byte, 1);
            if count == 0 {
                break;
            }
            if count < 0 && *libc::__errno_location() != libc::EINTR {
                libc::_exit(1);
            }
        }
        libc::syscall(libc::SYS_close, PIPE);
        let none = 0_u64;
        let before = std::ptr::null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, before, SIGNAL_SET);
        let (arguments, environment) = (prepared.arguments.as_ptr(), prepared.environment.as_ptr());
        libc::syscall(libc::SYS_execve, prepared.program.as_ptr(), arguments, environment);
        libc::_exit(127)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> [OsString; 3] {
        ["sh", "-c", script].map(OsString::from)
    }

    #[test]
    fn one_that_is_called_off_does_nothing_and_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let script = format!("echo >{}", mark.display());
        let guardian = Guardian::stand_by(&"/bin/sh".into(), &words(&script), &[]).unwrap();
        let process = guardian.process.try_clone().unwrap();
        drop(guardian);
        assert!(crate::process::pidfd::has_ended(&process) && !mark.exists());
    }
}
