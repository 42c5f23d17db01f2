//! What others have changed in a directory that a transaction has removed, or put something else in the place of. The
//! view tells of nothing that was in it: what is to go, and was changed since the transaction began, goes with a change
//! that nobody has seen.

use crate::change::upper::{Directory, DirectorySource, Node, What};
use crate::crash::planted;
use crate::tree::attributes::Moment;
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use crate::validate::conflict::{Conflict, Interference};
use rustix::fs::FileType;
use std::collections::HashSet;
use std::io;

/// The first thing in such a directory that others have changed since a transaction began, of all that does not go on
/// elsewhere.
pub(crate) fn changed_within(live: &Tree, root: &Node, begun: Moment) -> io::Result<Option<Conflict>> {
    let mut removed = Vec::new();
    collect_removed(root, Some(&TreePath::ROOT), &mut removed);
    if removed.is_empty() || planted("removed-unseen") {
        return Ok(None);
    }
    let mut kept = HashSet::new();
    collect_kept(root, &mut kept);
    for (at, ino) in removed {
        if kept.contains(&ino) {
            continue;
        }
        if let Some(path) = newer_below(live, at, begun, &kept)? {
            return Ok(Some(Conflict::at(path.as_path(), Interference::Changed)));
        }
    }
    Ok(None)
}

/// The live tree's directories that are not at their names any more, where it has them, with their inodes.
fn collect_removed(node: &Node, at: Option<&TreePath>, removed: &mut Vec<(TreePath, u64)>) {
    let What::Directory(Directory { source, children, .. }) = &node.what else { return };
    let at = match source {
        DirectorySource::New => None,
        DirectorySource::SamePlace => at,
        DirectorySource::Moved { from, .. } => Some(from),
    };
    for child in children {
        let at = at.and_then(|at| Some(at.join(child.path.split()?.1)));
        let stays = matches!(&child.what, What::Directory(Directory { source: DirectorySource::SamePlace, .. }));
        if let (Some(at), Some(name)) = (&at, child.live.as_ref().filter(|name| name.directory && !stays)) {
            removed.push((at.clone(), name.ino));
        }
        collect_removed(child, at.as_ref(), removed);
    }
}

/// The inodes of all that has another place now.
fn collect_kept(node: &Node, kept: &mut HashSet<u64>) {
    match &node.what {
        What::Gone => {}
        What::File(file) => kept.extend(file.origin.as_ref().map(|origin| origin.ino)),
        What::Directory(Directory { source, children, .. }) => {
            if let DirectorySource::Moved { ino, .. } = source {
                kept.insert(*ino);
            }
            children.iter().for_each(|child| collect_kept(child, kept));
        }
    }
}

fn newer_below(live: &Tree, top: TreePath, begun: Moment, kept: &HashSet<u64>) -> io::Result<Option<TreePath>> {
    let mut left = vec![top];
    while let Some(directory) = left.pop() {
        let names = match live.names(&directory) {
            // Others have removed it, which its name tells, or have mounted something over it, which the commit is
            // refused for.
            Err(error) if is_missing(&error) || leads_elsewhere(&error) => continue,
            names => names?,
        };
        for name in names {
            let path = directory.join(&name);
            let Some(now) = live.look(&path)? else { continue };
            let is_directory = FileType::from_raw_mode(now.st_mode) == FileType::Directory;
            let is_newer = Moment::changed(&now).is_since(begun);
            if !kept.is_empty() && (is_newer || is_directory) && kept.contains(&live.ident(&path, &now)?) {
                continue;
            }
            if is_newer {
                // What others have mounted over it meanwhile is told by itself, in words of its own.
                match live.object(&path) {
                    Err(error) if is_missing(&error) || leads_elsewhere(&error) => continue,
                    object => drop(object?),
                }
                return Ok(Some(path));
            }
            if is_directory {
                left.push(path);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::LiveName;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    fn directory(source: DirectorySource, children: Vec<Node>) -> What {
        What::Directory(Directory::holding(source, children))
    }

    /// What is found where `d`, with the directory `e` and the file `e/f` in it, became `what`; `e` went to `away`, if
    /// it did.
    fn found(what: What, begun: Moment, away: bool) -> Option<String> {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("d/e")).unwrap();
        std::fs::write(temporary.path().join("d/e/f"), "").unwrap();
        let live = Tree::open(temporary.path()).unwrap();
        let name = |at: &str| {
            let stat = live.stat(&path(at)).unwrap();
            Some(LiveName { ino: stat.st_ino, directory: true, changed: Moment::changed(&stat) })
        };
        let moved = DirectorySource::Moved { from: path("d/e"), ino: live.stat(&path("d/e")).unwrap().st_ino };
        let node = |at: &str, live, what| Node { path: path(at), ino: 9, live, marked: false, what };
        let mut children = vec![node("d", name("d"), what)];
        children.extend(away.then(|| node("away", None, directory(moved, vec![]))));
        let root = node("", name(""), directory(DirectorySource::SamePlace, children));
        changed_within(&live, &root, begun).unwrap().map(|conflict| conflict.to_string())
    }

    #[test]
    fn what_goes_must_be_what_it_was() {
        let (before, later) = (Moment { seconds: 1, nanoseconds: 0 }, Moment { seconds: i64::MAX, nanoseconds: 0 });
        assert_eq!(found(What::Gone, before, false), Some("d/e was changed by others".to_owned()));
        assert_eq!(
            found(directory(DirectorySource::New, vec![]), before, false),
            Some("d/e was changed by others".to_owned())
        );
        assert_eq!(found(What::Gone, later, false), None);
        assert_eq!(found(directory(DirectorySource::SamePlace, vec![]), before, false), None, "it stays");
        assert_eq!(found(What::Gone, before, true), None, "what was in it goes on elsewhere");
    }
}
