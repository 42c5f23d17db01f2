//! Where each process's memory lies in the holder, and how it gets there.
//!
//! All processes' memory lies side by side in the holder's one address space. A clone's process is a fork of it whose
//! ranges are then moved (mremap(2)) to where they belong. Moving is cheap when whole page tables change hands: a range
//! lies at the same offset within a GiB as in its process, and areas that are near one another lie so in the holder,
//! and move in one call.
//!
//! What processes share since a fork lies there once. Each process of a clone that has it takes it along as it is
//! forked, and moves its own copy of the mapping, whose pages are the holder's until somebody writes to them.

use crate::image::memory::is_kept;
use crate::image::{Area, AreaKind, Image, Process};
use crate::origin::{Extent, Origin};
use crate::restore::script::{AT_FDCWD, SLOT, Writer};
use crate::restore::slots::Slots;
use pando_restorer::MEMORY;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

/// Where staged memory begins and must end: above what engines that choose addresses at random use, below where
/// executables lie.
pub(crate) const STAGING: Range<u64> = 0x4100_0000_0000..0x5400_0000_0000;

const GIB: u64 = 1 << 30;
const HUGE: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// Areas further apart than this are moved on their own.
const NEAR: u64 = GIB / 4;

/// One call copies so many bytes at most.
const MOST_BYTES: u64 = GIB;

/// A range of the holder's memory and where it belongs in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) length: u64,
    /// The same, area by area: start in the holder, length.
    pub(crate) pieces: Vec<(u64, u64)>,
}

/// A process's memory in the holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stage {
    /// All of it, with holes: its own, and what it shares with others since a fork. Each range is all of what the same
    /// processes have.
    pub(crate) spans: Vec<Range<u64>>,
    /// How it gets to its place.
    pub(crate) moves: Vec<Move>,
    /// Where each area lies that the holder keeps, by its first address.
    places: HashMap<u64, u64>,
}

impl Stage {
    /// Where an area lies in the holder, if that keeps it.
    pub(crate) fn place(&self, area: &Area) -> Option<u64> {
        self.places.get(&area.start).copied()
    }
}

/// Finds a place for each process's memory. What several share since a fork has one place.
pub(crate) fn arrange(image: &Image) -> Vec<Stage> {
    let mut cursor = STAGING.start;
    let mut shared = HashMap::new();
    image.processes.iter().map(|process| arrange_one(&process.areas, &mut shared, &mut cursor)).collect()
}

/// Whether the memory of some processes, area by area, has room side by side. A program may reserve addresses for
/// terabytes that it never uses, as sanitizers do.
pub(crate) fn has_room<'a>(memories: impl Iterator<Item = &'a [Area]>) -> bool {
    let (mut cursor, mut shared) = (STAGING.start, HashMap::new());
    memories.into_iter().for_each(|areas| drop(arrange_one(areas, &mut shared, &mut cursor)));
    cursor < STAGING.end
}

/// Whether the holder keeps an area.
fn is_staged(area: &&Area) -> bool {
    area.kind.is_own()
}

/// A range of the holder's memory that belongs to the same processes, and where each area lies in it, by its first
/// address.
struct Place {
    span: Range<u64>,
    areas: HashMap<u64, u64>,
}

fn arrange_one(areas: &[Area], shared: &mut HashMap<usize, Place>, cursor: &mut u64) -> Stage {
    let mut numbers: Vec<Option<usize>> = areas.iter().filter(is_staged).map(|area| area.fork_shared).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut stage = Stage::default();
    for number in numbers {
        let of_these = areas.iter().filter(is_staged).filter(|area| area.fork_shared == number);
        let own;
        let place = match number {
            Some(number) => shared.entry(number).or_insert_with(|| lay_out(of_these, cursor)),
            None => {
                own = lay_out(of_these, cursor);
                &own
            }
        };
        stage.spans.push(place.span.clone());
        stage.places.extend(&place.areas);
    }
    stage.moves = moves(areas, &stage.places);
    stage
}

