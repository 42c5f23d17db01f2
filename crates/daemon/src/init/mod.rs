//! A guest's first process: what it is made from, how it is sent its plan, what it reports, and what it may become in a
//! clone.

pub(crate) mod birth;
pub(crate) mod clone_slot;
pub(crate) mod console;
pub(crate) mod handoff;
pub(crate) mod hooks;
pub(crate) mod host_name_file;
pub(crate) mod hosts_file;
pub(crate) mod kept_input;
pub(crate) mod launch_builder;
pub(crate) mod link;
pub(crate) mod machine_id;
pub(crate) mod prewarmed;
pub(crate) mod program;
pub(crate) mod slot_clearing;
pub(crate) mod standard_streams;
pub(crate) mod transactions;
