//! What the user of a transaction could have done himself: what a commit does for him is judged by the kernel, with his
//! rights, on the live tree as it is then.
//!
//! The view has asked the kernel already, about each call. But from there to the commit others may have closed a
//! directory or given a file away, and he himself may have moved things around outside.
//!
//! ```text
//!   Steps ─needs─▶ what each step takes, of which objects ─judge, by a thread with his rights─▶ directories
//!           │        (root looks: what is new is his, no device, not privileged)                    │
//!           └─▶ refused by name                                    a commit changes names in no others
//! ```

mod ask;

use self::ask::{Asking, Need, Right};
use crate::change::{Op, OpTarget, Source, Steps};
use crate::journal::commit_error::CommitError;
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::{Attributes, CAPABILITIES, SET_IDS, Which};
use crate::tree::confined::{CallPath, Tree};
use crate::tree::identity::{Directories, Identity};
use crate::tree::path::TreePath;
use crate::tree::xattr;
use pando_kernel::process::user_rights::UserIds;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;

/// In a directory: what is in it goes by the hands of its owner alone.
const STICKY: u32 = 0o1000;

/// Set-group-id alone.
const SET_GROUP: u32 = 0o2000;

/// Fails where the user could not have done what the steps do on their part; the directories that names may come to and
/// go from.
pub(crate) fn judge(user: &UserIds, part: &OverlayPart, steps: &Steps) -> Result<Directories, CommitError> {
    let failed = |source| CommitError::Prepare { what: format!("looking at {}", part.live.display()), source };
    let judge = Judge::new(user, part, steps).map_err(failed)?;
    let needs = judge.needs(steps)?;
    let asking = Asking::new(user, &part.live, judge.live.root()).map_err(failed)?;
    let mut directories = user.with_rights(|| asking.judge(&needs)).map_err(failed)??;
    directories.extend(judge.brought(steps).map_err(failed)?);
    Ok(directories)
}

struct Judge<'a> {
    user: &'a UserIds,
    part: &'a OverlayPart,
    live: Tree,
    upper: Tree,
    index: Option<Tree>,
    /// Directories that are made, and that are brought whole.
    new: HashSet<&'a TreePath>,
    /// Where directories were that get another place.
    moved: HashMap<&'a TreePath, &'a TreePath>,
    /// Files that were put aside, by their numbers.
    aside: HashMap<u32, &'a Identity>,
}

impl<'a> Judge<'a> {
    fn new(user: &'a UserIds, part: &'a OverlayPart, steps: &'a Steps) -> io::Result<Self> {
        let index = part.index();
        let mut judge = Self {
            user,
            part,
            live: part.live_tree()?,
            upper: Tree::open(&part.upper())?,
            index: index.exists().then(|| Tree::open(&index)).transpose()?,
            new: HashSet::new(),
            moved: HashMap::new(),
            aside: HashMap::new(),
        };
        let mut from_of = HashMap::new();
        for op in &steps.stage {
            match op {
                Op::StageDirectory { from, slot, .. } => drop(from_of.insert(*slot, from)),
                Op::StageLink { origin, slot } => drop(judge.aside.insert(*slot, &origin.identity)),
                _ => {}
            }
        }
        for op in &steps.change {
            match op {
                Op::MakeDirectory { at, .. } | Op::Move { at, .. } => drop(judge.new.insert(at)),
                Op::Place { at, slot, directory: true, .. } => {
                    let from = from_of.get(slot).ok_or(io::ErrorKind::InvalidData)?;
                    judge.moved.insert(at, from);
                }
                _ => {}
            }
        }
        Ok(judge)
    }

    fn refused(&self, at: &TreePath, why: &str) -> CommitError {
        ask::refused(&self.part.live, at, why)
    }

    fn failed(&self, at: &TreePath, source: io::Error) -> CommitError {
        ask::failed(&self.part.live, at, source)
    }

    /// Where a path is in the live tree now; nothing if what it is in is new itself.
    fn now(&self, path: &TreePath) -> Option<TreePath> {
        let mut above = Some(path.clone());
        while let Some(one) = above {
            if self.new.contains(&one) {
                return None;
            }
            if let Some(from) = self.moved.get(&one) {
                let rest = path.as_bytes().get(one.as_bytes().len()..).unwrap_or_default();
                return TreePath::new(&[from.as_bytes(), rest].concat());
            }
            above = one.split().map(|(parent, _)| parent);
        }
        Some(path.clone())
    }

