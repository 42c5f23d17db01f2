//! A file of an image on disk: a head of 64 bytes, room, and a body with a checksum. See docs/image-format.md.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 14;

/// Where the body begins: a page, so that memory lies on pages.
pub(crate) const BODY: u64 = 4096;

const MAGIC: [u8; 8] = *b"PANDOIMG";

/// Bytes that are read or written at a time.
const PORTION: usize = 1 << 20;

/// What a file of an image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What whoever froze it says of it.
    About,
    /// The processes, but for their memory.
    Tree,
    /// Memory.
    Memory,
    /// Where the pieces of memory lie that is not in one file.
    Chain,
}

/// Why a file of an image cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFileError {
    /// The kernel did not do its part.
    #[error("reading {} failed: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is damaged: {what}; remove the image, and freeze or import it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Of another Pando.
    #[error("{} has version {found} of the format, this Pando reads version {VERSION}; use the Pando that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::About => 1,
            Self::Tree => 2,
            Self::Memory => 3,
            Self::Chain => 4,
        }
    }
}

/// A file that is being written. Its head comes last: one that was not finished has none.
pub struct ImageFile {
    file: File,
    kind: Kind,
    length: u64,
    sum: Xxh3,
}

impl ImageFile {
    /// Begins a file of an image at a path where nothing is.
    pub fn create(path: &Path, kind: Kind) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self::over(file, kind))
    }

    /// Begins one in a file that is open for writing and empty.
    pub(crate) fn over(file: File, kind: Kind) -> Self {
        Self { file, kind, length: 0, sum: Xxh3::new() }
    }

    /// Bytes of the body so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Adds bytes to the file's body.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, BODY + self.length)?;
        self.sum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Adds a part of another file.
    pub(crate) fn add_from(&mut self, file: &File, mut at: u64, mut left: u64) -> io::Result<()> {
        let mut buffer = vec![0; PORTION.min(usize::try_from(left).unwrap_or(PORTION))];
        while left > 0 {
            let portion = &mut buffer[..usize::try_from(left).unwrap_or(PORTION).min(PORTION)];
            file.read_exact_at(portion, at)?;
            self.add(portion)?;
            (at, left) = (at + portion.len() as u64, left - portion.len() as u64);
        }
        Ok(())
    }

    /// Writes the head, and waits until all is on the disk.
    pub fn finish(self) -> io::Result<()> {
        self.file.write_all_at(&head(self.kind, self.length, &self.sum), 0)?;
        self.file.sync_data()
    }
}

fn head(kind: Kind, length: u64, sum: &Xxh3) -> [u8; BODY as usize] {
    let mut head = [0; BODY as usize];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&kind.number().to_le_bytes());
    head[16..24].copy_from_slice(&length.to_le_bytes());
    head[24..40].copy_from_slice(&sum.digest128().to_le_bytes());
    head
}

/// What such a file has in it.
#[cfg(feature = "fuzz")]
pub(crate) fn bytes_of(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut sum = Xxh3::new();
    sum.update(body);
    [&head(kind, body.len() as u64, &sum), body].concat()
}

/// Writes a small file as a whole.
pub fn write_image_file(path: &Path, kind: Kind, body: &[u8]) -> io::Result<()> {
    let mut image_file = ImageFile::create(path, kind)?;
    image_file.add(body)?;
    image_file.finish()
}

/// A file whose head and length are right.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) length: u64,
    sum: u128,
    path: PathBuf,
}

