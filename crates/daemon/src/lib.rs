//! The daemon: it knows the guests, starts and stops them, and answers clients.
//!
//! ```text
//!   client ──varlink──▶ server ──▶ dispatch ──▶ life (create, start, stop, remove, run, exec, copy)
//!                                                 │  registry: guests by name, one command at a time on each
//!                                                 ▼
//!                        spawner ──shims──▶ pool ──▶ link: one shim's socket, watched by its keeper
//! ```
//!
//! It has one thread for all of this, and lends work that may block to others. It may be killed at any moment: guests
//! do not depend on it, what it knows lies in files replaced as a whole, and the next daemon finds the guests by their
//! shims (`recover`).

#![forbid(unsafe_code)]

mod clone;
mod crash;
mod dispatch;
mod failure;
mod freeze;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod init;
mod inspection;
mod launch;
mod lifecycle;
mod logs;
mod network;
mod resources;
mod runtime;
mod server;
mod settings;
mod state;
mod store;
mod supervision;
mod warm;

pub use resources::exposition;
pub use server::{ServeError, serve};
pub use state::image_records::PARSERS;
pub use state::state_disk::shortage;

/// Everything that is wrong with a file of settings, in sentences.
pub fn problems_of(settings: &pando_guest::settings::Settings) -> Vec<String> {
    settings::problems(settings).iter().map(ToString::to_string).collect()
}

/// The spawner's main: serves the daemon on the socket that is its standard input.
pub fn spawn(places: &pando_guest::Places) -> Result<(), pando_kernel::CallError> {
    use pando_kernel::Context;
    use std::os::fd::AsFd;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context(|| "taking over the daemon's socket".into())?;
    pando_guest::spawner::serve(places, &socket)
}
