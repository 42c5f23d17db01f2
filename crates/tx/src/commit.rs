//! From the directories that a transaction leaves to the live tree.
//!
//! ```text
//!   upper, index ─walk─▶ Node ─validate─▶ ─plan─▶ Steps ─▶ sync ─▶ journal (the commit point) ─▶ apply ─▶ sync ─▶ journal closed
//!                                                                         └── a crash from here on is finished by `recover` ──┘
//! ```

use crate::apply::{Apply, ApplyError};
use crate::aside::Aside;
use crate::attributes::Moment;
use crate::change::{Change, Op, Sign, Steps, changes, plan};
use crate::crash::{planted, step};
use crate::journal::{Journal, JournalFile};
use crate::order;
use crate::part::Part;
use crate::read_set::{Known, ReadSet, check};
use crate::realm::Realm;
use crate::sync_ahead;
use crate::tree::Tree;
use crate::tree_path::TreePath;
use crate::upper::{Beginning, Node, WalkError, walk};
use crate::validate::{Conflict, conflict};
use pando_kernel::mount::{mounts, mounts_of};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Kept free beside the content of changed files, for directories that grow.
const SLACK: u64 = 256 << 10;

/// Nobody fills so much within a commit: then none is kept free.
const PLENTY: u64 = 1 << 30;

/// Why a transaction was not committed, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Others changed what it built on. Nothing was done.
    #[error("{0}")]
    Conflict(Conflict),
    /// Its changes cannot be read. Nothing was done.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It could not be made ready. Nothing was done.
    #[error("{what}: {source}")]
    Prepare {
        /// What was tried, on what.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It is committed, but could not be applied to its end: `recover` has to finish it.
    #[error("it is committed, but its changes are not all in place yet: {0}")]
    Unfinished(#[from] ApplyError),
}

/// What a transaction changed on one mount.
#[derive(Debug)]
pub struct PartChanges {
    /// The part.
    pub part: Part,
    /// The changes for people.
    pub changes: Vec<Change>,
    /// What a commit does.
    pub(crate) steps: Steps,
}

impl PartChanges {
    /// The file that a change is about, as it is outside. No link is followed: whoever arranged the tree leads nobody out of it.
    pub fn before(&self, change: &Change) -> io::Result<File> {
        Tree::live(&self.part)?.file(&change.path, false)
    }

    /// The same as the transaction has it.
    pub fn after(&self, change: &Change) -> io::Result<File> {
        Tree::open(&self.part.upper())?.file(&change.path, false)
    }
}

/// What was changed, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Paths that come, change and go.
    pub paths: usize,
    /// Bytes of content.
    pub bytes: u64,
    /// Names that were looked up, and found to be the same at the commit. `None` where only the changes were validated.
    pub read: Option<usize>,
}

impl Figures {
    /// Adds up.
    pub fn of(parts: &[PartChanges]) -> Self {
        let all = || parts.iter().flat_map(|part| &part.changes);
        Self { paths: all().count(), bytes: all().map(|change| change.bytes).sum(), read: None }
    }
}

/// What a transaction is validated by.
#[derive(Debug)]
pub(crate) struct Basis {
    /// What it read, where that is known.
    pub(crate) read: Option<Vec<(Part, ReadSet)>>,
    /// Paths that its view was made of.
    pub(crate) places: Vec<PathBuf>,
    /// Whether it is about to be committed so that it survives a loss of power.
    pub(crate) durable: bool,
}

impl Basis {
    /// How many names it read.
    pub(crate) fn names(&self) -> Option<usize> {
        Some(self.read.as_ref()?.iter().map(|(_, set)| set.looked.len()).sum())
    }
}

/// Reads what a transaction changed that began at `begun`, and with a basis checks that nobody else changed what it changed or read. Nobody may be writing
/// to it any more.
pub(crate) fn read(parts: &[Part], begun: Moment, basis: Option<&Basis>) -> Result<Vec<PartChanges>, CommitError> {
    // All parts are of one system of mounts.
    let mounts = match parts.first().filter(|_| basis.is_some_and(|basis| basis.read.is_some())) {
        Some(part) => mounts_around(part)
            .map_err(|source| CommitError::Prepare { what: "looking at what is mounted".into(), source })?,
        None => Vec::new(),
    };
    parts.iter().map(|part| read_part(part, begun, basis, &mounts)).collect()
}

fn mounts_around(part: &Part) -> io::Result<Vec<PathBuf>> {
    let mounts = match &part.realm {
        Some(realm) => mounts_of(realm.process()?),
        None => mounts(),
    };
    let mounts = mounts.map_err(|error| error.source)?;
    Ok(mounts.into_iter().map(|mount| mount.at).collect())
}

