//! Files that have several names, or that a commit has renamed: what is put back is the same file again, not a copy.
//!
//! A file that still has a name in the view is held by one more, aside. One whose other names nobody knows, since the
//! commit took but one of them away, lives on in the live tree: a copy is marked as the overlay marks what was copied
//! up from there, so that the commit of the undo makes it a name of that file.

use super::as_left::Since;
use super::lifted::Lifted;
use crate::change::{Op, OpTarget, Steps};
use crate::journal::keep::{REMOVED, REPLACED};
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::copying::Copying;
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use crate::tree::xattr;
use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::io::Errno;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;

/// Where they are held, in the root of the view.
const ASIDE: &str = ".pando-undo";

pub(super) struct HeldFiles<'a> {
    view: &'a Tree,
    /// The overlay's upper directory below the view.
    upper: &'a Tree,
    kept: &'a Tree,
    lifted: &'a Lifted<'a>,
    /// Numbers of the files that are held, by inode.
    held: HashMap<u64, u32>,
    /// Names of files that the commit has changed and that have kept these.
    changed: HashMap<Identity, TreePath>,
    /// Names of what was put back that may have several, by inode in what is kept.
    known: RefCell<HashMap<u64, TreePath>>,
    /// How many names such files have in what is kept.
    names: OnceCell<HashMap<u64, u64>>,
    /// What tells the file system that overlays name as that of an origin.
    is_target: bool,
}

impl<'a> HeldFiles<'a> {
    /// Holds each file that the commit has given another name.
    pub(super) fn hold(
        view: &'a Tree,
        upper: &'a Tree,
        kept: &'a Tree,
        lifted: &'a Lifted<'a>,
        (steps, standing): (&Steps, &BTreeMap<TreePath, Since>),
        is_target: bool,
    ) -> io::Result<Self> {
        let mut held = HashMap::new();
        for op in &steps.change {
            let Op::Place { slot, ino, at, directory: false, .. } = op else { continue };
            if held.contains_key(ino) || view.look(at).ok().flatten().is_none() {
                continue;
            }
            make_aside(view)?;
            let (parent, name) = view.place(at)?;
            let (aside, number) = view.place(&aside(*slot)).map(|(aside, _)| (aside, slot.to_string()))?;
            lifted.around(at, || Ok(rustix::fs::linkat(&*parent, name, &*aside, &*number, AtFlags::empty())?))?;
            held.insert(*ino, *slot);
        }
        let mut changed = changed(steps);
        // What stands may be another file by now.
        changed.retain(|_, at| !standing.contains_key(at));
        Ok(Self {
            view,
            upper,
            kept,
            lifted,
            held,
            changed,
            known: RefCell::default(),
            names: OnceCell::new(),
            is_target,
        })
    }

    /// Puts back what is kept at a place, with everything below it.
    pub(super) fn restore(
        &self,
        kept: &TreePath,
        to: &TreePath,
        attributes: &dyn Fn(&mut crate::tree::attributes::Attributes),
    ) -> io::Result<()> {
        let stat = self.kept.stat(kept)?;
        let several =
            |copying: &Copying<'_>, from: &TreePath, stat: &Stat, to: &TreePath| self.several(copying, from, stat, to);
        let is_held = self.held.contains_key(&stat.st_ino);
        let copying = Copying { from: self.kept, to: self.view, attributes, with_marks: false, several: &several };
        let is_name = is_held && FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        // What is not permitted is not permitted for its first name: nothing is half done then.
        self.lifted.around(to, || {
            if is_name { self.several(&copying, kept, &stat, to) } else { copying.copy(kept, &stat, to) }
        })
    }

