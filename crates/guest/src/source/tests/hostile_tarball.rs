//! Tarballs that want out, that lie, that are broken; and honest ones.

use super::archive_maker::{Maker, gzip, xz, zstd};
use super::{Heard, Place, is_root, message};
use crate::source::{Options, Source, materialize};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use tar::EntryType;

#[test]
fn an_honest_archive_is_unpacked_however_it_is_compressed() {
    let plain = Maker::default()
        .directory("./")
        .directory("./bin/")
        .file("./bin/a", "a")
        .link("./bin/b", "./bin/a")
        .symlink("./lib", "usr/lib")
        .entry(EntryType::Fifo, "fifo", "", b"")
        .end();
    for archive in [plain.clone(), gzip(&plain), zstd(&plain), xz(&plain)] {
        let place = Place::new();
        let summary = place.unpack(&archive).unwrap();
        assert_eq!((summary.files, summary.bytes), (4, 1));
        let into = place.target();
        assert_eq!(fs::read_to_string(into.join("bin/b")).unwrap(), "a");
        assert_eq!(into.join("bin/a").metadata().unwrap().nlink(), 2);
        assert_eq!(into.join("bin").metadata().unwrap().mtime(), 1_000_000_000);
        assert_eq!(into.metadata().unwrap().mtime(), 1_000_000_000);
        assert_eq!(fs::read_link(into.join("lib")).unwrap().to_str(), Some("usr/lib"));
        place.assert_outside_is_untouched();
    }
}

#[test]
fn paths_that_lead_out_are_refused_by_name() {
    for path in ["../outside/x", "a/../../outside/x", "a/..", ".."] {
        let place = Place::new();
        let archive = Maker::default().file("good", "").file(path, "evil").end();
        let text = message(place.unpack(&archive));
        assert!(text.contains(path) && text.contains("byte 512") && text.contains("a.tar"), "{text}");
        place.assert_outside_is_untouched();
        place.assert_nothing_left();
    }
}

#[test]
fn absolute_paths_are_inside() {
    let place = Place::new();
    let outside = place.at("outside/new");
    place.unpack(&Maker::default().file(outside.to_str().unwrap(), "x").end()).unwrap();
    assert!(place.target().join(outside.strip_prefix("/").unwrap()).is_file());
    place.assert_outside_is_untouched();
}

#[test]
fn links_planted_earlier_lead_nowhere() {
    let place = Place::new();
    let outside = place.at("outside");
    let archive = Maker::default()
        .symlink("a", outside.to_str().unwrap())
        .file("a/x", "evil")
        .symlink("b", "../outside")
        .file("b/kept", "evil")
        .symlink("c", "../../../../../../../..")
        .file("c/d", "evil")
        // The last name itself is a link: it is replaced, not followed.
        .symlink("e", "../outside/kept")
        .file("e", "evil")
        .end();
    place.unpack(&archive).unwrap();
    place.assert_outside_is_untouched();
    assert!(place.target().join("d").is_file() && place.target().join("e").symlink_metadata().unwrap().is_file());
}

