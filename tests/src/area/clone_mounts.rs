//! What a guest has mounted itself, unmounted and remounted: a clone has it again, with who hears of it; what it cannot
//! have is named before anybody is stopped.

use crate::case::Case;
use crate::need::Need;
use crate::own_init::scripted;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::process::Command;

const ROOT: &[Need] = &[Need::Root];
const MOUNTS: &[Need] = &[Need::Root, Need::Program("mount", "util-linux"), Need::Program("umount", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_mounts::what_a_guest_mounts_is_mounted_in_clones", mounted_in_clones).needs(ROOT),
    Case::new("clone_mounts::what_an_init_mounts_too", mounted_by_an_init).needs(ROOT),
    Case::new("clone_mounts::who_hears_of_it_hears_of_it_in_clones", who_hears_of_it).needs(ROOT),
    Case::new("clone_mounts::what_a_clone_could_not_mount_is_refused", refused).needs(ROOT),
    Case::new("clone_mounts::a_guest_that_mounts_nothing_is_as_it_was", nothing_mounted).needs(ROOT),
    Case::new("clone_mounts::volumes_have_what_is_mounted_below", volumes_below).needs(MOUNTS),
];

/// Of all kinds, one over the other.
const MOUNTING: &str = "
    mkdir -p /from/deep /onto /over /point; echo bound >/from/word; echo covered >/over/word; echo file >/onefile; touch /onto-file
    mount -t tmpfs -o size=1m,mode=0751 held /mnt; echo held >/mnt/word; mkdir /mnt/inner; chown 7:8 /mnt/word
    mount -t tmpfs inner /mnt/inner; echo inner >/mnt/inner/word
    mount --bind /from /onto; mount --bind /onefile /onto-file; mount -o remount,bind,ro,nosuid /onto
    mount -t tmpfs upper /over; echo upper >/over/word
    mount --bind /mnt/inner /point; mount --bind /from /dev/shm; mount --bind /from /point
    mount --bind /onefile /proc/uptime; umount /dev/mqueue; mount -o remount,bind,noexec /dev/pts
    mount -t tmpfs sealed /srv; echo sealed >/srv/word; mount -o remount,ro,bind /srv";

/// What there is, and what is to be read there. Slots and what is of the daemon's own differ; a file system that is
/// covered where it is mounted once more is not there.
const LOOK: &str = "cut -d' ' -f 4- /proc/1/mountinfo | grep -v -e '/run/pando/' -e '^/ /point ' |
    sed 's/[ug]id=[0-9]*//g; s/,,*/,/g; s/overlay [^ ]* .*/overlay/; s/shared:[0-9]*/shared/; s/,$//' | sort
    cat /mnt/word /mnt/inner/word /onto/word /over/word /point/word /dev/shm/word /onto-file /proc/uptime /srv/word
    stat -c '%u %a' /mnt/word /mnt; (echo x >/onto/new) 2>&1 | grep -o Read-only; (echo x >/srv/new) 2>&1 | grep -o Read-only; ls /dev/mqueue";

#[track_caller]
fn inside(sandbox: &Sandbox, name: &str, script: &str) -> String {
    sandbox.exec_sh(name, script).ok().trim().to_owned()
}

/// A guest that may mount, of which a program of its own has done that.
fn guest(sandbox: &Sandbox, name: &str, mounting: &str, options: &[&str]) {
    let script = format!("mkdir -p /mnt\n{mounting}\ntouch /tmp/up; exec sleep 100000");
    sandbox.guest(name, &[&["--profile", "system"], options, &["--", "sh", "-ec", &script]].concat());
    eventually("it has mounted all", || sandbox.exec_sh(name, "test -e /tmp/up").run().code() == 0);
}

/// One from memory, one from the disk, one of a clone, and itself.
fn is_the_same_everywhere(sandbox: &Sandbox, look: &str) {
    let was = inside(sandbox, "source", look);
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    assert_eq!(inside(sandbox, "source", look), was, "the source");
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "two"]).ok();
    sandbox.pando(["freeze", "one", "warmer"]).ok();
    sandbox.pando(["clone", "warmer", "three"]).ok();
    sandbox.pando(["freeze", "source", "ended", "--stop"]).ok();
    sandbox.pando(["restore", "ended"]).ok();
    for name in ["one", "two", "three", "source"] {
        assert_eq!(inside(sandbox, name, look), was, "{name}");
    }
}

