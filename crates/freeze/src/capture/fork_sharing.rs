//! Memory that processes share since a fork. A server that loads much and then forks its workers has it once, until
//! somebody writes to it; so an image keeps it once, its holder has it once, and in a clone it is shared until it is
//! written to, as it was.
//!
//! The kernel tells which page frame a process has at an address (`pando_kernel::memory::pagemap`). Where several
//! processes have the same one at the same address, in areas that are alike, an area of each is cut out that they
//! share. That the frames' numbers are equal is a hint: pages are moved now and then, between one look and the next.
//! What was found is compared.

use crate::image::memory::{self, PAGE};
use crate::image::{Area, AreaKind, Process};
use pando_kernel::memory::pagemap::Pagemap;
use pando_kernel::{CallError, Context};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Less than so many bytes at a stretch are kept once a process. Each stretch is a mapping of its own in a clone, for
/// which the kernel takes about half a KiB.
const WORTH: u64 = 16 * PAGE;

/// So many stretches at most are shared, the longest ones.
const MOST: usize = 4096;

/// Who has more areas than this is left alone: the kernel lets a process have 65,530.
const MOST_AREAS: usize = 32_768;

/// So many bytes of addresses are looked through at a time.
const WINDOW: u64 = 32 << 20;

/// What the kernel tells of the pages of a process: the identities of those in a range.
type Look<'a> = dyn FnMut(usize, Range<u64>) -> io::Result<Vec<Option<u64>>> + 'a;

/// Cuts what several processes share out of their areas, whose pages are known. `sources` are who has the memory of
/// each of them; they stand still.
pub(crate) fn find(sources: &[i32], processes: &mut [Process]) -> Result<(), CallError> {
    let what = || "finding out which memory processes share".to_owned();
    let mut pagemaps: HashMap<usize, Pagemap> = HashMap::new();
    let mut look = |process: usize, range: Range<u64>| {
        let pagemap = match pagemaps.entry(process) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(Pagemap::of(sources[process])?),
        };
        pagemap.identities(range.start, range.end)
    };
    let mut runs = runs(processes, &mut look).context(what)?;
    drop(pagemaps);
    let mut memories = Memories { sources, open: HashMap::new() };
    runs.retain(|run| memories.are_equal(run).unwrap_or(false));
    cut(processes, &runs);
    Ok(())
}

/// A stretch of pages that several processes share, and its area in each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    /// Process and area.
    members: Vec<(usize, usize)>,
}

/// What has to be the same of areas that share memory. Where a file is mapped, the first word is the offset that
/// address 0 would have.
type Traits = (u64, AreaKind, u32, Vec<u32>, (bool, bool));

pub(crate) fn traits(area: &Area) -> Traits {
    let mut kind = area.kind.clone();
    let offset = match &mut kind {
        AreaKind::Private { offset, .. } | AreaKind::Nameless { offset, .. } => std::mem::take(offset),
        _ => area.start,
    };
    let kept = area.advice.iter().copied().filter(|advice| memory::is_kept(*advice)).collect();
    (offset.wrapping_sub(area.start), kind, area.protection, kept, (area.unreserved, area.accounted))
}

/// Own pages of an area of a process, all within a window.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    process: usize,
    area: usize,
    /// A number for the area's traits.
    traits: usize,
}

/// A page that others may have too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Page {
    at: u64,
    /// None come first.
    identity: Option<u64>,
    traits: usize,
    process: usize,
    area: usize,
}

fn runs(processes: &[Process], look: &mut Look<'_>) -> io::Result<Vec<Run>> {
    let mut pieces = pieces(processes);
    pieces.sort_unstable_by_key(|piece| (piece.start / WINDOW, piece.process, piece.start));
    let mut found = Found { runs: Vec::new(), current: vec![None; processes.len()] };
    for window in pieces.chunk_by(|one, other| one.start / WINDOW == other.start / WINDOW) {
        let mut pages = Vec::new();
        for piece in window {
            let identities = look(piece.process, piece.start..piece.end)?;
            let Piece { process, area, traits, .. } = *piece;
            let at = (piece.start..).step_by(PAGE as usize);
            pages.extend(at.zip(identities).map(|(at, identity)| Page { at, identity, traits, process, area }));
        }
        pages.sort_unstable();
        let same = |one: &Page, other: &Page| {
            one.identity.is_some() && (one.at, one.identity, one.traits) == (other.at, other.identity, other.traits)
        };
        pages.chunk_by(same).for_each(|sharers| found.note(sharers));
    }
    let mut runs = found.runs;
    runs.retain(|run| run.end - run.start >= WORTH);
    runs.sort_by_key(|run| (std::cmp::Reverse(run.end - run.start), run.start));
    runs.truncate(MOST);
    Ok(runs)
}

/// Stretches, as they grow.
struct Found {
    runs: Vec<Run>,
    /// The one that each process's last page is of.
    current: Vec<Option<usize>>,
}

