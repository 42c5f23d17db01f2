//! The memory of an image on disk: one file, or a chain of files, where most of it is another image's too.
//!
//! Memory is a row of bytes, area after area. In a file `memory` it lies as a whole. In a chain it lies in pieces: what
//! this image alone has is in `pages.0`, all else in files of its parents, which are here as well, as further names of
//! the same files (link(2)). So a parent can be removed, and what others need of it stays.
//!
//! ```text
//!   parent   memory    [a][b][c][d]
//!   child    pages.0   [B]              chain: a of pages.1, B of pages.0, c and d of pages.1
//!            pages.1   ── the parent's `memory`
//! ```

use crate::disk::image_file::{BODY, ImageFile, ImageFileError, Kind, Opened, read_image_file, write_image_file};
use crate::image::Image;
use crate::origin::{self, Extent, Origin};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Memory in one file.
pub(crate) const MEMORY: &str = "memory";

/// What says where the pieces lie.
pub(crate) const CHAIN: &str = "chain";

/// How many files a chain has at most.
pub(crate) const MOST_FILES: usize = 8;

/// How many pieces it has at most: loading takes a step for each.
pub(crate) const MOST_EXTENTS: usize = 16_384;

/// The longest file `chain`: all those pieces, with numbers of all their bytes.
const LONGEST: u64 = 1 << 20;

/// The name of one of a chain's files.
pub(crate) fn pages(number: usize) -> String {
    format!("pages.{number}")
}

/// The pieces of a row, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    /// How many files there are.
    pub(crate) files: u8,
    /// The pieces.
    pub(crate) extents: Vec<Extent>,
}

impl Chain {
    /// Adds a piece, which may be more of the last one.
    pub(crate) fn add(&mut self, piece: Extent) {
        match self.extents.last_mut() {
            Some(last) if last.file == piece.file && last.at + last.length == piece.at => last.length += piece.length,
            _ => self.extents.push(piece),
        }
    }

    /// Writes it into a directory.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let body = postcard::to_stdvec(self).map_err(io::Error::other)?;
        write_image_file(&directory.join(CHAIN), Kind::Chain, &body)
    }

    /// What is wrong with it, if it is to make a row of so many bytes out of files of these lengths.
    pub(crate) fn objection(&self, lengths: &[u64], row: u64) -> Option<&'static str> {
        let lies_in_its_file = |extent: &Extent| {
            let end = extent.at.checked_add(extent.length);
            lengths.get(usize::from(extent.file)).is_some_and(|length| end.is_some_and(|end| end <= *length))
        };
        if self.extents.len() > MOST_EXTENTS || !self.extents.iter().all(lies_in_its_file) {
            return Some("it names what is in none of its files");
        }
        let all = self.extents.iter().try_fold(0_u64, |all, extent| all.checked_add(extent.length));
        (all != Some(row)).then_some("it is not of this image")
    }
}

/// The memory of an image on disk, opened.
pub(crate) struct Memory {
    files: Vec<Opened>,
    chain: Chain,
    /// Where each piece begins in the row.
    starts: Vec<u64>,
    is_chained: bool,
}