fn mounted_in_clones(sandbox: &Sandbox) {
    guest(sandbox, "source", MOUNTING, &[]);
    is_the_same_everywhere(sandbox, LOOK);
    // What is written is the clone's own, by whichever path.
    inside(sandbox, "one", "echo mine >/point/word; echo mine >/mnt/inner/word; umount /over");
    assert_eq!(inside(sandbox, "one", "cat /onto/word /dev/shm/word /over/word"), "mine\nmine\ncovered");
    assert_eq!(inside(sandbox, "source", "cat /onto/word /mnt/inner/word"), "bound\ninner");
}

fn mounted_by_an_init(sandbox: &Sandbox) {
    // A guest with an init shares what it mounts; binds that hear of each other are refused.
    scripted(sandbox, "source", &format!("mount --make-rprivate /; mkdir -p /mnt; {MOUNTING}; touch /tmp/up"));
    eventually("it has mounted all", || sandbox.exec_sh("source", "test -e /tmp/up").run().code() == 0);
    is_the_same_everywhere(sandbox, LOOK);
}

fn who_hears_of_it(sandbox: &Sandbox) {
    const SHARING: &str = "mkdir -p /a /b /c; mount -t tmpfs a /a; mount -t tmpfs b /b; mount -t tmpfs c /c
        mount --make-shared /a; mount --make-unbindable /b; mkdir /a/later /c/later
        unshare -m --propagation slave sh -c 'echo $$ >/apart; exec sleep 100001' &
        while ! grep -q sleep /proc/$(cat /apart)/comm; do sleep 0.05; done";
    guest(sandbox, "source", SHARING, &[]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    for name in ["source", "one"] {
        let groups =
            inside(sandbox, name, "grep -E ' /(a|b|c) ' /proc/1/mountinfo | cut -d' ' -f 5,7 | sed 's/:.*/:/' | sort");
        assert_eq!(groups, "/a shared:\n/b unbindable\n/c -", "{name}");
        inside(sandbox, name, "mount -t tmpfs later /a/later; mount -t tmpfs later /c/later");
        let heard = inside(sandbox, name, "cut -d' ' -f 5 /proc/$(cat /apart)/mountinfo | grep later");
        assert_eq!(heard, "/a/later", "{name}");
    }
}

fn refused(sandbox: &Sandbox) {
    const WAYS: [(&str, &str, &str); 6] = [
        ("mount -t devpts x /mnt", "a file system of its own (devpts on /mnt); unmount it", "umount /mnt"),
        (
            "mkdir /mnt/x; mount --bind /mnt/x /srv; rmdir /mnt/x",
            "files of the guest's own that were deleted (on /srv)",
            "umount /srv",
        ),
        (
            "mount -t tmpfs x /mnt; mount --bind /srv /mnt",
            "a file system of the guest's own that another covers (tmpfs on /mnt)",
            "umount /mnt; umount /mnt",
        ),
        (
            "mount --bind /bin /mnt; { /mnt/busybox sleep 100002 & echo $! >/pid; }",
            "a program or library of what the guest has mounted itself (/mnt/busybox)",
            "kill $(cat /pid); while grep -q busybox /proc/$(cat /pid)/comm; do sleep 0.05; done 2>/dev/null; umount /mnt",
        ),
        (
            "mount -t tmpfs x /mnt; mount --make-shared /mnt; mount --bind /mnt /srv",
            "that hears of what is mounted on another of the guest's (on /srv)",
            "umount /srv; umount /mnt",
        ),
        (
            "mkdir -p /x; mount -t tmpfs x /mnt; exec 7</mnt; mount -t tmpfs y /mnt",
            "that another covers (tmpfs on /mnt)",
            "umount /mnt; umount /mnt",
        ),
    ];
    guest(sandbox, "source", "", &[]);
    for (does, says, undoes) in WAYS {
        inside(sandbox, "source", &format!("{{ {does} ; }} >/dev/null 2>&1 </dev/null"));
        let before = inside(sandbox, "source", "cat /proc/1/mountinfo");
        let refused = sandbox.pando(["freeze", "source", "warm"]).run().ended_with(125);
        refused.complains_of(&["cannot be frozen: process ", says]);
        assert_eq!(inside(sandbox, "source", "cat /proc/1/mountinfo"), before);
        inside(sandbox, "source", undoes);
        eventually("without it the guest is frozen", || sandbox.pando(["freeze", "source", "warm"]).run().code() == 0);
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
}

/// Whatever guests are given is not taken for what they have mounted.
fn nothing_mounted(sandbox: &Sandbox) {
    let volume = sandbox.scratch().join("given");
    std::fs::create_dir_all(&volume).expect("a directory");
    let (plain, linked) = (format!("{}:/data", volume.display()), format!("{}:/link/data", volume.display()));
    let kinds: [&[&str]; 7] = [
        &[],
        &["--profile", "default", "--net", "none", "-m", "200M", "--cpus", "1"],
        &["--profile", "strict"],
        &["--userns", "host", "--net", "host"],
        &["-v", &plain, "--shm-size", "16M", "--net", "private"],
        &["-v", &linked],
        &["--net", "shared"],
    ];
    for (number, options) in kinds.iter().enumerate() {
        let name = format!("plain-{number}");
        sandbox.create(&name, options);
        std::os::unix::fs::symlink("srv", sandbox.scratch().join("link")).ok();
        sandbox.pando(["cp", &sandbox.scratch().join("link").to_string_lossy(), &format!("{name}:/link")]).run();
        sandbox.pando(["start", &name]).ok();
        let ended = sandbox.pando(["freeze", &name, "warm"]).run();
        assert_eq!(ended.code(), 0, "{options:?}: {}", ended.err());
        sandbox.pando(["image", "rm", "warm"]).ok();
        sandbox.pando(["rm", "--force", &name]).ok();
    }
}

/// A directory of the host with something mounted in it, which comes along with it, and what the guest mounts there.
fn volumes_below(sandbox: &Sandbox) {
    let volume = sandbox.scratch().join("volume");
    std::fs::create_dir_all(volume.join("deep/point")).expect("directories");
    std::fs::write(volume.join("word"), "outer\n").expect("a file");
    let deep = volume.join("deep");
    let _mounted = Mounted::tmpfs(&deep);
    std::fs::create_dir_all(deep.join("point")).expect("a directory");
    std::fs::write(deep.join("word"), "deep\n").expect("a file");
    let option = format!("{}:/data", volume.display());
    let mounting = "mount -t tmpfs own /data/deep/point; echo own >/data/deep/point/word; mkdir -p /seen; mount --bind /data/deep /seen";
    guest(sandbox, "source", mounting, &["-v", &option]);
    is_the_same_everywhere(
        sandbox,
        "cut -d' ' -f 4- /proc/1/mountinfo | grep -E '/(data|seen)' | sed 's/ [^ ]* - / - /; s/,*[ug]id=[0-9]*//g' | sort; cat /data/word /data/deep/word /data/deep/point/word /seen/word",
    );
    for name in ["one", "two", "three", "source"] {
        sandbox.pando(["rm", "--force", name]).ok();
    }
}

/// A file system in memory, mounted here until it is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(at: &std::path::Path) -> Self {
        let done = Command::new("mount").args(["-t", "tmpfs", "pando-test"]).arg(at).status().expect("mount runs");
        assert!(done.success(), "it can be mounted");
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
