//! Parts of a tree, read in any order, put together in one: a list of leaves is part of what makes an image, and equal
//! trees have equal images.

use composefs::fsverity::Sha256HashValue;
use composefs::generic_tree::{Inode, Leaf, LeafId, Stat};
use composefs::tree::{Directory, FileSystem, RegularFile};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

/// A file, with all that an image says of it.
pub(crate) type Found = Leaf<RegularFile<Sha256HashValue>>;

/// The device and the inode of a file.
type Identity = (u64, u64);

/// What was met under a name.
#[derive(Debug)]
pub(crate) enum Met {
    /// A file that has no other name.
    Only(Found),
    /// One that may have others.
    First(Identity, Found),
    /// Another name of such a one, wherever that is or will be met.
    Again(Identity),
}

/// What was read of a tree so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    directories: Vec<Part>,
    /// Files with several names.
    several: HashMap<Identity, Several>,
}

/// A directory.
#[derive(Debug)]
struct Part {
    attributes: Stat,
    entries: Vec<(OsString, Entry)>,
}

#[derive(Debug)]
enum Entry {
    Directory(usize),
    File(Found),
    Several(Identity),
}

#[derive(Debug)]
enum Several {
    Found(Found),
    /// It has its place among the leaves.
    Placed(LeafId),
}

impl Parts {
    /// Adds a directory, which lies under a name in one that was added before, or is the tree's root. The answer is its
    /// number.
    pub(crate) fn directory(&mut self, above: Option<usize>, name: &OsStr, attributes: Stat) -> usize {
        let number = self.directories.len();
        self.directories.push(Part { attributes, entries: Vec::new() });
        if let Some(above) = above {
            self.directories[above].entries.push((name.to_owned(), Entry::Directory(number)));
        }
        number
    }

    /// Adds files of the directory with a number.
    pub(crate) fn files(&mut self, number: usize, files: Vec<(OsString, Met)>) {
        for (name, met) in files {
            let entry = match met {
                Met::Only(found) => Entry::File(found),
                Met::First(identity, found) => {
                    self.several.insert(identity, Several::Found(found));
                    Entry::Several(identity)
                }
                Met::Again(identity) => Entry::Several(identity),
            };
            self.directories[number].entries.push((name, entry));
        }
    }

    /// The tree. Recurses as deep as it is: to be called on a deep stack.
    ///
    /// # Panics
    ///
    /// Where there is no root, or a file was met again that was never met.
    pub(crate) fn assemble(self) -> FileSystem<Sha256HashValue> {
        let parts = self.directories.into_iter().map(Some).collect();
        let mut assembly = Assembly { parts, several: self.several, leaves: Vec::new() };
        let root = assembly.directory(0);
        FileSystem { root, leaves: assembly.leaves }
    }
}

struct Assembly {
    parts: Vec<Option<Part>>,
    several: HashMap<Identity, Several>,
    leaves: Vec<Found>,
}

impl Assembly {
    fn directory(&mut self, number: usize) -> Directory<Sha256HashValue> {
        let mut part = self.parts[number].take().expect("each directory lies in one other");
        part.entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut made = Directory::new(part.attributes);
        for (name, entry) in part.entries {
            let inode = match entry {
                Entry::Directory(number) => Inode::Directory(Box::new(self.directory(number))),
                Entry::File(found) => Inode::leaf(self.place(found)),
                Entry::Several(identity) => Inode::leaf(self.again(identity)),
            };
            made.insert(&name, inode);
        }
        made
    }

    fn place(&mut self, found: Found) -> LeafId {
        self.leaves.push(found);
        LeafId(self.leaves.len() - 1)
    }

    fn again(&mut self, identity: Identity) -> LeafId {
        let id = match self.several.remove(&identity).expect("it was met once") {
            Several::Found(found) => self.place(found),
            Several::Placed(id) => id,
        };
        self.several.insert(identity, Several::Placed(id));
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use composefs::generic_tree::LeafContent;

    fn stat(mode: u32) -> Stat {
        Stat { st_mode: mode, ..Stat::uninitialized() }
    }

    fn file(mode: u32) -> Found {
        Leaf { stat: stat(mode), content: LeafContent::Fifo }
    }

    fn name(name: &str) -> OsString {
        name.into()
    }

    #[test]
    fn the_order_in_which_parts_were_read_does_not_matter() {
        let mut one = Parts::default();
        let root = one.directory(None, OsStr::new("."), stat(0));
        let below = one.directory(Some(root), OsStr::new("b"), stat(1));
        one.files(root, vec![(name("c"), Met::Again((1, 7))), (name("a"), Met::Only(file(2)))]);
        one.files(below, vec![(name("x"), Met::First((1, 7), file(3)))]);
        let mut other = Parts::default();
        let root = other.directory(None, OsStr::new("."), stat(0));
        other.files(root, vec![(name("a"), Met::Only(file(2)))]);
        other.files(root, vec![(name("c"), Met::First((1, 7), file(3)))]);
        let below = other.directory(Some(root), OsStr::new("b"), stat(1));
        other.files(below, vec![(name("x"), Met::Again((1, 7)))]);
        let (one, other) = (one.assemble(), other.assemble());
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        assert_eq!(one.leaves.iter().map(|leaf| leaf.stat.st_mode).collect::<Vec<_>>(), [2, 3]);
    }
}
