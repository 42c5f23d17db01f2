//! Which pages of a clone are its own by now, and what a sample of them holds: compared with the image's page at the
//! same address, which is what most of them were, and often are again.
//!
//! Only what is the clone's alone is looked at. It is read through /proc/PID/mem: process_vm_readv(2) would part what a
//! fork shares. Which pages are in the sample their addresses decide, so that it is the same ones in each clone and at
//! each look.

use crate::clone::frozen::Frozen;
use crate::image::Area;
use crate::inspect::proc_file::{self, Lines};
use crate::inspect::{areas, process_tree};
use crate::restore::staging::{self, Stage};
use pando_kernel::memory::pagemap::Pagemap;
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;

/// A mapping with fewer pages of its own is not looked at.
const FEWEST: u64 = 16;

/// A page that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledPage {
    /// Its address in the clone.
    pub address: u64,
    /// What its content comes to by the looker's own hash.
    pub content: u64,
    /// Whether it has nothing but zeros.
    pub is_zero: bool,
    /// Whether the image has the same at this address.
    pub is_like_image: bool,
}

/// A mapping of a clone's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledArea {
    /// The first address of the mapping.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// How many of its pages nobody else has.
    pub own: u64,
    /// Those of them that were looked at.
    pub pages: Vec<SampledPage>,
}

/// How much is looked at.
pub struct Sampling<'a> {
    /// How many pages of a mapping at most.
    pub of_area: u64,
    /// How many of a process at most.
    pub of_process: usize,
    /// What tells contents apart. It should have a secret: guests choose what it is asked of.
    pub hash: &'a dyn Fn(&[u8]) -> u64,
}

/// The memory of an image, to compare clones with.
#[derive(Debug)]
pub struct HeldPages<'a> {
    frozen: &'a Frozen,
    stages: Vec<Stage>,
    memory: File,
}

impl<'a> HeldPages<'a> {
    /// That of an image which is held.
    pub fn of(frozen: &'a Frozen) -> Result<Self, CallError> {
        let memory = File::from(frozen.holder.memory()?);
        Ok(Self { frozen, stages: staging::arrange(&frozen.image), memory })
    }

