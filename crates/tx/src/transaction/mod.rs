//! The life of a transaction: begun, entered by commands, committed or aborted.

mod begin;
pub(crate) mod daemons;
mod end;
pub(crate) mod gate;
pub(crate) mod in_memory;
mod looking;
mod looks;
mod on_prewarmed;
mod running;
mod starting;
pub(crate) mod synchronous_writes;

pub use begin::BeginError;
pub(crate) use end::end_holder;
pub use end::{
    EndError, abort_open, changes_now, commit_open, doomed_open, end_processes_of_open, gate_of, processes,
    review_of_open,
};
pub use looks::Looks;
pub use running::{Ended, Rest, Running, StartError};

use self::looking::Looking;
use crate::change::split_attribution::Disputed;
use crate::state::directory::Home;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::transaction::in_memory::Memory;
use crate::validate::known_names::KnownNames;
use crate::validate::read_set::Watch;
use crate::view::ViewNamespaces;
use pando_kernel::CallError;
use pando_kernel::lock::FileLock;
use pando_kernel::mount_watch::MountWatch;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A transaction that this process owns: it is begun, and neither committed nor aborted. One that is dropped stays on disk, for `recover` to remove.
#[derive(Debug)]
pub struct Transaction {
    home: Home,
    directory: PathBuf,
    record: Record,
    scope: Scope,
    /// Where the kernel grants what it takes to know what is read.
    watch: Option<Watch>,
    /// Where its changes are until it commits, if that is not on the disk.
    memory: Option<Memory>,
    /// Since its view was planned, where it is to be made of this process's mounts.
    mounts: Option<MountWatch>,
    /// What was made ahead, until it is used.
    made: Option<Ahead>,
    /// Whether its beginning was.
    on_spare: bool,
    /// Says to all others that the transaction lives.
    _lock: FileLock,
}

/// What of a beginning was made ahead.
#[derive(Debug)]
struct Ahead {
    /// The view.
    namespaces: ViewNamespaces,
    /// The look around, under way since the transaction began.
    looking: Looking,
}

impl Transaction {
    /// One whose view is not made, or is held by another process.
    fn of(home: &Home, directory: PathBuf, record: Record, scope: Scope, lock: FileLock) -> Self {
        Self {
            home: home.clone(),
            directory,
            record,
            scope,
            watch: None,
            memory: None,
            mounts: None,
            made: None,
            on_spare: false,
            _lock: lock,
        }
    }

    /// What is known of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Has what its command writes be on the disk as soon as it is written, where file systems do that: it is slow, and leaves the kernel memory to keep in mind what is read.
    pub fn write_through(&mut self) {
        self.record.written_through = true;
        self.record.parts.iter().for_each(synchronous_writes::begin);
    }

    /// Tells who changes what of files that others are known to change too.
    pub fn tell_apart(&mut self, disputed: Vec<Disputed>) {
        self.record.disputed = disputed;
    }

    /// Leaves what it reads at these paths and below them out of its validation. Others who look at what it has read are told so, too.
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

    /// Tells new names from those that others may have removed, in these directories that others are known to change. They are listed now.
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
