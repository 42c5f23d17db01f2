//! The machine below: the program's entry, system calls, forks and threads. All unsafe code of the restorer stands
//! here, in `settle.rs`, `run.rs` and `aio_ring.rs`.

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;
use core::sync::atomic::AtomicU32;
use pando_restorer::trampoline;
use rustix::fd::BorrowedFd;

/// Numbers of system calls (x86-64).
pub(crate) mod number {
    pub(crate) const READ: u64 = 0;
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const CLOSE: u64 = 3;
    pub(crate) const MMAP: u64 = 9;
    pub(crate) const MPROTECT: u64 = 10;
    pub(crate) const MUNMAP: u64 = 11;
    pub(crate) const RT_SIGPROCMASK: u64 = 14;
    pub(crate) const MREMAP: u64 = 25;
    pub(crate) const MADVISE: u64 = 28;
    pub(crate) const NANOSLEEP: u64 = 35;
    pub(crate) const GETPID: u64 = 39;
    pub(crate) const SOCKETPAIR: u64 = 53;
    pub(crate) const WAIT4: u64 = 61;
    pub(crate) const KILL: u64 = 62;
    pub(crate) const FCNTL: u64 = 72;
    pub(crate) const FCHDIR: u64 = 81;
    pub(crate) const SETGROUPS: u64 = 116;
    pub(crate) const SETRESUID: u64 = 117;
    pub(crate) const SETRESGID: u64 = 119;
    pub(crate) const CAPGET: u64 = 125;
    pub(crate) const CAPSET: u64 = 126;
    pub(crate) const PRCTL: u64 = 157;
    pub(crate) const FUTEX: u64 = 202;
    pub(crate) const IO_SETUP: u64 = 206;
    pub(crate) const IO_DESTROY: u64 = 207;
    pub(crate) const IO_SUBMIT: u64 = 209;
    pub(crate) const EXIT_GROUP: u64 = 231;
    pub(crate) const KEYCTL: u64 = 250;
    pub(crate) const DUP3: u64 = 292;
    pub(crate) const PIPE2: u64 = 293;
    pub(crate) const SETNS: u64 = 308;
    pub(crate) const CLONE3: u64 = 435;
    pub(crate) const LANDLOCK_CREATE_RULESET: u64 = 444;
    pub(crate) const LANDLOCK_RESTRICT_SELF: u64 = 446;
}

/// The number of an error, as errno(3) has it: positive.
pub(crate) type Errno = i32;

/// Makes a system call.
///
/// # Safety
///
/// The call must be sound with these arguments: pointers valid for what the kernel reads and writes, nothing unmapped
/// or closed that is still used.
pub(crate) unsafe fn call(number: u64, a: [u64; 6]) -> Result<u64, Errno> {
    let result: i64;
    // SAFETY: the caller vouches for the call; the kernel clobbers rcx and r11 besides the result.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
             in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(-result as Errno) } else { Ok(result as u64) }
}

/// Makes a system call that touches no memory and closes nothing: its arguments are plain numbers.
pub(crate) fn plain(number: u64, a: [u64; 3]) -> Result<u64, Errno> {
    // SAFETY: callers pass calls whose arguments are no pointers.
    unsafe { call(number, [a[0], a[1], a[2], 0, 0, 0]) }
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
// SAFETY: the kernel enters here with the stack pointer at argc; nothing of it is needed. The first call runs on the
// kernel's stack, because it moves the program's own memory; everything after runs on the program's own.
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp", "and rsp, -16", "call {settle}", "lea rsp, [rip + {stack} + {length}]", "xor ebp, ebp", "call {program}", "ud2",
        settle = sym crate::settle_in, program = sym crate::program, stack = sym HOLDER_STACK, length = const STACK_LENGTH
    )
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(113)
}

/// Ends the process.
pub(crate) fn exit(code: u64) -> ! {
    loop {
        let _ = plain(number::EXIT_GROUP, [code, 0, 0]);
    }
}

const STACK_LENGTH: usize = 16 * 1024;

/// Memory for a stack; never touched by name but for its address.
#[repr(C, align(4096))]
pub(crate) struct Stack([u8; STACK_LENGTH]);

static mut HOLDER_STACK: Stack = Stack([0; STACK_LENGTH]);
static mut ENTRANT_STACK: Stack = Stack([0; STACK_LENGTH]);
static mut MAKER_STACK: Stack = Stack([0; STACK_LENGTH]);

