//! The language between the daemon and a *shim*.
//!
//! A shim is a tiny process that already sits where its guest will live: in the guest's cgroups, user namespace and
//! network namespace. The daemon keeps a few of them ready. Starting a guest is then one message: a list of [`Step`]s
//! and the file descriptors that they name. The shim forks, and the child takes the steps one after another; the child
//! of the first launch is the guest's first process, the *init*.
//!
//! ```text
//!   daemon ──Request::Launch + steps + fds──▶ shim ──clone3──▶ init: step, step, …, Init ──vfork──▶ step, …, Exec
//!          ◀─Answer::Forked / Ended────────── shim                │
//!          ◀─Report (a step failed, or all is well) ──────────────┘
//! ```
//!
//! The steps are plain data, made and checked by the daemon's side without privilege, printed by `{:?}`, tested as
//! data. Taking one is a system call or two, and nothing has to be undone: whatever a step made goes away with the
//! process.

#![no_std]
#![forbid(unsafe_code)]

mod message;
mod step;
mod walked_path;

pub use message::{
    ADMITTED, Answer, DIRECT, FIRST_LOOKED_UP, IN_FILE, IN_MESSAGE, LONGEST_LOOKED_UP, MAX_FDS, MAX_MESSAGE, MAX_REST,
    ROUSED, Report, Request, Start,
};
pub use step::{Attributes, Capabilities, Make, Mountpoint, Namespaces, Scopes, Step, Text, TextError, next_step};
pub use walked_path::{PathTooLong, WalkedPath};
