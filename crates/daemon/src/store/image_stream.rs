//! An image as one stream: what `pando image export` writes and `import` reads. See docs/image-format.md.
//!
//! ```text
//!   zstd( "pando image export 2\n", name, about, tree, memory, files ) zstd( signature )
//!
//!   each but the first in portions: a length of four bytes, so many bytes; one of length 0 is the end
//! ```
//!
//! The signature is made of the digests of all that comes before it ([`Statement`]), which are put together while that
//! passes; where nobody signs it is empty.
//!
//! What is imported is expanded and taken apart by a process without powers (`pando-reader`); here its parts are
//! written.

use crate::state::image::ABOUT;
use crate::store::archiver::Archiver;
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use pando_reader::signature::LONGEST_SIGNATURE;
use pando_reader::{
    Died, EXPORT_GREETING, Failure, Job, LONGEST_PORTION, Message, Reader, ReaderError, SIGNATURE_PART, Statement,
    write_part,
};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The files that were frozen with the processes, as a tar archive.
pub(crate) const FILES: &str = "files.tar";

const TREE: &str = "tree";

const PARTS: [&str; 3] = [ABOUT, TREE, "memory"];

/// The longest name of an image.
const LONGEST_NAME: u64 = 255;

/// An image that is to become a stream.
pub(crate) struct Packed<'a> {
    pub(crate) name: &'a str,
    /// Of the image on disk.
    pub(crate) directory: &'a Path,
    /// Its memory in one file, which need not be one of that directory.
    pub(crate) memory: File,
    /// The path of its files, put together.
    pub(crate) tree: &'a Path,
}

impl Packed<'_> {
    /// Writes it, up to its signature if one is to follow; what is to be signed then. Blocking.
    pub(crate) fn write(&self, out: impl Write, signed: bool) -> io::Result<Statement> {
        let mut encoder = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut stream = BufWriter::with_capacity(LONGEST_PORTION, encoder);
        let mut statement = Statement::default();
        stream.write_all(EXPORT_GREETING)?;
        stated(&mut stream, self.name.as_bytes(), &mut statement)?;
        for part in [ABOUT, TREE] {
            stated(&mut stream, File::open(self.directory.join(part))?, &mut statement)?;
        }
        stated(&mut stream, &self.memory, &mut statement)?;
        self.files(&mut stream, &mut statement)?;
        if !signed {
            write_part(&mut stream, io::empty(), |_| ())?;
        }
        let encoder = stream.into_inner().map_err(io::IntoInnerError::into_error)?;
        encoder.finish()?.flush()?;
        Ok(statement)
    }

    fn files(&self, stream: &mut impl Write, statement: &mut Statement) -> io::Result<()> {
        let mut files = Archiver::begin(self.tree, &["--sparse"], &|| true)?;
        stated(stream, &mut files, statement)?;
        files.finish()
    }
}

fn stated(stream: &mut impl Write, content: impl Read, statement: &mut Statement) -> io::Result<()> {
    write_part(stream, content, |bytes| statement.update(bytes))?;
    statement.end_part();
    Ok(())
}

/// What came of a stream.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The name that the image had.
    pub(crate) name: String,
    /// What somebody may have signed, by what came out of the stream.
    pub(crate) statement: String,
    /// That signature, which nobody has looked at; empty where there is none.
    pub(crate) signature: Vec<u8>,
}

impl Unpacked {
    /// Reads one into the files of a directory. What is in those is looked at by whoever uses them. Blocking.
    pub(crate) fn read(input: impl Into<OwnedFd>, directory: &Path) -> io::Result<Self> {
        const SMALL: u64 = 2 << 30;
        let mut room = SpareRoom::at(File::open(directory)?)?;
        // Unit tests have no program that could become a reader.
        let started =
            if cfg!(test) { Reader::start_unconfined(&Job::Export, input) } else { Reader::start(&Job::Export, input) };
        let mut reader = started.map_err(unread)?;
        let (mut name, mut statement) = (Vec::new(), Statement::default());
        part(&mut reader, 0)?;
        take(&mut reader, &mut name, LONGEST_NAME, &mut room, &mut statement)?;
        let name = String::from_utf8(name).map_err(|_| unread(ReaderError::Failed(Failure::NotAnExport)))?;
        let parts = [(PARTS[0], SMALL), (PARTS[1], SMALL), (PARTS[2], u64::MAX), (FILES, u64::MAX)];
        for (number, (name, most)) in (1..).zip(parts) {
            part(&mut reader, number)?;
            take(&mut reader, &mut File::create_new(directory.join(name))?, most, &mut room, &mut statement)?;
        }
        let statement = statement.text();
        let mut signature = Vec::new();
        let mut next = reader.next().map_err(unread)?;
        if next == Message::Part(SIGNATURE_PART) {
            // Of what comes after all that is signed nothing is stated.
            take(&mut reader, &mut signature, LONGEST_SIGNATURE, &mut room, &mut Statement::default())?;
            next = reader.next().map_err(unread)?;
        }
        match next {
            Message::End(_) => Ok(Self { name, statement, signature }),
            _ => Err(unread(Died::Nonsense.into())),
        }
    }
}

