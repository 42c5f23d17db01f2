//! Names of transactions.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest.
const LONGEST: usize = 64;

/// A name: 1 to 64 letters, digits, `.`, `_` and `-`, of which the first is a letter or a digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TxName(String);

/// It is no name.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "'{0}' is no name for a transaction: it takes 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
)]
pub struct BadName(String);

impl TryFrom<String> for TxName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if begins && text.len() <= LONGEST && text.bytes().all(good) { Ok(Self(text)) } else { Err(BadName(text)) }
    }
}

impl std::str::FromStr for TxName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        text.to_owned().try_into()
    }
}

impl From<TxName> for String {
    fn from(name: TxName) -> Self {
        name.0
    }
}

impl AsRef<str> for TxName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TxName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl TxName {
    /// One for what is no transaction yet, `spare-PID-NUMBER`.
    pub(crate) fn prewarmed(number: u32) -> Self {
        Self(format!("spare-{}-{number}", std::process::id()))
    }

    /// One for a program that began it inside itself, `program-PID-NUMBER`.
    pub(crate) fn of_program(pid: i32, number: u32) -> Self {
        Self(format!("program-{pid}-{number}"))
    }

    /// One that no other living process has: `PREFIX-PID-NUMBER`.
    pub fn fresh(number: u32) -> Self {
        Self(format!("run-{}-{number}", std::process::id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_name_of_a_directory() {
        for good in ["a", "web-2.1_x", &"x".repeat(64)] {
            assert!(good.parse::<TxName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(bad.parse::<TxName>().is_err(), "{bad}");
        }
        assert!(TxName::fresh(3).to_string().parse::<TxName>().is_ok());
    }
}