    /// A file that has, or had, several names.
    fn several(&self, copying: &Copying<'_>, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        if let Some(known) = self.name_in_view(from, stat)? {
            let ((parent, name), (new_parent, new)) = (self.view.place(&known)?, self.view.place(to)?);
            let link = || Ok(rustix::fs::linkat(&*parent, name, &*new_parent, new, AtFlags::empty())?);
            return self.lifted.around(&known, link);
        }
        copying.file(from, stat, to)?;
        if self.names()?.get(&stat.st_ino).is_some_and(|names| *names < stat.st_nlink) {
            self.mark(from, to)?;
        }
        self.known.borrow_mut().insert(stat.st_ino, to.clone());
        Ok(())
    }

    /// A name that a file which is kept has in the view.
    fn name_in_view(&self, from: &TreePath, stat: &Stat) -> io::Result<Option<TreePath>> {
        if let Some(slot) = self.held.get(&stat.st_ino) {
            return Ok(Some(aside(*slot)));
        }
        if let Some(known) = self.known.borrow().get(&stat.st_ino) {
            return Ok(Some(known.clone()));
        }
        if self.is_target {
            return Ok(None);
        }
        let changed = self.changed.get(&Identity::of(self.kept.object(from)?)?);
        let is_there = |at: &&TreePath| self.view.look(at).is_ok_and(|found| found.is_some());
        Ok(changed.filter(is_there).cloned())
    }

    /// Where a file was put back, by its inode.
    pub(super) fn put_back(&self, ino: u64) -> Option<TreePath> {
        self.known.borrow().get(&ino).cloned()
    }

    /// Marks a copy as being of the file that lives on.
    fn mark(&self, from: &TreePath, to: &TreePath) -> io::Result<()> {
        if self.is_target {
            return Ok(());
        }
        let origin = Identity::of(self.kept.object(from)?)?.as_origin();
        let marks = BTreeMap::from([(b"origin".to_vec(), origin)]);
        xattr::mark(&CallPath::of(self.upper.object(to)?)?, &marks)
    }

    /// How many names files with several have in what is kept.
    fn names(&self) -> io::Result<&HashMap<u64, u64>> {
        if let Some(names) = self.names.get() {
            return Ok(names);
        }
        let mut names = HashMap::new();
        let mut left: Vec<_> = [REMOVED, REPLACED].map(|kind| TreePath::ROOT.join(kind.as_ref())).into();
        while let Some(path) = left.pop() {
            let stat = self.kept.stat(&path)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.extend(self.kept.names(&path)?.iter().map(|name| path.join(name)));
            } else if stat.st_nlink > 1 {
                *names.entry(stat.st_ino).or_insert(0) += 1;
            }
        }
        Ok(self.names.get_or_init(|| names))
    }

    /// Moves a directory aside; whether it was there.
    pub(super) fn take_directory(&self, at: &TreePath, slot: u32) -> io::Result<bool> {
        make_aside(self.view)?;
        self.rename(at, &aside_directory(slot))
    }

    /// Puts one that was moved aside in its place; whether it was there.
    pub(super) fn place_directory(&self, slot: u32, to: &TreePath) -> io::Result<bool> {
        self.rename(&aside_directory(slot), to)
    }

    fn rename(&self, from: &TreePath, to: &TreePath) -> io::Result<bool> {
        if self.view.look(from)?.is_none() {
            return Ok(false);
        }
        let ((parent, name), (new_parent, new)) = (self.view.place(from)?, self.view.place(to)?);
        let rename = || Ok(rustix::fs::renameat(&*parent, name, &*new_parent, new)?);
        self.lifted.around(from, || self.lifted.around(to, rename))?;
        self.view.forget();
        Ok(true)
    }

    /// Lets go of what is held. What could not be put back stays in it, and is an error.
    pub(super) fn let_go(&self) -> io::Result<()> {
        let path = TreePath::ROOT.join(ASIDE.as_ref());
        if self.view.look(&path)?.is_none() {
            return Ok(());
        }
        for slot in self.held.values() {
            let (parent, _) = self.view.place(&aside(*slot))?;
            rustix::fs::unlinkat(&*parent, slot.to_string(), AtFlags::empty())?;
        }
        rustix::fs::unlinkat(self.view.root(), ASIDE, AtFlags::REMOVEDIR)?;
        self.view.forget();
        Ok(())
    }
}

/// The names of what a commit has changed where it is.
fn changed(steps: &Steps) -> HashMap<Identity, TreePath> {
    let all = steps.change.iter().chain(&steps.finish);
    let known = all.filter_map(|op| match op {
        Op::Update { target: OpTarget::Known { identity, at }, .. }
        | Op::Attributes { target: OpTarget::Known { identity, at }, .. } => Some((identity.clone(), at.clone())),
        _ => None,
    });
    known.collect()
}

fn make_aside(view: &Tree) -> io::Result<()> {
    match rustix::fs::mkdirat(view.root(), ASIDE, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn aside(slot: u32) -> TreePath {
    in_aside(slot.to_string().into())
}

fn aside_directory(slot: u32) -> TreePath {
    in_aside(format!("d{slot}").into())
}

fn in_aside(name: OsString) -> TreePath {
    TreePath::ROOT.join(ASIDE.as_ref()).join(&name)
}

/// Whether something could not be put back since the directory that it has to be in is not there.
pub(super) fn has_no_directory(error: &io::Error) -> bool {
    is_missing(error) || leads_elsewhere(error)
}
