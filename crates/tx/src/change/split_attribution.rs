//! Files that a transaction changes while others change them too: content and attributes are told apart, as by TxOS,
//! which keeps versions of either (its paper's section 3.1, "multiple data objects").
//!
//! To tell who has changed what of a file takes what it was like before. So one run is lost to learn which file it is,
//! and before the next its attributes and a digest of its content are kept. Where others have changed nothing but the
//! one, and the transaction nothing but the other, both are kept: a log that is given another owner while it is
//! written, for example.
//!
//! The transaction then comes before what others did to that file, and what it saw of it is as old: nobody can tell
//! whether it looked at the file's size before it set the mode, or at the mode before it wrote. Content that others
//! changed is another matter: a transaction that has opened the file [may have read it](crate::validate::read_set).

use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::Attributes;
use crate::tree::confined::{CallPath, Tree};
use crate::tree::content::{Digest, digest};
use crate::tree::path::TreePath;
use rustix::fs::{FileType, Stat, fstat};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The largest file whose content is digested, in bytes of data: that is done before a run and at its commit.
const LARGEST: u64 = 64 << 20;

/// One of them, as it was before the run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBaseline {
    /// Where it is in the live tree, and in the view.
    pub(crate) path: PathBuf,
    ino: u64,
    attributes: Attributes,
    size: u64,
    /// Where it is not too large.
    content: Option<Digest>,
}

/// What others have changed of a file, where that is nothing that the transaction has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ByOthers {
    /// Its content, and with it its size and time. Its attributes are these still.
    Content(Attributes),
    /// Its attributes.
    Attributes,
}

/// What a file of the live tree is like now.
pub(crate) struct Now<'a> {
    pub(crate) ino: u64,
    pub(crate) stat: &'a Stat,
    pub(crate) attributes: Attributes,
    pub(crate) file: &'a CallPath,
}

/// What a transaction has made of it.
pub(crate) struct OwnChange<'a> {
    pub(crate) attributes: &'a Attributes,
    /// Whether it has written to it.
    pub(crate) content: bool,
    /// Whether it has opened it, or that is not known.
    pub(crate) opened: bool,
}

impl FileBaseline {
    /// What is at a path of the live tree now, before a run begins, if that is a file with one name on one of these
    /// parts.
    pub fn of(path: &Path, parts: &[OverlayPart]) -> Option<Self> {
        let around = parts.iter().filter_map(|part| Some((part, below(path, part)?)));
        let (part, below) = around.max_by_key(|(part, _)| part.live.components().count())?;
        Self::look(path, &part.live_tree().ok()?, &below).ok().flatten()
    }

    fn look(path: &Path, live: &Tree, below: &TreePath) -> io::Result<Option<Self>> {
        let object = live.object(below)?;
        let stat = fstat(&object)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
            return Ok(None);
        }
        let file = CallPath::of(object)?;
        let (attributes, size) = (Attributes::of(&file)?, stat.st_size.cast_unsigned());
        // Where others write to it meanwhile it is the digest of what the file never was, and will not be found again.
        let content = digest(&file, &mut { LARGEST })?;
        Ok(Some(Self { path: path.to_owned(), ino: stat.st_ino, attributes, size, content }))
    }

    /// Where it is on a part, if it is on it.
    pub(crate) fn on(&self, part: &OverlayPart) -> Option<TreePath> {
        below(&self.path, part)
    }

    /// What of it others have changed and the transaction has not; nothing where both have changed the same, or that
    /// cannot be told.
    pub(crate) fn theirs(&self, mine: &OwnChange<'_>, now: &Now<'_>) -> io::Result<Option<ByOthers>> {
        if now.ino != self.ino || now.stat.st_nlink != 1 {
            return Ok(None);
        }
        let (then, was) = (&self.attributes, self.attributes.modified);
        if !mine.content {
            // It bears the time that the file had when its attributes were changed, or was given one that a later write
            // has overruled.
            let is_of_others = was <= mine.attributes.modified && mine.attributes.modified <= now.attributes.modified;
            let apart = !mine.opened && is_of_others && now.attributes.is_same_but_for_time(then);
            return Ok(apart.then(|| ByOthers::Content(then.clone())));
        }
        // They are those that the file had when it was first written to.
        let are_of_others = [then, &now.attributes].into_iter().any(|one| one.is_same_but_for_time(mine.attributes));
        // The time of the last change of content can be set back, and proves nothing alone.
        let may_be_apart =
            are_of_others && now.attributes.modified == was && now.stat.st_size.cast_unsigned() == self.size;
        let Some(content) = self.content.filter(|_| may_be_apart) else { return Ok(None) };
        Ok((digest(now.file, &mut { LARGEST })? == Some(content)).then_some(ByOthers::Attributes))
    }
}

