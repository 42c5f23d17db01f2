//! Archives that are small and ask for much: the daemon refuses them by name and lives on.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("hostile_archives::attributes_larger_than_any_file_system_keeps", long_attribute),
    Case::new("hostile_archives::a_great_many_empty_attributes", empty_attributes),
    Case::new("hostile_archives::one_directory_again_and_again", repeated),
    Case::new("hostile_archives::more_directories_than_are_kept", too_many),
    Case::new("hostile_archives::zeros_without_end", zeros).needs(&DISK),
    Case::new("hostile_archives::a_hollow_file_of_single_bytes", hollow).needs(&DISK),
    Case::new("hostile_archives::more_files_than_a_disk_has", files).needs(&DISK),
    Case::new("hostile_archives::a_layer_of_zeros", layer).needs(&DISK),
    Case::new("hostile_archives::an_export_of_zeros", export).needs(&DISK),
    Case::new("hostile_archives::a_file_written_over_for_ever", written_over).needs(&DISK),
    Case::new("hostile_archives::paths_that_nobody_can_open", long_paths),
    Case::new("hostile_archives::a_great_many_deep_paths", deep_paths),
    Case::new("hostile_archives::a_guests_file_without_end", endless_file).needs(&DISK),
    Case::new("hostile_archives::a_stream_of_zeros_into_a_guest", stream_in).needs(&DISK),
];

const DISK: [Need; 4] =
    [Need::Root, Need::Program("mkfs.ext4", "e2fsprogs"), Need::Program("zstd", "zstd"), Need::Program("tar", "tar")];

/// Without anything that root alone may take: then what is free is what others find free.
const EXT4: [&str; 6] = ["mkfs.ext4", "-q", "-m", "0", "-b", "4096"];

/// A header of a tar entry, of 512 bytes.
fn header(name: &str, kind: u8, size: usize) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000755\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000001\0");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A record of a pax header.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [format!(" {key}=").as_bytes(), value, b"\n"].concat();
    // The length of a record counts its own digits.
    let length = (rest.len()..).find(|length| length.to_string().len() + rest.len() == *length).expect("there is one");
    [length.to_string().as_bytes(), &rest].concat()
}

/// A directory with an extended attribute of a length.
fn directory(name: &str, attribute: usize) -> Vec<u8> {
    let record = record("SCHILY.xattr.user.a", &vec![b'A'; attribute]);
    let padding = vec![0; record.len().next_multiple_of(512) - record.len()];
    [&header("pax", b'x', record.len())[..], &record, &padding, &header(name, b'5', 0)].concat()
}

fn archive(sandbox: &Sandbox, entries: impl Iterator<Item = Vec<u8>>) -> PathBuf {
    let path = sandbox.scratch().join("hostile.tar");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
    for entry in entries.chain([vec![0; 1024]]) {
        std::io::Write::write_all(&mut file, &entry).expect("there is room");
    }
    path
}

/// The most memory that the daemon has had, in KiB.
fn peak(sandbox: &Sandbox) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", sandbox.daemon().expect("it runs"))).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("every process has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn create(sandbox: &Sandbox, archive: &Path) -> crate::line::Ended {
    let ended = sandbox.pando(["create", "guest", "--from", &archive.to_string_lossy()]).limit(120).run();
    let daemon = sandbox.daemon();
    assert!(daemon.is_some(), "the daemon was ended by an archive");
    ended
}

fn long_attribute(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    let before = sandbox.daemon();
    let bomb = archive(sandbox, (0..30).map(|number| directory(&format!("d{number}/"), (2 << 20) - 4096)));
    create(sandbox, &bomb).complains_of(&["extended attribute", "64 KiB"]);
    assert_eq!(sandbox.daemon(), before, "another daemon runs");
    sandbox.pando(["ls"]).ok();
    assert!(sandbox.status("guest").is_none(), "something of it is there");
}

/// A directory with as many empty attributes as a header has room for.
fn full_of_empty(name: &str) -> Vec<u8> {
    let records = b"23 SCHILY.xattr.user.=\n".repeat(90_000);
    let padding = vec![0; records.len().next_multiple_of(512) - records.len()];
    [&header("pax", b'x', records.len())[..], &records, &padding, &header(name, b'5', 0)].concat()
}

/// Attributes without a name or a value of any length take memory all the same.
fn empty_attributes(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    let (daemon, before) = (sandbox.daemon(), peak(sandbox));
    let path = archive(sandbox, (0..30).map(|number| full_of_empty(&format!("d{number}/"))));
    create(sandbox, &path).complains_of(&["more than 1 MiB of extended attributes"]);
    assert_eq!(sandbox.daemon(), daemon, "another daemon runs");
    let grown = peak(sandbox) - before;
    assert!(grown < 60 << 10, "the daemon grew by {grown} KiB");
}

