//! Which descriptors lead to the same open file: what dup(2), fork(2) and SCM_RIGHTS make of one, with one position and
//! one set of flags.
//!
//! Two descriptors are compared by kcmp(2), which tells besides which of two open files comes first in an order of the
//! kernel's. So those of an inode are kept in that order and a descriptor is looked for by halves: very many open files
//! may be of one inode, as all eventfds are. What a fork has, its parent has by the same number: that is tried first.

use pando_kernel::trace::foreign_memory::{self, Shared};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;

/// Where an open file was found: a process, its descriptor, and the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) outer: i32,
    pub(crate) number: i32,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Open files, each noted once.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    noted: Vec<Place>,
    /// Those of an inode, in the kernel's order.
    sorted: HashMap<(u64, u64), Vec<usize>>,
    /// What a number led to when it was last seen, of each inode.
    latest: HashMap<(u64, u64, i32), usize>,
}

/// What a descriptor leads to: a place in the order in which open files were noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    Before(usize),
    Now(usize),
}

impl OpenFiles {
    /// Where each was found.
    pub(crate) fn places(&self) -> &[Place] {
        &self.noted
    }

    /// Finds what a descriptor leads to, and notes it where it was not seen before. Its process must stand still, or be
    /// this one.
    pub(crate) fn find_or_note(&mut self, place: Place) -> io::Result<Noted> {
        self.find_or_note_by(place, |one, other| {
            foreign_memory::compare(Shared::File, (one.outer, one.number), (other.outer, other.number))
        })
    }

    fn find_or_note_by(
        &mut self,
        place: Place,
        mut compare: impl FnMut(&Place, &Place) -> io::Result<Ordering>,
    ) -> io::Result<Noted> {
        let Place { device, inode, number, .. } = place;
        if let Some(&guess) = self.latest.get(&(device, inode, number))
            && compare(&self.noted[guess], &place)? == Ordering::Equal
        {
            return Ok(Noted::Before(guess));
        }
        let sorted = self.sorted.entry((device, inode)).or_default();
        let mut failed = None;
        let found = sorted.binary_search_by(|known| {
            compare(&self.noted[*known], &place).unwrap_or_else(|error| {
                failed = Some(error);
                Ordering::Equal
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let noted = match found {
            Ok(at) => Noted::Before(sorted[at]),
            Err(at) => {
                sorted.insert(at, self.noted.len());
                self.noted.push(place);
                Noted::Now(self.noted.len() - 1)
            }
        };
        let (Noted::Before(which) | Noted::Now(which)) = noted;
        self.latest.insert((device, inode, number), which);
        Ok(noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn place(outer: i32, number: i32) -> Place {
        Place { outer, number, device: 1, inode: 2 }
    }

    #[test]
    fn duplicates_are_one_and_others_are_not() {
        let own = std::process::id() as i32;
        let open: Vec<OwnedFd> = (0..50).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let copies: Vec<OwnedFd> = open.iter().rev().map(|one| one.try_clone().unwrap()).collect();
        let mut files = OpenFiles::default();
        for (number, one) in open.iter().enumerate() {
            assert_eq!(files.find_or_note(place(own, one.as_raw_fd())).unwrap(), Noted::Now(number));
        }
        for (number, copy) in copies.iter().rev().enumerate() {
            assert_eq!(files.find_or_note(place(own, copy.as_raw_fd())).unwrap(), Noted::Before(number));
        }
        assert_eq!(files.places().len(), open.len());
        let elsewhere = Place { inode: 3, ..place(own, copies[0].as_raw_fd()) };
        assert_eq!(files.find_or_note(elsewhere).unwrap(), Noted::Now(open.len()), "it is another inode");
    }

    /// Processes that were forked with many descriptors, each of which opens one of its own besides.
    #[test]
    fn looks_are_few() {
        const PROCESSES: i32 = 100;
        const SHARED: i32 = 100;
        // What a descriptor leads to, in an order that is not that of the numbers.
        let of = |one: &Place| {
            let file = if one.number < SHARED { one.number } else { one.number + one.outer };
            (i64::from(file) * 7_919) % 10_007
        };
        let (mut files, mut looks) = (OpenFiles::default(), 0);
        for outer in 0..PROCESSES {
            for number in 0..=SHARED {
                let compared = |one: &Place, other: &Place| {
                    looks += 1;
                    Ok(of(one).cmp(&of(other)))
                };
                files.find_or_note_by(place(outer, number), compared).unwrap();
            }
        }
        assert_eq!(files.places().len(), (SHARED + PROCESSES) as usize);
        assert!(looks < 2 * (SHARED + 1) * PROCESSES, "{looks} looks at {} descriptors", (SHARED + 1) * PROCESSES);
    }

    #[test]
    fn a_failure_is_told() {
        let mut files = OpenFiles::default();
        assert_eq!(files.find_or_note(place(-7, 0)).unwrap(), Noted::Now(0), "there is nothing to compare it with");
        assert!(files.find_or_note(place(-7, 1)).is_err());
        assert_eq!(files.places().len(), 1);
    }
}
