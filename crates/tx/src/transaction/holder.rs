//! The process that holds a transaction which others enter and commit: its lock, and its view.

use super::Transaction;
use super::end::EndError;
use crate::state::directory::{StateDirectory, wait_for_lock};
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::validate::read_set::Watch;
use pando_kernel::Context;
use pando_kernel::file::lock::FileLock;
use pando_kernel::process::{identity::ProcessId, pidfd};
use rustix::process::PidfdGetfdFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the process that held a transaction may take to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The watch over a transaction that another process holds.
pub(super) fn watch_of_holder(home: &StateDirectory, record: &Record) -> Result<Option<Watch>, EndError> {
    let Some(listener) = record.listener else { return Ok(None) };
    let take = || {
        // All by the pid, and then a look whether it was the holder's until then.
        record.holder().opened(|pid| {
            let holder = pidfd::open(pid)?;
            let listener = rustix::process::pidfd_getfd(&holder, listener, PidfdGetfdFlags::empty())?;
            let root = PathBuf::from(format!("/proc/{pid}/root"));
            Watch::of_another(home, listener, &root, &record.parts, &home.of(&record.name))
        })
    };
    Ok(Some(take().context(|| format!("looking into the view that process {} holds", record.holder))?))
}

/// Ends the process that holds a transaction and has its lock, which it gives away so.
pub(crate) fn end_holder(directory: &Path, holder: ProcessId) -> io::Result<FileLock> {
    // The lock may be held by a process that it had made and that outlives it, while another has its pid.
    if let Ok(process) = holder.opened(pidfd::open) {
        let _ = pidfd::send_signal(&process, libc::SIGKILL);
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
        None => end_holder(&directory, record.holder()).context(what)?,
    };
    Ok(Transaction::of(home, directory, record, scope, lock))
}