fn lay_out<'a>(areas: impl Iterator<Item = &'a Area>, cursor: &mut u64) -> Place {
    let start = *cursor;
    let mut places = HashMap::new();
    let mut last: Option<u64> = None;
    for area in areas {
        let near = last.map(|end| area.start - end).filter(|gap| *gap < NEAR);
        let at = near.map_or_else(|| cursor.next_multiple_of(GIB) + area.start % GIB, |gap| *cursor + gap);
        places.insert(area.start, at);
        (*cursor, last) = (at + (area.end - area.start), Some(area.end));
    }
    *cursor = cursor.next_multiple_of(GIB);
    Place { span: start..*cursor, areas: places }
}

/// What moves in one call: areas that are near one another in both places, and between which there is nothing that
/// comes from elsewhere.
fn moves(areas: &[Area], places: &HashMap<u64, u64>) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    let mut last = None;
    for area in areas.iter().filter(is_staged) {
        let Some(at) = places.get(&area.start).copied() else { continue };
        let is_further = |one: &Move| {
            let near = area.start - (one.to + one.length) < NEAR;
            near && last == Some(area.fork_shared) && at.checked_sub(one.from) == Some(area.start - one.to)
        };
        if !moves.last().is_some_and(is_further) {
            moves.push(Move { from: at, to: area.start, length: 0, pieces: Vec::new() });
        }
        if let Some(one) = moves.last_mut() {
            one.pieces.push((at, area.end - area.start));
            one.length = area.end - one.to;
        }
        last = Some(area.fork_shared);
    }
    moves
}

/// The areas of a process that the holder keeps, and where each lies there.
fn places<'a>(process: &'a Process, stage: &'a Stage) -> impl Iterator<Item = (&'a Area, u64)> {
    process.areas.iter().filter(is_staged).filter_map(|area| Some((area, stage.place(area)?)))
}

/// Writes the holder's steps: each process's memory out of where it is now.
pub(crate) fn write(writer: &mut Writer, image: &Image, stages: &[Stage], slots: Slots, origin: &Origin) {
    let mut source = Source::of(origin);
    let mut filled = HashSet::new();
    for (number, (process, stage)) in image.processes.iter().zip(stages).enumerate() {
        if stage.moves.is_empty() {
            continue;
        }
        let path = writer.string(&origin.memory(number));
        let flag = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        writer.open(Writer::STAGING, "opening memory", libc::SYS_openat, &[AT_FDCWD, path, flag], MEMORY);
        if let Source::Chain(pieces) = &mut source {
            pieces.is_open = 0;
        }
        fill(writer, process, stage, |content| slots.held(content), (&mut source, &mut filled));
        writer.call(Writer::STAGING, "closing memory", libc::SYS_close, &[MEMORY]);
    }
}

/// Writes the steps that put a process's memory to its place in whoever takes them, out of what is open as [`MEMORY`];
/// but for what is filled already, which another process shares.
pub(crate) fn fill(
    writer: &mut Writer,
    process: &Process,
    stage: &Stage,
    nameless: impl Fn(usize) -> u64,
    (source, filled): (&mut Source<'_>, &mut HashSet<u64>),
) {
    for (area, at) in places(process, stage) {
        if !filled.insert(at) {
            continue;
        }
        map(writer, area, at, &nameless);
        if !matches!(source, Source::Holder) {
            collapse(writer, area, at);
        }
        copy(writer, area, at, source);
        settle(writer, area, at);
    }
    for span in stage.spans.iter().filter(|span| !span.is_empty()) {
        // A fork takes only what the maker allows it for that fork.
        advise(writer, Writer::STAGING, span, libc::MADV_DONTFORK);
    }
}

/// Where a page lies in what memory is copied from.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// Where it lay in its process.
    Process,
    /// In a file: one after the other, from here on.
    Row(u64),
    /// In several files, piece after piece.
    Chain(Pieces<'a>),
    /// Where it lies in the holder, which is where it goes.
    Holder,
}

/// What is left of the pieces that memory lies in.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    paths: &'a [String],
    left: VecDeque<Extent>,
    /// Which of the files is open as [`MEMORY`].
    is_open: u8,
}

