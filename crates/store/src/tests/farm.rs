//! Hard-link farms share inodes between trees, and never within one.

use super::{Trial, is_root};
use crate::LayerId;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Two trees of which one file differs, with two equal files and a hard link in each.
fn farms(trial: &Trial) -> Vec<std::path::PathBuf> {
    let layers: Vec<LayerId> = ["one", "other"]
        .iter()
        .map(|name| {
            let at = trial.place(name);
            fs::create_dir(&at).unwrap();
            for file in ["a", "equal", "equal-too"] {
                fs::write(at.join(file), vec![9; 4_000]).unwrap();
            }
            fs::hard_link(at.join("a"), at.join("link")).unwrap();
            fs::write(at.join("own"), name.repeat(100)).unwrap();
            fs::set_permissions(at.join("equal"), fs::Permissions::from_mode(0o600)).unwrap();
            let time = rustix::fs::Timespec { tv_sec: 7, tv_nsec: 8 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            for file in ["a", "equal", "equal-too", "own"] {
                rustix::fs::utimensat(rustix::fs::CWD, at.join(file), &times, rustix::fs::AtFlags::empty()).unwrap();
            }
            trial.import(name).layer
        })
        .collect();
    layers.iter().map(|layer| trial.store.farm(layer).unwrap()).collect()
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

#[test]
fn inodes_are_shared_between_trees_and_not_within_one() {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    let farms = farms(&trial);
    for name in ["a", "equal", "equal-too"] {
        assert_eq!(inode(&farms[0].join(name)), inode(&farms[1].join(name)), "{name}");
    }
    assert_ne!(inode(&farms[0].join("own")), inode(&farms[1].join("own")));
    let within: HashSet<u64> =
        ["a", "equal", "equal-too", "own"].iter().map(|name| inode(&farms[0].join(name))).collect();
    assert_eq!(within.len(), 4, "no false hard links");
    assert_eq!(inode(&farms[0].join("a")), inode(&farms[0].join("link")), "true ones stay");
    // One of the first three is the object itself; the other two have twins.
    assert_eq!(fs::read_dir(trial.store.inodes()).unwrap().count(), 2);
}

#[test]
fn an_unused_farm_goes_with_its_inodes() {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    farms(&trial);
    trial.store.exclusive().unwrap().collect(&HashSet::new()).unwrap();
    assert_eq!(fs::read_dir(trial.store.farms()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(trial.store.inodes()).unwrap().count(), 0);
}

#[test]
fn an_inode_full_of_links_gets_a_twin() {
    if !is_root() {
        return;
    }
    let trial = Trial::new();
    let at = trial.place("tree");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("file"), vec![5; 1_000]).unwrap();
    let layer = trial.import("tree").layer;
    let object = fs::read_dir(trial.store.objects())
        .unwrap()
        .flat_map(|directory| fs::read_dir(directory.unwrap().path()).unwrap())
        .map(|object| object.unwrap().path())
        .find(|object| object.metadata().unwrap().len() == 1_000)
        .unwrap();
    fs::create_dir(trial.place("links")).unwrap();
    let most = 70_000;
    let full = (0..most).any(|number| fs::hard_link(&object, trial.place("links").join(number.to_string())).is_err());
    if !full {
        eprintln!("skipped: this file system allows more than {most} links");
        return;
    }
    let farm = trial.store.farm(&layer).unwrap();
    assert_ne!(inode(&farm.join("file")), inode(&object));
    assert_eq!(fs::read(farm.join("file")).unwrap(), vec![5; 1_000]);
}
