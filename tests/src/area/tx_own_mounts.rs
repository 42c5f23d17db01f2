//! What a command mounts in a namespace of its own is the transaction's, but for what is in the live tree: a mount that
//! is read-only inside stays so, and the file system of a device that is in use is not had once more.

use crate::case::{Case, skip};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;

const UNSHARE: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("python3", "python3")];
const DISK: &[Need] = &[
    Need::Root,
    Need::Program("mkfs.ext4", "e2fsprogs"),
    Need::Program("findmnt", "util-linux"),
    Need::Program("python3", "python3"),
];

const LOOP: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs"), Need::Program("losetup", "util-linux")];
const BTRFS: &[Need] =
    &[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs"), Need::Program("losetup", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_own_mounts::what_is_read_only_inside_stays_so", read_only).needs(UNSHARE),
    Case::new("tx_own_mounts::a_device_in_use_is_not_mounted_once_more", device).needs(DISK),
    Case::new("tx_own_mounts::a_device_over_a_file_of_the_live_tree_is_not_mounted", over_a_live_file).needs(LOOP),
    Case::new("tx_own_mounts::a_second_device_of_btrfs_is_not_mounted", second_device).needs(BTRFS),
    Case::new("tx_own_mounts::a_file_of_its_own_is_mounted", own_file).needs(LOOP),
    Case::new("tx_own_mounts::what_it_mounts_itself_it_changes", own).needs(UNSHARE),
    Case::new("tx_own_mounts::a_handle_leads_to_no_live_file", by_a_handle).needs(UNSHARE),
    Case::new("tx_own_mounts::the_machines_own_file_systems_are_not_mounted", kernels_own).needs(UNSHARE),
    Case::new("tx_own_mounts::what_is_left_running_unlocks_no_mount", left_running).needs(UNSHARE),
];

/// Makes a mount writable by a call that has no word in the C library: open_tree_attr(2) with MOUNT_ATTR_RDONLY
/// cleared.
const OPEN_TREE_ATTR: &str = "import ctypes, struct, sys
attr = struct.pack('QQQQ', 0, 1, 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(467, -100, sys.argv[1].encode(), 0, attr, len(attr))
print(fd, ctypes.get_errno())";

/// Makes all mounts writable: mount_setattr(2) with AT_RECURSIVE, and MOUNT_ATTR_RDONLY cleared.
const RECURSIVE: &str = "import ctypes, struct, sys
attr = struct.pack('QQQQ', 0, 1, 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(442, -100, sys.argv[2].encode(), 0x8000, attr, len(attr)), ctypes.get_errno(), file=sys.stderr)";

/// Prints the handle of a file, in hexadecimal digits.
const NAME: &str = "import ctypes, struct, sys
room, mount = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136), ctypes.c_int()
ctypes.CDLL(None).name_to_handle_at(-100, sys.argv[1].encode(), room, ctypes.byref(mount), 0) and sys.exit(77)
print(room.raw[:8 + struct.unpack('I', room.raw[:4])[0]].hex())";

/// Opens what a handle names on the file system of a path, and reads it.
const HANDLE: &str = "import ctypes, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
got = ctypes.CDLL(None).open_by_handle_at(file, bytes.fromhex(sys.argv[2]), os.O_RDONLY)
print('read ' + os.read(got, 100).decode().strip() if got >= 0 else 'refused', flush=True)";

/// Mounts a device at a place by mount(2) itself: mount(8) finds out first what a path leads to.
const MOUNT_EXT4: &str = "python3 -c 'import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(ctypes.get_errno() if libc.mount(sys.argv[1].encode(), b\"/tmp/pando-there\", b\"ext4\", 0, None) else 0)'";

