//! What a commit does ahead of its commit point: all that can fail for want of room or of a disk that works fails here,
//! and nothing of it is seen by others.

use crate::change::kept::About;
use crate::change::{Change, Op, Sign};
use crate::crash::{planted, step};
use crate::journal::commit_error::CommitError;
use crate::journal::file::{Journal, JournalFile};
use crate::journal::keep;
use crate::journal::names_left;
use crate::journal::order;
use crate::journal::privileged;
use crate::journal::staging::StagingArea;
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::Moment;
use crate::tree::confined::Tree;
use crate::tree::identity::{Directories, Identity};
use crate::tree::path::TreePath;
use crate::validate::change_set::{Basis, PartChanges, Source, leaves_what_is_in_use, revalidate};
use crate::validate::permission;
use pando_kernel::process::user_rights::UserIds;
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, FallocateFlags, Mode, fallocate};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Kept free beside the content of changed files, for directories that grow.
const SLACK: u64 = 256 << 10;

/// Nobody fills so much within a commit, and so many times as much as that brings to the disk: then none is kept free.
const PLENTY: u64 = 1 << 30;
const TIMES_AS_MUCH: u64 = 8;

/// The directories where a commit in a target puts things aside, and what lies in them for a moment.
const NAMES_ASIDE: u64 = 8;

/// The directories of each part that a commit changes names in, as its user may.
fn within(user: &UserIds, journal: &Journal) -> Result<Vec<Directories>, CommitError> {
    journal.parts.iter().map(|(part, steps)| permission::judge(user, part, steps)).collect()
}

/// A commit that is ready: its journal is written, and lacks nothing but its name.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) file: JournalFile,
    pub(crate) journal: Journal,
    /// Whether the [order](crate::journal::order) of all that it does is kept.
    pub(crate) ordered: bool,
    /// How many bytes it would take to keep what it takes away, where that is more than may be kept.
    pub(crate) too_large: Option<u64>,
    /// When it was last looked at what others have changed.
    pub(crate) looked: Option<Moment>,
    /// What was found on each part.
    found: Vec<(OverlayPart, Source)>,
}

impl Prepared {
    /// Prepares the commit of what was read. `directory` is the transaction's; the lock of its state directory must be
    /// held until it is committed.
    /// `keep` says who makes it and how many bytes it may take to keep what an undo needs; `user`, whose rights it must
    /// be within.
    pub(crate) fn new(
        directory: &Path,
        parts: Vec<PartChanges>,
        durable: bool,
        keep: Option<(About, u64)>,
        user: Option<&UserIds>,
    ) -> Result<Self, CommitError> {
        let (mut parts, untouched): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| !part.steps.is_empty());
        let mut found: Vec<_> = untouched.into_iter().map(|one| (one.part, one.source)).collect();
        let mut journal = Journal { durable, parts: Vec::new(), kept: None, privileged: Vec::new() };
        let file = JournalFile::of(directory);
        if parts.is_empty() {
            return Ok(Self { file, journal, ordered: false, found, too_large: None, looked: None });
        }
        parts.iter().try_for_each(|part| make_room(part, user.is_some()))?;
        parts.iter().try_for_each(|part| names_left::are_left(&part.part, &part.steps))?;
        let mut too_large = None;
        // Before directories are made, which were not there before.
        if let Some((about, most)) = keep {
            match keep::keep(directory, &parts, about, most)? {
                Ok(kept) => journal.kept = Some(kept),
                Err(bytes) => too_large = Some(bytes),
            }
        }
        for part in parts.iter_mut().filter(|part| part.part.target.is_none()) {
            make_places_aside(part, journal.kept.is_some())?;
            make_directories(part)?;
        }
        step();
        let ordered = if durable { order::new_files(directory, &parts) } else { None };
        for (number, PartChanges { part, steps, source, .. }) in (0..).zip(parts) {
            let privileged = privileged::among(number, &part, &steps);
            let what = || format!("reading what gets privileges on {}", part.live.display());
            journal.privileged.extend(privileged.map_err(|source| CommitError::Prepare { what: what(), source })?);
            found.push((part.clone(), source));
            journal.parts.push((part, steps));
        }
        let failed = |source| CommitError::Prepare { what: "writing the journal".into(), source };
        if let Some(user) = user {
            file.write_within(&within(user, &journal)?).map_err(failed)?;
        }
        // A bug for the tests to find: everything is on the disk before the journal gets its name, but not the journal
        // itself.
        let forgets = durable && planted("no-fdatasync");
        if forgets {
            sync(journal.parts.iter().map(|(part, _)| part)).map_err(CommitError::ahead)?;
        }
        let written = file.write(&journal).map_err(failed)?;
        match &ordered {
            _ if !durable || forgets => {}
            Some(files) => {
                // A bug for the tests to find: new files have their names before their content.
                let files = if planted("no-write-out") { &[] } else { &files[..] };
                order::write_out(files, written).map_err(failed)?;
            }
            None => sync_all(&journal, &written)?,
        }
        Ok(Self { file, journal, ordered: ordered.is_some(), found, too_large, looked: None })
    }

    /// Gives back what preparing took, where the commit is not to be.
    pub(crate) fn discard(directory: &Path, parts: &[OverlayPart]) {
        JournalFile::of(directory).discard();
        keep::discard(directory, parts);
        for part in parts {
            // There need be none.
            let _ = std::fs::remove_file(part.room());
            let made = Tree::open(&part.stage()).and_then(|stage| {
                let names = stage.names(&TreePath::ROOT)?;
                names.iter().try_for_each(|name| Ok(rustix::fs::unlinkat(stage.root(), name, AtFlags::REMOVEDIR)?))
            });
            drop(made);
        }
    }

    /// Fails where it would take away what is in use.
    pub(crate) fn leaves_what_is_in_use(&self) -> Result<(), CommitError> {
        self.journal.parts.iter().try_for_each(|(part, steps)| leaves_what_is_in_use(part, steps))
    }

    /// Fails where its user could not do it himself any more.
    pub(crate) fn is_allowed_still(&self, user: &UserIds) -> Result<(), CommitError> {
        let failed = |source| CommitError::Prepare { what: "reading what the commit may change".into(), source };
        let changed = || io::Error::other("directories were replaced while it was prepared");
        let same = self.file.read_within().map_err(failed)?.unwrap_or_default() == within(user, &self.journal)?;
        if same || self.journal.parts.is_empty() { Ok(()) } else { Err(failed(changed())) }
    }

    /// Whether still nobody is in conflict with it.
    pub(crate) fn revalidate(&mut self, begun: Moment, basis: impl FnOnce() -> Basis) -> Result<(), CommitError> {
        self.looked = Some(Moment::now());
        // One that changes nothing was over when it was validated.
        if self.journal.parts.is_empty() { Ok(()) } else { revalidate(&self.found, begun, &basis()) }
    }
}