impl Memory {
    /// Opens that of an image in a directory. What its files hold is not looked at: see [`Self::check`].
    pub(crate) fn open(directory: &Path, image: &Image) -> Result<Self, ImageFileError> {
        let row = origin::length(image);
        let path = directory.join(CHAIN);
        if !path.try_exists().map_err(|source| ImageFileError::Read { path: path.clone(), source })? {
            let file = Opened::open(&directory.join(MEMORY), Kind::Memory)?;
            if file.length != row {
                return Err(file.damaged("it is not of this image"));
            }
            let chain = Chain { files: 1, extents: vec![Extent { file: 0, at: 0, length: row }] };
            return Ok(Self { files: vec![file], chain, starts: vec![0], is_chained: false });
        }
        let damaged = |what: &str| ImageFileError::Damaged { path: path.clone(), what: what.to_owned() };
        let body = read_image_file(&path, Kind::Chain, LONGEST)?;
        let chain: Chain =
            postcard::from_bytes(&body).map_err(|error| damaged(&format!("it cannot be read ({error})")))?;
        if !(1..=MOST_FILES).contains(&usize::from(chain.files)) {
            return Err(damaged("it has too many files or none"));
        }
        let files =
            (0..usize::from(chain.files)).map(|number| Opened::open(&directory.join(pages(number)), Kind::Memory));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let lengths: Vec<u64> = files.iter().map(|file| file.length).collect();
        if let Some(what) = chain.objection(&lengths, row) {
            return Err(damaged(what));
        }
        let mut next = 0;
        let start_of = |extent: &Extent| {
            next += extent.length;
            next - extent.length
        };
        let starts = chain.extents.iter().map(start_of).collect();
        let memory = Self { files, chain, starts, is_chained: true };
        let held = row - image.memory();
        let of_contents = memory.pieces(image.memory(), held);
        if held > 0 && !matches!(of_contents[..], [Extent { file: 0, .. }]) {
            return Err(damaged("files without a name do not lie together"));
        }
        Ok(memory)
    }

    /// Reads all of it, and compares it with its checksums.
    pub(crate) fn check(&self) -> Result<(), ImageFileError> {
        self.files.iter().try_for_each(Opened::check)
    }

    /// What a holder copies it from, as long as this lives. Of the files that were opened, whatever their names are by
    /// then.
    pub(crate) fn origin(&self, image: &Image) -> Origin {
        let (process, fd) = (std::process::id(), |file: &Opened| file.file.as_fd().as_raw_fd());
        let mut paths = self.files.iter().map(|file| format!("/proc/{process}/fd/{}", fd(file)));
        if !self.is_chained {
            return Origin::File { path: paths.next().unwrap_or_default(), start: BODY };
        }
        let moved = |extent: &Extent| Extent { at: extent.at + BODY, ..*extent };
        let contents = self.pieces(image.memory(), origin::length(image) - image.memory());
        Origin::Chain {
            paths: paths.collect(),
            extents: self.chain.extents.iter().map(moved).collect(),
            contents: contents.first().map_or(BODY, |first| first.at + BODY),
        }
    }

