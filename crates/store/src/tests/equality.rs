//! A layer shows what the tree showed.

use super::tree::{Links, assert_equal, of_everything, portrait};
use super::{Trial, is_root};
use crate::{Backend, LayerMounts, Mounted, Taking};
use pando_kernel::mount::overlay::Overlay;
use pando_kernel::mount::{Attributes, Tree};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// As guests' roots are put together.
const OPTIONS: [(&str, &str); 4] = [("index", "on"), ("nfs_export", "on"), ("metacopy", "off"), ("redirect_dir", "on")];

/// As the roots of guests that go away are.
const PASSING: [(&str, &str); 3] = [("index", "off"), ("metacopy", "off"), ("redirect_dir", "off")];

/// A layer under an overlay, as a guest sees it.
pub(super) fn mount(trial: &Trial, mounted: &Mounted, options: &[(&str, &str)], name: &str) -> Tree {
    let at = trial.place(name);
    for name in ["upper", "work"] {
        std::fs::create_dir_all(at.join(name)).unwrap();
    }
    let files = Tree::clone_of(&at, false).unwrap();
    let data = mounted.data.iter().collect();
    let overlay = Overlay { name: "test", lowers: vec![&mounted.tree], data, files: &files, options, volatile: false };
    overlay.mount(Attributes::MOUNT_ATTR_NODEV, &at).unwrap()
}

pub(super) fn shown(tree: &Tree) -> PathBuf {
    // The dot: the link itself is not to be described.
    PathBuf::from(format!("/proc/self/fd/{}/.", tree.as_fd().as_raw_fd()))
}

fn shows_the_same(backend: Backend, options: &[(&str, &str)], taking: Taking) {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    if backend == Backend::Image && !matches!(Backend::choose(&trial.store, &[&OPTIONS, &PASSING]), Ok(Backend::Image))
    {
        eprintln!("skipped: images cannot be mounted from files here");
        return;
    }
    of_everything(&trial.place("tree"));
    let links = if backend == Backend::Image { Links::Counted } else { Links::Uncounted };
    let before = portrait(&trial.place("tree"), links);
    let blocks = trial.place("tree/sparse").metadata().unwrap().blocks();
    let imported = trial.store.import(&trial.place("tree"), taking).unwrap();
    if taking == Taking::Over {
        pando_kernel::file::tree_removal::remove_tree(&trial.place("tree")).unwrap();
    }
    let mounts = LayerMounts::new(trial.store.clone(), backend);
    for number in 0..2 {
        // Twice: the second guest on a layer sees the same as the first.
        let mounted = mounts.mount(&imported.layer).unwrap();
        let whole = mount(&trial, &mounted, options, &format!("guest{number}"));
        let mut after = portrait(&shown(&whole), links);
        // An overlay's root has the time of its upper.
        after.insert("".into(), before[std::ffi::OsStr::new("")].clone());
        assert_equal(&before, &after);
        assert_eq!(shown(&whole).join("sparse").metadata().unwrap().blocks(), blocks, "a hole was filled");
    }
}

#[test]
fn an_image_shows_what_the_tree_showed() {
    shows_the_same(Backend::Image, &OPTIONS, Taking::Copy);
}

#[test]
fn an_image_of_files_taken_over_does() {
    shows_the_same(Backend::Image, &OPTIONS, Taking::Over);
}

#[test]
fn an_image_under_a_passing_guest_does() {
    shows_the_same(Backend::Image, &PASSING, Taking::Copy);
}

#[test]
fn a_farm_shows_what_the_tree_showed() {
    shows_the_same(Backend::Farm, &OPTIONS, Taking::Copy);
}

#[test]
fn a_farm_of_files_taken_over_does() {
    shows_the_same(Backend::Farm, &OPTIONS, Taking::Over);
}

/// Overlays know the inodes below: what was written over one way of mounting is refused over the other, and goes on
/// over its own.
#[test]
fn what_was_written_over_a_farm_goes_on_over_a_farm() {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    if !matches!(Backend::choose(&trial.store, &[&OPTIONS, &PASSING]), Ok(Backend::Image)) {
        eprintln!("skipped: images cannot be mounted from files here");
        return;
    }
    of_everything(&trial.place("tree"));
    let layer = trial.import("tree").layer;
    let mounts = LayerMounts::new(trial.store.clone(), Backend::Image);
    let farm = |what: &dyn Fn(&std::path::Path)| {
        let whole = mount(&trial, &mounts.mount_as(&layer, Backend::Farm).unwrap(), &OPTIONS, "guest");
        what(&shown(&whole));
    };
    let before = std::cell::RefCell::new(None);
    farm(&|root| {
        // Copied up, linked, renamed and new.
        std::fs::OpenOptions::new().append(true).open(root.join("usr/bin/tool")).unwrap().write_all(b"more").unwrap();
        std::fs::hard_link(root.join("usr/bin/twin"), root.join("usr/twin-too")).unwrap();
        std::fs::rename(root.join("etc"), root.join("moved")).unwrap();
        std::fs::write(root.join("new"), vec![1; 9_000]).unwrap();
        *before.borrow_mut() = Some(portrait(root, Links::Uncounted));
    });
    let at = trial.place("guest");
    let mounted = mounts.mount(&layer).unwrap();
    let files = Tree::clone_of(&at, false).unwrap();
    let data = mounted.data.iter().collect();
    let overlay =
        Overlay { name: "test", lowers: vec![&mounted.tree], data, files: &files, options: &OPTIONS, volatile: false };
    assert!(overlay.mount(Attributes::MOUNT_ATTR_NODEV, &at).is_err(), "it must not be shown over other inodes");
    farm(&|root| assert_equal(before.borrow().as_ref().unwrap(), &portrait(root, Links::Uncounted)));
}

#[test]
fn a_tree_that_did_not_change_is_the_same_layer_without_being_opened() {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    of_everything(&trial.place("tree"));
    let first = trial.import("tree").layer;
    // Files that were just made are not trusted yet.
    std::thread::sleep(std::time::Duration::from_millis(3_100));
    assert_eq!(trial.import("tree").layer, first, "it is noted");
    assert_eq!(trial.import("tree").layer, first, "it is known");
    let file = trial.place("tree/usr/bin/twin");
    rustix::fs::setxattr(&file, "user.new", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    let marked = trial.import("tree").layer;
    assert_ne!(marked, first);
    rustix::fs::removexattr(&file, "user.new").unwrap();
    assert_eq!(trial.import("tree").layer, first);
    std::fs::write(&file, vec![b'y'; 70_000]).unwrap();
    assert_ne!(trial.import("tree").layer, first);
}
