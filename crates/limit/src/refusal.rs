//! Why a value is refused, as a sentence.

/// A value that cannot be a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} cannot be '{}': {why}", .value.escape_debug())]
pub struct Refusal {
    /// Which limit, such as `memory.limit`.
    pub key: String,
    /// The value that was asked for, in the user's words.
    pub value: String,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

impl Refusal {
    /// The refusal of a value.
    pub fn new(key: impl Into<String>, value: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into(), why: why.into() }
    }
}