fn read_part(
    part: &Part,
    begun: Moment,
    basis: Option<&Basis>,
    mounts: &[PathBuf],
) -> Result<PartChanges, CommitError> {
    let open = |path: &Path| {
        Tree::open(path).map_err(|source| CommitError::Prepare { what: format!("opening {}", path.display()), source })
    };
    // What it has changed lies on the mount itself.
    if basis.is_some() && !part.base.exists() {
        let path = part.live.display().to_string();
        return Err(CommitError::Conflict(Conflict { path, what: "was unmounted by others" }));
    }
    let live = Tree::live(part);
    let live =
        live.map_err(|source| CommitError::Prepare { what: format!("opening {}", part.live.display()), source })?;
    let upper = open(&part.upper())?;
    let index = part.index();
    let index = index.exists().then(|| open(&index)).transpose()?;
    let many = || {
        if basis.is_some_and(|basis| basis.durable) {
            sync_ahead::begin(&part.base);
        }
    };
    let (root, indexed) =
        match walk(&upper, index.as_ref(), &live, Beginning { begun, root_modified: part.root_modified() }, &many) {
            Err(WalkError::Lost(path)) => {
                return Err(CommitError::Conflict(Conflict { path, what: "was moved or removed by others" }));
            }
            read => read?,
        };
    if let Some(basis) = basis {
        let found = match conflict(&root, &indexed, begun) {
            None => read_conflict(part, begun, &live, &root, basis, mounts)?,
            found => found,
        };
        if let Some(found) = found {
            let path = part.live.join(found.path.trim_start_matches('/')).display().to_string();
            return Err(CommitError::Conflict(Conflict { path, ..found }));
        }
    }
    Ok(PartChanges { part: part.clone(), changes: changes(&root), steps: plan(&root, &indexed) })
}

/// A conflict about what was only read.
fn read_conflict(
    part: &Part,
    begun: Moment,
    live: &Tree,
    root: &Node,
    basis: &Basis,
    mounts: &[PathBuf],
) -> Result<Option<Conflict>, CommitError> {
    let Some((_, set)) = basis.read.iter().flatten().find(|(other, _)| other == part) else { return Ok(None) };
    let failed =
        |source| CommitError::Prepare { what: format!("validating what was read on {}", part.live.display()), source };
    let below = |path: &Path| TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes());
    let known = Known {
        begun,
        root,
        covered: mounts.iter().filter_map(|mount| below(mount)).collect(),
        places: basis.places.iter().filter_map(|place| below(place)).collect(),
        output: output(live).map_err(failed)?,
    };
    check(live, set, &known).map_err(failed)
}

/// The files that this process, and so the command, has its standard descriptors in: what the command says there changes them.
fn output(live: &Tree) -> io::Result<HashSet<u64>> {
    let device = live.stat(&TreePath::ROOT)?.st_dev;
    let stdio = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    // One that is closed is none.
    let stats = stdio.into_iter().filter_map(|fd| rustix::fs::fstat(fd).ok());
    Ok(stats.filter(|stat| stat.st_dev == device).map(|stat| stat.st_ino).collect())
}

/// Commits what was read. `directory` is the transaction's; the lock of its home must be held.
pub(crate) fn commit(directory: &Path, parts: Vec<PartChanges>, durable: bool) -> Result<(), CommitError> {
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.steps.is_empty()).collect();
    if parts.is_empty() {
        return Ok(());
    }
    for part in &parts {
        let failed = |source| CommitError::Prepare {
            what: format!("keeping room free on {}", part.part.live.display()),
            source,
        };
        keep_room(part).map_err(failed)?;
        if let Some(realm) = &part.part.realm {
            let tried = realm.owner().and_then(|_owner| Aside::try_out(&Tree::live(&part.part)?));
            tried.map_err(|source| CommitError::Prepare {
                what: format!("making a directory in {} for what comes and goes", part.part.live.display()),
                source,
            })?;
        }
    }
    step();
    let ordered = if durable { order::new_files(directory, &parts) } else { None };
    let journal = Journal { durable, parts: parts.into_iter().map(|part| (part.part, part.steps)).collect() };
    let file = JournalFile::of(directory);
    let failed = |source| CommitError::Prepare { what: "writing the journal".into(), source };
    // A bug for the tests to find: everything is on the disk before the journal gets its name, but not the journal itself.
    let forgets = durable && planted("no-fdatasync");
    if forgets {
        sync(journal.parts.iter().map(|(part, _)| part))?;
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
    step();
    file.publish(durable && ordered.is_none()).map_err(failed)?;
    apply(&file, &journal, Circumstances { again: false, ordered: ordered.is_some() })
}

/// Brings everything new to the disk, and the journal that is written: together with what is new on its own file system, or by itself.
fn sync_all(journal: &Journal, written: &File) -> Result<(), CommitError> {
    let failed = |source| CommitError::Prepare { what: "syncing the journal".into(), source };
    let device = written.metadata().map_err(failed)?.dev();
    let beside = |part: &Part| std::fs::metadata(&part.base).is_ok_and(|base| base.dev() == device);
    let parts = || journal.parts.iter().map(|(part, _)| part);
    sync(parts())?;
    if !parts().any(beside) {
        written.sync_data().map_err(failed)?;
    }
    Ok(())
}

