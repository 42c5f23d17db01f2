//! The gate `bpf`, by programs of kind LSM (Linux 6.18): whoever else touches what a commit changes, or looks up, lists
//! or changes a name in a directory of it, is suspended before he holds any lock, and goes on when all of it is in
//! place.
//!
//! ```text
//!   ajar     the latch made, programs loaded and attached: nobody notices
//!   closed   objects marked ─▶ the time until then set ─▶ each directory's lock passed once
//!   open     the time set back ─▶ the latch released ─▶ programs and marks gone with their descriptors
//! ```
//!
//! New objects bear no mark: nobody comes to them but through a directory that does. Nothing is pinned: programs, marks
//! and the latch go with this process, whatever it died of, and nobody is suspended when the time has come.

use super::extent::Extent;
use super::programs::{self, refused};
use super::suspender::{Suspender, identified};
use super::waiting::Waits;
use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::{is_missing, leads_elsewhere};
use crate::tree::identity::is_gone;
use libbpf_rs::{MapCore, MapFlags, Object};
use pando_kernel::filesystem::latch::Latch;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Descriptors that are left to the rest of the process: each object that bears a mark takes one.
const SPARE: u64 = 256;

/// A name that nothing has.
const NOBODY: &str = ".pando-gate";

/// What suspends others. Dropped, it is open.
#[derive(Debug)]
pub(super) struct Suspending {
    // In this order: whoever is let go finds marks, or has gone on.
    suspender: Suspender,
    /// What bears a mark stays in the kernel's memory, or its mark would go.
    marked: Vec<OwnedFd>,
    longest: Duration,
    until: Option<Instant>,
    most: usize,
}

impl Suspending {
    /// Loads what suspends others, and has it be idle.
    ///
    /// # Errors
    ///
    /// Those of [`programs::loaded`] and of [`Latch::new`].
    pub(super) fn begin(longest: Duration, named: bool) -> io::Result<Self> {
        let mut suspending = Self::with(programs::loaded(named)?, longest)?;
        suspending.suspender.attach()?;
        Ok(suspending)
    }

    /// The same with programs that are loaded; the kernel does not ask them.
    pub(super) fn with(object: Arc<Object>, longest: Duration) -> io::Result<Self> {
        let suspender = Suspender::new(object, Latch::new(longest)?, &[])?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 16);
        let most = usize::try_from(limit.saturating_sub(SPARE)).unwrap_or(usize::MAX);
        Ok(Self { suspender, marked: Vec::new(), longest, until: None, most })
    }

    /// Suspends all others from now on who come across what these extents name.
    ///
    /// # Errors
    ///
    /// EMFILE where that is more than may be open at once.
    pub(super) fn close(&mut self, extents: &[(&OverlayPart, Extent)]) -> io::Result<()> {
        let mut directories = Vec::new();
        for (part, extent) in extents {
            let live = part.live_tree()?;
            if extent.root {
                self.mark(live.root().try_clone_to_owned())?;
            }
            for identity in &extent.objects {
                self.mark(identity.open(&live))?;
            }
            for directory in &extent.directories {
                if self.mark(live.object(directory))? {
                    directories.push(self.marked.len() - 1);
                }
            }
        }
        let until = Instant::now() + self.longest;
        self.suspender.latch().hold_until(until);
        self.until = Some(until);
        self.suspender.suspend_until(now() + u64::try_from(self.longest.as_nanos()).unwrap_or(u64::MAX / 2))?;
        directories.iter().for_each(|at| pass_lock_of(&self.marked[*at]));
        Ok(())
    }

    /// Lets everybody go: whether it had let them go before.
    pub(super) fn open(&mut self) -> bool {
        let has_lapsed = self.has_lapsed();
        self.suspender.release();
        has_lapsed
    }

    /// What looks who has waited for long; nothing where pids are others than the kernel's.
    pub(super) fn look(&self) -> io::Result<Option<impl FnMut() -> Vec<Waits> + Send + use<>>> {
        self.suspender.look(self.marked.iter().filter_map(identified).collect())
    }

    /// Whether it is open, since it was closed for as long as it may be.
    pub(super) fn has_lapsed(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether somebody went through who could not be suspended.
    pub(super) fn was_passed(&self) -> bool {
        self.until.is_some() && self.suspender.passed().is_none_or(|passed| passed > 0)
    }

    /// Marks an object, if it is there still: the last look before the commit point decides what its absence means.
    fn mark(&mut self, object: io::Result<OwnedFd>) -> io::Result<bool> {
        let object = match object {
            Err(error) if is_missing(&error) || is_gone(&error) || leads_elsewhere(&error) => return Ok(false),
            object => object?,
        };
        if self.marked.len() >= self.most {
            return Err(Errno::MFILE.into());
        }
        let key = object.as_fd().as_raw_fd().to_ne_bytes();
        self.suspender.map("marks")?.update(&key, &1_u32.to_ne_bytes(), MapFlags::ANY).map_err(refused)?;
        self.marked.push(object);
        Ok(true)
    }
}

/// Waits for those who are changing or listing names in a directory: they came before the gate was closed. They hold
/// its lock, which to remove a name takes too.
fn pass_lock_of(directory: &OwnedFd) {
    let _ = rustix::fs::unlinkat(directory, NOBODY, AtFlags::empty());
}

/// The clock that the programs read, in nanoseconds.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