    /// How many bytes all its files have.
    pub(crate) fn bytes_of_files(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// How many files it lies in.
    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// The length of one of its files, and what that is called.
    pub(crate) fn file(&self, number: usize) -> Option<(u64, String)> {
        let name = if self.is_chained { pages(number) } else { MEMORY.to_owned() };
        self.files.get(number).map(|file| (file.length, name))
    }

    /// The pieces that a range of the row lies in.
    pub(crate) fn pieces(&self, at: u64, length: u64) -> Vec<Extent> {
        let first = self.starts.partition_point(|start| *start <= at).saturating_sub(1);
        let mut pieces = Vec::new();
        for (extent, start) in
            self.chain.extents[first.min(self.chain.extents.len())..].iter().zip(&self.starts[first..])
        {
            let (from, to) = (at.max(*start), (at + length).min(start + extent.length));
            if *start >= at + length {
                break;
            }
            if from < to {
                pieces.push(Extent { file: extent.file, at: extent.at + (from - start), length: to - from });
            }
        }
        pieces
    }

    /// Reads a range of the row.
    pub(crate) fn read(&self, at: u64, mut into: &mut [u8]) -> io::Result<()> {
        for piece in self.pieces(at, into.len() as u64) {
            let (portion, rest) =
                into.split_at_mut(usize::try_from(piece.length).unwrap_or(usize::MAX).min(into.len()));
            self.files[usize::from(piece.file)].file.read_exact_at(portion, BODY + piece.at)?;
            into = rest;
        }
        if into.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Writes it as a whole into a file that is empty, as `memory` has it.
    pub(crate) fn fold(&self, into: File) -> io::Result<()> {
        let mut whole = ImageFile::over(into, Kind::Memory);
        for extent in &self.chain.extents {
            whole.add_from(&self.files[usize::from(extent.file)].file, BODY + extent.at, extent.length)?;
        }
        whole.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Area, AreaKind, Process};

    fn extent(file: u8, at: u64, length: u64) -> Extent {
        Extent { file, at, length }
    }

    /// An image of so many pages of memory.
    fn image(count: u64) -> Image {
        let area = Area { pages: vec![(0x1000, count * 4096)], ..Area::new(0x1000, 0x10_0000, 3, AreaKind::Anonymous) };
        Image { processes: vec![Process { pid: 2, areas: vec![area], ..Process::default() }], ..Image::default() }
    }

    #[test]
    fn pieces_make_a_row_and_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, body: &[u8]| write_image_file(&directory.path().join(name), Kind::Memory, body).unwrap();
        write("pages.0", &[b'B'; 4096]);
        write("pages.1", &[[b'a'; 4096], [b'x'; 4096], [b'c'; 4096]].concat());
        let extents = vec![extent(1, 0, 4096), extent(0, 0, 4096), extent(1, 8192, 4096)];
        Chain { files: 2, extents }.write(directory.path()).unwrap();
        let memory = Memory::open(directory.path(), &image(3)).unwrap();
        memory.check().unwrap();
        let (mut row, mut part) = ([0; 3 * 4096], [0; 4096]);
        memory.read(0, &mut row).unwrap();
        assert_eq!(row[..], [[b'a'; 4096], [b'B'; 4096], [b'c'; 4096]].concat());
        memory.read(2048, &mut part).unwrap();
        assert!(part[..2048].iter().all(|byte| *byte == b'a') && part[2048..].iter().all(|byte| *byte == b'B'));
        assert!(memory.read(2 * 4096 + 1, &mut part).is_err());
        let whole = directory.path().join(MEMORY);
        memory.fold(File::options().read(true).write(true).create_new(true).open(&whole).unwrap()).unwrap();
        assert_eq!(read_image_file(&whole, Kind::Memory, u64::MAX).unwrap(), row);
    }

    #[test]
    fn a_chain_that_does_not_fit_is_refused() {
        let whole = |extents: Vec<Extent>| Chain { files: 2, extents };
        let lengths = [4096, 8192];
        let fits = whole(vec![extent(0, 0, 4096), extent(1, 4096, 4096)]);
        assert_eq!(fits.objection(&lengths, 8192), None);
        assert!(fits.objection(&lengths, 4096).is_some());
        for bad in [extent(2, 0, 4096), extent(1, 8192, 4096), extent(0, u64::MAX, 4096)] {
            assert!(whole(vec![extent(0, 0, 4096), bad]).objection(&lengths, 8192).is_some(), "{bad:?}");
        }
        assert!(whole(vec![extent(0, 0, 0); MOST_EXTENTS + 1]).objection(&lengths, 0).is_some());
    }

    #[test]
    fn pieces_that_follow_one_another_are_one() {
        let mut chain = Chain::default();
        let pieces = [extent(1, 0, 10), extent(1, 10, 10), extent(0, 20, 5), extent(0, 30, 5)];
        pieces.into_iter().for_each(|piece| chain.add(piece));
        assert_eq!(chain.extents, [extent(1, 0, 20), extent(0, 20, 5), extent(0, 30, 5)]);
    }

    #[test]
    fn what_is_cut_short_or_lost_is_named() {
        let directory = tempfile::tempdir().unwrap();
        Chain { files: 2, extents: vec![extent(0, 0, 4096)] }.write(directory.path()).unwrap();
        write_image_file(&directory.path().join("pages.0"), Kind::Memory, &[1; 4096]).unwrap();
        let said = |directory: &Path| Memory::open(directory, &image(1)).err().unwrap().to_string();
        assert!(said(directory.path()).contains("pages.1"), "{}", said(directory.path()));
        std::fs::remove_file(directory.path().join(CHAIN)).unwrap();
        assert!(said(directory.path()).contains("memory"));
    }
}
