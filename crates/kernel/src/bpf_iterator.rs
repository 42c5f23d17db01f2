//! BPF iterators over the open files of a process, from instructions that fit the running kernel already.
//!
//! A loader such as libbpf reads the kernel's whole description of its types to fit a program, which takes longer than many a transaction. Where the
//! outcome was kept, loading it again is one call of bpf(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_BTF_LOAD: libc::c_int = 18;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_ITER_CREATE: libc::c_int = 33;

const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;

/// A program of two functions: the first is run for each file, the second is called by it in a loop (bpf_loop, since Linux 5.17).
#[derive(Clone, Copy, Debug)]
pub struct Instructions<'a> {
    /// All of them, as numbers of 64 bits; references to maps hold the maps' descriptors.
    pub all: &'a [u64],
    /// Where the second function begins.
    pub second: u32,
    /// The number of the kernel's function `bpf_iter_task_file` among its types.
    pub hook: u32,
}

/// What BPF_PROG_LOAD reads of `union bpf_attr` (linux/bpf.h), to the last field used here.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attach_type: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    hook: u32,
}

/// What BPF_BTF_LOAD reads.
#[repr(C)]
#[derive(Default)]
struct LoadTypes {
    types: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

/// What BPF_LINK_CREATE reads for an iterator over tasks.
#[repr(C)]
#[derive(Default)]
struct Link {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    narrowed: u64,
    narrowed_size: u32,
    pad: u32,
}

/// `union bpf_iter_link_info` for tasks.
#[repr(C)]
#[derive(Default)]
struct Tasks {
    thread: u32,
    process: u32,
    pidfd: u32,
    pad: u32,
}

/// Loads it (iterators since Linux 5.8).
///
/// # Errors
///
/// EPERM without CAP_BPF and CAP_PERFMON; EINVAL or EACCES where the kernel finds fault with it.
pub fn load(program: Instructions<'_>) -> io::Result<OwnedFd> {
    let types = function_types()?;
    // By instruction: which function begins there.
    let functions: [u32; 4] = [0, FIRST_FUNCTION, program.second, SECOND_FUNCTION];
    let attributes = Load {
        kind: BPF_PROG_TYPE_TRACING,
        instruction_count: u32::try_from(program.all.len()).map_err(io::Error::other)?,
        instructions: program.all.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        name: *b"pando_iterator\0\0",
        attach_type: BPF_TRACE_ITER,
        types: number(&types),
        function_size: 8,
        functions: functions.as_ptr() as u64,
        function_count: 2,
        hook: program.hook,
        ..Load::default()
    };
    // SAFETY: the kernel reads the instructions, the functions and the license, which live until the call returns, and keeps copies.
    unsafe { call(BPF_PROG_LOAD, &attributes) }
}

/// Ties a program to the files of a process (by process since Linux 6.1).
///
/// # Errors
///
/// ESRCH if there is none; EINVAL where the kernel cannot narrow it down to one.
pub fn over_files_of(program: BorrowedFd<'_>, process: u32) -> io::Result<OwnedFd> {
    let tasks = Tasks { process, ..Tasks::default() };
    let attributes = Link {
        program: program.as_raw_fd().unsigned_abs(),
        attach_type: BPF_TRACE_ITER,
        narrowed: &raw const tasks as u64,
        narrowed_size: size_of::<Tasks>() as u32,
        ..Link::default()
    };
    // SAFETY: the kernel reads the attributes and, through them, `tasks`, which lives until the call returns.
    unsafe { call(BPF_LINK_CREATE, &attributes) }
}

/// A run of it: reading to the end of the file calls it for each file.
///
/// # Errors
///
/// EBADF for what is no link of an iterator.
pub fn run(link: BorrowedFd<'_>) -> io::Result<File> {
    let attributes: [u32; 2] = [link.as_raw_fd().unsigned_abs(), 0];
    // SAFETY: the kernel reads two numbers.
    unsafe { call(BPF_ITER_CREATE, &attributes) }.map(File::from)
}

const FIRST_FUNCTION: u32 = 3;
const SECOND_FUNCTION: u32 = 4;

/// The types that the kernel wants to see of a program with two functions: both return an int.
fn types() -> Vec<u8> {
    const STRINGS: &[u8] = b"\0int\0first\0second\0";
    const INT: u32 = 1 << 24;
    const FUNCTION: u32 = 12 << 24;
    const PROTOTYPE: u32 = 13 << 24;
    const SIGNED_32_BITS: u32 = 1 << 24 | 32;
    let types: [u32; 13] = [1, INT, 4, SIGNED_32_BITS, 0, PROTOTYPE, 1, 5, FUNCTION, 2, 11, FUNCTION, 2];
    let size = size_of_val(&types) as u32;
    let mut bytes = Vec::new();
    bytes.extend(0xEB9F_u16.to_ne_bytes());
    bytes.extend([1, 0]);
    for number in [24, 0, size, size, STRINGS.len() as u32].into_iter().chain(types) {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(STRINGS);
    bytes
}

fn function_types() -> io::Result<OwnedFd> {
    let types = types();
    let attributes = LoadTypes { types: types.as_ptr() as u64, size: types.len() as u32, ..LoadTypes::default() };
    // SAFETY: the kernel reads the types, which live until the call returns, and keeps a copy.
    unsafe { call(BPF_BTF_LOAD, &attributes) }
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// A command that makes a descriptor.
///
/// # Safety
///
/// Every address in the attributes must be good to read for as long as the command says, until the call returns.
unsafe fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the size of the attributes is passed along; their addresses are good, as the caller promises.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::btf;

    #[test]
    fn its_types_are_types() {
        let types = types();
        assert_eq!(btf::function(&types, "first"), Some(FIRST_FUNCTION));
        assert_eq!(btf::function(&types, "second"), Some(SECOND_FUNCTION));
    }

    #[test]
    fn the_structures_have_the_kernels_layout() {
        assert_eq!(std::mem::offset_of!(Load, hook), 108);
        assert_eq!(std::mem::offset_of!(Link, narrowed), 16);
        assert_eq!(size_of::<Tasks>(), 16);
    }
}
