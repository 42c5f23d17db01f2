//! Doing what a journal says: idempotent, so that it is done again from the start after a crash at any point.

mod disarming;
mod names;
mod users;

use self::disarming::Armed;
use self::users::Within;
use crate::change::{Op, OpTarget, Replaced, Source, Steps};
use crate::crash::{planted, step};
use crate::journal::keep;
use crate::journal::privileged::Privileged;
use crate::journal::progress::{Begun, Progress};
use crate::journal::staging::{BringIn, StagingArea};
use crate::state::overlay_part::OverlayPart;
use crate::state::private_place;
use crate::tree::attributes::{Attributes, Moment, Which};
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::content::{Digest, MOST_DIGESTED, bring_data, bring_size, digest, fill};
use crate::tree::identity::{Directories, Identity, is_gone};
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use crate::tree::xattr;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How what is only looked at is opened.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An operation that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct ApplyError {
    /// What was tried, on what.
    what: String,
    #[source]
    source: io::Error,
}

impl ApplyError {
    pub(crate) fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self { what: what.into(), source }
    }
}

/// The trees that the operations on one part work on.
pub(crate) struct Apply {
    live: Tree,
    upper: Tree,
    index: Option<Tree>,
    /// Where the steps put things aside, if they do.
    stage: Option<Tree>,
    /// Where what they remove goes, if they remove anything.
    trash: Option<Tree>,
    /// Where what another object takes the place of gets a name, if that is kept.
    replaced: Option<Tree>,
    /// In a target nothing can be moved from the upper directory.
    target: Option<StagingArea>,
    /// Whether some of it may have been done before.
    again: bool,
    /// How far the commit is.
    progress: Rc<Progress>,
    /// The files that the commit itself writes to.
    written: HashSet<u64>,
    /// What gets privileges, if it has this content.
    privileged: Vec<(OpTarget, Option<Digest>)>,
    /// The directories that names may be changed in, where it is a user's who may not change them everywhere.
    within: Option<Within>,
}

