//! Transactions on each kind of file system that a mount can have: committed, they leave what was done in them;
//! aborted, nothing; what others changed is found.

use crate::case::{Case, Tag, skip};
use crate::disorder;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use pando_kernel::cgroup::Hierarchies;
use std::path::PathBuf;

const TMPFS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];
const EXT4: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("mkfs.ext4", "e2fsprogs")];
const XFS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("mkfs.xfs", "xfsprogs")];
const BINDFS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("bindfs", "bindfs")];
const BTRFS: &[Need] =
    &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("mkfs.btrfs", "btrfs-progs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_filesystems::a_server_that_does_not_answer_holds_nothing_up", without_answer).needs(BINDFS),
    Case::new("tx_filesystems::ext4", |sandbox| commits(sandbox, "mkfs.ext4 -q disk", "-o loop disk")).needs(EXT4),
    Case::new("tx_filesystems::ext4_of_small_inodes", |sandbox| commits(sandbox, SMALL_INODES, "-o loop disk"))
        .needs(EXT4),
    Case::new("tx_filesystems::xfs", |sandbox| commits(sandbox, "mkfs.xfs -q disk", "-o loop disk")).needs(XFS),
    Case::new("tx_filesystems::btrfs", |sandbox| commits(sandbox, "mkfs.btrfs -q disk", "-o loop disk")).needs(BTRFS),
    Case::new("tx_filesystems::tmpfs", |sandbox| commits(sandbox, "true", "-t tmpfs none")).needs(TMPFS),
    Case::new("tx_filesystems::a_full_one_is_read_only_inside", full).needs(EXT4),
    Case::new("tx_filesystems::what_lies_in_another_subvolume_is_refused_as_a_whole", subvolume).needs(BTRFS),
    Case::new("tx_filesystems::a_read_only_subvolume_is_left_alone", read_only_subvolume).needs(BTRFS),
    Case::new("tx_filesystems::what_lies_in_another_project_is_refused_as_a_whole", project).needs(XFS),
    Case::new("tx_filesystems::a_programs_is_read_only_inside", of_a_program).needs(BINDFS),
    Case::new("tx_filesystems::one_that_others_unmount_is_a_conflict", unmounted).needs(EXT4),
    Case::new("tx_filesystems::changes_larger_than_memory", larger_than_memory).tags(&[Tag::Slow]).needs(EXT4),
    Case::new("tx_filesystems::what_is_written_to_the_disk_at_once_is_written_as_usual_afterwards", written_through)
        .needs(EXT4),
    Case::new("tx_filesystems::changes_larger_than_a_guests_memory", larger_than_a_guests).tags(&[Tag::Slow]),
    Case::new("tx_filesystems::what_was_read_before_memory_ran_short_is_validated", forgotten_in_a_guest)
        .tags(&[Tag::Slow]),
];

/// How an ext4 is made as one that was ext3 is.
const SMALL_INODES: &str = "mkfs.ext4 -q -I 128 disk";

/// Bytes of a disk in a file; only what is written takes room.
const SIZE: &str = "400M";

