//! Programs that are being run and that a transaction has changed: the kernel lets nobody write to them, so that the
//! commit puts a new file in their place.
//!
//! They are found by trying. That is done last, when all is validated: in a target whoever opens a file to write to it
//! has it copied up, and with it the directories on the way, and would be in conflict with himself.

use super::node::{Directory, File, Indexed, Node, What};
use super::walk::WalkError;
use crate::tree::confined::{CallPath, Tree};
use crate::tree::identity::is_gone;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;

/// Has such files replaced, of all that were changed.
///
/// # Errors
///
/// Where one has several names, which a new file would not have; where one cannot be written to for a reason that is
/// none of those.
pub(crate) fn replace_executed(live: &Tree, root: &mut Node, indexed: &mut [Indexed]) -> Result<(), WalkError> {
    of_node(live, root)?;
    indexed.iter_mut().try_for_each(|one| of_file(live, &one.path, &mut one.file))
}

fn of_node(live: &Tree, node: &mut Node) -> Result<(), WalkError> {
    match &mut node.what {
        What::Gone => Ok(()),
        What::File(file) => of_file(live, &node.path, file),
        What::Directory(Directory { children, .. }) => children.iter_mut().try_for_each(|child| of_node(live, child)),
    }
}

fn of_file(live: &Tree, path: &TreePath, file: &mut File) -> Result<(), WalkError> {
    let Some(origin) = file.origin.as_ref().filter(|_| file.content_differs) else { return Ok(()) };
    let names = origin.identity.open(live).and_then(|object| {
        let names = rustix::fs::fstat(&object)?.st_nlink;
        let how = Written::of(&CallPath::of(object)?)?;
        // A new file in the place of one that nobody may write to is lost to nobody.
        Ok((how == Written::NotWhileRun || how == Written::Untold && names == 1).then_some(names))
    });
    match names {
        Ok(None) => Ok(()),
        Ok(Some(1)) => {
            file.origin = None;
            Ok(())
        }
        Ok(Some(_)) => Err(WalkError::Executed(live.shown(path))),
        Err(error) if is_gone(&error) => Err(WalkError::Lost(live.shown(path))),
        Err(source) => Err(WalkError::Read { path: live.shown(path), source }),
    }
}

/// Whether a file can be written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    InPlace,
    /// It is a program that is being run (ETXTBSY).
    NotWhileRun,
    /// It is immutable, so that this cannot be told.
    Untold,
}

impl Written {
    /// Tries. What else is in the way of writing to a file is an error, and better now than after the commit point. One
    /// that may only grow is opened as such: others may have it open.
    fn of(file: &CallPath) -> io::Result<Self> {
        match rustix::fs::open(file.text.as_c_str(), OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC, Mode::empty()) {
            Ok(_) => Ok(Self::InPlace),
            Err(Errno::TXTBSY) => Ok(Self::NotWhileRun),
            Err(Errno::PERM) if !Protection::of(file)?.is_none() => Ok(Self::Untold),
            Err(errno) => Err(errno.into()),
        }
    }
}
