//! Records of the walk, put together to paths.

use crate::tree_path::TreePath;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A name that nothing has, looked up first of all: the kernel forgets the oldest names first, so that as long as it knows this one it knows all.
/// Each control group that is charged for memory forgets by itself, so that there is one of each command's, behind whose name stands a number. It forgets while the
/// names are told, too: what counts is that a canary is there when all others have been told.
pub(crate) const CANARY: &str = ".pando-tx-canary";

/// Bytes of a record before the name; see `struct record` of the BPF program.
const HEAD: usize = 32;

/// A dentry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    address: u64,
    parent: u64,
    lower: Option<u64>,
    positive: bool,
    directory: bool,
    /// One of those without an object in the root, which are told again at the end.
    again: bool,
    /// Whether the live tree has what it leads to elsewhere by now.
    displaced: bool,
    /// Whether the live tree's object was changed since the transaction began, or that cannot be told.
    fresh: bool,
    name: Vec<u8>,
}

impl Seen {
    /// Whether the live tree's object is where it was, and what it was.
    fn is_settled(&self) -> bool {
        self.lower.is_some() && !self.displaced && !self.fresh
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
        let number = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let flag = |at: usize| bytes.get(at).map(|byte| *byte != 0);
        let length = usize::from(u16::from_ne_bytes(bytes.get(28..30)?.try_into().ok()?));
        Some(Self {
            address: number(0)?,
            parent: number(8)?,
            lower: flag(26)?.then_some(number(16)?),
            positive: flag(24)?,
            directory: flag(25)?,
            again: flag(27)?,
            displaced: flag(30)?,
            fresh: flag(31)?,
            name: bytes.get(HEAD..HEAD + length)?.to_vec(),
        })
    }
}

/// The names that the live tree answered for: those in directories that it has. `None` if one of the canaries was gone when they had all been told.
pub(super) fn looked(seen: &[Seen], canaries: &[String]) -> Option<Vec<Looked>> {
    let last = seen.partition_point(|one| !one.again);
    let (seen, at_the_end) = seen.split_at(last);
    let is_there = |canary: &str| at_the_end.iter().any(|one| one.name == canary.as_bytes());
    if !canaries.iter().map(String::as_str).chain([CANARY]).all(is_there) {
        return None;
    }
    let mut directories: HashMap<u64, (TreePath, &Seen)> = HashMap::new();
    let mut found = Vec::new();
    // The walk goes down first: a directory's record stands before those in it.
    for one in seen {
        if one.parent == 0 {
            directories.insert(one.address, (TreePath::ROOT, one));
            continue;
        }
        let Some((path, parent)) = directories.get(&one.parent) else { continue };
        let path = path.join(OsStr::from_bytes(&one.name));
        if parent.lower.is_some() && (one.lower.is_some() || !one.positive) {
            found.push(Looked {
                path: path.clone(),
                found: one.lower.filter(|_| one.positive),
                directory: one.directory,
                // In a directory that is what it was nothing has come that was missing.
                settled: if one.positive { one.is_settled() } else { parent.is_settled() },
            });
        }
        if one.directory {
            directories.insert(one.address, (path, one));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(address: u64, parent: u64, lower: Option<u64>, name: &str) -> Seen {
        let positive = lower.is_some();
        let name = name.as_bytes().to_vec();
        let (again, displaced, fresh) = (false, false, false);
        Seen { address, parent, lower, positive, directory: positive, again, displaced, fresh, name }
    }

    fn again(address: u64, name: &str) -> Seen {
        Seen { again: true, ..seen(address, 1, None, name) }
    }

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_of_the_live_tree_are_told_from_new_ones() {
        let new = Seen { positive: true, directory: true, ..seen(4, 1, None, "new") };
        let all = [
            seen(1, 0, Some(2), "/"),
            seen(2, 1, None, CANARY),
            seen(3, 1, Some(7), "etc"),
            seen(5, 3, None, "missing"),
            new,
            seen(6, 4, None, "missing in what is new"),
            again(2, CANARY),
        ];
        let looked = looked(&all, &[]).unwrap();
        let expected = [(CANARY, None), ("etc", Some(7)), ("etc/missing", None)];
        assert_eq!(
            looked.iter().map(|one| (one.path.clone(), one.found)).collect::<Vec<_>>(),
            expected.map(|(text, found)| (path(text), found))
        );
    }

    #[test]
    fn what_the_kernel_knows_to_be_as_it_was_is_settled() {
        let all = [
            seen(1, 0, Some(2), "/"),
            seen(2, 1, None, CANARY),
            Seen { fresh: true, ..seen(3, 1, Some(7), "tmp") },
            seen(4, 3, None, "missing where names come and go"),
            seen(5, 3, Some(8), "there"),
            Seen { displaced: true, ..seen(6, 1, Some(9), "moved") },
            again(2, CANARY),
        ];
        let looked = looked(&all, &[]).unwrap();
        assert_eq!(looked.iter().map(|one| one.settled).collect::<Vec<_>>(), [true, false, false, true, false]);
    }

    #[test]
    fn without_its_canary_a_read_set_is_not_whole() {
        assert_eq!(looked(&[seen(1, 0, Some(2), "/"), seen(3, 1, Some(7), "etc")], &[]), None);
        let known = [seen(1, 0, Some(2), "/"), seen(2, 1, None, CANARY), again(2, CANARY)];
        assert!(looked(&known, &[]).is_some() && looked(&known, &[format!("{CANARY}-7")]).is_none());
    }

    #[test]
    fn a_canary_that_goes_while_others_are_told_is_gone() {
        let other = format!("{CANARY}-7");
        let all = [seen(1, 0, Some(2), "/"), seen(3, 1, None, &other), seen(2, 1, None, CANARY), again(2, CANARY)];
        assert_eq!(looked(&all, &[other]), None);
    }

    #[test]
    fn records_are_read_as_the_program_writes_them() {
        let mut bytes = Vec::new();
        for number in [1_u64, 2, 3] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend([1, 0, 1, 1]);
        bytes.extend(2_u16.to_ne_bytes());
        bytes.extend([1, 0, b'a', b'b']);
        let read = Seen::from_bytes(&bytes).unwrap();
        assert_eq!(
            read,
            Seen {
                address: 1,
                parent: 2,
                lower: Some(3),
                positive: true,
                directory: false,
                again: true,
                displaced: true,
                fresh: false,
                name: b"ab".into()
            }
        );
        assert_eq!(Seen::from_bytes(&bytes[..bytes.len() - 1]), None);
    }
}
