//! BPF programs that suspend tasks, and what these wait at: what the gates `bpf` and `hold` have in common.
//!
//! Nothing is pinned: programs, marks and the latch go with this process, whatever it died of.

use super::programs::{handle, lacking, refused};
use super::waiting::Waits;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ProgramInput, ProgramType};
use pando_kernel::filesystem::latch::Latch;
use pando_kernel::process::deferred_close::DeferredClose;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The size of what the programs say of themselves, and where in it stands how often somebody went through.
const OUTCOMES: usize = 24;
const PASSED: std::ops::Range<usize> = 8..16;

/// Where in what they keep of a thread something stands: since when it waits, and what for, whose it is.
const SINCE: usize = 16;
const INODE: usize = 24;
const DEVICE: usize = 32;
const PROCESS: usize = 36;
const NAME: usize = 40;

/// Devices and numbers of objects, and their paths.
pub(super) type Paths = HashMap<(u64, u64), String>;

/// Programs that are loaded, and the latch that whom they suspend waits at. Dropped, they suspend nobody.
#[derive(Debug)]
pub(super) struct Suspender {
    // In this order: whoever is let go meets no program again.
    links: Vec<Link>,
    /// Detaches them when this process has gone on.
    deferred: Option<DeferredClose>,
    latch: Latch,
    object: Arc<Object>,
}

impl Drop for Suspender {
    fn drop(&mut self) {
        self.release();
    }
}

impl Suspender {
    /// Tells the programs who they are for, and has them suspend nobody yet. What they are told begins with the pid of
    /// the process whose executable is the latch; the rest is `more`.
    pub(super) fn new(object: Arc<Object>, latch: Latch, more: &[u8]) -> io::Result<Self> {
        let suspender = Self { links: Vec::new(), deferred: None, latch, object };
        let mut told = [&suspender.latch.holder().to_ne_bytes(), more].concat();
        let program = suspender.object.progs_mut().find(|one| one.name() == "introduce").ok_or_else(lacking)?;
        let input = ProgramInput { context_in: Some(&mut told), ..ProgramInput::default() };
        let introduced = program.test_run(input).map_err(refused)?;
        suspender.map("outcomes")?.update(&[0; 4], &[0; OUTCOMES], MapFlags::ANY).map_err(refused)?;
        if introduced.return_value == 0 { Ok(suspender) } else { Err(Errno::SRCH.into()) }
    }

    /// Has the kernel ask them.
    pub(super) fn attach(&mut self) -> io::Result<()> {
        for program in self.object.progs_mut().filter(|one| one.prog_type() == ProgramType::Lsm) {
            self.links.push(program.attach().map_err(refused)?);
        }
        let links: Vec<_> = self.links.iter().map(AsFd::as_fd).collect();
        self.deferred = Some(DeferredClose::of_all(&links)?);
        Ok(())
    }

    /// Has them suspend others until then (CLOCK_MONOTONIC, nanoseconds).
    pub(super) fn suspend_until(&self, nanoseconds: u64) -> io::Result<()> {
        set_until(&self.map("closed")?, nanoseconds)
    }

    pub(super) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Suspends nobody any more, and lets everybody go.
    pub(super) fn release(&mut self) {
        let _ = self.suspend_until(0);
        self.latch.release();
    }

    /// How often somebody went through who could not be suspended, if that can be told.
    pub(super) fn passed(&self) -> Option<u64> {
        let found = self.map("outcomes").ok()?.lookup(&[0; 4], MapFlags::ANY).ok()??;
        Some(u64::from_ne_bytes(found.get(PASSED)?.try_into().ok()?))
    }

    /// What looks who has waited for long, and for which of these; nothing where pids are others than the kernel's.
    pub(super) fn look(&self, paths: Paths) -> io::Result<Option<impl FnMut() -> Vec<Waits> + Send + use<>>> {
        if !pando_kernel::process::counts_as_the_kernel() {
            return Ok(None);
        }
        let waiters = handle(&self.object, "waiters")?;
        Ok(Some(move || {
            let all = waiters.keys().filter_map(|key| waiters.lookup(&key, MapFlags::ANY).ok().flatten());
            all.filter_map(|value| waits(&value, &paths)).collect()
        }))
    }

    pub(super) fn map(&self, name: &str) -> io::Result<impl MapCore> {
        self.object.maps().find(|map| map.name() == name).ok_or_else(lacking)
    }
}

/// Has programs suspend others until then.
pub(super) fn set_until(closed: &impl MapCore, nanoseconds: u64) -> io::Result<()> {
    closed.update(&[0; 4], &nanoseconds.to_ne_bytes(), MapFlags::ANY).map_err(refused)
}

/// The device and number of an object, and its path.
pub(super) fn identified(object: &OwnedFd) -> Option<((u64, u64), String)> {
    let found = rustix::fs::fstat(object).ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).ok()?;
    Some(((found.st_dev, found.st_ino), path.to_string_lossy().into_owned()))
}

/// Who waits, by what the programs keep of a thread: nobody where it has gone on.
fn waits(value: &[u8], paths: &Paths) -> Option<Waits> {
    let long = |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(value.get(at..at + 4)?.try_into().ok()?));
    let since = long(SINCE).filter(|since| *since > 0)?;
    let device = word(DEVICE)?;
    // As the kernel has them in itself: twenty bits are the minor number.
    let device = rustix::fs::makedev(device >> 20, device & 0xf_ffff);
    let name = value.get(NAME..)?.split(|byte| *byte == 0).next().unwrap_or_default();
    let object = paths.get(&(device, long(INODE)?)).cloned();
    let object = object.unwrap_or_else(|| String::from_utf8_lossy(name).into_owned());
    Some(Waits { pid: word(PROCESS)?.cast_signed(), since: Duration::from_nanos(since), object })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_read_off_what_is_kept_of_a_thread() {
        let mut value = [0; NAME + 64];
        let paths = Paths::from([((rustix::fs::makedev(8, 3), 77), "/srv/f".to_owned())]);
        assert!(waits(&value, &paths).is_none(), "it does not wait");
        value[SINCE..SINCE + 8].copy_from_slice(&5_000_000_000_u64.to_ne_bytes());
        value[INODE..INODE + 8].copy_from_slice(&77_u64.to_ne_bytes());
        value[DEVICE..DEVICE + 4].copy_from_slice(&(8_u32 << 20 | 3).to_ne_bytes());
        value[PROCESS..PROCESS + 4].copy_from_slice(&4711_u32.to_ne_bytes());
        value[NAME..NAME + 5].copy_from_slice(b"name\0");
        let told = |paths: &Paths| waits(&value, paths).map(|one| (one.pid, one.since.as_secs(), one.object));
        assert_eq!(told(&paths), Some((4711, 5, "/srv/f".to_owned())));
        assert_eq!(told(&Paths::new()), Some((4711, 5, "name".to_owned())));
        assert!(waits(&value[..NAME - 1], &paths).is_none());
    }
}
