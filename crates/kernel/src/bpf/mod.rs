//! The few commands of bpf(2) that loaders leave out: attaching for as long as the place exists, and names in a BPF
//! file system.
//!
//! A program that is attached to a cgroup *without* a link goes with the cgroup, whatever becomes of the process that
//! attached it: nothing has to be kept or remembered for it. A link stays for as long as a descriptor or a name of it
//! does.

pub(crate) mod command;
pub mod iterator;

use crate::bpf::command::{Load, NAME};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_CREATE: libc::c_int = 28;

/// Programs of groups above and below run too.
const BPF_F_ALLOW_MULTI: u32 = 1 << 1;
/// It comes in the place of another, which is named.
const BPF_F_REPLACE: u32 = 1 << 2;

/// Where in the kernel a program is asked: the numbers of `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "they are the kernel's names")]
pub enum Hook {
    CgroupInetIngress = 0,
    CgroupInetEgress = 1,
    CgroupInetSockCreate = 2,
    CgroupSockOps = 3,
    /// Access to devices by a control group (since Linux 4.15).
    CgroupDevice = 6,
    CgroupInet4Bind = 8,
    CgroupInet6Bind = 9,
    CgroupInet4Connect = 10,
    CgroupInet6Connect = 11,
    CgroupUdp4Sendmsg = 14,
    CgroupUdp6Sendmsg = 15,
    CgroupUdp4Recvmsg = 19,
    CgroupUdp6Recvmsg = 20,
    CgroupInet4Getpeername = 29,
    CgroupInet6Getpeername = 30,
    CgroupInet4Getsockname = 31,
    CgroupInet6Getsockname = 32,
    /// The choice of a socket for a packet (since Linux 5.9).
    SkLookup = 36,
    /// Packets that come in on a device (since Linux 6.6).
    TcxIngress = 46,
    /// Packets that leave by a device (since Linux 6.6).
    TcxEgress = 47,
}

/// Attaches a program to a cgroup of version 2 until the group is removed (BPF_PROG_ATTACH, Linux 4.10; the hooks of
/// sockets 4.17 to 5.8).
///
/// # Errors
///
/// EPERM without CAP_BPF and CAP_NET_ADMIN, or where a group above forbids it; EINVAL where the kernel lacks the hook;
/// E2BIG from 64 programs on.
pub fn attach_to_cgroup(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, hook: Hook) -> io::Result<()> {
    let mut attributes = [descriptor(cgroup), descriptor(program), hook as u32, BPF_F_ALLOW_MULTI, 0];
    // SAFETY: there is no address in them.
    unsafe { command::call(BPF_PROG_ATTACH, &mut attributes) }.map(drop)
}

/// Puts another program in the place of one that is attached to a cgroup of version 2, at once (BPF_PROG_ATTACH with
/// BPF_F_REPLACE, Linux 5.6).
///
/// # Errors
///
/// As [`attach_to_cgroup`]; ENOENT where the other is not attached there.
pub fn replace_at_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    hook: Hook,
    other: BorrowedFd<'_>,
) -> io::Result<()> {
    let flags = BPF_F_ALLOW_MULTI | BPF_F_REPLACE;
    let mut attributes = [descriptor(cgroup), descriptor(program), hook as u32, flags, descriptor(other)];
    // SAFETY: there is no address in them.
    unsafe { command::call(BPF_PROG_ATTACH, &mut attributes) }.map(drop)
}

/// Attaches a program to a cgroup of version 2 until the link goes (BPF_LINK_CREATE, Linux 5.7).
///
/// # Errors
///
/// As [`attach_to_cgroup`].
pub fn link_to_cgroup(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, hook: Hook) -> io::Result<OwnedFd> {
    link(descriptor(program), descriptor(cgroup), hook)
}

/// Attaches a program to a network device, given by its index in this thread's network namespace (tcx, Linux 6.6). The
/// link ends with the device.
///
/// # Errors
///
/// EINVAL where the kernel has no tcx; ENODEV.
pub fn link_to_device(program: BorrowedFd<'_>, device: u32, hook: Hook) -> io::Result<OwnedFd> {
    link(descriptor(program), device, hook)
}