impl Found {
    /// Notes who shares a page; pages come by ascending address.
    fn note(&mut self, sharers: &[Page]) {
        let Some(first) = sharers.first() else { return };
        if let Some(run) = self.current[first.process].map(|number| &mut self.runs[number])
            && run.end == first.at
            && run.members.iter().copied().eq(sharers.iter().map(|page| (page.process, page.area)))
        {
            run.end += PAGE;
            return;
        }
        for page in sharers {
            if let Some(before) = self.current[page.process].take() {
                self.runs[before].members.iter().for_each(|(process, _)| self.current[*process] = None);
            }
        }
        if sharers.len() > 1 {
            sharers.iter().for_each(|page| self.current[page.process] = Some(self.runs.len()));
            let members = sharers.iter().map(|page| (page.process, page.area)).collect();
            self.runs.push(Run { start: first.at, end: first.at + PAGE, members });
        }
    }
}

/// The own pages that more than one process has something at the addresses of.
fn pieces(processes: &[Process]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    let mut numbers: HashMap<Traits, usize> = HashMap::new();
    for (number, process) in processes.iter().enumerate().filter(|(_, process)| process.areas.len() <= MOST_AREAS) {
        for (area, of) in process.areas.iter().enumerate().filter(|(_, area)| area.kind.is_own() && !area.grows) {
            if of.pages.is_empty() {
                continue;
            }
            let next = numbers.len();
            let traits = *numbers.entry(traits(of)).or_insert(next);
            let piece = |(start, length): &(u64, u64)| Piece {
                start: *start,
                end: start + length,
                process: number,
                area,
                traits,
            };
            all.extend(of.pages.iter().map(piece));
        }
    }
    let contested = contested(&all);
    let mut pieces = Vec::new();
    for piece in all {
        let first = contested.partition_point(|range| range.end <= piece.start);
        for range in contested[first..].iter().take_while(|range| range.start < piece.end) {
            let (mut start, end) = (range.start.max(piece.start), range.end.min(piece.end));
            while start < end {
                let next = ((start / WINDOW + 1) * WINDOW).min(end);
                pieces.push(Piece { start, end: next, ..piece });
                start = next;
            }
        }
    }
    pieces
}