    /// What the steps take. What is new is looked at here, by root, whom nothing is hidden from.
    fn needs(&self, steps: &Steps) -> Result<Vec<Need>, CommitError> {
        let mut needs = Vec::new();
        for op in steps.stage.iter().chain(&steps.change).chain(&steps.finish) {
            match op {
                Op::StageDirectory { from, slot, .. } => {
                    self.names(from, &mut needs);
                    let to = self.moved.iter().find(|(_, old)| **old == from).map(|(to, _)| to.split());
                    let stays = to.is_some_and(|to| to.map(|(up, _)| up) == from.split().map(|(up, _)| up));
                    debug_assert!(!self.aside.contains_key(slot));
                    needs.push((Right::Renaming(from.clone(), !stays), from.clone()));
                }
                Op::Remove { at, .. } => {
                    self.names(at, &mut needs);
                    needs.extend(self.now_beside(at).map(|now| (Right::Removal(now), at.clone())));
                }
                Op::MakeDirectory { at, .. } => self.names(at, &mut needs),
                Op::Place { at, slot, over, .. } => {
                    self.names(at, &mut needs);
                    if let Some(identity) = self.aside.get(slot) {
                        let object = identity.open(&self.live).map_err(|error| self.failed(at, error))?;
                        needs.push((Right::Link(object), at.clone()));
                    }
                    self.over(at, over.is_some(), &mut needs);
                }
                Op::Move { at, over, .. } => {
                    self.names(at, &mut needs);
                    self.over(at, over.is_some(), &mut needs);
                    self.is_his(&self.upper, at, at)?;
                }
                Op::Update { target, .. } => {
                    let at = self.shown(target);
                    if let Some(object) = self.object(target).map_err(|error| self.failed(&at, error))? {
                        needs.push((Right::Content(object), at));
                    }
                }
                Op::Attributes { source, target, which, .. } => self.attributes(source, target, *which, &mut needs)?,
                Op::Protect { target, .. } => {
                    return Err(self.refused(&self.shown(target), "only root changes what chattr(1) protects"));
                }
                // What it takes away the attributes say, too.
                Op::Restrict { .. } | Op::StageLink { .. } => {}
            }
        }
        Ok(needs)
    }

    /// What is beside a name by now: the name itself may be about to be new.
    fn now_beside(&self, at: &TreePath) -> Option<TreePath> {
        let (parent, name) = at.split()?;
        Some(self.now(&parent)?.join(name))
    }

    fn names(&self, at: &TreePath, needs: &mut Vec<Need>) {
        let parent = at.split().and_then(|(parent, _)| self.now(&parent));
        needs.extend(parent.map(|parent| (Right::Names(parent), at.clone())));
    }

    fn over(&self, at: &TreePath, is_over: bool, needs: &mut Vec<Need>) {
        let victim = self.now_beside(at).filter(|_| is_over);
        needs.extend(victim.map(|victim| (Right::Removal(victim), at.clone())));
    }

    fn shown(&self, target: &OpTarget) -> TreePath {
        target.place().cloned().unwrap_or(TreePath::ROOT)
    }

    /// What of the live tree is changed; nothing if that is new.
    fn object(&self, target: &OpTarget) -> io::Result<Option<OwnedFd>> {
        Ok(Some(match target {
            OpTarget::Root => self.live.object(&TreePath::ROOT)?,
            OpTarget::Staged(slot) => self.aside.get(slot).ok_or(io::ErrorKind::InvalidData)?.open(&self.live)?,
            OpTarget::Known { at, .. } | OpTarget::Brought { at, .. } if self.new.contains(at) => return Ok(None),
            OpTarget::Known { identity, .. } => identity.open(&self.live)?,
            OpTarget::Brought { at, .. } => match self.now(at) {
                Some(now) => self.live.object(&now)?,
                None => return Ok(None),
            },
        }))
    }