fn make(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Apply {
    /// Opens them. `again` tells that an earlier run, or a part of one, may have come before a crash.
    /// `keeps` tells that what it takes away is kept.
    pub(crate) fn new(
        part: &OverlayPart,
        steps: &Steps,
        (again, keeps): (bool, bool),
        progress: &Rc<Progress>,
    ) -> Result<Self, ApplyError> {
        if part.is_unmounted() {
            let (base, live) = (part.base.display(), part.live.display());
            let what = format!("looking for {base}: its file system is not mounted; mount it at {live} again");
            return Err(ApplyError::new(what, io::ErrorKind::NotFound.into()));
        }
        if !private_place::is_private(&part.base) {
            let what = format!("using {}, which others can write to: move away what lies there", part.base.display());
            return Err(ApplyError::new(what, io::ErrorKind::PermissionDenied.into()));
        }
        let open = |path: &Path| {
            Tree::open(path).map_err(|source| ApplyError::new(format!("opening {}", path.display()), source))
        };
        let failed = |source| ApplyError::new(format!("reaching {}", part.live.display()), source);
        let live = part.live_tree().map_err(failed)?;
        let kept = |name: &str| if keeps { open(&part.kept().join(name)).map(Some) } else { Ok(None) };
        let (target, stage, trash) = match &part.target {
            Some(target) => {
                let (aside, stage, trash) = StagingArea::prepare(target, &live).map_err(failed)?;
                (Some(aside), Some(stage), Some(trash))
            }
            None => {
                let made = |path: PathBuf| {
                    make(&path).map_err(|error| ApplyError::new(format!("making {}", path.display()), error))?;
                    open(&path)
                };
                let makes = steps.change.iter().any(|op| matches!(op, Op::MakeDirectory { .. }));
                let removes = steps.change.iter().any(|op| matches!(op, Op::Remove { .. }));
                let stage = (makes || !steps.stage.is_empty()).then(|| made(part.stage())).transpose()?;
                let trash = || if keeps { open(&part.kept().join(keep::REMOVED)) } else { made(part.trash()) };
                (None, stage, removes.then(trash).transpose()?)
            }
        };
        let index = part.index();
        Ok(Self {
            live,
            upper: open(&part.upper())?,
            index: index.exists().then(|| open(&index)).transpose()?,
            stage,
            trash,
            progress: Rc::clone(progress),
            // Of what goes in a target there are copies.
            replaced: if part.target.is_some() { None } else { kept(keep::REPLACED)? },
            target,
            again,
            written: steps.change.iter().filter_map(written).collect(),
            privileged: Vec::new(),
            within: None,
        })
    }

    /// The same with the files that get privileges.
    pub(crate) fn with_privileged<'a>(self, all: impl Iterator<Item = &'a Privileged>, steps: &Steps) -> Self {
        let of_one = |one: &Privileged| match steps.finish.get(one.op as usize)? {
            Op::Attributes { target, .. } => Some((target.clone(), one.content)),
            _ => None,
        };
        Self { privileged: all.filter_map(of_one).collect(), ..self }
    }

    /// The same where names may be changed in these directories alone.
    pub(crate) fn within(self, directories: Option<Directories>, steps: &Steps) -> Self {
        Self { within: directories.map(|directories| Within::new(directories, steps)), ..self }
    }

    fn stage_tree(&self) -> io::Result<&Tree> {
        self.stage.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn trash_tree(&self) -> io::Result<&Tree> {
        self.trash.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Takes away the further names that files were given aside: they would change those files' times later, when
    /// somebody else has read them already. Nothing of the steps is needed any more.
    pub(crate) fn unlink_staged(&self, steps: &Steps) {
        let Some(stage) = self.stage.as_ref().filter(|_| self.target.is_none()) else { return };
        for op in &steps.stage {
            if let Op::StageLink { slot, .. } = op {
                // What is left goes with the directory.
                let _ = rustix::fs::unlinkat(stage.root(), slot_name(*slot), AtFlags::empty());
            }
        }
    }

    /// Removes what was put aside where others could come across it.
    pub(crate) fn clear(&self, steps: &Steps) -> Result<(), ApplyError> {
        let Some(aside) = &self.target else { return Ok(()) };
        aside.clear(&self.live, steps).map_err(|source| ApplyError::new("removing what was put aside", source))
    }

    /// Puts aside.
    pub(crate) fn stage(&self, steps: &Steps) -> Result<(), ApplyError> {
        steps.stage.iter().try_for_each(|op| self.operate(op))
    }

    /// Everything else.
    pub(crate) fn change(&self, steps: &Steps) -> Result<(), ApplyError> {
        let operate = |op: &Op| {
            let size = match self.progress.begin_next() {
                Begun::Done => return Ok(()),
                Begun::Interrupted(size) => Some(size),
                Begun::New => None,
            };
            step();
            // Right before it, since others go on.
            self.keep_newer(op, size).and_then(|()| self.perform(op))
        };
        if planted("wrong-order") {
            return steps.finish.iter().chain(&steps.change).try_for_each(operate);
        }
        steps.change.iter().chain(&steps.finish).try_for_each(operate)
    }

    /// Keeps what others have written after the commit point into what an operation overwrites or takes away. A file
    /// that was written to by a commit that was killed may hold half of that: it has to be larger than it was.
    fn keep_newer(&self, op: &Op, size: Option<u64>) -> Result<(), ApplyError> {
        // Of what a user's commit overwrites, root makes no copies.
        let keeps = self.target.is_none() && self.within.is_none();
        let Some(since) = self.progress.since().filter(|_| keeps) else { return Ok(()) };
        let kept = match op {
            Op::Update { source, target: target @ OpTarget::Known { at, .. }, .. } => {
                self.keep_content((source, target), at, size, since)
            }
            Op::Remove { at, ino, changed, .. } => self.keep_named(at, (*ino, *changed), since),
            Op::Move { at, over: Some(over), .. } | Op::Place { at, over: Some(over), .. } => {
                self.keep_named(at, (over.ino, over.changed), since)
            }
            _ => Ok(()),
        };
        kept.map_err(|source| {
            ApplyError::new(format!("keeping what others have written, before {}", self.words(op)), source)
        })
    }

    fn operate(&self, op: &Op) -> Result<(), ApplyError> {
        step();
        self.perform(op)
    }

    fn perform(&self, op: &Op) -> Result<(), ApplyError> {
        let mut done = self.try_to(op);
        if self.within.is_some() {
            return self.came_for_user(op, done).map_err(|source| ApplyError::new(self.words(op), source));
        }
        if let Op::Place { at, .. } | Op::MakeDirectory { at, .. } | Op::Move { at, .. } = op
            && done.as_ref().is_err_and(|error| is_missing(error) || leads_elsewhere(error))
            && self.target.is_none()
            && self.live.place(at).is_err()
        {
            done = self.make_way(at).and_then(|()| self.try_to(op));
        }
        // Nothing is protected but where that was to be asked for, so that it is found out by trying.
        if done.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error())) {
            done = self.lift_for(op).and_then(|()| self.try_to(op));
        }
        done.map_err(|source| ApplyError::new(self.words(op), source))
    }

    /// Lifts the protection of all that an operation has to do with in the live tree. What is to be protected is again
    /// behind all else.
    fn lift_for(&self, op: &Op) -> io::Result<()> {
        let at = match op {
            Op::StageDirectory { from: at, .. }
            | Op::Remove { at, .. }
            | Op::Place { at, .. }
            | Op::MakeDirectory { at, .. }
            | Op::Move { at, .. } => at,
            Op::StageLink { origin, .. } => match origin.identity.open(&self.live) {
                Err(error) if is_gone(&error) && self.target.is_none() => return Ok(()),
                object => return Protection::default().give(object?.as_fd()),
            },
            Op::Update { target, .. } | Op::Attributes { target, .. } | Op::Restrict { target, .. } => {
                let object = self.object(target)?;
                return object.map_or(Ok(()), |object| Protection::default().give(object.as_fd()));
            }
            Op::Protect { .. } => return Ok(()),
        };
        let parent = at.split().map(|(parent, _)| parent);
        for path in [Some(at), parent.as_ref()].into_iter().flatten() {
            match self.live.object(path) {
                Err(error) if is_missing(&error) => {}
                object => Protection::default().give(object?.as_fd())?,
            }
        }
        Ok(())
    }

    fn try_to(&self, op: &Op) -> io::Result<()> {
        match op {
            Op::StageDirectory { from, ino, slot } => self.stage_directory(from, *ino, *slot),
            Op::StageLink { origin, slot } => self.stage_link(&origin.identity, *slot),
            Op::Remove { at, ino, changed, slot } => self.remove(at, *ino, *changed, *slot),
            Op::Place { slot, ino, at, directory, over } => self.place((*slot, *ino), at, *directory, *over),
            Op::MakeDirectory { at, slot } => self.make_directory(at, *slot),
            Op::Move { at, ino, directory, marked, over } => self.bring_up(at, *ino, (*directory, *marked), *over),
            Op::Update { source, target, .. } => self.update(source, target),
            Op::Restrict { source, target, content } => self.restrict(source, target, *content),
            Op::Attributes { source, target, modified, which } => self.attributes(source, target, *modified, *which),
            Op::Protect { target, protection, slot } => self.protect(target, *protection, *slot),
        }
    }

    fn words(&self, op: &Op) -> String {
        let target = |target: &OpTarget| match target {
            OpTarget::Staged(slot) => format!("file {slot}, which was put aside,"),
            OpTarget::Root => self.live.path().display().to_string(),
            OpTarget::Known { at, .. } | OpTarget::Brought { at, .. } => self.live.shown(at),
        };
        match op {
            Op::StageDirectory { from, .. } => format!("putting {} aside", self.live.shown(from)),
            Op::StageLink { slot, .. } => format!("putting file {slot} aside on {}", self.live.path().display()),
            Op::Remove { at, .. } => format!("removing {}", self.live.shown(at)),
            Op::Place { at, .. } | Op::Move { at, .. } => format!("putting {} in place", self.live.shown(at)),
            Op::MakeDirectory { at, .. } => format!("making {}", self.live.shown(at)),
            Op::Update { target: file, .. } => format!("writing {}", target(file)),
            Op::Attributes { target: file, .. } => format!("setting the attributes of {}", target(file)),
            Op::Restrict { target: file, .. } => format!("taking rights to {} away", target(file)),
            Op::Protect { target: file, .. } => format!("protecting {}", target(file)),
        }
    }

    fn stage_directory(&self, from: &TreePath, ino: u64, slot: u32) -> io::Result<()> {
        if self.found(from)?.is_none_or(|(_, found)| found != ino) {
            return Ok(());
        }
        self.take_away(from, ino, self.stage_tree()?, slot)
    }

    fn stage_link(&self, file: &Identity, slot: u32) -> io::Result<()> {
        // Linked and, in an earlier run, done with? Then it would still be in the stage directory, and not be gone.
        let object = match file.open(&self.live) {
            // Others have removed its last name since the commit point: there is nothing left to give one more.
            Err(error) if is_gone(&error) && self.target.is_none() => return Ok(()),
            object => object?,
        };
        match rustix::fs::linkat(&object, "", self.stage_tree()?.root(), slot_name(slot), AtFlags::EMPTY_PATH) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            // They have removed it, and have it open still.
            Err(Errno::NOENT) if self.target.is_none() && rustix::fs::fstat(&object)?.st_nlink == 0 => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn remove(&self, at: &TreePath, ino: u64, changed: Moment, slot: u32) -> io::Result<()> {
        let is_it = |ino_now: u64| ino_now == ino || planted("replay-not-idempotent");
        if self.again && self.within.is_some() {
            self.give_back_removed(at, ino, changed, slot)?;
        }
        let Some((stat, _)) = self.found(at)?.filter(|(_, found)| is_it(*found)) else { return Ok(()) };
        if self.again && self.is_younger(at, changed)? || planted("lost-removal") {
            return Ok(());
        }
        if self.within.is_some() {
            return self.remove_for_user(at, ino, changed, slot);
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return self.take_away(at, ino, self.trash_tree()?, slot);
        }
        let ((directory, name), armed) = (self.place_to_change(at)?, self.armed(at, 1)?);
        rustix::fs::renameat(&*directory, name, self.trash_tree()?.root(), slot_name(slot))?;
        armed.into_iter().for_each(Armed::disarm);
        Ok(())
    }

    fn place(
        &self,
        (slot, ino): (u32, u64),
        at: &TreePath,
        is_directory: bool,
        over: Option<Replaced>,
    ) -> io::Result<()> {
        if self.live.look_ident(at)?.is_some_and(|(_, found)| found == ino) {
            return Ok(());
        }
        if is_directory {
            self.put(self.stage_tree()?.root(), &slot_name(slot), at, over)?;
            self.live.forget();
            return Ok(());
        }
        // The file stays in the stage directory: it may have more places to go to.
        let mut copy = slot_name(slot);
        copy.push("-link");
        match rustix::fs::unlinkat(self.stage_tree()?.root(), &*copy, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stage = self.stage_tree()?.root();
        match rustix::fs::linkat(stage, slot_name(slot), stage, &*copy, AtFlags::empty()) {
            // It was gone before it could be put aside.
            Err(Errno::NOENT) if self.target.is_none() => return Ok(()),
            linked => linked?,
        }
        step();
        self.put(self.stage_tree()?.root(), &copy, at, over)
    }

    fn make_directory(&self, at: &TreePath, slot: u32) -> io::Result<()> {
        if self.target.is_none() {
            // It has its place already?
            if self.stage_tree()?.look(&TreePath::ROOT.join(&slot_name(slot)))?.is_some() {
                self.put(self.stage_tree()?.root(), &slot_name(slot), at, None)?;
                self.live.forget();
            }
            return Ok(());
        }
        let (directory, name) = self.live.place(at)?;
        match rustix::fs::mkdirat(&*directory, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn bring_up(
        &self,
        at: &TreePath,
        ino: u64,
        (is_directory, is_marked): (bool, bool),
        over: Option<Replaced>,
    ) -> io::Result<()> {
        // Nobody else writes to the upper directory: where it was read a moment ago, everything is there.
        if self.again || self.target.is_some() {
            let Some(stat) = self.upper.look(at)?.filter(|stat| stat.st_ino == ino) else { return Ok(()) };
            if let Some(aside) = &self.target {
                return BringIn { upper: &self.upper, stage: self.stage_tree()?, live: &self.live, aside }
                    .bring(at, &stat);
            }
        }
        if is_marked {
            self.strip(at, is_directory)?;
        }
        let (from, name) = self.upper.place(at)?;
        self.put(from.as_fd(), name, at, over)?;
        if is_directory {
            self.live.forget();
            self.upper.forget();
        }
        Ok(())
    }

    /// Takes the overlay's marks off what leaves it.
    fn strip(&self, at: &TreePath, is_directory: bool) -> io::Result<()> {
        xattr::strip(&self.upper.call_path(at)?)?;
        if !is_directory {
            return Ok(());
        }
        for name in self.upper.names(at)? {
            let child = at.join(&name);
            let kind = FileType::from_raw_mode(self.upper.stat(&child)?.st_mode);
            self.strip(&child, kind == FileType::Directory)?;
        }
        Ok(())
    }

    fn source(&self, source: &Source) -> io::Result<(&Tree, TreePath)> {
        match source {
            Source::Upper(path) => Ok((&self.upper, path.clone())),
            Source::Index(path) => Ok((self.index.as_ref().ok_or(io::ErrorKind::NotFound)?, path.clone())),
        }
    }

    /// Opens what is to be changed as a mere place; nothing where others have removed or replaced it since the commit
    /// point.
    fn object(&self, target: &OpTarget) -> io::Result<Option<OwnedFd>> {
        let found = match target {
            OpTarget::Root => self.live.object(&TreePath::ROOT),
            OpTarget::Staged(slot) => match self.stage_tree()?.object(&TreePath::ROOT.join(&slot_name(*slot))) {
                Err(error) if self.within.is_some() && is_missing(&error) => return self.not_aside(*slot),
                object => object,
            },
            OpTarget::Known { at, .. } if planted("by-name") => self.live.object(at),
            OpTarget::Known { identity, .. } => match identity.open(&self.live) {
                Err(error) if is_gone(&error) && self.target.is_none() => return Ok(None),
                object => object,
            },
            OpTarget::Brought { at, .. } if self.target.is_some() => self.live.object(at),
            OpTarget::Brought { at, ino } => match self.live.object(at) {
                Err(error) if is_missing(&error) || leads_elsewhere(&error) => return Ok(None),
                object => {
                    let object = object?;
                    let now = self.live.ident_of(&object, &rustix::fs::fstat(&object)?)?;
                    return Ok((*ino == Some(now)).then_some(object));
                }
            },
        };
        found.map(Some)
    }

    /// Whether nothing is left to do to what was put aside: it was done before, with all that comes behind it, or
    /// others have removed it before it was put there.
    fn was_done(&self, target: &OpTarget) -> io::Result<bool> {
        let OpTarget::Staged(slot) = target else { return Ok(false) };
        // A user's may never have been put aside, and is found all the same.
        Ok(self.within.is_none()
            && (self.again || self.target.is_none())
            && self.stage_tree()?.look(&TreePath::ROOT.join(&slot_name(*slot)))?.is_none())
    }

    fn protect(&self, target: &OpTarget, protection: Protection, slot: Option<u32>) -> io::Result<()> {
        if self.was_done(target)? {
            return Ok(());
        }
        let object = self.object(target)?;
        if let Some(slot) = slot {
            match rustix::fs::unlinkat(self.stage_tree()?.root(), slot_name(slot), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            step();
        }
        object.map_or(Ok(()), |object| protection.give(object.as_fd()))
    }

    fn update(&self, source: &Source, target: &OpTarget) -> io::Result<()> {
        if self.was_done(target)? {
            return Ok(());
        }
        let (from, path) = self.source(source)?;
        let from: File = from.file(&path, false)?;
        let Some(object) = self.object(target)? else { return Ok(()) };
        let stat = rustix::fs::fstat(&object)?;
        let ino = self.live.ident_of(&object, &stat)?;
        let call = CallPath::of(object)?;
        let open = |flags| rustix::fs::open(call.text.as_c_str(), flags | OFlags::CLOEXEC, Mode::empty());
        let opened = match (open(OFlags::RDWR | OFlags::NONBLOCK), target) {
            // Somebody has a lease on what has more than one name, since it was looked at: the kernel takes that away,
            // in its own time (fs.lease-break-time). For a user nobody waits.
            (Err(Errno::AGAIN), OpTarget::Staged(_)) if self.within.is_none() => open(OFlags::RDWR),
            (opened, _) => opened,
        };
        match (opened, target) {
            // Somebody has executed it since it was looked at, or has taken a lease on it, for which nobody waits.
            (Err(Errno::TXTBSY | Errno::AGAIN), OpTarget::Known { at, .. }) if self.target.is_none() => {
                self.replace_executed((self.source(source)?.0, &path), &from, at, ino)
            }
            (opened, _) => {
                let to = opened?.into();
                self.progress.writing(stat.st_size.cast_unsigned());
                bring_data(&from, &to)?;
                self.keep_appended((&from, &to), target, stat.st_size)?;
                bring_size(&from, &to)
            }
        }
    }

    /// Puts new content in the place of a program that is being run and cannot be written to: another file, of which
    /// whoever runs the old one sees nothing.
    fn replace_executed(
        &self,
        (tree, path): (&Tree, &TreePath),
        from: &File,
        at: &TreePath,
        ino: u64,
    ) -> io::Result<()> {
        let name = format!(".pando-executed-{ino:x}");
        let upper = self.upper.root();
        match rustix::fs::unlinkat(upper, &*name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        // It has its place already, or others have put something else there.
        if self.live.look_ident(at)?.is_none_or(|(_, found)| found != ino) {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let new = rustix::fs::openat(upper, &*name, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = tree.stat(path)?;
        fill(from, &stat, &new.into())?;
        step();
        let place = rustix::fs::openat(upper, &*name, PLACE, Mode::empty())?;
        let attributes = Attributes::new(&stat, xattr::read(&tree.call_path(path)?)?.own);
        attributes.give(&CallPath::of(place)?, Which::All, step)?;
        let (directory, to) = self.place_to_change(at)?;
        Ok(rustix::fs::renameat(upper, &*name, &*directory, to)?)
    }

    /// See [`Op::Restrict`]. In a target nobody runs meanwhile.
    fn restrict(&self, source: &Source, target: &OpTarget, content: bool) -> io::Result<()> {
        if self.target.is_some() || self.was_done(target)? || planted("rights-late") || planted("lost-mode") {
            return Ok(());
        }
        let (from, path) = self.source(source)?;
        let wanted = Attributes::new(&from.stat(&path)?, xattr::read(&from.call_path(&path)?)?.own);
        let Some(object) = self.object(target)? else { return Ok(()) };
        if self.is_anothers_by_now(&object, target, &wanted)? {
            return Ok(());
        }
        wanted.restrict(&CallPath::of(object)?, content)
    }

    fn attributes(&self, source: &Source, target: &OpTarget, modified: Option<Moment>, which: Which) -> io::Result<()> {
        if self.was_done(target)? {
            return Ok(());
        }
        let (from, path) = self.source(source)?;
        let stat = from.stat(&path)?;
        let mut attributes = Attributes::new(&stat, xattr::read(&from.call_path(&path)?)?.own);
        if let Some(aside) = &self.target {
            aside.translate(&mut attributes);
        }
        if let Some(modified) = modified {
            attributes.modified = modified;
        }
        let Some(object) = self.object(target)? else { return Ok(()) };
        if self.is_anothers_by_now(&object, target, &attributes)? {
            return Ok(());
        }
        let object = CallPath::of(object)?;
        let Some((_, content)) = self.privileged.iter().find(|(one, _)| one == target) else {
            return attributes.give(&object, which, step);
        };
        let plain = attributes.without_privileges();
        plain.give(&object, which, step)?;
        // Its owner is the one to be by now. Who has it open since before can write still, so that it is read again.
        // What cannot be read without waiting, for a lease, may be anything.
        let digested = || digest(&object, &mut { MOST_DIGESTED }).ok().flatten();
        let is_it = || content.is_some() && digested() == *content;
        if !is_it() {
            return Ok(());
        }
        attributes.give(&object, which, step)?;
        if is_it() { Ok(()) } else { plain.give(&object, which, step) }
    }
}

/// The file that an operation writes to, by the number of its inode.
fn written(op: &Op) -> Option<u64> {
    match op {
        Op::Update { ino, .. } => Some(*ino),
        _ => None,
    }
}

fn slot_name(slot: u32) -> OsString {
    slot.to_string().into()
}