#[test]
fn directories_do_not_give_their_mode_to_what_replaces_them() {
    let place = Place::new();
    let archive =
        Maker::default().directory("etc").directory("a").symlink("a", "etc").directory("b").file("b", "x").end();
    place.unpack(&archive).unwrap();
    assert!(place.target().join("a").symlink_metadata().unwrap().is_symlink());
    assert_eq!(place.target().join("b").metadata().unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn hard_links_reach_only_what_the_archive_has() {
    for target in ["../outside/kept", "/etc/passwd", "missing", "a/../x", ""] {
        let place = Place::new();
        let text = message(place.unpack(&Maker::default().link("x", target).end()));
        assert!(text.contains("'x'") && text.contains("hard link"), "{text}");
        place.assert_outside_is_untouched();
        place.assert_nothing_left();
    }
    let place = Place::new();
    let archive = Maker::default().symlink("up", "../outside").link("mine", "up/kept").end();
    assert!(place.unpack(&archive).is_err());
    place.assert_outside_is_untouched();
}

#[test]
fn a_hard_link_to_itself_keeps_the_file() {
    let place = Place::new();
    place.unpack(&Maker::default().file("a", "x").link("a", "a").link("b", "a").link("b", "a").end()).unwrap();
    assert_eq!(fs::read_to_string(place.target().join("a")).unwrap(), "x");
}

#[test]
fn device_nodes_are_left_out_and_counted() {
    let place = Place::new();
    let archive = Maker::default()
        .entry(EntryType::Char, "null", "", b"")
        .entry(EntryType::Block, "disk", "", b"")
        .file("a", "")
        .end();
    let summary = place.unpack(&archive).unwrap();
    assert_eq!((summary.left.devices, summary.files), (2, 1));
    assert!(!place.target().join("null").exists());
}

#[test]
fn later_entries_replace_earlier_ones_of_any_kind() {
    let place = Place::new();
    let archive = Maker::default()
        .directory("a")
        .file("a/b", "x")
        .file("a", "now a file")
        .file("c", "x")
        .directory("c")
        .file("c/d", "y")
        .end();
    place.unpack(&archive).unwrap();
    assert_eq!(fs::read_to_string(place.target().join("a")).unwrap(), "now a file");
    assert_eq!(fs::read_to_string(place.target().join("c/d")).unwrap(), "y");
}

#[test]
fn sizes_that_are_not_true_are_told_and_nothing_is_left() {
    for size in [600, 1 << 33, u64::MAX >> 1, u64::MAX] {
        let place = Place::new();
        let archive =
            Maker::default().file("good", "x").sized(EntryType::Regular, "big", "", b"small", size).without_end();
        let text = message(place.unpack(&archive));
        // What no file system has room for is not begun.
        let told = text.contains("damaged") && text.contains("a.tar") && text.contains("byte 1024");
        assert!(told || size > 600 && text.contains("no space left for it"), "{text}");
        place.assert_nothing_left();
    }
}

#[test]
fn archives_that_are_cut_short_or_changed_are_told_whatever_their_compression() {
    let noise: String = (0..40_000_u64)
        .map(|n| char::from(b'a' + (n.wrapping_mul(n).wrapping_mul(2_654_435_761) >> 27) as u8 % 26))
        .collect();
    let plain = Maker::default().file("first", "x").file("second", &noise).end();
    for archive in [plain.clone(), gzip(&plain), zstd(&plain), xz(&plain)] {
        let place = Place::new();
        let text = message(place.unpack(&archive[..archive.len() / 2]));
        assert!(text.contains("damaged") && text.contains("a.tar"), "{text}");
        place.assert_nothing_left();
        let mut changed = archive.clone();
        changed[archive.len() / 2] ^= 0x55;
        // A plain archive has sums over headers alone.
        if archive != plain {
            assert!(place.unpack(&changed).is_err());
            place.assert_nothing_left();
        }
    }
    let place = Place::new();
    let text = message(place.unpack(&Maker::default().file("first", "x").without_end()));
    assert!(text.contains("after 'first'") && text.contains("cut short"), "{text}");
}

#[test]
fn what_is_no_archive_is_told_in_a_sentence() {
    let place = Place::new();
    for (content, wanted) in [
        (&b""[..], "holds no files"),
        (&b"hello"[..], "not a tar archive"),
        (&[b'x'; 5_000][..], "not a tar archive"),
        (&gzip(&[b'x'; 5_000])[..], "not a tar archive"),
        (&[0; 10_240][..], "holds no files"),
        (&b"BZh91AY"[..], "bzip2"),
        (&b"PK\x03\x04...."[..], "zip"),
        (&b"\x1f\x8b\x08\x00garbage"[..], "a.tar"),
    ] {
        let text = message(place.unpack(content));
        assert!(text.contains(wanted), "{text}");
        place.assert_nothing_left();
    }
    let text = message(place.make(&Source::Tarball(place.at("missing.tar"))));
    assert!(text.contains("missing.tar") && text.contains("No such file"), "{text}");
    let text = message(place.make(&Source::Tarball(place.at("outside"))));
    assert!(text.contains("a directory"), "{text}");
}

#[test]
fn a_destination_that_is_not_empty_is_left_alone() {
    let place = Place::new();
    fs::write(place.target().join("mine"), "x").unwrap();
    assert!(message(place.unpack(&Maker::default().file("a", "").end())).contains("not empty"));
    assert!(place.target().join("mine").exists());
}

#[test]
fn attributes_that_steer_an_overlay_are_not_taken_from_an_archive() {
    let place = Place::new();
    let archive = Maker::default()
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.user.x", b"y"),
            ("mtime", b"12.000000345"),
        ])
        .file("a", "")
        .end();
    let summary = place.unpack(&archive).unwrap();
    assert!(summary.left.attributes >= 1);
    let metadata = place.target().join("a").metadata().unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (12, 345));
    let mut list = [0; 256];
    let length = rustix::fs::listxattr(place.target().join("a"), &mut list).unwrap();
    assert!(!String::from_utf8_lossy(&list[..length]).contains("overlay"));
}

