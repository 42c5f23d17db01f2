//! What a transaction changed, as its directories and the live tree tell it, and whether somebody else is in conflict
//! with that.

use crate::change::partial::restrict;
use crate::change::review::{PartReview, collect};
use crate::change::selection::Selection;
use crate::change::split_attribution::FileBaseline;
use crate::change::sync_ahead;
use crate::change::upper::{Beginning, Indexed, Node, WalkError, replace_executed, untouched, walk};
use crate::change::{Change, Steps, changes, plan};
use crate::gate::choice::GateUsed;
use crate::journal::commit_error::CommitError;
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::Moment;
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use crate::validate::changes::conflict;
use crate::validate::conflict::{Conflict, Interference};
use crate::validate::in_use::{mount_in_the_way, swap_in_the_way};
use crate::validate::known_names::KnownNames;
use crate::validate::reach::obstacle;
use crate::validate::read_set::{Known, ReadSet, check};
use crate::validate::removed::changed_within;
use crate::validate::revalidation::changed_since;
use crate::validate::unmounted;
use pando_kernel::mount::{mounts, mounts_of};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a transaction changed on one mount.
#[derive(Debug)]
pub struct PartChanges {
    /// The overlay part that these changes are on.
    pub part: OverlayPart,
    /// The changed paths, as people are shown them.
    pub changes: Vec<Change>,
    /// What a commit does.
    pub(crate) steps: Steps,
    /// What all of it was told from.
    pub(crate) source: Source,
    /// How many paths that it changed are left out.
    left_out: usize,
}

/// What a change set is told from.
#[derive(Debug)]
pub(crate) struct Source {
    /// What each name was and is.
    root: Node,
    /// Files that only the index knows.
    indexed: Vec<Indexed>,
    /// When the transaction began.
    begun: Moment,
    /// Which file system the live tree lies on.
    file_system: FileSystem,
}

/// What tells a file system, by the root of a live tree on it, from any other that is mounted in its place later. The
/// view keeps its device's number from being another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSystem {
    device: u64,
    root: u64,
}

impl FileSystem {
    fn of(live: &Tree) -> io::Result<Self> {
        let root = rustix::fs::fstat(live.root())?;
        Ok(Self { device: root.st_dev, root: root.st_ino })
    }
}

impl PartChanges {
    /// What a commit of it will do, for whoever is to approve it. Nobody may be changing more.
    pub fn review(&self) -> Result<PartReview, CommitError> {
        let Source { root, indexed, begun, .. } = &self.source;
        let what = || format!("looking at what is changed on {}", self.part.live.display());
        let entries = collect(&self.part, root, indexed, *begun);
        let entries = entries.map_err(|source| CommitError::Prepare { what: what(), source })?;
        Ok(PartReview { part: self.part.clone(), entries })
    }

    /// Has programs replaced that are being run: the last thing before its commit is prepared, since it touches the
    /// live tree. `open` gets what can be written to, open for that.
    pub(crate) fn replace_executed(&mut self, open: Option<&mut Vec<OwnedFd>>) -> Result<(), CommitError> {
        let opened = self.part.live_tree();
        let at = self.part.live.display();
        let live = opened.map_err(|source| CommitError::Prepare { what: format!("opening {at}"), source })?;
        let Source { root, indexed, .. } = &mut self.source;
        replace_executed(&live, root, indexed, open).map_err(lost_is_a_conflict)?;
        self.steps = plan(root, indexed);
        Ok(())
    }

    /// The root's node of what it was told from.
    pub(crate) fn root(&self) -> &Node {
        &self.source.root
    }

    /// Fails where a commit could not move what it has to. In a target everything is copied.
    pub(crate) fn is_in_reach(&self) -> Result<(), CommitError> {
        if self.part.target.is_some() {
            return Ok(());
        }
        let source = match obstacle(&self.part, &self.steps) {
            Ok(None) => return Ok(()),
            Ok(Some(words)) => io::Error::other(words),
            // By others, who are found by the look before the commit point.
            Err(error) if was_taken_away(&error) => return Ok(()),
            Err(error) => error,
        };
        Err(CommitError::Prepare { what: format!("moving what is new on {}", self.part.live.display()), source })
    }
}