/// What is said of one directory again and again is kept once.
fn repeated(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    let before = peak(sandbox);
    let path = archive(sandbox, std::iter::repeat_with(|| directory("d/", 60_000)).take(4000));
    // A file system may keep less of it, or it becomes a guest: either way the archive is read, and the daemon keeps
    // one of 4,000, of 240 MB.
    let ended = create(sandbox, &path);
    assert!(!ended.err().contains("extended attributes") || ended.code() == 0, "it was refused: {}", ended.err());
    let grown = peak(sandbox) - before;
    assert!(grown < 120 << 10, "the daemon grew by {grown} KiB");
}

fn too_many(sandbox: &Sandbox) {
    let path = archive(sandbox, (0..10_000).map(|number| directory(&format!("d{number}/"), 60_000)));
    create(sandbox, &path).complains_of(&["one directory too many", "512 MiB"]);
    assert!(sandbox.status("guest").is_none(), "something of it is there");
}

/// Free bytes and files of a disk.
fn free(disk: &StateDisk<'_>) -> (u64, u64) {
    let file = std::fs::File::open(disk.at()).expect("it is mounted");
    rustix::fs::syncfs(&file).expect("it is written");
    let found = rustix::fs::statvfs(disk.at()).expect("it is mounted");
    (found.f_bavail * found.f_frsize, found.f_favail)
}

/// A state on a disk of 96 MiB, on which a guest was made, so that what every state has is there.
fn small_state(sandbox: &Sandbox) -> (StateDisk<'_>, (u64, u64)) {
    let disk = StateDisk::make(sandbox, 96, &EXT4);
    sandbox.create("first", &[]);
    let before = free(&disk);
    (disk, before)
}

/// Something was refused for want of room, by numbers; the disk is as it was, the daemon lives, and guests work.
fn nothing_came_of_it(sandbox: &Sandbox, disk: &StateDisk<'_>, before: (u64, u64)) {
    assert!(sandbox.status("guest").is_none(), "something of it is there");
    sandbox.pando(["store", "gc"]).ok();
    crate::patience::eventually("all of it is removed", || {
        let now = free(disk);
        now.0 + (1 << 20) > before.0 && now.1 + 64 > before.1
    });
    if sandbox.state("first") != "running" {
        sandbox.pando(["start", "first"]).ok();
    }
    sandbox.exec_sh("first", "echo well").run().says("well\n");
}

/// Packs with zstd what a script writes to its output, which is never a file of its own. Returns the path.
fn packed(sandbox: &Sandbox, script: &str) -> PathBuf {
    let path = sandbox.scratch().join("bomb.tar.zst");
    let line = format!("{{ {script}; }} | zstd -q -3 -T1 -f -o {}", path.display());
    Line::new("sh").args(["-c", &line]).limit(300).ok();
    path
}

/// A script that writes an entry of so many MiB of zeros.
fn entry_of_zeros(sandbox: &Sandbox, name: &str, mebibytes: usize) -> String {
    let head = sandbox.scratch().join(format!("{name}.head"));
    std::fs::write(&head, header(name, b'0', mebibytes << 20)).expect("a file");
    format!("cat {}; head -c {mebibytes}M /dev/zero", head.display())
}

const END: &str = "head -c 1024 /dev/zero";

fn zeros(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    for (name, script) in [
        ("one", format!("{}; {END}", entry_of_zeros(sandbox, "large", 1024))),
        (
            "many",
            (0..30).map(|number| format!("{};", entry_of_zeros(sandbox, &format!("f{number}"), 8))).collect::<String>()
                + END,
        ),
    ] {
        let bomb = packed(sandbox, &script);
        assert!(bomb.metadata().expect("it is there").len() < 200 << 10, "{name}");
        create(sandbox, &bomb).complains_of(&["no space left", "it takes", "MiB are free, of which", "--root"]);
        nothing_came_of_it(sandbox, &disk, before);
    }
    // A file that fits is unpacked.
    let honest = packed(sandbox, &format!("{}; {END}", entry_of_zeros(sandbox, "small", 8)));
    sandbox.pando(["create", "small", "--from", &honest.to_string_lossy()]).ok();
    drop(disk);
}

/// Each of its bytes takes a whole block, so that it takes a thousand times its place in the archive.
fn hollow(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    let sparse = |bytes: usize| {
        const APART: usize = 8192;
        let runs: String = (0..bytes).map(|number| format!("{}\n1\n", number * APART)).collect();
        let map = format!("{bytes}\n{runs}");
        let content =
            [map.as_bytes(), &vec![0; map.len().next_multiple_of(512) - map.len()], &vec![b'x'; bytes]].concat();
        let size = (bytes * APART).to_string();
        let records = [("major", "1"), ("minor", "0"), ("name", "hollow"), ("realsize", size.as_str())];
        let records = records.map(|(key, value)| record(&format!("GNU.sparse.{key}"), value.as_bytes())).concat();
        let whole = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(512), 0);
            bytes
        };
        let headers = [header("pax", b'x', records.len()), header("hollow", b'0', content.len())];
        let entry = [&headers[0][..], &whole(records), &headers[1], &whole(content)].concat();
        archive(sandbox, std::iter::once(entry))
    };
    let bomb = sparse(150_000);
    assert!(bomb.metadata().expect("it is there").len() < 3 << 20);
    create(sandbox, &bomb).complains_of(&["hollow", "no space left", "it takes", "MiB are free, of which"]);
    nothing_came_of_it(sandbox, &disk, before);
    // One that fits is unpacked.
    sandbox.pando(["create", "small", "--from", &sparse(1000).to_string_lossy()]).ok();
    drop(disk);
}

