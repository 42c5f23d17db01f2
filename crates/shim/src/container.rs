//! The steps of a process that a container runtime begins, and that no daemon stands behind: what an engine's
//! configuration can ask for beyond what guests have.

use crate::bare::{self, Forked, Vector, signals};
use crate::grow::{self, Luggage};
use crate::{command, mountpoint};
use core::ffi::CStr;
use pando_shim::{Attributes, Capabilities, Make, Step};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Takes a step of this kind; `None` for one of another.
pub(crate) fn take(root: Option<&OwnedFd>, luggage: &Luggage, step: Step<'static>) -> Option<Result<(), Errno>> {
    let in_root = |act: &dyn Fn(BorrowedFd<'_>) -> Result<(), Errno>| act(root.ok_or(Errno::NOTDIR)?.as_fd());
    Some(match step {
        Step::Unshare { namespaces } => bare::unshare(namespaces),
        Step::Group { fd } => luggage.fd(fd).and_then(|file| rustix::io::write(file, b"0").map(drop)),
        Step::Loopback => loopback(),
        Step::Change { at, recursive, set, clear, propagation } => {
            in_root(&|root| change(root, at.c_str(), recursive, (set, clear), propagation))
        }
        Step::Hide { at } => in_root(&|root| hide(root, at.c_str())),
        Step::Node { at, mode, device, owner } => in_root(&|root| node(root, at.c_str(), mode, device, owner)),
        Step::Link { at, to } => in_root(&|root| link(root, at.c_str(), to.c_str())),
        Step::Directory { at } => in_root(&|root| mountpoint::make_directory(root, at.c_str())),
        Step::Setting { at, value } => setting(at.c_str(), value),
        Step::DomainName { name } => bare::set_domain_name(name),
        Step::Umask { mask } => {
            bare::set_umask(mask);
            Ok(())
        }
        Step::KeepCapabilities => rustix::thread::set_keep_capabilities(true),
        Step::CapabilitySets { effective, permitted, inheritable, ambient } => {
            capabilities(effective, permitted, inheritable, ambient)
        }
        Step::Keyring { name } => keyring(name.c_str()),
        Step::Personality { persona } => bare::set_personality(persona),
        Step::ShowTerminal => command::show_as_console(bare::standard_input()),
        Step::Find { name, search } => command::find(name, search),
        Step::Call { input, arguments, environment, timeout } => {
            luggage.fd(input).and_then(|input| call(input, arguments, environment, timeout))
        }
        _ => return None,
    })
}

fn loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    bare::loopback_up(socket.as_fd())
}

/// A kernel without keyrings has none that could be shared.
fn keyring(name: &CStr) -> Result<(), Errno> {
    match bare::join_keyring(name) {
        Err(Errno::NOSYS) => Ok(()),
        joined => joined,
    }
}

fn change(
    root: BorrowedFd<'_>,
    at: &CStr,
    recursive: bool,
    attributes: (u32, u32),
    propagation: u32,
) -> Result<(), Errno> {
    if at.is_empty() {
        return bare::change_mount(root, c"", recursive, attributes, u64::from(propagation));
    }
    let place = mountpoint::resolve(root, at)?;
    bare::change_mount(place.as_fd(), c"", recursive, attributes, u64::from(propagation))
}

/// The null device's numbers.
const NULL: (u32, u32) = (1, 3);

fn hide(root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let place = match mountpoint::resolve(root, at) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_dir() {
        let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
        let empty = grow::new_file_system(c"tmpfs", "mode=755,size=0k,nr_inodes=1", attributes)?;
        return mountpoint::attach(empty.as_fd(), root, at, Make::Skip);
    }
    let null = mountpoint::resolve(root, c"dev/null")?;
    let found = rustix::fs::fstat(&null)?;
    // Whatever an image has put in its place would be shown instead, and could be written to by everybody.
    let device = rustix::fs::makedev(NULL.0, NULL.1);
    if !FileType::from_raw_mode(found.st_mode).is_char_device() || found.st_rdev != device {
        return Err(Errno::NODEV);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&null, c"", flags)?;
    mountpoint::attach(tree.as_fd(), root, at, Make::Skip)
}

/// The directory that a path lies in, made where it is missing, and its last name.
fn parent<'a>(root: BorrowedFd<'_>, at: &'a CStr) -> Result<(OwnedFd, &'a CStr), Errno> {
    const LONGEST: usize = 4096;
    let bytes = at.to_bytes_with_nul();
    let slash = at.to_bytes().iter().rposition(|byte| *byte == b'/');
    let name = CStr::from_bytes_with_nul(&bytes[slash.map_or(0, |slash| slash + 1)..]).map_err(|_| Errno::INVAL)?;
    if matches!(name.to_bytes(), b"" | b"." | b"..") {
        return Err(Errno::INVAL);
    }
    let mut above = [0_u8; LONGEST];
    above.get_mut(..slash.unwrap_or(0)).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&bytes[..slash.unwrap_or(0)]);
    let above = match slash.unwrap_or(0) {
        0 => c".",
        _ => CStr::from_bytes_until_nul(&above).map_err(|_| Errno::NAMETOOLONG)?,
    };
    mountpoint::make_directory(root, above)?;
    Ok((mountpoint::resolve(root, above)?, name))
}

