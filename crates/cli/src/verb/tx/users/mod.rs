//! Transactions of users who are not root.
//!
//! ```text
//!   pando tx run (the user)                     pando tx serve (root)
//!     client ── connects; the kernel says who ──▶ server: is he one of `users`, has he room for one more?
//!       │                                           │ starts, with that connection
//!       ├── command, environment, descriptors ──▶ worker: one attempt, and gone with it
//!       ├── signals ────────────────────────────▶   │  view in memory ▷ command with his rights ▷ commit within these
//!       ◀── the last line, the exit code ───────────┘
//! ```
//!
//! A client that goes has aborted. A worker that is killed leaves what any transaction leaves; the server recovers it.

mod allowed;
mod caller;
mod client;
mod conversation;
mod request;
mod server;
mod worker;

pub(super) use client::run;
pub(super) use server::Serve;
pub(super) use worker::Work;

use crate::state_root::StateRoot;
use std::path::PathBuf;

/// Where users ask.
fn socket(root: &StateRoot) -> PathBuf {
    root.run().join("tx-users.sock")
}