    /// What a process of a clone has of its own, by its pid here. Nothing where its pid inside is that of no process of
    /// the image.
    pub fn sample(&self, pid: i32, sampling: &Sampling<'_>) -> Result<Vec<SampledArea>, CallError> {
        let what = || format!("looking at the pages of process {pid}");
        let Some(number) = self.process(pid)? else { return Ok(Vec::new()) };
        let mut pagemap = Pagemap::of(pid).context(what)?;
        let memory = File::open(format!("/proc/{pid}/mem")).context(what)?;
        let (mut found, mut left) = (Vec::new(), sampling.of_process);
        for area in own_areas(pid)? {
            let own = pagemap.unshared(area.start, area.end).context(what)?;
            if (own.len() as u64) < FEWEST {
                continue;
            }
            let chosen = own.iter().copied().filter(|address| is_chosen(*address, own.len() as u64, sampling.of_area));
            let pages: Vec<_> = chosen.take(left).filter_map(|at| self.look(number, &memory, at, sampling)).collect();
            left -= pages.len();
            found.push(SampledArea { start: area.start, end: area.end, own: own.len() as u64, pages });
            if left == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// Which process of the image one of a clone is.
    fn process(&self, pid: i32) -> Result<Option<usize>, CallError> {
        let inner = process_tree::inner(&Lines::read(pid, "status")?);
        Ok(self.frozen.image.processes.iter().position(|process| Some(process.pid) == inner))
    }

    /// Looks at a page; none where it has gone meanwhile.
    fn look(&self, process: usize, memory: &File, address: u64, sampling: &Sampling<'_>) -> Option<SampledPage> {
        let (mut own, mut held) = ([0; PAGE as usize], [0; PAGE as usize]);
        memory.read_exact_at(&mut own, address).ok()?;
        let is_zero = own.iter().all(|byte| *byte == 0);
        let is_like_image = !is_zero
            && self.place(process, address).is_some_and(|place| self.memory.read_exact_at(&mut held, place).is_ok())
            && own == held;
        Some(SampledPage { address, content: (sampling.hash)(&own), is_zero, is_like_image })
    }

    /// Where the image's page of an address lies in the holder.
    fn place(&self, process: usize, address: u64) -> Option<u64> {
        let areas = &self.frozen.image.processes.get(process)?.areas;
        let area = areas.iter().find(|area| (area.start..area.end).contains(&address))?;
        let has_it = area.pages.iter().any(|(start, length)| (*start..start + length).contains(&address));
        let place = self.stages.get(process)?.place(area)?;
        has_it.then_some(place + (address - area.start))
    }

    /// Offers what the image has in a range of a process's addresses to be merged with what others offer. Clones that
    /// are made later have it offered from the first.
    pub fn offer(&self, pid: i32, (start, end): (u64, u64)) -> Result<(), CallError> {
        let Some(number) = self.process(pid)? else { return Ok(()) };
        let overlaps = |area: &&Area| area.start < end && start < area.end;
        let areas = self.frozen.image.processes[number].areas.iter();
        areas.filter(overlaps).try_for_each(|area| self.set_offered(number, area, true))
    }

    /// Takes back all that was offered of the image: it has pages of its own again.
    pub fn take_back(&self) -> Result<(), CallError> {
        let processes = self.frozen.image.processes.iter().enumerate();
        let mut areas = processes.flat_map(|(number, process)| process.areas.iter().map(move |area| (number, area)));
        areas.try_for_each(|(number, area)| self.set_offered(number, area, false))
    }

    fn set_offered(&self, process: usize, area: &Area, is_offered: bool) -> Result<(), CallError> {
        let Some(place) = self.stages[process].place(area) else { return Ok(()) };
        // What the program has asked for stays as it is.
        if area.advice.contains(&(libc::MADV_MERGEABLE as u32)) {
            return Ok(());
        }
        let offered = self.frozen.holder.offer(place, area.end - area.start, !is_offered);
        offered.context(|| format!("offering the image's memory at {:#x} to be merged", area.start))
    }
}

/// The mappings of a process whose pages can be its own, and are written to.
pub(crate) fn own_areas(pid: i32) -> Result<Vec<Area>, CallError> {
    let writable = |area: &Area| area.kind.is_own() && area.protection & libc::PROT_WRITE as u32 != 0;
    let seen = areas::parse(&proc_file::text(pid, "maps")?)?;
    Ok(seen.into_iter().filter(|seen| seen.objection.is_none()).map(|seen| seen.area).filter(writable).collect())
}

/// Whether a page is among the about `wanted` of `count` that are looked at. A larger sample has all of a smaller one.
fn is_chosen(address: u64, count: u64, wanted: u64) -> bool {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    // The upper half of the product is mixed best.
    let mixed = (address / PAGE).wrapping_mul(GOLDEN) >> 32;
    mixed * count < (wanted << 32)
}

/// A page that is read of a process which has gone is no failure of who looks.
pub fn has_gone(error: &CallError) -> bool {
    matches!(error.source.kind(), io::ErrorKind::NotFound) || error.source.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_about_as_large_as_is_wanted_and_the_same_in_each_clone() {
        let addresses = || (0..50_000_u64).map(|page| 0x7f00_0000_0000 + page * PAGE);
        let chosen = |wanted| addresses().filter(|at| is_chosen(*at, 50_000, wanted)).collect::<Vec<_>>();
        let (few, many) = (chosen(64), chosen(640));
        assert!((32..128).contains(&few.len()) && (500..800).contains(&many.len()), "{} {}", few.len(), many.len());
        assert!(few.iter().all(|at| many.contains(at)));
        assert_eq!(addresses().take(20).filter(|at| is_chosen(*at, 20, 64)).count(), 20, "all of few pages");
    }

    #[test]
    fn own_mappings_are_private_and_written_to() {
        let areas = own_areas(std::process::id() as i32).unwrap();
        assert!(areas.iter().any(|area| area.kind == crate::image::AreaKind::Anonymous), "{areas:?}");
        assert!(areas.iter().all(|area| area.protection & 2 != 0 && area.kind.is_own()));
    }
}
