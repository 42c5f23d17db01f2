//! Where an image's files are: in a directory, or in a tar archive of one.
//!
//! An archive is not unpacked: one pass notes where in it each file begins. A compressed one is expanded first, into a
//! file that has no name and is gone when this is dropped.

use super::OciError;
use crate::source::archive::{
    Entry, Kind, Receiver, UnpackError, each_entry, entry_path, open_archive, start_reader, unread as unread_archive,
};
use crate::source::meter::{Cancelled, Meter};
use crate::source::root::{Root, read_file};
use crate::source::write_error::WriteError;
use oci_spec::image::{Digest, DigestAlgorithm};
use pando_kernel::filesystem::spare_room::SpareRoom;
use pando_kernel::memory;
use pando_reader::{
    Compression, Configuration, Descriptor, Died, Digester, Document, Failure, Job, Message, ReaderError, Shape, Sum,
};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// No index, manifest or configuration is larger.
const MAX_DOCUMENT: u64 = 4 << 20;

/// More files than any archive of images has.
const MAX_MEMBERS: usize = 100_000;

/// Links in archives of `docker save` lead to another layer directly.
const MAX_LINKS: u32 = 4;

pub(super) struct Store {
    image: PathBuf,
    place: Place,
}

enum Place {
    /// None has files: what is said of documents alone names the image all the same.
    Nothing,
    Directory(Root),
    Archive(File, HashMap<PathBuf, Member>),
}

#[derive(Clone, Debug)]
enum Member {
    /// Where its content is.
    File { offset: u64, size: u64 },
    /// The same file as another member.
    Link(PathBuf),
}

impl Store {
    /// The image at `path`. `scratch` is where a compressed archive may be expanded.
    pub(super) fn open(path: &Path, scratch: &Path, meter: &mut Meter<'_>) -> Result<Self, OciError> {
        let unread = |source: io::Error| OciError::Read { image: path.to_owned(), member: ".".to_owned(), source };
        let real = path.canonicalize().map_err(unread)?;
        let place = if real.is_dir() {
            Place::Directory(Root::open(&real).map_err(|error| unread(error.into()))?)
        } else {
            let file = plain_archive(&real, scratch, meter)?;
            let mut members = Members::default();
            let job = Job::Archive { plain: None, end_is_marked: true, content: false };
            each_entry(&job, file.try_clone().map_err(unread)?, path, meter, &mut members)?;
            Place::Archive(file, members.members)
        };
        Ok(Self { image: path.to_owned(), place })
    }

    /// A layout in a directory, which is called `image` where something is said of it.
    pub(super) fn of_layout(directory: &Path, image: &str) -> Result<Self, OciError> {
        let unread = |source| OciError::Read { image: PathBuf::from(image), member: ".".to_owned(), source };
        let root = Root::open(directory).map_err(|error| unread(error.into()))?;
        Ok(Self { image: PathBuf::from(image), place: Place::Directory(root) })
    }

    /// One without files.
    pub(super) fn of_nothing(image: &str) -> Self {
        Self { image: PathBuf::from(image), place: Place::Nothing }
    }

    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// Whether there is a file of this name.
    pub(super) fn has(&self, member: &str) -> bool {
        self.read(member).is_ok()
    }

    /// The file `member`, with its size.
    pub(super) fn read(&self, member: &str) -> Result<(Box<dyn Read + Send + '_>, u64), OciError> {
        let unread = |source| OciError::Read { image: self.image.clone(), member: member.to_owned(), source };
        match &self.place {
            Place::Nothing => Err(unread(io::ErrorKind::NotFound.into())),
            Place::Directory(root) => {
                let file = read_file(root, Path::new(member)).map_err(|error| unread(error.into()))?;
                let size = file.metadata().map_err(unread)?.len();
                Ok((Box::new(file), size))
            }
            Place::Archive(file, members) => {
                let mut path = PathBuf::from(member);
                for _ in 0..MAX_LINKS {
                    match members.get(&path) {
                        Some(Member::File { offset, size }) => {
                            let slice = Slice { file, at: *offset, end: offset.saturating_add(*size) };
                            return Ok((Box::new(slice), *size));
                        }
                        Some(Member::Link(target)) => path.clone_from(target),
                        None => break,
                    }
                }
                Err(unread(io::Error::new(io::ErrorKind::NotFound, "it is not in the archive")))
            }
        }
    }