/// Attaches a program to a network namespace (Linux 5.8). The link ends with the namespace.
///
/// # Errors
///
/// E2BIG from 64 programs on; EINVAL where the kernel lacks the hook.
pub fn link_to_namespace(program: BorrowedFd<'_>, namespace: BorrowedFd<'_>, hook: Hook) -> io::Result<OwnedFd> {
    link(descriptor(program), descriptor(namespace), hook)
}

fn link(program: u32, target: u32, hook: Hook) -> io::Result<OwnedFd> {
    // SAFETY: there is no address in the attributes, and it makes a descriptor.
    unsafe { command::make(BPF_LINK_CREATE, &mut [program, target, hook as u32, 0]) }
}

/// Gives a program, map or link a name in a BPF file system, which holds it until the name is removed (Linux 4.4; links
/// 5.7).
///
/// # Errors
///
/// EEXIST; EPERM where the path lies on another kind of file system.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    /// What BPF_OBJ_PIN reads of `union bpf_attr`.
    #[repr(C)]
    struct Pin {
        path: u64,
        object: u32,
        flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Pin { path: path.as_ptr() as u64, object: descriptor(object), flags: 0 };
    // SAFETY: the kernel reads the path, which lives until the call returns.
    unsafe { command::call(BPF_OBJ_PIN, &mut attributes) }.map(drop)
}

/// Loads a program that decides on the use of devices (BPF_PROG_TYPE_CGROUP_DEVICE, Linux 4.15).
///
/// # Errors
///
/// EPERM without CAP_BPF; EINVAL where the kernel lacks the kind, or refuses the program.
pub fn load_device_program(instructions: &[u64], name: &str) -> io::Result<OwnedFd> {
    const CGROUP_DEVICE: u32 = 15;
    // SAFETY: it has no records of functions.
    unsafe { Load { kind: CGROUP_DEVICE, ..Load::default() }.program(instructions, name) }
}

/// The names of the programs that are asked at a hook of a cgroup, those of the groups above included (BPF_PROG_QUERY,
/// Linux 4.15).
///
/// # Errors
///
/// EPERM without CAP_BPF and CAP_NET_ADMIN; EINVAL where the kernel lacks the hook.
pub fn names_in_force(cgroup: BorrowedFd<'_>, hook: Hook) -> io::Result<Vec<String>> {
    /// What BPF_PROG_QUERY reads and writes of `union bpf_attr`.
    #[repr(C)]
    struct Query {
        target: u32,
        hook: u32,
        flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        padding: u32,
    }
    const EFFECTIVE: u32 = 1;
    const MOST: usize = 64;
    let mut ids = [0_u32; MOST];
    let (target, ids_at) = (descriptor(cgroup), ids.as_mut_ptr() as u64);
    let mut query = Query {
        target,
        hook: hook as u32,
        flags: EFFECTIVE,
        attach_flags: 0,
        ids: ids_at,
        count: MOST as u32,
        padding: 0,
    };
    // SAFETY: the kernel writes at most `count` numbers to the array, which lives on.
    unsafe { command::call(BPF_PROG_QUERY, &mut query) }?;
    ids.iter().take(query.count as usize).map(|id| name_of(*id)).collect()
}

/// The name that a program was loaded with.
fn name_of(id: u32) -> io::Result<String> {
    /// What BPF_OBJ_GET_INFO_BY_FD reads of `union bpf_attr`.
    #[repr(C)]
    struct Ask {
        object: u32,
        length: u32,
        info: u64,
    }
    /// Where the name stands in `struct bpf_prog_info`.
    const AT: usize = 64;
    // SAFETY: there is no address in the attributes, and it makes a descriptor.
    let fd = unsafe { command::make(BPF_PROG_GET_FD_BY_ID, &mut [id, 0, 0]) }?;
    let mut info = [0_u64; (AT + NAME) / 8];
    let mut ask =
        Ask { object: descriptor(fd.as_fd()), length: size_of_val(&info) as u32, info: info.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes at most `length` bytes to the array; the zeros in it say that there is no room for
    // lists.
    unsafe { command::call(BPF_OBJ_GET_INFO_BY_FD, &mut ask) }?;
    let bytes: Vec<u8> =
        info[AT / 8..].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn descriptor(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}
