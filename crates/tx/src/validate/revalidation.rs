//! Revalidation: what others did between the validation of a change set and its commit point.
//!
//! To bring what is new to the disk takes from a millisecond to minutes, in which a host's other processes go on. What
//! they do to anything that the commit is about to replace, remove or create is found by looking at the same names and
//! files once more, and at nothing of what the transaction wrote.

use crate::change::split_attribution::ByOthers;
use crate::change::upper::{Directory, DirectorySource, File, Indexed, Node, What};
use crate::crash::planted;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::{CallPath, Tree, leads_elsewhere};
use crate::tree::identity::is_gone;
use crate::tree::path::TreePath;
use crate::validate::changes::of_several_names;
use crate::validate::conflict::{Conflict, Interference};
use std::io;

/// The first thing that is not as it was when the change set was read, of all that this is about to replace, remove or
/// create.
pub(crate) fn changed_since(live: &Tree, root: &Node, indexed: &[Indexed]) -> io::Result<Option<Conflict>> {
    if planted("blind-changes") {
        return Ok(None);
    }
    if let Some(found) = below(live, root, Some(&TreePath::ROOT))? {
        return Ok(Some(found));
    }
    for file in indexed {
        if is_touched(live, &file.file)? {
            return Ok(Some(of_several_names(file)));
        }
    }
    Ok(None)
}

