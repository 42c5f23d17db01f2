//! Files that have several names, or that a commit has renamed: what is put back is the same file again, not a copy.
//!
//! A file that still has a name in the view is held by one more, aside. One whose other names nobody knows, since the
//! commit took but one of them away, lives on in the live tree: a copy is marked as the overlay marks what was copied
//! up from there, so that the commit of the undo makes it a name of that file.

use super::as_left::Since;
use super::lifted::Lifted;
use super::put_back::there;
use crate::change::listing::{Contents, Listing};
use crate::change::{Op, OpTarget, Steps};
use crate::journal::keep::{REMOVED, REPLACED};
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::copying::{Copying, Original};
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use crate::tree::xattr;
use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::rand::GetRandomFlags;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

/// How the directory is called where they are held, in the root of the view. A number is added that nobody can guess:
/// who may write to that root could otherwise have one there that is his.
const ASIDE: &str = ".pando-undo-";

pub(super) struct HeldFiles<'a> {
    view: &'a Tree,
    /// The directory where they are held, once it is made.
    aside: OnceCell<TreePath>,
    /// Numbers of the directories that were moved there.
    taken: RefCell<HashSet<u32>>,
    /// What lay in directories that were removed.
    listing: Option<HashMap<TreePath, Contents<'a>>>,
    /// The overlay's upper directory below the view.
    upper: &'a Tree,
    kept: &'a Tree,
    lifted: &'a Lifted<'a>,
    /// Numbers of the files that are held, by inode.
    held: HashMap<u64, u32>,
    /// Names of files that the commit has changed and that have kept these.
    changed: HashMap<Identity, TreePath>,
    /// Names of what was put back and may have several, by inode in what is kept. They are further ones, aside, since
    /// the directory that it was put back into may move; but for what is marked, which the overlay gives no other
    /// names.
    known: RefCell<HashMap<u64, TreePath>>,
    /// Those of them that are aside.
    further: RefCell<Vec<TreePath>>,
    /// Files that are kept once and were replaced at several names.
    repeated: HashSet<u64>,
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
        (listing, is_target): (Option<&'a Listing>, bool),
    ) -> io::Result<Self> {
        let mut changed = changed(steps);
        // What stands may be another file by now.
        changed.retain(|_, at| !standing.contains_key(at));
        let mut files = Self {
            view,
            aside: OnceCell::new(),
            taken: RefCell::default(),
            listing: listing.map(Listing::by_directory),
            upper,
            kept,
            lifted,
            held: HashMap::new(),
            changed,
            known: RefCell::default(),
            further: RefCell::default(),
            repeated: repeated(steps),
            names: OnceCell::new(),
            is_target,
        };
        for op in &steps.change {
            let Op::Place { slot, ino, at, directory: false, .. } = op else { continue };
            if !files.held.contains_key(ino) && view.look(at).ok().flatten().is_some() {
                files.hold_one(at, *slot)?;
                files.held.insert(*ino, *slot);
            }
        }
        Ok(files)
    }

    fn hold_one(&self, at: &TreePath, slot: u32) -> io::Result<()> {
        let aside = self.aside()?.join(slot.to_string().as_ref());
        let ((parent, name), (directory, number)) = (self.view.place(at)?, self.view.place(&aside)?);
        self.lifted.around(at, || Ok(rustix::fs::linkat(&*parent, name, &*directory, number, AtFlags::empty())?))
    }

    /// The directory where files are held, which is made where there is none yet.
    fn aside(&self) -> io::Result<&TreePath> {
        if let Some(aside) = self.aside.get() {
            return Ok(aside);
        }
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let aside = TreePath::ROOT.join(format!("{ASIDE}{:032x}", u128::from_le_bytes(random)).as_ref());
        let (root, name) = self.view.place(&aside)?;
        // Whatever is there already is not ours.
        rustix::fs::mkdirat(&*root, name, Mode::RWXU)?;
        Ok(self.aside.get_or_init(|| aside))
    }

    /// Puts back what is kept at a place, with everything below it. What others have done there since is left out, and
    /// returned.
    pub(super) fn restore(
        &self,
        kept: &TreePath,
        to: &TreePath,
        attributes: &dyn Fn(&mut Attributes),
    ) -> io::Result<BTreeMap<TreePath, Since>> {
        let original = Original::open(self.kept, kept)?;
        let several = |copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath| {
            self.several(copying, from, original, to)
        };
        let found = Found { contents: self.listing.as_ref().and_then(|all| all.get(kept)), ..Found::default() };
        let admits = |from: &TreePath, then: &Stat, now: &Stat| found.admits(from == kept, from, (then, now));
        let (several, admits) = (&several, &admits);
        let copying = Copying { from: self.kept, to: self.view, attributes, with_marks: false, several, admits };
        let ino = &original.stat.st_ino;
        let is_name =
            original.kind() != FileType::Directory && (self.held.contains_key(ino) || self.repeated.contains(ino));
        // What is not permitted is not permitted for its first name: nothing is half done then.
        self.lifted.around(to, || {
            if is_name { self.several(&copying, kept, &original, to) } else { copying.copy(kept, &original, to) }
        })?;
        let place = |from: TreePath| from.parts().skip(kept.depth()).fold(to.clone(), |place, name| place.join(name));
        Ok(found.changed().into_iter().map(|(from, since)| (place(from), since)).collect())
    }

    /// A file that has, or had, several names.
    fn several(&self, copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        let stat = &original.stat;
        if let Some(known) = self.name_in_view(original)? {
            let ((parent, name), (new_parent, new)) = (self.view.place(&known)?, self.view.place(to)?);
            let link = || Ok(rustix::fs::linkat(&*parent, name, &*new_parent, new, AtFlags::empty())?);
            return self.lifted.around(&known, link);
        }
        copying.file(from, original, to)?;
        if self.view.look(to)?.is_none() {
            return Ok(());
        }
        if !self.is_target && self.names()?.get(&stat.st_ino).is_some_and(|names| *names < stat.st_nlink) {
            self.known.borrow_mut().insert(stat.st_ino, to.clone());
            return self.mark(original, to);
        }
        let aside = self.aside()?.join(format!("k{}", stat.st_ino).as_ref());
        let ((parent, name), (directory, further)) = (self.view.place(to)?, self.view.place(&aside)?);
        rustix::fs::linkat(&*parent, name, &*directory, further, AtFlags::empty())?;
        self.further.borrow_mut().push(aside.clone());
        self.known.borrow_mut().insert(stat.st_ino, aside);
        Ok(())
    }

    /// A name that a file which is kept has in the view.
    fn name_in_view(&self, original: &Original) -> io::Result<Option<TreePath>> {
        let ino = original.stat.st_ino;
        if let Some(slot) = self.held.get(&ino) {
            return Ok(Some(self.aside()?.join(slot.to_string().as_ref())));
        }
        let is_there = |at: &&TreePath| self.view.look(at).is_ok_and(|found| found.is_some());
        if let Some(known) = self.known.borrow().get(&ino).filter(is_there) {
            return Ok(Some(known.clone()));
        }
        if self.is_target {
            return Ok(None);
        }
        let changed = self.changed.get(&original.identity()?);
        Ok(changed.filter(is_there).cloned())
    }

    /// The time of a directory that lies, or is itself, at the place of one that was removed.
    pub(super) fn time_of(&self, removed: &TreePath, directory: &TreePath) -> io::Result<Option<Moment>> {
        if let Some(contents) = self.listing.as_ref().and_then(|all| all.get(removed)) {
            return Ok(contents.get(directory).and_then(|listed| listed.time_of_directory()));
        }
        Ok(there(self.kept.stat(directory))?.map(|stat| Moment::modified(&stat)))
    }

    /// A name of a file that was put back, by its inode, as long as it is held.
    pub(super) fn put_back(&self, ino: u64) -> Option<TreePath> {
        self.known.borrow().get(&ino).cloned()
    }

    /// Marks a copy as being of the file that lives on.
    fn mark(&self, original: &Original, to: &TreePath) -> io::Result<()> {
        let origin = original.identity()?.as_origin();
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
        let is_taken = self.rename(at, &self.aside()?.join(directory(slot).as_ref()))?;
        if is_taken {
            self.taken.borrow_mut().insert(slot);
        }
        Ok(is_taken)
    }

    /// Puts one that was moved aside in its place; whether it was there.
    pub(super) fn place_directory(&self, slot: u32, to: &TreePath) -> io::Result<bool> {
        let is_taken = self.taken.borrow().contains(&slot);
        Ok(is_taken && self.rename(&self.aside()?.join(directory(slot).as_ref()), to)?)
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
        let Some(aside) = self.aside.get() else { return Ok(()) };
        let held = self.held.values().map(|slot| aside.join(slot.to_string().as_ref()));
        for name in held.chain(self.further.borrow().iter().cloned()) {
            let (directory, name) = self.view.place(&name)?;
            rustix::fs::unlinkat(&*directory, name, AtFlags::empty())?;
        }
        let (root, name) = self.view.place(aside)?;
        rustix::fs::unlinkat(&*root, name, AtFlags::REMOVEDIR)?;
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

/// The files that other objects take the place of at more than one name.
fn repeated(steps: &Steps) -> HashSet<u64> {
    let (mut once, mut repeated) = (HashSet::new(), HashSet::new());
    for op in &steps.change {
        if let Op::Place { over: Some(over), .. } | Op::Move { over: Some(over), .. } = op
            && !once.insert(over.ino)
        {
            repeated.insert(over.ino);
        }
    }
    repeated
}

/// The name of a directory where it is held.
fn directory(slot: u32) -> String {
    format!("d{slot}")
}

/// What was found of the contents of a directory that was removed.
#[derive(Default)]
struct Found<'a> {
    /// What lay in it; not known of a commit that an earlier version has kept, and of what is no directory.
    contents: Option<&'a Contents<'a>>,
    /// What is there still, and as it was.
    same: RefCell<HashSet<TreePath>>,
    /// What is not.
    changed: RefCell<BTreeMap<TreePath, Since>>,
}

