//! The life of a transaction: begun, entered by commands, committed or aborted.

mod begin;
mod commit;
pub(crate) mod daemons;
mod end;
mod holder;
mod hosted;
pub(crate) mod in_memory;
mod looking;
mod looks;
mod on_prewarmed;
pub(crate) mod recover;
mod running;
mod starting;
pub(crate) mod synchronous_writes;

pub use begin::BeginError;
pub use commit::{CommitRequest, KeepRequest, commit_open};
pub use end::{EndError, abort_open, changes_now, doomed_open, end_processes_of_open, processes, review_of_open};
pub(crate) use holder::end_holder;
pub use hosted::{Hosted, HostedCommit, Leavings};
pub use looks::Looks;
pub use running::{Ended, Rest, Running, StartError};

use self::looking::Looking;
use crate::change::split_attribution::FileBaseline;
use crate::gate::{Hold, HostGate};
use crate::state::begin_timestamp;
use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::supervise::Filtered;
use crate::transaction::in_memory::Memory;
use crate::validate::known_names::KnownNames;
use crate::validate::read_set::Watch;
use crate::view::{ViewNamespaces, ViewPlan};
use pando_kernel::file::lock::FileLock;
use pando_kernel::mount::watch::MountWatch;
use pando_kernel::process::user_rights::UserIds;
use pando_kernel::{CallError, Context};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A transaction that this process owns: it is begun, and neither committed nor aborted. One that is dropped stays on
/// disk, for `recover` to remove.
#[derive(Debug)]
pub struct Transaction {
    home: StateDirectory,
    directory: PathBuf,
    record: Record,
    scope: Scope,
    /// How far it has come.
    phase: Phase,
    /// Where its changes are until it commits, if that is not on the disk.
    memory: Option<Memory>,
    /// The user whose it is, where that is not root.
    user: Option<UserIds>,
    /// The processes of the command that runs in it.
    filtered: Option<Filtered>,
    /// Has others wait who would change what it has touched.
    hold: Option<Hold>,
    /// Says to all others that the transaction lives.
    _lock: FileLock,
}

/// How far a transaction of this process has come.
#[derive(Debug)]
enum Phase {
    /// Its view is planned, and is to be made.
    Begun {
        /// What tells of its reads, where the kernel grants what that takes.
        watch: Option<Watch>,
        /// What has been mounted since its view was planned, where that is to be made of this process's mounts.
        mounts: Option<MountWatch>,
    },
    /// Its view was made ahead.
    Prewarmed {
        /// What tells of its reads.
        watch: Watch,
        /// The view.
        namespaces: ViewNamespaces,
        /// The look around, under way since the transaction began.
        looking: Looking,
    },
    /// A command has entered its view, or another process holds that.
    Entered {
        /// Whether that view was made ahead.
        prewarmed: bool,
    },
}

impl Transaction {
    /// One whose view is not made, or is held by another process.
    fn of(home: &StateDirectory, directory: PathBuf, record: Record, scope: Scope, lock: FileLock) -> Self {
        Self {
            home: home.clone(),
            directory,
            record,
            scope,
            phase: Phase::Entered { prewarmed: false },
            memory: None,
            user: None,
            filtered: None,
            hold: None,
            _lock: lock,
        }
    }

    /// Whether its beginning was made ahead.
    fn is_prewarmed(&self) -> bool {
        matches!(self.phase, Phase::Prewarmed { .. } | Phase::Entered { prewarmed: true })
    }

    /// What is known of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Has what its command writes be on the disk as soon as it is written, where file systems do that: it is slow, and
    /// leaves the kernel memory to keep in mind what is read.
    pub fn write_synchronously(&mut self) {
        self.record.synchronous_writes = true;
        self.record.parts.iter().for_each(synchronous_writes::begin);
    }

    /// Tells who changes what of files that others are known to change too.
    pub fn tell_apart(&mut self, baselines: Vec<FileBaseline>) {
        self.record.baselines = baselines;
    }

    /// Has others wait from now on, who are about to change what it touches, for as long as the gate says. With
    /// `by_priority` those do not wait whose scheduling priority is higher than this process's. For what is `known`
    /// to be changed by others they wait before it is touched. Its command must not have begun.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses its programs, or what they wait at.
    pub fn have_others_wait<'a>(
        &mut self,
        plan: &ViewPlan,
        gate: HostGate,
        by_priority: bool,
        known: impl Iterator<Item = &'a Path>,
    ) -> Result<(), CallError> {
        let hold = Hold::begin(&self.record, &self.directory, gate.held_for(), by_priority);
        let mut hold = hold.context(|| "having others wait for what it touches".into())?;
        known.for_each(|path| hold.mark(path));
        self.hold = Some(hold);
        // It begins only now: what others did until then is before it, since it has looked at nothing yet.
        let begun = begin_timestamp::now(&self.directory, plan.grain);
        self.record.begun = begun.context(|| "taking the time".into())?;
        self.record.write(&self.directory)
    }

    /// From now on nobody dooms it by having waited for too long: its command has ended.
    pub fn is_past_its_command(&self) {
        self.hold.iter().for_each(Hold::spare);
    }

    /// Leaves what it reads at these paths and below them out of its validation. Others who look at what it has read
    /// are told so, too.
    ///
    /// # Errors
    ///
    /// What writing its record says.
    pub fn ignore(&mut self, paths: &[PathBuf]) -> Result<(), CallError> {
        if paths.is_empty() {
            return Ok(());
        }
        self.record.ignored = paths.to_vec();
        self.record.write(&self.directory)
    }

    /// Tells new names from those that others may have removed, in these directories that others are known to change.
    /// They are listed now.
    pub fn know_names(&mut self, directories: &BTreeSet<PathBuf>) {
        let parts = &self.record.parts;
        self.record.known_names = directories.iter().filter_map(|one| KnownNames::of(one, parts)).collect();
    }

    /// Whether it has outgrown the memory that its changes are kept in.
    pub fn outgrows_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_outgrown)
    }

    /// Whether its changes are kept in memory.
    pub fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }
}
