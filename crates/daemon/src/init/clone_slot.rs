//! Where the processes of a clone are forked to: below a guest's first process that waits for them.

use crate::init::prewarmed::Ready;
use crate::logs::Logs;
use pando_api::{Network, Spec};
use pando_freeze::{CloneError, Frozen, Handoff, Ready as Forked, Target};
use pando_guest::plan::PrewarmedKind;
use pando_kernel::cgroup::{Field, Plot};
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A first process that waits for the processes of a clone.
#[derive(Debug)]
pub(crate) struct CloneSlot {
    first: HeldProcess,
    plot: Plot,
    /// What the clone prints into.
    printed: OwnedFd,
    /// Where the first process is told what to become.
    handoff: Option<OwnedFd>,
    /// What is kept inside it.
    scopes: u32,
}

impl CloneSlot {
    /// That of a first process, for a guest of some kind; what the clone says goes to a log.
    pub(crate) fn new(
        (logs, field): (&Logs, &Field),
        ready: &Ready,
        log: &Path,
        spec: &Spec,
    ) -> Result<Self, CallError> {
        let init = &ready.init;
        let log = Logs::open(log).context(|| format!("opening {}", log.display()))?;
        let handoff = ready.handoff.as_ref().map(|handoff| handoff.lay_out(init, (&log, logs.bound()))).transpose()?;
        let printed = logs.pipe(init.link.shim(), log, init.root()).context(|| "making the clone's log".to_owned())?;
        let plot = field.plot(init.slot);
        Ok(Self { first: init.first.clone(), plot, printed, handoff, scopes: scopes(spec) })
    }

    /// Forks the frozen processes, up to where they wait. Blocking.
    pub(crate) fn fork(&self, frozen: &Frozen) -> Result<Forked, CloneError> {
        let tasks = self.plot.entrances()?.tasks;
        let open = |path: PathBuf| File::open(&path).context(|| format!("opening {}", path.display()));
        let cgroup = self.plot.guest().map(open).transpose()?;
        let groups: Vec<BorrowedFd<'_>> = tasks.iter().map(AsFd::as_fd).collect();
        let target = Target {
            init: self.first.pid(),
            held: Some(&self.first),
            cgroup: cgroup.as_ref().map(AsFd::as_fd),
            groups: &groups,
            supplied: &[self.printed.as_fd()],
            handoff: self.handoff.as_ref().map(|socket| Handoff(socket.as_fd())),
            scopes: self.scopes,
        };
        frozen.clone_into(&target)
    }
}

/// What is kept inside a guest of some kind. Its shim is in a domain of the same kind, and nobody else can be put into
/// that.
pub(crate) fn scopes(spec: &Spec) -> u32 {
    PrewarmedKind::of_clones(spec).scopes.bits()
}

/// Whether processes can be forked to a first process at once: it has a root file system already, and there is no
/// network that it must be let onto before they bind.
pub(crate) fn is_complete(ready: &Ready, network: Network) -> bool {
    ready.tree.is_none() && matches!(network, Network::None | Network::Host)
}
