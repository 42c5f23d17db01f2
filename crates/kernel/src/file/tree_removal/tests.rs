use super::*;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::process::Command;

fn done(command: &str, path: &Path, more: &[&Path]) -> bool {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).arg(path).args(more).status().unwrap().success()
}

/// A mount that goes with this.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn bind(from: &Path, at: &Path) -> Option<Self> {
        done("mount --bind", from, &[at]).then(|| Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(done("umount", &self.0, &[]));
    }
}

#[test]
fn a_tree_goes_and_what_its_links_lead_to_stays() {
    let place = tempfile::tempdir().unwrap();
    let (tree, kept) = (place.path().join("tree"), place.path().join("kept"));
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    fs::write(tree.join("a/file"), "").unwrap();
    symlink(&kept, tree.join("a/link")).unwrap();
    symlink(&kept, place.path().join("link")).unwrap();
    remove_tree(&tree).unwrap();
    remove_tree(&place.path().join("link")).unwrap();
    let names: Vec<_> = place.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["kept"]);
    assert!(kept.join("file").exists());
    let missing = io::Error::from(remove_tree(&tree).unwrap_err());
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(remove_tree(Path::new("/")).is_err());
}

#[test]
fn a_link_is_not_emptied() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("kept/in")).unwrap();
    symlink("kept", place.path().join("link")).unwrap();
    assert!(empty_directory(&place.path().join("link")).is_err());
    assert!(place.path().join("kept/in").exists());
    empty_directory(&place.path().join("kept")).unwrap();
    assert!(!place.path().join("kept/in").exists() && place.path().join("kept").exists());
}

#[test]
fn more_directories_than_are_noted_at_a_time_and_deeper_ones_than_stay_open() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (0..9000).for_each(|number| fs::create_dir(tree.join(number.to_string())).unwrap());
    fs::create_dir_all(tree.join("deep").join("d/".repeat(300))).unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn what_is_mounted_stays_and_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (tree, theirs) = (place.path().join("tree"), place.path().join("theirs"));
    let make = || {
        fs::create_dir_all(tree.join("a/on")).unwrap();
        fs::write(tree.join("a/file"), "").unwrap();
    };
    make();
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("kept"), "").unwrap();
    nothing_is_mounted_in(&tree, &[]).unwrap();
    nothing_is_mounted_in(&place.path().join("missing"), &[]).unwrap();
    let kept = theirs.join("kept");
    for (from, on) in [(&theirs, tree.join("a/on")), (&kept, tree.join("a/file")), (&theirs, tree.clone())] {
        make();
        let Some(_mounted) = Mounted::bind(from, &on) else {
            eprintln!("skipped: what_is_mounted_stays_and_is_named needs to mount");
            return;
        };
        let at = on.canonicalize().unwrap();
        let emptied = if on == tree { remove_tree(&tree) } else { empty_directory(&tree) };
        for refused in [remove_tree(&tree), emptied, nothing_is_mounted_in(&tree, &[])] {
            let Err(RemovalError::Mounted { at: named, of }) = &refused else { panic!("{refused:?}") };
            assert_eq!(*named, at);
            assert!(of.contains("theirs"), "{of}");
        }
        let said = io::Error::from(remove_tree(&tree).unwrap_err());
        assert_eq!(said.kind(), io::ErrorKind::CrossesDevices);
        assert!(said.to_string().contains("Unmount it first"), "{said}");
        assert!(theirs.join("kept").exists());
        nothing_is_mounted_in(&tree, &[&on]).unwrap();
    }
    remove_tree(&tree).unwrap();
}

#[test]
fn what_is_protected_stays_or_goes_as_one_asks() {
    let place = tempfile::tempdir().unwrap();
    let (tree, other) = (place.path().join("tree"), place.path().join("other"));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/file"), "").unwrap();
    fs::write(tree.join("a/linked"), "").unwrap();
    fs::hard_link(tree.join("a/linked"), &other).unwrap();
    let protect = |path: &str| done("chattr +i", &tree.join(path), &[]);
    if !["a/file", "a/linked", "a/b", "a"].into_iter().all(protect) {
        eprintln!("skipped: what_is_protected_stays_or_goes_as_one_asks needs chattr");
        return;
    }
    let refused = io::Error::from(remove_tree(&tree).unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    remove_tree_with(&tree, Protected::Go).unwrap();
    assert!(!tree.exists());
    assert!(fs::write(&other, "changed").is_err(), "its other name is protected still");
    assert!(done("chattr -i", &other, &[]));
}
