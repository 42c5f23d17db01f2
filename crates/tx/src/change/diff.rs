//! The change set for people: which paths come, go and change.

use crate::change::upper::{Directory, DirectorySource, File, Node, What};
use crate::tree::path::TreePath;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What happens to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sign {
    /// It comes.
    Added,
    /// It goes, with everything below it.
    Removed,
    /// It has another content, other attributes, or is another file.
    Changed,
}

impl fmt::Display for Sign {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Added => "+",
            Self::Removed => "-",
            Self::Changed => "~",
        })
    }
}

/// A path that comes, changes or goes with a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether it comes, changes or goes.
    pub sign: Sign,
    /// Which, below the root of its mount.
    pub path: TreePath,
    /// Whether it is, or was, a directory.
    pub directory: bool,
    /// Whether its content is a regular file's and differs: what a diff of text can show.
    pub content: bool,
    /// Bytes that are written for it.
    pub bytes: u64,
}

/// The changes in a tree whose root's node is `root`, in the order of the paths.
pub(crate) fn changes(root: &Node) -> Vec<Change> {
    let mut found = Vec::new();
    collect(root, &mut found);
    found
}

fn collect(node: &Node, into: &mut Vec<Change>) {
    let mut add = |sign, directory, content, bytes| {
        into.push(Change { sign, path: node.path.clone(), directory, content, bytes });
    };
    match &node.what {
        What::Gone => {
            if let Some(live) = &node.live {
                add(Sign::Removed, live.directory, false, 0);
            }
        }
        What::File(file) => {
            if let Some(sign) = sign_of_file(node, file) {
                add(
                    sign,
                    false,
                    file.kind == '-' && file.content_differs,
                    if file.content_differs { file.size } else { 0 },
                );
            }
        }
        What::Directory(directory) => {
            if let Some(sign) = sign_of_directory(node, directory) {
                add(sign, true, false, 0);
            }
            for child in &directory.children {
                collect(child, into);
            }
        }
    }
}

fn sign_of_file(node: &Node, file: &File) -> Option<Sign> {
    let Some(live) = &node.live else { return Some(Sign::Added) };
    let same = file.origin.as_ref().is_some_and(|origin| origin.ino == live.ino);
    (!same || file.content_differs || file.attributes_differ).then_some(Sign::Changed)
}

/// A directory whose time alone changed, because of the names in it, is not worth a line.
fn sign_of_directory(node: &Node, directory: &Directory) -> Option<Sign> {
    match (&directory.source, &node.live) {
        (DirectorySource::SamePlace, _) => {
            (directory.attributes_differ && directory.children.is_empty()).then_some(Sign::Changed)
        }
        (_, None) => Some(Sign::Added),
        (_, Some(_)) => Some(Sign::Changed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::LiveName;
    use crate::tree::attributes::Moment;

    const MOMENT: Moment = Moment { seconds: 1, nanoseconds: 0 };

    fn node(path: &str, live: Option<bool>, what: What) -> Node {
        let live = live.map(|directory| LiveName { ino: 5, directory, changed: MOMENT });
        Node { path: TreePath::new(path.as_bytes()).unwrap(), ino: 9, live, marked: false, what }
    }

    fn directory(source: DirectorySource, children: Vec<Node>) -> What {
        What::Directory(Directory { attributes_differ: true, modified: MOMENT, ..Directory::holding(source, children) })
    }

    #[test]
    fn each_path_has_its_sign() {
        let new = || What::File(File { size: 3, ..File::made() });
        let made = node("b", None, directory(DirectorySource::New, vec![node("b/c", None, new())]));
        let children = vec![node("a", Some(false), new()), made, node("d", Some(true), What::Gone)];
        let root = node("", Some(true), directory(DirectorySource::SamePlace, children));
        let lines: Vec<_> =
            changes(&root).iter().map(|one| format!("{} {} {}", one.sign, one.path, one.bytes)).collect();
        assert_eq!(lines, ["~ /a 3", "+ /b 0", "+ /b/c 3", "- /d 0"]);
    }
}
