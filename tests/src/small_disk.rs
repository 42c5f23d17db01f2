//! A small disk in a file, with a file system on it.

use crate::case::skip;
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A disk; unmounted when it is dropped, and its file removed.
pub(crate) struct SmallDisk {
    image: PathBuf,
    pub(crate) at: PathBuf,
}

impl SmallDisk {
    /// A new one of some MiB, formatted by a command such as `mkfs.ext4 -q`, and mounted with options.
    pub(crate) fn make(image: PathBuf, at: PathBuf, mebibytes: u64, format: &[&str], options: &str) -> Self {
        std::fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("a file");
        Line::new(format[0]).args(&format[1..]).args([&image]).ok();
        Self::mount(image, at, options)
    }

    /// One that exists.
    pub(crate) fn mount(image: PathBuf, at: PathBuf, options: &str) -> Self {
        std::fs::create_dir_all(&at).expect("a directory");
        let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        let mounted = Line::new("mount").args(["-o", &options]).args([&image, &at]).run();
        if mounted.code() != 0 {
            let _ = std::fs::remove_file(&image);
            skip(format!("a disk in a file cannot be mounted here: {}", mounted.err().trim()));
        }
        Self { image, at }
    }

    /// What is on it at this moment, as a disk of its own.
    pub(crate) fn cut(&self, image: PathBuf, at: PathBuf, options: &str) -> Self {
        Line::new("cp").args(["--sparse=always"]).args([&self.image, &image]).ok();
        Self::mount(image, at, options)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if Line::new("umount").args([&self.at]).run().code() != 0 {
            let _ = Line::new("umount").args(["--lazy"]).args([&self.at]).run();
        }
        let _ = std::fs::remove_file(&self.image);
    }
}

/// The state of a sandbox on a small disk of its own. Guests and daemon go before the disk does, however the test ends.
pub(crate) struct StateDisk<'a> {
    sandbox: &'a Sandbox,
    disk: Option<SmallDisk>,
}

impl<'a> StateDisk<'a> {
    /// To be made before the sandbox's first command.
    pub(crate) fn make(sandbox: &'a Sandbox, mebibytes: u64, format: &[&str]) -> Self {
        Self::make_with(sandbox, mebibytes, format, "")
    }

    /// The same, mounted with options.
    pub(crate) fn make_with(sandbox: &'a Sandbox, mebibytes: u64, format: &[&str], options: &str) -> Self {
        let image = sandbox.scratch().join("state-disk");
        let disk = SmallDisk::make(image, sandbox.places().state(), mebibytes, format, options);
        Self { sandbox, disk: Some(disk) }
    }

    /// Where it is mounted.
    pub(crate) fn at(&self) -> &Path {
        self.disk.as_ref().map_or(Path::new("/"), |disk| &disk.at)
    }
}

impl Drop for StateDisk<'_> {
    fn drop(&mut self) {
        // What fails here is seen at the end of the test as something left behind.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let names = self.sandbox.pando(["ls", "-q"]).run().out();
            if !names.is_empty() {
                self.sandbox.pando(["rm", "--force"]).args(names.lines()).run();
            }
            self.sandbox.end_daemon();
        }));
        drop(self.disk.take());
    }
}
