//! Why a clone could not be made.

use crate::likeness::{self, Difference};
use crate::refusal::FreezeError;
use pando_kernel::CallError;
use std::io;

/// Why a clone was not made. Nothing of it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloneError {
    /// The kernel did not do its part.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A step in a process of the clone failed.
    #[error("making the clone, {step}: {source}")]
    Step {
        /// What it was to do.
        step: String,
        /// Why the system call failed.
        source: io::Error,
    },
    /// A process of the clone ended before it ran.
    #[error("a process of the clone ended before it ran")]
    Ended,
    /// The same of one that is known.
    #[error("process {pid} ({name}) of the clone {how} before it ran")]
    Lost {
        /// The process's pid inside the pid namespace.
        pid: i32,
        /// The name of the process's first thread.
        name: String,
        /// By what, if that is known.
        how: String,
    },
    /// Some thread does not become ready.
    #[error("the clone did not become ready within {SECONDS} seconds")]
    Late,
    /// The first process cannot be made.
    #[error(transparent)]
    Unmade(FreezeError),
    /// The image has a first process, and nobody waits to become that.
    #[error("the image has a first process of its own, and none waits to become it")]
    NoHandoff,
    /// A first process waits to become one of the image, and that has none.
    #[error("the image has no first process, and the guest that it is said to be of has an init of its own")]
    NoFirst,
    /// The holder holds nothing.
    #[error("the holder holds no image")]
    Empty,
    /// All of its steps were taken, and it is something else than what was frozen.
    #[error("the clone is not what was frozen: {}", likeness::list(.0))]
    Differs(Vec<Difference>),
    /// The image needs descriptors of the outside.
    #[error("the image needs {wanted} descriptors of the outside, {given} were given")]
    Supplies {
        /// How many the image has.
        wanted: usize,
        /// How many were given for the clone.
        given: usize,
    },
}

pub(crate) const SECONDS: u64 = 30;