/// `struct clone_args` (linux/sched.h).
#[repr(C)]
#[derive(Default)]
pub(crate) struct CloneArguments {
    pub(crate) flags: u64,
    pub(crate) pidfd: u64,
    pub(crate) child_tid: u64,
    pub(crate) parent_tid: u64,
    pub(crate) exit_signal: u64,
    pub(crate) stack: u64,
    pub(crate) stack_size: u64,
    pub(crate) tls: u64,
    pub(crate) set_tid: u64,
    pub(crate) set_tid_size: u64,
    pub(crate) cgroup: u64,
}

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, CHILD_CLEARTID.
const THREAD: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x20_0000;
const SIGCHLD: u64 = 17;

/// Starts a task that shares this one's memory, on a stack of its own, in `entry(argument)`.
///
/// # Safety
///
/// The stack must be unused, and what the task and this one touch at the same time must bear it.
unsafe fn start(arguments: &CloneArguments, entry: extern "C" fn(usize) -> !, argument: usize) -> Result<i32, Errno> {
    let result: i64;
    // SAFETY: the child has its own stack and registers copied from here; it calls `entry`, which does not return, and
    // touches nothing of this frame. The parent goes on behind the call. Without "nostack" the compiler keeps nothing
    // below the stack pointer.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
             inlateout("rax") number::CLONE3 => result, in("rdi") arguments, in("rsi") size_of::<CloneArguments>(),
             in("r12") argument, in("r13") entry, lateout("rcx") _, lateout("r11") _);
    }
    if result < 0 { Err(-result as Errno) } else { Ok(result as i32) }
}

/// Runs `entry(argument)` in a process that shares this one's memory, waits until it and the [maker] have exited, and
/// gives the exit code of one that did not exit well, or 0. `cgroup` is a directory's descriptor (CLONE_INTO_CGROUP,
/// since Linux 5.7).
pub(crate) fn entrant(cgroup: Option<u64>, entry: extern "C" fn(usize) -> !, argument: usize) -> Result<u64, Errno> {
    let arguments = CloneArguments {
        flags: CLONE_VM | CLONE_VFORK | if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        exit_signal: SIGCHLD,
        cgroup: cgroup.unwrap_or(0),
        ..on_stack(&raw const ENTRANT_STACK)
    };
    // SAFETY: only the holder makes an entrant, and waits for its end and the maker's: nothing else runs in this memory
    // meanwhile.
    unsafe { start(&arguments, entry, argument) }?;
    let mut code = 0;
    loop {
        match wait() {
            Ok(ended) => code = ended.max(code),
            Err(ECHILD) => return Ok(code),
            Err(errno) => return Err(errno),
        }
    }
}

/// The same once more, from the entrant: with a pid that is free in the pid namespace for children (`set_tid`, since
/// Linux 5.5). It is the holder's child, not the entrant's: somebody may kill that, and the holder must not have
/// another maker made in its memory while this one runs.
pub(crate) fn maker(pid: i32, entry: extern "C" fn(usize) -> !, argument: usize) -> Result<(), Errno> {
    let arguments = CloneArguments {
        // With CLONE_PARENT the signal is the entrant's own.
        flags: CLONE_VM | CLONE_VFORK | CLONE_PARENT,
        set_tid: (&raw const pid) as u64,
        set_tid_size: 1,
        ..on_stack(&raw const MAKER_STACK)
    };
    // SAFETY: only the entrant makes a maker, once, and has nothing to do but to exit; the holder waits for the end of
    // both.
    unsafe { start(&arguments, entry, argument) }.map(drop)
}

fn on_stack(stack: *const Stack) -> CloneArguments {
    CloneArguments { stack: stack as u64, stack_size: STACK_LENGTH as u64, ..CloneArguments::default() }
}

/// Waits until one of the children has ended, and gives its exit code.
fn wait() -> Result<u64, Errno> {
    const ANY: u64 = u64::MAX;
    let mut status = 0_i32;
    // SAFETY: the kernel writes the status, four bytes.
    while let Err(errno) = unsafe { call(number::WAIT4, [ANY, (&raw mut status) as u64, 0, 0, 0, 0]) } {
        if errno != EINTR {
            return Err(errno);
        }
    }
    Ok(if status & 0x7f == 0 { (status >> 8 & 0xff) as u64 } else { 114 })
}

