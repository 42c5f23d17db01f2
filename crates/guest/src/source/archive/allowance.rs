//! What one archive may take: room, files, names, and work that leaves nothing.

use super::entry::Entry;
use super::unpack::UnpackError;
use crate::source::write_error::WriteError;
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use pando_reader::Kind;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The most names of an archive, the directories among them that it only implies. Some memory is kept for each, and the
/// largest systems have a third of it.
const MOST_NAMES: u64 = 16 << 20;

/// The most content of entries that mean nothing here. It takes no room, only time.
const MOST_SKIPPED: u64 = 1 << 30;

/// What a name takes in its directory.
const NAME: u64 = 264;

/// What is left of it.
pub(super) struct Allowance {
    into: PathBuf,
    room: SpareRoom,
    block: u64,
    names: u64,
    skipped: u64,
    /// Content that took the place of what the archive itself had made.
    replaced: u64,
}

impl Allowance {
    /// For what is unpacked into a directory; `path` is what it is called.
    pub(super) fn of(directory: impl AsFd, path: &Path) -> Result<Self, Errno> {
        let room = SpareRoom::at(directory)?;
        Ok(Self { into: path.to_owned(), block: room.block(), room, names: 0, skipped: 0, replaced: 0 })
    }

    /// Takes a name at `path` for something that is there already.
    pub(super) fn link(&mut self, path: &Path) -> Result<(), UnpackError> {
        self.count()?;
        let taken = self.room.take(NAME);
        taken.map_err(|refusal| self.refused(path, refusal))
    }

    /// Takes a file or directory at `path`.
    pub(super) fn name(&mut self, path: &Path) -> Result<(), UnpackError> {
        self.count()?;
        let taken = self.room.take_files(1);
        taken.map_err(|refusal| self.refused(path, refusal))
    }

    /// Takes what the attributes of an entry need, and makes sure that there is room for its content, before anything
    /// of it is there.
    pub(super) fn entry(&mut self, path: &Path, entry: &Entry) -> Result<(), UnpackError> {
        let attributes = entry.attributes.xattrs.iter().map(|(name, value)| name.count_bytes() + value.len());
        let content = match &entry.kind {
            Kind::File => entry.size,
            Kind::Sparse(map, _) => map.iter().map(|(offset, length)| self.span(*offset, *length)).sum(),
            _ => 0,
        };
        let granted = self.room.take(attributes.sum::<usize>() as u64).and_then(|()| self.room.ask(content));
        granted.map_err(|refusal| self.refused(path, refusal))
    }

    /// Takes bytes of content of the file at `path`: those that are written next.
    pub(super) fn content(&mut self, path: &Path, bytes: u64) -> Result<(), UnpackError> {
        let taken = self.room.take(bytes);
        taken.map_err(|refusal| self.refused(path, refusal))
    }

    /// Where the block with the byte `at` ends, or begins that of the byte itself.
    pub(super) fn block_end(&self, at: u64) -> u64 {
        at.div_ceil(self.block).saturating_mul(self.block)
    }

    /// Where the block with the byte `at` begins.
    pub(super) fn block_start(&self, at: u64) -> u64 {
        at - at % self.block
    }

    /// Notes content that is written over what the archive had made itself. It takes no more room, so that a small
    /// archive could do it for ever.
    pub(super) fn again(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        self.replaced = self.replaced.saturating_add(entry.size);
        if self.replaced <= self.room.whole() {
            return Ok(());
        }
        let what = "replaces once more what came before it, and more in all than the file system can hold";
        Err(UnpackError::Refused(what.to_owned()))
    }

    /// Notes content that nothing is made of.
    pub(super) fn skip(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        self.count()?;
        self.skipped = self.skipped.saturating_add(entry.size);
        if self.skipped <= MOST_SKIPPED {
            return Ok(());
        }
        let what = format!("is of a kind that no file is made of, and such have more than {} MiB", MOST_SKIPPED >> 20);
        Err(UnpackError::Refused(what))
    }

    fn count(&mut self) -> Result<(), UnpackError> {
        self.names += 1;
        if self.names <= MOST_NAMES {
            return Ok(());
        }
        Err(UnpackError::Refused(format!("is one too many: it has more than {MOST_NAMES} files and directories")))
    }

    /// What a run of data takes: whole blocks.
    fn span(&self, offset: u64, length: u64) -> u64 {
        if length == 0 { 0 } else { self.block_end(offset.saturating_add(length)) - self.block_start(offset) }
    }

    fn refused(&self, path: &Path, refusal: Refusal) -> UnpackError {
        WriteError::refused(path, &self.into, refusal).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::copy::Attributes;

    fn allowance() -> Allowance {
        let place = std::env::temp_dir();
        Allowance { block: 4096, ..Allowance::of(std::fs::File::open(&place).unwrap(), &place).unwrap() }
    }

    fn entry(kind: Kind, size: u64) -> Entry {
        let attributes = Attributes { uid: 0, gid: 0, mode: 0, accessed: (0, 0), modified: (0, 0), xattrs: Vec::new() };
        Entry { path: b"x".to_vec(), kind, attributes, size, offset: 0, content_offset: 0, dropped: 0 }
    }

    fn said(refused: Result<(), UnpackError>) -> String {
        match refused {
            Err(UnpackError::Refused(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_counted_however_they_come() {
        let mut allowance = allowance();
        allowance.names = MOST_NAMES - 1;
        allowance.link(Path::new("a")).unwrap();
        assert!(said(allowance.name(Path::new("b"))).contains("16777216 files"));
        assert!(said(allowance.skip(&entry(Kind::Unknown, 0))).contains("one too many"));
    }

    #[test]
    fn what_leaves_nothing_is_bounded_too() {
        let mut allowance = allowance();
        allowance.skip(&entry(Kind::Unknown, MOST_SKIPPED)).unwrap();
        assert!(said(allowance.skip(&entry(Kind::Unknown, 1))).contains("1024 MiB"));
        if allowance.room.whole() < u64::MAX {
            allowance.again(&entry(Kind::File, allowance.room.whole())).unwrap();
            assert!(said(allowance.again(&entry(Kind::File, 1))).contains("once more"));
        }
    }

    #[test]
    fn single_bytes_of_a_sparse_file_take_a_block_each() {
        let allowance = allowance();
        assert_eq!(
            [(0, 0), (4095, 2), (4096, 4096), (1 << 40, 1)].map(|(at, length)| allowance.span(at, length)),
            [0, 8192, 4096, 4096]
        );
    }
}
