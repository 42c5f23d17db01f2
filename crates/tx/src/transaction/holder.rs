//! The process that holds a transaction which others enter and commit: its lock, and its view.

use super::Transaction;
use super::end::EndError;
use crate::state::directory::{StateDirectory, wait_for_lock};
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::validate::read_set::Watch;
use pando_kernel::Context;
use pando_kernel::file::lock::FileLock;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process};
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long the process that held a transaction may take to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The watch over a transaction that another process holds.
pub(super) fn watch_of_holder(home: &StateDirectory, record: &Record) -> Result<Option<Watch>, EndError> {
    let (Some(listener), Some(pid)) = (record.listener, Pid::from_raw(record.holder)) else { return Ok(None) };
    let take = || {
        let holder = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let listener = rustix::process::pidfd_getfd(&holder, listener, PidfdGetfdFlags::empty())?;
        Watch::of_another(
            home,
            listener,
            Path::new(&format!("/proc/{}/root", record.holder)),
            &record.parts,
            &home.of(&record.name),
        )
    };
    Ok(Some(take().context(|| format!("looking into the view that process {} holds", record.holder))?))
}

/// Ends the process that holds a transaction and has its lock, which it gives away so.
pub(crate) fn end_holder(directory: &Path, holder: i32) -> io::Result<FileLock> {
    // As long as the lock is held its holder lives, and the pid is its own.
    if let Some(pid) = Pid::from_raw(holder) {
        let _ = kill_process(pid, Signal::KILL);
    }
    wait_for_lock(&Record::lock(directory), Some(PATIENCE))?.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Ends the process that holds a transaction, and owns it from then on.
pub(super) fn take_from_holder(home: &StateDirectory, record: Record) -> Result<Transaction, EndError> {
    let directory = home.of(&record.name);
    let scope = Scope::at(&record.group);
    let path = Record::lock(&directory);
    let what = || format!("locking {}", directory.display());
    let lock = match wait_for_lock(&path, Some(Duration::ZERO)).context(what)? {
        Some(lock) => lock,
        None => end_holder(&directory, record.holder).context(what)?,
    };
    Ok(Transaction::of(home, directory, record, scope, lock))
}
