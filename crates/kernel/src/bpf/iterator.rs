//! BPF iterators over processes' open files and threads, from instructions that fit the running kernel already.
//!
//! A loader such as libbpf reads the kernel's whole description of its types to fit a program, which takes longer than
//! many a transaction. Where the outcome was kept, loading it again is one call of bpf(2).

use crate::bpf::command::{self as command, Load};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const BPF_BTF_LOAD: libc::c_int = 18;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_ITER_CREATE: libc::c_int = 33;

const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;

/// A program of one function, which is run for each file or thread, or of two, of which the second is called by the
/// first in a loop (bpf_loop, since Linux 5.17).
#[derive(Clone, Copy, Debug)]
pub struct Instructions<'a> {
    /// All of them, as numbers of 64 bits; references to maps hold the maps' descriptors.
    pub all: &'a [u64],
    /// Where the second function begins.
    pub second: Option<u32>,
    /// The number of the kernel's function that calls it (`bpf_iter_task_file`, `bpf_iter_task`) among its types.
    pub hook: u32,
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
    let mut load =
        Load { kind: BPF_PROG_TYPE_TRACING, attach_type: BPF_TRACE_ITER, hook: program.hook, ..Load::default() };
    let types;
    let functions: [u32; 4];
    if let Some(second) = program.second {
        types = function_types()?;
        // By instruction: which function begins there.
        functions = [0, FIRST_FUNCTION, second, SECOND_FUNCTION];
        load.types = number(&types);
        (load.function_size, load.functions, load.function_count) = (8, functions.as_ptr() as u64, 2);
    }
    // SAFETY: there are no records of functions, or two of two numbers, which live until the call returns.
    unsafe { load.program(program.all, "pando_iterator") }
}

/// Ties a program to a process: to its open files, or to its threads, whichever it iterates over (by process since
/// Linux 6.1).
///
/// # Errors
///
/// ESRCH if there is none; EINVAL where the kernel cannot narrow it down to one.
pub fn over_process(program: BorrowedFd<'_>, process: u32) -> io::Result<OwnedFd> {
    let tasks = Tasks { process, ..Tasks::default() };
    let mut attributes =
        Link { narrowed: &raw const tasks as u64, narrowed_size: size_of::<Tasks>() as u32, ..Link::of(program) };
    // SAFETY: the kernel reads `tasks`, which lives until the call returns, and makes a descriptor.
    unsafe { command::make(BPF_LINK_CREATE, &mut attributes) }
}

/// Ties a program to all processes, those in other pid namespaces too: to their open files, where threads that share
/// theirs count once, or to all threads.
///
/// # Errors
///
/// EPERM without CAP_BPF; EINVAL where the kernel lacks the iterator.
pub fn over_all(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = Link::of(program);
    // SAFETY: there is no address in the attributes, and it makes a descriptor.
    unsafe { command::make(BPF_LINK_CREATE, &mut attributes) }
}

impl Link {
    fn of(program: BorrowedFd<'_>) -> Self {
        Self { program: program.as_raw_fd().unsigned_abs(), attach_type: BPF_TRACE_ITER, ..Self::default() }
    }
}

/// A run of it: reading to the end of the file calls it for each file.
///
/// # Errors
///
/// EBADF for what is no link of an iterator.
pub fn run(link: BorrowedFd<'_>) -> io::Result<File> {
    let mut attributes: [u32; 2] = [link.as_raw_fd().unsigned_abs(), 0];
    // SAFETY: there is no address in the attributes, and it makes a descriptor.
    unsafe { command::make(BPF_ITER_CREATE, &mut attributes) }.map(File::from)
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
    let mut attributes = LoadTypes { types: types.as_ptr() as u64, size: types.len() as u32, ..LoadTypes::default() };
    // SAFETY: the kernel reads the types, which live until the call returns, keeps a copy, and makes a descriptor.
    unsafe { command::make(BPF_BTF_LOAD, &mut attributes) }
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().unsigned_abs()
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
        assert_eq!(std::mem::offset_of!(Link, narrowed), 16);
        assert_eq!(size_of::<Tasks>(), 16);
    }
}