/// What the scripts have: the file system at `at`, where nobody else sees it; `$TX` is `pando tx` with its state
/// outside of that, or with the argument `there` on it; `gone` unmounts, once what is deleted behind the end of a
/// transaction is deleted: nothing of it may keep a file system busy for good.
fn script(sandbox: &Sandbox, format: &str, mount: &str, there: bool, text: &str) -> Ended {
    let all = format!(
        "mount --make-rprivate /; rm -f disk; truncate -s {SIZE} disk; {format} >&2; mkdir -p at; mount {mount} at; cd at; mkdir tree
         STATE=$ROOT; {}TX=\"$PANDO --root $STATE tx\"
         disorder() {{ $TESTS {} \"$@\"; }}
         gone() {{ for try in $(seq 300); do umount $1 2>/dev/null && return; sleep .1; done; umount $1; }}
         all() {{ disorder 1 0 tree; find tree -printf '%P %i %T@ %C@\\n' | sort; }}
         {text}",
        if there { "mkdir state; STATE=$PWD/state; " } else { "" },
        disorder::WORD
    );
    let line = Line::new("unshare").args(["-m", "bash", "-ec", &all]).directory(sandbox.scratch());
    let line = line.env("ROOT", sandbox.root()).env("PANDO", sandbox.program());
    line.env("TESTS", std::env::current_exe().expect("this program has a path")).limit(300).run()
}

/// On an ext4 that keeps whole seconds, as those that were ext3 do.
pub(super) fn on_small_inodes(sandbox: &Sandbox, text: &str) -> Ended {
    script(sandbox, SMALL_INODES, "-o loop disk", false, text)
}

/// Random changes of all kinds, with the state on the same file system and on another.
fn commits(sandbox: &Sandbox, format: &str, mount: &str) {
    for there in [false, true] {
        let ended = script(
            sandbox,
            format,
            mount,
            there,
            "for seed in 1 2 3 4; do
               rm -rf tree; mkdir tree; disorder $seed 80 tree >/dev/null; sleep .02
               all >../before; $TX run --retry 0 -- sh -c \"$TESTS --disorder 9$seed 60 tree >/dev/null; exit 3\" 2>../said || [ $? = 3 ]
               all | cmp - ../before
               $TX run --retry 0 -- $TESTS --disorder 7$seed 60 tree >../after; disorder 1 0 tree | diff ../after - >&2
             done
             echo old >file; seq 100000 >large; ln large alias; sleep .02; inode=$(stat -c %i large)
             $TX begin work; $TX enter work -- sh -c 'echo in >>file; echo x >made'; echo out >>file
             $TX commit work && exit 9; $TX abort work; cat file; [ ! -e made ]
             $TX run -- sh -c 'printf y | dd of=alias conv=notrunc status=none; cp /bin/sleep new; ./new 0; rm file'
             [ $inode = $(stat -c %i large) ] && head -c 1 large; cmp new /bin/sleep; ls .pando-tx 2>/dev/null || true; cd ..; gone at",
        );
        if ended.err().contains("unknown filesystem type") || ended.err().contains("failed to setup loop device") {
            skip(format!("it cannot be mounted here: {}", ended.err()));
        }
        assert_eq!(ended.succeeded().out(), "old\nout\ny");
    }
}

/// Where nothing can be kept of what would be changed there, nothing can be changed, and everything else can.
fn full(sandbox: &Sandbox) {
    let text = "head -c 500M /dev/zero >filler 2>/dev/null || true; mkdir ../beside
         $TX run -- sh -ec 'echo x >../beside/made; ! rm filler 2>/dev/null; ! touch made 2>/dev/null' 2>../said; cat ../said >&2
         [ -e ../beside/made ] && [ -e filler ] && rm filler; sleep .02; $TX run -- touch made; [ -e made ] && echo both; cd ..; gone at";
    let ended = script(sandbox, "mkfs.ext4 -q -m 0 disk", "-o loop disk", false, text).succeeded();
    ended.complains_of(&["read-only", "/at"]);
}

/// A file system whose server is there and stands still, as one of a machine that cannot be reached.
fn without_answer(sandbox: &Sandbox) {
    let script = "mount --make-rprivate /; mkdir -p source at; bindfs -f -o subtype=served source at >&2 & server=$!
        trap 'kill -KILL $server' EXIT; until grep -q \" $PWD/at \" /proc/self/mounts; do sleep 0.1; done; kill -STOP $server
        timeout -s KILL 100 $PANDO --root $ROOT tx run -- sh -c 'echo inside; echo more >new'";
    let line = Line::new("unshare").args(["-m", "bash", "-c", script]).directory(sandbox.scratch());
    let ended = line.env("ROOT", sandbox.root()).env("PANDO", sandbox.program()).limit(200).run();
    assert_eq!(ended.succeeded().complains_of(&["read-only inside", "/at"]).out(), "inside\n");
    assert!(sandbox.scratch().join("new").exists());
}

/// Where the kernel lets nothing be moved from the rest of the mount: `make` makes `other`, and a mount of its own
/// helps.
fn of_its_own(sandbox: &Sandbox, format: &str, make: &str, why: &str) {
    let text = format!(
        "{make}; mkdir other/d; echo old >other/file; echo old >file; all() {{ find . -mindepth 1 -path ./.pando-tx -prune -o -mindepth 1 -printf '%P %i %s %C@\\n' | sort; }}
         refused() {{ all >../before; $TX run --retry 0 -- sh -ec \"$1\" && exit 8; all | cmp - ../before; }}
         refused 'echo in >>file; echo x >other/new'; refused 'mkdir -p other/d/e/f'; refused 'echo in >file; mv file other/d'
         $TX run -q -- sh -ec 'echo in >>other/file; chmod 600 other/d'; cat other/file; stat -c %a other/d
         mount --bind other other; $TX run -q -- sh -ec 'echo x >other/new; rm other/file; mkdir other/e; touch other/e/f'; ls other other/e
         umount other; ls -A other; cd ..; gone at"
    );
    let ended = script(sandbox, format, "-o loop disk", false, &text);
    if ended.err().contains("unknown filesystem type") || ended.err().contains("failed to setup loop device") {
        skip(format!("it cannot be mounted here: {}", ended.err()));
    }
    let ended = ended.succeeded().complains_of(&["nothing was changed", why, "mount --bind"]);
    assert_eq!(ended.out(), "old\nin\n600\nother:\nd\ne\nnew\n\nother/e:\nf\nd\ne\nnew\n");
}

fn subvolume(sandbox: &Sandbox) {
    of_its_own(sandbox, "mkfs.btrfs -q disk", "btrfs subvolume create other >&2", "at/other lies in another subvolume");
}

/// The kernel asks nobody below an overlay whether what it lies on can be written.
fn read_only_subvolume(sandbox: &Sandbox) {
    let text = "btrfs subvolume create own >&2; echo old >own/file; mkdir own/d; btrfs subvolume snapshot -r own kept >&2; sleep .02; echo old >file
         refused() { $TX run --retry 0 -- sh -ec \"$1\" && exit 8; cat file kept/file; ls kept; [ ! -e new ]; }
         refused 'chmod 600 kept/file; echo in >>file; touch new'; refused 'chmod 700 kept; touch new'; refused 'echo in >>kept/file; touch new'; refused 'touch new kept/new'
         cd ..; gone at";
    let ended = script(sandbox, "mkfs.btrfs -q disk", "-o loop disk", false, text);
    if ended.err().contains("unknown filesystem type") || ended.err().contains("failed to setup loop device") {
        skip(format!("it cannot be mounted here: {}", ended.err()));
    }
    assert_eq!(ended.succeeded().complains_of(&["read-only"]).out(), "old\nold\nd\nfile\n".repeat(4));
}

fn project(sandbox: &Sandbox) {
    let make = "mkdir other; xfs_io -c 'chproj 7' -c 'chattr +P' other";
    of_its_own(sandbox, "mkfs.xfs -q disk", make, "at/other lies in another project");
}

/// What a program serves by FUSE, under a name of its own, as nearly all do.
fn of_a_program(sandbox: &Sandbox) {
    let script = "mount --make-rprivate /; mkdir -p source at; echo old >source/file; bindfs -o subtype=served source at; ls -A source >before
         TX=\"$PANDO --root $ROOT tx\"; $TX run -- sh -ec 'cat at/file; ! echo x >at/made; echo x >made' 2>said || { cat said >&2; umount at; exit 9; }
         ls -A source | cmp - before; ls source made; cat said >&2; umount at";
    let line = Line::new("unshare").args(["-m", "bash", "-ec", script]).directory(sandbox.scratch());
    let ended = line.env("ROOT", sandbox.root()).env("PANDO", sandbox.program()).run();
    if ended.err().contains("/dev/fuse") || ended.err().contains("fuse: device not found") {
        skip(format!("it cannot be mounted here: {}", ended.err()));
    }
    let ended = ended.succeeded().complains_of(&["committed: 1 path", "read-only inside:", "/at"]);
    assert_eq!(ended.out(), "old\nmade\n\nsource:\nfile\n");
}

/// What was changed on it is on it still, and nowhere else.
fn unmounted(sandbox: &Sandbox) {
    let text = "mkdir ../beside; $TX begin work; $TX enter work -- touch new ../beside/made; cd ..; umount -l at
         $TX commit work && exit 9; $TX abort work; [ ! -e beside/made ] && $TX run -- touch beside/made; ls at beside";
    let ended = script(sandbox, "mkfs.ext4 -q disk", "-o loop disk", false, text).succeeded();
    assert_eq!(ended.complains_of(&["/at was unmounted by others"]).out(), "at:\n\nbeside:\nmade\n");
}

/// Bytes of memory, and MiB of what is new and of what is changed.
const MEMORY: u64 = 48 << 20;
const LARGE: u64 = 160;

/// A group of version 1 with that much memory. One of version 2 would not do on the host: a transaction's processes are
/// in a group of their own there.
pub(super) struct Small(pub(super) PathBuf);

impl Small {
    pub(super) fn make() -> Self {
        let legacy = Hierarchies::detect().expect("there are control groups").legacy;
        let Some((root, _)) = legacy.iter().find(|(_, held)| held.iter().any(|name| name == "memory")) else {
            skip("there is no memory controller of cgroup version 1");
        };
        let path = root.join(format!("pando-test-memory-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a group can be made");
        std::fs::write(path.join("memory.limit_in_bytes"), MEMORY.to_string()).expect("it can be limited");
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // A process that has ended leaves its group a little later.
        crate::patience::comes_true(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

/// A new file, and one changed in place: either is three times the memory of everybody who takes part.
const CHANGES: &str = "tr '\\0' n </dev/zero | dd of=new bs=1024k count=$LARGE iflag=fullblock status=none; printf y | dd of=old conv=notrunc bs=1 seek=100000000 status=none; echo more >>old";

fn larger_than_memory(sandbox: &Sandbox) {
    let group = Small::make();
    let text = format!(
        "export LARGE={LARGE}; tr '\\0' o </dev/zero | dd of=old bs=1024k count=$LARGE iflag=fullblock status=none; cp old expected; sync -f .; echo $$ >{}/cgroup.procs
         (mkdir beside; cd beside; mv ../expected old; {CHANGES}); inode=$(stat -c %i old)
         $TX run -- bash -ec '{}'
         cmp old beside/old; cmp new beside/new; [ $inode = $(stat -c %i old) ] && echo same",
        group.0.display(),
        CHANGES.replace('\'', "\""),
    );
    let ended = script(sandbox, "truncate -s 1500M disk; mkfs.ext4 -q -F disk", "-o loop disk", true, &text);
    assert_eq!(ended.succeeded().out(), "same\n");
}

/// Others have the kernel forget what the first run has read, once it has written; a group says that it is done.
fn written_through(sandbox: &Sandbox) {
    let group = Small::make();
    let at_once = "lsattr -d new new/inner new/inner/file | grep -c \"^[-a-zA-Z]*S\" || true";
    let text = format!(
        "echo old >file; export G={}
         forget() {{ for pass in $(seq 600); do ls /proc/[0-9]*/root$PWD/new/inner/file >found 2>/dev/null || true
             if [ -s found ]; then echo 0 >$G/memory.force_empty; mkdir $G/once; return; fi; sleep 0.1; done; }}
         (cd .; exec >/dev/null 2>&1; forget) &
         echo $BASHPID >$G/cgroup.procs
         $TX run -- bash -ec 'mkdir -p new/inner; echo more >>file; first=; [ -d $G/once ] || first=yes; echo new >new/inner/file
             if [ $first ]; then until [ -d $G/once ]; do sleep 0.1; done; else ({at_once}) >at_once; fi'
         rmdir $G/once; cat at_once file new/inner/file; {at_once}; stat -c %h new",
        group.0.display(),
    );
    let ended = script(sandbox, "mkfs.ext4 -q disk", "-o loop disk", false, &text).succeeded();
    let ended = ended.complains_of(&[
        "was forgotten by the kernel",
        "each write to the disk at once (1 of 3)",
        "committed: 5 paths",
    ]);
    assert_eq!(ended.out(), "3\nold\nmore\nnew\n0\n3\n");
}

fn larger_than_a_guests(sandbox: &Sandbox) {
    sandbox.guest("g", &["--memory", "48M"]);
    let changes = CHANGES.replace("$LARGE", &LARGE.to_string());
    let make = format!(
        "cd /srv; tr '\\0' o </dev/zero | dd of=old bs=1024k count={LARGE} iflag=fullblock status=none; mkdir beside; cp old beside; cd beside; {changes}"
    );
    sandbox.exec_sh("g", &make).limit(300).ok();
    let script = format!("cd /srv; {changes}");
    let line = sandbox.pando(["tx", "run", "--guest", "g", "--retry", "0", "--", "sh", "-ec", &script]);
    line.limit(300).run().succeeded().complains_of(&["committed"]);
    sandbox.exec_sh("g", "cd /srv; cmp old beside/old && cmp new beside/new").limit(300).ok();
}

/// The kernel forgets the names that a transaction has looked up where memory runs short.
fn forgotten_in_a_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &["--memory", "48M"]);
    sandbox.exec_sh("g", "cd /srv; echo old >read; mkdir names; for n in $(seq 300); do echo $n >names/$n; done").ok();
    let script = format!(
        "cd /srv; cat read names/* >/dev/null; for round in 1 2 3; do dd if=/dev/zero of=new bs=1024k count={LARGE} 2>/dev/null; cat new >/dev/null; done; echo >ready; read line || true"
    );
    let line = sandbox.pando(["tx", "run", "--guest", "g", "--retry", "0", "--no-durable", "--", "sh", "-ec", &script]);
    let started = line.limit(300).start_with_open_input();
    let at = sandbox.places().guests().join("g/tx");
    let is_ready = || !Line::new("find").args([&at]).args(["-name", "ready"]).run().out().is_empty();
    let begun = std::time::Instant::now();
    while !is_ready() && begun.elapsed() < crate::patience::seconds(200) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    sandbox.exec_sh("g", "echo new >/srv/read").ok();
    // Either it is known that it was read, or that this is not known; a run alone follows.
    let ended = started.close_input().wait().succeeded();
    let err = ended.err();
    assert!(err.contains("/srv/read was changed by others") || err.contains("was forgotten by the kernel"), "{err}");
}
