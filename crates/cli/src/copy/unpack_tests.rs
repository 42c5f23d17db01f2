//! Archives that a guest's root could write, against the destination on the host.

use super::*;
use crate::host_path::Links;
use std::io::Seek;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tar::{EntryType, Header};

/// One entry: kind, name, link, mode, content.
type Row<'a> = (u8, &'a str, &'a str, u32, &'a str);

/// An archive byte by byte: the tar crate's builder would refuse these names.
fn archive(rows: &[Row<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, link, mode, content) in rows {
        let mut header = Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(EntryType::new(*kind));
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.set_uid(12345);
        header.set_gid(12345);
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

/// What a guest would send.
fn stream(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file.into()
}

/// A destination with a neighbour that no archive may touch.
struct Scene {
    _whole: tempfile::TempDir,
    inside: PathBuf,
    secret: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let whole = tempfile::tempdir().unwrap();
        let (inside, secret) = (whole.path().join("inside"), whole.path().join("secret"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&secret, "untouched").unwrap();
        Self { _whole: whole, inside, secret }
    }

    fn unpack(&self, rows: &[Row<'_>]) -> anyhow::Result<Vec<String>> {
        let result = unpack_foreign(stream(&archive(rows)), Landing::at(&self.inside, Links::Followed)?);
        assert_eq!(std::fs::read_to_string(&self.secret).unwrap(), "untouched");
        let names = std::fs::read_dir(self.secret.parent().unwrap()).unwrap().count();
        assert_eq!(names, 2, "something was made outside");
        result
    }
}

#[test]
fn an_honest_archive_is_unpacked() {
    let scene = Scene::new();
    let rows = [
        (b'5', "d/", "", 0o750, ""),
        (b'0', "d/f", "", 0o640, "text"),
        (b'2', "d/s", "/etc/passwd", 0o777, ""),
        (b'1', "h", "d/f", 0o640, ""),
        (b'0', "new/deep/f", "", 0o600, ""),
    ];
    assert!(scene.unpack(&rows).unwrap().is_empty());
    let file = scene.inside.join("d/f").metadata().unwrap();
    assert_eq!((file.mode() & 0o7777, file.mtime(), file.nlink()), (0o640, 1_000_000_000, 2));
    assert_eq!(file.uid(), rustix::process::geteuid().as_raw(), "files are the caller's");
    assert_eq!(scene.inside.join("d").metadata().unwrap().mode() & 0o7777, 0o750);
    assert_eq!(std::fs::read_link(scene.inside.join("d/s")).unwrap(), Path::new("/etc/passwd"));
    scene.unpack(&rows).expect("a second time, over the first");
}

#[test]
fn paths_out_of_the_destination_are_refused() {
    for name in ["../secret", "/secret", "a/../../secret", "./../secret"] {
        for kind in [b'0', b'5', b'2'] {
            assert!(Scene::new().unpack(&[(kind, name, "x", 0o644, "")]).is_err(), "{name}");
        }
    }
}

#[test]
fn a_symlink_of_the_archive_is_not_followed() {
    let outward = |target| (b'2', "way", target, 0o777, "");
    for target in ["..", "/", "../secret"] {
        let scene = Scene::new();
        assert!(scene.unpack(&[outward(target), (b'0', "way/secret", "", 0o644, "evil")]).is_err());
        assert!(scene.unpack(&[outward(target), (b'5', "way/made", "", 0o755, "")]).is_err());
        assert!(scene.unpack(&[outward(target), (b'1', "way/hard", "way/secret", 0o644, "")]).is_err());
    }
    // A file of the link's name replaces the link; a directory of its name is refused.
    let scene = Scene::new();
    scene.unpack(&[outward("../secret"), (b'0', "way", "", 0o644, "evil")]).unwrap();
    assert_eq!(std::fs::read_to_string(scene.inside.join("way")).unwrap(), "evil");
    assert!(Scene::new().unpack(&[outward(".."), (b'5', "way", "", 0o777, "")]).is_err());
}

#[test]
fn a_symlink_that_was_there_before_is_not_followed() {
    let scene = Scene::new();
    symlink("..", scene.inside.join("way")).unwrap();
    symlink("../secret", scene.inside.join("file")).unwrap();
    assert!(scene.unpack(&[(b'0', "way/secret", "", 0o644, "evil")]).is_err());
    scene.unpack(&[(b'0', "file", "", 0o644, "new")]).unwrap();
    assert_eq!(std::fs::read_to_string(scene.inside.join("file")).unwrap(), "new");
}

#[test]
fn hard_links_stay_inside_and_name_files() {
    for link in ["../secret", "/etc/passwd", "missing", "."] {
        assert!(Scene::new().unpack(&[(b'1', "x", link, 0o644, "")]).is_err(), "{link}");
    }
    let rows = [(b'2', "s", "../secret", 0o777, ""), (b'1', "x", "s", 0o644, "")];
    assert!(Scene::new().unpack(&rows).is_err(), "not to a symbolic link");
}

#[test]
fn devices_are_left_out_and_special_bits_dropped() {
    let scene = Scene::new();
    let rows = [
        (b'3', "dev/mem", "", 0o666, ""),
        (b'4', "dev/sda", "", 0o666, ""),
        (b'6', "dev/fifo", "", 0o666, ""),
        (b'0', "suid", "", 0o6755, "x"),
        (b'5', "sgid", "", 0o3777, ""),
    ];
    let left_out = scene.unpack(&rows).unwrap();
    assert_eq!(left_out, ["dev/mem", "dev/sda", "dev/fifo"].map(|name| format!("'{name}' {NO_FILE}")));
    assert!(!scene.inside.join("dev").exists());
    for (name, mode) in [("suid", 0o755), ("sgid", 0o777)] {
        assert_eq!(scene.inside.join(name).metadata().unwrap().permissions().mode() & 0o7777, mode);
    }
}

/// An entry with attributes, as pax has them.
fn with_attributes(attributes: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let records: Vec<_> = attributes.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), *value)).collect();
    builder.append_pax_extensions(records.iter().map(|(name, value)| (name.as_str(), *value))).unwrap();
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    builder.append_data(&mut header, "f", std::io::empty()).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn a_guests_attributes_give_nobody_a_right() {
    let scene = Scene::new();
    // CAP_NET_RAW, effective, as setcap(8) writes it.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = with_attributes(&[("user.note", b"mine"), ("security.capability", &capability)]);
    assert!(unpack_foreign(stream(&bytes), Landing::at(&scene.inside, Links::Followed).unwrap()).unwrap().is_empty());
    let names = |name: &str| {
        let file = File::open(scene.inside.join(name)).unwrap();
        attributes::of(file, Owners::Kept).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert!(names("f").iter().all(|name| name == b"user.note"), "no capability came");
    // The host's own, as a guest takes it; only root may give a file one.
    if rustix::process::geteuid().is_root() {
        unpack_own(bytes.as_slice(), Landing::at(&scene.inside, Links::Followed).unwrap()).unwrap();
        assert!(names("f").contains(&b"security.capability".to_vec()));
    }
}

#[test]
fn runs_of_blocks_are_told_apart() {
    let mut bytes = vec![0; 3 * BLOCK as usize];
    assert_eq!(leading_run(&bytes, 0), (bytes.len(), true));
    bytes[BLOCK as usize] = 1;
    assert_eq!(leading_run(&bytes, 0), (BLOCK as usize, true));
    assert_eq!(leading_run(&bytes[BLOCK as usize..], BLOCK), (BLOCK as usize, false));
    assert_eq!(leading_run(&bytes[..10], BLOCK - 5), (10, true));
    assert_eq!(leading_run(&[0, 0, 1], BLOCK - 2), (2, true));
    assert_eq!(leading_run(&[], 0), (0, false));
}

#[test]
fn a_cut_archive_is_noticed() {
    let mut bytes = archive(&[(b'0', "f", "", 0o644, &"x".repeat(600))]);
    bytes.truncate(700);
    let scene = Scene::new();
    let result = unpack_foreign(stream(&bytes), Landing::at(&scene.inside, Links::Followed).unwrap());
    assert!(result.is_err());
}

#[test]
fn a_file_does_not_replace_a_directory_nor_a_directory_a_file() {
    let scene = Scene::new();
    std::fs::create_dir(scene.inside.join("d")).unwrap();
    std::fs::write(scene.inside.join("f"), "").unwrap();
    assert!(scene.unpack(&[(b'0', "d", "", 0o644, "")]).is_err());
    assert!(scene.unpack(&[(b'5', "f", "", 0o755, "")]).is_err());
}

#[test]
fn a_trailing_slash_wants_a_directory() {
    let scene = Scene::new();
    let landing = || Landing::at(&scene.inside.join("new/"), Links::Followed).unwrap();
    assert!(unpack_foreign(stream(&archive(&[(b'0', "f", "", 0o644, "")])), landing()).is_err());
    let rows = [(b'5', "d", "", 0o755, ""), (b'0', "d/f", "", 0o644, "x")];
    unpack_foreign(stream(&archive(&rows)), landing()).unwrap();
    assert_eq!(std::fs::read_to_string(scene.inside.join("new/f")).unwrap(), "x");
}