/// Forks with a pid: `true` in the child.
pub(crate) fn fork(pid: i32) -> Result<bool, Errno> {
    let arguments = CloneArguments {
        exit_signal: SIGCHLD,
        set_tid: (&raw const pid) as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of everything, and goes on alone.
    let result = unsafe {
        call(number::CLONE3, [(&raw const arguments) as u64, size_of::<CloneArguments>() as u64, 0, 0, 0, 0])
    }?;
    Ok(result == 0)
}

/// What a thread that is made begins with.
pub(crate) struct NewThread {
    pub(crate) tid: i32,
    /// Whether it can say which one, which takes CAP_CHECKPOINT_RESTORE in the user namespace of the pid namespace.
    pub(crate) chooses: bool,
    pub(crate) pointer: u64,
    pub(crate) clear: u64,
    pub(crate) stack: u64,
    pub(crate) stack_length: u64,
}

/// Makes a thread. EAGAIN if another tid was the next.
pub(crate) fn thread(new: &NewThread, entry: extern "C" fn(usize) -> !, argument: usize) -> Result<(), Errno> {
    let arguments = CloneArguments {
        flags: THREAD,
        tls: new.pointer,
        child_tid: new.clear,
        stack: new.stack,
        stack_size: new.stack_length,
        set_tid: if new.chooses { (&raw const new.tid) as u64 } else { 0 },
        set_tid_size: u64::from(new.chooses),
        ..CloneArguments::default()
    };
    // SAFETY: the script gives each thread a stack of its own; threads share only the counters of `gate.rs`, which are
    // atomic.
    let tid = unsafe { start(&arguments, entry, argument) }?;
    if tid == new.tid { Ok(()) } else { Err(EAGAIN) }
}

/// The trampoline of a process that has no other.
#[unsafe(link_section = ".text")]
// SAFETY: it is code, and lies where code does.
static TRAMPOLINE: [u8; trampoline::CODE.len()] = trampoline::CODE;

/// Returns into the program that a signal frame describes (rt_sigreturn(2)), by way of a [`trampoline`], its own if it
/// is 0: that unmaps a range (address, length), and counts the thread if it is to be counted.
///
/// # Safety
///
/// `frame` must be a whole `struct ucontext` of the kernel's, and `trampoline` the code, both in memory that stays; the
/// caller's stack may be inside the range that goes, and so may all of this program unless a thread is to be counted in
/// it.
pub(crate) unsafe fn resume(frame: u64, trampoline: u64, gone: (u64, u64), counted: Option<&'static AtomicU32>) -> ! {
    let trampoline = if trampoline == 0 { (&raw const TRAMPOLINE) as u64 } else { trampoline };
    let counted = counted.map_or(0, |word| word.as_ptr() as u64);
    // SAFETY: no stack is used from the jump on, and rt_sigreturn replaces every register.
    unsafe {
        asm!("jmp {trampoline}", trampoline = in(reg) trampoline, in("r12") frame, in("r13") counted, in("rax") number::MUNMAP,
             in("rdi") gone.0, in("rsi") gone.1, options(noreturn));
    }
}

/// Goes on at `run`, from the top of the stack that processes run on. What stood on it is given up.
pub(crate) fn begin_stack(run: extern "C" fn(u64, u64) -> !, one: u64, other: u64) -> ! {
    // SAFETY: the stack is this process's alone, and `run` does not return to what it was used for; its arguments are
    // in registers.
    unsafe {
        asm!("lea rsp, [rip + {stack} + {length}]", "xor ebp, ebp", "call {run}", "ud2", stack = sym MAKER_STACK,
             length = const STACK_LENGTH, run = in(reg) run, in("rdi") one, in("rsi") other, options(noreturn));
    }
}

/// Where the stack lies that processes run on until they resume.
pub(crate) fn process_stack() -> (u64, u64) {
    ((&raw const MAKER_STACK) as u64, STACK_LENGTH as u64)
}

pub(crate) const EINTR: Errno = 4;
pub(crate) const EAGAIN: Errno = 11;
pub(crate) const ECHILD: Errno = 10;

/// Blocks every signal; the frames that threads resume through hold their own masks.
pub(crate) fn block_signals() {
    const SIG_SETMASK: u64 = 2;
    let all = u64::MAX;
    // SAFETY: the kernel reads eight bytes at the mask.
    let _ = unsafe { call(number::RT_SIGPROCMASK, [SIG_SETMASK, (&raw const all) as u64, 0, 8, 0, 0]) };
}

/// Keeps this memory out of reach of everybody but the host's root: `/proc/PID/mem`, ptrace(2), process_vm_writev(2).
/// It is an attribute of the memory, so it holds for every task that shares it; a change of credentials may reset it,
/// so it is said again after each.
pub(crate) fn undumpable() {
    const PR_SET_DUMPABLE: u64 = 4;
    let _ = plain(number::PRCTL, [PR_SET_DUMPABLE, 0, 0]);
}

/// Begins a session keyring of its own (keyctl(2)): clones share no keys with those of other images. Where its user may
/// have no more, the daemon's is as empty.
pub(crate) fn begin_session_keyring() {
    const JOIN_SESSION_KEYRING: u64 = 1;
    let _ = plain(number::KEYCTL, [JOIN_SESSION_KEYRING, 0, 0]);
}

/// A task's capabilities: effective, permitted and inheritable ones, of the first 32, then of the others (`struct
/// __user_cap_data_struct`).
pub(crate) type Capabilities = [u32; 6];

/// `_LINUX_CAPABILITY_VERSION_3`, of the task itself.
const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];