    /// A whole small file: a document.
    pub(super) fn small(&self, member: &str) -> Result<Vec<u8>, OciError> {
        let (reader, size) = self.read(member)?;
        if size > MAX_DOCUMENT {
            return Err(self.document(member, format!("it is larger than {MAX_DOCUMENT} bytes")));
        }
        let mut content = Vec::new();
        let unread = |source| OciError::Read { image: self.image.clone(), member: member.to_owned(), source };
        reader.take(MAX_DOCUMENT).read_to_end(&mut content).map_err(unread)?;
        Ok(content)
    }

    /// The document that a descriptor names, checked against it.
    pub(super) fn described(&self, what: &str, descriptor: &Descriptor) -> Result<Vec<u8>, OciError> {
        let digest = self.digest(what, &descriptor.digest)?;
        let content = self.small(&blob_path(&digest))?;
        if content.len() as u64 != descriptor.size {
            let reason = format!("has {} bytes in place of {}", content.len(), descriptor.size);
            return Err(self.corrupt(what, &digest, reason));
        }
        self.check(what, &digest, &content)?;
        Ok(content)
    }

    /// Checks that `content` has this digest.
    pub(super) fn check(&self, what: &str, digest: &Digest, content: &[u8]) -> Result<(), OciError> {
        let mut digester = self.digester(what, digest)?;
        digester.update(content);
        if digester.agrees() {
            Ok(())
        } else {
            Err(self.corrupt(what, digest, "has other content than its digest says"))
        }
    }

    pub(super) fn digester(&self, what: &str, digest: &Digest) -> Result<Digester, OciError> {
        Ok(Digester::new(&self.sum(what, digest)?))
    }

    /// A digest of an algorithm that is checked here.
    pub(super) fn sum(&self, what: &str, digest: &Digest) -> Result<Sum, OciError> {
        let digits = digest.digest().to_owned();
        match digest.algorithm() {
            DigestAlgorithm::Sha256 => Ok(Sum::Sha256(digits)),
            DigestAlgorithm::Sha512 => Ok(Sum::Sha512(digits)),
            _ => {
                let reason =
                    format!("it is named by the digest '{digest}', and only sha256 and sha512 are checked here");
                Err(self.document(what, reason))
            }
        }
    }

    /// A digest that the document `what` has.
    pub(super) fn digest(&self, what: &str, text: &str) -> Result<Digest, OciError> {
        Digest::from_str(text).map_err(|error| self.document(what, error))
    }

    /// Has a document understood.
    pub(super) fn parse(&self, what: &str, shape: Shape, content: &[u8]) -> Result<Document, OciError> {
        let unread = |source| OciError::Read { image: self.image.clone(), member: what.to_owned(), source };
        let mut file = File::from(memory::file::sealed("document", content, false).map_err(unread)?);
        file.rewind().map_err(unread)?;
        let told = start_reader(&Job::Document(shape), file).and_then(|mut reader| reader.next());
        match told {
            Ok(Message::Document(document)) => Ok(document),
            Ok(_) => Err(self.unread(Died::Nonsense.into())),
            Err(ReaderError::Failed(Failure::Document(reason))) => Err(self.document(what, reason)),
            Err(error) => Err(self.unread(error)),
        }
    }

    pub(super) fn configuration(&self, content: &[u8]) -> Result<Configuration, OciError> {
        match self.parse("configuration", Shape::Configuration, content)? {
            Document::Configuration(configuration) => Ok(configuration),
            _ => Err(self.unread(Died::Nonsense.into())),
        }
    }

