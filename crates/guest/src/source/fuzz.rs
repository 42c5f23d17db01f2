//! What a fuzzer calls of sources.

use super::Source;
use super::host_filter::homes;
use super::shadow::{locked_gshadow, locked_shadow};
use super::syntax::{is_package, is_suite};
use std::path::Path;

/// A source as a user writes it: what is understood is the same when it is written again.
pub(crate) fn syntax(text: &str) {
    let Ok(source) = text.parse::<Source>() else { return };
    assert_eq!(source.to_string().parse::<Source>().as_ref(), Ok(&source), "{text:?}");
    if let Source::Debian { suite, packages } = &source {
        assert!(is_suite(suite) && packages.iter().all(|package| is_package(package)));
    }
    let _ = source.absolute(Path::new("/somewhere"));
}

/// Account files of a host or a guest: a program that reads the copies is no longer asked for a password, and can give
/// none.
pub(crate) fn account_files(data: &[u8]) {
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    let (shadow, gshadow) = (locked_shadow(data), locked_gshadow(data));
    for line in shadow.split(|byte| *byte == b'\n').chain(gshadow.split(|byte| *byte == b'\n')) {
        let password = line.split(|byte| *byte == b':').nth(1);
        assert!(password.is_none_or(|password| password == b"!"), "{}", line.escape_ascii());
    }
    assert!(lines(&shadow) <= lines(data) + 1 && lines(&gshadow) <= lines(data) + 1);
    assert!(homes(data).iter().all(|(home, _)| home.is_absolute()));
}
