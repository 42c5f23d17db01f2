//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::bpf::task_records::{self, TaskRecords, Usual};
use crate::capture::{inotify, queues, sysv, user_spaces};
use crate::disk::image_file::{BODY, Kind, Opened};
use crate::disk::powers::Powers;
use crate::disk::save::Tree;
use crate::disk::{bounded, check};
use crate::example;
use crate::image::memory::USER_END;
use crate::image::{Image, aio};
use crate::inspect::machine::Machine;
use crate::inspect::mount_tree::MountTree;
use crate::inspect::proc_file::Lines;
use crate::inspect::{areas, credentials, descriptors, limits, posix_timers};
use crate::origin::{self, Origin};
use crate::restore::facts::Facts;
use crate::restore::plan;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Duration;

/// The most processors that any machine here has.
const PROCESSORS: u32 = 64;

/// The file `tree` of an image behind a checksum that is right: it is refused, or a script can be written from it, and
/// it says the same when it is written again.
pub fn tree(data: &[u8]) {
    let Ok(mut tree) = bounded::from_bytes::<Tree>(data, bounded::MOST) else { return };
    if check::check(&tree.image).is_err() {
        return;
    }
    let again = postcard::to_stdvec(&tree).expect("a vector takes everything");
    let again: Tree = postcard::from_bytes(&again).expect("it was written just now");
    assert_eq!(again.image, tree.image);
    // Compared with the length of a file before anything else is believed.
    if i64::try_from(origin::length(&tree.image)).is_err() {
        return;
    }
    let _ = (tree.machine.objection(&tree.machine), Powers::of(&tree.image));
    if aio::are_in(&tree.image) && aio::fit(&mut tree.image, PROCESSORS).is_err() {
        return;
    }
    let path = "/memory".to_owned();
    let old = Facts { origin: Origin::File { path, start: BODY }, ..Facts::default() };
    let new = Facts { taken: 7, moves_many: true, ids_chosen: true, ..old.clone() };
    for facts in [old, new] {
        if let Ok(script) = plan::script(&tree.image, &facts) {
            script.check_bounds();
        }
    }
}

/// Seeds for [`tree`]: an image that has one of nearly everything, and one of what is not the host's own.
pub fn trees() -> Vec<Vec<u8>> {
    let of = |image: Image| {
        let machine = Machine { kernel: "6.18".to_owned(), ..Machine::here().expect("this machine can be described") };
        let (files, pause, memory) = (Vec::new(), Duration::ZERO, origin::length(&image));
        postcard::to_stdvec(&Tree { machine, files, pause, memory, image }).expect("a vector takes everything")
    };
    let plain = example::image();
    let alone = Image { adopted: false, files: Vec::new(), ..Image::default() };
    vec![of(plain), of(alone)]
}

/// A file of an image, as a whole.
pub fn image_file(data: &[u8]) {
    let file = pando_kernel::memory::file::sealed("image_file", data, false).expect("a memory file");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
    for kind in [Kind::About, Kind::Tree, Kind::Memory, Kind::Chain] {
        let Ok(opened) = Opened::open(&path, kind) else { continue };
        assert_eq!(opened.length + BODY, data.len() as u64);
        if let Ok(body) = opened.body(1 << 20) {
            assert_eq!(body, &data[BODY as usize..]);
        }
    }
}

/// What a program in the kernel says of tasks.
pub fn task_records(data: &[u8]) {
    let (choice, records) = data.split_first().map_or((0, data), |(choice, rest)| (*choice, rest));
    let usual = Usual { domain: (choice & 1 != 0).then_some(usize::from(choice >> 1) % 8), ..Usual::default() };
    if let Ok(Some(told)) = TaskRecords::from_bytes(records, usual) {
        let _ = told.thread(1, u64::from(choice) << 12);
    }
    let _ = task_records::security_of(records, i32::from(choice));
}

/// What /proc says of processes: names of programs, files and mounts in it are any bytes that their owners chose.
pub fn proc_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(seen) = areas::parse(&text) {
        assert!(seen.iter().all(|seen| seen.area.end <= USER_END));
    }
    let _ = (limits::parse(&text), posix_timers::parse(&text), sysv::rows(&text), queues::parse(&text));
    let map = credentials::parse(&text);
    let _ = (credentials::inside(&map, 0), credentials::inside(&map, u32::MAX));
    let lines = Lines::parse(&text);
    let _ = (lines.number("Threads", 10), lines.words("Groups").count());
    let (mut locks, mut watches) = (0, 0);
    for line in text.lines() {
        locks += usize::from(line.starts_with("lock:"));
        watches += usize::from(inotify::line(line).is_some());
        let _ = user_spaces::range(line, &Ok);
    }
    assert!(descriptors::ranges(&text, "POSIX").len() <= locks && watches <= text.lines().count());
    let _ = descriptors::flock(&text);
    if let Some(tree) = MountTree::parse(&text) {
        for number in 0..tree.all().len() {
            let mount = tree.get(number);
            let _ = (tree.top(number), tree.place(&mount.path));
            let _ = tree.paths_to(&mount.device, &mount.root).count();
        }
    }
}

/// Seeds of a fuzzer for [`image_file`]: a whole file of each kind.
pub fn image_files() -> Vec<Vec<u8>> {
    vec![crate::disk::image_file::bytes_of(Kind::About, b"{}")]
}

/// Seeds of a fuzzer for [`proc_files`]: texts as /proc has them.
pub fn texts() -> Vec<Vec<u8>> {
    let mounts = "58 46 0:47 / / rw,nodev,relatime shared:3 - overlay deb rw\n60 58 0:70 /a /run/my\\040lock ro master:4 - tmpfs tmpfs rw\n";
    let maps = "10000-20000 rw-s 00000000 08:01 12     /a b (deleted)\nVmFlags: rd wr sh mr mw me ms\nProtectionKey: 1\n7ffe000-7fff000 r-xp 00000000 00:00 0 [vdso]\n";
    let timers = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/tid.2634\nClockID: 0\n";
    let info = "pos:\t0\nlock:\t1: POSIX  ADVISORY  WRITE 77 00:2f:1234 0 EOF\ninotify wd:2 ino:2e1 sdev:fe00000 mask:2 ignored_mask:0 fhandle-bytes:2 fhandle-type:1 f_handle:e102\n";
    let others = "Max open files            1024                 4096                 files\n 0 231072 65536\nThreads:\t3\nGroups:\t0 4\n";
    [mounts, maps, timers, info, others].map(|text| text.as_bytes().to_vec()).into()
}
