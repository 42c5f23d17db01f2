//! Whole sources, from what the user names to the tree. Those that need root say so and are skipped without it.

mod archive_maker;
mod debian_install;
mod host_copy;
mod hostile_tarball;
mod image;
mod round_trip;
mod strange_tarball;
mod tree;

use super::{Options, Progress, Source, SourceError, Summary, materialize};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A place with an empty destination and, beside it, things that must not change.
struct Place {
    place: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("into")).unwrap();
        std::fs::create_dir(place.path().join("outside")).unwrap();
        std::fs::write(place.path().join("outside/kept"), "kept").unwrap();
        Self { place }
    }

    fn target(&self) -> PathBuf {
        self.place.path().join("into")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn unpack(&self, archive: &[u8]) -> Result<Summary, SourceError> {
        std::fs::write(self.at("a.tar"), archive).unwrap();
        self.make(&Source::Tarball(self.at("a.tar")))
    }

    fn make(&self, source: &Source) -> Result<Summary, SourceError> {
        materialize(source, &self.target(), &Options::default(), &Silent)
    }

    /// What is beside the destination, to be the same before and after.
    fn assert_outside_is_untouched(&self) {
        assert_eq!(std::fs::read_to_string(self.at("outside/kept")).unwrap(), "kept");
        let names = |directory: &Path| -> Vec<_> {
            let mut names: Vec<_> = std::fs::read_dir(directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.at("outside")), ["kept"]);
        let here = names(self.place.path());
        assert!(
            here.iter().all(|name| ["a.tar", "from", "image", "image.tar", "into", "outside"].contains(&&**name)),
            "{here:?}"
        );
    }

    fn assert_nothing_left(&self) {
        assert_eq!(std::fs::read_dir(self.target()).unwrap().count(), 0, "something is left in the destination");
    }
}

/// The message of a failed call.
fn message(result: Result<Summary, SourceError>) -> String {
    result.unwrap_err().to_string()
}

/// Whether the test runs as root; if not, says that it is skipped.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {test} needs root");
    }
    root
}

struct Silent;

impl Progress for Silent {
    fn stage(&self, _: &str) {}
    fn advance(&self, _: u64, _: Option<u64>) {}
}

/// Keeps what it hears; stops the work if asked.
#[derive(Default)]
struct Heard {
    stages: Mutex<Vec<String>>,
    last: Mutex<(u64, Option<u64>)>,
    stop: bool,
}

impl Progress for Heard {
    fn stage(&self, what: &str) {
        self.stages.lock().unwrap().push(what.to_owned());
    }

    fn advance(&self, done: u64, total: Option<u64>) {
        *self.last.lock().unwrap() = (done, total);
    }

    fn cancelled(&self) -> bool {
        self.stop
    }
}
