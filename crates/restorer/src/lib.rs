//! The language between the freezer and a *holder*, the process that owns a frozen image's memory and forks its clones.
//!
//! A holder is this crate's program. It has no heap, no C library and no opinions: it is handed a [`Header`] and arrays
//! of [`Step`]s, resolved and checked by the freezer, and carries them out. Nearly every step is one system call whose
//! arguments were known when the image was made.
//!
//! ```text
//!   freezer ──Hold: script, root──▶ holder      staging steps: map, copy out of the frozen processes, collapse
//!   cloner  ──Clone: fds─────────▶ holder ──clone3(VM|VFORK)──▶ entrant: cgroups, namespaces
//!                                     └──clone3(VM|VFORK, set_tid)──▶ maker, in the clone's pid namespace
//!                                    the maker opens what is shared, then forks each process, which forks its
//!                                    children, takes its own steps, makes its threads; the maker exits, and what it
//!                                    forked belongs to the clone's first process
//!   cloner  ◀──one Report a process─ every thread waits at the gate
//!   cloner  opens the gate ────────▶ every thread takes its last steps and returns into the frozen program
//!                                    (rt_sigreturn); the last one of a process unmaps all of this
//! ```
//!
//! A first process that is one of the image is forked by nobody: it executes this program, and becomes what it is to be
//! by a script of its own.
//!
//! ```text
//!   cloner  ──Become: fds────────▶ first process    takes what the maker hands over, copies its memory, takes its own
//!                                                   steps like any other
//! ```
//!
//! The whole program lives in [`REGION`], moved out of its executable into anonymous memory when it starts, so that it
//! survives everything being unmapped around it, and so that the frozen program's own executable can become the
//! process's.

#![no_std]
#![forbid(unsafe_code)]

mod message;
mod place;
mod step;
pub mod trampoline;

pub use message::{Answer, Report, Request, WORDS};
pub use place::{HANDOVER, MEMORY, PARKING, REGION, REGION_LENGTH, RINGS, SCRIPT, STACK_LENGTH, STACKS, thread_stack};
pub use step::{EXACT, FORGIVE, Header, NEXT_NUMBER, ONTO, PATIENT, Special, Step};
