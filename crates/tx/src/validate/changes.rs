//! Whether what a transaction built on is still what it found.
//!
//! What is checked here is everything that the change set touches: the names that it replaces, removes and creates, the files that it changes, the
//! directories that it does so in. All of it must be older than the transaction, or the two of them changed the same thing.

use crate::change::upper::{Directory, DirectorySource, File, Indexed, LiveName, Node, What};
use crate::crash::planted;
use crate::tree::attributes::Moment;
use std::fmt;

/// Something that others changed while the transaction ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its path, or as much as is known of it.
    pub path: String,
    /// What happened to it.
    pub what: &'static str,
}

impl Conflict {
    /// What others have changed since a transaction began cannot be told from what they changed before.
    pub(crate) fn of_the_clock() -> Self {
        Self { path: "the clock".to_owned(), what: "was set back by others" }
    }

    /// What a transaction has read is not known any more, so that any change of it may be one.
    pub(crate) fn of_memory() -> Self {
        Self { path: "what it read".to_owned(), what: FORGOTTEN }
    }

    /// Whether it is that something is there still, and not what it was.
    pub(crate) fn is_of_a_change(&self) -> bool {
        self.what == CHANGED
    }

    /// Whether it is that something may have been at a name, which nothing is at.
    pub(crate) fn is_of_a_name(&self) -> bool {
        self.what == MAY_BE_REMOVED
    }

    /// Whether it is that what was read is not known any more.
    pub(crate) fn is_of_memory(&self) -> bool {
        self.what == FORGOTTEN
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.path, self.what)
    }
}

const FORGOTTEN: &str = "was forgotten by the kernel, for the lack of memory";
pub(crate) const MAY_BE_REMOVED: &str = "may have been removed by others";
pub(crate) const CHANGED: &str = "was changed by others";
pub(crate) const REMOVED: &str = "was removed by others";
pub(crate) const CREATED: &str = "was created by others";

/// The first conflict of a transaction that began at `begun`, if there is one.
pub(crate) fn conflict(root: &Node, indexed: &[Indexed], begun: Moment) -> Option<Conflict> {
    if planted("blind-changes") {
        return None;
    }
    let of_index = || {
        let changed = |file: &&Indexed| is_changed_by_others(&file.file, begun);
        indexed.iter().find(changed).map(of_several_names)
    };
    of_node(root, begun).or_else(of_index)
}

/// What is wrong with a file that only the index knows.
pub(crate) fn of_several_names(file: &Indexed) -> Conflict {
    Conflict { path: format!("a file with several names ({})", file.path), what: CHANGED }
}

fn of_node(node: &Node, begun: Moment) -> Option<Conflict> {
    let conflict = |what| Some(Conflict { path: node.path.to_string(), what });
    match &node.what {
        What::Gone => match &node.live {
            None => conflict(REMOVED),
            // What is in a directory that was emptied and removed is not looked at: a name created in it since changes its time.
            Some(live) if live.changed.is_since(begun) => conflict(CHANGED),
            Some(_) => None,
        },
        What::File(file) => of_file(node, file, begun),
        What::Directory(directory) => of_directory(node, directory, begun),
    }
}

fn of_file(node: &Node, file: &File, begun: Moment) -> Option<Conflict> {
    let conflict = |what| Some(Conflict { path: node.path.to_string(), what });
    let replaced = |live: &LiveName| file.origin.as_ref().is_none_or(|origin| origin.ino != live.ino);
    match &node.live {
        Some(live) if replaced(live) && live.changed.is_since(begun) => conflict(CREATED),
        _ if is_changed_by_others(file, begun) => conflict(CHANGED),
        _ => None,
    }
}

fn is_changed_by_others(file: &File, begun: Moment) -> bool {
    let matters = (file.content_differs || file.attributes_differ) && file.theirs.is_none();
    matters && file.origin.as_ref().is_some_and(|origin| origin.changed.is_since(begun))
}

fn of_directory(node: &Node, directory: &Directory, begun: Moment) -> Option<Conflict> {
    let newer = node.live.as_ref().is_some_and(|live| live.changed.is_since(begun));
    let of_itself = match directory.source {
        _ if directory.attributes_clash => Some(Conflict { path: node.path.to_string(), what: CHANGED }),
        // Names that come and go in a directory are no matter to one who uses others in it.
        DirectorySource::SamePlace => None,
        DirectorySource::New | DirectorySource::Moved { .. } if newer => {
            Some(Conflict { path: node.path.to_string(), what: CREATED })
        }
        DirectorySource::New | DirectorySource::Moved { .. } => None,
    };
    of_itself.or_else(|| directory.children.iter().find_map(|child| of_node(child, begun)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::Origin;
    use crate::tree::path::TreePath;
    use pando_kernel::file_handle::FileHandle;

    const BEFORE: Moment = Moment { seconds: 9, nanoseconds: 0 };
    const BEGUN: Moment = Moment { seconds: 10, nanoseconds: 0 };
    const SINCE: Moment = Moment { seconds: 11, nanoseconds: 0 };

    fn found(live: Option<Moment>, what: What) -> Option<&'static str> {
        let live = live.map(|changed| LiveName { ino: 5, directory: false, changed });
        let child = Node { path: TreePath::new(b"a").unwrap(), ino: 9, live, marked: false, what };
        let top = Directory {
            attributes_differ: true,
            modified: BEGUN,
            ..Directory::holding(DirectorySource::SamePlace, vec![child])
        };
        let live = Some(LiveName { ino: 2, directory: true, changed: SINCE });
        let root = Node { path: TreePath::ROOT, ino: 1, live, marked: false, what: What::Directory(top) };
        conflict(&root, &[], BEGUN).map(|conflict| conflict.what)
    }

    fn file(origin: Option<(u64, Moment)>) -> What {
        let origin = origin.map(|(ino, changed)| Origin {
            ino,
            identity: FileHandle { kind: 1, bytes: vec![] }.into(),
            changed,
        });
        What::File(File { origin, ..File::made() })
    }

    #[test]
    fn what_is_older_than_the_transaction_is_no_conflict() {
        assert_eq!(found(Some(BEFORE), What::Gone), None);
        assert_eq!(found(Some(BEFORE), file(None)), None);
        assert_eq!(found(Some(BEFORE), file(Some((5, BEFORE)))), None);
        assert_eq!(found(None, file(None)), None);
    }

    #[test]
    fn what_others_did_since_is_one() {
        assert_eq!(found(None, What::Gone), Some(REMOVED));
        assert_eq!(found(Some(SINCE), What::Gone), Some(CHANGED));
        assert_eq!(found(Some(BEGUN), file(None)), Some(CREATED));
        assert_eq!(found(Some(SINCE), file(Some((5, SINCE)))), Some(CHANGED));
        assert_eq!(found(Some(SINCE), file(Some((6, BEFORE)))), Some(CREATED));
    }
}