/// Runs a script in mounts that nobody else sees. `$TX` is `pando tx run`.
fn script(sandbox: &Sandbox, text: &str) -> String {
    let prologue = "set -u; mount --make-rprivate /; TX=\"$PANDO --root $ROOT tx run --retry 0\"\n";
    let line = Line::new("unshare").args(["-m", "bash", "-c", &format!("{prologue}{text}")]);
    let line = line.directory(sandbox.scratch()).env("ROOT", sandbox.root()).env("PANDO", sandbox.program());
    let ended =
        line.env("OTA", OPEN_TREE_ATTR).env("ALL", RECURSIVE).env("NAME", NAME).env("HANDLE", HANDLE).limit(180).run();
    if ended.code() == 77 {
        skip("no file system can be mounted here");
    }
    ended.succeeded().out()
}

/// A single file that is mounted: no overlay lies over it, so that it is read-only inside. Its path is as long and as
/// odd as one that only a program reads.
fn read_only(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "D=$PWD/$(printf %0200d 1)/$(printf %0200d 2)/$'na\nme'; mkdir -p \"$D\"; cd \"$D\"
         echo live >source; echo below >single; mount --bind source single || exit 77; S=$PWD/single
         try() { \"$@\" >>said 2>&1; cat source; echo live >source; }
         try $TX -- sh -c \"echo plain >'$S'\"
         try $TX -- unshare -m --propagation private sh -c \"mount -o remount,bind,rw '$S'; echo remounted >'$S'\"
         try $TX -- python3 -c \"import subprocess,sys; exec(sys.argv[2]); open(sys.argv[1], 'w').write('attr')\" \"$S\" \"$OTA\"
         try $TX -- unshare -m --propagation private python3 -c \"import sys; exec(sys.argv[2]); open(sys.argv[1], 'w').write('own')\" \"$S\" \"$OTA\"
         try $TX -- unshare -m --propagation private python3 -c \"import sys; exec(sys.argv[3]); open(sys.argv[1], 'w').write('all')\" \"$S\" / \"$ALL\"
         cat said >&2",
    );
    assert_eq!(told, "live\n".repeat(5));
}

/// What a handle leads to lies on the file system of a file that is mounted, and not below that.
fn by_a_handle(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "echo live >source; echo below >single; mount --bind source single || exit 77; S=$PWD/single; echo out >outside
         $TX -- python3 -c \"$HANDLE\" \"$S\" \"$(python3 -c \"$NAME\" outside)\" 2>>said
         $TX -- unshare -m --propagation private sh -c 'mkdir at; mount -t tmpfs x at; echo in >at/inside
             exec python3 -c \"$0\" at \"$(python3 -c \"$1\" at/inside)\"' \"$HANDLE\" \"$NAME\" 2>>said
         cat said >&2",
    );
    assert!(told.ends_with("read in\n") && !told.contains("read out"), "{told}");
}

/// What would make the machine another for everybody is not mounted anew.
fn kernels_own(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "for kind in binfmt_misc tracefs securityfs debugfs devtmpfs cgroup2 tmpfs; do
             $TX -- unshare -m --propagation private sh -c \"mkdir here; mount -t $kind x here && echo $kind\" 2>>said
         done; cat said >&2",
    );
    assert_eq!(told, "tmpfs\n");
}

/// A user makes what is read-only writable, and takes away what hides something, in mounts that are his own.
fn left_running(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "D=/dev/shm/pando-test-$$; mkdir $D; trap 'umount $D/ro; umount $D/hid; rm -r --one-file-system $D' EXIT
         mkdir -m 777 $D/rofs $D/ro $D/hid; echo hidden >$D/hid/secret; mkfifo -m 666 $D/go
         mount --bind $D/rofs $D/ro && mount -o remount,ro,bind $D/ro && mount -t tmpfs over $D/hid || exit 77
         LEFT=\"cd /; read line <$D/go; mount -o remount,bind,rw $D/ro; echo >$D/ro/x; umount $D/hid; cat $D/hid/secret; exec sleep 1\"
         nobody='setpriv --reuid=65534 --regid=65534 --clear-groups'
         $nobody unshare -Urm true || exit 77
         $TX --gate none -- sh -c \"cd /; $nobody unshare -Urm sh -c '$LEFT' </dev/null >/dev/null 2>&1 & sleep .5\" 2>said
         grep -c 'process.* ended' said; timeout 1 sh -c \"echo go >$D/go\"; sleep .5; ls $D/rofs",
    );
    assert_eq!(told, "1\n");
}

