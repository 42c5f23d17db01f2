//! Writes the script that makes what an image says: a file for each kind of object, the [`script`] itself, and [`plan`]
//! that has all of it written.
//!
//! Nothing here knows how an object was captured: an image is all that is known.

pub(crate) mod aio;
pub(crate) mod contents;
pub(crate) mod control_groups;
pub(crate) mod epoll;
pub(crate) mod facts;
pub(crate) mod filter_verdict;
pub(crate) mod first_process;
pub(crate) mod identity;
pub(crate) mod inotify;
pub(crate) mod leases;
pub(crate) mod lineage;
pub(crate) mod memory_rules;
pub(crate) mod mounts;
pub(crate) mod namespaces;
pub(crate) mod networks;
pub(crate) mod objects;
pub(crate) mod own_files;
pub(crate) mod peer_credentials;
pub(crate) mod pid_counter;
pub(crate) mod plain_socket;
pub(crate) mod plan;
pub(crate) mod pressure;
pub(crate) mod process_groups;
pub(crate) mod process_script;
pub(crate) mod queues;
pub(crate) mod resume_trampoline;
pub(crate) mod script;
pub(crate) mod signal_frame;
pub(crate) mod slots;
pub(crate) mod staging;
pub(crate) mod sysv;
pub(crate) mod terminals;
pub(crate) mod thread_script;
pub(crate) mod thread_settings;
pub(crate) mod timers;
pub(crate) mod unix_origin;
pub(crate) mod unix_socket;
pub(crate) mod user_spaces;
