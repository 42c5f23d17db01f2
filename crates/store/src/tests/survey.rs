//! What several trees have in common is found, and what did not change is not read again.

use super::Trial;
use std::fs;
use std::path::PathBuf;

fn trees(trial: &Trial) -> Vec<PathBuf> {
    let make = |name: &str, files: &[(&str, u8)]| {
        let at = trial.place(name);
        fs::create_dir_all(at.join("sub")).unwrap();
        for (file, byte) in files {
            fs::write(at.join(file), vec![*byte; 8_192]).unwrap();
        }
        at
    };
    vec![
        make("one", &[("a", 1), ("sub/b", 2), ("twice", 3), ("sub/twice", 3)]),
        make("other", &[("a", 1), ("own", 4)]),
        make("third", &[("in-the-store", 9), ("own", 5)]),
    ]
}

#[test]
fn what_trees_have_in_common_is_found() {
    let trial = Trial::new();
    let trees = trees(&trial);
    fs::create_dir(trial.place("layer")).unwrap();
    fs::write(trial.place("layer/file"), vec![9; 8_192]).unwrap();
    trial.import("layer");
    let survey = trial.store.survey(&trees, &|_| ()).unwrap();
    assert_eq!((survey.files, survey.read), (8, 8));
    let worth: Vec<_> = survey.worth(&trial.store).iter().map(|one| (one.files, one.saves, one.rest)).collect();
    assert_eq!(worth, [(2, 8_192, 24_576), (1, 8_192, 8_192), (1, 8_192, 8_192)]);
}

#[test]
fn what_did_not_change_is_not_read_again() {
    let trial = Trial::new();
    let trees = trees(&trial);
    // Files that were just made are not trusted yet.
    std::thread::sleep(std::time::Duration::from_millis(3_100));
    assert_eq!(trial.store.survey(&trees, &|_| ()).unwrap().read, 8);
    let again = trial.store.survey(&trees, &|_| ()).unwrap();
    assert_eq!((again.files, again.read), (8, 0));
    fs::write(trees[0].join("a"), vec![7; 8_192]).unwrap();
    let third = trial.store.survey(&trees, &|_| ()).unwrap();
    assert_eq!((third.files, third.read), (8, 1));
    // What was written and not the digest of before counts.
    assert_eq!(third.worth(&trial.store)[1].files, 0);
}

#[test]
fn a_link_leads_nowhere() {
    let trial = Trial::new();
    let trees = trees(&trial);
    std::os::unix::fs::symlink(&trees[0], trees[1].join("link")).unwrap();
    assert_eq!(trial.store.survey(&trees[1..2], &|_| ()).unwrap().files, 2);
    assert_eq!(trial.store.survey(&[trial.place("gone")], &|_| ()).unwrap().files, 0);
}
