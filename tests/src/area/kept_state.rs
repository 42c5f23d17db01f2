//! State that an earlier release left on the disk, read by this one: tests/kept-state has a disk a release, and `make`
//! there says what is on it.
//!
//! A release that changes a format reads the old one, or refuses it by its name. Add the disk of a release when it is
//! made; take none away.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::teardown::tear_down;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NEEDS: &[Need] = &[Need::Root, Need::Program("xz", "xz-utils")];

pub(crate) const CASES: &[Case] = &[
    Case::new("kept_state::guests_start_with_their_files", guests_start).needs(NEEDS),
    Case::new("kept_state::images_are_cloned_or_say_what_kernel_they_need", images_are_cloned).needs(NEEDS),
    Case::new("kept_state::a_commit_that_was_cut_off_is_finished", commits_are_finished).needs(NEEDS),
    Case::new("kept_state::what_was_open_leaves_no_trace", open_ones_are_removed).needs(NEEDS),
];

/// A release, and the disk that it left.
struct Kept {
    release: &'static str,
    disk: &'static [u8],
}

const KEPT: &[Kept] = &[Kept { release: "0.1.0", disk: include_bytes!("../../kept-state/0.1.0.ext4.xz") }];

/// Where each was mounted when it was made. Records and journals name paths, so it is there again, in mounts of the
/// test's own.
const AT: &str = "/run/pando-kept-state";

/// A release's state, mounted; taken apart when it is dropped.
struct KeptState {
    state: Option<Sandbox>,
    disk: Option<SmallDisk>,
    /// Control groups are named by the state's path, which is the same for all.
    _alone: MutexGuard<'static, ()>,
}

impl KeptState {
    fn mount(sandbox: &Sandbox, kept: &Kept) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let image = sandbox.scratch().join("kept-state");
        let unpacked = Line::new("xz").args(["-d", "-c"]).input(kept.disk).run().succeeded();
        std::fs::write(&image, &unpacked.stdout).expect("a file can be written");
        let disk = SmallDisk::mount(image, PathBuf::from(AT), "");
        let state = sandbox.beside(TemporaryDirectory::of(disk.at.join("root")));
        Self { state: Some(state), disk: Some(disk), _alone: alone }
    }

    fn state(&self) -> &Sandbox {
        self.state.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for KeptState {
    fn drop(&mut self) {
        let left = self.state.take().map_or(Ok(()), tear_down);
        drop(self.disk.take());
        let _ = std::fs::remove_dir(AT);
        if let Err(left) = left
            && !std::thread::panicking()
        {
            panic!("{left}");
        }
    }
}

/// Shows something of the state of each release.
fn of_each(sandbox: &Sandbox, show: fn(&Sandbox)) {
    for kept in KEPT {
        println!("the state of {}", kept.release);
        show(KeptState::mount(sandbox, kept).state());
    }
}

/// What a file has that transactions wrote to; empty if there is none.
fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(AT).join("files").join(name)).unwrap_or_default()
}

fn guests_start(sandbox: &Sandbox) {
    of_each(sandbox, |state| {
        assert_eq!(state.state("web"), "stopped");
        state.pando(["store", "verify"]).ok();
        let started = state.pando(["start", "web"]).run();
        if started.code() != 0 && pando_kernel::release::release() < (6, 16) {
            started.complains_of(&["its layer as an image, which this kernel cannot lay below them (Linux 6.16 can)"]);
            assert_eq!(state.state("web"), "stopped");
            return;
        }
        started.succeeded();
        state.pando(["exec", "web", "--", "/program", "read"]).run().succeeded().says("after the freeze");
        state.pando(["exec", "web", "--", "/program", "ask"]).run().succeeded().says("kept\n");
        // What is made now stands on the same layer.
        state.pando(["stop", "web"]).ok();
        state.pando(["create", "copy", "--from", "guest:web", "--net", "none", "--start", "--", "/program"]).ok();
        state.pando(["exec", "copy", "--", "/program", "read"]).run().succeeded().says("after the freeze");
    });
}

fn images_are_cloned(sandbox: &Sandbox) {
    of_each(sandbox, |state| {
        state.pando(["images"]).run().succeeded();
        let cloned = state.pando(["clone", "ready", "web-2"]).run();
        if cloned.code() == 0 {
            // The word was in memory alone.
            state.pando(["exec", "web-2", "--", "/program", "ask"]).run().succeeded().says("kept\n");
            state.pando(["exec", "web-2", "--", "/program", "read"]).run().succeeded().says("of the guest");
        } else {
            let why = cloned.err();
            let reasons = ["frozen under Linux 6.18.44", "this processor lacks", "version 9 of the format"];
            assert!(reasons.iter().any(|reason| why.contains(reason)), "the refusal does not say what it needs: {why}");
            assert_eq!(state.state("web-2"), "absent");
        }
        state.pando(["image", "rm", "ready"]).ok();
    });
}

fn commits_are_finished(sandbox: &Sandbox) {
    of_each(sandbox, |state| {
        assert_eq!((file("committed").as_str(), file("made/file").as_str()), ("new\n", ""), "the first change alone");
        let said = state.pando(["tx", "recover"]).run().succeeded();
        assert!(said.out().contains("committed, and in place now"), "{}{}", said.out(), said.err());
        assert_eq!((file("committed").as_str(), file("made/file").as_str()), ("new\n", "inside\n"));
        state.pando(["tx", "run", "--", "sh", "-c", &format!("echo next >>{AT}/files/committed")]).run().succeeded();
        assert_eq!(file("committed"), "new\nnext\n");
    });
}

fn open_ones_are_removed(sandbox: &Sandbox) {
    of_each(sandbox, |state| {
        assert!(state.pando(["tx", "ls"]).ok().contains("open"));
        state.pando(["tx", "recover"]).ok();
        assert!(!state.pando(["tx", "ls"]).ok().contains("open"));
        assert_eq!(file("open"), "");
    });
}
