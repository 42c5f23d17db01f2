//! A process that watches files by inotify(7) and says what happens there: this very program, called as `pando-tests
//! file-watcher PATH…`.

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::mem::MaybeUninit;
use std::process::ExitCode;

/// The word that makes this program a watcher.
pub(crate) const WORD: &str = "file-watcher";

/// Watches until it is killed. Watches are numbered from 1, as the paths are.
pub(crate) fn watch(paths: &[String]) -> ExitCode {
    let Ok(watcher) = inotify::init(CreateFlags::empty()) else { return ExitCode::FAILURE };
    for path in paths {
        if let Err(error) = inotify::add_watch(&watcher, path.as_str(), WatchFlags::CREATE | WatchFlags::ATTRIB) {
            eprintln!("{path} cannot be watched: {error}");
            return ExitCode::FAILURE;
        }
    }
    println!("watching");
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&watcher, &mut room);
    while let Ok(event) = reader.next() {
        let name = event.file_name().unwrap_or_default().to_string_lossy();
        println!("{} {name}", event.wd());
    }
    ExitCode::FAILURE
}