/// The same in a directory, which the live tree has at `at`, if it has it.
fn below(live: &Tree, node: &Node, at: Option<&TreePath>) -> io::Result<Option<Conflict>> {
    let What::Directory(directory) = &node.what else { return Ok(None) };
    let at = match &directory.source {
        DirectorySource::New => None,
        DirectorySource::SamePlace => at,
        DirectorySource::Moved { from, .. } => Some(from),
    };
    if let (Some(before), Some(at)) = (&directory.before, at)
        && !before.is_still_of(live, at)?
    {
        return Ok(Some(Conflict::at(node.path.as_path(), Interference::Changed)));
    }
    for child in &directory.children {
        let at = at.and_then(|at| Some(at.join(child.path.split()?.1)));
        let found = match touched(live, child, at.as_ref())? {
            Some(what) => Some(Conflict::at(child.path.as_path(), what)),
            None => below(live, child, at.as_ref())?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What has happened to a name, or to the file that is about to be there.
fn touched(live: &Tree, node: &Node, at: Option<&TreePath>) -> io::Result<Option<Interference>> {
    // Names come and go in a directory that both go on to use.
    let shared = matches!(&node.what, What::Directory(Directory { source: DirectorySource::SamePlace, .. }));
    let now = match at.map(|at| live.look_ident(at)).transpose() {
        Err(error) if leads_elsewhere(&error) => None,
        now => now?.flatten(),
    };
    match (&node.live, now) {
        (None, None) => {}
        (None, Some(_)) => return Ok(Some(Interference::Created)),
        (Some(_), None) => return Ok(Some(Interference::Removed)),
        (Some(then), Some((now, ino))) => {
            let is_as_it_was = shared || has_their_content(&node.what) || then.changed == Moment::changed(&now);
            if then.ino != ino || !is_as_it_was {
                return Ok(Some(Interference::Changed));
            }
        }
    }
    match &node.what {
        What::File(file) => Ok(is_touched(live, file)?.then_some(Interference::Changed)),
        What::Gone | What::Directory(_) => Ok(None),
    }
}

/// Whether others may go on to write to what is at a name.
fn has_their_content(what: &What) -> bool {
    matches!(what, What::File(File { theirs: Some(ByOthers::Content(_)), .. }))
}

/// Whether anything has happened to the live tree's file that one was copied from, wherever its names are, but for what
/// is left to others.
fn is_touched(live: &Tree, file: &File) -> io::Result<bool> {
    let Some(origin) = &file.origin else { return Ok(false) };
    match origin.identity.open(live) {
        Ok(object) => match &file.theirs {
            Some(ByOthers::Content(attributes)) => {
                Ok(!Attributes::of(&CallPath::of(object)?)?.is_same_but_for_time(attributes))
            }
            Some(ByOthers::Attributes) | None => Ok(Moment::changed(&rustix::fs::fstat(object)?) != origin.changed),
        },
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::{Aspect, LiveName, Origin};
    use crate::tree::identity::Identity;
    use crate::tree::protection::Protection;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    /// What `meanwhile` does to a tree with the directory `d` and the file `d/f` in it, both of which stay what they
    /// are, between two looks at the transaction's change.
    fn found_since(name: &str, what: impl Fn(&Tree) -> What, meanwhile: impl Fn(&Path)) -> Option<Interference> {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/f"), "before").unwrap();
        let live = Tree::open(temporary.path()).unwrap();
        let node = |path: &str, what: What| {
            let path = TreePath::new(path.as_bytes()).unwrap();
            let now = live.look_ident(&path).unwrap();
            let now = now.map(|(stat, ino)| LiveName {
                ino,
                directory: stat.st_mode & 0o170_000 == 0o040_000,
                changed: Moment::changed(&stat),
            });
            Node { path, ino: 9, live: now, marked: false, what }
        };
        let directory = |path: &str, children| {
            let path = live.call_path(&TreePath::new(path.as_bytes()).unwrap()).unwrap();
            let before = Aspect { attributes: Attributes::of(&path).unwrap(), protection: Protection::default() };
            let directory = Directory::holding(DirectorySource::SamePlace, children);
            What::Directory(Directory { before: Some(before), ..directory })
        };
        let inner = node("d", directory("d", vec![node(name, what(&live))]));
        let root = node("", directory("", vec![inner]));
        assert_eq!(changed_since(&live, &root, &[]).unwrap(), None, "nothing has happened yet");
        // A clock that ticks too slowly would hide what is done at once.
        std::thread::sleep(Duration::from_millis(20));
        meanwhile(temporary.path());
        changed_since(&live, &root, &[]).unwrap().map(|found| match found {
            Conflict::At { what, .. } => what,
            other => panic!("{other}"),
        })
    }

    /// The file `d/f`, changed.
    fn of_the_live_one(live: &Tree) -> What {
        let object = live.object(&TreePath::new(b"d/f").unwrap()).unwrap();
        let stat = rustix::fs::fstat(&object).unwrap();
        let identity = Identity::of(&object).unwrap();
        let origin = Origin { ino: stat.st_ino, identity, changed: Moment::changed(&stat) };
        What::File(File { origin: Some(origin), attributes_differ: false, ..File::made() })
    }

    /// One that it made.
    fn made() -> What {
        What::File(File::made())
    }

    #[test]
    fn what_others_do_between_two_looks_is_seen() {
        let write = |at: &Path| std::fs::write(at.join("d/f"), "after").unwrap();
        let create = |at: &Path| std::fs::write(at.join("d/g"), "new").unwrap();
        let remove = |at: &Path| std::fs::remove_file(at.join("d/f")).unwrap();
        assert_eq!(found_since("d/f", |_| What::Gone, write), Some(Interference::Changed));
        assert_eq!(found_since("d/f", of_the_live_one, write), Some(Interference::Changed));
        assert_eq!(found_since("d/f", |_| What::Gone, remove), Some(Interference::Removed));
        assert_eq!(found_since("d/g", |_| made(), create), Some(Interference::Created));
        // Under another name, that has nothing in its way.
        assert_eq!(found_since("d/g", of_the_live_one, write), Some(Interference::Changed));
        assert_eq!(found_since("d/g", of_the_live_one, remove), Some(Interference::Changed));
        let chmod = |at: &Path| std::fs::set_permissions(at, PermissionsExt::from_mode(0o710)).unwrap();
        assert_eq!(found_since("d/g", |_| made(), |at| chmod(&at.join("d"))), Some(Interference::Changed));
        assert_eq!(found_since("d/g", |_| made(), chmod), Some(Interference::Changed));
        // Names beside it are nobody's matter.
        assert_eq!(found_since("d/f", of_the_live_one, create), None);
        assert_eq!(found_since("d/f", |_| What::Gone, create), None);
    }
}
