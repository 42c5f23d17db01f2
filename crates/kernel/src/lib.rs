//! The kernel's offers as safe Rust: what std, rustix and nix leave out, and what they offer too thinly for hosting
//! guests.
//!
//! This crate knows no guests. Each module is one offer of the kernel; each resource is a value whose drop releases it;
//! each function is named by its system call and says its units, its errors and since which kernel it exists. With the
//! freestanding [shim](../pando_shim) it is the only place of Pando that holds unsafe code.
//!
//! ```text
//!   mount       detached trees: clone, id-map, overlay, tmpfs; trees in other namespaces; hearing of changes
//!   filesystem  what is particular to one kind (btrfs, ext4, erofs), loop devices, quotas, the room that is left
//!   file        files by descriptor: confined paths, trees copied and removed, locks, handles, who opens what
//!   process     /proc, pidfds, priorities, what a program inherits, processes that outlive this one
//!   trace       threads of other processes, stopped; what they are made to do; who puts that right if this is killed
//!   memory      files of it, mappings, pages, the page cache
//!   socket      options and queues as bytes, messages that carry descriptors, connections in repair
//!   network     what a network namespace has besides sockets
//!   ipc         segments, semaphores and queues
//!   namespace   kind and owner of open ones, ids of users, processes as others number them, host names
//!   cgroup      v1 and v2, decided hierarchy by hierarchy
//!   seccomp     calls that another process answers, threads without this process's filter
//!   bpf         programs attached to groups, devices, namespaces; iterators
//!   terminal    pseudo-terminals
//!   probe       what this kernel grants
//! ```

#![warn(clippy::missing_errors_doc)]

pub mod bpf;
pub mod cgroup;
pub mod file;
pub mod filesystem;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod ipc;
pub mod memory;
pub mod mistake;
pub mod mount;
pub mod namespace;
pub mod network;
pub mod probe;
pub mod process;
pub mod release;
pub mod seccomp;
pub mod socket;
pub mod terminal;
pub mod trace;

/// An error of a system call, and what the call was about.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct CallError {
    /// What was tried, on what.
    pub what: String,
    /// The error that the system call gave.
    #[source]
    pub source: std::io::Error,
}

/// Names what a fallible system call was about.
pub trait Context<T> {
    /// Adds what was tried, on what.
    ///
    /// # Errors
    ///
    /// The one that there was, named.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, CallError>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, CallError> {
        self.map_err(|source| CallError { what: what(), source: source.into() })
    }
}
