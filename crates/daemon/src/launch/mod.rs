//! From a guest at rest to a running one, and further processes in one that runs.

pub(crate) mod boot;
pub(crate) mod exec;
pub(crate) mod hook_runs;
pub(crate) mod host_devices;
pub(crate) mod mounts_below;
