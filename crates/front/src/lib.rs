//! The command's front: `pando run -- CMD` and `pando exec NAME -- CMD`, without terminals, and `pando clone IMAGE
//! NAME`, before there is a C library.
//!
//! A static program of a C library asks the processor some ninety questions (CPUID) before `main`, and on a virtual
//! machine each is answered by the host, after microseconds: of a short command that is the larger half. So the
//! command's file has an entry of its own. It reads the line; if that is plain, and a daemon answers, it sends the
//! call, waits, and exits with the code that it is told. Of `pando tx run -- CMD` it asks for the beginning that the
//! daemon has made ahead, which comes while the program starts. For everything else it returns, and the program starts
//! as any other:
//!
//! ```text
//!   entry ─▶ line ─▶ passage (0, 1, 2) ─▶ request ═══▶ daemon
//!     │        │        │                    │
//!     │        └────────┴── not plain ──▶ the C library's start ─▶ main
//!     │                                      ▲
//!     └─ notice ─▶ exit                      └── Handover: a signal, a complaint,
//!                                                anything unexpected after the call was sent
//! ```
//!
//! Nothing is decided here that `main` would decide otherwise; the tests of both read the same lines and messages.

#![cfg_attr(not(test), no_std)]

mod handover;
mod line;
mod notice;
mod passage;
#[cfg(feature = "program")]
mod program;
mod request;

pub use handover::{Call, handed_over};
pub use line::{Line, Options, Rooted, read};
pub use notice::{Notice, first_notice};
pub use passage::{Passage, passage};
pub use request::{Request, TooLong};
