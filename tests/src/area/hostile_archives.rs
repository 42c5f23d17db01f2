//! Archives that are small and ask for much: the daemon refuses them by name and lives on.

use crate::case::Case;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("hostile_archives::attributes_larger_than_any_file_system_keeps", long_attribute),
    Case::new("hostile_archives::a_great_many_empty_attributes", empty_attributes),
    Case::new("hostile_archives::one_directory_again_and_again", repeated),
    Case::new("hostile_archives::more_directories_than_are_kept", too_many),
];

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

/// A directory with an extended attribute of a length.
fn directory(name: &str, attribute: usize) -> Vec<u8> {
    let rest = [b" SCHILY.xattr.user.a=".as_slice(), &vec![b'A'; attribute], b"\n"].concat();
    // The length of a record counts its own digits.
    let length = (rest.len()..).find(|length| length.to_string().len() + rest.len() == *length).expect("there is one");
    let record = [length.to_string().as_bytes(), &rest].concat();
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
    // A file system may keep less of it, or it becomes a guest: either way the archive is read, and the daemon keeps one of 4,000, of 240 MB.
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