impl Found<'_> {
    /// Whether what lies at a place is to be put back.
    fn admits(&self, is_top: bool, from: &TreePath, (then, now): (&Stat, &Stat)) -> bool {
        let since = match self.contents.map(|contents| contents.get(from)) {
            None => None,
            Some(None) if is_top => None,
            Some(None) => Some(Since::CameIntoRemoved),
            Some(Some(listed)) => (!listed.is(now)).then_some(Since::Changed),
        };
        // Who writes to it this very moment makes it neither what it was nor what it will be.
        let since = since.or((Moment::changed(then) != Moment::changed(now)).then_some(Since::Changed));
        match since {
            Some(since) => drop(self.changed.borrow_mut().insert(from.clone(), since)),
            None => drop(self.same.borrow_mut().insert(from.clone())),
        }
        since.is_none()
    }

    /// What is not as it was, and what is gone out of a directory that is.
    fn changed(self) -> BTreeMap<TreePath, Since> {
        let (mut changed, same) = (self.changed.into_inner(), self.same.into_inner());
        for place in self.contents.into_iter().flat_map(HashMap::keys) {
            let is_seen = same.contains(place) || changed.contains_key(place);
            if !is_seen && place.split().is_some_and(|(parent, _)| same.contains(&parent)) {
                changed.insert(place.clone(), Since::Gone);
            }
        }
        changed
    }
}

/// Whether something could not be put back since the directory that it has to be in is not there.
pub(super) fn has_no_directory(error: &io::Error) -> bool {
    is_missing(error) || leads_elsewhere(error)
}
