//! The steps of a process that is about to become a program of the guest.

use crate::bare::{self, Vector, signals};
use crate::grow::Luggage;
use crate::mountpoint;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use pando_shim::{Capabilities, FIRST_LOOKED_UP, LONGEST_LOOKED_UP, Make, Step};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, IoSlice};
use rustix::mount::OpenTreeFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Takes a step that concerns the process alone.
pub(crate) fn take(luggage: &Luggage, terminal: bool, step: Step<'static>) -> Result<(), Errno> {
    match step {
        Step::Limit { resource, soft, hard } => limit(resource, soft, hard),
        Step::Join { fd } => bare::enter(luggage.fd(fd)?),
        Step::Seccomp { program } => bare::seccomp(program),
        Step::Supervise { fd, program } => supervise(luggage.fd(fd)?, &bare::supervised(program)?),
        Step::Bound { keep } => bound(keep),
        Step::Stdio { fds } => {
            for (onto, fd) in (0..).zip(fds) {
                bare::duplicate(luggage.fd(fd)?, onto)?;
            }
            Ok(())
        }
        Step::Console { fd } => console(luggage.fd(fd)?),
        Step::Session => rustix::process::setsid().map(drop),
        Step::WorkingDirectory { path } => change_directory(path.c_str()),
        Step::User { uid, gid, groups } => user(terminal, uid, gid, groups),
        Step::Hold { keep } => hold(keep),
        Step::NoNewPrivileges => rustix::thread::set_no_new_privs(true),
        Step::Exec { arguments, environment, search } => Err(execute(arguments, environment, search, execute_at)),
        Step::ExecFound { arguments, environment, search } => {
            Err(execute(arguments, environment, search, bare::execute))
        }
        Step::ExecFd { fd, arguments } => {
            signals::unblock();
            let (arguments, environment) = (Vector::arguments(arguments)?, Vector::environment(&[])?);
            Err(bare::execute_fd(luggage.fd(fd)?, &arguments, &environment))
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Tells by number where the calls of this process wait, and waits until the process that answers them has taken it: it
/// cannot be sent, since to send a descriptor takes a call that waits for an answer itself. Before the word that it has
/// comes what else is to be looked up first.
fn supervise(socket: BorrowedFd<'_>, listener: &OwnedFd) -> Result<(), Errno> {
    // Charged to the guest as all that the command will look up, and older: as long as the kernel knows it, it has
    // forgotten none of that. What is answered does not matter.
    let look_up = |path: &CStr| {
        let _ = rustix::fs::access(path, rustix::fs::Access::EXISTS);
    };
    look_up(FIRST_LOOKED_UP);
    rustix::net::send(socket, &listener.as_raw_fd().to_ne_bytes(), SendFlags::NOSIGNAL)?;
    let mut message = [0_u8; LONGEST_LOOKED_UP];
    loop {
        match rustix::net::recv(socket, &mut message, RecvFlags::empty())? {
            // Nobody answers.
            (0, _) => return Err(Errno::PIPE),
            (length, _) => match CStr::from_bytes_with_nul(&message[..length.min(LONGEST_LOOKED_UP)]) {
                Ok(path) => look_up(path),
                Err(_) => return Ok(()),
            },
        }
    }
}

/// Changes to a directory of the guest, whose files may lead anywhere: through no link that is a descriptor's
/// (/proc/PID/fd and the like), and to nowhere outside of the root.
fn change_directory(path: &CStr) -> Result<(), Errno> {
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let directory = mountpoint::resolve(root.as_fd(), path)?;
    rustix::process::fchdir(&directory)?;
    if bare::is_within_root() { Ok(()) } else { Err(Errno::XDEV) }
}

fn limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    bare::set_limit(resource, soft, hard)
}

/// Gives up every capability that the kernel knows and `keep` lacks.
fn bound(keep: Capabilities) -> Result<(), Errno> {
    for bit in 0..64 {
        if keep & 1 << bit == 0 {
            match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
                // The kernel has no capability of that number, nor of a higher one.
                Err(Errno::INVAL) => break,
                outcome => outcome?,
            }
        }
    }
    Ok(())
}

/// Holds `keep`, as far as it was held, and nothing else.
pub(crate) fn hold(keep: Capabilities) -> Result<(), Errno> {
    let held = rustix::thread::capabilities(None)?;
    let keep = CapabilitySet::from_bits_retain(keep) & held.permitted;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() },
    )
}

