//! The daemon: it knows the guests, starts and stops them, and answers clients.
//!
//! ```text
//!   client ──varlink──▶ server ──▶ dispatch ──▶ life (create, start, stop, remove, run, exec, copy)
//!                                                 │  registry: guests by name, one command at a time on each
//!                                                 ▼
//!                        spawner ──seeds──▶ pool ──▶ link: one seed's socket, watched by its keeper
//! ```
//!
//! It has one thread for all of this, and lends work that may block to others. It may be killed at any moment: guests do not depend on it, what it
//! knows lies in files replaced as a whole, and the next daemon finds the guests by their seeds (`recover`).

#![forbid(unsafe_code)]

mod bandwidth;
mod buds;
mod clearing;
mod crash;
mod daemon;
mod descriptors;
mod dispatch;
mod events;
mod failure;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guest;
mod image;
mod image_records;
mod image_stream;
mod image_wants;
mod inspection;
mod life;
mod linger;
mod link;
mod logs;
mod lull;
mod machine_id;
mod networks;
mod pool;
mod private_network;
mod processes;
mod quarantine;
mod readable;
mod ready_files;
mod ready_roots;
mod record;
mod recover;
mod resources;
mod rest;
mod security;
mod server;
mod settings;
mod settings_key;
mod signature_trust;
mod spares;
mod spawner_link;
mod state_disk;
mod takeover;
mod unsettled;
mod walls;
mod weakest;

pub use image_records::PARSERS;
pub use resources::exposition;
pub use server::{ServeError, serve};
pub use state_disk::shortage;

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