fn device(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 64, &["mkfs.ext4", "-q"], "");
    let at = disk.at.display();
    let source = Line::new("findmnt").args(["-no", "SOURCE"]).args([&disk.at]).ok();
    let (source, file) = (source.trim(), disk.at.join("file"));
    let name = source.trim_start_matches("/dev/");
    std::fs::write(&file, "live").expect("a file");
    for mount in [
        format!("mount {source} here"),
        format!("mount -t ext4 {source} here"),
        format!("mount -o remount,ro {at}; mount {source} here"),
        // The caller's directory, and the caller's descriptor, by the kernel's calls alone.
        format!("ln -s $PWD/here /tmp/pando-there; (cd /dev; {} /proc/self/cwd/{name})", MOUNT_EXT4),
        format!("ln -s $PWD/here /tmp/pando-there; {} /proc/thread-self/fd/9 9<{source}", MOUNT_EXT4),
        format!("ln -s {source} /tmp/pando-link; ln -s $PWD/here /tmp/pando-there; {} /tmp/pando-link", MOUNT_EXT4),
    ] {
        let command = format!("{mount}; echo once more >here/file; touch here/new; mount -o remount,ro here; exit 3");
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "unshare", "-m", "--propagation", "private"]);
        let ended = line.args(["sh", "-c", &format!("mkdir here; {command}")]).directory(&scratch).run();
        assert_ne!(ended.code(), 0, "{}", ended.err());
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "live", "{mount}: {}", ended.err());
        assert!(!disk.at.join("new").exists(), "{mount}");
        std::fs::write(disk.at.join("probe"), "writable").expect("the live file system can be written to");
    }
}

/// A file that a loop device lies over, attached outside: nobody has it mounted.
fn over_a_live_file(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "truncate -s 16M image; mkfs.ext4 -q image; D=$(losetup --show -f image) || exit 77; trap 'losetup -d $D' EXIT
         before=$(sha256sum <image)
         $TX -- unshare -m --propagation private sh -c \"mkdir here; mount $D here && echo leaked >here/f; exit 3\"
         sync image; [ \"$before\" = \"$(sha256sum <image)\" ] && echo same",
    );
    assert_eq!(told, "same\n");
}

/// btrfs over two devices: /proc names one of them.
fn second_device(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "truncate -s 200M one two; A=$(losetup --show -f one) && B=$(losetup --show -f two) || exit 77
         trap 'umount live 2>/dev/null; losetup -d $A $B' EXIT
         mkfs.btrfs -q -d raid1 -m raid1 $A $B >mkfs || exit 77; mkdir live; mount $A live || exit 77; echo live >live/file
         for device in $A $B; do
             $TX -- unshare -m --propagation private sh -c \"mkdir here; mount $device here && echo no >here/file; exit 3\"
             cat live/file
         done",
    );
    assert_eq!(told, "live\nlive\n");
}

/// A disk image that the command makes.
fn own_file(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "losetup -f >/dev/null || exit 77
         $TX -- unshare -m --propagation private sh -ec '
            truncate -s 16M image; mkfs.ext4 -q image; mkdir here; mount -o loop image here
            echo mine >here/f; umount here; mount -o loop,ro image here; cat here/f; umount here' || exit 1
         mkdir there; mount -o loop,ro image there && cat there/f; umount there",
    );
    assert_eq!(told, "mine\nmine\n");
}

/// Programs that make a place of their own go on doing so.
fn own(sandbox: &Sandbox) {
    let told = script(
        sandbox,
        "$TX -- unshare -m --propagation private sh -ec '
            mkdir own; mount -t tmpfs none own; echo 1 >own/f
            mount -o remount,ro own; mount -o remount,rw own; echo 2 >own/f
            mount --bind own own; mount -o remount,bind,ro own; mount -o remount,bind,rw own; cat own/f; echo kept >file' || exit 1
         cat file",
    );
    assert_eq!(told, "2\nkept\n");
}
