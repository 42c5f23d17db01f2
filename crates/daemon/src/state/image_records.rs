//! What an imported image says of itself and of its processes: read by a process without powers before the daemon does,
//! and put anew by that.
//!
//! ```text
//!   about, tree as their maker put them ─▶ reader: JSON, postcard, all checks
//!                                       ─▶ the same, put anew ─▶ the files that everybody reads from then on
//! ```
//!
//! What is damaged, takes memory without bound or meets a fault in what parses it is the end of the reader. The daemon
//! understands and checks again what comes of it.

use crate::state::image::{ABOUT, ImageRecord, LONGEST_ABOUT};
use pando_freeze::{ImageFile, ImageFileError, Kind, LONGEST_TREE, LoadError, open_image_file};
use pando_reader::{Died, Failure, Job, Message, Parser, Reader, ReaderError};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The parsers that a reader has to have, by their names.
pub const PARSERS: [(&str, Parser); 2] = [(ABOUT, about), (TREE, pando_freeze::put_anew)];

const TREE: &str = "tree";

fn about(body: &[u8]) -> Result<Vec<u8>, String> {
    let record: ImageRecord = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    serde_json::to_vec_pretty(&record).map_err(|error| error.to_string())
}

/// Puts the records in a directory anew. Blocking.
pub(crate) fn put_anew(directory: &Path) -> Result<(), LoadError> {
    one(directory, ABOUT, Kind::About, LONGEST_ABOUT)?;
    one(directory, TREE, Kind::Tree, LONGEST_TREE)
}

fn one(directory: &Path, name: &str, kind: Kind, most: u64) -> Result<(), LoadError> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let (body, length) = open_image_file(&path, kind, most)?;
    let outcome = written(body, length, name, &new, kind, most);
    outcome.map_err(|unread| match unread {
        Unread::Here(source) => ImageFileError::Read { path: path.clone(), source }.into(),
        Unread::Reader(ReaderError::Failed(Failure::Record(what))) => {
            ImageFileError::Damaged { path: path.clone(), what }.into()
        }
        Unread::Reader(error) => {
            LoadError::Elsewhere(format!("{error}. Nothing was imported; be careful with where the export came from"))
        }
    })?;
    std::fs::rename(&new, &path).map_err(|source| ImageFileError::Read { path, source }.into())
}

/// Why there is no new one.
enum Unread {
    Here(io::Error),
    Reader(ReaderError),
}

impl From<ReaderError> for Unread {
    fn from(error: ReaderError) -> Self {
        Self::Reader(error)
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Here(error)
    }
}

fn written(body: File, length: u64, parser: &str, new: &Path, kind: Kind, most: u64) -> Result<(), Unread> {
    let mut reader = Reader::start(&Job::Record { parser: parser.to_owned(), length }, body)?;
    if reader.next()? != Message::Expanded {
        return Err(ReaderError::from(Died::Nonsense).into());
    }
    let mut image_file = ImageFile::create(new, kind)?;
    let mut buffer = vec![0; 256 << 10];
    let mut taken = 0;
    loop {
        let count = reader.read(&mut buffer).map_err(|error| reader.lost(&error))?;
        if count == 0 {
            break;
        }
        taken += count as u64;
        if taken > most {
            return Err(ReaderError::from(Died::Nonsense).into());
        }
        image_file.add(&buffer[..count])?;
    }
    match reader.next()? {
        Message::End(_) => Ok(image_file.finish()?),
        _ => Err(ReaderError::from(Died::Nonsense).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_anew_is_the_same_and_nothing_that_nobody_knows_is_kept() {
        let record = r#"{"guest":"web","spec":{},"layers":[],"command":null,"created":1,"processes":1,"threads":1,"memory_kib":4,"pause_us":1,"x":[[[]]]}"#;
        let anew = about(record.as_bytes()).unwrap();
        assert!(!String::from_utf8_lossy(&anew).contains("\"x\""));
        let one: ImageRecord = serde_json::from_slice(record.as_bytes()).unwrap();
        assert_eq!(serde_json::from_slice::<ImageRecord>(&anew).unwrap(), one);
        assert!(about(b"{").is_err() && pando_freeze::put_anew(b"").is_err());
    }
}
