//! What lies in the directories that a commit removes, as it is then.
//!
//! A directory that is kept for an undo is moved aside, and not deleted. Who has it open, or works in it, can go on
//! making, renaming and writing files there, where otherwise nothing could be made any more. What is put back is told
//! from that by this list.

use crate::tree::attributes::Moment;
use crate::tree::path::TreePath;
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// All of it, each behind the directory that it lies in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing(Vec<Listed>);

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    /// The number of the directory that it lies in. A directory that is removed itself has none.
    parent: Option<u32>,
    /// Its name in that, or its place in what is kept.
    name: Vec<u8>,
    ino: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Of a directory, when names in it last changed: by the commit they change once more, where others are moved out
    /// of it. Else when anything of it last changed; nothing of a file that lives on by other names.
    time: Option<Moment>,
}

/// What was listed in one directory that was removed, by its place in what is kept.
pub(crate) type Contents<'a> = HashMap<TreePath, &'a Listed>;

impl Listing {
    /// Adds an object; its number.
    pub(crate) fn add(&mut self, parent: Option<u32>, name: &OsStr, stat: &Stat, lives_on: bool) -> u32 {
        let number = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let time = match is_directory(stat) {
            true => Some(Moment::modified(stat)),
            false => (!lives_on).then(|| Moment::changed(stat)),
        };
        self.0.push(Listed {
            parent,
            name: name.as_bytes().to_vec(),
            ino: stat.st_ino,
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            time,
        });
        number
    }

    /// What each directory that was removed had, itself among it. What a damaged list says of no directory is left out.
    pub(crate) fn by_directory(&self) -> HashMap<TreePath, Contents<'_>> {
        let (mut all, mut places) = (HashMap::new(), Vec::<(TreePath, TreePath)>::with_capacity(self.0.len()));
        for listed in &self.0 {
            let (top, place) = match listed.parent.and_then(|parent| places.get(parent as usize)) {
                Some((top, parent)) => (top.clone(), parent.join(OsStr::from_bytes(&listed.name))),
                None => {
                    let top = TreePath::new(&listed.name).unwrap_or(TreePath::ROOT);
                    (top.clone(), top)
                }
            };
            all.entry(top.clone()).or_insert_with(Contents::new).insert(place.clone(), listed);
            places.push((top, place));
        }
        all
    }
}

impl Listed {
    /// Whether it is this object, and as it was.
    pub(crate) fn is(&self, stat: &Stat) -> bool {
        let rights = |mode, uid, gid| (mode, uid, gid);
        self.ino == stat.st_ino
            && FileType::from_raw_mode(self.mode) == FileType::from_raw_mode(stat.st_mode)
            && match self.time {
                _ if is_directory(stat) => {
                    rights(self.mode, self.uid, self.gid) == rights(stat.st_mode, stat.st_uid, stat.st_gid)
                }
                Some(changed) => Moment::changed(stat) == changed,
                None => true,
            }
    }

    /// When names in a directory last changed.
    pub(crate) fn time_of_directory(&self) -> Option<Moment> {
        self.time.filter(|_| FileType::from_raw_mode(self.mode) == FileType::Directory)
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_listed_is_found_by_its_place_and_told_from_what_it_became() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (top, below) = (rustix::fs::stat(directory.path()).unwrap(), rustix::fs::stat(&file).unwrap());
        let mut listing = Listing::default();
        let number = listing.add(None, "removed/7".as_ref(), &top, false);
        listing.add(Some(number), "file".as_ref(), &below, false);
        listing.add(Some(number), "lives on".as_ref(), &below, true);
        let place = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let all = listing.by_directory();
        let contents = &all[&place("removed/7")];
        assert_eq!((all.len(), contents.len()), (1, 3));
        let is = |text: &str, stat: &Stat| contents[&place(text)].is(stat);
        assert!(is("removed/7", &top) && is("removed/7/file", &below) && is("removed/7/lives on", &below));
        let (mut later, mut others) = (below, top);
        later.st_ctime += 1;
        others.st_uid += 1;
        assert!(!is("removed/7/file", &later) && is("removed/7/lives on", &later) && !is("removed/7", &others));
        assert!(!is("removed/7/file", &top) && !is("removed/7/lives on", &top));
    }
}
