//! The machine below: the program's entry, and the system calls that no safe library offers without std.
//!
//! All unsafe code of the shim stands here.

pub(crate) mod compact;
pub(crate) mod memory;
pub(crate) mod signals;

use core::arch::{asm, naked_asm};
use core::ffi::CStr;
use core::panic::PanicInfo;
use memory::Room;
use pando_shim::Scopes;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::Signal;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const KILL: usize = 62;
    pub(super) const SETNS: usize = 308;
    pub(super) const SETRLIMIT: usize = 160;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const MADVISE: usize = 28;
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const IOCTL: usize = 16;
    pub(super) const DUP3: usize = 292;
    pub(super) const EXECVE: usize = 59;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const PRCTL: usize = 157;
    pub(super) const PERSONALITY: usize = 135;
    pub(super) const SET_MEMPOLICY: usize = 238;
    pub(super) const SETDOMAINNAME: usize = 171;
    pub(super) const UMASK: usize = 95;
    pub(super) const KEYCTL: usize = 250;
    pub(super) const RT_SIGTIMEDWAIT: usize = 128;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const SECCOMP: usize = 317;
    pub(super) const EXECVEAT: usize = 322;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const CLONE: usize = 56;
    pub(super) const GETCWD: usize = 79;
    pub(super) const GETRESUID: usize = 118;
    pub(super) const GETRESGID: usize = 120;
    pub(super) const CLONE3: usize = 435;
    pub(super) const CLOSE_RANGE: usize = 436;
    pub(super) const MOUNT_SETATTR: usize = 442;
    pub(super) const LANDLOCK_CREATE_RULESET: usize = 444;
    pub(super) const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// Makes a system call.
///
/// # Safety
///
/// The call must be sound with these arguments: pointers valid for what the kernel reads and writes, no descriptor
/// closed that a value owns.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller vouches for the call; the kernel clobbers rcx and r11 besides the result.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    outcome(result)
}

fn outcome(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
// SAFETY: the kernel enters here with the stack pointer at argc; nothing of it is needed, so the stack is aligned,
// exchanged for the program's own if there is one, and the program called. Nothing returns here.
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp", "and rsp, -16", "call {stack}", "mov rdi, rax", "test rax, rax", "cmovnz rsp, rax", "call {program}", "ud2",
        stack = sym own_stack, program = sym begin
    )
}

extern "C" fn own_stack() -> usize {
    compact::stack().unwrap_or(0)
}

/// `stack` is where the program's own begins, or 0 where it has the kernel's.
extern "C" fn begin(stack: usize) -> ! {
    if stack != 0 {
        compact::leave_the_kernels();
    }
    crate::program()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(113)
}

