//! Links that a guest swaps for directories while the host works in its files.

use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::PathBuf;

/// Swaps, as fast as it can, a directory for a link that leads to where its argument says; tells when it has begun.
const SWAPPER: &str = "mkdir -p /srv/real; : >/srv/begun; while :; do mv /srv/real /srv/d; rm -rf /srv/d; mkdir /srv/real; ln -s \"$0\" /srv/d; \
    rm -f /srv/d; done";

/// How often the host works in it. A control that has not been led astray by then proves nothing.
const TRIES: usize = 15;
const CONTROL_TRIES: usize = 200_000;

fn bait(sandbox: &Sandbox) -> PathBuf {
    let bait = sandbox.scratch().join("bait");
    std::fs::create_dir_all(&bait).expect("a directory");
    bait
}

fn names(path: &PathBuf) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(path).expect("it is there").flatten().map(|entry| entry.file_name()).collect()
}

fn swapping(sandbox: &Sandbox, name: &str, bait: &std::path::Path) {
    let target = bait.to_string_lossy().into_owned();
    sandbox.guest(name, &["--", "sh", "-c", SWAPPER, &target]);
    eventually("the guest swaps", || sandbox.exec_sh(name, "[ -e /srv/begun ]").run().code() == 0);
}

/// `cp` into a directory that is now and then a link to the host's.
pub(super) fn links_during_a_copy(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    swapping(sandbox, "web", &bait);
    let file = sandbox.scratch().join("sent");
    std::fs::write(&file, "sent").expect("a file");
    let file = file.to_string_lossy().into_owned();
    for _ in 0..TRIES {
        // It may fail: now and then there is no such directory.
        sandbox.pando(["cp", &file, "web:/srv/d/planted"]).run();
    }
    assert!(names(&bait).is_empty(), "the copy was led outside: {:?}", names(&bait));
    // The control: the same by whoever follows the guest's paths from outside.
    let path = sandbox.places().guests().join("web/files/upper/srv/d/planted");
    let astray = (0..CONTROL_TRIES).any(|_| std::fs::write(&path, "planted").is_ok() && !names(&bait).is_empty());
    assert!(astray, "nobody is led astray by this: it proves nothing");
}

/// A start while somebody swaps what it mounts over. Whoever does it needs to be inside; a guest that shares a volume
/// is.
pub(super) fn links_during_a_start(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    let shared = sandbox.scratch().join("shared");
    std::fs::create_dir_all(&shared).expect("a directory");
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    std::fs::create_dir_all(tree.join("srv")).expect("a directory");
    let (volume, target) = (format!("{}:/srv", tree.join("srv").display()), bait.to_string_lossy().into_owned());
    sandbox.guest("swapper", &["-v", &volume, "--", "sh", "-c", SWAPPER, &target]);
    eventually("the guest swaps", || tree.join("srv/begun").exists());
    let (tree_path, given) = (tree.to_string_lossy().into_owned(), format!("{}:/srv/d/new", shared.display()));
    let mut started = 0;
    for _ in 0..TRIES {
        let line = sandbox.pando(["run", "--from", &tree_path, "-v", &given, "--", "sh", "-c", "echo x >/srv/d/new/x"]);
        started += usize::from(line.run().code() == 0);
        assert!(names(&bait).is_empty(), "the start was led outside: {:?}", names(&bait));
    }
    assert!(started > 0, "no start got as far as to be led anywhere");
    // The control: making the same mount point by its path.
    let path = tree.join("srv/d/new");
    let astray = (0..CONTROL_TRIES).any(|_| std::fs::create_dir(&path).is_ok() && !names(&bait).is_empty());
    assert!(astray, "nobody is led astray by this: it proves nothing");
}

/// Directories, one of which is a link to where the argument says for a hundredth of a second, then the next. What was
/// changed in each is changed once more after that, so that whoever brings a copy up to date writes it anew.
const PULSES: &str = "cd /srv; n=0; while [ $n -lt 100 ]; do mkdir d$n; echo planted >d$n/planted; n=$((n+1)); done; : >begun; \
    while :; do n=0; while [ $n -lt 100 ]; do mv d$n e$n; ln -s \"$0\" d$n; usleep 10000; rm d$n; mv e$n d$n; echo planted >d$n/planted; \
    n=$((n+1)); done; done";

const FREEZES: usize = 6;

/// A freeze copies the guest's files while it runs, and once more what has changed by then.
pub(super) fn links_during_a_freeze(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    std::fs::write(bait.join("secret"), "the host's").expect("a file");
    let target = bait.to_string_lossy().into_owned();
    for profile in ["default", "strict"] {
        let name = format!("of-{profile}");
        sandbox.guest(&name, &["--profile", profile, "--", "sh", "-c", PULSES, &target]);
        eventually("the guest swaps", || sandbox.exec_sh(&name, "[ -e /srv/begun ]").run().code() == 0);
        for number in 0..FREEZES {
            let (image, clone) = (format!("{profile}-{number}"), format!("clone-{profile}-{number}"));
            sandbox.pando(["freeze", &name, &image]).ok();
            assert_eq!(names(&bait), ["secret"], "the freeze was led outside, and wrote there");
            sandbox.pando(["clone", &image, &clone]).ok();
            let read = sandbox.exec_sh(&clone, "cat /srv/d*/secret /srv/e*/secret").run();
            assert!(!read.out().contains("the host's"), "the freeze was led outside, and read there");
            let lacking = sandbox.exec_sh(
                &clone,
                "cd /srv; for i in d* e*; do [ -L $i ] || [ ! -d $i ] || [ -e $i/planted ] || echo $i; done",
            );
            assert_eq!(lacking.ok(), "", "files are missing in the clone");
            sandbox.pando(["rm", "--force", &clone]).ok();
        }
        sandbox.pando(["rm", "--force", &name]).ok();
    }
}
