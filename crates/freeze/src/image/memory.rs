//! What a process of an image has in its memory: areas by ascending address.

use serde::{Deserialize, Serialize};

/// A range of memory with one meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// The first address of the area.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// What may be done with the memory: `PROT_*`, or'ed.
    pub protection: u32,
    /// What the area of memory holds.
    pub kind: AreaKind,
    /// Advice that was given: `MADV_*`.
    pub advice: Vec<u32>,
    /// Whether it grows downwards, as a main thread's stack does.
    pub grows: bool,
    /// Whether it is locked in memory.
    pub locked: bool,
    /// Whether only pages are that somebody has touched (MLOCK_ONFAULT).
    pub locked_later: bool,
    /// Whether no memory is ever reserved for it (MAP_NORESERVE).
    pub unreserved: bool,
    /// Whether memory is reserved for all of it, as for what may be written to by one process alone.
    pub accounted: bool,
    /// Whether nobody may ever change what it is (mseal(2)).
    pub sealed: bool,
    /// Pages that nobody may touch (`MADV_GUARD_INSTALL`), as runs of (address, length).
    pub guards: Vec<(u64, u64)>,
    /// Pages that are this process's own, as runs of (address, length).
    pub pages: Vec<(u64, u64)>,
    /// Whether other processes share all its pages since a fork, each until somebody writes to them: a number that is
    /// the same for all areas that the same processes share. What is shared are areas of the same number at the same
    /// address.
    pub fork_shared: Option<usize>,
}

impl Area {
    /// One of which nothing else is known.
    pub(crate) fn new(start: u64, end: u64, protection: u32, kind: AreaKind) -> Self {
        Self {
            start,
            end,
            protection,
            kind,
            advice: Vec::new(),
            grows: false,
            locked: false,
            locked_later: false,
            unreserved: false,
            accounted: false,
            sealed: false,
            guards: Vec::new(),
            pages: Vec::new(),
            fork_shared: None,
        }
    }
}

/// What a range of memory holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AreaKind {
    /// Nothing but what was written to it.
    Anonymous,
    /// A file's content, with own pages where it was written to.
    Private {
        /// The path of the file inside.
        path: String,
        /// Where in the file the area begins.
        offset: u64,
    },
    /// A file's content, shared with all who map it.
    Shared {
        /// The path of the file inside.
        path: String,
        /// Where in the file the area begins.
        offset: u64,
        /// Whether it may ever be written through this mapping.
        writable: bool,
    },
    /// Shared memory of System V, all of it.
    Segment {
        /// The number of the segment of shared memory.
        id: i32,
        /// Whether it may be written to.
        writable: bool,
    },
    /// A file without a name.
    Nameless {
        /// Which, an index into [`Image::contents`](super::Image::contents).
        content: usize,
        /// Where in the file the area begins.
        offset: u64,
        /// Whether what is written to it is seen by all.
        shared: bool,
        /// Whether it may ever be written through this mapping.
        writable: bool,
    },
    /// The kernel's own: vdso, vvar.
    Kernel {
        /// Which, as /proc/PID/maps names it.
        name: String,
    },
    /// Events of a context of asynchronous input and output (io_setup(2)), whose number is where they lie.
    AioRing(AioRing),
}

/// Such a context, of which nothing is in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AioRing {
    /// How many requests it was made for.
    pub requests: u32,
    /// Where in the ring the next event is taken.
    pub head: u32,
    /// The events from there on that nobody has taken: `struct io_event`.
    pub events: Vec<[u64; 4]>,
}

impl AreaKind {
    /// Whether pages of it can be the process's own, so that the holder has them. Shared files are mapped by each clone
    /// from its own files, the kernel's mappings are the holder's own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Anonymous | Self::Private { .. } | Self::Nameless { shared: false, .. })
    }
}

/// What a process has asked of the kernel for its memory as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRules {
    /// Which barriers of membarrier(2) it has registered for: the numbers of the commands that do that, or'ed.
    pub barriers: u32,
    /// Whether nothing of it becomes executable: the flags of PR_SET_MDWE.
    pub execution: u32,
    /// Whether equal pages of it are merged (PR_SET_MEMORY_MERGE).
    pub merged: bool,
}

/// Which state of a memory in the kernel, of two bits each of which the lower says that it is done, and what
/// membarrier(2) tells of it.
const WAYS: [(u32, u32); 4] = [(1, 1 << 4), (3, 1 << 2), (5, 1 << 6), (7, 1 << 8)];

/// What membarrier(2) tells of what a memory is registered for, by the kernel's state of it.
pub(crate) fn barriers_registered(state: u64) -> u32 {
    WAYS.iter().filter(|(bit, _)| state >> bit & 1 == 1).fold(0, |all, (_, registration)| all | registration)
}

impl MemoryRules {
    /// Whether a clone can ask for all of these.
    pub(crate) fn are_known(self) -> bool {
        self.barriers & !barriers_registered(u64::MAX) == 0 && self.execution <= 3
    }
}

/// Where a program's addresses end (x86-64 with four levels of page tables).
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;

pub(crate) const PAGE: u64 = 4096;

/// What is captured of the advice that a range of memory was given (madvise(2)), by the letters that /proc/PID/smaps
/// has for it. The rest of madvise(2) is an act and no property: an image that names any of it was never captured.
pub(crate) const KEPT_ADVICE: [(&str, i32); 8] = [
    ("dc", libc::MADV_DONTFORK),
    ("wf", libc::MADV_WIPEONFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("mg", libc::MADV_MERGEABLE),
    ("sr", libc::MADV_SEQUENTIAL),
    ("rr", libc::MADV_RANDOM),
];

/// Whether staged memory can have the advice already. What forks leave out must be said where nothing forks any more.
pub(crate) fn is_kept(advice: u32) -> bool {
    !matches!(advice as i32, libc::MADV_DONTFORK | libc::MADV_WIPEONFORK)
}