/// Where the pieces of more than one process lie.
fn contested(pieces: &[Piece]) -> Vec<Range<u64>> {
    let mut edges: Vec<(u64, i32)> = pieces.iter().flat_map(|piece| [(piece.start, 1), (piece.end, -1)]).collect();
    edges.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut depth = 0;
    for (at, change) in edges {
        match (depth, depth + change) {
            (1, 2) => ranges.push(at..at),
            (2, 1) => ranges.iter_mut().last().into_iter().for_each(|range| range.end = at),
            _ => {}
        }
        depth += change;
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// The memory of those that stand still.
struct Memories<'a> {
    sources: &'a [i32],
    open: HashMap<usize, File>,
}

impl Memories<'_> {
    /// Whether all who share a stretch have the same in it.
    fn are_equal(&mut self, run: &Run) -> io::Result<bool> {
        const PORTION: u64 = 1 << 20;
        let Some(((first, _), others)) = run.members.split_first() else { return Ok(false) };
        let mut at = run.start;
        while at < run.end {
            let length = PORTION.min(run.end - at);
            let here = self.read(*first, at, length)?;
            for (other, _) in others {
                if self.read(*other, at, length)? != here {
                    return Ok(false);
                }
            }
            at += length;
        }
        Ok(true)
    }

    fn read(&mut self, process: usize, at: u64, length: u64) -> io::Result<Vec<u8>> {
        if !self.open.contains_key(&process) {
            self.open.insert(process, File::open(format!("/proc/{}/mem", self.sources[process]))?);
        }
        let mut bytes = vec![0; length as usize];
        self.open[&process].read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

/// Makes areas of their own of the stretches.
fn cut(processes: &mut [Process], runs: &[Run]) {
    let mut numbers: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut cuts: HashMap<(usize, usize), Vec<Cut>> = HashMap::new();
    for run in runs {
        let next = numbers.len();
        let sharers = run.members.iter().map(|(process, _)| *process).collect();
        let number = *numbers.entry(sharers).or_insert(next);
        for member in &run.members {
            cuts.entry(*member).or_default().push((run.start, run.end, number));
        }
    }
    for (number, process) in processes.iter_mut().enumerate() {
        let mut areas = Vec::with_capacity(process.areas.len());
        for (place, area) in std::mem::take(&mut process.areas).into_iter().enumerate() {
            match cuts.remove(&(number, place)) {
                Some(of_it) => divide(&area, of_it, &mut areas),
                None => areas.push(area),
            }
        }
        process.areas = areas;
    }
}

/// Where a part of an area begins and ends that is shared, and the number of who shares it.
type Cut = (u64, u64, usize);

fn divide(area: &Area, mut cuts: Vec<Cut>, areas: &mut Vec<Area>) {
    cuts.sort_unstable();
    let mut at = area.start;
    for (start, end, number) in cuts {
        if at < start {
            areas.push(part(area, at..start));
        }
        areas.push(Area { fork_shared: Some(number), ..part(area, start..end) });
        at = end;
    }
    if at < area.end {
        areas.push(part(area, at..area.end));
    }
}

/// A part of an area.
fn part(area: &Area, range: Range<u64>) -> Area {
    let mut kind = area.kind.clone();
    if let AreaKind::Private { offset, .. } | AreaKind::Nameless { offset, .. } = &mut kind {
        *offset += range.start - area.start;
    }
    let within = |runs: &[(u64, u64)]| {
        let clip = |(at, length): &(u64, u64)| {
            let (start, end) = ((*at).max(range.start), (at + length).min(range.end));
            (start < end).then(|| (start, end - start))
        };
        runs.iter().filter_map(clip).collect()
    };
    let (pages, guards) = (within(&area.pages), within(&area.guards));
    Area { start: range.start, end: range.end, kind, pages, guards, advice: area.advice.clone(), ..*area }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::check::check_sharing;

    const START: u64 = 0x7000_0000_0000;

    fn at(page: u64) -> u64 {
        START + page * PAGE
    }

    fn process(protection: u32) -> Process {
        let mut area = Area::new(at(0), at(100), protection, AreaKind::Anonymous);
        area.pages = vec![(at(0), 90 * PAGE)];
        area.guards = vec![(at(95), PAGE)];
        Process { areas: vec![area], ..Process::default() }
    }

    /// Frames by process and page: what all have but for where one has written.
    fn frame(process: usize, page: u64) -> Option<u64> {
        match (process, page) {
            (1, 30) => None,
            (2, 60..80) => Some(7000 + page),
            (3, _) => Some(9000 + page),
            _ => Some(1000 + page),
        }
    }

    fn find_in(processes: &mut [Process]) -> Vec<Run> {
        let mut look = |process: usize, range: Range<u64>| {
            Ok((range.start..range.end).step_by(PAGE as usize).map(|at| frame(process, (at - START) / PAGE)).collect())
        };
        let runs = runs(processes, &mut look).unwrap();
        cut(processes, &runs);
        runs
    }

    #[test]
    fn what_is_shared_is_cut_out_and_nothing_else_changes() {
        let mut processes = vec![process(3), process(3), process(3), process(3)];
        find_in(&mut processes);
        let parts = |number: usize| {
            let part =
                |area: &Area| ((area.start - START) / PAGE, (area.end - START) / PAGE, area.fork_shared.is_some());
            processes[number].areas.iter().map(part).collect::<Vec<_>>()
        };
        // Page 30 is of no others' than the first and the third, and too little to be worth an area.
        assert_eq!(parts(1), [(0, 30, true), (30, 31, false), (31, 60, true), (60, 80, true), (80, 100, false)]);
        assert_eq!(parts(2), [(0, 30, true), (30, 31, false), (31, 60, true), (60, 100, false)]);
        assert_eq!(parts(3), [(0, 100, false)]);
        let number = |process: usize, area: usize| processes[process].areas[area].fork_shared;
        assert_eq!((number(0, 0), number(1, 0)), (number(2, 0), number(0, 2)));
        assert_ne!(number(0, 0), number(0, 3), "other processes share that");
        for process in &processes {
            let pages: u64 = process.areas.iter().flat_map(|area| &area.pages).map(|(_, length)| length).sum();
            assert_eq!((pages, process.areas.last().unwrap().guards.len()), (90 * PAGE, 1));
        }
        assert_eq!(check_sharing(&processes), Ok(()));
    }

    #[test]
    fn areas_that_differ_share_nothing() {
        let mut processes = vec![process(3), process(1)];
        assert_eq!(find_in(&mut processes), []);
        assert_eq!(processes, [process(3), process(1)]);
    }

    #[test]
    fn parts_of_a_file_lie_where_they_did_in_it() {
        let file = |start: u64, offset| Area {
            pages: vec![(at(0), 20 * PAGE)],
            ..Area::new(start, at(20), 3, AreaKind::Private { path: "/lib".into(), offset })
        };
        let other = file(at(0), 0x9000);
        assert_ne!(traits(&other), traits(&file(at(0), 0)));
        let longer = Area { start: at(0) - PAGE, ..file(at(0), 0x8000) };
        assert_eq!(traits(&longer), traits(&other));
        let AreaKind::Private { offset, .. } = part(&other, at(3)..at(5)).kind else { panic!("it is a file") };
        assert_eq!(offset, 0xc000);
    }

    #[test]
    fn an_image_that_shares_what_is_not_alike_is_refused() {
        let shared = || {
            let mut processes = vec![process(3), process(3)];
            find_in(&mut processes);
            processes
        };
        let wrongs: [fn(&mut Area); 4] = [
            |area| area.protection = 1,
            |area| area.pages.clear(),
            |area| area.end += PAGE,
            |area| area.fork_shared = Some(9),
        ];
        assert_eq!(check_sharing(&shared()), Ok(()));
        for (number, wrong) in wrongs.into_iter().enumerate() {
            let mut processes = shared();
            wrong(&mut processes[1].areas[2]);
            assert!(check_sharing(&processes).is_err(), "number {number}");
        }
    }
}
