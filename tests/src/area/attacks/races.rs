//! Links that a guest swaps for directories while the host works in its files.

use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, openat, renameat_with};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// Exchanges two names of a directory of a running guest's, again and again, while something is done: as another guest
/// does, or a user of the host, that has the directory open. Neither stands still when that guest does.
pub(in crate::area) fn exchanging(directory: &OwnedFd, names: [&str; 2], pauses: &[Duration], work: impl FnOnce()) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let exchanger = scope.spawn(|| {
            for pause in pauses.iter().cycle() {
                renameat_with(directory, names[0], directory, names[1], RenameFlags::EXCHANGE).expect("an exchange");
                std::thread::sleep(*pause);
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        {
            let _over = Over(&over);
            work();
        }
        exchanger.join().expect("it exchanges until the end");
    });
}

/// A directory of a running guest's, as one of its processes passes it to somebody.
pub(in crate::area) fn directory_of(sandbox: &Sandbox, guest: &str, path: &str) -> OwnedFd {
    let path = format!("/proc/{}/root/{path}", sandbox.first_process(guest));
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("it is there")
}

const IN_MEMORY: &str = "mkdir /dev/shm/d; echo its own, not a secret >/dev/shm/d/f; ln -s \"$0\" /dev/shm/d/l; : >/ready; \
    while :; do sleep 1; done";

/// A freeze copies what the guest has in memory while that stands still. Who has its directories open does not.
pub(super) fn links_in_memory_during_a_freeze(sandbox: &Sandbox) {
    let secret = bait(sandbox).join("secret");
    std::fs::write(&secret, "the host's own, of root alone").expect("a file");
    let target = secret.to_string_lossy().into_owned();
    sandbox.guest("web", &["--profile", "strict", "--", "sh", "-c", IN_MEMORY, &target]);
    eventually("its files are there", || sandbox.exec_sh("web", "[ -e /ready ]").run().code() == 0);
    let directory = directory_of(sandbox, "web", "dev/shm/d");
    let path = format!("/proc/{}/root/dev/shm/d/f", sandbox.first_process("web"));
    let pauses = [0, 2_900, 700, 1_900, 300].map(Duration::from_micros);
    let mut frozen = 0;
    exchanging(&directory, ["f", "l"], &pauses, || {
        for number in 0..2 * FREEZES {
            let (image, clone) = (format!("image-{number}"), format!("clone-{number}"));
            // It may fail: what was a file is a link by now.
            if sandbox.pando(["freeze", "web", &image, "--wait"]).limit(30).run().code() != 0 {
                continue;
            }
            frozen += 1;
            sandbox.pando(["clone", &image, &clone]).ok();
            // In a clone a link leads to where it does there.
            let read = sandbox.exec_sh(&clone, "cat /dev/shm/d/*").run();
            assert!(!read.out().contains("the host's"), "the freeze was led outside: {}", read.out());
            sandbox.pando(["rm", "--force", &clone]).ok();
        }
        // The control: whoever follows the guest's paths from outside.
        let astray = (0..CONTROL_TRIES).any(|_| std::fs::read_to_string(&path).is_ok_and(|text| text.contains("host")));
        assert!(astray, "nobody is led astray by this: it proves nothing");
    });
    assert!(frozen > 0, "no freeze got as far as to be led anywhere");
}

/// The same with a named pipe that nobody writes to.
pub(super) fn pipes_in_memory_during_a_freeze(sandbox: &Sandbox) {
    sandbox.guest("web", &["--profile", "strict", "--", "sh", "-c", IN_MEMORY, "/nowhere"]);
    eventually("its files are there", || sandbox.exec_sh("web", "[ -e /ready ]").run().code() == 0);
    let directory = directory_of(sandbox, "web", "dev/shm/d");
    mknodat(&directory, "p", FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a pipe");
    exchanging(&directory, ["f", "p"], &[Duration::ZERO, Duration::from_micros(300)], || {
        for number in 0..4 * FREEZES {
            // Whether or not it can be: it ends.
            sandbox.pando(["freeze", "web", &format!("image-{number}")]).limit(30).run();
        }
    });
    sandbox.pando(["freeze", "web", "last"]).ok();
}
