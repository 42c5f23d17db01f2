//! Where the entries of an archive come to lie, by the rules of docker's and podman's `cp`.

use crate::host_path::Links;
use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, statat};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// The topmost name of an archive of what is in a directory.
const CONTENTS: &[u8] = b".";

/// A directory, held open, and what becomes of the first part of each name.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(super) directory: OwnedFd,
    /// `None`: names are kept (the destination is a directory that exists). Otherwise the archive's one topmost entry
    /// gets this name.
    rename: Option<OsString>,
    /// The destination was written with a slash behind it: only a directory will do.
    pub(super) must_be_directory: bool,
    /// The topmost name of the entries so far, where that is renamed: an archive has one.
    top: Option<Vec<u8>>,
}

impl Landing {
    /// Looks at `destination`. What is there decides: into a directory, under its own name; else in place of what is
    /// there, or newly made.
    pub(crate) fn at(destination: &Path, links: Links<'_>) -> anyhow::Result<Self> {
        let shown = destination.display();
        let slash = destination.as_os_str().as_bytes().ends_with(b"/");
        let (place, is_new) = match links.find(destination) {
            Ok(found) if found.is_directory()? => {
                let directory = found.into_place();
                return Ok(Self { directory, rename: None, must_be_directory: false, top: None });
            }
            // What a link stands for is written to, as cp(1) does it; whoever named it means that.
            Ok(found) => (found.path().to_owned(), false),
            Err(error) if is_missing(&error) => (destination.to_owned(), true),
            Err(error) if slash && is_no_directory(&error) => {
                bail!("cannot copy to '{shown}': it is not a directory")
            }
            Err(error) => return Err(error.context(format!("cannot copy to '{shown}'"))),
        };
        let Some(name) = place.file_name() else { bail!("cannot copy to '{shown}': the directory does not exist") };
        let name = name.to_owned();
        let above = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = directory(above, links)?;
        let dangling = is_new && statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        ensure!(!dangling, "cannot copy to '{shown}': it is a link that leads to nothing");
        Ok(Self { directory, rename: Some(name), must_be_directory: slash, top: None })
    }

    /// Where the entry called `name` lies below the directory; empty for the directory itself.
    pub(super) fn place(&mut self, name: &[u8]) -> anyhow::Result<PathBuf> {
        let path = clean(name)?;
        let Some(rename) = &self.rename else { return Ok(path) };
        // After "." itself writers leave the "./" in front of the others out.
        let contents = name == b"." || name.starts_with(b"./") || self.top.as_deref() == Some(CONTENTS);
        let mut parts = path.components();
        let top = match contents {
            true => CONTENTS.to_vec(),
            false => parts.next().map_or_else(Vec::new, |part| part.as_os_str().as_bytes().to_vec()),
        };
        let first = self.top.get_or_insert_with(|| top.clone());
        ensure!(*first == top, "the tar stream has more than one topmost entry, and the destination has one name");
        Ok(Path::new(rename).join(parts.as_path()))
    }
}

/// A name out of an archive as a path that stays below where it is used: the kernel is asked to see to that as well.
fn clean(name: &[u8]) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(name.to_vec()));
    let shown = crate::printable::printable(&path.to_string_lossy());
    ensure!(!name.is_empty() && !name.contains(&0), "the tar stream has an entry without a usable name");
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir => bail!("the tar stream has the path '{shown}', which leads upward; it was refused"),
            Component::RootDir | Component::Prefix(_) => {
                bail!("the tar stream has the absolute path '{shown}'; it was refused")
            }
        }
    }
    Ok(clean)
}

fn directory(path: &Path, links: Links<'_>) -> anyhow::Result<OwnedFd> {
    let what = || format!("cannot copy to the directory '{}'", path.display());
    let found = links.find(path).with_context(what)?;
    if !found.is_directory()? {
        return Err(io::Error::from(io::ErrorKind::NotADirectory)).with_context(what);
    }
    Ok(found.into_place())
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn is_no_directory(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(destination: &Path, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        let mut landing = Landing::at(destination, Links::Followed)?;
        names.iter().map(|name| landing.place(name.as_bytes())).collect()
    }

    #[test]
    fn into_a_directory_names_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "a/b", "./c", "./", "d//e/./f/"];
        let expected = ["a", "a/b", "c", "", "d/e/f"].map(PathBuf::from);
        assert_eq!(placed(directory.path(), &names).unwrap(), expected);
    }

    #[test]
    fn elsewhere_the_topmost_entry_gets_the_new_name() {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("new");
        assert_eq!(placed(&new, &["a", "a/b"]).unwrap(), ["new", "new/b"].map(PathBuf::from));
        assert_eq!(placed(&new, &["./", "./b/c"]).unwrap(), ["new/", "new/b/c"].map(PathBuf::from));
        assert!(placed(&new, &["a", "b"]).unwrap_err().to_string().contains("one name"));
        std::fs::write(&new, "").unwrap();
        assert_eq!(placed(&new, &["a"]).unwrap(), [PathBuf::from("new")]);
    }

    #[test]
    fn a_missing_directory_is_not_made_up() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("no/such");
        assert!(
            format!("{:#}", Landing::at(&missing, Links::Followed).unwrap_err())
                .contains("cannot copy to the directory")
        );
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert!(Landing::at(&directory.path().join("file/"), Links::Followed).is_err());
        assert!(Landing::at(&directory.path().join("new/"), Links::Followed).unwrap().must_be_directory);
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["/etc/passwd", "../x", "a/../../x", "a/..", "", "a\0b"] {
            assert!(placed(directory.path(), &[name]).is_err(), "{name:?}");
            assert!(placed(&directory.path().join("new"), &[name]).is_err(), "{name:?}");
        }
    }
}