/// Makes the directories for what comes and what goes: behind the commit point, on a disk that others have filled,
/// there would be no room for them. What goes is `kept` in directories that are there, if it is.
fn make_places_aside(part: &PartChanges, kept: bool) -> Result<(), CommitError> {
    let (steps, part) = (&part.steps, &part.part);
    let removes = steps.change.iter().any(|op| matches!(op, Op::Remove { .. }));
    let stage = (!steps.stage.is_empty()).then(|| part.stage());
    for path in stage.into_iter().chain((removes && !kept).then(|| part.trash())) {
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(CommitError::Prepare { what: format!("making {}", path.display()), source: errno.into() });
            }
        }
    }
    Ok(())
}

/// Makes the directories that are to come, aside: it is known which ones they are before anybody else can come across
/// them.
fn make_directories(part: &mut PartChanges) -> Result<(), CommitError> {
    let slots: Vec<_> = part
        .steps
        .change
        .iter()
        .filter_map(|op| match op {
            Op::MakeDirectory { at, slot } => Some((at.clone(), *slot)),
            _ => None,
        })
        .collect();
    if slots.is_empty() {
        return Ok(());
    }
    let made = make_aside(&part.part, &slots);
    let made = made.map_err(|source| CommitError::Prepare {
        what: format!("making directories in {}", part.part.stage().display()),
        source,
    })?;
    part.steps.identify(&made);
    Ok(())
}

fn make_aside(part: &OverlayPart, slots: &[(TreePath, u32)]) -> io::Result<HashMap<TreePath, Identity>> {
    let private = |error: Errno| if error == Errno::EXIST { Ok(()) } else { Err(error) };
    rustix::fs::mkdir(part.stage(), Mode::RWXU).or_else(private)?;
    let stage = Tree::open(&part.stage())?;
    let make = |(at, slot): &(TreePath, u32)| -> io::Result<_> {
        let name = slot.to_string();
        rustix::fs::mkdirat(stage.root(), &*name, Mode::RWXU).or_else(private)?;
        Ok((at.clone(), Identity::of(stage.object(&TreePath::ROOT.join(name.as_ref()))?)?))
    };
    slots.iter().map(make).collect()
}

/// Makes sure that a part can take what is to come; what a user's takes is kept free always, since he could fill it.
fn make_room(part: &PartChanges, always: bool) -> Result<(), CommitError> {
    let at = part.part.live.display();
    keep_room(part, always)
        .map_err(|source| CommitError::Prepare { what: format!("keeping room free on {at}"), source })?;
    let Some(target) = &part.part.target else { return Ok(()) };
    if !part.part.mount_path.is_empty() {
        let room = is_room_in_memory(part);
        room.map_err(|source| CommitError::Prepare { what: format!("looking for room on {at}"), source })?;
    }
    let tried = target.owner().and_then(|_owner| StagingArea::try_out(&part.part.live_tree()?));
    tried.map_err(|source| CommitError::Prepare {
        what: format!("making a directory in {at} for what comes and goes"),
        source,
    })
}