    /// What is new must be the user's, and neither a device nor a program with others' rights.
    fn is_his(&self, tree: &Tree, path: &TreePath, at: &TreePath) -> Result<(), CommitError> {
        let look = || Ok((tree.stat(path)?, xattr::read(&tree.call_path(path)?)?.own));
        let (stat, xattrs): (Stat, xattr::Xattrs) = look().map_err(|error| self.failed(at, error))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let why = if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            Some("a device is only root's to make")
        } else if stat.st_uid != self.user.uid {
            Some("what is new must be yours")
        } else if kind == FileType::RegularFile && stat.st_mode & SET_GROUP != 0 && !self.user.is_in(stat.st_gid) {
            Some("it would run with the rights of a group that you are not in")
        } else if xattrs.keys().any(|name| is_kernels(name.to_bytes())) {
            Some("it has attributes that only root may set")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(self.refused(at, why));
        }
        if kind == FileType::Directory {
            for name in tree.names(path).map_err(|error| self.failed(at, error))? {
                self.is_his(tree, &path.join(&name), &at.join(&name))?;
            }
        }
        Ok(())
    }

    /// Attributes change as the user could have changed them.
    fn attributes(
        &self,
        source: &Source,
        target: &OpTarget,
        which: Which,
        needs: &mut Vec<Need>,
    ) -> Result<(), CommitError> {
        let at = self.shown(target);
        let (tree, path) = match source {
            Source::Upper(path) => (&self.upper, path),
            Source::Index(path) => {
                (self.index.as_ref().ok_or_else(|| self.failed(&at, io::ErrorKind::NotFound.into()))?, path)
            }
        };
        let Some(object) = self.object(target).map_err(|error| self.failed(&at, error))? else {
            return self.is_his_alone(tree, path, &at);
        };
        let look = || {
            let stat = rustix::fs::fstat(&object)?;
            let old = xattr::read(&CallPath::of(object.try_clone()?)?)?.own;
            let new = Attributes::new(&tree.stat(path)?, xattr::read(&tree.call_path(path)?)?.own);
            Ok((stat, Attributes::new(&stat, old), new))
        };
        let (stat, old, new) = look().map_err(|error| self.failed(&at, error))?;
        if which != Which::TimeAlone
            && let Some(why) = self.wrong_change(&old, &new)
        {
            return Err(self.refused(&at, why));
        }
        if stat.st_uid == self.user.uid {
            return Ok(());
        }
        // A directory's time changes with its names, whose rights are looked at by themselves.
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let has_others = which != Which::TimeAlone && old.xattrs != new.xattrs;
        if is_directory && has_others && stat.st_mode & STICKY != 0 {
            return Err(self.refused(&at, "it is not yours"));
        }
        if !is_directory || has_others {
            needs.push((Right::Content(object), at));
        }
        Ok(())
    }

    /// The same for one thing that is new, without what is in it.
    fn is_his_alone(&self, tree: &Tree, path: &TreePath, at: &TreePath) -> Result<(), CommitError> {
        let found = tree.stat(path).map_err(|error| self.failed(at, error))?;
        if found.st_uid == self.user.uid { Ok(()) } else { Err(self.refused(at, "what is new must be yours")) }
    }

    /// Why the user could not have changed attributes so.
    fn wrong_change(&self, old: &Attributes, new: &Attributes) -> Option<&'static str> {
        if old.uid != new.uid {
            return Some("only root gives files away");
        }
        let is_owner = old.uid == self.user.uid;
        if old.gid != new.gid && !(is_owner && self.user.is_in(new.gid)) {
            return Some("you may not give it to that group");
        }
        let kept = |name: &&std::ffi::CString| is_kernels(name.to_bytes()) && name.as_c_str() != CAPABILITIES;
        let kernels = |one: &Attributes| -> Vec<_> {
            one.xattrs
                .iter()
                .filter(|(name, _)| kept(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let gains =
            new.xattrs.contains_key(CAPABILITIES) && new.xattrs.get(CAPABILITIES) != old.xattrs.get(CAPABILITIES);
        if gains || kernels(old) != kernels(new) {
            return Some("it has attributes that only root may set");
        }
        let (was, is) = (old.mode(), new.mode());
        if !is_owner {
            let users = |one: &Attributes| -> Vec<_> {
                let others = one.xattrs.iter().filter(|(name, _)| !name.to_bytes().starts_with(b"user."));
                others
                    .filter(|(name, _)| name.as_c_str() != CAPABILITIES)
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect()
            };
            // What is written to is no set-user-id program any more.
            let same_mode = was == is || was & !SET_IDS == is;
            return (!same_mode || users(old) != users(new)).then_some("it is not yours");
        }
        let gains_group = new.are_of_file() && is & SET_GROUP != 0 && !self.user.is_in(new.gid);
        gains_group.then_some("it would run with the rights of a group that you are not in")
    }

    /// The directories that the commit itself makes and brings.
    fn brought(&self, steps: &Steps) -> io::Result<Vec<(u64, Identity)>> {
        let made = |slot: u32| Tree::open(&self.part.stage())?.object(&TreePath::ROOT.join(slot.to_string().as_ref()));
        let found = |tree: &Tree, path: &TreePath, ino: u64| {
            let object = tree.object(path)?;
            // Others have put something else in its place, which is not brought.
            let is_it = tree.ident_of(&object, &rustix::fs::fstat(&object)?)? == ino;
            if is_it { Ok(object) } else { Err(Errno::STALE.into()) }
        };
        let of = |op: &Op| {
            Some(match op {
                Op::MakeDirectory { slot, .. } => made(*slot),
                Op::Move { at, ino, directory: true, .. } => found(&self.upper, at, *ino),
                Op::Place { at, ino, directory: true, .. } => found(&self.live, self.moved.get(at)?, *ino),
                _ => return None,
            })
        };
        steps
            .change
            .iter()
            .filter_map(of)
            .map(|object| {
                let object = object?;
                Ok((rustix::fs::fstat(&object)?.st_ino, Identity::of(object)?))
            })
            .collect()
    }
}

/// Whether an extended attribute is one that only root may set. Labels of SELinux come by themselves.
fn is_kernels(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name.starts_with(b"security.") && name != b"security.selinux"
}
