//! Only what nobody uses goes.

use super::Trial;
use crate::{LayerId, StoreError};
use std::collections::HashSet;
use std::fs;

/// Two trees that share one file and have one each of their own.
fn two_layers(trial: &Trial) -> [LayerId; 2] {
    ["one", "other"].map(|name| {
        fs::create_dir(trial.place(name)).unwrap();
        fs::write(trial.place(name).join("shared"), vec![1; 3_000]).unwrap();
        fs::write(trial.place(name).join("own"), name.repeat(1_000)).unwrap();
        trial.import(name).layer
    })
}

#[test]
fn an_unused_layer_goes_with_what_only_it_had() {
    let trial = Trial::new();
    let [one, other] = two_layers(&trial);
    let collected = trial.store.exclusive().unwrap().collect(&HashSet::from([other])).unwrap();
    assert_eq!((collected.layers, collected.objects), (1, 2), "an image and a content");
    assert!(!trial.store.has(&one));
    assert!(trial.store.has(&other));
    let verified = trial.store.verify().unwrap();
    assert_eq!((verified.objects, verified.layers, verified.damages), (3, 1, vec![]));
    assert_eq!(trial.store.exclusive().unwrap().collect(&HashSet::from([other])).unwrap(), Default::default());
}

#[test]
fn what_was_collected_can_be_imported_again() {
    let trial = Trial::new();
    let [one, _] = two_layers(&trial);
    trial.store.exclusive().unwrap().collect(&HashSet::new()).unwrap();
    assert_eq!(trial.store.layers().unwrap(), []);
    assert_eq!(trial.import("one").layer, one);
    assert_eq!(trial.store.verify().unwrap().damages, []);
}

#[test]
fn a_new_layer_is_safe_while_its_lease_is_held() {
    let trial = Trial::new();
    fs::create_dir(trial.place("tree")).unwrap();
    let imported = trial.import("tree");
    assert!(matches!(trial.store.exclusive(), Err(StoreError::Busy)));
    drop(imported.lease);
    assert!(trial.store.exclusive().is_ok());
}

#[test]
fn nothing_is_collected_while_a_used_image_is_damaged() {
    let trial = Trial::new();
    let [one, other] = two_layers(&trial);
    let image = trial.store.image(&one);
    let mut bytes = fs::read(&image).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&image, bytes).unwrap();
    let refused = trial.store.exclusive().unwrap().collect(&HashSet::from([one])).unwrap_err();
    assert!(refused.to_string().contains("damaged"), "{refused}");
    assert!(trial.store.has(&other), "nothing was removed");
}

#[test]
fn what_a_crash_left_staged_goes() {
    let trial = Trial::new();
    fs::create_dir(trial.store.staging().join("left")).unwrap();
    fs::write(trial.store.staging().join("left/half"), "half").unwrap();
    trial.store.exclusive().unwrap().collect(&HashSet::new()).unwrap();
    assert_eq!(fs::read_dir(trial.store.staging()).unwrap().count(), 0);
}
