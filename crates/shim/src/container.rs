//! The steps of a process that a container runtime begins, and that no daemon stands behind: what an engine's
//! configuration can ask for beyond what guests have.

use crate::bare::{self, Forked, Vector, signals};
use crate::grow::{self, Luggage};
use crate::held_mounts::HeldMounts;
use crate::{command, mountpoint};
use core::ffi::CStr;
use pando_shim::{Attributes, Capabilities, Make, Step};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::termios::{OptionalActions, OutputModes};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Takes a step of this kind; `None` for one of another.
pub(crate) fn take(
    root: Option<&OwnedFd>,
    mounts: &HeldMounts,
    luggage: &Luggage,
    step: Step<'static>,
) -> Option<Result<(), Errno>> {
    let in_root = |act: &dyn Fn(BorrowedFd<'_>) -> Result<(), Errno>| act(root.ok_or(Errno::NOTDIR)?.as_fd());
    Some(match step {
        Step::Unshare { namespaces } => bare::unshare(namespaces),
        Step::Group { fd } => luggage.fd(fd).and_then(|file| rustix::io::write(file, b"0").map(drop)),
        Step::Loopback => loopback(),
        Step::ChangeRoot { fd } => luggage.fd(fd).and_then(|directory| {
            rustix::process::fchdir(directory)?;
            rustix::process::chroot(c".")
        }),
        Step::Change { at, recursive, set, clear, propagation } => {
            in_root(&|root| change((root, mounts), at.c_str(), recursive, (set, clear), propagation))
        }
        Step::Hide { at } => in_root(&|root| hide(root, mounts, at.c_str())),
        Step::Node { at, mode, device, owner } => {
            in_root(&|root| node(mounts.own_place(root, at.c_str()), mode, device, owner))
        }
        Step::Link { at, to } => in_root(&|root| link(mounts.own_place(root, at.c_str()), to.c_str())),
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
        Step::Keyring { name } => bare::begin_session_keyring(Some(name.c_str())),
        Step::Personality { persona } => bare::set_personality(persona),
        Step::MemoryPolicy { mode, nodes } => bare::set_memory_policy(mode, nodes),
        Step::PlainLines => plain_lines(),
        Step::ShowTerminal => command::show_as_console(bare::standard_input()),
        Step::Find { name, search } => command::find(name, search),
        Step::Call { input, arguments, environment, timeout } => {
            let path = CStr::from_bytes_until_nul(arguments).map_err(|_| Errno::INVAL);
            luggage.fd(input).and_then(|input| call(input, path?, (arguments, environment), timeout, None))
        }
        Step::CallProgram { input, path, arguments, environment, timeout } => {
            luggage.fd(input).and_then(|input| call(input, path.c_str(), (arguments, environment), timeout, None))
        }
        Step::CallFiltered { input, path, arguments, environment, timeout, program, flags } => {
            let filter = Some((program, flags));
            luggage.fd(input).and_then(|input| call(input, path.c_str(), (arguments, environment), timeout, filter))
        }
        _ => return None,
    })
}

fn loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    bare::loopback_up(socket.as_fd())
}

fn plain_lines() -> Result<(), Errno> {
    let terminal = bare::standard_input();
    let mut modes = rustix::termios::tcgetattr(terminal)?;
    modes.output_modes -= OutputModes::ONLCR;
    rustix::termios::tcsetattr(terminal, OptionalActions::Now, &modes)
}