fn below(path: &Path, part: &OverlayPart) -> Option<TreePath> {
    TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::attributes::Moment;
    use rustix::fs::{Mode, OFlags};
    use std::fs::File;

    fn part_at(live: &Path) -> OverlayPart {
        OverlayPart::new(live.to_owned(), live.join("base"))
    }

    /// What is told of others, who do `change` to a file that was `before`, where the transaction has made its
    /// attributes `mine`, or written to it.
    fn told(
        change: impl Fn(&Path),
        mine: impl Fn(&Attributes) -> Attributes,
        content: bool,
        opened: bool,
    ) -> Option<ByOthers> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "before").unwrap();
        let before = FileBaseline::of(&path, &[part_at(directory.path())]).unwrap();
        let mine = mine(&before.attributes);
        change(&path);
        let object = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (stat, file) = (fstat(&object).unwrap(), CallPath::of(object).unwrap());
        let now = Now { ino: stat.st_ino, stat: &stat, attributes: Attributes::of(&file).unwrap(), file: &file };
        before.theirs(&OwnChange { attributes: &mine, content, opened }, &now).unwrap()
    }

    fn chmod(path: &Path) {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn write(path: &Path) {
        std::fs::write(path, "behind").unwrap();
    }

    /// The content is another, and nothing else tells it.
    fn write_unseen(path: &Path) {
        let then = std::fs::metadata(path).unwrap().modified().unwrap();
        write(path);
        chmod(path);
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    fn of_another(attributes: &Attributes) -> Attributes {
        let mut mine = attributes.clone();
        mine.uid += 1;
        mine
    }

    fn of_the_past(attributes: &Attributes) -> Attributes {
        let mut mine = of_another(attributes);
        mine.modified = Moment::EPOCH;
        mine
    }

    #[test]
    fn attributes_and_content_are_told_apart() {
        assert!(matches!(told(write, of_another, false, false), Some(ByOthers::Content(_))));
        assert_eq!(told(chmod, Attributes::clone, true, true), Some(ByOthers::Attributes));
    }

    #[test]
    fn what_both_change_or_one_may_have_read_is_not() {
        assert_eq!(told(write, of_another, false, true), None, "it has opened what others wrote to");
        assert_eq!(told(chmod, of_another, false, false), None);
        assert_eq!(told(write, of_the_past, false, false), None, "it has set the time");
        assert_eq!(told(write, Attributes::clone, true, true), None);
        assert_eq!(told(chmod, of_another, true, true), None);
        assert_eq!(told(write_unseen, Attributes::clone, true, true), None);
        let link = |path: &Path| std::fs::hard_link(path, path.with_extension("more")).unwrap();
        assert_eq!(told(link, of_another, false, false), None);
        let replace = |path: &Path| {
            std::fs::write(path.with_extension("new"), "before").unwrap();
            std::fs::rename(path.with_extension("new"), path).unwrap();
        };
        assert_eq!(told(replace, of_another, false, false), None);
    }

    #[test]
    fn what_is_no_file_of_one_name_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let of = |path: &Path| FileBaseline::of(path, &[part_at(directory.path())]);
        assert_eq!(of(directory.path()), None);
        assert_eq!(of(&directory.path().join("missing")), None);
        assert_eq!(of(Path::new("/elsewhere")), None);
        let path = directory.path().join("file");
        write(&path);
        std::fs::hard_link(&path, directory.path().join("other")).unwrap();
        assert_eq!(of(&path), None);
        // Others lead nobody out of the mount.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert_eq!(of(&link.join("hostname")), None);
    }
}