    fn unread(&self, error: ReaderError) -> OciError {
        unread_archive(&self.image, "its beginning", error).into()
    }

    pub(super) fn document(&self, what: &str, reason: impl ToString) -> OciError {
        OciError::Document { image: self.image.clone(), what: what.to_owned(), reason: reason.to_string() }
    }

    pub(super) fn corrupt(&self, what: &str, digest: &Digest, reason: impl ToString) -> OciError {
        let (what, digest) = (what.to_owned(), digest.to_string());
        OciError::Corrupt { image: self.image.clone(), what, digest, reason: reason.to_string() }
    }
}

/// Where the layout keeps a blob. A digest that was parsed has no character that means something in a path.
pub(super) fn blob_path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.digest())
}

/// The archive, expanded if it is compressed.
fn plain_archive(path: &Path, scratch: &Path, meter: &mut Meter<'_>) -> Result<File, OciError> {
    let (file, _) = open_archive(path)?;
    let unread = |source: io::Error| OciError::Read { image: path.to_owned(), member: ".".to_owned(), source };
    let mut first = [0; 6];
    let length = file.read_at(&mut first, 0).map_err(unread)?;
    if Compression::of(&first[..length]) == Compression::None {
        return Ok(file);
    }
    let unwritten = |error| {
        OciError::from(super::ArchiveError::from(WriteError::new(
            "expand into",
            Path::new("a temporary file"),
            scratch,
            error,
        )))
    };
    let failed = |error| OciError::from(unread_archive(path, "its beginning", error));
    let mut reader = start_reader(&Job::Expand, file).map_err(failed)?;
    let position = reader.position();
    if !matches!(reader.next().map_err(failed)?, Message::Expanded) {
        return Err(failed(Died::Nonsense.into()));
    }
    let mut expanded = tempfile::tempfile_in(scratch).map_err(unwritten)?;
    let mut room = SpareRoom::at(&expanded).map_err(|error| unwritten(error.into()))?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = reader.read(&mut buffer).map_err(|error| failed(reader.lost(&error)))?;
        if count == 0 {
            break;
        }
        room.take(count as u64).map_err(|refusal| {
            let refused = WriteError::refused(Path::new("a temporary file"), scratch, refusal);
            OciError::from(super::ArchiveError::from(refused))
        })?;
        expanded.write_all(&buffer[..count]).map_err(unwritten)?;
        meter.reach(position.get())?;
    }
    reader.next().map_err(failed)?;
    expanded.rewind().map_err(unwritten)?;
    Ok(expanded)
}

/// A part of a file. It has its own position, so that several may be read at a time.
struct Slice<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Slice<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let most = into.len().min(left);
        let count = self.file.read_at(&mut into[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Notes where each file of an archive is.
#[derive(Default)]
struct Members {
    members: HashMap<PathBuf, Member>,
}

impl Receiver for Members {
    fn receive(
        &mut self,
        entry: &Entry,
        _: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        step()?;
        let path = entry_path(&entry.path).map_err(UnpackError::Refused)?;
        let member = match &entry.kind {
            Kind::File => Member::File { offset: entry.content_offset, size: entry.size },
            Kind::HardLink(target) => Member::Link(entry_path(target).map_err(UnpackError::Refused)?),
            Kind::Symlink(target) => Member::Link(beside(&path, target)),
            _ => return Ok(()),
        };
        if self.members.len() >= MAX_MEMBERS {
            return Err(UnpackError::Refused(format!("is one of more than {MAX_MEMBERS}, which no image has")));
        }
        self.members.insert(path, member);
        Ok(())
    }
}

/// Where a symbolic link at `path` leads: only ever a key into the list of members.
fn beside(path: &Path, target: &[u8]) -> PathBuf {
    let mut at = path.parent().unwrap_or(Path::new("")).to_owned();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                at.pop();
            }
            part => at.push(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(part)),
        }
    }
    at
}
