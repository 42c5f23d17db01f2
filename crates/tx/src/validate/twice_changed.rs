//! Whether a transaction has changed one thing by way of two mounts.
//!
//! A directory that is mounted at a second place (`mount --bind`) has a part of its own there: inside, neither sees
//! what is done by way of the other, and of two changes of one file, or of one name, the commit would keep the later
//! part's alone.

use crate::change::upper::{Directory, DirectorySource, Node, What};
use crate::validate::change_set::PartChanges;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// What was changed, on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// A live file or directory, by its inode.
    Object(u64),
    /// A name in a live directory, by that one's inode.
    Name(u64, OsString),
    /// A live directory that stays and has other names in it, which any number of parts may make.
    Around(u64),
}

impl Subject {
    /// What nobody else may have changed at the same time.
    fn against(&self) -> Vec<Self> {
        match self {
            Self::Object(ino) => vec![Self::Object(*ino), Self::Around(*ino)],
            Self::Name(..) => vec![self.clone()],
            Self::Around(ino) => vec![Self::Object(*ino)],
        }
    }
}

/// Two paths, below the roots of two parts, that lead to one thing which both have changed.
pub(crate) fn twice_changed(parts: &[PartChanges]) -> io::Result<Option<[PathBuf; 2]>> {
    let changed: Vec<_> = parts.iter().filter(|part| part.part.target.is_none() && !part.steps.is_empty()).collect();
    if changed.len() < 2 {
        return Ok(None);
    }
    let mut known: HashMap<(u64, Subject), (usize, PathBuf)> = HashMap::new();
    for (number, changes) in changed.iter().enumerate() {
        let device = std::fs::metadata(&changes.part.base)?.dev();
        let mut things = Vec::new();
        of_directory(changes.root(), None, &mut things);
        for (thing, node) in things {
            let path = changes.part.live.join(node.path.as_path());
            let others = thing.against().into_iter().filter_map(|other| known.get(&(device, other)));
            if let Some((_, other)) = others.into_iter().find(|(first, _)| *first != number) {
                return Ok(Some([other.clone(), path]));
            }
            known.entry((device, thing)).or_insert((number, path));
        }
    }
    Ok(None)
}

/// What was changed at a name in a live directory, if it is in one, and below.
fn of_directory<'a>(node: &'a Node, around: Option<u64>, things: &mut Vec<(Subject, &'a Node)>) {
    let mut tell = |thing: Subject| things.push((thing, node));
    let name = || Some(Subject::Name(around?, node.path.split()?.1.to_owned()));
    let inner = match &node.what {
        What::Directory(Directory { source: DirectorySource::SamePlace, .. }) => {
            let ino = node.live.as_ref().map(|live| live.ino);
            ino.map(Subject::Around).into_iter().for_each(&mut tell);
            ino
        }
        What::Directory(Directory { source, .. }) => {
            name().into_iter().for_each(&mut tell);
            if let DirectorySource::Moved { ino, .. } = source {
                tell(Subject::Object(*ino));
            }
            None
        }
        What::File(file) => {
            // One that was changed where it is has its name still.
            match file.origin.as_ref().map(|origin| origin.ino) {
                Some(ino) if node.live.as_ref().is_some_and(|live| live.ino == ino) => tell(Subject::Object(ino)),
                Some(ino) => {
                    tell(Subject::Object(ino));
                    name().into_iter().for_each(&mut tell);
                }
                None => name().into_iter().for_each(&mut tell),
            }
            None
        }
        What::Gone => {
            name().into_iter().chain(node.live.as_ref().map(|live| Subject::Object(live.ino))).for_each(&mut tell);
            None
        }
    };
    if let What::Directory(Directory { children, .. }) = &node.what {
        children.iter().for_each(|child| of_directory(child, inner, things));
    }
}
