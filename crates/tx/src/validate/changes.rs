//! Whether what a transaction built on is still what it found.
//!
//! What is checked here is everything that the change set touches: the names that it replaces, removes and creates, the
//! files that it changes, the directories that it does so in. All of it must be older than the transaction, or the two
//! of them changed the same thing.

use crate::change::upper::{Directory, DirectorySource, File, Indexed, LiveName, Node, What};
use crate::crash::planted;
use crate::tree::attributes::Moment;
use crate::validate::conflict::{Conflict, Interference};
use std::path::PathBuf;

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
    Conflict::SeveralNames { mount: PathBuf::new(), index: file.path.to_string() }
}

fn of_node(node: &Node, begun: Moment) -> Option<Conflict> {
    let conflict = |what| Some(Conflict::at(node.path.as_path(), what));
    match &node.what {
        What::Gone => match &node.live {
            None => conflict(Interference::Removed),
            // What is in a directory that was emptied and removed is not looked at: a name created in it since changes
            // its time.
            Some(live) if live.changed.is_since(begun) => conflict(Interference::Changed),
            Some(_) => None,
        },
        What::File(file) => of_file(node, file, begun),
        What::Directory(directory) => of_directory(node, directory, begun),
    }
}

fn of_file(node: &Node, file: &File, begun: Moment) -> Option<Conflict> {
    let conflict = |what| Some(Conflict::at(node.path.as_path(), what));
    let replaced = |live: &LiveName| file.origin.as_ref().is_none_or(|origin| origin.ino != live.ino);
    match &node.live {
        Some(live) if replaced(live) && live.changed.is_since(begun) => conflict(Interference::Created),
        _ if is_changed_by_others(file, begun) => conflict(Interference::Changed),
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
        _ if directory.attributes_clash => Some(Conflict::at(node.path.as_path(), Interference::Changed)),
        // Names that come and go in a directory are no matter to one who uses others in it.
        DirectorySource::SamePlace => None,
        DirectorySource::New | DirectorySource::Moved { .. } if newer => {
            Some(Conflict::at(node.path.as_path(), Interference::Created))
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
    use pando_kernel::file::handle::FileHandle;

    const BEFORE: Moment = Moment { seconds: 9, nanoseconds: 0 };
    const BEGUN: Moment = Moment { seconds: 10, nanoseconds: 0 };
    const SINCE: Moment = Moment { seconds: 11, nanoseconds: 0 };

    fn found(live: Option<Moment>, what: What) -> Option<Interference> {
        let live = live.map(|changed| LiveName { ino: 5, directory: false, changed });
        let child = Node { path: TreePath::new(b"a").unwrap(), ino: 9, live, marked: false, what };
        let top = Directory {
            attributes_differ: true,
            modified: BEGUN,
            ..Directory::holding(DirectorySource::SamePlace, vec![child])
        };
        let live = Some(LiveName { ino: 2, directory: true, changed: SINCE });
        let root = Node { path: TreePath::ROOT, ino: 1, live, marked: false, what: What::Directory(top) };
        conflict(&root, &[], BEGUN).map(|found| match found {
            Conflict::At { what, .. } => what,
            other => panic!("{other}"),
        })
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
        assert_eq!(found(None, What::Gone), Some(Interference::Removed));
        assert_eq!(found(Some(SINCE), What::Gone), Some(Interference::Changed));
        assert_eq!(found(Some(BEGUN), file(None)), Some(Interference::Created));
        assert_eq!(found(Some(SINCE), file(Some((5, SINCE)))), Some(Interference::Changed));
        assert_eq!(found(Some(SINCE), file(Some((6, BEFORE)))), Some(Interference::Created));
    }
}
