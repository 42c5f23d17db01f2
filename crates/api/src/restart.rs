//! When a guest is started again, and whether at boot: what its user says of that.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// When a guest is started again after it has ended, in docker's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Restart {
    /// `no`: it is not.
    #[default]
    No,
    /// `on-failure`, `on-failure:N`: when its exit code is not 0.
    OnFailure {
        /// How often without anybody having started it; 0: without an end.
        most: u32,
    },
    /// `always`: however it ended, and at boot also where it was stopped.
    Always,
    /// `unless-stopped`: however it ended, and at boot unless it was stopped.
    UnlessStopped,
}

impl Restart {
    /// Whether it is not started again.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
    pub fn is_no(&self) -> bool {
        *self == Self::No
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => out.write_str("no"),
            Self::OnFailure { most: 0 } => out.write_str("on-failure"),
            Self::OnFailure { most } => write!(out, "on-failure:{most}"),
            Self::Always => out.write_str("always"),
            Self::UnlessStopped => out.write_str("unless-stopped"),
        }
    }
}

/// A policy that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "restart policy '{0}' is none of no, on-failure, on-failure:N, always and unless-stopped; for example --restart on-failure:5"
)]
pub struct RestartError(String);

impl FromStr for Restart {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Self, RestartError> {
        let wrong = || RestartError(text.to_owned());
        match text.split_once(':') {
            Some(("on-failure", most)) => {
                most.parse().ok().filter(|most| *most > 0).map(|most| Self::OnFailure { most }).ok_or_else(wrong)
            }
            Some(_) => Err(wrong()),
            None => match text {
                "no" => Ok(Self::No),
                "on-failure" => Ok(Self::OnFailure { most: 0 }),
                "always" => Ok(Self::Always),
                "unless-stopped" => Ok(Self::UnlessStopped),
                _ => Err(wrong()),
            },
        }
    }
}

impl TryFrom<String> for Restart {
    type Error = RestartError;

    fn try_from(text: String) -> Result<Self, RestartError> {
        text.parse()
    }
}

impl From<Restart> for String {
    fn from(restart: Restart) -> Self {
        restart.to_string()
    }
}

/// Whether and when a guest is started as the machine boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Boot {
    /// Whether it is started whatever its restart policy says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub autostart: bool,
    /// Those with a higher one are started first; of equals those whose name comes first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// The guests that are started before it, where those are started too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Seconds until the next guest is started after it.
    #[serde(skip_serializing_if = "is_none")]
    pub delay: u32,
}

impl Boot {
    /// Whether nothing is said about it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
fn is_none(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_as_it_is_written() {
        for text in ["no", "on-failure", "on-failure:5", "always", "unless-stopped"] {
            assert_eq!(text.parse::<Restart>().unwrap().to_string(), text);
        }
        for wrong in ["", "never", "on-failure:", "on-failure:0", "on-failure:x", "always:3", "Always"] {
            assert!(wrong.parse::<Restart>().unwrap_err().to_string().contains("on-failure:N"), "{wrong}");
        }
    }
}
