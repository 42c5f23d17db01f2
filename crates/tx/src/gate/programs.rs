//! The programs of the gate `bpf`: whether this machine has them, and loading them, ahead of the commit where that is
//! possible. It takes longer than many a transaction, since they are fitted to the running kernel: a short one that has
//! not asked for this gate does not pay for it, and has the next best.

use super::suspending::Suspending;
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject};
use pando_kernel::release::release;
use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gate.bpf.o"));
const HOLD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hold.bpf.o"));

/// The active security modules, with commas between them.
const MODULES: &str = "/sys/kernel/security/lsm";

/// The kernel that suspends tasks on their way back from a call.
const SINCE: (u32, u32) = (6, 18);

/// How long a command runs before it is worth it: some three times what loading takes.
const WORTH_IT: Duration = Duration::from_millis(250);

/// What was loaded for the next commit of this process.
static AHEAD: Mutex<Option<Ahead>> = Mutex::new(None);

/// Programs that are loaded, or are being loaded.
#[derive(Debug)]
enum Ahead {
    /// By a thread that waits first until it is worth it, unless it hears before that the commit has come.
    Begun {
        thread: JoinHandle<io::Result<Arc<Object>>>,
        commit: Sender<()>,
    },
    Done(Arc<Object>),
}

/// Why this machine has no such gate, as far as that is known without loading anything; nothing if it may have one.
pub(super) fn obstacle() -> Option<String> {
    let modules = std::fs::read_to_string(MODULES);
    obstacle_of(release(), modules.ok().as_deref(), Path::new("/dev/fuse").exists())
}

fn obstacle_of((major, minor): (u32, u32), modules: Option<&str>, has_fuse: bool) -> Option<String> {
    if (major, minor) < SINCE {
        return Some(format!("this is Linux {major}.{minor}, and it takes {}.{}", SINCE.0, SINCE.1));
    }
    // Programs may be loaded and never be asked: only this list tells.
    let Some(modules) = modules.map(str::trim) else {
        return Some(format!("{MODULES} cannot be read, which says whether BPF is asked; mount securityfs there"));
    };
    if !modules.split(',').any(|name| name == "bpf") {
        return Some(format!("BPF is not among the active security modules; boot with lsm={modules},bpf"));
    }
    (!has_fuse).then(|| "there is no /dev/fuse; load the kernel module fuse".into())
}

/// Why it cannot be had, found out by loading all of it, which is kept for the next commit; nothing if it can.
pub(super) fn trial() -> Option<String> {
    obstacle().or_else(|| {
        let tried =
            load().and_then(|object| Suspending::with(Arc::clone(&object), Duration::from_secs(1)).map(|_| object));
        match tried {
            Ok(object) => {
                keep(Ahead::Done(object));
                None
            }
            Err(error) => Some(error.to_string()),
        }
    })
}

/// Has the programs be loaded for the next commit, if that is some time away.
pub(super) fn load_ahead() {
    let (commit, has_come) = channel();
    let load_later = move || match has_come.recv_timeout(WORTH_IT) {
        Err(RecvTimeoutError::Timeout) => load(),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    };
    if let Ok(thread) = std::thread::Builder::new().name("load-gate".into()).spawn(load_later) {
        keep(Ahead::Begun { thread, commit });
    }
}

/// The programs: those that were loaded ahead, or else new ones where this gate was asked for by its name.
///
/// # Errors
///
/// EPERM where the kernel refuses programs of this kind; others where it lacks what they call. EWOULDBLOCK where they
/// would be loaded for a short transaction.
pub(super) fn loaded(named: bool) -> io::Result<Arc<Object>> {
    let ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    match ahead {
        Some(Ahead::Done(object)) => Ok(object),
        Some(Ahead::Begun { thread, commit }) => {
            // One that is loading already does not hear it.
            let _ = commit.send(());
            thread.join().unwrap_or_else(|_| Err(io::Error::other("what loads its programs panicked")))
        }
        None if named => load(),
        None => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn keep(ahead: Ahead) {
    *AHEAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead);
}

/// The programs of the gate `hold`, which has to be there before a command begins.
///
/// # Errors
///
/// As [`loaded`].
pub(super) fn loaded_to_hold() -> io::Result<Arc<Object>> {
    load_object(HOLD)
}

/// A map of theirs.
///
/// # Errors
///
/// NotFound where there is none of that name.
pub(super) fn handle(object: &Object, name: &str) -> io::Result<MapHandle> {
    let found = object.maps().find(|map| map.name() == name);
    MapHandle::try_from(&found.ok_or_else(lacking)?).map_err(refused)
}

/// That something is missing from the programs.
pub(super) fn lacking() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the programs lack a part")
}

fn load() -> io::Result<Arc<Object>> {
    load_object(OBJECT)
}

fn load_object(object: &'static [u8]) -> io::Result<Arc<Object>> {
    // What it has to say about a refusal is in its errors as well.
    libbpf_rs::set_print(None);
    ObjectBuilder::default().open_memory(object).and_then(OpenObject::load).map(Arc::new).map_err(refused)
}

/// The error of a library's call.
pub(super) fn refused(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("the kernel refuses its programs: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_transaction_loads_nothing() {
        load_ahead();
        assert_eq!(loaded(false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(loaded(false).unwrap_err().kind(), io::ErrorKind::WouldBlock, "nor does its next attempt");
    }

    #[test]
    fn what_is_missing_is_said() {
        let told = |release, modules, has_fuse| obstacle_of(release, modules, has_fuse).unwrap_or_default();
        assert_eq!(told((6, 18), Some("lockdown,yama,bpf\n"), true), "");
        assert_eq!(told((7, 0), Some("bpf"), true), "");
        assert!(told((6, 12), Some("bpf"), true).contains("6.12, and it takes 6.18"));
        assert!(told((6, 18), Some("lockdown,yama\n"), true).contains("boot with lsm=lockdown,yama,bpf"));
        assert!(told((6, 18), None, true).contains("securityfs"));
        assert!(told((6, 18), Some("bpf"), false).contains("/dev/fuse"));
    }
}