fn change(
    (root, mounts): (BorrowedFd<'_>, &HeldMounts),
    at: &CStr,
    recursive: bool,
    attributes: (u32, u32),
    propagation: u32,
) -> Result<(), Errno> {
    if at.is_empty() {
        return bare::change_mount(root, c"", recursive, attributes, u64::from(propagation));
    }
    bare::change_mount(mounts.made_at(at)?, c"", recursive, attributes, u64::from(propagation))
}

/// The null device's numbers.
const NULL: (u32, u32) = (1, 3);

/// What is looked at is what is hidden: the path is looked up once.
fn hide(root: BorrowedFd<'_>, mounts: &HeldMounts, at: &CStr) -> Result<(), Errno> {
    let place = match mounts.resolve(root, at) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_dir() {
        let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
        let empty = grow::new_file_system(c"tmpfs", "source=tmpfs,mode=755,size=0k,nr_inodes=1", attributes)?;
        return mountpoint::attach_to(empty.as_fd(), place.as_fd());
    }
    let (devices, null) = mounts.own_place(root, c"dev/null");
    let null = mountpoint::resolve(devices, null)?;
    let found = rustix::fs::fstat(&null)?;
    // Whatever an image has put in its place would be shown instead, and could be written to by everybody.
    let device = rustix::fs::makedev(NULL.0, NULL.1);
    if !FileType::from_raw_mode(found.st_mode).is_char_device() || found.st_rdev != device {
        return Err(Errno::NODEV);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&null, c"", flags)?;
    mountpoint::attach_to(tree.as_fd(), place.as_fd())
}

/// Opens the directory that a path lies in by `open`, which makes it where it is missing; and the path's last name.
fn parent(at: &CStr, open: impl Fn(&CStr) -> Result<OwnedFd, Errno>) -> Result<(OwnedFd, &CStr), Errno> {
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
    Ok((open(above)?, name))
}

fn node(
    (root, at): (BorrowedFd<'_>, &CStr),
    mode: u32,
    (major, minor): (u32, u32),
    (uid, gid): (u32, u32),
) -> Result<(), Errno> {
    // A link on the way could lead to a directory of the host's that was bound, for users of the host to open it there.
    let plainly = |above: &CStr| mountpoint::plain(root, above, Make::Directory)?.ok_or(Errno::NOENT);
    let (directory, name) = parent(at, plainly)?;
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
    // The mask of this process was applied. The mode is given to what was looked at: by its name, which others of the
    // same root may have given to a link by now, it would be given to a file of the host's.
    change_mode(&made, Mode::from_raw_mode(mode & 0o7777))
}

/// Sets the mode of what is open as a mere place, which chmod(2) takes by the process's list of descriptors alone
/// before Linux 6.6.
fn change_mode(place: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    const LIST: &[u8] = b"/proc/self/fd/";
    let number = rustix::path::DecInt::from_fd(place);
    let digits = number.as_bytes_with_nul();
    let mut path = [0; 40];
    path[..LIST.len()].copy_from_slice(LIST);
    path.get_mut(LIST.len()..LIST.len() + digits.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(digits);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    rustix::fs::chmodat(rustix::fs::CWD, path, mode, rustix::fs::AtFlags::empty())
}

fn link((root, at): (BorrowedFd<'_>, &CStr), to: &CStr) -> Result<(), Errno> {
    let made = |above: &CStr| {
        mountpoint::make_directory(root, above)?;
        mountpoint::resolve(root, above)
    };
    let (directory, name) = parent(at, made)?;
    match rustix::fs::symlinkat(to, &directory, name) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Writes to a file of the kernel's. What is opened has to be the kernel's, whatever is mounted there.
fn setting(at: &CStr, value: &[u8]) -> Result<(), Errno> {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    // Its first names were judged; `net/..` is beneath the settings as well.
    if at.to_bytes().split(|byte| *byte == b'/').any(|name| matches!(name, b"" | b"." | b"..")) {
        return Err(Errno::INVAL);
    }
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

/// A program of classic BPF that answers system calls, and flags of seccomp(2).
type Filter = (&'static [u8], u32);

/// Executes a program in a child and waits for its end.
fn call(
    input: BorrowedFd<'_>,
    path: &CStr,
    (arguments, environment): (&'static [u8], &'static [u8]),
    timeout: u32,
    filter: Option<Filter>,
) -> Result<(), Errno> {
    match bare::fork(None)? {
        Forked::Child => {
            let failed = become_program(input, path, (arguments, environment), filter);
            bare::exit(if failed == Errno::NOENT { 127 } else { 126 })
        }
        Forked::Parent { pid, pidfd } => await_end(pid, &pidfd, timeout),
    }
}

fn become_program(
    input: BorrowedFd<'_>,
    path: &CStr,
    (arguments, environment): (&'static [u8], &'static [u8]),
    filter: Option<Filter>,
) -> Errno {
    let (arguments, environment) = match (Vector::arguments(arguments), Vector::environment(environment)) {
        (Ok(arguments), Ok(environment)) => (arguments, environment),
        (Err(errno), _) | (_, Err(errno)) => return errno,
    };
    if let Err(errno) = bare::duplicate(input, 0) {
        return errno;
    }
    bare::close_range(3, u32::MAX);
    signals::unblock();
    let Some((program, flags)) = filter else { return command::execute_at(path, &arguments, &environment) };
    // Looked at before, by calls that the filter might not allow.
    match command::executable(path).and_then(|()| install(program, flags)) {
        Ok(()) => bare::execute(path, &arguments, &environment),
        Err(errno) => errno,
    }
}

/// Installs a filter of system calls. The power to do so is put in force, if it is permitted; the execution ends that.
fn install(program: &[u8], flags: u32) -> Result<(), Errno> {
    /// `SECCOMP_FILTER_FLAG_NEW_LISTENER`, and `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, which is nothing without it.
    const LISTENER: u32 = 1 << 3 | 1 << 5;
    let held = rustix::thread::capabilities(None)?;
    let effective = held.effective | (held.permitted & CapabilitySet::SYS_ADMIN);
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..held })?;
    bare::filter_with(program, flags & !LISTENER).map(drop)
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