fn user(terminal: bool, uid: u32, gid: u32, groups: &[u8]) -> Result<(), Errno> {
    const MOST: usize = 256;
    let mut list = [Gid::ROOT; MOST];
    let count = groups.len() / 4;
    for (place, bytes) in list.iter_mut().zip(groups.chunks_exact(4)) {
        *place = Gid::from_raw(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    let wanted = [[uid; 3], [gid; 3]];
    // The kernel takes this number for "as it is": root would stay root.
    if wanted.as_flattened().contains(&u32::MAX) || list[..count.min(MOST)].contains(&Gid::from_raw(u32::MAX)) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if terminal {
        // The terminal was opened by root; programs such as mesg and screen expect it to be their user's.
        rustix::fs::fchown(bare::standard_input(), Some(uid), None)?;
    }
    rustix::thread::set_thread_groups(list.get(..count).ok_or(Errno::INVAL)?)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // The memory is lent by the first process, which keeps it.
    bare::undumpable();
    // A filter can say that a call has succeeded.
    if bare::ids()? == wanted { Ok(()) } else { Err(Errno::PERM) }
}

/// Opens a terminal of the guest's own, makes it this process's, and sends its master away.
pub(crate) fn terminal(socket: BorrowedFd<'_>, rows: u16, columns: u16) -> Result<(), Errno> {
    let (master, slave) = open_terminal()?;
    if rows > 0 && columns > 0 {
        rustix::termios::tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    }
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(&slave)?;
    stand_on(&slave)?;
    send_away(socket, &master)
}

/// Opens a terminal of the guest's own, shows it as /dev/console, and sends its master away.
fn console(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let (master, slave) = open_terminal()?;
    show_as_console(slave.as_fd())?;
    stand_on(&slave)?;
    send_away(socket, &master)
}

/// Shows a terminal as /dev/console.
pub(crate) fn show_as_console(slave: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(slave, c"", flags)?;
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    mountpoint::attach(tree.as_fd(), root.as_fd(), c"dev/console", Make::File)
}

/// A new terminal: its master, and its other end. The guest may have put something else where it is opened.
fn open_terminal() -> Result<(OwnedFd, OwnedFd), Errno> {
    let multiplexer = rustix::fs::makedev(5, 2);
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let place = mountpoint::resolve(root.as_fd(), c"dev/ptmx")?;
    let found = rustix::fs::fstat(&place)?;
    if !FileType::from_raw_mode(found.st_mode).is_char_device() || found.st_rdev != multiplexer {
        return Err(Errno::NODEV);
    }
    let master = mountpoint::open(root.as_fd(), c"dev/ptmx", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC)?;
    if rustix::fs::fstat(&master)?.st_rdev != multiplexer {
        return Err(Errno::NODEV);
    }
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

/// Has a terminal be standard input, output and error.
fn stand_on(slave: &OwnedFd) -> Result<(), Errno> {
    (0..3).try_for_each(|onto| bare::duplicate(slave.as_fd(), onto))
}

fn send_away(socket: BorrowedFd<'_>, fd: &OwnedFd) -> Result<(), Errno> {
    send_with(socket, b"m", fd)
}

/// Sends a message with a descriptor.
pub(crate) fn send_with(socket: BorrowedFd<'_>, message: &[u8], fd: &OwnedFd) -> Result<(), Errno> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Executes a program as execvp(3) does: a name with a slash as it stands, any other in each directory of `search`.
/// `way` executes what a path means.
fn execute(
    arguments: &'static [u8],
    environment: &'static [u8],
    search: &[u8],
    way: impl Fn(&CStr, &Vector, &Vector) -> Errno,
) -> Errno {
    let (vector, environment) = match (Vector::arguments(arguments), Vector::environment(environment)) {
        (Ok(arguments), Ok(environment)) => (arguments, environment),
        (Err(errno), _) | (_, Err(errno)) => return errno,
    };
    let Ok(name) = CStr::from_bytes_until_nul(arguments) else { return Errno::INVAL };
    signals::unblock();
    look_for(name, search, |path| way(path, &vector, &environment))
}

/// Sees that a program is there and may be executed, as it will be looked for. What is found is told by its path.
pub(crate) fn find(name: &'static [u8], search: &[u8]) -> Result<(), Errno> {
    let name = CStr::from_bytes_until_nul(name).map_err(|_| Errno::INVAL)?;
    let mut found = false;
    let verdict = look_for(name, search, |path| match executable(path) {
        Ok(()) => {
            found = true;
            // Ends the search.
            Errno::ALREADY
        }
        Err(errno) => errno,
    });
    if found { Ok(()) } else { Err(verdict) }
}

/// Whether a path of the guest means a file that this process may execute.
pub(crate) fn executable(path: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
        return Err(Errno::ACCESS);
    }
    rustix::fs::accessat(rustix::fs::CWD, path, rustix::fs::Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)
}

/// Tries a name with a slash as it stands, any other in each directory of `search`: the error of what came nearest.
fn look_for(name: &CStr, search: &[u8], mut attempt: impl FnMut(&CStr) -> Errno) -> Errno {
    if name.is_empty() {
        return Errno::NOENT;
    }
    if name.to_bytes().contains(&b'/') {
        return attempt(name);
    }
    let mut verdict = Errno::NOENT;
    for directory in search.split(|byte| *byte == b':') {
        let mut path = [0_u8; 4096];
        let Some(path) = join(&mut path, directory, name.to_bytes()) else { continue };
        match attempt(path) {
            Errno::NOENT | Errno::NOTDIR => {}
            // One that may not be executed is worth telling, unless a later directory has one that may.
            Errno::ACCESS => verdict = Errno::ACCESS,
            other => return other,
        }
    }
    verdict
}

/// Executes what a path of the guest means, through no link that is a descriptor's. Between the look and the execution
/// the guest may put one there: by then nothing but what is meant for it is open.
pub(crate) fn execute_at(path: &CStr, arguments: &Vector, environment: &Vector) -> Errno {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Ok(_) => bare::execute(path, arguments, environment),
        Err(errno) => errno,
    }
}

/// `directory/name` with a closing NUL, if it fits.
fn join<'a>(space: &'a mut [u8], directory: &[u8], name: &[u8]) -> Option<&'a CStr> {
    let slash = directory.len();
    let end = slash + 1 + name.len();
    space.get_mut(..slash)?.copy_from_slice(directory);
    *space.get_mut(slash)? = b'/';
    space.get_mut(slash + 1..end)?.copy_from_slice(name);
    *space.get_mut(end)? = 0;
    CStr::from_bytes_with_nul(space.get(..=end)?).ok()
}