fn node(
    root: BorrowedFd<'_>,
    at: &CStr,
    mode: u32,
    (major, minor): (u32, u32),
    (uid, gid): (u32, u32),
) -> Result<(), Errno> {
    let (directory, name) = parent(root, at)?;
    let (kind, device) = (FileType::from_raw_mode(mode), rustix::fs::makedev(major, minor));
    match rustix::fs::mknodat(&directory, name, kind, Mode::from_raw_mode(mode & 0o7777), device) {
        Err(Errno::EXIST) => {}
        made => made?,
    }
    // By descriptor, and never through a link: what is there may be of the image.
    let made = rustix::fs::openat(&directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&made)?;
    if FileType::from_raw_mode(found.st_mode) != kind || (kind != FileType::Fifo && found.st_rdev != device) {
        return Err(Errno::EXIST);
    }
    let owner = (Some(rustix::process::Uid::from_raw(uid)), Some(rustix::process::Gid::from_raw(gid)));
    rustix::fs::chownat(&made, c"", owner.0, owner.1, rustix::fs::AtFlags::EMPTY_PATH)?;
    // The mask of this process was applied. What is in the directory is this process's alone so far.
    rustix::fs::chmodat(&directory, name, Mode::from_raw_mode(mode & 0o7777), rustix::fs::AtFlags::empty())
}

fn link(root: BorrowedFd<'_>, at: &CStr, to: &CStr) -> Result<(), Errno> {
    let (directory, name) = parent(root, at)?;
    match rustix::fs::symlinkat(to, &directory, name) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Writes to a file of the kernel's. What is opened has to be the kernel's, whatever is mounted there.
fn setting(at: &CStr, value: &[u8]) -> Result<(), Errno> {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let settings = rustix::fs::open(c"/proc/sys", flags, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = rustix::fs::openat2(&settings, at, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    if rustix::fs::fstatfs(&file)?.f_type != PROC_SUPER_MAGIC {
        return Err(Errno::XDEV);
    }
    match rustix::io::write(&file, value)? {
        written if written == value.len() => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Holds these sets, as far as this process may.
fn capabilities(
    effective: Capabilities,
    permitted: Capabilities,
    inheritable: Capabilities,
    ambient: Capabilities,
) -> Result<(), Errno> {
    let held = rustix::thread::capabilities(None)?.permitted;
    let set = |wanted: Capabilities| CapabilitySet::from_bits_retain(wanted);
    let permitted = set(permitted) & held;
    let sets =
        CapabilitySets { effective: set(effective) & permitted, permitted, inheritable: set(inheritable) & held };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::clear_ambient_capability_set()?;
    let kept = set(ambient) & sets.permitted & sets.inheritable;
    (0..64).filter(|bit| kept.bits() & 1 << bit != 0).try_for_each(|bit| bare::raise_ambient(bit as usize))
}

/// Executes a program in a child and waits for its end.
fn call(
    input: BorrowedFd<'_>,
    arguments: &'static [u8],
    environment: &'static [u8],
    timeout: u32,
) -> Result<(), Errno> {
    let path = CStr::from_bytes_until_nul(arguments).map_err(|_| Errno::INVAL)?;
    match bare::fork(None)? {
        Forked::Child => {
            let failed = become_program(input, path, arguments, environment);
            bare::exit(if failed == Errno::NOENT { 127 } else { 126 })
        }
        Forked::Parent { pid, pidfd } => await_end(pid, &pidfd, timeout),
    }
}

fn become_program(input: BorrowedFd<'_>, path: &CStr, arguments: &'static [u8], environment: &'static [u8]) -> Errno {
    let (arguments, environment) = match (Vector::arguments(arguments), Vector::environment(environment)) {
        (Ok(arguments), Ok(environment)) => (arguments, environment),
        (Err(errno), _) | (_, Err(errno)) => return errno,
    };
    if let Err(errno) = bare::duplicate(input, 0) {
        return errno;
    }
    bare::close_range(3, u32::MAX);
    signals::unblock();
    command::execute_at(path, &arguments, &environment)
}

fn await_end(pid: i32, pidfd: &OwnedFd, timeout: u32) -> Result<(), Errno> {
    let limit = Timespec { tv_sec: i64::from(timeout), tv_nsec: 0 };
    let limit = (timeout != 0).then_some(&limit);
    let ended = loop {
        match rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], limit) {
            Err(Errno::INTR) => {}
            polled => break polled? > 0,
        }
    };
    if !ended {
        let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
    }
    let status = loop {
        match rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            waited => break waited?.map(|(_, status)| status),
        }
    };
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        _ if !ended => Err(Errno::TIMEDOUT),
        _ => Err(Errno::CANCELED),
    }
}