/// Ends the process.
pub(crate) fn exit(code: i32) -> ! {
    loop {
        // SAFETY: does not return, touches no memory.
        let _ = unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// What a fork needs beyond its flags.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_VM: usize = 0x100;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_VFORK: usize = 0x4000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: u64 = 17;

/// What fork(2) returns twice.
pub(crate) enum Forked {
    /// In the new process.
    Child,
    /// In the old one.
    Parent {
        /// The child's pid.
        pid: i32,
        /// A pidfd of it.
        pidfd: OwnedFd,
    },
}

/// Forks, into a cgroup if one is given (clone3(2); CLONE_INTO_CGROUP since Linux 5.7).
pub(crate) fn fork(cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    let mut arguments = CloneArguments {
        flags: CLONE_PIDFD,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: SIGCHLD,
        ..CloneArguments::default()
    };
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of everything, and this program has one thread: it may go on
    // as it likes.
    let pid = unsafe {
        match cgroup {
            Some(_) => call(number::CLONE3, [(&raw const arguments) as usize, size_of_val(&arguments), 0, 0, 0, 0]),
            // A first process that has taken on its guest's filter may be left without clone3.
            None => call(number::CLONE, [(arguments.flags | SIGCHLD) as usize, 0, arguments.pidfd as usize, 0, 0, 0]),
        }
    }?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

/// Forks a sibling: a child of this process's parent (clone3(2), CLONE_PARENT), which tells that parent of its end as
/// this process does.
pub(crate) fn fork_sibling() -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    let arguments = CloneArguments {
        flags: CLONE_PIDFD | CLONE_PARENT,
        pidfd: (&raw mut pidfd) as u64,
        ..CloneArguments::default()
    };
    // SAFETY: as for `fork`.
    let pid = unsafe { call(number::CLONE3, [(&raw const arguments) as usize, size_of_val(&arguments), 0, 0, 0, 0]) }?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

/// Starts a process that does `act` with a copy of `with` in this one's memory, on a stack of its own, beside this one
/// and in new namespaces and, if given, in a cgroup (clone3(2), CLONE_VM). A guest keeps the two for as long as it
/// runs, and what they have in memory is the same. Not what they do upon signals: when the first process of a pid
/// namespace ends the kernel has it ignore its children's ends, and a process that shares that (CLONE_SIGHAND) never
/// learns how it ended.
#[cfg(target_arch = "x86_64")]
pub(crate) fn share<T>(
    (namespaces, cgroup): (u32, Option<BorrowedFd<'_>>),
    stack: &mut Room,
    with: &T,
    act: fn(T) -> !,
) -> Result<(i32, OwnedFd), Errno> {
    struct Passed<T> {
        with: T,
        act: fn(T) -> !,
    }
    // As the SysV ABI has it at a call: the stack is aligned to 16 bytes, and the argument is in rdi.
    extern "C" fn begin<T>(passed: *const Passed<T>) -> ! {
        // SAFETY: it stands above this process's stack, for this process alone, which reads it once.
        let Passed { with, act } = unsafe { passed.read() };
        act(with)
    }
    const ALIGNED: usize = !63;
    let room = stack.bytes();
    let base = room.as_ptr() as usize;
    let passed = (base + room.len()).checked_sub(size_of::<Passed<T>>()).ok_or(Errno::NOMEM)? & ALIGNED;
    let mut pidfd: RawFd = -1;
    let arguments = CloneArguments {
        flags: u64::from(namespaces) | CLONE_PIDFD | CLONE_VM as u64 | cgroup.map_or(0, |_| CLONE_INTO_CGROUP),
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: SIGCHLD,
        stack: base as u64,
        stack_size: (passed - base) as u64,
        cgroup: cgroup.map_or(0, |cgroup| cgroup.as_raw_fd() as u64),
        ..CloneArguments::default()
    };
    let begin = begin::<T> as extern "C" fn(_) -> ! as *const ();
    let result: isize;
    // SAFETY: the copy lies in the room, which is large enough and which nothing else uses. What it owns are
    // descriptors, and each of the two processes has a table of its own with all of them. The child touches nothing
    // else of this one's but what nobody writes to: this program has no variables outside of its stacks. It gets there
    // with registers that the kernel keeps, and never returns.
    unsafe {
        (passed as *mut Passed<T>).write(Passed { with: core::ptr::read(with), act });
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
             inlateout("rax") number::CLONE3 as isize => result, in("rdi") &raw const arguments, in("rsi") size_of_val(&arguments),
             in("r12") passed, in("r13") begin, lateout("rcx") _, lateout("r11") _);
    }
    let pid = outcome(result)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok((pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Starts a process that does `act` with `with` in this one's memory, on a stack of its own, and waits until it has
/// executed a program or ended (clone(2), CLONE_VM | CLONE_VFORK): a copy of the memory takes longer to make and to
/// throw away than all that is done with it. Its pid.
#[cfg(target_arch = "x86_64")]
pub(crate) fn lend<T>(stack: &mut Room, with: &mut T, act: fn(&mut T) -> !) -> Result<i32, Errno> {
    struct Lent<'a, T> {
        with: &'a mut T,
        act: fn(&mut T) -> !,
    }
    // As the SysV ABI has it at a call: the stack is aligned to 16 bytes, and the argument is in rdi.
    extern "C" fn begin<T>(lent: *mut Lent<'_, T>) -> ! {
        // SAFETY: the process that lent it, and waits, does not look at it meanwhile.
        let Lent { with, act } = unsafe { &mut *lent };
        act(with)
    }
    let top = (stack.bytes().as_ptr_range().end as usize) & !15;
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD as usize;
    let mut lent = Lent { with, act };
    let begin = begin::<T> as extern "C" fn(_) -> ! as *const ();
    let result: isize;
    // SAFETY: the parent does not go on before the child has left its memory, so that the two never run in it at once;
    // what the child reads and writes there is its stack, which nothing else uses, and what `with` leads to, which this
    // call has borrowed. The child gets there with registers that the kernel keeps, and never returns. Descriptors,
    // signals and everything else are its own.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
             inlateout("rax") number::CLONE as isize => result, in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0, in("r8") 0,
             in("r12") &raw mut lent, in("r13") begin, lateout("rcx") _, lateout("r11") _);
    }
    outcome(result).map(|pid| pid as i32)
}

/// A table of pointers to NUL-ended strings with a closing null pointer, as execve(2) takes it.
pub(crate) struct Vector {
    at: usize,
    length: usize,
}

impl Vector {
    /// A vector of a program's arguments: of the strings in `packed`, each of which ends in NUL.
    pub(crate) fn arguments(packed: &'static [u8]) -> Result<Self, Errno> {
        Self::new(packed, memory::VECTORS[0])
    }

    /// One of its environment.
    pub(crate) fn environment(packed: &'static [u8]) -> Result<Self, Errno> {
        Self::new(packed, memory::VECTORS[1])
    }

    fn new(packed: &'static [u8], place: usize) -> Result<Self, Errno> {
        const READ_WRITE: usize = 3;
        const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
        if packed.last().is_some_and(|last| *last != 0) {
            return Err(Errno::INVAL);
        }
        let entries = packed.iter().filter(|byte| **byte == 0).count() + 1;
        let length = entries * size_of::<usize>();
        // SAFETY: a new mapping at a place of the kernel's choice, large enough for every entry written below;
        // page-aligned, zeroed.
        unsafe {
            let at = call(number::MMAP, [place, length, READ_WRITE, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0])?;
            let mut entry = at as *mut *const u8;
            let mut rest = packed;
            while let Some(end) = rest.iter().position(|byte| *byte == 0) {
                entry.write(rest.as_ptr());
                entry = entry.add(1);
                rest = &rest[end + 1..];
            }
            Ok(Self { at, length })
        }
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nothing borrows from it.
        let _ = unsafe { call(number::MUNMAP, [self.at, self.length, 0, 0, 0, 0]) };
    }
}

/// Executes a program; returns only if that fails (execve(2)).
pub(crate) fn execute(path: &CStr, arguments: &Vector, environment: &Vector) -> Errno {
    // SAFETY: the path ends in NUL; the vectors end in null and point at strings that live as long as the process.
    match unsafe { call(number::EXECVE, [path.as_ptr() as usize, arguments.at, environment.at, 0, 0, 0]) } {
        Err(errno) => errno,
        Ok(_) => Errno::INVAL,
    }
}

/// Executes an open file; returns only if that fails (execveat(2) with AT_EMPTY_PATH, since Linux 3.19).
pub(crate) fn execute_fd(file: BorrowedFd<'_>, arguments: &Vector, environment: &Vector) -> Errno {
    const AT_EMPTY_PATH: usize = 0x1000;
    let empty = c"".as_ptr() as usize;
    // SAFETY: as for `execute`.
    match unsafe {
        call(number::EXECVEAT, [file.as_raw_fd() as usize, empty, arguments.at, environment.at, AT_EMPTY_PATH, 0])
    } {
        Err(errno) => errno,
        Ok(_) => Errno::INVAL,
    }
}

/// Makes `onto` a copy of `fd` that survives exec.
pub(crate) fn duplicate(fd: BorrowedFd<'_>, onto: RawFd) -> Result<(), Errno> {
    // SAFETY: callers pass 0, 1 or 2, which no value of this program owns by then, or numbers that were just cleared.
    unsafe { call(number::DUP3, [fd.as_raw_fd() as usize, onto as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Moves this process into new namespaces (unshare(2)).
pub(crate) fn unshare(namespaces: u32) -> Result<(), Errno> {
    // SAFETY: only namespace flags are passed, which share no memory or descriptors; this program has one thread.
    unsafe { call(number::UNSHARE, [namespaces as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Puts this process, and all that will be forked from it, into a domain that some kinds of things do not leave
/// (Landlock scopes, since Linux 6.12). Needs CAP_SYS_ADMIN in its user namespace, so that setuid programs keep their
/// meaning.
pub(crate) fn keep_inside(scopes: Scopes) -> Result<(), Errno> {
    // `struct landlock_ruleset_attr`: files, network, scopes.
    let ruleset = [0, 0, u64::from(scopes.bits())];
    let arguments = [ruleset.as_ptr() as usize, size_of_val(&ruleset), 0, 0, 0, 0];
    // SAFETY: the kernel reads the structure, whose size is passed along.
    let fd = unsafe { call(number::LANDLOCK_CREATE_RULESET, arguments) }?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: the call takes numbers alone.
    unsafe { call(number::LANDLOCK_RESTRICT_SELF, [fd.as_raw_fd() as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Closes every descriptor from `first` to `last` (close_range(2), since Linux 5.9).
pub(crate) fn close_range(first: u32, last: u32) {
    if first > last {
        return;
    }
    // SAFETY: called only where the process lets go of all values that own them: they are forgotten, not dropped, or
    // dropping them fails harmlessly.
    let _ = unsafe { call(number::CLOSE_RANGE, [first as usize, last as usize, 0, 0, 0, 0]) };
}

/// Installs a seccomp filter (seccomp(2), since Linux 3.17). `program` holds `struct sock_filter`s of eight bytes.
pub(crate) fn seccomp(program: &[u8]) -> Result<(), Errno> {
    filter(program, 0).map(drop)
}

/// Installs one that has calls wait for answers (since Linux 5.0): where they arrive. A call that was received is
/// answered once, whatever signals come meanwhile, where the kernel can do that (since Linux 5.19).
pub(crate) fn supervised(program: &[u8]) -> Result<OwnedFd, Errno> {
    const WAIT_KILLABLE_RECEIVED: usize = 1 << 5;
    let listener = match filter(program, NEW_LISTENER | WAIT_KILLABLE_RECEIVED) {
        Err(Errno::INVAL) => filter(program, NEW_LISTENER)?,
        listener => listener?,
    };
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
}

/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`
pub(crate) const NEW_LISTENER: usize = 1 << 3;

/// Installs one with flags: where the calls arrive that wait for answers, if any do.
pub(crate) fn filter_with(program: &[u8], flags: u32) -> Result<Option<OwnedFd>, Errno> {
    let listener = filter(program, flags as usize)?;
    // SAFETY: with that flag the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok((flags as usize & NEW_LISTENER != 0).then(|| unsafe { OwnedFd::from_raw_fd(listener as RawFd) }))
}

fn filter(program: &[u8], flags: usize) -> Result<usize, Errno> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const u8,
    }
    const SET_MODE_FILTER: usize = 1;
    let length = u16::try_from(program.len() / 8).map_err(|_| Errno::INVAL)?;
    let program = Program { length, filter: program.as_ptr() };
    // SAFETY: the kernel reads `length` filters of eight bytes, all of which are in the slice; it needs no alignment of
    // them.
    unsafe { call(number::SECCOMP, [SET_MODE_FILTER, flags, (&raw const program) as usize, 0, 0, 0]) }
}

/// Makes this process's memory unreadable for others, `/proc` included (prctl(2), PR_SET_DUMPABLE). A change of
/// credentials may undo that, where fs.suid_dumpable says so, for all who share the memory: it is said again after
/// each.
pub(crate) fn undumpable() {
    const PR_SET_DUMPABLE: usize = 4;
    // SAFETY: touches no memory.
    let _ = unsafe { call(number::PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]) };
}

/// Brings up the loopback device of the current network namespace (netdevice(7)).
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: u16 = 1;
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_UP, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: the request is a `struct ifreq` of 40 bytes that the kernel reads.
    unsafe { call(number::IOCTL, [socket.as_raw_fd() as usize, SIOCSIFFLAGS, (&raw mut request) as usize, 0, 0, 0]) }
        .map(drop)
}

/// Sets the attributes or the propagation of a mount, or of a whole tree of mounts (mount_setattr(2), since Linux
/// 5.12).
pub(crate) fn mount_setattr(
    at: BorrowedFd<'_>,
    path: &CStr,
    recursive: bool,
    attributes: u32,
    propagation: u64,
) -> Result<(), Errno> {
    change_mount(at, path, recursive, (attributes, 0), propagation)
}

/// The same, with attributes that are set and attributes that are taken away.
pub(crate) fn change_mount(
    at: BorrowedFd<'_>,
    path: &CStr,
    recursive: bool,
    (set, clear): (u32, u32),
    propagation: u64,
) -> Result<(), Errno> {
    const AT_EMPTY_PATH: usize = 0x1000;
    const AT_RECURSIVE: usize = 0x8000;
    let arguments: [u64; 4] = [u64::from(set), u64::from(clear), propagation, 0];
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path ends in NUL; the kernel reads a `struct mount_attr` of 32 bytes.
    unsafe {
        call(
            number::MOUNT_SETATTR,
            [at.as_raw_fd() as usize, path.as_ptr() as usize, flags, arguments.as_ptr() as usize, 32, 0],
        )
    }
    .map(drop)
}

/// Enters a namespace: all at once for mounts, for children for processes (setns(2)).
pub(crate) fn enter(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: touches no memory; this program has one thread.
    unsafe { call(number::SETNS, [namespace.as_raw_fd() as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Whether the working directory lies below the root of this process: the kernel puts "(unreachable)" before the path
/// of one that does not (getcwd(2), since Linux 2.6.36).
pub(crate) fn is_within_root() -> bool {
    const LONGEST: usize = 4096;
    let mut path = [0_u8; LONGEST];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let length = unsafe { call(number::GETCWD, [path.as_mut_ptr() as usize, LONGEST, 0, 0, 0, 0]) };
    // One that is longer than a path may be begins at the root all the same, or the kernel would have said that first.
    matches!(length, Err(Errno::RANGE)) || length.is_ok() && path[0] == b'/'
}

/// The real, effective and saved ids of this process: users' and groups' (getresuid(2), getresgid(2)).
pub(crate) fn ids() -> Result<[[u32; 3]; 2], Errno> {
    let mut ids = [[u32::MAX; 3]; 2];
    for (number, ids) in [number::GETRESUID, number::GETRESGID].into_iter().zip(&mut ids) {
        let [real, effective, saved] = ids.each_mut().map(|id| core::ptr::from_mut(id) as usize);
        // SAFETY: the kernel writes an id to each of the three places.
        unsafe { call(number, [real, effective, saved, 0, 0, 0]) }?;
    }
    Ok(ids)
}

/// Sets a resource limit by its kernel number (setrlimit(2)).
pub(crate) fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let limit = [soft, hard];
    // SAFETY: the kernel reads a `struct rlimit` of two words.
    unsafe { call(number::SETRLIMIT, [resource as usize, limit.as_ptr() as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Sets the execution domain (personality(2)).
pub(crate) fn set_personality(persona: u32) -> Result<(), Errno> {
    // SAFETY: touches no memory of this program's that is mapped already.
    unsafe { call(number::PERSONALITY, [persona as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Has memory lie on nodes of the machine (set_mempolicy(2)). `nodes` has a bit for each, in words of eight bytes.
pub(crate) fn set_memory_policy(mode: u32, nodes: &[u8]) -> Result<(), Errno> {
    let (mask, bits) = if nodes.is_empty() { (0, 0) } else { (nodes.as_ptr() as usize, nodes.len() * 8 + 1) };
    // SAFETY: the kernel reads one bit less than it is told, all of which are in the slice; it needs no alignment.
    unsafe { call(number::SET_MEMPOLICY, [mode as usize, mask, bits, 0, 0, 0]) }.map(drop)
}

/// Sets the domain name (setdomainname(2)).
pub(crate) fn set_domain_name(name: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as there are.
    unsafe { call(number::SETDOMAINNAME, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0]) }.map(drop)
}

/// Sets the mask of permissions that new files do not get (umask(2)).
pub(crate) fn set_umask(mask: u32) {
    // SAFETY: touches no memory.
    let _ = unsafe { call(number::UMASK, [mask as usize, 0, 0, 0, 0, 0]) };
}

/// Begins a new session keyring, of this name if there is one (keyctl(2)). A kernel without keyrings has none that
/// could be shared.
pub(crate) fn begin_session_keyring(name: Option<&CStr>) -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: usize = 1;
    let name = name.map_or(0, |name| name.as_ptr() as usize);
    // SAFETY: a name ends in NUL, and none is null.
    match unsafe { call(number::KEYCTL, [JOIN_SESSION_KEYRING, name, 0, 0, 0, 0]) } {
        Err(Errno::NOSYS) => Ok(()),
        joined => joined.map(drop),
    }
}

/// Adds a capability to those that every program keeps (prctl(2), PR_CAP_AMBIENT, since Linux 4.3).
pub(crate) fn raise_ambient(capability: usize) -> Result<(), Errno> {
    const PR_CAP_AMBIENT: usize = 47;
    const RAISE: usize = 2;
    // SAFETY: touches no memory.
    unsafe { call(number::PRCTL, [PR_CAP_AMBIENT, RAISE, capability, 0, 0, 0]) }.map(drop)
}

/// Milliseconds since the epoch (clock_gettime(2)).
pub(crate) fn now_ms() -> u64 {
    const REALTIME: usize = 0;
    let mut now = [0_u64; 2];
    // SAFETY: the kernel writes a `struct timespec` of two words.
    let _ = unsafe { call(number::CLOCK_GETTIME, [REALTIME, now.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    now[0].wrapping_mul(1000).wrapping_add(now[1] / 1_000_000)
}

/// Standard input, once a plan has put something there.
pub(crate) fn standard_input() -> BorrowedFd<'static> {
    // SAFETY: a plan with a terminal has made descriptor 0 before it asks for it, and nothing closes it.
    unsafe { BorrowedFd::borrow_raw(0) }
}

/// A signal by its number, real-time ones included.
pub(crate) fn signal(number: i32) -> Option<Signal> {
    // SAFETY: any number is a fine signal to send; the kernel checks it.
    (1..=64).contains(&number).then(|| unsafe { Signal::from_raw_unchecked(number) })
}

/// Sends a signal to every process of the namespace but this one.
pub(crate) fn signal_all(signal: Signal) {
    // SAFETY: touches no memory.
    let _ = unsafe { call(number::KILL, [usize::MAX, signal.as_raw() as usize, 0, 0, 0, 0]) };
}

/// Whether the namespace has another process.
pub(crate) fn anyone_else() -> bool {
    // SAFETY: touches no memory; signal 0 merely asks.
    unsafe { call(number::KILL, [usize::MAX, 0, 0, 0, 0, 0]) }.is_ok()
}
