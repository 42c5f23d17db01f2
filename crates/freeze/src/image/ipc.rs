//! What System V IPC keeps in an image, and POSIX message queues.

use serde::{Deserialize, Serialize};

/// Something with a number and a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyed {
    /// Its number.
    pub id: i32,
    /// Its key.
    pub key: i32,
    /// Its mode; of a segment also `SHM_DEST`.
    pub mode: u32,
    /// Its owner and group.
    pub owner: (u32, u32),
    /// What it is.
    pub kind: KeyedKind,
}

/// What it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyedKind {
    /// Shared memory: its length, and what is in it.
    Segment {
        /// Bytes.
        length: u64,
        /// Content up to the last byte that is not 0.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// Semaphores: their values.
    Semaphores {
        /// One for each.
        values: Vec<u16>,
    },
    /// A queue of messages.
    Queue {
        /// Type and bytes.
        messages: Vec<(i64, Vec<u8>)>,
    },
}

/// Marked to go when nobody uses it any more.
pub(crate) const SHM_DEST: u32 = 0o1000;

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name, without the slash that programs put before it.
    pub name: String,
    /// Its mode.
    pub mode: u32,
    /// Its owner and group.
    pub owner: (u32, u32),
    /// How many messages it takes.
    pub capacity: u64,
    /// How many bytes each of them may have.
    pub longest: u64,
    /// What waits in it: priority and bytes, in the order in which they will be taken.
    pub messages: Vec<(u32, Vec<u8>)>,
}

/// What a new ipc namespace lets a queue have (`DFLT_MSGMAX`, `DFLT_MSGSIZEMAX`).
pub(crate) const MOST_MESSAGES: u64 = 10;

pub(crate) const LONGEST_MESSAGE: u64 = 8192;

/// More of them than a new namespace takes (`DFLT_QUEUESMAX`).
pub(crate) const MOST_QUEUES: usize = 256;
