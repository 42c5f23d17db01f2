//! Names of guests.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A guest's name: it is a directory's, a host's and a cgroup's name as well, so it is strict about what it may hold.
/// Names are ordered as people count: `web-2` comes before `web-10`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GuestName(String);

/// A part of a name, as it counts for the order: numbers come before all else, and among each other by their size.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number { digits: usize, number: &'a str },
    Other(&'a str),
}

/// A name's parts: runs of digits, and what is between them.
fn parts(name: &str) -> impl Iterator<Item = Part<'_>> {
    let of_a_kind = |a: &u8, b: &u8| a.is_ascii_digit() == b.is_ascii_digit();
    name.as_bytes().chunk_by(of_a_kind).map(|part| {
        // All names are of ASCII.
        let part = str::from_utf8(part).unwrap_or_default();
        let number = part.trim_start_matches('0');
        if part.starts_with(|c: char| c.is_ascii_digit()) {
            Part::Number { digits: number.len(), number }
        } else {
            Part::Other(part)
        }
    })
}

impl Ord for GuestName {
    fn cmp(&self, other: &Self) -> Ordering {
        // Names that differ by zeros alone are different names.
        parts(&self.0).cmp(parts(&other.0)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for GuestName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A name that no guest may have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' cannot name a guest: use 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or digit; for example web-1"
)]
pub struct NameError(String);

/// As long as a label of the domain name system.
const LONGEST: usize = 63;

impl FromStr for GuestName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let fine = text.len() <= LONGEST
            && text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric())
            && text.chars().all(allowed);
        if fine { Ok(Self(text.to_owned())) } else { Err(NameError(shown(text))) }
    }
}

/// A wrong name may hold anything; what is shown of it is short and printable.
fn shown(text: &str) -> String {
    text.chars().take(LONGEST + 1).flat_map(char::escape_debug).collect()
}

impl fmt::Display for GuestName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl AsRef<str> for GuestName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_ordered_as_people_count() {
        let sorted = "1a 2 10 a a1 a-01 a-1 a-2 a-10 a-10b a-99999999999999999999999 a.1 b".split(' ');
        let mut names: Vec<GuestName> = sorted.clone().rev().map(|name| name.parse().unwrap()).collect();
        names.sort();
        assert!(names.iter().map(GuestName::as_ref).eq(sorted));
    }

    #[test]
    fn names_are_plain() {
        for fine in ["a", "web-1", "db.test", "0", &"x".repeat(63)] {
            assert!(fine.parse::<GuestName>().is_ok(), "{fine}");
        }
        for unsafe_name in ["", ".", "..", "a/b", "-a", ".a", "a b", "ä", "a\n", "a\0", &"x".repeat(64)] {
            assert!(unsafe_name.parse::<GuestName>().is_err(), "{unsafe_name:?}");
        }
    }

    #[test]
    fn a_wrong_name_is_shown_harmlessly() {
        let error = "a\x1b[2J".parse::<GuestName>().unwrap_err().to_string();
        assert!(error.contains(r"a\u{1b}[2J"), "{error}");
    }
}