impl<'a> Source<'a> {
    fn of(origin: &'a Origin) -> Self {
        match origin {
            Origin::Processes { .. } => Self::Process,
            Origin::File { start, .. } => Self::Row(*start),
            Origin::Chain { paths, extents, .. } => {
                Self::Chain(Pieces { paths, left: extents.iter().copied().collect(), is_open: 0 })
            }
        }
    }
}

impl Pieces<'_> {
    /// The next piece, of so many bytes at most. Its file is open from then on.
    fn next(&mut self, writer: &mut Writer, most: u64) -> Option<Extent> {
        let first = self.left.front_mut()?;
        let piece = Extent { length: first.length.min(most), ..*first };
        (first.at, first.length) = (first.at + piece.length, first.length - piece.length);
        if first.length == 0 {
            self.left.pop_front();
        }
        if piece.file != self.is_open {
            let path = writer.string(self.paths.get(usize::from(piece.file))?);
            let flag = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
            writer.open(Writer::STAGING, "opening memory", libc::SYS_openat, &[AT_FDCWD, path, flag], MEMORY);
            self.is_open = piece.file;
        }
        Some(piece)
    }
}

/// Advice for a range with holes: the kernel heeds it and then complains about the holes.
pub(crate) fn advise(writer: &mut Writer, chapter: crate::restore::script::Chapter, range: &Range<u64>, advice: i32) {
    let arguments = [range.start, range.end - range.start, advice as u64];
    writer.attempt(chapter, "choosing what a fork takes along", libc::SYS_madvise, &arguments);
}

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// The flag by which no memory is reserved for a mapping, where that was not.
pub(crate) fn reserving(area: &Area) -> i32 {
    if area.unreserved { libc::MAP_NORESERVE } else { 0 }
}

fn map(writer: &mut Writer, area: &Area, at: u64, nameless: impl Fn(usize) -> u64) {
    let length = area.end - area.start;
    let label = format!("staging memory of {:#x}", area.start);
    let mut flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | reserving(area);
    let protection = u64::from(area.protection) | if area.pages.is_empty() { 0 } else { READ_WRITE };
    if let AreaKind::Nameless { content, offset, .. } = area.kind {
        let arguments = [at, length, protection, flags as u64, nameless(content), offset];
        writer.exact(Writer::STAGING, label, libc::SYS_mmap, &arguments, at);
        return;
    }
    let AreaKind::Private { path, offset } = &area.kind else {
        flags |= libc::MAP_ANONYMOUS;
        if area.grows {
            flags |= libc::MAP_GROWSDOWN;
        }
        // What may be written to is reserved from then on. What never could was not, and may be larger than all memory.
        let protection =
            if area.accounted || area.unreserved || !area.pages.is_empty() { READ_WRITE } else { protection };
        let arguments = [at, length, protection, flags as u64, u64::MAX, 0];
        writer.exact(Writer::STAGING, label, libc::SYS_mmap, &arguments, at);
        return;
    };
    // Relative to the frozen root. A path from /proc has no links in it; one from a file may, and must not lead out.
    let relative = writer.string(path.trim_start_matches('/'));
    let how = writer.words(&[
        // What is a fifo by now must not make this wait.
        (libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC) as u64,
        0,
        libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS,
    ]);
    let arguments = [AT_FDCWD, relative, how, 24];
    writer.open(Writer::STAGING, format!("opening {path}"), libc::SYS_openat2, &arguments, SLOT);
    let label = format!("{label}, of {path}");
    writer.exact(Writer::STAGING, label, libc::SYS_mmap, &[at, length, protection, flags as u64, SLOT, *offset], at);
    writer.call(Writer::STAGING, "closing a mapped file", libc::SYS_close, &[SLOT]);
}

