//! A target's other processes stand still (cgroup.freeze): nobody sees a commit half done, and nothing comes between
//! validation and apply.

use super::{Closed, Gate, HostGate};
use crate::crash::{STEP, planted};
use crate::state::directory::{Rescue, StateDirectory};
use crate::state::scope::Scope;
use crate::state::target::Target;
use pando_kernel::file::lock::FileLock;
use pando_kernel::process::guardian::Guardian;
use pando_kernel::{CallError, Context};
use std::io;
use std::path::{Path, PathBuf};

/// Processes that stand still until this is dropped.
#[derive(Debug)]
pub(super) struct Frozen {
    group: PathBuf,
    mark: PathBuf,
    /// Finishes or removes the transaction, and then thaws, should this process be killed. Called off once they are
    /// thawed.
    _guardian: Option<Guardian>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        thaw(&self.group, &self.mark);
    }
}

/// A target that does nothing but one transaction, from before that begins until it has ended.
#[derive(Debug)]
pub struct Exclusive {
    // In this order: the next may close the gate once it is open.
    _closed: Closed,
    _lock: FileLock,
}

impl Exclusive {
    /// Has everything else in a target wait, and every other commit.
    pub fn over(home: &StateDirectory, target: &Target) -> Result<Self, CallError> {
        home.prepare()?;
        let lock = home.lock()?;
        Ok(Self { _closed: Gate::of(Some(target), home, HostGate::NONE).close()?, _lock: lock })
    }
}

/// Has the processes of a group stand still, and notes that in the home; nothing where they do already, for this
/// transaction's whole run or by somebody else: that is not ours to end.
pub(super) fn close(group: &Path, home: &StateDirectory) -> Result<Option<Frozen>, CallError> {
    let scope = Scope::at(group);
    if scope.is_frozen() {
        return Ok(None);
    }
    let mark = mark(home);
    std::fs::write(&mark, group.as_os_str().as_encoded_bytes()).context(|| format!("writing {}", mark.display()))?;
    let _guardian = guardian(home.rescue()).context(|| "having a process stand by that thaws".into())?;
    let frozen = Frozen { group: group.to_owned(), mark, _guardian };
    scope.freeze(true)?;
    Ok(Some(frozen))
}

fn guardian(rescue: Option<&Rescue>) -> io::Result<Option<Guardian>> {
    // A test that kills commits recovers them itself, and kills that too.
    let Some(Rescue { program, arguments }) = rescue.filter(|_| !planted("no-guardian")) else {
        return Ok(None);
    };
    Guardian::stand_by(program, arguments, &[STEP]).map(Some)
}

/// What says, should this process be killed, that they are to be thawed.
fn mark(home: &StateDirectory) -> PathBuf {
    home.directory().join(".closed")
}

fn thaw(group: &Path, mark: &Path) {
    // The group may be gone with all its processes.
    let _ = Scope::at(group).freeze(false);
    let _ = std::fs::remove_file(mark);
}

/// Opens what a crash left closed: who closes it holds the lock of the home, as the caller now does.
pub(crate) fn open_again(home: &StateDirectory) {
    let mark = mark(home);
    if let Ok(group) = std::fs::read_to_string(&mark) {
        thaw(Path::new(&group), &mark);
    }
}
