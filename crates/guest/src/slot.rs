//! Slots: the numbers that a machine's running guests are told apart by.
//!
//! A slot is a range of 65,536 ids, a cgroup and a seed's socket. It is held by holding a socket's name, so that it comes free with the last
//! process that does, whatever happens; and because the name belongs to the machine, daemons with different roots never share a range.

use std::io;
use std::os::fd::OwnedFd;

/// The range that systemd sets aside for container managers (UIDs, Gids and Containers, systemd.io): 524,288 to 1,879,048,191.
const FIRST_ID: u32 = 0x0008_0000;

/// How many ranges of 65,536 it holds.
pub const SLOTS: u32 = (0x6fff_ffff - FIRST_ID) / pando_kernel::id_map::IDS;

/// A slot that is held.
#[derive(Debug)]
pub struct Slot {
    /// Its number.
    pub number: u32,
    /// What holds it.
    pub lock: OwnedFd,
}

/// The first host id of a slot's range.
pub fn first_id(number: u32) -> u32 {
    FIRST_ID + number * pando_kernel::id_map::IDS
}

/// Takes the first free slot from `hint` on, around to it again; `None` where all are held.
pub fn claim(hint: u32) -> io::Result<Option<Slot>> {
    for offset in 0..SLOTS {
        let number = (hint + offset) % SLOTS;
        if let Some(lock) = pando_kernel::lock::claim(&lock_name(number))? {
            return Ok(Some(Slot { number, lock }));
        }
    }
    Ok(None)
}

/// Holds a slot of a number for as long as the value lives; `None` where somebody else does.
pub fn hold(number: u32) -> Option<OwnedFd> {
    pando_kernel::lock::claim(&lock_name(number)).ok().flatten()
}

/// Whether somebody holds the slot.
pub fn is_held(number: u32) -> bool {
    !matches!(pando_kernel::lock::claim(&lock_name(number)), Ok(Some(_)))
}

fn lock_name(number: u32) -> String {
    format!("pando/slot/{number}")
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
        let a = claim(20_000).unwrap().unwrap();
        let b = claim(a.number).unwrap().unwrap();
        assert_ne!(a.number, b.number);
        let number = a.number;
        assert!(is_held(number));
        drop(a);
        assert!(!is_held(number));
    }
}