#[test]
fn names_that_no_file_system_takes_are_refused() {
    let long = "n".repeat(256);
    for path in [&long[..], "a\0b"] {
        let place = Place::new();
        let archive = Maker::default().pax(&[("path", path.as_bytes())]).file("short", "").end();
        let text = message(place.unpack(&archive));
        assert!(text.contains("refused"), "{text}");
        place.assert_nothing_left();
    }
}

#[test]
fn paths_as_long_as_the_kernel_takes_are_unpacked_and_longer_ones_refused() {
    let place = Place::new();
    let deep = vec!["d".repeat(100); 40].join("/");
    let honest = Maker::default().pax(&[("path", format!("{deep}/f").as_bytes())]).file("x", "deep");
    place.unpack(&honest.end()).unwrap();
    assert_eq!(place.target().read_dir().unwrap().count(), 1);
    pando_kernel::file::tree_removal::empty_directory(&place.target()).unwrap();
    let longer = format!("{deep}/{}", "f".repeat(56));
    let broken = Maker::default().file("a", "").pax(&[("path", longer.as_bytes())]).file("x", "deep");
    let text = message(place.unpack(&broken.end()));
    assert!(text.contains("refused") && text.contains("4096 bytes") && text.contains("4,095"), "{text}");
    place.assert_nothing_left();
}

/// As many levels as a path has room for, and a new directory at the end of each.
#[test]
fn a_great_many_deep_paths_are_no_more_work_than_their_length() {
    let place = Place::new();
    let deep = "a/".repeat(2_000);
    let maker = (0..2_000).fold(Maker::default(), |maker, number| {
        maker.pax(&[("path", format!("{deep}{number}/f").as_bytes())]).file("x", "")
    });
    assert_eq!(place.unpack(&maker.end()).unwrap().files, 2_000);
    pando_kernel::file::tree_removal::empty_directory(&place.target()).unwrap();
}

#[test]
fn headers_without_end_are_refused_and_padding_is_not() {
    let place = Place::new();
    let header = Maker::default().entry(EntryType::XGlobalHeader, "g", "", b"13 comment=x\n").without_end();
    let text =
        message(place.unpack(&zstd(&[Maker::default().file("a", "").without_end(), header.repeat(5_000)].concat())));
    assert!(text.contains("4 MiB"), "{text}");
    let behind = [Maker::default().file("a", "").end(), vec![0; 1 << 20]].concat();
    assert_eq!(place.unpack(&behind).unwrap().files, 1);
}

