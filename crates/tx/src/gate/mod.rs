//! The gate: what keeps others out while a commit is validated and applied.
//!
//! ```text
//!   kind       whom it keeps out                       closed                      by
//!   freeze     a target's other processes              from before validation on   cgroup.freeze
//!   freeze     all other groups of the host, and       from the last look before   cgroup.freeze
//!              whom fanotify keeps out                 the commit point on
//!   hold       as bpf, and whoever would change what      from before its command on,  as bpf
//!              the transaction has touched                then as bpf
//!   bpf        whoever touches what the commit         from the last look before   LSM programs, which suspend him on
//!              changes, or a name in it                the commit point on         his way back from the call
//!   fanotify   whoever opens, reads, lists or          from the last look before   permission events, which a thread
//!              executes what the commit changes        the commit point on         of this process answers
//!   none       nobody: validated and safe from crashes, but others can see a part of it
//! ```
//!
//! A target has `freeze`. The host has what is chosen of the others. To bring what is new to the disk takes from a
//! millisecond to minutes, in which the host's other processes go on; so its gate is *ajar* first, which means that it
//! knows of what stands in the live tree, and closed when everything else is done:
//!
//! ```text
//!   validated ─▶ ajar ─▶ everything new is on the disk ─▶ closed ─▶ last look ─▶ commit point ─▶ applied ─▶ open
//! ```
//!
//! Each is a value, and dropping it opens the gate. A gate of the host does not stay closed longer than it is allowed
//! to: then it has *lapsed*, and the commit says so, or is not made where that was asked for.

mod answering;
pub(crate) mod choice;
mod extent;
mod fanotify;
mod freeze;
mod hold;
mod host_freeze;
mod offers;
mod programs;
mod suspender;
mod suspending;
mod waiting;

pub use choice::{GateChoice, GateError, GateKind, GateRequest, GateUsed, HostGate};
pub use freeze::Exclusive;
pub(crate) use freeze::open_again;
pub(crate) use hold::Hold;
pub use offers::offers;
pub use waiting::{Waiter, waiting_for};

use crate::change::Steps;
use crate::crash::planted;
use crate::journal::commit_error::CommitError;
use crate::state::directory::StateDirectory;
use crate::state::overlay_part::OverlayPart;
use crate::state::target::Target;
use extent::Extent;
use fanotify::Watching;
use freeze::Frozen;
use pando_kernel::CallError;
use pando_kernel::cgroup::timed_freeze::TimedFreeze;
use std::path::{Path, PathBuf};
use std::time::Duration;
use suspending::Suspending;
use waiting::Telling;

/// How long a test has a gate be closed before the last look.
const SLOW: Duration = Duration::from_secs(3);

/// How long it is closed at most where a test opens it, by a file of this name in the transaction's directory.
const UNTIL_OPENED: Duration = Duration::from_secs(300);
const OPENS: &str = "open-gate";

/// The gate of one commit.
#[derive(Debug)]
pub(crate) enum Gate<'a> {
    /// That of a target.
    OfTarget(&'a Target, &'a StateDirectory),
    /// That of the host.
    OfHost(HostGate),
}

/// A gate that is closed, or about to be.
#[derive(Debug)]
pub(crate) struct Closed {
    kind: GateKind,
    held: Option<Held>,
    /// Whether it opened too early.
    lapsed: bool,
    /// Whether somebody went through it.
    passed: bool,
}

