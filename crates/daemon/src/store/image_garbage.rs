//! Images of registries that nobody uses: pando.toml says how much of them stays, and for how long.
//!
//! What a guest stands on stays, whether it runs or not, and so does what is pushed or pulled right now. Of the others
//! those go that were not used for longest.

use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::pulled_images::PulledRecord;
use crate::store::collect::blocking;
use crate::store::pulled_images;
use crate::store::signature_trust::ImageSettings;
use pando_guest::settings::Settings;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(3600);

/// For so many seconds after its last use an image stays, whatever the bounds: a guest of it may be about to be made.
const IN_USE: i64 = 600;

/// Looks now and then, for as long as the daemon lives.
pub(crate) async fn watch(daemon: Rc<Daemon>) {
    loop {
        collect(&daemon).await;
        tokio::time::sleep(EVERY).await;
    }
}

async fn collect(daemon: &Rc<Daemon>) {
    // What is wrong with the file is said when the daemon begins.
    let settings = Settings::read(&daemon.places).table::<ImageSettings>("images").0;
    let Some(bounds) = settings.keep else { return };
    let age = i64::try_from(bounds.age.as_secs()).unwrap_or(i64::MAX);
    for record in idle(daemon) {
        if now().saturating_sub(record.used) > age {
            remove(daemon, &record);
        }
    }
    while let Some(oldest) = idle(daemon).into_iter().next() {
        let layouts: Vec<PathBuf> = {
            let records = daemon.pulled.records.borrow();
            records.keys().map(|name| pulled_images::directory(&daemon.places, name)).collect()
        };
        let taken = blocking(move || taken(&layouts)).await.unwrap_or(0);
        // Somebody may have begun to use it meanwhile.
        if taken <= bounds.bytes || !idle(daemon).contains(&oldest) || !remove(daemon, &oldest) {
            return;
        }
    }
}

/// Those that may go, the one that was not used for longest first.
fn idle(daemon: &Daemon) -> Vec<PulledRecord> {
    let before = now().saturating_sub(IN_USE);
    let records = daemon.pulled.records.borrow();
    let may_go = |record: &&PulledRecord| {
        let is_moved = daemon.pulled.turn(&record.reference).try_lock().is_err();
        record.used < before && !is_moved && pulled_images::standing_on(daemon, record).is_empty()
    };
    let mut idle: Vec<PulledRecord> = records.values().filter(may_go).cloned().collect();
    idle.sort_by_key(|record| record.used);
    idle
}

fn remove(daemon: &Rc<Daemon>, record: &PulledRecord) -> bool {
    tracing::info!(image = record.reference, "nobody has used it for long: removed, as pando.toml says");
    let removed = pulled_images::remove(daemon, &record.reference);
    removed.inspect_err(|fault| tracing::warn!(%fault, "an image that nobody uses is not removed")).is_ok()
}

/// The bytes of all blobs of images; one that several have counts once.
fn taken(layouts: &[PathBuf]) -> u64 {
    let mut blobs = BTreeMap::new();
    for layout in layouts {
        for algorithm in entries(&layout.join("blobs")) {
            for blob in entries(&algorithm) {
                if let Ok(found) = blob.symlink_metadata() {
                    blobs.insert((found.dev(), found.ino()), found.len());
                }
            }
        }
    }
    blobs.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_that_several_have_counts_once() {
        let place = tempfile::tempdir().unwrap();
        let layouts = ["a", "b"].map(|name| place.path().join(name));
        for layout in &layouts {
            std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        }
        std::fs::write(layouts[0].join("blobs/sha256/x"), [0; 100]).unwrap();
        std::fs::hard_link(layouts[0].join("blobs/sha256/x"), layouts[1].join("blobs/sha256/x")).unwrap();
        std::fs::write(layouts[1].join("blobs/sha256/y"), [0; 7]).unwrap();
        assert_eq!(taken(&layouts), 107);
    }
}
