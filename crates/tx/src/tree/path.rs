//! Paths below a tree's root.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path below a root, in bytes, without a slash in front; empty for the root itself. No part of it is `.` or `..`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>")]
pub struct TreePath(Vec<u8>);

/// The bytes are no path below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no path below a root")]
pub struct NoTreePath;

impl TryFrom<Vec<u8>> for TreePath {
    type Error = NoTreePath;

    /// What was written is read: a journal names no place outside of its tree, whatever is in it.
    fn try_from(bytes: Vec<u8>) -> Result<Self, NoTreePath> {
        Self::new(&bytes).filter(|path| path.0 == bytes && !bytes.contains(&0)).ok_or(NoTreePath)
    }
}

impl TreePath {
    /// The path of the root itself.
    pub const ROOT: Self = Self(Vec::new());

    /// The path from bytes; slashes in front and behind are dropped. `None` if a part of it is `.`, `..` or empty.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let start = bytes.iter().position(|byte| *byte != b'/').unwrap_or(bytes.len());
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(start, |last| last + 1);
        let path = Self(bytes[start..end].to_vec());
        let leads_astray = path.parts().any(|part| matches!(part.as_bytes(), b"" | b"." | b".."));
        (!leads_astray).then_some(path)
    }

    /// The path of a name in the directory that this is.
    pub fn join(&self, name: &OsStr) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name.as_bytes());
        Self(bytes)
    }

    /// The directory that it is in, and its name there; `None` for the root.
    pub fn split(&self) -> Option<(Self, &OsStr)> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((Self(self.0[..slash].to_vec()), OsStr::from_bytes(&self.0[slash + 1..]))),
            None => Some((Self::ROOT, OsStr::from_bytes(&self.0))),
        }
    }

    /// How many names it has.
    pub fn depth(&self) -> usize {
        self.parts().count()
    }

    /// Its names, from the root down.
    pub fn parts(&self) -> impl Iterator<Item = &OsStr> {
        self.0.split(|byte| *byte == b'/').filter(|_| !self.0.is_empty()).map(OsStr::from_bytes)
    }

    /// Whether it is `other` or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self.0.strip_prefix(other.0.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// As a path relative to the root; `.` for the root.
    pub fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }

    /// The bytes of the path, without a slash in front.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "/{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_path_is_taken_apart_and_put_together() {
        let deep = path("/a/b/c/");
        assert_eq!(deep, path("a/b").join(OsStr::new("c")));
        assert_eq!(deep.split(), Some((path("a/b"), OsStr::new("c"))));
        assert_eq!(path("a").split(), Some((TreePath::ROOT, OsStr::new("a"))));
        assert_eq!((TreePath::ROOT.split(), TreePath::ROOT.depth(), deep.depth()), (None, 0, 3));
    }

    #[test]
    fn nothing_leads_out() {
        for text in ["a/../b", "..", "./a", "a//b"] {
            assert_eq!(TreePath::new(text.as_bytes()), None, "{text}");
        }
        assert_eq!(TreePath::new(b"/"), Some(TreePath::ROOT));
    }

    #[test]
    fn what_is_kept_is_read_and_nothing_that_leads_out() {
        let kept = |bytes: &[u8]| postcard::from_bytes::<TreePath>(&postcard::to_stdvec(bytes).unwrap()).ok();
        for path in [path("a/b"), TreePath::ROOT] {
            assert_eq!(kept(path.as_bytes()), Some(path.clone()));
            assert_eq!(postcard::from_bytes::<TreePath>(&postcard::to_stdvec(&path).unwrap()), Ok(path));
        }
        for bytes in [&b"../etc"[..], b"a/../../etc", b"/etc", b"a/", b"a//b", b"a\0b", b"."] {
            assert_eq!(kept(bytes), None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn within_means_whole_names() {
        assert!(path("a/b").is_within(&path("a")) && path("a").is_within(&path("a")));
        assert!(path("a").is_within(&TreePath::ROOT) && !path("ab").is_within(&path("a")));
    }
}