#[derive(Debug)]
enum Held {
    /// A target's other processes.
    Frozen(#[allow(dead_code, reason = "held for its drop")] Frozen),
    /// The host's.
    OfHost(HostHeld),
}

/// Those of the host's processes that are kept out.
#[derive(Debug)]
struct HostHeld {
    // In this order: who is thawed finds nothing to wait for in vain.
    suspending: Option<Box<Suspending>>,
    frozen: Option<TimedFreeze>,
    watching: Option<Watching>,
    /// Who waits for long is named.
    telling: Option<Telling>,
    gate: HostGate,
    /// The transaction's.
    directory: PathBuf,
}

impl HostHeld {
    /// What has them wait for as long as all that is new is being brought to the disk.
    fn ajar(gate: HostGate, directory: &Path, extents: &[(&OverlayPart, Extent)]) -> std::io::Result<Self> {
        let held = |suspending: Option<Suspending>, watching| {
            let (suspending, directory) = (suspending.map(Box::new), directory.to_owned());
            Self { suspending, frozen: None, watching, telling: None, gate, directory }
        };
        if gate.kind == GateKind::Bpf {
            match Suspending::begin(gate.longest, gate.named) {
                Ok(one) => return Ok(held(Some(one), None)),
                Err(error) if gate.named => return Err(error),
                // The next best.
                Err(_) => return Self::ajar(HostGate { kind: GateKind::Fanotify, ..gate }, directory, extents),
            }
        }
        let watching = match Watching::begin(extents, gate.longest.max(choice::LONGEST)) {
            // Beside it, it holds those whom freezing does not reach.
            Err(_) if gate.kind == GateKind::Freeze => None,
            watching => Some(watching?),
        };
        Ok(held(None, watching))
    }

    fn close(&mut self, extents: &[(&OverlayPart, Extent)]) -> std::io::Result<()> {
        self.close_what_is_ajar(extents)?;
        if self.gate.longest > waiting::LONG {
            self.telling = self.tell();
        }
        Ok(())
    }

    /// Begins to name who waits. Where that cannot be done, nobody is named.
    fn tell(&mut self) -> Option<Telling> {
        if let Some(suspending) = &self.suspending {
            return Telling::begin(&self.directory, suspending.look().ok()??).ok();
        }
        Telling::begin(&self.directory, self.watching.as_mut()?.look()?).ok()
    }

    fn close_what_is_ajar(&mut self, extents: &[(&OverlayPart, Extent)]) -> std::io::Result<()> {
        if let Some(suspending) = &mut self.suspending {
            let closed = suspending.close(extents);
            if closed.is_ok() || self.gate.named {
                return closed;
            }
            // The next best, which takes no descriptor for each object.
            *self = Self::ajar(HostGate { kind: GateKind::Fanotify, ..self.gate }, &self.directory, extents)?;
        }
        // First: who waits for an answer does not come to stand still.
        if self.gate.kind == GateKind::Freeze {
            let parts: Vec<_> = extents.iter().map(|(part, _)| *part).collect();
            self.frozen = host_freeze::freeze(&parts, self.gate.longest)?;
        }
        self.watching.as_mut().map_or(Ok(()), |watching| watching.close(extents))
    }

    fn has_lapsed(&self) -> bool {
        self.suspending.as_ref().is_some_and(|one| one.has_lapsed())
            || self.frozen.as_ref().is_some_and(TimedFreeze::has_lapsed)
            || self.watching.as_ref().is_some_and(Watching::has_lapsed)
    }

    /// Whether somebody went through who could not be kept out.
    fn was_passed(&self) -> bool {
        self.suspending.as_ref().is_some_and(|one| one.was_passed())
    }

    /// Opens it: whether it was open before.
    fn open(&mut self) -> bool {
        let suspending = self.suspending.as_mut().is_some_and(|one| one.open());
        let frozen = self.frozen.as_mut().is_some_and(TimedFreeze::end);
        let watching = self.watching.as_mut().is_some_and(Watching::open);
        self.telling = None;
        suspending || frozen || watching
    }

