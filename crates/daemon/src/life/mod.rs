//! The life of guests: one file a thing that can be done.

pub(crate) mod address;
pub(crate) mod boot;
pub(crate) mod clone;
pub(crate) mod collect;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod end;
pub(crate) mod exec;
mod files_ahead;
pub(crate) mod fold;
pub(crate) mod freeze;
mod hooks;
pub(crate) mod hot;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod layers;
pub(crate) mod remove;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod set;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod storage;
pub(crate) mod transactions;
pub(crate) mod unify;
