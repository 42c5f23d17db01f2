//! The holder of frozen memory, and the making of clones of what it holds.

pub(crate) mod error;
pub(crate) mod frozen;
pub(crate) mod hindrance;
pub(crate) mod holder;
pub(crate) mod host_settings;
pub(crate) mod page_offer;
pub(crate) mod page_sample;
pub(crate) mod planted;
pub(crate) mod ready_barrier;
pub(crate) mod revival;
pub(crate) mod start;
