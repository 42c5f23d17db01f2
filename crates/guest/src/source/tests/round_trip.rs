//! A copy is like its original in everything.

use super::tree::{Node, grow, node, portrait};
use super::{Heard, Place, is_root, message};
use crate::source::{Options, Source, materialize};
use pando_kernel::file::tree_removal::{RemovalError, empty_directory};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

fn assert_same(place: &Place) {
    let (from, into) = (portrait(&place.at("from")), portrait(&place.target()));
    for (path, line) in &from {
        assert_eq!(into.get(path), Some(line), "{:?}", String::from_utf8_lossy(path));
    }
    assert_eq!(from.len(), into.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_is_copied_whole(tree in node()) {
        let place = Place::new();
        grow(&place.at("from"), &tree, &mut None);
        place.make(&Source::Directory(place.at("from"))).unwrap();
        assert_same(&place);
        empty_directory(&place.target()).unwrap();
        place.assert_nothing_left();
    }

    #[test]
    fn any_tree_survives_an_archive(tree in node()) {
        let place = Place::new();
        grow(&place.at("from"), &tree, &mut None);
        let archive = place.at("a.tar");
        let mut command = Command::new("tar");
        command.arg("--format=pax").arg("--xattrs").arg("--pax-option=delete=atime,delete=ctime").arg("-cSf").arg(&archive);
        let made = command.arg("-C").arg(place.at("from")).arg(".").output().unwrap();
        prop_assume!(made.status.success());
        place.make(&Source::Tarball(archive)).unwrap();
        assert_same(&place);
    }
}

#[test]
fn trees_deeper_than_any_path_are_copied_and_removed() {
    let place = Place::new();
    fs::create_dir(place.at("from")).unwrap();
    // Twice the longest path, and far more levels than descriptors.
    let mut at = rustix::fs::open(place.at("from"), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..2_000 {
        rustix::fs::mkdirat(&at, "deep", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "deep", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
    let file = crate::source::root::new_file(std::os::fd::AsFd::as_fd(&at), "end".as_ref()).unwrap();
    std::io::Write::write_all(&mut &file, b"here").unwrap();
    rustix::fs::linkat(&at, "end", &at, "again", rustix::fs::AtFlags::empty()).unwrap();
    let summary = place.make(&Source::Directory(place.at("from"))).unwrap();
    assert_eq!((summary.files, summary.bytes), (2, 4));
    empty_directory(&place.target()).unwrap();
    empty_directory(&place.at("from")).unwrap();
    place.assert_nothing_left();
}

#[test]
fn holes_stay_holes() {
    let place = Place::new();
    let tree = Node::Directory(vec![("s".into(), Node::File(vec![(5_000, 1, 10), (9_000, 2, 5_000)], 64 << 20))]);
    grow(&place.at("from"), &tree, &mut None);
    let summary = place.make(&Source::Directory(place.at("from"))).unwrap();
    assert_eq!(summary.bytes, 64 << 20);
    assert!(place.target().join("s").metadata().unwrap().blocks() < 1 << 12, "the holes were filled");
    assert_same(&place);
}

#[test]
fn a_destination_inside_the_source_is_not_copied_into_itself() {
    let place = Place::new();
    let summary = place.make(&Source::Directory(place.at("."))).unwrap();
    assert_eq!(summary.files, 1, "outside/kept");
    assert_eq!(place.target().join("into").read_dir().unwrap().count(), 0);
}

#[test]
fn symbolic_links_are_copied_and_not_followed() {
    let place = Place::new();
    fs::create_dir(place.at("from")).unwrap();
    symlink(place.at("outside"), place.at("from/out")).unwrap();
    symlink("/nowhere", place.at("from/dangling")).unwrap();
    place.make(&Source::Directory(place.at("from"))).unwrap();
    assert_same(&place);
}

#[test]
fn what_is_no_directory_is_told_in_a_sentence() {
    let place = Place::new();
    for wrong in ["missing", "outside/kept"] {
        let text = message(place.make(&Source::Directory(place.at(wrong))));
        assert!(text.contains(wrong) && text.contains("tarball"), "{text}");
    }
    let text = message(place.make(&Source::Guest("web".to_owned())));
    assert!(text.contains("'web'"), "{text}");
}

#[test]
fn another_guests_tree_is_copied_like_any_other() {
    let place = Place::new();
    let options = Options { guest_tree: Some(place.at("outside")), ..Options::default() };
    let summary = materialize(&Source::Guest("web".to_owned()), &place.target(), &options, &Heard::default()).unwrap();
    assert_eq!(summary.files, 1);
}

#[test]
fn a_tree_that_changes_while_it_is_copied_is_copied_without_error() {
    let place = Place::new();
    let from = place.at("from");
    fs::create_dir(&from).unwrap();
    symlink(place.at("outside"), from.join("link")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let name = from.join(format!("d{}", round % 50));
                // Whatever fails here fails because the other half of the loop was faster.
                let _ = fs::create_dir(&name);
                let _ = fs::write(name.join("f"), vec![b'x'; 10_000]);
                let _ = fs::rename(name.join("f"), from.join("f"));
                if round.is_multiple_of(3) {
                    let _ = pando_kernel::file::tree_removal::remove_tree(&name);
                    let _ = symlink(place.at("outside"), &name);
                } else if round.is_multiple_of(7) {
                    let _ = fs::remove_file(&name);
                }
            }
        });
        for _ in 0..40 {
            let done = place.make(&Source::Directory(from.clone()));
            stop.store(done.is_err(), Ordering::Relaxed);
            done.unwrap();
            assert!(!place.target().join("kept").exists());
            empty_directory(&place.target()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    place.assert_outside_is_untouched();
}

#[test]
fn devices_are_copied_but_whiteouts_are_not() {
    if !is_root("devices_are_copied_but_whiteouts_are_not") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("from")).unwrap();
    let made = |name: &str, minor: &str| {
        let status = Command::new("mknod")
            .arg(place.at("from").join(name))
            .args(["c", if minor == "0" { "0" } else { "1" }, minor])
            .status();
        status.unwrap().success()
    };
    if !made("null", "3") || !made("whiteout", "0") {
        eprintln!("skipped: devices_are_copied_but_whiteouts_are_not needs to make device nodes");
        return;
    }
    let summary = place.make(&Source::Directory(place.at("from"))).unwrap();
    assert_eq!(summary.left.devices, 1);
    assert!(place.target().join("null").metadata().unwrap().file_type().is_char_device());
    assert!(!place.target().join("whiteout").exists());
}

#[test]
fn file_capabilities_and_access_lists_are_kept() {
    if !is_root("file_capabilities_and_access_lists_are_kept") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("from")).unwrap();
    let path = place.at("from/p");
    fs::write(&path, "x").unwrap();
    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty());
    set("security.capability", &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    // user::rw-, user:1000:r--, group::r--, mask::r--, other::---
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1_000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    if set("system.posix_acl_access", &list).is_err() {
        eprintln!("skipped: file_capabilities_and_access_lists_are_kept needs a file system with access control lists");
        return;
    }
    set("trusted.overlay.opaque", b"y").unwrap();
    let summary = place.make(&Source::Directory(place.at("from"))).unwrap();
    assert_eq!(summary.left.attributes, 1, "the overlay's own attribute");
    rustix::fs::removexattr(&path, "trusted.overlay.opaque").unwrap();
    assert_same(&place);
}

#[test]
fn mounts_in_the_tree_are_not_entered() {
    if !is_root("mounts_in_the_tree_are_not_entered") {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("from/proc")).unwrap();
    let mounted = Command::new("mount").args(["-t", "proc", "proc"]).arg(place.at("from/proc")).status().unwrap();
    if !mounted.success() {
        eprintln!("skipped: mounts_in_the_tree_are_not_entered needs to mount proc");
        return;
    }
    let done = place.make(&Source::Directory(place.at("from")));
    // Removing a tree does not enter a mount either.
    let refused = empty_directory(&place.at("from"));
    assert!(Command::new("umount").arg(place.at("from/proc")).status().unwrap().success());
    assert_eq!(done.unwrap().left.mounts, ["proc"].map(std::path::PathBuf::from));
    assert_eq!(place.target().join("proc").read_dir().unwrap().count(), 0);
    assert!(matches!(refused, Err(RemovalError::Mounted { .. })), "{refused:?}");
}

#[test]
fn cancelling_a_copy_leaves_nothing() {
    let place = Place::new();
    let entries = (0..600).map(|n| (format!("f{n}").into(), Node::File(vec![], 0))).collect();
    grow(&place.at("from"), &Node::Directory(entries), &mut None);
    let heard = Heard { stop: true, ..Heard::default() };
    let source = Source::Directory(place.at("from"));
    assert!(materialize(&source, &place.target(), &Options::default(), &heard).unwrap_err().is_cancelled());
    place.assert_nothing_left();
}
