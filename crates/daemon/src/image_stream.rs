//! An image as one stream: what `pando image export` writes and `import` reads. See docs/image-format.md.
//!
//! ```text
//!   zstd( "pando image export 1\n", name, about, tree, memory, files )     each but the first in portions: a length of four bytes, so many bytes;
//!                                                                          one of length 0 is the end
//! ```

use crate::image::ABOUT;
use pando_kernel::spare_room::{Refusal, SpareRoom};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const GREETING: &[u8] = b"pando image export 1\n";

/// The files that were frozen with the processes, as a tar archive.
pub(crate) const FILES: &str = "files.tar";

const PARTS: [&str; 3] = [ABOUT, "tree", "memory"];

/// The longest portion.
const PORTION: usize = 1 << 20;

/// The longest name.
const LONGEST_NAME: u64 = 255;

/// What becomes a stream.
pub(crate) struct Packed<'a> {
    pub(crate) name: &'a str,
    /// Of the image on disk.
    pub(crate) directory: &'a Path,
    /// Its files, put together.
    pub(crate) tree: &'a Path,
}

impl Packed<'_> {
    /// Blocking.
    pub(crate) fn write(&self, out: impl Write) -> io::Result<()> {
        let mut encoder = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut stream = BufWriter::with_capacity(PORTION, encoder);
        stream.write_all(GREETING)?;
        section(&mut stream, self.name.as_bytes())?;
        for part in PARTS {
            section(&mut stream, File::open(self.directory.join(part))?)?;
        }
        self.files(&mut stream)?;
        let encoder = stream.into_inner().map_err(io::IntoInnerError::into_error)?;
        encoder.finish()?.flush()
    }

    fn files(&self, stream: &mut impl Write) -> io::Result<()> {
        const WORDS: [&str; 7] =
            ["--create", "--format=posix", "--numeric-owner", "--xattrs", "--acls", "--sparse", "--file=-"];
        let mut tar = Command::new("tar")
            .args(WORDS)
            .arg("--directory")
            .arg(self.tree)
            .arg(".")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("the program tar cannot be run ({error}); install it"))
            })?;
        let copied = tar.stdout.take().map_or(Ok(()), |files| section(stream, files));
        let ended = tar.wait_with_output()?;
        copied?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        Err(io::Error::other(format!(
            "tar could not read its files: {}",
            said.trim().lines().last().unwrap_or("it did not say why")
        )))
    }
}

fn section(stream: &mut impl Write, mut content: impl Read) -> io::Result<()> {
    let mut buffer = vec![0; PORTION];
    loop {
        let length = match content.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        stream.write_all(&u32::try_from(length).unwrap_or(0).to_le_bytes())?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

/// What came of a stream.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The name that the image had.
    pub(crate) name: String,
}

impl Unpacked {
    /// Reads one into the files of a directory. What is in those is looked at by whoever uses them. Blocking.
    pub(crate) fn read(input: impl Read, directory: &Path) -> io::Result<Self> {
        const SMALL: u64 = 2 << 30;
        let not_one = || io::Error::new(io::ErrorKind::InvalidData, "this is not what 'pando image export' wrote");
        let mut stream = zstd::Decoder::new(input).map_err(|_| not_one())?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting).map_err(|_| not_one())?;
        if greeting != *GREETING {
            return Err(not_one());
        }
        let mut room = SpareRoom::at(File::open(directory)?)?;
        let mut name = Vec::new();
        take(&mut stream, &mut name, LONGEST_NAME, &mut room)?;
        let name = String::from_utf8(name).map_err(|_| not_one())?;
        for (part, most) in [(PARTS[0], SMALL), (PARTS[1], SMALL), (PARTS[2], u64::MAX), (FILES, u64::MAX)] {
            take(&mut stream, &mut File::create_new(directory.join(part))?, most, &mut room)?;
        }
        if stream.read(&mut [0])? != 0 {
            return Err(damaged("there is more behind its end"));
        }
        Ok(Self { name })
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the export is damaged: {what}; export the image again"))
}

/// Not a byte more is written than there is room for: a kilobyte of the stream can become a gigabyte.
fn take(stream: &mut impl Read, into: &mut impl Write, most: u64, room: &mut SpareRoom) -> io::Result<()> {
    let mut buffer = vec![0; PORTION];
    let mut taken = 0;
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => damaged(&error.to_string()),
    };
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).map_err(cut)?;
        let length = u32::from_le_bytes(length) as usize;
        taken += length as u64;
        if length == 0 {
            return Ok(());
        }
        if length > PORTION || taken > most {
            return Err(damaged("a part of it is too long"));
        }
        stream.read_exact(&mut buffer[..length]).map_err(cut)?;
        room.take(length as u64).map_err(no_room)?;
        into.write_all(&buffer[..length])?;
    }
}

fn no_room(refusal: Refusal) -> io::Error {
    match refusal {
        Refusal::Look(error) => error.into(),
        Refusal::NoRoom(room) => io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "no space left for what it unpacks to: {room}; free some where the state lies, or move that with --root"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree-of-files");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), "content").unwrap();
        for part in PARTS {
            std::fs::write(directory.path().join(part), part.repeat(10)).unwrap();
        }
        let mut out = Vec::new();
        Packed { name: "web", directory: directory.path(), tree: &tree }.write(&mut out).unwrap();
        out
    }

    /// The content of all its parts.
    fn read(stream: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let into = tempfile::tempdir().unwrap();
        let name = Unpacked::read(stream, into.path())?.name.into_bytes();
        let parts = PARTS.into_iter().chain([FILES]).map(|part| std::fs::read(into.path().join(part)).unwrap());
        Ok(parts.chain([name]).collect())
    }

    #[test]
    fn what_was_written_is_read() {
        let (stream, into) = (export(), tempfile::tempdir().unwrap());
        assert_eq!(Unpacked::read(&stream[..], into.path()).unwrap().name, "web");
        for part in PARTS {
            assert_eq!(std::fs::read_to_string(into.path().join(part)).unwrap(), part.repeat(10));
        }
        assert!(into.path().join(FILES).metadata().unwrap().len() > 0);
    }

    #[test]
    fn damaged_streams_are_refused() {
        let stream = export();
        let whole = read(&stream).unwrap();
        for length in [0, 1, 20, stream.len() / 2, stream.len() - 1] {
            assert!(read(&stream[..length]).is_err(), "{length}");
        }
        for place in (0..stream.len()).step_by(7) {
            let mut damaged = stream.clone();
            damaged[place] ^= 0x10;
            // Not every bit of a compressed stream means something.
            assert!(read(&damaged).map_or(true, |content| content == whole), "byte {place}");
        }
        assert!(read(b"something else").unwrap_err().to_string().contains("not what"));
    }
}
