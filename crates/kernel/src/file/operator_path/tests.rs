use super::*;
use std::fs::{create_dir, create_dir_all, set_permissions, write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

/// `top/closed/file`, which nobody is to be led to, and `top/way`.
fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().canonicalize().unwrap();
    create_dir_all(top.join("closed/in")).unwrap();
    create_dir(top.join("way")).unwrap();
    write(top.join("closed/file"), "root's").unwrap();
    (place, top)
}

fn found(path: &Path, shared: &[Shared]) -> Result<PathBuf, String> {
    OperatorPath::open(path, shared).map(|found| found.path().to_owned()).map_err(|error| error.to_string())
}

#[test]
fn links_of_ones_own_are_followed_by_any_way() {
    let (_place, top) = place();
    for (target, rest, leads) in [
        ("../closed", "file", "closed/file"),
        ("../closed/in", "..", "closed"),
        ("../closed/in/../in/.", "", "closed/in"),
        ("../../../../../../../..", "", "/"),
    ] {
        let link = top.join("way/link");
        symlink(target, &link).unwrap();
        assert_eq!(found(&link.join(rest), &[]), Ok(top.join(leads)), "{target}");
        std::fs::remove_file(&link).unwrap();
    }
    symlink(top.join("closed"), top.join("way/link")).unwrap();
    symlink("link", top.join("way/second")).unwrap();
    let opened = OperatorPath::open(&top.join("way/second/file"), &[]).unwrap();
    assert!(!opened.is_directory().unwrap());
    assert_eq!(fstat(&opened).unwrap().st_ino, top.join("closed/file").metadata().unwrap().ino());
    symlink("round", top.join("way/round")).unwrap();
    let error = OperatorPath::open(&top.join("way/round"), &[]).unwrap_err();
    assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::ELOOP));
    for missing in ["way/none", "way/second/none"] {
        let error = OperatorPath::open(&top.join(missing), &[]).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }
}

#[test]
fn a_link_where_others_can_write_is_refused_and_plain_names_are_not() {
    let (_place, top) = place();
    create_dir(top.join("way/below")).unwrap();
    symlink(top.join("closed"), top.join("way/below/link")).unwrap();
    for (mode, whom) in [(0o777, Some("everybody")), (0o770, Some("group 0")), (0o1777, None), (0o755, None)] {
        set_permissions(top.join("way"), PermissionsExt::from_mode(mode)).unwrap();
        let said = found(&top.join("way/below/link/file"), &[]);
        match whom {
            Some(whom) => assert!(
                said.as_ref().is_err_and(|said| said.contains(whom) && said.contains("way/below/link' is a link")),
                "{said:?}"
            ),
            None => assert_eq!(said, Ok(top.join("closed/file"))),
        }
        assert_eq!(found(&top.join("way/below"), &[]), Ok(top.join("way/below")));
        assert_eq!(found(&top.join("way/below/../../closed"), &[]), Ok(top.join("closed")));
    }
}

#[test]
fn a_link_of_a_user_is_refused_by_name() {
    let (_place, top) = place();
    let (way, link) = (top.join("way"), top.join("way/link"));
    symlink("../closed", &link).unwrap();
    if chown(&way, Some(12_345), None).is_err() {
        eprintln!("skipped: a_link_of_a_user_is_refused_by_name needs root");
        return;
    }
    let said = found(&link.join("file"), &[]).unwrap_err();
    assert!(said.contains("where user 12345 can put one") && said.contains("a path without links"), "{said}");
    lchown(&link, Some(12_345), None).unwrap();
    assert!(found(&link, &[]).unwrap_err().contains("link' is a link that user 12345 has put there"));
    // In a directory such as /tmp.
    chown(&way, Some(0), None).unwrap();
    set_permissions(&way, PermissionsExt::from_mode(0o1777)).unwrap();
    assert!(found(&link, &[]).unwrap_err().contains("that user 12345 has put there"));
    lchown(&link, Some(0), None).unwrap();
    assert_eq!(found(&link, &[]), Ok(top.join("closed")));
}

#[test]
fn a_link_below_what_a_guest_writes_to_is_refused_by_whatever_way() {
    let (_place, top) = place();
    symlink("../../closed", top.join("way/link")).unwrap();
    symlink("way", top.join("operators")).unwrap();
    let shared = |path: &str| Shared { by: "guest 'web'".to_owned(), path: top.join(path) };
    for way in ["way/link", "operators/link", "operators/link/file"] {
        for known in ["way", "operators"] {
            let said = found(&top.join(way), &[shared("closed/none"), shared(known)]).unwrap_err();
            assert!(said.contains("where guest 'web' can put one"), "{way}: {said}");
        }
    }
    assert_eq!(found(&top.join("operators"), &[shared("way")]), Ok(top.join("way")), "the way to it is the operator's");
    // A guest that leads its own volume in a volume to the top of the host keeps nobody from following links.
    symlink("/", top.join("closed/planted")).unwrap();
    let planted = [shared("closed/planted"), shared("closed")];
    assert_eq!(found(&top.join("operators"), &planted), Ok(top.join("way")));
}

#[test]
fn a_link_that_comes_later_is_not_followed() {
    let (_place, top) = place();
    symlink("closed", top.join("link")).unwrap();
    let resolved = OperatorPath::open(&top.join("link/in"), &[]).unwrap().path().to_owned();
    assert_eq!(OperatorPath::open_again(&resolved).unwrap().path(), top.join("closed/in"));
    std::fs::rename(top.join("closed"), top.join("moved")).unwrap();
    symlink("moved", top.join("closed")).unwrap();
    let error = OperatorPath::open_again(&resolved).unwrap_err();
    assert!(error.to_string().contains("a link on the way"), "{error}");
}

#[test]
fn a_parent_is_where_it_was_come_from() {
    let (_place, top) = place();
    symlink("closed", top.join("link")).unwrap();
    let again = |rest: &str| OperatorPath::open_again(&top.join(rest)).map(|found| found.path().to_owned());
    assert_eq!(again("way/../closed/./in/../file").unwrap(), top.join("closed/file"));
    assert_eq!(again("../../../../../../../..").unwrap(), Path::new("/"));
    for (rest, errno) in [("closed/file/..", libc::ENOTDIR), ("way/none/..", libc::ENOENT)] {
        assert_eq!(io::Error::from(again(rest).unwrap_err()).raw_os_error(), Some(errno), "{rest}");
    }
    assert!(matches!(again("link/../closed"), Err(Misled::Appeared { .. })));
}