/// Brings everything new to the disk, and the journal that is written: together with what is new on its own file
/// system, or by itself.
fn sync_all(journal: &Journal, written: &File) -> Result<(), CommitError> {
    let failed = |source| CommitError::Prepare { what: "syncing the journal".into(), source };
    let device = written.metadata().map_err(failed)?.dev();
    let beside = |part: &OverlayPart| std::fs::metadata(&part.base).is_ok_and(|base| base.dev() == device);
    let parts = || journal.parts.iter().map(|(part, _)| part);
    sync(parts()).map_err(CommitError::ahead)?;
    if !parts().any(beside) {
        written.sync_data().map_err(failed)?;
    }
    Ok(())
}

/// What new names may take in directories, amply: where one is full it is split, and half of it is free then.
fn names(part: &PartChanges) -> u64 {
    const BESIDES: u64 = 32;
    let name = |at: &TreePath| at.split().map_or(0, |(_, name)| name.len() as u64);
    let room = |op: &Op| match op {
        Op::Move { at, .. } | Op::Place { at, .. } | Op::MakeDirectory { at, .. } => 3 * (name(at) + BESIDES),
        _ => 0,
    };
    part.steps.change.iter().map(room).sum()
}

/// Takes the room that the commit will need, so that a full disk is known before the commit point.
fn keep_room(part: &PartChanges, always: bool) -> io::Result<()> {
    let rewritten = part.steps.change.iter().any(|op| matches!(op, Op::Update { .. }));
    let content = |change: &&Change| change.sign == Sign::Changed && change.content;
    // Into a target everything is copied.
    let copied = |change: &&Change| part.part.target.is_some() || content(change);
    let bytes: u64 = part.changes.iter().filter(copied).map(|change| change.bytes).sum();
    let free = rustix::fs::statvfs(&part.part.base)?;
    let names = names(part);
    let comes: u64 = part.changes.iter().filter(|change| change.content).map(|change| change.bytes).sum();
    let plenty = PLENTY.saturating_add(comes.saturating_mul(TIMES_AS_MUCH));
    let is_plenty =
        |wanted: u64| !always && free.f_bavail.saturating_mul(free.f_frsize) > plenty.saturating_add(wanted);
    if is_plenty(SLACK + names + bytes) {
        return Ok(());
    }
    let held = if rewritten || part.part.target.is_some() { held(part, copied)? } else { 0 };
    let wanted = SLACK + names + held;
    if is_plenty(wanted) {
        return Ok(());
    }
    let room = File::create(part.part.room())?;
    match fallocate(&room, FallocateFlags::empty(), 0, wanted) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// How many bytes of the disk the content of some changes takes: a file may be larger than any disk, and nearly all of
/// it hole.
fn held(part: &PartChanges, wanted: impl Fn(&&Change) -> bool) -> io::Result<u64> {
    /// What the kernel counts blocks in.
    const BLOCK: u64 = 512;
    let upper = Tree::open(&part.part.upper())?;
    let of_one = |change: &Change| Ok(upper.stat(&change.path)?.st_blocks.cast_unsigned() * BLOCK);
    part.changes.iter().filter(|change| wanted(change) && change.bytes > 0).map(of_one).sum()
}

/// Makes sure that a file system in memory has room for what comes. It is a target's, where nobody takes any of that
/// meanwhile.
fn is_room_in_memory(part: &PartChanges) -> io::Result<()> {
    let free = rustix::fs::fstatvfs(part.part.open()?)?;
    let comes = || part.changes.iter().filter(|change| change.sign != Sign::Removed);
    let blocks = held(part, |change| change.sign != Sign::Removed && change.content)?.div_ceil(free.f_frsize.max(1));
    // Each name takes an inode there, and so do those for what comes and goes.
    let names = comes().count() as u64 + NAMES_ASIDE;
    // Zero in all is said by one without a limit.
    let is_room = (free.f_blocks == 0 || blocks <= free.f_bavail) && (free.f_files == 0 || names <= free.f_favail);
    if is_room { Ok(()) } else { Err(Errno::NOSPC.into()) }
}

/// Brings everything of the parts' file systems to the disk.
pub(crate) fn sync<'a>(parts: impl Iterator<Item = &'a OverlayPart>) -> Result<(), CallError> {
    for part in parts {
        let sync = |path: &Path| File::open(path).and_then(|base| Ok(rustix::fs::syncfs(&base)?));
        let live = || if part.target.is_some() { Ok(rustix::fs::syncfs(part.open()?)?) } else { Ok(()) };
        sync(&part.base).and_then(|()| live()).context(|| format!("syncing {}", part.live.display()))?;
    }
    Ok(())
}
