//! Records of the walk, put together to paths.

use crate::tree::attributes::Moment;
use crate::tree::path::TreePath;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A name that nothing has, looked up first of all: the kernel forgets the oldest names first, so that as long as it
/// knows this one it knows all. Each control group that is charged for memory forgets by itself, so that there is one
/// of each command's, behind whose name stands a number. It forgets while the names are told, too: what counts is that
/// a canary is there when all others have been told.
pub(crate) const CANARY: &str = ".pando-tx-canary";

/// Bytes of a record before the name; see `struct record` of the BPF program.
const HEAD: usize = 88;

/// `OVERLAYFS_SUPER_MAGIC`: an overlay keeps no time of its own that could be relied on.
const OVERLAY: u64 = libc::OVERLAYFS_SUPER_MAGIC.cast_unsigned();

/// A dentry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    address: u64,
    parent: u64,
    /// The live tree's, if it leads to an object of the live tree.
    lower: Option<Lower>,
    positive: bool,
    directory: bool,
    /// One of those without an object in the root, which are told again at the end.
    again: bool,
    /// Whether its changed object may have taken the place of another.
    replaces: bool,
    name: Vec<u8>,
}

/// What the live tree has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lower {
    dentry: u64,
    /// The dentry that it is in.
    around: u64,
    /// Whether its name still leads to it.
    hashed: bool,
    ino: u64,
    /// When it was last changed, where that can be relied on.
    changed: Option<Moment>,
}

impl Lower {
    fn is_older_than(&self, begun: Moment) -> bool {
        self.changed.is_some_and(|changed| !changed.is_since(begun))
    }

    /// Whether it is where it was, in `around`, and what it was. The view holds its dentry, so that this is taken out
    /// of the hash when its name goes, and gets another parent when it is moved; one that was renamed in its directory
    /// has another time.
    fn is_settled(&self, around: &Self, begun: Moment) -> bool {
        self.hashed && self.around == around.dentry && self.is_older_than(begun)
    }
}

/// A name of the live tree that was looked up in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// Where the view has it.
    pub(crate) path: TreePath,
    /// The live tree's inode that it led to; none if it led to nothing.
    pub(crate) found: Option<u64>,
    /// Whether that was a directory.
    pub(crate) directory: bool,
    /// Whether the kernel says that the live tree would answer the same today: nobody need ask.
    pub(crate) settled: bool,
}

impl Seen {
    /// Reads one; `None` for what is no record.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |number: usize| {
            let at = 8 * number;
            Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (mode, length) = (half(80)?, usize::from(half(82)?));
        let (seconds, nanoseconds) = (word(7)?.cast_signed(), u32::try_from(word(8)?).ok()?);
        let lower = Lower {
            dentry: word(3)?,
            around: word(4)?,
            hashed: word(5)? != 0,
            ino: word(6)?,
            changed: Some(Moment { seconds, nanoseconds })
                .filter(|moment| *moment != Moment::EPOCH && word(9) != Some(OVERLAY)),
        };
        Some(Self {
            address: word(0)?,
            parent: word(1)?,
            lower: Some(lower).filter(|lower| lower.dentry != 0),
            positive: word(2)? != 0,
            directory: mode & 0o170_000 == 0o040_000,
            again: *bytes.get(84)? != 0,
            replaces: *bytes.get(85)? != 0,
            name: bytes.get(HEAD..HEAD + length)?.to_vec(),
        })
    }
}

/// Names in directories that the live tree has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Those that it answered for.
    pub(super) looked: Vec<Looked>,
    /// Those whose objects may have taken the place of others of the live tree.
    pub(super) replacing: HashSet<TreePath>,
    /// Those of directories that were listed.
    pub(super) listed: BTreeSet<TreePath>,
}

