//! Whether a guest is well: how that is found out, and what came of it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A command that is run in a guest now and then; its exit code 0 says that the guest is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthCheck {
    /// The command and its arguments, run as the guest's `command` is. Empty: what the image says. `NONE` alone: there
    /// is no check, whatever the image says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Seconds between the end of one check and the next. Default: 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<u32>,
    /// Seconds that one may take before it counts as failed. Default: 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
    /// How many have to fail, one after another, until the guest counts as unhealthy. Default: 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds after the guest's start in which failures do not count. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_period: Option<u32>,
    /// What is done with a guest that has become unhealthy.
    #[serde(skip_serializing_if = "OnFailure::is_none")]
    pub on_failure: OnFailure,
}

impl HealthCheck {
    /// The word that stands for no check.
    pub const NONE: &str = "NONE";

    /// The command that is run, if one is.
    pub fn wanted(&self) -> Option<&[String]> {
        match self.command.as_slice() {
            [] => None,
            [none] if none == Self::NONE => None,
            command => Some(command),
        }
    }

    /// It with what another says where it says nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            command: if self.command.is_empty() { other.command } else { self.command },
            interval: self.interval.or(other.interval),
            timeout: self.timeout.or(other.timeout),
            retries: self.retries.or(other.retries),
            start_period: self.start_period.or(other.start_period),
            on_failure: self.on_failure,
        }
    }
}

/// What is done with a guest that has become unhealthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Nothing but to tell of it.
    #[default]
    None,
    /// It is killed; its restart policy says what follows.
    Kill,
    /// It is stopped and started.
    Restart,
    /// It is stopped, and stays so.
    Stop,
}

impl OnFailure {
    /// Whether nothing is done about it.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A word that is no such action.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is none of none, kill, restart and stop; for example --health-on-failure restart")]
pub struct OnFailureError(String);

impl FromStr for OnFailure {
    type Err = OnFailureError;

    fn from_str(text: &str) -> Result<Self, OnFailureError> {
        match text {
            "none" => Ok(Self::None),
            "kill" => Ok(Self::Kill),
            "restart" => Ok(Self::Restart),
            "stop" => Ok(Self::Stop),
            _ => Err(OnFailureError(text.to_owned())),
        }
    }
}

/// How a guest is, by its checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wellbeing {
    /// None has succeeded yet, nor have too many failed.
    #[default]
    Starting,
    /// The last check has succeeded, or too few have failed since one did.
    Healthy,
    /// As many checks have failed, one after another, as its retries say.
    Unhealthy,
}

impl fmt::Display for Wellbeing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        })
    }
}

/// What came of a guest's checks in this run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// How the guest is by now.
    pub status: Wellbeing,
    /// How many checks have failed, one after another.
    pub failing_streak: u32,
    /// When the last check ended: seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked: Option<i64>,
    /// The exit code of the last check. Absent: it took too long, or could not be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What the last check printed, its first 4 KiB, or why there was none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
}