/// What was changed, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Paths that come, change and go.
    pub paths: usize,
    /// Bytes of content that come or change.
    pub bytes: u64,
    /// Names that were looked up, and found to be the same at the commit. `None` where only the changes were validated.
    pub read: Option<usize>,
    /// Paths that it changed, and that were left out.
    pub left_out: usize,
    /// The number of the commit in the log, where what it takes to undo it was kept.
    pub logged: Option<u64>,
    /// How many bytes it would have taken to keep that, where they are more than may be kept.
    pub too_large_to_keep: Option<u64>,
    /// What kept others out meanwhile.
    pub gate: GateUsed,
}

impl Figures {
    /// Adds up the changes on all parts.
    pub fn of(parts: &[PartChanges]) -> Self {
        let all = || parts.iter().flat_map(|part| &part.changes);
        let left_out = parts.iter().map(|part| part.left_out).sum();
        Self { paths: all().count(), bytes: all().map(|change| change.bytes).sum(), left_out, ..Self::default() }
    }
}

/// What a transaction is validated by.
#[derive(Debug)]
pub(crate) struct Basis {
    /// What it read, where that is known.
    pub(crate) read: Option<Vec<(OverlayPart, ReadSet)>>,
    /// Paths that its view was made of.
    pub(crate) places: Vec<PathBuf>,
    /// Whether it is about to be committed so that it survives a loss of power.
    pub(crate) durable: bool,
    /// Whether the times of files tell what was changed since it began.
    pub(crate) sound_times: bool,
    /// Files that others are known to change too, and whether the transaction has opened them.
    pub(crate) baselines: Vec<(FileBaseline, bool)>,
    /// The names in directories that others are known to change.
    pub(crate) known_names: Vec<KnownNames>,
    /// What it is about.
    pub(crate) selection: Selection,
    /// What the roots of its parts were like when it began, by their directories.
    pub(crate) roots: Vec<(PathBuf, u64)>,
}

impl Basis {
    /// The same by what is told of it `now`; where that is nothing, all that was settled is in doubt.
    pub(crate) fn again(&self, now: Option<Vec<(OverlayPart, ReadSet)>>) -> Self {
        let doubted =
            || self.read.clone().map(|all| all.into_iter().map(|(part, set)| (part, set.doubted())).collect());
        let now = now.map(|now| self.selection.reduce(now));
        let read = self.read.as_ref().and(now).or_else(doubted);
        let (places, baselines, known_names) = (self.places.clone(), self.baselines.clone(), self.known_names.clone());
        let (selection, roots) = (self.selection.clone(), self.roots.clone());
        Self { read, places, baselines, known_names, selection, roots, ..*self }
    }

    /// Those files on a part.
    fn baselines_on(&self, part: &OverlayPart) -> Vec<(TreePath, FileBaseline, bool)> {
        let on = |(one, opened): &(FileBaseline, bool)| Some((one.on(part)?, one.clone(), *opened));
        self.baselines.iter().filter_map(on).collect()
    }

    /// How many names it read.
    pub(crate) fn names(&self) -> Option<usize> {
        Some(self.read.as_ref()?.iter().map(|(_, set)| set.looked.len()).sum())
    }
}

/// Reads what a transaction changed that began at `begun`, and with a basis checks that nobody else changed what it
/// changed or read. Nobody may be writing to it any more.
pub(crate) fn read(
    parts: &[OverlayPart],
    begun: Moment,
    basis: Option<&Basis>,
) -> Result<Vec<PartChanges>, CommitError> {
    parts.iter().filter_map(|part| read_if_there(part, begun, basis).transpose()).collect()
}

