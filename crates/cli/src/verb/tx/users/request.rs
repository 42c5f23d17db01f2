//! What a user asks for, and what is answered.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A longer request is none: it is more than the kernel takes of arguments and environment (an eighth of its stack's
/// usual limit), each byte of which takes four here at most.
pub(super) const LONGEST: usize = 8 << 20;

/// One attempt.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) command: Vec<Vec<u8>>,
    pub(super) environment: Vec<Vec<u8>>,
    pub(super) directory: Vec<u8>,
    /// In milliseconds.
    pub(super) timeout: Option<u64>,
    pub(super) refuses_network: bool,
    pub(super) durable: bool,
    /// How many attempts were made before.
    pub(super) retries: u32,
}

/// What the user is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The end: an exit code, and a line; whether another attempt may go better, and whether the line says of a
    /// failure.
    End { code: u8, line: String, again: bool, failed: bool },
}

pub(super) fn bytes(text: impl AsRef<std::ffi::OsStr>) -> Vec<u8> {
    text.as_ref().as_bytes().to_vec()
}

pub(super) fn texts(all: Vec<Vec<u8>>) -> Vec<OsString> {
    all.into_iter().map(OsString::from_vec).collect()
}