fn files(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    let path = archive(sandbox, (0..40_000).map(|number| header(&format!("f{number}"), b'0', 0).to_vec()));
    create(sandbox, &path).complains_of(&["no space left", "another file", "are not for it", "df -i"]);
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}

/// An OCI layout in a compressed archive that is expanded first.
fn layer(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    let bomb = packed(sandbox, &format!("{}; {END}", entry_of_zeros(sandbox, "blob", 1024)));
    let from = format!("oci:{}", bomb.display());
    sandbox
        .pando(["create", "guest", "--from", &from])
        .limit(120)
        .run()
        .complains_of(&["no space left", "MiB are free"]);
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}

fn export(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    let scratch = sandbox.scratch();
    let portion = scratch.join("portion");
    std::fs::write(&portion, [&(1_u32 << 20).to_le_bytes()[..], &vec![0; 1 << 20]].concat()).expect("a file");
    // The name, and a first part of a gibibyte.
    let begin = "printf 'pando image export 1\\n\\003\\000\\000\\000web\\000\\000\\000\\000'";
    let script = format!("{begin}; for i in $(seq 1024); do cat {}; done", portion.display());
    let bomb = packed(sandbox, &script);
    let imported = sandbox.pando(["image", "import", &bomb.to_string_lossy()]).limit(120).run();
    imported.complains_of(&["no space left", "it takes ", "KiB, and", "are free, of which", "--root"]);
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}

/// The same name with new content, again and again: it would take no room, and time without end.
fn written_over(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    let one = entry_of_zeros(sandbox, "again", 16);
    let bomb = packed(sandbox, &format!("for i in $(seq 40); do {one}; done; {END}"));
    create(sandbox, &bomb).complains_of(&["'again'", "replaces once more", "can hold"]);
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}

/// An entry with a path as long as one likes.
fn at_path(path: &str) -> Vec<u8> {
    let rest = format!(" path={path}\n");
    let length = (rest.len()..).find(|length| length.to_string().len() + rest.len() == *length).expect("there is one");
    let record = format!("{length}{rest}").into_bytes();
    let padding = vec![0; record.len().next_multiple_of(512) - record.len()];
    [&header("pax", b'x', record.len())[..], &record, &padding, &header("x", b'0', 0)].concat()
}

fn long_paths(sandbox: &Sandbox) {
    let path = archive(sandbox, [at_path(&"d/".repeat(3_000))].into_iter());
    create(sandbox, &path).complains_of(&["has a path of 6000 bytes", "4,095"]);
    assert!(sandbox.status("guest").is_none(), "something of it is there");
}

/// Directories two thousand levels down, each new: what is above them is not walked name by name for each.
fn deep_paths(sandbox: &Sandbox) {
    let deep = "d/".repeat(1_990);
    let path = archive(sandbox, (0..3_000).map(|number| at_path(&format!("{deep}{number}/f"))));
    create(sandbox, &path);
    let status = sandbox.status("guest");
    assert!(status.is_some(), "it was not made");
}

/// A guest hands out a file that holds more than the host has room for.
fn endless_file(sandbox: &Sandbox) {
    let (disk, before) = small_state(sandbox);
    sandbox.pando(["start", "first"]).ok();
    sandbox.exec_sh("first", "truncate -s 100G /endless").ok();
    let to = disk.at().join("copied");
    let copied = sandbox.pando(["cp", "first:/endless", &to.to_string_lossy()]).limit(120).run();
    copied.complains_of(&["endless", "no space left", "it takes 100.0 GiB", "are free"]);
    assert!(!to.exists(), "half of it is left");
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}

fn stream_in(sandbox: &Sandbox) {
    const SIZE: usize = 160 << 20;
    let (disk, before) = small_state(sandbox);
    sandbox.pando(["start", "first"]).ok();
    let stream = [&header("large", b'0', SIZE)[..], &vec![0; SIZE + 1024]].concat();
    let copied = sandbox.pando(["cp", "-", "first:/"]).input(stream).limit(120).run();
    copied.complains_of(&["large", "no space left", "it takes 160.0 MiB"]);
    sandbox.exec_sh("first", "test ! -e /large").ok();
    nothing_came_of_it(sandbox, &disk, before);
    drop(disk);
}
