//! How a call fails: what it was about, and why.

use std::fmt;
use std::io;

/// What a call has failed with, or a transaction was lost to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// What it is about: a path, a descriptor, a flag. Empty where it is about nothing in particular.
    pub object: String,
    /// Why it has failed, in a sentence.
    pub reason: String,
}

impl Failure {
    /// One about an object.
    pub(crate) fn about(object: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { object: object.into(), reason: reason.into() }
    }

    /// A call that the kernel has refused.
    pub(crate) fn of_call(object: impl Into<String>, doing: &str, error: impl Into<io::Error>) -> Self {
        Self::about(object, format!("{doing} failed: {}", error.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}
