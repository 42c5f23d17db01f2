//! A program started as a child that is born in a control group: moving it there afterwards costs milliseconds, and a
//! process could escape before.

use crate::process::user_rights::{AsUser, Becoming, DIRECTORY};
use crate::{CallError, Context};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The libc crate's own overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The child has no handlers of its parent's (since Linux 5.5): what was ignored stays so.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// The number of bytes of the kernel's signal set.
const SIGNAL_SET: usize = 8;

/// Bytes of the child's stack until then, far more than it uses, and what the ABI has its ends be multiples of.
const STACK: usize = 64 << 10;
const ALIGNED: usize = 16;

/// The kernel's search path where there is no PATH, as the C library has it.
const PATHS: &str = "/usr/local/bin:/bin:/usr/bin";

/// A program to be started. It inherits everything of the calling *thread* that fork(2) hands on: mount namespace,
/// root, working directory, descriptors that are not marked close-on-exec.
#[derive(Debug)]
pub struct Program<'a> {
    /// Its arguments, the first of which names it: a path, or a name that is looked for in PATH.
    pub arguments: &'a [OsString],
    /// The group of version 2 that it is born in (CLONE_INTO_CGROUP, since Linux 5.7).
    pub group: Option<BorrowedFd<'a>>,
    /// The signal that it gets when the calling thread ends (PR_SET_PDEATHSIG).
    pub death_signal: Option<i32>,
    /// Standard input, output and error, where they are not the caller's.
    pub stdio: [Option<BorrowedFd<'a>>; 3],
    /// A name that the child looks up in directories, once it is in its group and before it is the program: whatever
    /// the kernel keeps of that is charged to the group.
    pub looks_up: Option<(&'a [BorrowedFd<'a>], &'a CStr)>,
    /// Whose it becomes, where that is not the caller: with that user's environment, and in a session of its own.
    pub user: Option<&'a AsUser>,
}

/// A child that was started.
#[derive(Debug)]
pub struct Started {
    /// The child's pid, which is not reaped.
    pub pid: i32,
    /// A pidfd of the child.
    pub process: OwnedFd,
}

/// Everything that the child needs, made before it is: it may not allocate.
struct Prepared {
    candidates: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    stdio: [Option<i32>; 3],
    death_signal: Option<i32>,
    parent: i32,
    report: i32,
    looks_up: Vec<i32>,
    name: CString,
    user: Option<Becoming>,
    _strings: Vec<CString>,
}

impl Program<'_> {
    /// Starts it, with all signals unblocked and, but for those that the caller ignores, at their defaults.
    ///
    /// # Errors
    ///
    /// What execve(2) says: ENOENT where there is no such program, EACCES, ENOEXEC. EBUSY where the group has groups
    /// with controllers below it.
    pub fn start(&self) -> Result<Started, CallError> {
        let shown = self.arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.start_unnamed().context(|| format!("starting '{shown}'"))
    }

    fn start_unnamed(&self) -> io::Result<Started> {
        let (report, told) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let prepared = self.prepare(&told)?;
        let started = clone(&prepared, self.group)?;
        drop(told);
        let mut word = [0; 4];
        match rustix::io::read(&report, &mut word)? {
            // It was executed: that closed the other end.
            0 => Ok(started),
            _ => {
                crate::process::pidfd::wait_for_end(&started.process, std::time::Duration::from_secs(1));
                let _ = rustix::process::waitpid(
                    rustix::process::Pid::from_raw(started.pid),
                    rustix::process::WaitOptions::empty(),
                );
                Err(reported(i32::from_ne_bytes(word)))
            }
        }
    }

    fn prepare(&self, told: &OwnedFd) -> io::Result<Prepared> {
        let c = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let name = self.arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
        let own_path = std::env::var_os("PATH");
        let candidates = candidates(name, self.user.map_or(own_path.as_deref(), AsUser::path));
        let mut strings: Vec<CString> = self.arguments.iter().map(|word| c(word)).collect::<io::Result<_>>()?;
        let words = strings.len();
        let joined = |(mut key, value): (OsString, OsString)| {
            key.push("=");
            key.push(value);
            key
        };
        let environment = match self.user {
            Some(user) => user.environment.clone(),
            None => std::env::vars_os().map(joined).collect(),
        };
        for pair in environment {
            strings.push(c(&pair)?);
        }
        let pointers = |range: &[CString]| {
            range.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect::<Vec<_>>()
        };
        Ok(Prepared {
            candidates: candidates.iter().map(|path| c(path)).collect::<io::Result<_>>()?,
            arguments: pointers(&strings[..words]),
            environment: pointers(&strings[words..]),
            stdio: self.stdio.map(|fd| fd.map(|fd| fd.as_raw_fd())),
            death_signal: self.death_signal,
            parent: std::process::id() as i32,
            report: told.as_raw_fd(),
            looks_up: self.looks_up.iter().flat_map(|(directories, _)| *directories).map(AsRawFd::as_raw_fd).collect(),
            name: self.looks_up.map(|(_, name)| name.to_owned()).unwrap_or_default(),
            user: self.user.map(Becoming::new).transpose()?,
            _strings: strings,
        })
    }
}

