//! Who writes what guests read: a thread that is asked by the kernel before each read.
//!
//! A file that was just written is not held up again for [`FRESH`]: whoever reads it in several parts gets one text,
//! and whoever reads it in a loop costs nothing.

use pando_kernel::file::read_gate::{ReadGate, numbers};
use pando_limit::view::{Scene, View};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a text counts as true.
const FRESH: Duration = Duration::from_millis(50);

/// How long new files may be empty while nobody reads them.
const SOON: Duration = Duration::from_millis(20);

/// The longest that the thread sleeps.
const LONG: Duration = Duration::from_secs(3600);

/// A file that a guest reads.
#[derive(Debug)]
pub(super) struct ViewFile {
    pub(super) view: View,
    file: File,
    scene: Arc<Mutex<Scene>>,
}

/// Writes files in a moment: should this daemon die before anybody reads, there has to be something to read. Not at
/// once, since whoever made them is about to start a guest, and each text takes as long as a good part of that.
pub(super) fn write_soon(view_files: Vec<Arc<ViewFile>>) {
    let write = move || view_files.iter().for_each(|view_file| view_file.write());
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return write() };
    runtime.spawn(async move {
        tokio::time::sleep(SOON).await;
        drop(tokio::task::spawn_blocking(write));
    });
}

type Files = Mutex<HashMap<(u64, u64), Arc<ViewFile>>>;

/// The files, and who is asked for them.
#[derive(Debug)]
pub(super) struct Keeper {
    files: Arc<Files>,
    /// The thread alone holds it: however that ends, nobody is held up any more.
    gate: Weak<ReadGate>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ViewFile {
    pub(super) fn new(view: View, file: File, scene: Arc<Mutex<Scene>>) -> Self {
        Self { view, file, scene }
    }

    /// Writes what is true now, over what was: a reader finds one or the other.
    pub(super) fn write(&self) {
        let text = locked(&self.scene).text(self.view, super::now());
        let written = self.file.write_all_at(text.as_bytes(), 0).and_then(|()| self.file.set_len(text.len() as u64));
        if let Err(error) = written {
            tracing::debug!(%error, view = ?self.view, "it keeps its old words");
        }
    }
}

impl Keeper {
    pub(super) fn new() -> Self {
        let files: Arc<Files> = Arc::default();
        let gate = ReadGate::new().map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "what guests see of their limits is a few seconds old");
        });
        let weak = gate.as_ref().map(Arc::downgrade).unwrap_or_default();
        if let Ok(gate) = gate {
            let files = Arc::clone(&files);
            let thread = std::thread::Builder::new().name("views".into()).stack_size(256 << 10);
            if let Err(error) = thread.spawn(move || serve(&gate, &files)) {
                tracing::warn!(%error, "what guests see of their limits is a few seconds old");
            }
        }
        Self { files, gate: weak }
    }

    /// Whether the kernel asks before a file is read.
    pub(super) fn is_asked(&self) -> bool {
        self.gate.strong_count() > 0
    }

    /// Keeps a file from now on.
    pub(super) fn take(&self, view_file: Arc<ViewFile>) {
        let Ok(numbers) = numbers(&view_file.file) else { return };
        locked(&self.files).insert(numbers, Arc::clone(&view_file));
        let asked = self.gate.upgrade().is_some_and(|gate| gate.close(&view_file.file).is_ok());
        if !asked {
            view_file.write();
        }
    }

    /// Keeps a view's file true no more.
    pub(super) fn drop(&self, view_file: &ViewFile) {
        if let Ok(numbers) = numbers(&view_file.file) {
            locked(&self.files).remove(&numbers);
        }
        if let Some(gate) = self.gate.upgrade() {
            // It is not held up just now, perhaps.
            let _ = gate.open(&view_file.file);
        }
    }
}

/// Answers for as long as the process lives.
fn serve(gate: &ReadGate, files: &Files) {
    let mut fresh: VecDeque<(Instant, Arc<ViewFile>)> = VecDeque::new();
    loop {
        let now = Instant::now();
        while fresh.front().is_some_and(|(until, _)| *until <= now) {
            let Some((_, view_file)) = fresh.pop_front() else { break };
            let kept = numbers(&view_file.file).is_ok_and(|numbers| locked(files).contains_key(&numbers));
            if kept && let Err(error) = gate.close(&view_file.file) {
                tracing::debug!(%error, "its words stay as they are");
            }
        }
        let pause = fresh.front().map_or(LONG, |(until, _)| *until - now);
        let readers = gate.wait(pause).and_then(|()| gate.readers());
        let readers = match readers {
            Ok(readers) => readers,
            Err(error) => {
                tracing::warn!(%error, "what guests see of their limits is a few seconds old");
                return;
            }
        };
        for reader in readers {
            let view_file = reader.file().ok().and_then(|numbers| locked(files).get(&numbers).cloned());
            let Some(view_file) = view_file else { continue };
            // Several may have read at once: the first finds it stale.
            if !fresh.iter().any(|(_, known)| Arc::ptr_eq(known, &view_file)) {
                view_file.write();
                let _ = gate.open(&view_file.file);
                fresh.push_back((Instant::now() + FRESH, view_file));
            }
        }
    }
}
