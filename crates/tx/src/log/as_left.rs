//! Whether paths are as a commit left them: where they are not, somebody has changed them since.

use crate::change::Sign;
use crate::change::kept::PartKept;
use crate::change::review::{Ids, Look, Reviewed};
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::content::checksum;
use crate::tree::path::TreePath;
use rustix::fs::FileType;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;

/// What has become of a path since a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// It was changed.
    Changed,
    /// It is gone.
    Gone,
    /// Something is there again.
    ThereAgain,
    /// It came to be in a directory that the commit made.
    CameInto,
    /// The directory that it would have to be in is gone, or another.
    NoDirectory,
    /// What was there before had as many names as a file can have, and could not be given one more to be kept.
    NotKept,
}

impl fmt::Display for Since {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Changed => "was changed",
            Self::Gone => "is gone",
            Self::ThereAgain => "is there again",
            Self::CameInto => "came into a directory that it made",
            Self::NotKept => "had too many names to be kept",
            Self::NoDirectory => "has no directory to be put back into",
        })
    }
}

/// The paths that are not as the commit left them, in the tree `now`.
pub(super) fn changed_since(kept: &PartKept, now: &Tree, ids: Ids) -> io::Result<BTreeMap<TreePath, Since>> {
    let is_there = |entry: &&Reviewed| entry.new.is_some() && !entry.by_other_names;
    let left: HashSet<&TreePath> = kept.entries.iter().filter(is_there).map(|entry| &entry.path).collect();
    let mut found = BTreeMap::new();
    for (entry, content) in kept.entries.iter().zip(&kept.contents) {
        // Another came to the place of what was moved away, or of a name by which a file with others was changed.
        if (entry.new.is_none() || entry.by_other_names) && left.contains(&entry.path) {
            continue;
        }
        if let Some(since) = of_entry(entry, *content, now, ids)? {
            found.insert(entry.path.clone(), since);
        } else if is_made(entry) {
            let names = now.names(&entry.path)?.into_iter().map(|name| entry.path.join(&name));
            found.extend(names.filter(|path| !left.contains(path)).map(|path| (path, Since::CameInto)));
        }
    }
    Ok(found)
}

/// Whether it is a directory that the commit made: all that is in it came with it.
fn is_made(entry: &Reviewed) -> bool {
    let is_new = entry.replaced || entry.sign == Sign::Added && entry.moved_from.is_none();
    is_new && entry.new.as_ref().is_some_and(Look::is_directory)
}

fn of_entry(entry: &Reviewed, content: Option<u32>, now: &Tree, ids: Ids) -> io::Result<Option<Since>> {
    let object = match now.object(&entry.path) {
        Err(error) if is_missing(&error) || leads_elsewhere(&error) => None,
        object => Some(object?),
    };
    let left = entry.new.as_ref().filter(|_| !entry.by_other_names);
    let (left, object) = match (left, object) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Ok(Some(Since::ThereAgain)),
        (Some(_), None) => return Ok(Some(Since::Gone)),
        (Some(left), Some(object)) => (left, object),
    };
    let look = Look::of(object, None, ids)?;
    let is_file = look.kind == FileType::RegularFile;
    let is_same = !look.is_other(left)
        && (look.is_directory() || look.modified == left.modified)
        && (!is_file || look.size == left.size);
    let is_same = is_same
        && match content.filter(|_| is_file) {
            Some(content) => checksum(&now.file(&entry.path, false)?)? == content,
            None => true,
        };
    Ok((!is_same).then_some(Since::Changed))
}