/// The error that the child has reported.
fn reported(word: i32) -> io::Error {
    if word < DIRECTORY {
        return io::Error::from_raw_os_error(word);
    }
    let error = io::Error::from_raw_os_error(word - DIRECTORY);
    // Of another kind than that of a program which is not there.
    io::Error::new(io::ErrorKind::NotADirectory, format!("its working directory cannot be entered: {error}"))
}

/// Where a program may lie, as execvp(3) looks for it.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
    if name.as_bytes().contains(&b'/') || name.is_empty() {
        return vec![name.to_owned()];
    }
    let path = path.unwrap_or(OsStr::new(PATHS));
    std::env::split_paths(path).map(|directory| directory.join(Path::new(name)).into_os_string()).collect()
}

fn clone(prepared: &Prepared, group: Option<BorrowedFd<'_>>) -> io::Result<Started> {
    let mut process: i32 = -1;
    // SAFETY: the structure is plain numbers, for which zero means "nothing".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = libc::CLONE_PIDFD as u64 | libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64 | CLONE_CLEAR_SIGHAND;
    arguments.pidfd = (&raw mut process) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(group) = &group {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = group.as_fd().as_raw_fd() as u64;
    }
    let mut stack = Vec::<u8>::with_capacity(STACK);
    let bottom = stack.spare_capacity_mut().as_mut_ptr() as usize;
    arguments.stack = bottom.next_multiple_of(ALIGNED) as u64;
    arguments.stack_size = (STACK - ALIGNED) as u64;
    // SAFETY: this thread does not go on before the child has left its memory, and nobody else knows of the stack; what
    // the child does is system calls, which take no lock that others may hold, and it never returns. The handlers that
    // it has are none, so that no signal has anything else run in this memory.
    let pid = unsafe { begin(&arguments, prepared) };
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(-pid as i32));
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    Ok(Started { pid: pid as i32, process })
}

/// Begins the child's life, in this process's memory and on a stack of its own (clone(2), CLONE_VM | CLONE_VFORK): to
/// copy the memory, and to throw the copy away, takes longer than all that the child does with it. What the kernel
/// says.
///
/// # Safety
///
/// Those of [`become_program`]; the stack must be nobody else's.
#[cfg(target_arch = "x86_64")]
unsafe fn begin(arguments: &libc::clone_args, prepared: &Prepared) -> i64 {
    unsafe extern "C" fn child(prepared: &Prepared) -> ! {
        // SAFETY: the caller of `begin` vouches for that.
        unsafe { become_program(prepared) }
    }
    let result: i64;
    // SAFETY: the kernel reads the arguments, and gives the child the registers that this thread has, but for the
    // stack, whose end is aligned as at any call.
    unsafe {
        std::arch::asm!(
            "syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") libc::SYS_clone3 => result, in("rdi") arguments, in("rsi") size_of_val(arguments),
            in("r12") prepared, in("r13") child as unsafe extern "C" fn(_) -> ! as *const (),
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// The same elsewhere, in a copy of this process's memory.
///
/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn begin(arguments: &libc::clone_args, prepared: &Prepared) -> i64 {
    let mut arguments = *arguments;
    (arguments.stack, arguments.stack_size) = (0, 0);
    arguments.flags &= !(libc::CLONE_VM as u64);
    // SAFETY: no memory is shared, so the child returns here on a copy of this stack, and never from this block.
    unsafe {
        match libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) {
            0 => become_program(prepared),
            -1 => -i64::from(last_errno()),
            pid => pid,
        }
    }
}

/// The child's life until it is another program.
///
/// # Safety
///
/// Only in a child whose parent waits for it, or whose memory is a copy; the pointers of `prepared` must be what
/// [`Program::prepare`] made.
unsafe fn become_program(prepared: &Prepared) -> ! {
    // SAFETY: all of it is system calls on numbers and on memory that `prepared` owns; the action is as large as the
    // kernel's.
    unsafe {
        die_with_parent(prepared);
        // Rust's runtime ignores SIGPIPE for itself; other signals that are ignored were ignored by the process that
        // started this program. Handler, flags, restorer, mask:
        let default = [0_u64; 4];
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGPIPE,
            &raw const default,
            std::ptr::null_mut::<u64>(),
            SIGNAL_SET,
        );
        let none = 0_u64;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<u64>(),
            SIGNAL_SET,
        );
        // What is answered does not matter.
        for directory in &prepared.looks_up {
            libc::syscall(libc::SYS_faccessat, *directory, prepared.name.as_ptr(), libc::F_OK);
        }
        for (number, fd) in prepared.stdio.iter().enumerate() {
            if let Some(fd) = fd
                && libc::syscall(libc::SYS_dup3, *fd, number, 0) < 0
            {
                fail(prepared.report, last_errno());
            }
        }
        if let Some(user) = &prepared.user {
            match user.become_user() {
                0 => {}
                errno => fail(prepared.report, errno),
            }
            // The kernel has forgotten it with the change of users.
            die_with_parent(prepared);
        }
        let mut reason = libc::ENOENT;
        for candidate in &prepared.candidates {
            libc::syscall(
                libc::SYS_execve,
                candidate.as_ptr(),
                prepared.arguments.as_ptr(),
                prepared.environment.as_ptr(),
            );
            match last_errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => reason = libc::EACCES,
                other => {
                    reason = other;
                    break;
                }
            }
        }
        fail(prepared.report, reason)
    }
}

