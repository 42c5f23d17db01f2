//! Whether paths are as a commit left them: where they are not, somebody has changed them since.

use super::put_back::there;
use crate::change::kept::{ContentLeft, ObjectBefore, PartKept};
use crate::change::review::{Ids, Look, Reviewed};
use crate::change::{Op, OpTarget, Sign, Steps};
use crate::tree::confined::{CallPath, Tree};
use crate::tree::content::{Digest, MOST_DIGESTED, digest};
use crate::tree::path::TreePath;
use rustix::fs::FileType;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// What has become of a path since a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// It was changed.
    Changed,
    /// It gets rights back, and nobody knows with which content it was left.
    Unknown,
    /// It is gone.
    Gone,
    /// Something is there again.
    ThereAgain,
    /// It came to be in a directory that the commit made.
    CameInto,
    /// It came to be in a directory that the commit removed, by who had that open.
    CameIntoRemoved,
    /// The directory that it would have to be in is gone, or another.
    NoDirectory,
    /// What was there before had as many names as a file can have, and could not be given one more to be kept.
    NotKept,
}

impl fmt::Display for Since {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Changed => "was changed",
            Self::Unknown => "may have been changed",
            Self::Gone => "is gone",
            Self::ThereAgain => "is there again",
            Self::CameInto => "came into a directory that it made",
            Self::CameIntoRemoved => "came into a directory that it removed",
            Self::NotKept => "had too many names to be kept",
            Self::NoDirectory => "has no directory to be put back into",
        })
    }
}

/// The paths that are not as the commit left them, in the tree `now`.
pub(super) fn changed_since(
    kept: &PartKept,
    steps: &Steps,
    now: &Tree,
    ids: Ids,
) -> io::Result<BTreeMap<TreePath, Since>> {
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
    for (op, before) in with_rights(steps, kept) {
        let Some(at) = op.place().filter(|at| !found.contains_key(*at)) else { continue };
        let Some(object) = there(now.object(at))? else { continue };
        if let Some(since) = of_content(before, object)? {
            found.insert(at.clone(), since);
        }
    }
    Ok(found)
}

/// What gets rights back that the commit has taken from it, without its content being put back as well.
fn with_rights<'a>(
    steps: &'a Steps,
    kept: &'a PartKept,
) -> impl Iterator<Item = (&'a OpTarget, &'a ObjectBefore)> + 'a {
    let updated = steps.updated();
    steps.finish.iter().zip(&kept.before).filter_map(move |(op, before)| match (op, before) {
        (Op::Attributes { target, .. }, Some(before)) if !updated.contains(target) => Some((target, before)),
        _ => None,
    })
}

/// What has become of the content with which a commit left an object, where that matters for its rights.
pub(super) fn of_content(before: &ObjectBefore, object: OwnedFd) -> io::Result<Option<Since>> {
    let left = match before.content {
        ContentLeft::Any => return Ok(None),
        ContentLeft::Unknown => return Ok(Some(Since::Unknown)),
        ContentLeft::Only(left) => left,
    };
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&object)?.st_mode) == FileType::RegularFile;
    let is_same = is_file && digest(&CallPath::of(object)?, &mut { MOST_DIGESTED })? == Some(left);
    Ok((!is_same).then_some(Since::Changed))
}

/// Whether it is a directory that the commit made: all that is in it came with it.
fn is_made(entry: &Reviewed) -> bool {
    let is_new = entry.replaced || entry.sign == Sign::Added && entry.moved_from.is_none();
    is_new && entry.new.as_ref().is_some_and(Look::is_directory)
}

fn of_entry(entry: &Reviewed, content: Option<Digest>, now: &Tree, ids: Ids) -> io::Result<Option<Since>> {
    let object = there(now.object(&entry.path))?;
    let left = entry.new.as_ref().filter(|_| !entry.by_other_names);
    let (left, object) = match (left, object) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Ok(Some(Since::ThereAgain)),
        (Some(_), None) => return Ok(Some(Since::Gone)),
        (Some(left), Some(object)) => (left, object),
    };
    let look = Look::of(object.try_clone()?, None, ids)?;
    let is_file = look.kind == FileType::RegularFile;
    let is_same = !look.is_other(left)
        && (look.is_directory() || look.modified == left.modified)
        && (!is_file || look.size == left.size);
    let is_same = is_same
        && match content.filter(|_| is_file) {
            Some(content) => digest(&CallPath::of(object)?, &mut { MOST_DIGESTED })? == Some(content),
            None => true,
        };
    Ok((!is_same).then_some(Since::Changed))
}
