//! Bringing what is new into a target: copied to where things are put aside in its own file system, and moved from
//! there to its place.

use crate::change::{Op, OpTarget, Steps};
use crate::crash::step;
use crate::state::target::Target;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::Tree;
use crate::tree::copying::{Copying, Original, whatever};
use crate::tree::inner_ids;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use rustix::fs::{AtFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

/// The directory at a target's root where a commit puts aside what comes and goes.
const HIDDEN: &str = ".pando-tx";
const STAGE: &str = "stage";
const TRASH: &str = "trash";

/// The hidden directory of a commit in a target. The target can have put anything in its place: it is reached without
/// following links.
#[derive(Debug)]
pub(crate) struct StagingArea {
    target: Target,
    /// When names in the root directory last changed, before the hidden directory came.
    root_modified: Moment,
}

impl StagingArea {
    /// Looks whether it can be made, and leaves nothing there. Nobody has been told of a commit yet.
    pub(crate) fn try_out(live: &Tree) -> io::Result<()> {
        let modified = Moment::modified(&live.stat(&TreePath::ROOT)?);
        remove_all(live, HIDDEN)?;
        make(live, HIDDEN)?;
        step();
        // A target can have mounted something there.
        let tried = live.subtree(&name(HIDDEN)).map(drop);
        let removed = remove_all(live, HIDDEN);
        set_modified(live, modified)?;
        tried.and(removed)
    }

    /// Removes what a crash before the commit point has left there.
    pub(crate) fn forget(target: &Target, live: &Tree) -> io::Result<()> {
        let modified = Moment::modified(&live.stat(&TreePath::ROOT)?);
        if live.look(&name(HIDDEN))?.is_none() {
            return Ok(());
        }
        let _owner = target.owner()?;
        remove_all(live, HIDDEN)?;
        set_modified(live, modified)
    }

    /// Makes it, with the directories for what comes and what goes.
    pub(crate) fn prepare(target: &Target, live: &Tree) -> io::Result<(Self, Tree, Tree)> {
        let root_modified = Moment::modified(&live.stat(&TreePath::ROOT)?);
        make(live, HIDDEN)?;
        let hidden = live.subtree(&name(HIDDEN))?;
        for directory in [STAGE, TRASH] {
            make(&hidden, directory)?;
        }
        let (stage, trash) = (hidden.subtree(&name(STAGE))?, hidden.subtree(&name(TRASH))?);
        Ok((Self { target: target.clone(), root_modified }, stage, trash))
    }

    /// Removes it, and gives the root directory the time that it has without it.
    pub(crate) fn clear(&self, live: &Tree, steps: &Steps) -> io::Result<()> {
        remove_all(live, HIDDEN)?;
        let of_root = steps.finish.iter().find_map(|op| match op {
            Op::Attributes { target: OpTarget::Root, modified, .. } => *modified,
            _ => None,
        });
        set_modified(live, of_root.unwrap_or(self.root_modified))
    }

    /// Makes owners of the target's earlier life those of its present one.
    pub(crate) fn translate(&self, attributes: &mut Attributes) {
        attributes.uid = self.target.now(attributes.uid);
        attributes.gid = self.target.now(attributes.gid);
        for (name, value) in &mut attributes.xattrs {
            inner_ids::translate(name, value, |id| self.target.now(id));
        }
    }
}

/// Sets when names in a tree's root last changed.
fn set_modified(tree: &Tree, modified: Moment) -> io::Result<()> {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
    Ok(rustix::fs::futimens(tree.root(), &Timestamps { last_access: omit, last_modification })?)
}

fn name(text: &str) -> TreePath {
    TreePath::ROOT.join(text.as_ref())
}

fn make(tree: &Tree, name: &str) -> io::Result<()> {
    match rustix::fs::mkdirat(tree.root(), name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a name in a tree's root with everything below it. A link is removed, and never followed; what a target has
/// mounted there is neither entered nor removed, and an error.
fn remove_all(tree: &Tree, at: &str) -> io::Result<()> {
    let mut left = vec![name(at)];
    // A directory comes up twice: it is gone once those in it are.
    while let Some(path) = left.last() {
        let Some(found) = tree.look(path)? else {
            left.pop();
            continue;
        };
        let is_directory = kind(&found) == FileType::Directory;
        let inner = if is_directory { tree.names(path)? } else { Vec::new() };
        if inner.is_empty() {
            let (directory, last) = tree.place(path)?;
            let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match rustix::fs::unlinkat(&*directory, last, how) {
                Err(Errno::PERM) => {
                    let parent = path.split().map_or(TreePath::ROOT, |(parent, _)| parent);
                    for place in [&parent, path] {
                        Protection::default().give(tree.object(place)?.as_fd())?;
                    }
                    rustix::fs::unlinkat(&*directory, last, how)?;
                }
                removed => removed?,
            }
            if is_directory {
                tree.forget();
            }
            left.pop();
            continue;
        }
        let inner: Vec<_> = inner.iter().map(|name| path.join(name)).collect();
        left.extend(inner);
    }
    Ok(())
}

/// What it takes to bring something in.
pub(crate) struct BringIn<'a> {
    pub(crate) upper: &'a Tree,
    pub(crate) stage: &'a Tree,
    pub(crate) live: &'a Tree,
    pub(crate) aside: &'a StagingArea,
}

impl BringIn<'_> {
    /// Brings one object, with everything below it, to the same place in the live tree. What it finds there is what an
    /// earlier run has brought: if that is a directory it is whole, since it came by one rename.
    pub(crate) fn bring(&self, at: &TreePath, stat: &Stat) -> io::Result<()> {
        let is_directory = kind(stat) == FileType::Directory;
        if is_directory && self.live.look(at)?.is_some_and(|found| kind(&found) == FileType::Directory) {
            return Ok(());
        }
        self.remove("new")?;
        self.copy(at, &name("new"))?;
        step();
        let (to, to_name) = self.live.place(at)?;
        rustix::fs::renameat(self.stage.root(), "new", &*to, to_name)?;
        if is_directory {
            self.live.forget();
            self.stage.forget();
        }
        Ok(())
    }

    /// Removes what an earlier run left half made.
    fn remove(&self, name: &str) -> io::Result<()> {
        self.stage.forget();
        remove_all(self.stage, name)
    }

    /// Copies an object of the upper directory to `to` in the stage.
    fn copy(&self, from: &TreePath, to: &TreePath) -> io::Result<()> {
        let attributes = |attributes: &mut Attributes| self.aside.translate(attributes);
        let several = |copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath| {
            self.link(copying, from, original, to)
        };
        let (attributes, several, admits) = (&attributes, &several, &whatever);
        let copying = Copying { from: self.upper, to: self.stage, attributes, with_marks: false, several, admits };
        copying.copy(from, &Original::open(self.upper, from)?, to)
    }

    /// One of several names of a file: the file is copied once, to a name of its own in the stage.
    fn link(&self, copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        let kept = name(&format!("file-{}", original.stat.st_ino));
        if self.stage.look(&kept)?.is_none() {
            self.remove("half")?;
            copying.file(from, original, &name("half"))?;
            rustix::fs::renameat(self.stage.root(), "half", self.stage.root(), kept.as_path())?;
        }
        let (parent, new) = self.stage.place(to)?;
        Ok(rustix::fs::linkat(self.stage.root(), kept.as_path(), &*parent, new, AtFlags::empty())?)
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
