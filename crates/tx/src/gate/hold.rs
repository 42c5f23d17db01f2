//! The gate `hold`: from a transaction's first touch on, whoever outside is about to change what it has come across
//! waits until the transaction has ended, instead of dooming it (Linux 6.18, programs of BPF LSM).
//!
//! ```text
//!   before its command begins   programs loaded and attached, told of its control group and its file systems
//!   while that runs             it touches ─▶ marked; others change that ─▶ suspended before they hold a lock
//!   one has waited too long     nobody is suspended any more ─▶ all are let go ─▶ the transaction is doomed
//!   it ends, in any way         all are let go; whoever comes later meets no program
//! ```
//!
//! What was validated without this gate is so with it. What others do in spite of it, or to what bears no mark, is a
//! conflict as ever. A commit of another transaction is not suspended: it has the lock that this one's commit needs.

use super::programs;
use super::suspender::{Paths, Suspender, set_until};
use super::waiting::Telling;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::validate::contention;
use libbpf_rs::{MapCore, MapFlags};
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::filesystem::latch::{Bound, Latch};
use pando_kernel::mount::{MountEntry, mounts};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The number of the control group that all others lie in, where they are counted as the programs count them.
const ROOT_GROUP: u64 = 1;

/// What a mark says: that the transaction has come across an object, and that it has read the names in it.
const SEEN: u32 = 1;
const LISTED: u32 = 2;

/// So many objects bear a mark from the beginning.
const MOST: usize = 256;

/// What has others wait for a transaction. Dropped, it lets them go.
#[derive(Debug)]
pub(crate) struct Hold {
    suspender: Suspender,
    telling: Option<Telling>,
    /// Whether the transaction is still to be doomed by one who has waited for too long.
    dooms: Arc<Mutex<bool>>,
    dooming: Option<JoinHandle<()>>,
    /// What bears a mark from the beginning stays in the kernel's memory.
    marked: Vec<OwnedFd>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.spare();
        self.suspender.release();
        self.telling = None;
        if let Some(thread) = self.dooming.take() {
            // With the latch what would wake it is gone.
            let _ = thread.join();
        }
    }
}

impl Hold {
    /// Holds for the transaction that is kept in `directory`, for which nobody waits longer than `longest`. With
    /// `by_priority` whoever has a higher scheduling priority than this process does not wait.
    ///
    /// # Errors
    ///
    /// EPERM where the kernel refuses its programs; those of [`Latch::new`]; NotFound where the groups are not counted
    /// as the kernel counts them.
    pub(crate) fn begin(record: &Record, directory: &Path, longest: Duration, by_priority: bool) -> io::Result<Self> {
        let (group, depth) = located(&record.group)?;
        let object = programs::loaded_to_hold()?;
        let (tell, told) = channel::<()>();
        let closed = programs::handle(&object, "closed")?;
        let overdue = Box::new(move || {
            let _ = set_until(&closed, 0);
            let _ = tell.send(());
        });
        let latch = Latch::bounded(Bound { longest, overdue })?;
        let more: Vec<u8> =
            [&u32::from(by_priority).to_ne_bytes()[..], &group.to_ne_bytes(), &depth.to_ne_bytes(), &[0; 4]].concat();
        let mut suspender = Suspender::new(object, latch, &more)?;
        let mounts = mounts().map_err(|error| error.source)?;
        for device in record.parts.iter().filter_map(|part| device_of(part, &mounts)) {
            let (key, value) = (device.to_ne_bytes(), 1_u32.to_ne_bytes());
            suspender.map("devices")?.update(&key, &value, MapFlags::ANY).map_err(programs::refused)?;
        }
        let dooms = Arc::new(Mutex::new(true));
        let (is_to, scope, directory) = (Arc::clone(&dooms), Scope::at(&record.group), directory.to_owned());
        let told_in = directory.clone();
        let doom = move || {
            if told.recv().is_ok() && *is_to.lock().unwrap_or_else(PoisonError::into_inner) {
                let words = format!("others had waited {} s for what it touched", longest.as_secs_f64());
                contention::doom_by(&directory, &scope, &words);
            }
        };
        let dooming = Some(std::thread::Builder::new().name("doom".into()).spawn(doom)?);
        suspender.attach()?;
        suspender.suspend_until(u64::MAX)?;
        let telling = suspender.look(Paths::new())?.and_then(|look| Telling::of_hold(&told_in, look).ok());
        Ok(Self { suspender, telling, dooms, dooming, marked: Vec::new() })
    }

    /// Has others wait for what is at a path, and for names in it, before the transaction touches it. What is not there
    /// is nothing to wait for.
    pub(crate) fn mark(&mut self, path: &Path) {
        let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, ResolveFlags::NO_MAGICLINKS);
        let Ok(object) = openat2(CWD, path, flags, Mode::empty(), resolve) else { return };
        let (key, value) = (object.as_raw_fd().to_ne_bytes(), (SEEN | LISTED).to_ne_bytes());
        let marked = self.suspender.map("touched").is_ok_and(|map| map.update(&key, &value, MapFlags::ANY).is_ok());
        if marked && self.marked.len() < MOST {
            self.marked.push(object);
        }
    }

    /// Nobody who waits for too long dooms the transaction from now on: its command has ended.
    pub(crate) fn spare(&self) {
        *self.dooms.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// The number of a control group, and in how many others it lies.
fn located(group: &Path) -> io::Result<(u64, u32)> {
    let unified = Hierarchies::detect().map_err(|error| error.source)?.unified;
    let unified = unified.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    if std::fs::metadata(&unified)?.ino() != ROOT_GROUP {
        let why = "the control groups seen here are not all that the machine has";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let below = group.strip_prefix(&unified).map_err(io::Error::other)?;
    Ok((std::fs::metadata(group)?.ino(), below.components().count() as u32))
}

/// The device of the file system that a part is of, as the kernel has it in itself: the minor number in twenty bits.
fn device_of(part: &OverlayPart, mounts: &[MountEntry]) -> Option<u32> {
    let entry = mounts.iter().rev().find(|entry| entry.at == part.live)?;
    let (major, minor) = entry.device.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_as_the_kernel_does_it() {
        let entry = |at: &str, device: &str| MountEntry { at: at.into(), device: device.into(), ..Default::default() };
        let mounts = [entry("/", "8:3"), entry("/srv", "0:41"), entry("/srv", "259:300")];
        let of = |at: &str| device_of(&OverlayPart::new(at.into(), "/b".into()), &mounts);
        assert_eq!((of("/"), of("/srv"), of("/tmp")), (Some(8 << 20 | 3), Some(259 << 20 | 300), None));
    }
}
