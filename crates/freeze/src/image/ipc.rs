//! What System V IPC keeps in an image, and POSIX message queues.

use serde::{Deserialize, Serialize};

/// Something with a number and a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyed {
    /// The number by which processes name it.
    pub id: i32,
    /// The key by which processes find it.
    pub key: i32,
    /// Its mode; of a segment also `SHM_DEST`.
    pub mode: u32,
    /// The owner and group, as ids inside.
    pub owner: (u32, u32),
    /// What kind of object it is.
    pub kind: KeyedKind,
}

/// A kind of object of System V IPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyedKind {
    /// Shared memory: its length, and what is in it.
    Segment {
        /// The length of the memory in bytes.
        length: u64,
        /// Content up to the last byte that is not 0.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// A set of semaphores with their values.
    Semaphores {
        /// The value of each semaphore in order.
        values: Vec<u16>,
    },
    /// A queue of messages that wait.
    Queue {
        /// The type and the bytes of each message.
        messages: Vec<(i64, Vec<u8>)>,
    },
}

/// Marked to go when nobody uses it any more.
pub(crate) const SHM_DEST: u32 = 0o1000;

/// A POSIX message queue, with what waits in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name, without the slash that programs put before it.
    pub name: String,
    /// The mode of the queue's file.
    pub mode: u32,
    /// The owner and group, as ids inside.
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