/// Puts huge pages under dense memory: forking copies one entry for each instead of 512.
fn collapse(writer: &mut Writer, area: &Area, at: u64) {
    const DENSE: u64 = 480 * PAGE;
    if area.kind != AreaKind::Anonymous || area.advice.contains(&(libc::MADV_NOHUGEPAGE as u32)) {
        return;
    }
    let mut start = area.start.next_multiple_of(HUGE);
    let mut run = 0;
    while start + HUGE <= area.end {
        let mut own = 0;
        while run < area.pages.len() && area.pages[run].0 + area.pages[run].1 <= start {
            run += 1;
        }
        for (address, length) in area.pages[run..].iter().take_while(|(address, _)| *address < start + HUGE) {
            own += (address + length).min(start + HUGE).saturating_sub((*address).max(start));
        }
        if own >= DENSE {
            let to = at + (start - area.start);
            // It needs a page to be there; getcpu(2) writes a word, to a page that will be copied over.
            let first = area.pages[run].0.max(start) - area.start;
            writer.attempt(Writer::STAGING, "touching memory", libc::SYS_getcpu, &[at + first]);
            writer.attempt(Writer::STAGING, "making a huge page", libc::SYS_madvise, &[to, HUGE, MADV_COLLAPSE]);
        }
        start += HUGE;
    }
}

const MADV_COLLAPSE: u64 = 25;

/// Copies an area's own pages out of the frozen process, through its /proc/PID/mem. process_vm_readv(2) would be
/// quicker and is no choice: it pins what it reads, and a page that the process shares with others since a fork is
/// copied in *that* process before it is pinned.
///
/// In files they lie one after the other.
fn copy(writer: &mut Writer, area: &Area, at: u64, source: &mut Source<'_>) {
    for (mut from, mut left) in area.pages.iter().copied() {
        while left > 0 {
            let mut length = left.min(MOST_BYTES);
            let to = at + (from - area.start);
            let offset = match source {
                Source::Process => from,
                Source::Holder => to,
                Source::Row(cursor) => std::mem::replace(cursor, *cursor + length),
                Source::Chain(pieces) => match pieces.next(writer, length) {
                    Some(piece) => {
                        length = piece.length;
                        piece.at
                    }
                    // As many bytes as pages have was checked when the chain was opened.
                    None => return,
                },
            };
            let arguments = [MEMORY, to, length, offset];
            writer.exact(
                Writer::STAGING,
                format!("copying memory at {from:#x}"),
                libc::SYS_pread64,
                &arguments,
                length,
            );
            (from, left) = (from + length, left - length);
        }
    }
}

