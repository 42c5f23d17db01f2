//! The life of a transaction: begun, entered by commands, committed or aborted.

mod begin;
mod commit;
pub(crate) mod daemons;
mod end;
pub(crate) mod gate;
mod holder;
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
pub use end::{
    EndError, abort_open, changes_now, doomed_open, end_processes_of_open, gate_of, processes, review_of_open,
};
pub(crate) use holder::end_holder;
pub use looks::Looks;
pub use running::{Ended, Rest, Running, StartError};

use self::looking::Looking;
use crate::change::split_attribution::FileBaseline;
use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::transaction::in_memory::Memory;
use crate::validate::known_names::KnownNames;
use crate::validate::read_set::Watch;
use crate::view::ViewNamespaces;
use pando_kernel::CallError;
use pando_kernel::file::lock::FileLock;
use pando_kernel::mount::watch::MountWatch;
use std::collections::BTreeSet;
use std::path::PathBuf;

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
