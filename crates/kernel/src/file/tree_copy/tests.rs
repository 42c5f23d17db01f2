use super::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap()
}

/// Copies a scene's `from` into its `to`, which is made.
fn copied(scene: &Path) -> Result<Vec<PathBuf>, TreeCopyError> {
    std::fs::create_dir(scene.join("to")).unwrap();
    let mut paths = Vec::new();
    let (from, to) = (open(&scene.join("from")), open(&scene.join("to")));
    Copying::new(from.as_fd(), to.as_fd(), 0, &mut |path, _| paths.push(path.to_owned())).all()?;
    Ok(paths)
}

#[test]
fn everything_comes_along_as_it_lies() {
    let scene = tempfile::tempdir().unwrap();
    let from = scene.path().join("from");
    std::fs::create_dir_all(from.join("a/empty")).unwrap();
    std::fs::write(from.join("a/file"), vec![7; 3 << 20]).unwrap();
    std::fs::hard_link(from.join("a/file"), from.join("again")).unwrap();
    symlink("/nowhere", from.join("link")).unwrap();
    mknodat(open(&from), "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    let sparse = std::fs::File::create(from.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 64 << 20).unwrap();
    sparse.set_len(80 << 20).unwrap();
    let attributed = from.join("a/empty");
    let extended = rustix::fs::setxattr(&attributed, "user.word", b"value", rustix::fs::XattrFlags::empty()).is_ok();
    std::fs::set_permissions(&attributed, PermissionsExt::from_mode(0o1750)).unwrap();
    let mut paths = copied(scene.path()).unwrap();
    paths.sort();
    let all = ["", "a", "a/empty", "a/file", "again", "fifo", "link", "socket", "sparse"];
    assert_eq!(paths, all.map(PathBuf::from));
    let to = scene.path().join("to");
    for path in &paths {
        let [was, is] = [&from, &to].map(|top| top.join(path).symlink_metadata().unwrap());
        let shown = |about: &std::fs::Metadata| (about.mode(), about.uid(), about.gid(), about.mtime_nsec());
        assert_eq!(shown(&is), shown(&was), "{}", path.display());
        assert_eq!(was.file_type().is_socket(), is.file_type().is_socket());
    }
    assert_eq!(std::fs::read(to.join("a/file")).unwrap(), vec![7; 3 << 20]);
    let ino = |path: &str| to.join(path).metadata().unwrap().ino();
    assert_eq!(ino("a/file"), ino("again"));
    assert_eq!(std::fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
    let about = to.join("sparse").metadata().unwrap();
    assert!(about.len() == 80 << 20 && about.blocks() < 2048, "{} blocks", about.blocks());
    let mut value = [0; 16];
    let found = rustix::fs::getxattr(to.join("a/empty"), "user.word", &mut value[..]).ok();
    assert_eq!(found, extended.then_some(5));
}

#[test]
fn a_tree_may_be_deeper_than_a_path_is_long() {
    let scene = tempfile::tempdir().unwrap();
    let from = scene.path().join("from");
    std::fs::create_dir(&from).unwrap();
    let mut deepest = open(&from);
    for _ in 0..300 {
        mkdirat(&deepest, "a-name-of-some-length", Mode::RWXU).unwrap();
        deepest = openat(&deepest, "a-name-of-some-length", DIRECTORY, Mode::empty()).unwrap();
    }
    assert_eq!(copied(scene.path()).unwrap().len(), 301);
}

/// What a guest does: names that lead inside when they are looked at, and elsewhere a moment later.
#[test]
fn a_link_in_a_directorys_place_leads_nowhere() {
    let scene = tempfile::tempdir().unwrap();
    let (from, outside) = (scene.path().join("from"), scene.path().join("outside"));
    std::fs::create_dir_all(from.join("a")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "x").unwrap();
    symlink(&outside, from.join("link")).unwrap();
    let top = open(&from);
    assert!(matches!(directory_below(top.as_fd(), Path::new("link")), Err(Errno::LOOP | Errno::NOTDIR)));
    assert_eq!(directory_below(top.as_fd(), Path::new("../outside")).unwrap_err(), Errno::XDEV);
    std::fs::create_dir(scene.path().join("to")).unwrap();
    let to = open(&scene.path().join("to"));
    let mut ignored = |_: &Path, _: &Statx| {};
    let mut copying = Copying::new(top.as_fd(), to.as_fd(), 0, &mut ignored);
    assert!(copying.names(Path::new("link"), vec!["secret".into()]).is_err());
    copying.names(Path::new(""), vec!["link".into()]).unwrap();
    // And the copy's own side, which a link was copied into.
    std::fs::remove_file(from.join("link")).unwrap();
    std::fs::create_dir(from.join("link")).unwrap();
    std::fs::write(from.join("link/planted"), "x").unwrap();
    assert!(copying.names(Path::new("link"), vec!["planted".into()]).is_err());
    assert!(!outside.join("planted").exists());
}