/// What the records tell. `None` if one of the canaries was gone when they had all been told. What is as it was when
/// the transaction had `begun` is settled. `listed` are the dentries of directories that were listed; one that is not
/// among the records was removed since, which the changes tell.
pub(super) fn names(seen: &[Seen], canaries: &[String], begun: Moment, listed: &BTreeSet<u64>) -> Option<Names> {
    let last = seen.partition_point(|one| !one.again);
    let (seen, at_the_end) = seen.split_at(last);
    let is_there = |canary: &str| at_the_end.iter().any(|one| one.name == canary.as_bytes());
    if !canaries.iter().map(String::as_str).chain([CANARY]).all(is_there) {
        return None;
    }
    let mut directories: HashMap<u64, (TreePath, &Seen)> = HashMap::new();
    let mut names = Names::default();
    // The walk goes down first: a directory's record stands before those in it. The root is in itself.
    for one in seen {
        if one.parent == one.address {
            if listed.contains(&one.address) {
                names.listed.insert(TreePath::ROOT);
            }
            directories.insert(one.address, (TreePath::ROOT, one));
            continue;
        }
        let Some((path, parent)) = directories.get(&one.parent) else { continue };
        let path = path.join(OsStr::from_bytes(&one.name));
        if let Some(around) = parent.lower
            && (one.lower.is_some() || !one.positive)
        {
            names.looked.push(Looked {
                path: path.clone(),
                found: one.lower.map(|lower| lower.ino),
                directory: one.directory,
                // In a directory that is what it was nothing has come that was missing.
                settled: one
                    .lower
                    .map_or_else(|| around.is_older_than(begun), |lower| lower.is_settled(&around, begun)),
            });
        }
        if one.replaces && parent.lower.is_some() {
            names.replacing.insert(path.clone());
        }
        if one.directory {
            if listed.contains(&one.address) {
                names.listed.insert(path.clone());
            }
            directories.insert(one.address, (path, one));
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Moment = Moment { seconds: 9, nanoseconds: 0 };
    const BEGUN: Moment = Moment { seconds: 10, nanoseconds: 0 };

    /// One in another, or in itself; what it leads to in the live tree lies in what that has, and is older than the
    /// transaction.
    fn seen(address: u64, parent: u64, ino: Option<u64>, name: &str) -> Seen {
        let lower =
            |ino| Lower { dentry: address + 1000, around: parent + 1000, hashed: true, ino, changed: Some(BEFORE) };
        let (positive, name) = (ino.is_some(), name.as_bytes().to_vec());
        let (directory, lower) = (positive, ino.map(lower));
        Seen { address, parent, lower, positive, directory, again: false, replaces: false, name }
    }

    fn again(address: u64, name: &str) -> Seen {
        Seen { again: true, ..seen(address, 1, None, name) }
    }

    /// The same where something has happened in the live tree.
    fn since(mut seen: Seen, happened: impl Fn(&mut Lower)) -> Seen {
        seen.lower.iter_mut().for_each(happened);
        seen
    }

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_of_the_live_tree_are_told_from_new_ones() {
        let new = Seen { positive: true, directory: true, ..seen(4, 1, None, "new") };
        let all = [
            seen(1, 1, Some(2), "/"),
            seen(2, 1, None, CANARY),
            seen(3, 1, Some(7), "etc"),
            seen(5, 3, None, "missing"),
            new,
            seen(6, 4, None, "missing in what is new"),
            again(2, CANARY),
        ];
        let looked = names(&all, &[], BEGUN, &BTreeSet::new()).unwrap().looked;
        let expected = [(CANARY, None), ("etc", Some(7)), ("etc/missing", None)];
        assert_eq!(
            looked.iter().map(|one| (one.path.clone(), one.found)).collect::<Vec<_>>(),
            expected.map(|(text, found)| (path(text), found))
        );
    }

    #[test]
    fn listed_directories_are_told_by_where_they_are() {
        let directory = |address, parent, name| Seen { directory: true, ..seen(address, parent, Some(7), name) };
        let all = [
            directory(1, 1, "/"),
            seen(2, 1, None, CANARY),
            directory(3, 1, "d (deleted)"),
            directory(4, 3, "e"),
            directory(5, 1, "not listed"),
            again(2, CANARY),
        ];
        // 9 has gone.
        let listed = names(&all, &[], BEGUN, &BTreeSet::from([1, 3, 4, 9])).unwrap().listed;
        assert_eq!(listed, BTreeSet::from([TreePath::ROOT, path("d (deleted)"), path("d (deleted)/e")]));
    }

    #[test]
    fn what_may_have_taken_anothers_place_is_told_in_directories_of_the_live_tree() {
        let new = |address, parent, name| Seen { positive: true, directory: true, ..seen(address, parent, None, name) };
        let replacing = |seen: Seen| Seen { replaces: true, ..seen };
        let all = [
            seen(1, 1, Some(2), "/"),
            seen(2, 1, None, CANARY),
            replacing(new(3, 1, "renamed")),
            new(4, 1, "new"),
            replacing(new(5, 4, "renamed where nothing was")),
            replacing(seen(6, 1, Some(9), "copied")),
            again(2, CANARY),
        ];
        let replacing = names(&all, &[], BEGUN, &BTreeSet::new()).unwrap().replacing;
        assert_eq!(replacing, HashSet::from([path("renamed"), path("copied")]));
    }

    #[test]
    fn what_the_kernel_knows_to_be_as_it_was_is_settled() {
        let all = [
            seen(1, 1, Some(2), "/"),
            seen(2, 1, None, CANARY),
            since(seen(3, 1, Some(7), "tmp"), |lower| lower.changed = Some(BEGUN)),
            seen(4, 3, None, "missing where names come and go"),
            seen(5, 3, Some(8), "there"),
            since(seen(6, 1, Some(9), "moved"), |lower| lower.around = 7),
            since(seen(7, 1, Some(9), "removed"), |lower| lower.hashed = false),
            since(seen(8, 1, Some(9), "of an overlay"), |lower| lower.changed = None),
            again(2, CANARY),
        ];
        let looked = names(&all, &[], BEGUN, &BTreeSet::new()).unwrap().looked;
        let settled: Vec<_> = looked.iter().map(|one| one.settled).collect();
        assert_eq!(settled, [true, false, false, true, false, false, false]);
    }

    #[test]
    fn without_its_canary_a_read_set_is_not_whole() {
        assert_eq!(names(&[seen(1, 1, Some(2), "/"), seen(3, 1, Some(7), "etc")], &[], BEGUN, &BTreeSet::new()), None);
        let known = [seen(1, 1, Some(2), "/"), seen(2, 1, None, CANARY), again(2, CANARY)];
        assert!(
            names(&known, &[], BEGUN, &BTreeSet::new()).is_some()
                && names(&known, &[format!("{CANARY}-7")], BEGUN, &BTreeSet::new()).is_none()
        );
    }

    #[test]
    fn a_canary_that_goes_while_others_are_told_is_gone() {
        let other = format!("{CANARY}-7");
        let all = [seen(1, 1, Some(2), "/"), seen(3, 1, None, &other), seen(2, 1, None, CANARY), again(2, CANARY)];
        assert_eq!(names(&all, &[other], BEGUN, &BTreeSet::new()), None);
    }

    #[test]
    fn records_are_read_as_the_program_writes_them() {
        let record = |mode: u16, magic: u64| {
            let mut bytes: Vec<u8> =
                [1_u64, 2, 3, 4, 5, 6, 7, 8, 9, magic].into_iter().flat_map(u64::to_ne_bytes).collect();
            bytes.extend([mode.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
            bytes.extend([1, 1, 0, 0, 0, 0, 0, 0][..HEAD - bytes.len()].iter());
            bytes.extend(b"ab");
            bytes
        };
        let changed = Some(Moment { seconds: 8, nanoseconds: 9 });
        let lower = Some(Lower { dentry: 4, around: 5, hashed: true, ino: 7, changed });
        let (name, again, replaces) = (b"ab".to_vec(), true, true);
        let expected = Seen { address: 1, parent: 2, lower, positive: true, directory: true, again, replaces, name };
        let bytes = record(0o040_755, 1);
        assert_eq!(Seen::from_bytes(&bytes), Some(expected));
        assert_eq!(Seen::from_bytes(&bytes[..bytes.len() - 1]), None);
        let of_overlay = Seen::from_bytes(&record(0o100_644, OVERLAY)).unwrap();
        assert!(!of_overlay.directory && of_overlay.lower.unwrap().changed.is_none());
    }
}