    /// Which one it is.
    fn kind(&self) -> GateKind {
        match (&self.suspending, &self.frozen, &self.watching) {
            (Some(_), ..) if self.gate.holds => GateKind::Hold,
            (Some(_), ..) => GateKind::Bpf,
            (None, Some(_), _) => GateKind::Freeze,
            (None, None, Some(_)) => GateKind::Fanotify,
            (None, None, None) => GateKind::None,
        }
    }
}

impl<'a> Gate<'a> {
    /// That of a target, or of the host.
    pub(crate) fn of(target: Option<&'a Target>, home: &'a StateDirectory, host: HostGate) -> Self {
        target.map_or(Self::OfHost(host), |target| Self::OfTarget(target, home))
    }

    /// Closes that of a target, for as long as the answer lives. The lock of the state directory must be held until
    /// then.
    pub(crate) fn close(&self) -> Result<Closed, CallError> {
        let (kind, held) = match self {
            Self::OfTarget(target, home) => (GateKind::Freeze, freeze::close(&target.others, home)?.map(Held::Frozen)),
            Self::OfHost(_) => (GateKind::None, None),
        };
        Ok(Closed { kind, held, lapsed: false, passed: false })
    }

    /// Makes that of the host know of what these steps of the transaction in `directory` change of the live tree. That
    /// of a target is closed already.
    pub(crate) fn stand_ajar<'b>(
        &self,
        closed: Closed,
        directory: &Path,
        parts: impl Iterator<Item = (&'b OverlayPart, &'b Steps)>,
    ) -> Result<Closed, CommitError> {
        let Self::OfHost(gate) = *self else { return Ok(closed) };
        let extents: Vec<_> = parts.map(|(part, steps)| (part, Extent::of(steps))).collect();
        if gate.kind == GateKind::None || extents.is_empty() {
            // Of nothing nobody sees a part.
            return Ok(Closed { kind: if gate.holds { GateKind::Hold } else { gate.kind }, ..closed });
        }
        match HostHeld::ajar(gate, directory, &extents) {
            Ok(held) => Ok(Closed { kind: held.kind(), held: Some(Held::OfHost(held)), ..closed }),
            Err(source) if gate.must => Err(unable_to_hold(source)),
            Err(_) => Ok(closed),
        }
    }
}

impl Closed {
    /// Closes a gate that stands ajar, for what these steps bring too.
    pub(crate) fn close<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a OverlayPart, &'a Steps)>,
    ) -> Result<(), CommitError> {
        let Some(Held::OfHost(held)) = &mut self.held else { return Ok(()) };
        let extents: Vec<_> = parts.map(|(part, steps)| (part, Extent::of(steps))).collect();
        match held.close(&extents) {
            Err(source) if held.gate.must => return Err(unable_to_hold(source)),
            // What it holds already it holds.
            _ => self.kind = held.kind(),
        }
        if planted("slow-gate") {
            std::thread::sleep(SLOW);
        }
        if planted("gate-until-opened") {
            let begun = std::time::Instant::now();
            while begun.elapsed() < UNTIL_OPENED && !held.directory.join(OPENS).exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Fails where the gate was to be closed for the whole of the commit, and is not any more.
    pub(crate) fn must_be_closed(&self) -> Result<(), CommitError> {
        match &self.held {
            Some(Held::OfHost(held)) if held.gate.strict && held.has_lapsed() => {
                Err(CommitError::Lapsed(held.gate.longest))
            }
            Some(Held::OfHost(held)) if held.gate.strict && held.was_passed() => Err(CommitError::Passed),
            _ => Ok(()),
        }
    }

    /// Opens that of the host, since everything is in place.
    pub(crate) fn open_host(&mut self) {
        if let Some(Held::OfHost(held)) = &mut self.held {
            self.lapsed = held.open();
            self.passed = held.was_passed() && !self.lapsed;
        }
    }

    /// Which one it is, or was.
    pub(crate) fn used(&self) -> GateUsed {
        GateUsed { kind: self.kind, lapsed: self.lapsed, passed: self.passed }
    }
}

fn unable_to_hold(source: std::io::Error) -> CommitError {
    CommitError::Prepare { what: "having others wait while it is applied".into(), source }
}
