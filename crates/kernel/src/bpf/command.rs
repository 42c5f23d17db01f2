//! The call bpf(2) itself, and what loading a program takes.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const BPF_PROG_LOAD: libc::c_int = 5;

/// How long a program's name may be, with its closing NUL.
pub(crate) const NAME: usize = 16;

/// What BPF_PROG_LOAD reads of `union bpf_attr` (linux/bpf.h), to the last field used here.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// A number of `enum bpf_prog_type`.
    pub(crate) kind: u32,
    pub(crate) instruction_count: u32,
    pub(crate) instructions: u64,
    pub(crate) license: u64,
    pub(crate) log: [u64; 2],
    pub(crate) kernel_version: u32,
    pub(crate) flags: u32,
    pub(crate) name: [u8; NAME],
    pub(crate) device: u32,
    /// A number of `enum bpf_attach_type`.
    pub(crate) attach_type: u32,
    /// The descriptor of the program's own types.
    pub(crate) types: u32,
    pub(crate) function_size: u32,
    /// The address of so many records of where functions begin.
    pub(crate) functions: u64,
    pub(crate) function_count: u32,
    pub(crate) line_size: u32,
    pub(crate) lines: u64,
    pub(crate) line_count: u32,
    /// The number of a function of the kernel's among its types.
    pub(crate) hook: u32,
}

impl Load {
    /// Loads the program; longer names are cut.
    ///
    /// # Safety
    ///
    /// `functions` is the address of `function_count` records of `function_size` bytes.
    pub(crate) unsafe fn program(mut self, instructions: &[u64], name: &str) -> io::Result<OwnedFd> {
        self.instruction_count = u32::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        (self.instructions, self.license) = (instructions.as_ptr() as u64, c"GPL".as_ptr() as u64);
        self.name.iter_mut().zip(name.bytes().take(NAME - 1)).for_each(|(place, byte)| *place = byte);
        // SAFETY: the kernel reads the instructions and the license, which live until the call returns, and what the
        // caller vouches for.
        unsafe { make(BPF_PROG_LOAD, &mut self) }
    }
}

/// A command whose outcome is a number.
///
/// # Safety
///
/// The attributes are laid out as the command wants them, without padding; each address in them is good to read or
/// write for as long as the command says, until the call returns.
pub(crate) unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the size of the attributes is passed along; their addresses are good, as the caller promises.
    let outcome = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome as i32) }
}

/// A command that makes a descriptor.
///
/// # Safety
///
/// As [`call`], and the command is one that makes a descriptor.
pub(crate) unsafe fn make<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises.
    let fd = unsafe { call(command, attributes) }?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_kernels_layout() {
        assert_eq!(std::mem::offset_of!(Load, name), 48);
        assert_eq!(std::mem::offset_of!(Load, functions), 80);
        assert_eq!(std::mem::offset_of!(Load, hook), 108);
    }
}