/// What a commit can rely on when it is applied.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    /// Whether some of it may have been done before.
    again: bool,
    /// Whether the [order](crate::order) of all that it does is kept, also that of its journal's closing.
    ordered: bool,
}

/// Does what a journal that was found says, from the start, and closes it.
pub(crate) fn finish(file: &JournalFile, journal: &Journal) -> Result<(), CommitError> {
    apply(file, journal, Circumstances { again: true, ordered: false })
}

fn apply(file: &JournalFile, journal: &Journal, circumstances: Circumstances) -> Result<(), CommitError> {
    let Circumstances { again, ordered } = circumstances;
    let realm = journal.parts.iter().find_map(|(part, _)| part.realm.as_ref());
    let owner = realm.map(Realm::owner).transpose();
    let _as_its_owner = owner.map_err(|source| ApplyError::new("taking on the ids of its owner", source))?;
    let trees: Vec<_> = journal
        .parts
        .iter()
        .filter(|(part, _)| !is_lost_memory(part))
        .map(|(part, steps)| Ok((Apply::new(part, steps, again)?, part, steps)))
        .collect::<Result<_, ApplyError>>()?;
    if !file.is_applied() {
        do_all(file, &trees)?;
        if journal.durable && !ordered {
            sync(trees.iter().map(|(_, part, _)| *part))?;
        }
        // What was put aside in a realm must be gone before the realm goes on, and must not be looked for after that.
        if realm.is_some() {
            let marked = file.mark_applied(journal.durable);
            marked.map_err(|source| ApplyError::new("noting how far the commit is", source))?;
        }
    }
    for (apply, _, steps) in &trees {
        apply.clear(steps)?;
    }
    step();
    // Parts on other file systems are thrown away next: the journal must not come back and look for them. Where the order is kept, to wait for this is to wait for
    // everything, and for nothing that others have written.
    let elsewhere = journal.parts.iter().any(|(part, _)| !file.is_beside(&part.base));
    file.mark_done(journal.durable && (elsewhere || ordered))
        .map_err(|source| ApplyError::new("closing the journal", source))?;
    step();
    Ok(())
}

fn do_all(file: &JournalFile, trees: &[(Apply, &Part, &Steps)]) -> Result<(), CommitError> {
    if !file.is_staged() {
        for (apply, part, steps) in trees {
            // Whatever it kept free is needed from now on. Where it is gone already, this is a recovery.
            let _ = std::fs::remove_file(part.room());
            apply.stage(steps)?;
        }
        step();
        if trees.iter().any(|(_, _, steps)| !steps.stage.is_empty()) {
            file.mark_staged().map_err(|source| ApplyError::new("noting how far the commit is", source))?;
        }
    }
    for (apply, _, steps) in trees {
        apply.change(steps)?;
    }
    step();
    Ok(())
}

/// Whether a part was on a file system in memory that is gone, with all that was on it: the machine has lost its power since. Any other file system whose
/// part is missing is one that is not mounted yet.
fn is_lost_memory(part: &Part) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    !part.base.exists() && rustix::fs::statfs(&part.live).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}

/// Brings everything of the parts' file systems to the disk.
fn sync<'a>(parts: impl Iterator<Item = &'a Part>) -> Result<(), CommitError> {
    for part in parts {
        let sync = |path: &Path| File::open(path).and_then(|base| Ok(rustix::fs::syncfs(&base)?));
        let live = || part.realm.as_ref().map_or(Ok(()), |realm| sync(&realm.root()?));
        sync(&part.base)
            .and_then(|()| live())
            .map_err(|source| CommitError::Prepare { what: format!("syncing {}", part.live.display()), source })?;
    }
    Ok(())
}

/// Takes the room that the commit will need, so that a full disk is known before the commit point.
fn keep_room(part: &PartChanges) -> io::Result<()> {
    let rewritten = part.steps.change.iter().any(|op| matches!(op, Op::Update { .. }));
    let content = |change: &&Change| change.sign == Sign::Changed && change.content;
    // Into a realm everything is copied.
    let copied = |change: &&Change| part.part.realm.is_some() || content(change);
    let bytes: u64 = part.changes.iter().filter(copied).map(|change| change.bytes).sum();
    let wanted = SLACK + if rewritten || part.part.realm.is_some() { bytes } else { 0 };
    let free = rustix::fs::statvfs(&part.part.base)?;
    if free.f_bavail.saturating_mul(free.f_frsize) > PLENTY.saturating_add(wanted) {
        return Ok(());
    }
    let room = File::create(part.part.room())?;
    match fallocate(&room, FallocateFlags::empty(), 0, wanted) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
