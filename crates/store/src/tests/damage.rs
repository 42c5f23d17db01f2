//! Damage is found, named and repaired.

use super::Trial;
use crate::{Imported, image};
use composefs::generic_tree::LeafContent;
use composefs::tree::RegularFile;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn imported(trial: &Trial) -> Imported {
    fs::create_dir_all(trial.place("tree/usr/lib")).unwrap();
    fs::write(trial.place("tree/usr/lib/libc.so"), vec![b'c'; 100_000]).unwrap();
    fs::write(trial.place("tree/usr/lib/libm.so"), vec![b'm'; 100_000]).unwrap();
    trial.import("tree")
}

/// The object that the file of the wanted first byte is.
fn object(trial: &Trial, imported: &Imported, first: u8) -> PathBuf {
    let tree = image::read(&trial.store, &imported.layer).unwrap();
    let objects = tree.leaves.iter().filter_map(|leaf| match &leaf.content {
        LeafContent::Regular(RegularFile::External(digest, _)) => Some(trial.store.object(digest)),
        _ => None,
    });
    objects.into_iter().find(|object| fs::read(object).unwrap()[0] == first).unwrap()
}

fn flip_a_bit(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_is_found_named_and_repaired() {
    let trial = Trial::new();
    let imported = imported(&trial);
    flip_a_bit(&object(&trial, &imported, b'm'), 77_777);
    let verified = trial.store.verify().unwrap();
    let [damage] = verified.damages.as_slice() else { panic!("{verified:?}") };
    assert_eq!(damage.files, [(imported.layer, PathBuf::from("/usr/lib/libm.so"))]);
    assert_eq!(trial.store.repair(&verified.damages, &[]).unwrap(), [], "there is no copy in the store");
    let repaired = trial.store.repair(&verified.damages, &[trial.place("tree")]).unwrap();
    assert_eq!(repaired[0].from, trial.place("tree/usr/lib/libm.so"));
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

#[test]
fn a_missing_object_is_found_named_and_repaired() {
    let trial = Trial::new();
    let imported = imported(&trial);
    fs::remove_file(object(&trial, &imported, b'c')).unwrap();
    let verified = trial.store.verify().unwrap();
    let [damage] = verified.damages.as_slice() else { panic!("{verified:?}") };
    assert_eq!(damage.what, "it is missing");
    assert_eq!(damage.files[0].1, Path::new("/usr/lib/libc.so"));
    trial.store.repair(&verified.damages, &[trial.place("tree")]).unwrap();
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

#[test]
fn a_damaged_image_is_found_and_repaired_from_a_copy() {
    let trial = Trial::new();
    let imported = imported(&trial);
    let image = trial.store.image(&imported.layer);
    fs::create_dir(trial.place("backup")).unwrap();
    fs::copy(&image, trial.place("backup/image")).unwrap();
    flip_a_bit(&image, 1_100);
    let verified = trial.store.verify().unwrap();
    assert_eq!(verified.damages.len(), 1, "{verified:?}");
    assert_eq!(verified.damages[0].object, imported.layer.to_string());
    trial.store.repair(&verified.damages, &[trial.place("backup")]).unwrap();
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

#[test]
fn an_import_replaces_an_object_that_was_cut_short() {
    let trial = Trial::new();
    let imported = imported(&trial);
    fs::write(object(&trial, &imported, b'c'), "short").unwrap();
    trial.import("tree");
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

/// A process that may write to the files of a tree changes them between two readings, and sets their times back. What
/// others get by the name of a content is that content.
#[test]
fn a_file_that_changes_while_it_is_read_poisons_nobody_elses() {
    const SIZES: [usize; 2] = [100_000, 700_000];
    let trial = Trial::new();
    let tree = trial.place("tree");
    fs::create_dir(&tree).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    let files: Vec<(fs::File, u64)> = (0..16)
        .map(|number| {
            let size = SIZES[number % 2];
            let path = tree.join(number.to_string());
            fs::write(&path, vec![number as u8; size]).unwrap();
            (fs::File::options().write(true).open(path).unwrap(), size as u64 - 1)
        })
        .collect();
    let over = AtomicBool::new(false);
    let mut imported = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (byte, (file, at)) in (0..2).flat_map(|byte| files.iter().map(move |file| (byte, file))) {
                    file.write_all_at(&[byte], *at).unwrap();
                    file.set_modified(time).unwrap();
                }
            }
        });
        for _ in 0..60 {
            imported += u32::from(trial.store.import(&tree, crate::Taking::Copy).is_ok());
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(trial.store.verify().unwrap().damages, [], "{imported} imports");
}