/// The same of one part; nothing where others have unmounted it, which is no matter to the transaction.
fn read_if_there(part: &OverlayPart, begun: Moment, basis: Option<&Basis>) -> Result<Option<PartChanges>, CommitError> {
    let is_there = |basis| !part.is_unmounted() && !unmounted::is_left_alone(part, basis);
    let Some(basis) = basis else {
        return if is_there(None) { read_part(part, begun, None).map(Some) } else { Ok(None) };
    };
    let found = if is_there(Some(basis)) { Some(read_part(part, begun, Some(basis))) } else { None };
    // While it was read it may have gone: what that said is of something else then.
    if !part.is_unmounted() && !part.is_gone() {
        return found.transpose();
    }
    unmounted::is_left_alone(part, Some(basis)).then_some(None).ok_or_else(|| unmounted(part))
}

/// What is changed, or was read, on a part that others have unmounted cannot be committed.
fn unmounted(part: &OverlayPart) -> CommitError {
    CommitError::Conflict(Conflict::at(&part.live, Interference::Unmounted))
}

/// Where anything is mounted around a part.
fn mounts_around(part: &OverlayPart) -> io::Result<Vec<PathBuf>> {
    let mounts = match &part.target {
        Some(target) => mounts_of(target.process()?),
        None => mounts(),
    };
    let mounts = mounts.map_err(|error| error.source)?;
    Ok(mounts.into_iter().map(|mount| mount.at).collect())
}

/// What cannot be found any more others have moved or removed.
fn lost_is_a_conflict(error: WalkError) -> CommitError {
    match error {
        WalkError::Lost(path) => CommitError::Conflict(Conflict::at(path, Interference::MovedOrRemoved)),
        error => error.into(),
    }
}

fn read_part(part: &OverlayPart, begun: Moment, basis: Option<&Basis>) -> Result<PartChanges, CommitError> {
    let open = |path: &Path| {
        Tree::open(path).map_err(|source| CommitError::Prepare { what: format!("opening {}", path.display()), source })
    };
    let live = part.live_tree();
    let live =
        live.map_err(|source| CommitError::Prepare { what: format!("opening {}", part.live.display()), source })?;
    let file_system = FileSystem::of(&live);
    let file_system = file_system
        .map_err(|source| CommitError::Prepare { what: format!("looking at {}", part.live.display()), source })?;
    let upper = open(&part.upper())?;
    let untouched = if basis.is_some_and(|basis| basis.sound_times) { untouched(&upper, &live, begun) } else { None };
    let selection = basis.map(|basis| basis.selection.on(part)).unwrap_or_default();
    let (mut root, mut indexed) = match untouched {
        Some(root) => (root, Vec::new()),
        None => {
            let index = part.index();
            let index = index.exists().then(|| open(&index)).transpose()?;
            let many = || {
                if basis.is_some_and(|basis| basis.durable) {
                    sync_ahead::begin(&part.base);
                }
            };
            let baselines = basis.map(|basis| basis.baselines_on(part)).unwrap_or_default();
            let beginning = Beginning { begun, root: part.root_before(), baselines, selection: selection.clone() };
            walk(&upper, index.as_ref(), &live, beginning, &many).map_err(lost_is_a_conflict)?
        }
    };
    let failed = |source| CommitError::Prepare { what: format!("selecting on {}", part.live.display()), source };
    let all = if selection.is_whole() { 0 } else { changes(&root).len() };
    if let Some(torn) = restrict(&live, &mut root, &mut indexed, &selection).map_err(failed)? {
        return Err(CommitError::Torn(torn.below(&part.live)));
    }
    if let Some(basis) = basis {
        let failed = |source| CommitError::Prepare { what: format!("validating {}", part.live.display()), source };
        let found = match conflict(&root, &indexed, begun) {
            None => changed_within(&live, &root, begun).map_err(failed)?,
            found => found,
        };
        let found = match found {
            None => read_conflict(part, begun, &live, &root, basis)?,
            found => found,
        };
        none_on(part, found)?;
    }
    let changes = changes(&root);
    Ok(PartChanges {
        part: part.clone(),
        left_out: all.saturating_sub(changes.len()),
        changes,
        steps: plan(&root, &indexed),
        source: Source { root, indexed, begun, file_system },
    })
}

