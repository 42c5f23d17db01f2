//! What is done to a guest from its creation to its removal, and what a new daemon takes over.

pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod end;
pub(crate) mod forget;
pub(crate) mod kill;
pub(crate) mod pause;
pub(crate) mod preempt;
pub(crate) mod quarantine;
pub(crate) mod recover;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod set;
pub(crate) mod settings_key;
pub(crate) mod signal;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod supervisor;
pub(crate) mod takeover;
pub(crate) mod wait;
