use super::*;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

const MODE: Mode = Mode::RWXU;

fn close(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn log(directory: &TrustedDirectory) -> Result<File, Distrust> {
    directory.file("log", OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND, Mode::RUSR | Mode::WUSR)
}

#[test]
fn a_way_that_is_missing_is_made_and_found_again() {
    let place = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let made = TrustedDirectory::make(&place.path().join("a/b/../b/c"), MODE).unwrap();
        assert!(made.path().ends_with("a/b/c"));
        log(&made).unwrap();
        made.below(Path::new("d/e"), MODE).unwrap();
        made.holds_nothing_foreign().unwrap();
    }
    assert!(place.path().join("a/b/c/d/e").is_dir());
    let missing = TrustedDirectory::open(&place.path().join("x")).unwrap_err();
    assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
}

#[test]
fn others_may_not_write_anywhere_on_the_way_but_where_it_is_sticky() {
    let place = tempfile::tempdir().unwrap();
    let last = place.path().join("a/b");
    TrustedDirectory::make(&last, MODE).unwrap();
    for (mode, whom) in [(0o777, "everybody"), (0o775, "its group"), (0o757, "everybody")] {
        close(&place.path().join("a"), mode);
        let said = TrustedDirectory::make(&last, MODE).unwrap_err().to_string();
        assert!(said.contains(whom) && said.contains("/a' can be written") && said.contains("chmod go-w"), "{said}");
    }
    close(&place.path().join("a"), 0o1777);
    TrustedDirectory::make(&last, MODE).unwrap();
    TrustedDirectory::open(&place.path().join("a")).unwrap();
    assert!(matches!(TrustedDirectory::make(&place.path().join("a"), MODE), Err(Distrust::Writable { .. })));
}

#[test]
fn what_is_somebody_elses_is_refused_and_roots_links_are_followed() {
    let place = tempfile::tempdir().unwrap();
    if chown(place.path(), Some(12_345), None).is_err() {
        eprintln!("skipped: what_is_somebody_elses_is_refused_and_roots_links_are_followed needs root");
        return;
    }
    let said = TrustedDirectory::make(&place.path().join("run"), MODE).unwrap_err().to_string();
    assert!(said.contains("belongs to user 12345") && said.contains("chown root"), "{said}");
    assert!(!place.path().join("run").exists());
    chown(place.path(), Some(0), None).unwrap();
    TrustedDirectory::make(&place.path().join("real/run"), MODE).unwrap();
    for target in [place.path().join("real"), PathBuf::from("real"), PathBuf::from("real/run/..")] {
        let link = place.path().join("link");
        symlink(target, &link).unwrap();
        let opened = TrustedDirectory::make(&link.join("run"), MODE).unwrap();
        assert!(opened.path().ends_with("real/run"));
        assert!(matches!(
            TrustedDirectory::open(place.path()).unwrap().private("link".as_ref()),
            Err(Distrust::Kind { .. })
        ));
        lchown(&link, Some(12_345), None).unwrap();
        assert!(matches!(TrustedDirectory::make(&link.join("run"), MODE), Err(Distrust::Owner { user: 12_345, .. })));
        std::fs::remove_file(&link).unwrap();
    }
    symlink("self", place.path().join("self")).unwrap();
    assert!(matches!(TrustedDirectory::open(&place.path().join("self/x")), Err(Distrust::Call { .. })));
    std::fs::write(place.path().join("real/foreign"), "").unwrap();
    chown(place.path().join("real/foreign"), Some(12_345), None).unwrap();
    let real = TrustedDirectory::open(&place.path().join("real")).unwrap();
    assert!(real.holds_nothing_foreign().unwrap_err().to_string().contains("remove it"));
}

#[test]
fn a_file_is_a_plain_one_with_one_name() {
    let place = tempfile::tempdir().unwrap();
    let directory = TrustedDirectory::make(&place.path().join("d"), MODE).unwrap();
    let (at, victim) = (place.path().join("d/log"), place.path().join("victim"));
    symlink(&victim, &at).unwrap();
    assert!(matches!(log(&directory), Err(Distrust::Kind { what: "a link", .. })));
    assert!(!victim.exists());
    std::fs::remove_file(&at).unwrap();
    std::fs::write(&victim, "").unwrap();
    std::fs::hard_link(&victim, &at).unwrap();
    assert!(matches!(log(&directory), Err(Distrust::Linked { links: 2, .. })));
    std::fs::remove_file(&at).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &at, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(matches!(log(&directory), Err(Distrust::Kind { .. })));
    std::fs::remove_file(&at).unwrap();
    std::fs::write(&at, "").unwrap();
    log(&directory).unwrap();
}

#[test]
fn a_private_one_is_closed_to_others() {
    let place = tempfile::tempdir().unwrap();
    let above = TrustedDirectory::open(place.path()).unwrap();
    std::fs::create_dir(place.path().join("d")).unwrap();
    close(&place.path().join("d"), 0o755);
    assert!(matches!(above.private("d".as_ref()), Err(Distrust::Open { mode: 0o755, .. })));
    close(&place.path().join("d"), 0o700);
    above.private("d".as_ref()).unwrap();
}