/// Gives staged memory its protection and the advice that a fork and a move keep.
fn settle(writer: &mut Writer, area: &Area, at: u64) {
    let length = area.end - area.start;
    let protection = u64::from(area.protection);
    let staged = match area.kind {
        AreaKind::Private { .. } | AreaKind::Nameless { .. } if area.pages.is_empty() => protection,
        AreaKind::Private { .. } | AreaKind::Nameless { .. } => protection | READ_WRITE,
        AreaKind::Anonymous if !area.accounted && !area.unreserved && area.pages.is_empty() => protection,
        _ => READ_WRITE,
    };
    if staged != protection {
        writer.call(Writer::STAGING, "protecting memory", libc::SYS_mprotect, &[at, length, protection]);
    }
    for advice in area.advice.iter().filter(|advice| is_kept(**advice)) {
        writer.attempt(Writer::STAGING, "advising on memory", libc::SYS_madvise, &[at, length, u64::from(*advice)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(start: u64, end: u64) -> Area {
        Area::new(start, end, 3, AreaKind::Anonymous)
    }

    #[test]
    fn near_areas_move_together_and_keep_their_place_within_a_gib() {
        let process = |areas| Process { areas, ..Process::default() };
        let heap = vec![
            anonymous(0x5555_0000_0000, 0x5555_0000_3000),
            anonymous(0x5555_0000_5000, 0x5555_0000_6000),
            anonymous(0x7fff_0000_0000, 0x7fff_0000_1000),
        ];
        let image = Image { processes: vec![process(heap.clone()), process(heap)], ..Image::default() };
        let stages = arrange(&image);
        assert_eq!(stages[0].moves.len(), 2);
        let first = &stages[0].moves[0];
        assert_eq!((first.length, first.pieces.len()), (0x6000, 2));
        assert_eq!(first.pieces[1], (first.from + 0x5000, 0x1000));
        for one in stages.iter().flat_map(|stage| &stage.moves) {
            assert_eq!(one.from % GIB, one.to % GIB);
        }
        let [one, other] = [&stages[0].spans[0], &stages[1].spans[0]];
        assert!(one.end <= other.start && other.end < STAGING.end);
    }

    #[test]
    fn what_forks_share_lies_in_one_place_and_moves_on_its_own() {
        let shared =
            |start, end| Area { fork_shared: Some(0), pages: vec![(start, end - start)], ..anonymous(start, end) };
        let areas = || vec![anonymous(0x1000, 0x2000), shared(0x2000, 0x8000), anonymous(0x8000, 0x9000)];
        let process = |pid| Process { pid, areas: areas(), ..Process::default() };
        let image = Image { processes: vec![process(2), process(3)], ..Image::default() };
        let stages = arrange(&image);
        let place = |process: usize, area: usize| stages[process].place(&areas()[area]).unwrap();
        assert_eq!(place(0, 1), place(1, 1));
        assert!(place(0, 0) != place(1, 0) && place(0, 2) == place(0, 0) + 0x7000);
        let moves = |process: usize| stages[process].moves.iter().map(|one| (one.to, one.length)).collect::<Vec<_>>();
        assert_eq!(moves(0), [(0x1000, 0x1000), (0x2000, 0x6000), (0x8000, 0x1000)]);
        assert_eq!(moves(1), moves(0));
        let mut writer = Writer::new();
        write(&mut writer, &image, &stages, Slots::of(&image), &Origin::default());
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        assert_eq!(text.lines().filter(|line| line.contains("copying memory at 0x2000")).count(), 1, "{text}");
        assert_eq!(image.memory(), 0x6000);
    }

    #[test]
    fn memory_in_pieces_is_copied_out_of_the_file_that_has_each() {
        let mut writer = Writer::new();
        let area = Area { pages: vec![(0x1000, 3 * PAGE)], ..anonymous(0x1000, 0x9000) };
        let image = Image { processes: vec![Process { areas: vec![area], ..Process::default() }], ..Image::default() };
        let piece = |file, at, length| Extent { file, at, length };
        let origin = Origin::Chain {
            paths: vec!["/own".into(), "/parent".into()],
            extents: vec![piece(1, 4096, PAGE), piece(0, 4096, PAGE), piece(0, 0x9000, PAGE)],
            contents: 0,
        };
        write(&mut writer, &image, &arrange(&image), Slots::of(&image), &origin);
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let order: Vec<_> =
            text.lines().filter(|line| line.contains("memory at") || line.contains("opening")).collect();
        let is_opening = [true, true, false, true, false, false];
        assert_eq!(order.iter().map(|line| line.contains("opening")).collect::<Vec<_>>(), is_opening[..], "{text}");
    }

    #[test]
    fn long_runs_are_copied_in_portions() {
        let mut writer = Writer::new();
        let long = Area { pages: vec![(0x1000, MOST_BYTES + PAGE)], ..anonymous(0x1000, 0x1000 + MOST_BYTES + PAGE) };
        copy(&mut writer, &long, STAGING.start, &mut Source::Process);
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.contains("copying memory")));
    }
}
