//! Writing the memory of an image that has most of it from a parent: what differs, and where all else lies.
//!
//! Contents are compared, page by page, so that it does not matter how they came to be equal, and what the kernel says
//! of pages need not be believed. The parent is read as it lies on the disk.

use crate::clone::frozen::Frozen;
use crate::disk::chain::{Chain, MOST_EXTENTS, MOST_FILES, Memory, pages};
use crate::disk::image_file::{ImageFile, Kind};
use crate::disk::save;
use crate::image::Image;
use crate::origin::{self, Extent};
use crate::restore::staging;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: usize = 4096;

/// Bytes that are compared at a time.
const PORTION: usize = 1 << 20;

/// The image that most of the memory comes from.
pub(crate) struct Parent<'a> {
    directory: &'a Path,
    memory: Memory,
    /// Where the pages of each process lie, by its pid inside: address, length, and place in the row.
    places: HashMap<i32, Vec<(u64, u64, u64)>>,
}

impl<'a> Parent<'a> {
    /// One that is on the disk.
    pub(crate) fn new(directory: &'a Path, image: &Image, memory: Memory) -> Self {
        let (mut places, mut row): (HashMap<i32, Vec<_>>, _) = (HashMap::new(), 0);
        for (process, area) in image.kept_areas() {
            let of_process = places.entry(image.processes[process].pid).or_default();
            for (address, length) in area.pages.iter().copied() {
                of_process.push((address, length, row));
                row += length;
            }
        }
        places.values_mut().for_each(|runs| runs.sort_unstable());
        Self { directory, memory, places }
    }

    /// Where an address of a process lies in the row, and how many bytes from there on lie side by side.
    fn place(&self, pid: i32, address: u64) -> Option<(u64, u64)> {
        let runs = self.places.get(&pid)?;
        let (start, length, row) = *runs.get(runs.partition_point(|run| run.0 <= address).checked_sub(1)?)?;
        let within = address - start;
        (within < length).then(|| (row + within, length - within))
    }
}

/// What is being written.
struct Writing<'a> {
    parent: &'a Parent<'a>,
    own: ImageFile,
    chain: Chain,
    theirs: Vec<u8>,
}

/// Writes the difference into a directory, and names there for the parent's files; `false` where too much differs, or
/// the chain would become too long, so that it is better written as a whole.
pub(crate) fn write(frozen: &Frozen, directory: &Path, parent: &Parent<'_>) -> io::Result<bool> {
    let image = &frozen.image;
    let own = ImageFile::create(&directory.join(pages(0)), Kind::Memory)?;
    let mut writing = Writing { parent, own, chain: Chain::default(), theirs: vec![0; PORTION] };
    let row = origin::length(image);
    if !compare(frozen, &mut writing, row / 2)? {
        return Ok(false);
    }
    let before = writing.own.length();
    save::add_contents(frozen, &mut writing.own)?;
    let of_contents = Extent { file: 0, at: before, length: writing.own.length() - before };
    if of_contents.length > 0 {
        writing.chain.add(of_contents);
    }
    let Writing { own, chain, .. } = writing;
    own.finish()?;
    // What is nobody's any more goes at last with a chain that is too heavy.
    if chain.extents.len() > MOST_EXTENTS || parent.memory.bytes_of_files() / 2 > row {
        return Ok(false);
    }
    link(chain, directory, parent)
}

/// Compares all memory; whether no more than `most` bytes of it differ.
fn compare(frozen: &Frozen, writing: &mut Writing<'_>, most: u64) -> io::Result<bool> {
    let (image, stages) = (&frozen.image, staging::arrange(&frozen.image));
    let memory = File::open(format!("/proc/{}/mem", frozen.holder.pid()))?;
    let mut mine = vec![0; PORTION];
    for (process, area) in image.kept_areas() {
        let Some(at) = stages[process].place(area) else { continue };
        let pid = image.processes[process].pid;
        for (from, length) in area.pages.iter().copied() {
            let mut done = 0;
            while done < length {
                let portion = usize::try_from(length - done).unwrap_or(PORTION).min(PORTION);
                memory.read_exact_at(&mut mine[..portion], at + (from - area.start) + done)?;
                writing.take(pid, from + done, &mine[..portion])?;
                done += portion as u64;
                if writing.own.length() > most {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

impl Writing<'_> {
    /// Takes a portion of a process's memory.
    fn take(&mut self, pid: i32, mut address: u64, mut mine: &[u8]) -> io::Result<()> {
        while !mine.is_empty() {
            let Some((row, left)) = self.parent.place(pid, address) else {
                let (page, rest) = mine.split_at(PAGE.min(mine.len()));
                self.own_page(page)?;
                (address, mine) = (address + page.len() as u64, rest);
                continue;
            };
            let length = usize::try_from(left).unwrap_or(mine.len()).min(mine.len());
            let (portion, rest) = mine.split_at(length);
            self.compare(row, portion)?;
            (address, mine) = (address + length as u64, rest);
        }
        Ok(())
    }

    /// Compares what is to be taken with a part of the parent's row.
    fn compare(&mut self, row: u64, mine: &[u8]) -> io::Result<()> {
        let mut theirs = std::mem::take(&mut self.theirs);
        self.parent.memory.read(row, &mut theirs[..mine.len()])?;
        for (number, page) in mine.chunks(PAGE).enumerate() {
            let at = number * PAGE;
            if page == &theirs[at..at + page.len()] {
                for piece in self.parent.memory.pieces(row + at as u64, page.len() as u64) {
                    self.chain.add(Extent { file: piece.file + 1, ..piece });
                }
            } else {
                self.own_page(page)?;
            }
        }
        self.theirs = theirs;
        Ok(())
    }

    fn own_page(&mut self, page: &[u8]) -> io::Result<()> {
        self.chain.add(Extent { file: 0, at: self.own.length(), length: page.len() as u64 });
        self.own.add(page)
    }
}

/// Gives those of the parent's files that are needed a name in the directory, and writes the chain.
fn link(mut chain: Chain, directory: &Path, parent: &Parent<'_>) -> io::Result<bool> {
    let is_needed = |number: usize| chain.extents.iter().any(|extent| usize::from(extent.file) == number + 1);
    let needed: Vec<usize> = (0..parent.memory.count()).filter(|number| is_needed(*number)).collect();
    if needed.is_empty() || needed.len() >= MOST_FILES {
        return Ok(false);
    }
    let mut numbers = [0_u8; MOST_FILES + 1];
    for (new, old) in (1_u8..).zip(&needed) {
        let Some((_, name)) = parent.memory.file(*old) else { return Ok(false) };
        std::fs::hard_link(parent.directory.join(name), directory.join(pages(usize::from(new))))?;
        numbers[old + 1] = new;
    }
    for extent in &mut chain.extents {
        extent.file = numbers[usize::from(extent.file)];
    }
    chain.files = u8::try_from(needed.len() + 1).unwrap_or(u8::MAX);
    chain.write(directory)?;
    Ok(true)
}

/// Takes back what a difference left behind that was not finished.
pub(crate) fn remove(directory: &Path) {
    for number in 0..MOST_FILES {
        let _ = std::fs::remove_file(directory.join(pages(number)));
    }
    let _ = std::fs::remove_file(directory.join(crate::disk::chain::CHAIN));
}