/// # Safety
///
/// Only in the child of [`clone`].
unsafe fn die_with_parent(prepared: &Prepared) {
    let Some(signal) = prepared.death_signal else { return };
    // SAFETY: system calls on numbers.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, signal, 0, 0, 0);
        // The parent may have ended before it could be watched.
        if libc::syscall(libc::SYS_getppid) != i64::from(prepared.parent) {
            libc::_exit(127);
        }
    }
}

/// # Safety
///
/// Only in the child of [`clone`].
unsafe fn fail(report: i32, reason: i32) -> ! {
    // SAFETY: the buffer is the number's own bytes; the process ends.
    unsafe {
        libc::syscall(libc::SYS_write, report, (&raw const reason).cast::<u8>(), size_of::<i32>());
        libc::_exit(127)
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, WaitOptions, waitpid};

    fn start(words: &[&str]) -> Result<Started, CallError> {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        Program {
            arguments: &arguments,
            group: None,
            death_signal: Some(libc::SIGKILL),
            stdio: [None; 3],
            looks_up: None,
            user: None,
        }
        .start()
    }

    #[test]
    fn a_program_is_found_in_the_path_and_ends_with_its_code() {
        let started = start(&["sh", "-c", "exit 7"]).unwrap();
        let (_, status) = waitpid(Pid::from_raw(started.pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(7));
    }

    #[test]
    fn one_that_is_not_there_is_an_error_and_leaves_no_child() {
        let error = start(&["no-such-program-anywhere"]).unwrap_err();
        assert_eq!(error.source.raw_os_error(), Some(libc::ENOENT));
        assert_eq!(start(&["/"]).unwrap_err().source.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn its_signals_are_as_a_program_expects_and_what_was_ignored_is_still() {
        // Rust ignores SIGPIPE; what SIGURG does when nobody asked is nothing, so that nobody else here notices.
        // SAFETY: no handler is set.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        let said = tempfile::NamedTempFile::new().unwrap();
        let arguments = ["cat", "/proc/self/status"].map(OsString::from);
        let stdio = [None, Some(said.as_file().as_fd()), None];
        let started =
            Program { arguments: &arguments, group: None, death_signal: None, stdio, looks_up: None, user: None }
                .start()
                .unwrap();
        waitpid(Pid::from_raw(started.pid), WaitOptions::empty()).unwrap();
        let status = std::fs::read_to_string(said.path()).unwrap();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let bit = |signal: i32| 1 << (signal - 1);
        assert_eq!((set("SigBlk:"), set("SigCgt:")), (0, 0));
        assert_eq!(set("SigIgn:") & (bit(libc::SIGURG) | bit(libc::SIGPIPE)), bit(libc::SIGURG));
    }

    #[test]
    fn a_path_is_not_looked_for() {
        assert_eq!(candidates(OsStr::new("./a"), Some(OsStr::new("/b"))), ["./a"]);
        assert_eq!(candidates(OsStr::new("a"), Some(OsStr::new("/b:/c"))), ["/b/a", "/c/a"]);
    }
}
