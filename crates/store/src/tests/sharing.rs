//! Equal things are kept once.

use super::Trial;
use crate::{ImportError, Taking, image};
use composefs::generic_tree::LeafContent;
use composefs::tree::RegularFile;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn make(at: &Path, mode: u32) {
    fs::create_dir_all(at.join("bin")).unwrap();
    for (name, byte) in [("bin/a", 1), ("bin/b", 2), ("bin/same-as-a", 1)] {
        fs::write(at.join(name), vec![byte; 5_000]).unwrap();
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let time = rustix::fs::Timespec { tv_sec: 7, tv_nsec: 8 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    for name in ["bin/a", "bin/b", "bin/same-as-a", "bin", "."] {
        rustix::fs::utimensat(rustix::fs::CWD, at.join(name), &times, rustix::fs::AtFlags::empty()).unwrap();
    }
}

#[test]
fn equal_trees_are_one_layer() {
    let trial = Trial::new();
    make(&trial.place("one"), 0o755);
    make(&trial.place("other"), 0o755);
    let one = trial.import("one");
    assert_eq!((one.new_objects, one.new_bytes), (2, 10_000));
    let other = trial.import("other");
    assert_eq!(other.layer, one.layer);
    assert_eq!(other.new_objects, 0);
    assert_eq!(trial.store.layers().unwrap(), [one.layer]);
}

#[test]
fn what_an_inode_carries_is_the_layers_and_content_is_shared() {
    let trial = Trial::new();
    make(&trial.place("one"), 0o755);
    make(&trial.place("other"), 0o700);
    let (one, other) = (trial.import("one"), trial.import("other"));
    assert_ne!(other.layer, one.layer);
    assert_eq!(other.new_objects, 0, "all that is new is an image");
    let usage = trial.store.usage().unwrap();
    assert_eq!(usage.objects, 4);
    assert!(usage.layers.iter().all(|layer| layer.own == 0 && layer.shared > 0 && layer.files == 3));
}

#[test]
fn equal_files_of_one_tree_stay_two() {
    let trial = Trial::new();
    make(&trial.place("tree"), 0o755);
    fs::hard_link(trial.place("tree/bin/a"), trial.place("tree/bin/link")).unwrap();
    let tree = image::read(&trial.store, &trial.import("tree").layer).unwrap();
    let mut links = tree.nlinks();
    links.sort_unstable();
    assert_eq!(links, [1, 1, 2]);
}

#[test]
fn files_taken_over_are_not_copied() {
    let trial = Trial::new();
    make(&trial.place("tree"), 0o4755);
    let inode = trial.place("tree/bin/b").metadata().unwrap().ino();
    let imported = trial.store.import(&trial.place("tree"), Taking::Over).unwrap();
    let tree = image::read(&trial.store, &imported.layer).unwrap();
    let objects = tree.leaves.iter().filter_map(|leaf| match &leaf.content {
        LeafContent::Regular(RegularFile::External(digest, _)) => Some(trial.store.object(digest)),
        _ => None,
    });
    assert!(objects.into_iter().any(|object| object.metadata().unwrap().ino() == inode));
    pando_kernel::file::tree_removal::remove_tree(&trial.place("tree")).unwrap();
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

#[test]
fn a_tree_that_is_too_deep_is_refused_by_name() {
    let trial = Trial::new();
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 600).collect();
    fs::create_dir_all(trial.place("tree").join(deep)).unwrap();
    let refused = trial.store.import(&trial.place("tree"), Taking::Copy).unwrap_err();
    assert!(matches!(&refused, ImportError::Unfit { path, .. } if path.starts_with("d/d/d")), "{refused}");
    assert_eq!(trial.store.layers().unwrap(), []);
    assert_eq!(fs::read_dir(trial.store.staging()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_tree_that_did_not_change_is_not_read_again() {
    let trial = Trial::new();
    make(&trial.place("tree"), 0o755);
    // Files that were just made are not trusted yet.
    std::thread::sleep(std::time::Duration::from_millis(3_100));
    let first = trial.import("tree");
    drop(first.lease);
    let object = |byte: u8| {
        let objects =
            fs::read_dir(trial.store.objects()).unwrap().flat_map(|at| fs::read_dir(at.unwrap().path()).unwrap());
        let mut paths = objects.map(|object| object.unwrap().path());
        paths.find(|path| fs::read(path).unwrap() == vec![byte; 5_000])
    };
    // What has the digest is not the file any more, which only a reader of it would notice.
    fs::write(object(1).unwrap(), vec![7; 5_000]).unwrap();
    assert_eq!(trial.import("tree").layer, first.layer);
    assert!(object(1).is_none(), "it was read again");
    // But what the store has lost is read again, and so is what changed.
    fs::remove_file(object(2).unwrap()).unwrap();
    fs::write(trial.place("tree/bin/a"), vec![3; 5_000]).unwrap();
    assert_ne!(trial.import("tree").layer, first.layer);
    assert!(object(2).is_some() && object(3).is_some());
}

#[test]
fn it_is_told_how_far_an_import_is() {
    let trial = Trial::new();
    let tree = trial.place("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..20_u8 {
        fs::write(tree.join(number.to_string()), vec![number; 1 << 20]).unwrap();
    }
    let told = std::sync::Mutex::new(Vec::new());
    trial.store.import_telling(&tree, Taking::Copy, &|bytes| told.lock().unwrap().push(bytes)).unwrap();
    let mut told = told.into_inner().unwrap();
    told.sort_unstable();
    assert_eq!(told, [8 << 20, 16 << 20]);
}