#[test]
fn sparse_files_of_every_format_keep_content_and_holes() {
    let place = Place::new();
    let from = place.at("from");
    fs::create_dir(&from).unwrap();
    let file = fs::File::create(from.join("s")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 3 << 20).unwrap();
    file.set_len(8 << 20).unwrap();
    drop(file);
    for format in
        [&["--format=gnu"][..], &["--format=pax", "--sparse-version=1.0"], &["--format=pax", "--sparse-version=0.1"]]
    {
        let place = Place::new();
        let archive = place.at("a.tar");
        let status =
            Command::new("tar").arg("-cSf").arg(&archive).args(format).arg("-C").arg(&from).arg(".").status().unwrap();
        assert!(status.success());
        let summary = place.make(&Source::Tarball(archive)).unwrap();
        assert_eq!(summary.bytes, 8 << 20, "{format:?}");
        assert_eq!(fs::read(place.target().join("s")).unwrap(), fs::read(from.join("s")).unwrap(), "{format:?}");
        assert!(place.target().join("s").metadata().unwrap().blocks() < 1 << 12, "{format:?}: the holes were filled");
    }
}

#[test]
fn a_sparse_header_may_not_claim_what_it_likes() {
    let place = Place::new();
    let archive = Maker::default()
        .pax(&[("GNU.sparse.map", b"0,9223372036854775807,5,9"), ("GNU.sparse.size", b"18446744073709551615")])
        .file("s", "x")
        .end();
    assert!(message(place.unpack(&archive)).contains("data runs"));
    place.assert_nothing_left();
}

#[test]
fn owners_and_capabilities_are_kept() {
    if !is_root("owners_and_capabilities_are_kept") {
        return;
    }
    let place = Place::new();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o4755);
    header.set_uid(1_234);
    header.set_gid(65_000);
    header.set_size(0);
    header.set_mtime(1);
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let archive =
        Maker::default().pax(&[("SCHILY.xattr.security.capability", &capability)]).raw(header, "p", "", b"").end();
    place.unpack(&archive).unwrap();
    let path = place.target().join("p");
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (1_234, 65_000, 0o4755));
    let mut value = [0; 64];
    assert_eq!(rustix::fs::getxattr(&path, "security.capability", &mut value).unwrap(), capability.len());
    assert_eq!(value[..capability.len()], capability);
}

#[test]
fn owners_that_are_no_ids_are_told() {
    let place = Place::new();
    let archive = Maker::default().pax(&[("uid", b"4294967295")]).file("a", "").end();
    assert!(message(place.unpack(&archive)).contains("4294967295"));
}

#[test]
fn a_full_disk_is_told_by_name_and_cleared() {
    if !is_root("a_full_disk_is_told_by_name_and_cleared") {
        return;
    }
    let place = Place::new();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(place.target()).status().unwrap();
    if !mounted.success() {
        eprintln!("skipped: a_full_disk_is_told_by_name_and_cleared needs to mount a tmpfs");
        return;
    }
    let archive = Maker::default().file("big", &"x".repeat(1 << 20)).end();
    let from_archive = message(place.unpack(&archive));
    let left = place.target().read_dir().unwrap().count();
    fs::create_dir(place.at("from")).unwrap();
    fs::write(place.at("from/big"), "x".repeat(1 << 20)).unwrap();
    let from_directory = message(place.make(&Source::Directory(place.at("from"))));
    assert!(Command::new("umount").arg(place.target()).status().unwrap().success());
    for text in [from_archive, from_directory] {
        assert!(text.contains("no space left") && text.contains(place.target().to_str().unwrap()), "{text}");
    }
    assert_eq!(left, 0);
}

#[test]
fn progress_is_told_and_cancelling_leaves_nothing() {
    let place = Place::new();
    let archive = (0..600).fold(Maker::default(), |maker, n| maker.file(&format!("f{n}"), "x")).end();
    fs::write(place.at("a.tar"), &archive).unwrap();
    let source = Source::Tarball(place.at("a.tar"));
    let heard = Heard { stop: true, ..Heard::default() };
    let error = materialize(&source, &place.target(), &Options::default(), &heard).unwrap_err();
    assert!(error.is_cancelled());
    place.assert_nothing_left();
    let heard = Heard::default();
    materialize(&source, &place.target(), &Options::default(), &heard).unwrap();
    assert_eq!(*heard.last.lock().unwrap(), (archive.len() as u64, Some(archive.len() as u64)));
    assert!(heard.stages.lock().unwrap()[0].contains("a.tar"));
}
