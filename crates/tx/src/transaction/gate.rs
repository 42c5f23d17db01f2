//! The gate: what keeps others out while a commit is validated and applied.
//!
//! ```text
//!   freeze   a target's other processes stand still: nobody sees a commit half done, and nothing comes between
//!            validation and apply
//!   none     the host: validated and safe from crashes, but others can see a part of it
//! ```

use crate::crash::{STEP, planted};
use crate::state::directory::{Rescue, StateDirectory};
use crate::state::scope::Scope;
use crate::state::target::Target;
use pando_kernel::file::lock::FileLock;
use pando_kernel::process::guardian::Guardian;
use pando_kernel::{CallError, Context};
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

/// A way to keep others out.
pub(crate) trait Gate: Debug {
    /// Its name, for the report.
    fn name(&self) -> &'static str;

    /// Closes it, for as long as the answer lives. The lock of the state directory must be held until then.
    fn close(&self) -> Result<Closed, CallError>;
}

/// A gate that is closed.
#[derive(Debug)]
pub(crate) struct Closed(#[allow(dead_code, reason = "held for its drop")] Option<Frozen>);

#[derive(Debug)]
struct Frozen {
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
        Ok(Self { _closed: of(Some(target), home).close()?, _lock: lock })
    }
}

/// Nothing keeps them out.
#[derive(Debug)]
struct Open;

impl Gate for Open {
    fn name(&self) -> &'static str {
        "none"
    }

    fn close(&self) -> Result<Closed, CallError> {
        Ok(Closed(None))
    }
}

/// They are frozen (cgroup.freeze).
#[derive(Debug)]
struct Freeze {
    group: PathBuf,
    /// Says, should this process be killed, that they are to be thawed.
    mark: PathBuf,
    rescue: Option<Rescue>,
}

impl Freeze {
    fn guardian(&self) -> io::Result<Option<Guardian>> {
        // A test that kills commits recovers them itself, and kills that too.
        let Some(Rescue { program, arguments }) = self.rescue.as_ref().filter(|_| !planted("no-guardian")) else {
            return Ok(None);
        };
        Guardian::stand_by(program, arguments, &[STEP]).map(Some)
    }
}

impl Gate for Freeze {
    fn name(&self) -> &'static str {
        "freeze"
    }

    fn close(&self) -> Result<Closed, CallError> {
        let scope = Scope::at(&self.group);
        // Frozen already, for this transaction's whole run or by somebody else: not ours to thaw.
        if scope.is_frozen() {
            return Ok(Closed(None));
        }
        let text = self.group.as_os_str().as_encoded_bytes();
        std::fs::write(&self.mark, text).context(|| format!("writing {}", self.mark.display()))?;
        let _guardian = self.guardian().context(|| "having a process stand by that thaws".into())?;
        let frozen = Frozen { group: self.group.clone(), mark: self.mark.clone(), _guardian };
        scope.freeze(true)?;
        Ok(Closed(Some(frozen)))
    }
}

fn mark(home: &StateDirectory) -> PathBuf {
    home.directory().join(".closed")
}

fn thaw(group: &Path, mark: &Path) {
    // The group may be gone with all its processes.
    let _ = Scope::at(group).freeze(false);
    let _ = std::fs::remove_file(mark);
}

/// The gate of a target, or of the host.
pub(crate) fn of(target: Option<&Target>, home: &StateDirectory) -> Box<dyn Gate> {
    match target {
        Some(target) => {
            let (group, rescue) = (target.others.clone(), home.rescue().cloned());
            Box::new(Freeze { group, mark: mark(home), rescue })
        }
        None => Box::new(Open),
    }
}

/// Opens what a crash left closed: who closes it holds the lock of the home, as the caller now does.
pub(crate) fn open_again(home: &StateDirectory) {
    let mark = mark(home);
    if let Ok(group) = std::fs::read_to_string(&mark) {
        thaw(Path::new(&group), &mark);
    }
}