/// Looks once more, right before the commit point, at what was read and found to be in no conflict: between the two
/// lies all that had to be brought to the disk.
pub(crate) fn revalidate(found: &[(OverlayPart, Source)], begun: Moment, basis: &Basis) -> Result<(), CommitError> {
    for (part, Source { root, indexed, file_system, .. }) in found {
        let failed =
            |source| CommitError::Prepare { what: format!("looking once more at {}", part.live.display()), source };
        let Some(live) = still_there(part, *file_system).map_err(failed)? else {
            if unmounted::was_untouched(part, basis) {
                continue;
            }
            return Err(unmounted(part));
        };
        let found = match changed_since(&live, root, indexed).map_err(failed)? {
            None => changed_within(&live, root, begun).map_err(failed)?,
            found => found,
        };
        let found = match found {
            None => read_conflict(part, begun, &live, root, basis)?,
            found => found,
        };
        none_on(part, found)?;
    }
    Ok(())
}

/// The live tree of a part; nothing where others have unmounted its file system, or put another in its place.
fn still_there(part: &OverlayPart, file_system: FileSystem) -> io::Result<Option<Tree>> {
    let live = match part.live_tree() {
        Err(error) if was_taken_away(&error) => return Ok(None),
        live => live?,
    };
    Ok((FileSystem::of(&live)? == file_system).then_some(live))
}

/// Whether an error says that something is not where it was found before.
fn was_taken_away(error: &io::Error) -> bool {
    is_missing(error) || leads_elsewhere(error) || error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

/// Fails where a commit would take away what is in use. Right before the commit point: others may mount anything until
/// then.
pub(crate) fn leaves_what_is_in_use(part: &OverlayPart, steps: &Steps) -> Result<(), CommitError> {
    let failed =
        |source| CommitError::Prepare { what: format!("looking at what is in use on {}", part.live.display()), source };
    if let Some(path) = swap_in_the_way(part, steps).map_err(failed)? {
        let source = io::Error::other("it is in use as swap space; take it out of use first (swapoff)");
        return Err(CommitError::Prepare { what: format!("changing {}", path.display()), source });
    }
    let found = mount_in_the_way(part, steps, || mounts_around(part)).map_err(failed)?;
    none_on(part, found.map(|at| Conflict::at(at.as_path(), Interference::MountedOver)))
}

/// Fails where there is a conflict.
fn none_on(part: &OverlayPart, found: Option<Conflict>) -> Result<(), CommitError> {
    found.map_or(Ok(()), |found| Err(CommitError::Conflict(found.below(&part.live))))
}

/// A conflict about what was only read.
fn read_conflict(
    part: &OverlayPart,
    begun: Moment,
    live: &Tree,
    root: &Node,
    basis: &Basis,
) -> Result<Option<Conflict>, CommitError> {
    let Some((_, set)) = basis.read.iter().flatten().find(|(other, _)| other.is(part)) else { return Ok(None) };
    let failed =
        |source| CommitError::Prepare { what: format!("validating what was read on {}", part.live.display()), source };
    let below = |path: &Path| TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes());
    let places: Vec<TreePath> = basis.places.iter().filter_map(|place| below(place)).collect();
    let known = || {
        let covered = mounts_around(part)?.iter().filter_map(|mount| below(mount)).collect();
        Ok(Known { begun, covered, output: output(live)? })
    };
    let is_new =
        |directory: &TreePath, name: &OsStr| basis.known_names.iter().any(|one| one.lack(part, directory, name));
    match set.replaced(live, root, begun, &is_new).map_err(failed)? {
        None => check(live, set, &places, root, known).map_err(failed),
        found => Ok(found),
    }
}

/// The files that this process, and so the command, can write to by its standard descriptors: what the command says
/// there changes them.
fn output(live: &Tree) -> io::Result<HashSet<u64>> {
    let device = live.stat(&TreePath::ROOT)?.st_dev;
    let stdio = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    // One that is closed is none.
    let is_for_writing = |fd: &BorrowedFd<'_>| {
        rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
    };
    let stats = stdio.into_iter().filter(is_for_writing).filter_map(|fd| rustix::fs::fstat(fd).ok());
    Ok(stats.filter(|stat| stat.st_dev == device).map(|stat| stat.st_ino).collect())
}
