//! Names of guests.

use std::fmt;
use std::str::FromStr;

/// A guest's name: it is a directory's, a host's and a cgroup's name as well, so it is strict about what it may hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuestName(String);

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
