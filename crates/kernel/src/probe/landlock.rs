//! Landlock, by putting a thread into a domain.

use super::child::in_a_thread;
use super::{Area, Finding, Verdict};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const AREA: Area = Area("landlock");

const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
const LANDLOCK_ACCESS_FS_MAKE_BLOCK: u64 = 1 << 11;
const LANDLOCK_ACCESS_NET_BIND_TCP: u64 = 1 << 0;
/// LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and LANDLOCK_SCOPE_SIGNAL
const SCOPES: u64 = 3;

/// `struct landlock_ruleset_attr` (linux/landlock.h). Older kernels take a shorter one, or a longer one that ends in
/// zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

pub(super) fn find() -> Vec<Finding> {
    let of = |ruleset| Verdict::from(in_a_thread(move || enter(ruleset)));
    let files = of(Ruleset { files: LANDLOCK_ACCESS_FS_MAKE_BLOCK, ..Ruleset::default() });
    let network = of(Ruleset { network: LANDLOCK_ACCESS_NET_BIND_TCP, ..Ruleset::default() });
    let scopes = of(Ruleset { scoped: SCOPES, ..Ruleset::default() });
    vec![
        AREA.wanted("domains", "5.13", explained(files), "guests on the host's network reach its abstract sockets"),
        AREA.wanted("network rules", "6.7", network, "the ports of a guest cannot be limited by Landlock"),
        AREA.wanted("scopes", "6.12", scopes, "guests on the host's network reach its abstract sockets"),
    ]
}

/// A kernel that has Landlock but was told not to start it says so itself.
fn explained(verdict: Verdict) -> Verdict {
    match (verdict, version()) {
        (Verdict::Missing, Err(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Verdict::Refused("not started at boot (boot argument lsm=)".into())
        }
        (verdict, _) => verdict,
    }
}

/// The version of the kernel's interface; scopes came with 6.
pub(super) fn version() -> io::Result<i64> {
    // SAFETY: without a ruleset, the call only answers a number.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Ruleset>(),
            0,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Looks at a thread before and after it has entered a domain; the thread ends.
///
/// # Errors
///
/// EOPNOTSUPP where Landlock is off; ENOSYS before Linux 5.13.
pub fn around_a_landlock_domain<T: Send>(mut look: impl FnMut() -> T + Send) -> io::Result<[T; 2]> {
    in_a_thread(move || {
        let before = look();
        enter(Ruleset { files: LANDLOCK_ACCESS_FS_MAKE_BLOCK, ..Ruleset::default() })?;
        Ok([before, look()])
    })
}

/// Puts this thread into a domain of this kind. It stays there.
fn enter(ruleset: Ruleset) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the kernel reads the structure, whose size is passed along.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size_of_val(&ruleset), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: the call takes numbers alone.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
