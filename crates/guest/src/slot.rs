//! Slots: the numbers that a machine's running guests are told apart by.
//!
//! A slot is a range of 65,536 ids, a cgroup and a shim's socket. It is held by the lock of a file in a directory that
//! is root's alone, so that it comes free with the last process that has the file open, whatever happens, and only root
//! can hold one. The directory is the machine's, not a state root's: daemons with different roots never share a range.

use crate::sub_ids::GivenIds;
use pando_kernel::file::lock;
use pando_kernel::file::trusted_directory::TrustedDirectory;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Where the files are. They are empty, and stay until the machine is switched off.
const ABOVE: &str = "/run";
const DIRECTORY: &str = "pando-slots";

/// The range that systemd sets aside for container managers (UIDs, Gids and Containers, systemd.io): 524,288 to
/// 1,879,048,191.
const FIRST_ID: u32 = 0x0008_0000;

/// How many ranges of 65,536 it holds.
pub const SLOTS: u32 = (0x6fff_ffff - FIRST_ID) / pando_kernel::namespace::id_map::IDS;

/// A slot that is held.
#[derive(Debug)]
pub struct Slot {
    /// The slot's number, from which its ids follow.
    pub number: u32,
    /// The lock that is held as long as the slot is.
    pub lock: OwnedFd,
}

/// The first host id of a slot's range.
pub fn first_id(number: u32) -> u32 {
    FIRST_ID + number * pando_kernel::namespace::id_map::IDS
}

/// How many slots in a row may be passed over because a socket has the name that earlier releases held them by.
const PASSED_OVER: u32 = 64;

/// Takes the first free slot from `hint` on, around to it again; `None` where all are held. One whose ids the machine
/// has given to a user is passed over: that user could signal the guest's processes.
pub fn claim(hint: u32) -> io::Result<Option<Slot>> {
    let directory = directory()?;
    let given = GivenIds::of_this_machine();
    for offset in 0..SLOTS {
        let number = (hint + offset) % SLOTS;
        if given.has_any(first_id(number), pando_kernel::namespace::id_map::IDS) {
            continue;
        }
        // A guest that an earlier release started holds a name. A user who takes many of them keeps no daemon from a
        // slot.
        if offset < PASSED_OVER && is_held_by_name(&directory, number) {
            continue;
        }
        if let Some(lock) = take(&directory, number)? {
            return Ok(Some(Slot { number, lock }));
        }
    }
    Ok(None)
}

/// Holds a slot of a number for as long as the value lives; `None` where another process does.
pub fn hold(number: u32) -> Option<OwnedFd> {
    take(&directory().ok()?, number).ok().flatten()
}

/// Whether a process holds the slot.
pub fn is_held(number: u32) -> bool {
    let Ok(directory) = directory() else { return true };
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&directory, name(number), flags, Mode::empty()) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(Errno::NOENT) => is_held_by_name(&directory, number),
        Err(_) => true,
    }
}

/// Whether a slot that no guest of this release has had since the machine was switched on may be held as earlier ones
/// did, by a socket's name. Anybody may have taken that.
fn is_held_by_name(directory: &OwnedFd, number: u32) -> bool {
    let is_new = rustix::fs::statat(directory, name(number), AtFlags::empty()).is_err();
    is_new && !matches!(lock::claim(&format!("pando/slot/{number}")), Ok(Some(_)))
}

/// Takes the lock of a slot; `None` where another process holds it.
fn take(directory: &OwnedFd, number: u32) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name(number), flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn name(number: u32) -> String {
    number.to_string()
}

/// The directory of the locks, which nobody else can read or write.
fn directory() -> io::Result<OwnedFd> {
    let above = TrustedDirectory::open(Path::new(ABOVE))?;
    match rustix::fs::mkdirat(&above, DIRECTORY, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(above.private(DIRECTORY.as_ref())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_touch_and_stay_inside() {
        assert_eq!(first_id(1) - first_id(0), 65_536);
        assert!(first_id(SLOTS - 1) + 65_535 <= 0x6fff_ffff);
    }

    #[test]
    fn a_slot_has_one_holder() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: the locks of slots are root's");
            return;
        }
        let a = claim(20_000).unwrap().unwrap();
        let b = claim(a.number).unwrap().unwrap();
        assert_ne!(a.number, b.number);
        let number = a.number;
        assert!(is_held(number));
        drop(a);
        assert!(!is_held(number));
    }

    #[test]
    fn names_that_anybody_can_take_keep_nobody_from_a_slot() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: the locks of slots are root's");
            return;
        }
        let numbers = SLOTS - 200..SLOTS;
        let _taken: Vec<_> =
            numbers.clone().map(|number| lock::claim(&format!("pando/slot/{number}")).unwrap()).collect();
        assert!(claim(numbers.start).unwrap().is_some_and(|slot| numbers.contains(&slot.number)));
    }
}
