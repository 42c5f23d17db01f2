//! What is to run: which guests are started again after their end, and at boot.
//!
//! ```text
//!   end of a life ─▶ restart_plan (plain data) ─▶ record: up, restarts ─▶ restarts: waits, starts
//!   a new daemon  ─▶ boot_plan    (plain data) ─────────────────────────▶ boot: one after another
//!   a life begins ─▶ health: asks now and then ─▶ health_plan (plain data) ─▶ state, event, action
//!   any event ─▶ host_hooks: programs of the host's
//! ```
//!
//! Policies stand in the specs, and what they go by in the records of guests: they hold under the next daemon.

pub(crate) mod boot;
mod boot_plan;
pub(crate) mod health;
mod health_plan;
pub(crate) mod host_hooks;
pub(crate) mod restart_plan;
pub(crate) mod restarts;