/// This task's.
pub(crate) fn capabilities() -> Result<Capabilities, Errno> {
    let (head, mut all) = (CAPABILITIES, Capabilities::default());
    // SAFETY: the kernel reads the one and writes the other, whose lengths go with the version.
    unsafe { call(number::CAPGET, [head.as_ptr() as u64, all.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(all)
}

/// Gives this task such.
pub(crate) fn set_capabilities(all: &Capabilities) -> Result<(), Errno> {
    let head = CAPABILITIES;
    // SAFETY: the kernel reads both.
    unsafe { call(number::CAPSET, [head.as_ptr() as u64, all.as_ptr() as u64, 0, 0, 0, 0]) }.map(drop)
}

/// Puts this process, and all that will be forked from it, into a domain that some kinds of things do not leave
/// (Landlock scopes, since Linux 6.12). Needs CAP_SYS_ADMIN in its user namespace.
pub(crate) fn keep_inside(scopes: u32) -> Result<(), Errno> {
    // `struct landlock_ruleset_attr`: files, network, scopes.
    let ruleset = [0, 0, u64::from(scopes)];
    // SAFETY: the kernel reads the structure, whose size is passed along.
    let domain = unsafe {
        call(number::LANDLOCK_CREATE_RULESET, [ruleset.as_ptr() as u64, size_of_val(&ruleset) as u64, 0, 0, 0, 0])
    }?;
    let kept = plain(number::LANDLOCK_RESTRICT_SELF, [domain, 0, 0]);
    plain(number::CLOSE, [domain, 0, 0])?;
    kept.map(drop)
}

/// Writes bytes to a descriptor (write(2)).
pub(crate) fn write(fd: u64, bytes: &[u8]) -> Result<u64, Errno> {
    // SAFETY: the kernel reads the slice.
    unsafe { call(number::WRITE, [fd, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0]) }
}

/// Waits for a byte from a pipe; `false` at its end, or if it is none.
pub(crate) fn take_byte(fd: u64) -> bool {
    let mut byte = 0_u8;
    loop {
        // SAFETY: the kernel writes one byte at most.
        match unsafe { call(number::READ, [fd, (&raw mut byte) as u64, 1, 0, 0, 0]) } {
            Err(EINTR) => {}
            outcome => return outcome == Ok(1),
        }
    }
}

/// Sleeps for some microseconds (nanosleep(2)).
pub(crate) fn sleep(microseconds: u64) {
    let time = [0, microseconds * 1000];
    // SAFETY: the kernel reads two words.
    let _ = unsafe { call(number::NANOSLEEP, [time.as_ptr() as u64, 0, 0, 0, 0, 0]) };
}

/// Two ends of a new pipe.
pub(crate) fn pipe() -> Result<[u64; 2], Errno> {
    let mut ends = [0_u32; 2];
    // SAFETY: the kernel writes two descriptors of four bytes.
    unsafe { call(number::PIPE2, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) }?;
    Ok([u64::from(ends[0]), u64::from(ends[1])])
}

/// Two connected unix sockets of a type.
pub(crate) fn socket_pair(kind: u64) -> Result<[u64; 2], Errno> {
    const AF_UNIX: u64 = 1;
    let mut ends = [0_u32; 2];
    // SAFETY: the kernel writes two descriptors of four bytes.
    unsafe { call(number::SOCKETPAIR, [AF_UNIX, kind, 0, ends.as_mut_ptr() as u64, 0, 0]) }?;
    Ok([u64::from(ends[0]), u64::from(ends[1])])
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: u64) -> bool {
    const F_GETFD: u64 = 1;
    plain(number::FCNTL, [fd, F_GETFD, 0]).is_ok()
}

/// A descriptor, for a call.
pub(crate) fn borrowed(fd: u64) -> BorrowedFd<'static> {
    // SAFETY: it is only ever given to system calls, which say so where it is not open.
    unsafe { BorrowedFd::borrow_raw(fd as i32) }
}

/// Makes `onto` the same as `fd`, which goes.
pub(crate) fn move_descriptor(fd: u64, onto: u64) -> Result<(), Errno> {
    if fd == onto {
        return Ok(());
    }
    plain(number::DUP3, [fd, onto, 0])?;
    plain(number::CLOSE, [fd, 0, 0]).map(drop)
}