impl Opened {
    pub(crate) fn open(path: &Path, kind: Kind) -> Result<Self, ImageFileError> {
        let failed = |source| ImageFileError::Read { path: path.to_owned(), source };
        let damaged = |what: &str| ImageFileError::Damaged { path: path.to_owned(), what: what.to_owned() };
        let file = open_plain(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(damaged("it is no file"));
        }
        let mut head = [0; BODY as usize];
        file.read_exact_at(&mut head, 0).map_err(|_| damaged("it is too short"))?;
        let (words, rest) = head.split_at(40);
        let number = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        if words[..8] != MAGIC {
            return Err(damaged("it is no file of an image"));
        }
        if number(8) != VERSION {
            return Err(ImageFileError::Version { path: path.to_owned(), found: number(8) });
        }
        if number(12) != kind.number() || rest.iter().any(|byte| *byte != 0) {
            return Err(damaged("its head is wrong"));
        }
        let length = u64::from(number(16)) | u64::from(number(20)) << 32;
        if BODY.checked_add(length) != Some(metadata.len()) {
            return Err(damaged("its length is wrong"));
        }
        let mut sum = [0; 16];
        sum.copy_from_slice(&words[24..40]);
        Ok(Self { file, length, sum: u128::from_le_bytes(sum), path: path.to_owned() })
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> ImageFileError {
        ImageFileError::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// Reads all of it and compares.
    pub(crate) fn check(&self) -> Result<(), ImageFileError> {
        self.read_through(|_| ())
    }

    /// Its body, if it is no longer than `most`.
    pub(crate) fn body(&self, most: u64) -> Result<Vec<u8>, ImageFileError> {
        if self.length > most {
            return Err(self.damaged("it is too long"));
        }
        let mut body = Vec::new();
        self.read_through(|portion| body.extend_from_slice(portion))?;
        Ok(body)
    }

    fn read_through(&self, mut take: impl FnMut(&[u8])) -> Result<(), ImageFileError> {
        let mut sum = Xxh3::new();
        let mut buffer = vec![0; PORTION];
        let mut at = 0;
        while at < self.length {
            let portion = &mut buffer[..usize::try_from(self.length - at).unwrap_or(PORTION).min(PORTION)];
            self.file
                .read_exact_at(portion, BODY + at)
                .map_err(|source| ImageFileError::Read { path: self.path.clone(), source })?;
            sum.update(portion);
            take(portion);
            at += portion.len() as u64;
        }
        if sum.digest128() == self.sum { Ok(()) } else { Err(self.damaged("its checksum is wrong")) }
    }
}

/// A file at its body, for somebody else to read it, and how long that is. Head and checksum are right.
pub fn open_image_file(path: &Path, kind: Kind, most: u64) -> Result<(File, u64), ImageFileError> {
    use std::io::Seek;
    let mut opened = Opened::open(path, kind)?;
    if opened.length > most {
        return Err(opened.damaged("it is too long"));
    }
    opened.check()?;
    let sought = opened.file.seek(io::SeekFrom::Start(BODY));
    sought.map_err(|source| ImageFileError::Read { path: path.to_owned(), source })?;
    Ok((opened.file, opened.length))
}

/// Reads a small file as a whole.
pub fn read_image_file(path: &Path, kind: Kind, most: u64) -> Result<Vec<u8>, ImageFileError> {
    Opened::open(path, kind)?.body(most)
}

/// A fifo or a device in a file's place must not make anybody wait.
fn open_plain(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_and_no_byte_can_change_unnoticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        write_image_file(&path, Kind::About, b"about").unwrap();
        assert_eq!(read_image_file(&path, Kind::About, 5).unwrap(), b"about");
        assert!(read_image_file(&path, Kind::Tree, 5).is_err(), "it is of another kind");
        assert!(read_image_file(&path, Kind::About, 4).is_err(), "it is longer than is allowed");
        let whole = std::fs::read(&path).unwrap();
        for place in (0..64).chain([2000, 4095]).chain(4096..whole.len()) {
            let mut damaged = whole.clone();
            damaged[place] ^= 4;
            std::fs::write(&path, damaged).unwrap();
            assert!(read_image_file(&path, Kind::About, 5).is_err(), "byte {place}");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(read_image_file(&path, Kind::About, 5).is_err(), "it is cut short");
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read_image_file(&path, Kind::About, 5).is_err(), "it has more");
    }

    #[test]
    fn other_versions_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        write_image_file(&path, Kind::Tree, b"").unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] = VERSION as u8 + 1;
        std::fs::write(&path, bytes).unwrap();
        let said = read_image_file(&path, Kind::Tree, 5).unwrap_err().to_string();
        assert!(said.contains(&format!("version {}", VERSION + 1)), "{said}");
    }
}
