//! `pando top`: a live view of what guests use.
//!
//! ```text
//!   daemon ──Stats──▶ rows (rates, order, filter: plain data) ──▶ screen (ratatui) ──▶ terminal
//!                        ▲                                          keys: order, filter, choose, kill
//! ```

mod keys;
mod rows;
mod screen;

pub(crate) use keys::watch;
pub(crate) use rows::{Order, View};
pub(crate) use screen::text;
