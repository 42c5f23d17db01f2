//! The host's files, without its secrets: on a root made for the test, and on this machine's own.

use super::{Heard, Place, Silent, is_root};
use crate::source::host::copy_root;
use crate::source::{HostFilter, Options, Source, Treatment, materialize};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

fn small_host(root: &Path) {
    for directory in
        ["etc/ssh", "root/.ssh", "home/ann/work", "tmp", "var/log/web", "var/lib/pando", "proc", "usr/bin", "usr/state"]
    {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let files = [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n"),
        ("etc/group", "root:x:0:\nadm:x:4:ann\n"),
        ("etc/shadow", "root:$6$secret:1:0:99999:7:::\nann:$6$secret:1:0:99999:7:::\n"),
        ("etc/shadow-", "root:$6$secret"),
        ("etc/gshadow", "root:$6$secret::\nadm:!::ann\n"),
        ("etc/machine-id", "0123456789abcdef"),
        ("etc/ssh/ssh_host_rsa_key", "secret"),
        ("etc/sudoers", "root ALL"),
        ("root/.ssh/id", "secret"),
        ("home/ann/work/a", "mine"),
        ("home/ann/diary", "secret"),
        ("var/log/web/access.log", "secret"),
        ("usr/state/x", "secret"),
        ("usr/bin/tool", "tool"),
        ("tmp/x", "secret"),
    ];
    for (path, content) in files {
        fs::write(root.join(path), content).unwrap();
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(root.join("etc/shadow"), fs::Permissions::from_mode(0o640)).unwrap();
}

fn every_file(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() { todo.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

#[test]
fn secrets_stay_and_accounts_are_locked() {
    let place = Place::new();
    let root = place.at("from");
    small_host(&root);
    let options = Options { leave_out: vec![PathBuf::from("/usr/state")], ..Options::default() };
    copy_root(&root.canonicalize().unwrap(), &place.target(), &options, &Silent).unwrap();
    let into = place.target();
    for file in every_file(&into) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("secret") && !text.contains("mine"), "{}", file.display());
    }
    let read = |path: &str| fs::read_to_string(into.join(path)).unwrap();
    assert_eq!(read("etc/shadow"), "root:!::0:99999:7:::\nann:!::0:99999:7:::\n");
    assert_eq!(read("etc/gshadow"), "root:!::\nadm:!::ann\n");
    assert_eq!(into.join("etc/shadow").metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(read("etc/machine-id"), "");
    assert_eq!(read("etc/sudoers"), "root ALL");
    assert_eq!(into.join("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    for directory in ["root", "home", "var/log/web", "var/lib/pando", "proc", "usr/state"] {
        assert_eq!(into.join(directory).read_dir().unwrap().count(), 0, "{directory}");
    }
}

#[test]
fn what_is_exposed_comes_along() {
    let place = Place::new();
    let root = place.at("from");
    small_host(&root);
    let expose = ["/home/ann/work", "/root/.ssh", "/etc/shadow"].map(PathBuf::from).to_vec();
    copy_root(&root.canonicalize().unwrap(), &place.target(), &Options { expose, ..Options::default() }, &Silent)
        .unwrap();
    let into = place.target();
    assert_eq!(fs::read_to_string(into.join("home/ann/work/a")).unwrap(), "mine");
    assert!(!into.join("home/ann/diary").exists());
    assert!(into.join("root/.ssh/id").exists());
    assert!(fs::read_to_string(into.join("etc/shadow")).unwrap().contains("secret"));
}

#[test]
fn this_machines_secrets_are_known() {
    let hidden = HostFilter::over(Path::new("/"), &[], &[]).hidden();
    let at = |path: &str| hidden.iter().find(|hidden| hidden.path == Path::new(path)).map(|hidden| hidden.treatment);
    assert_eq!(at("/tmp"), Some(Treatment::Hollow));
    assert_eq!(at("/proc"), Some(Treatment::Hollow));
    if Path::new("/etc/shadow").exists() {
        assert_eq!(at("/etc/shadow"), Some(Treatment::Locked));
    }
}

/// Gigabytes: only on request, with `--ignored`.
#[test]
#[ignore = "copies the whole root of this machine: run it with --ignored, TMPDIR on a disk with room"]
fn this_machine_is_copied() {
    if !is_root("this_machine_is_copied") {
        return;
    }
    let place = Place::new();
    let heard = Heard::default();
    let begun = std::time::Instant::now();
    let leave_out = vec![PathBuf::from("/work"), place.at(".")];
    let options = Options { leave_out, ..Options::default() };
    let summary = materialize(&Source::Host, &place.target(), &options, &heard).unwrap();
    eprintln!("{} files, {} MB in {:?}: {:?}", summary.files, summary.bytes >> 20, begun.elapsed(), summary.left);
    assert!(place.target().join("etc/passwd").exists());
    for empty in ["root", "home", "proc", "tmp", "work"] {
        let path = place.target().join(empty);
        assert!(!path.exists() || path.read_dir().unwrap().count() == 0, "{empty}");
    }
}