/// The beginning of a part.
fn part(reader: &mut Reader, number: u8) -> io::Result<()> {
    match reader.next().map_err(unread)? {
        Message::Part(found) if found == number => Ok(()),
        _ => Err(unread(Died::Nonsense.into())),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the export is damaged: {what}; export the image again"))
}

/// The sentence for what a reader could not read.
fn unread(error: ReaderError) -> io::Error {
    match error {
        ReaderError::Failed(Failure::DamagedExport(what)) => damaged(&what),
        ReaderError::Failed(Failure::Input(number, words)) => {
            number.map_or_else(|| io::Error::other(words), io::Error::from_raw_os_error)
        }
        ReaderError::Failed(_) => {
            io::Error::new(io::ErrorKind::InvalidData, "this is not what 'pando image export' wrote")
        }
        other => io::Error::other(format!("{other}. Nothing was imported; be careful with where the export came from")),
    }
}

/// Writes the content of a part. Not a byte more is written than there is room for: a kilobyte of the stream can become
/// a gigabyte.
fn take(
    reader: &mut Reader,
    into: &mut impl Write,
    most: u64,
    room: &mut SpareRoom,
    statement: &mut Statement,
) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut taken = 0;
    loop {
        let length = reader.read(&mut buffer).map_err(|error| unread(reader.lost(&error)))?;
        taken += length as u64;
        if length == 0 {
            statement.end_part();
            return Ok(());
        }
        if taken > most {
            return Err(damaged("a part of it is too long"));
        }
        room.take(length as u64).map_err(no_room)?;
        statement.update(&buffer[..length]);
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
    use std::io::Seek;

    fn export(signed: bool) -> (Vec<u8>, String) {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree-of-files");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), "content").unwrap();
        for part in PARTS {
            std::fs::write(directory.path().join(part), part.repeat(10)).unwrap();
        }
        let mut out = Vec::new();
        let memory = File::open(directory.path().join("memory")).unwrap();
        let packed = Packed { name: "web", directory: directory.path(), memory, tree: &tree };
        let statement = packed.write(&mut out, signed).unwrap();
        (out, statement.text())
    }

    fn input(stream: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(stream).unwrap();
        file.rewind().unwrap();
        file.into()
    }

    /// The content of all its parts.
    fn read(stream: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let into = tempfile::tempdir().unwrap();
        let name = Unpacked::read(input(stream), into.path())?.name.into_bytes();
        let parts = PARTS.into_iter().chain([FILES]).map(|part| std::fs::read(into.path().join(part)).unwrap());
        Ok(parts.chain([name]).collect())
    }

    #[test]
    fn what_was_written_is_read() {
        let ((stream, stated), into) = (export(false), tempfile::tempdir().unwrap());
        let Unpacked { name, statement, signature } = Unpacked::read(input(&stream), into.path()).unwrap();
        assert_eq!((name.as_str(), statement.as_str(), signature.as_slice()), ("web", stated.as_str(), &b""[..]));
        for part in PARTS {
            assert_eq!(std::fs::read_to_string(into.path().join(part)).unwrap(), part.repeat(10));
        }
        assert!(into.path().join(FILES).metadata().unwrap().len() > 0);
    }

    #[test]
    fn a_signature_follows_what_it_is_of() {
        let ((mut stream, stated), into) = (export(true), tempfile::tempdir().unwrap());
        assert!(Unpacked::read(input(&stream), into.path()).unwrap_err().to_string().contains("too early"));
        stream.extend(pando_reader::signature_frame(b"signature").unwrap());
        let into = tempfile::tempdir().unwrap();
        let read = Unpacked::read(input(&stream), into.path()).unwrap();
        assert_eq!((read.statement, read.signature), (stated, b"signature".to_vec()));
        stream.extend(pando_reader::signature_frame(b"another").unwrap());
        assert!(Unpacked::read(input(&stream), tempfile::tempdir().unwrap().path()).is_err());
    }

    #[test]
    fn damaged_streams_are_refused() {
        let (stream, _) = export(false);
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
