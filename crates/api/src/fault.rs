//! How a call fails: a kind for programs, a sentence for people.

use serde::{Deserialize, Serialize};

/// A failed call. On the wire: the varlink error `org.pando.Guests.KIND` with these parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind of failure, for programs.
    pub kind: FaultKind,
    /// What it was about: a guest's name, a path, a value.
    pub object: String,
    /// What was tried, on what, why it failed and what to do: whole sentences.
    pub message: String,
}

/// The kinds of failure, each a varlink error of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// No guest of that name.
    NoSuchGuest,
    /// A guest of that name is there already.
    GuestExists,
    /// The guest runs, and must not for this.
    GuestRunning,
    /// The guest does not run, and must for this.
    GuestNotRunning,
    /// Another command works on the guest.
    Busy,
    /// The request itself is wrong.
    BadRequest,
    /// The command to run does not exist inside the guest.
    CommandNotFound,
    /// The command to run exists but cannot be executed.
    CommandNotExecutable,
    /// The host lacks what this needs: a kernel feature, space, a package.
    Unavailable,
    /// Something else went wrong; the message says what.
    Failed,
}

impl Fault {
    /// A fault of `kind` about `object`.
    pub fn new(kind: FaultKind, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, object: object.into(), message: message.into() }
    }

    /// The name of its varlink error.
    pub fn error_name(&self) -> String {
        format!("{}.{:?}", crate::INTERFACE, self.kind)
    }

    /// The exit code of a command that ends with this fault, by the shell's conventions.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FaultKind::CommandNotFound => 127,
            FaultKind::CommandNotExecutable => 126,
            _ => 125,
        }
    }
}
