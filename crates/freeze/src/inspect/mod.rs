//! What /proc and the kernel say of processes, whether they run or stand still. Nothing here changes a process but
//! [`host_settings`], which can write as well.

pub(crate) mod areas;
pub(crate) mod credentials;
pub(crate) mod descriptors;
pub(crate) mod handle_walk;
pub(crate) mod host_settings;
pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod mount_tree;
pub(crate) mod namespaces;
pub(crate) mod open_files;
pub(crate) mod open_namespaces;
pub(crate) mod pidfd;
pub(crate) mod posix_timers;
pub(crate) mod proc_file;
pub(crate) mod process_tree;
pub(crate) mod socket_table;
pub(crate) mod terminal_ends;
pub(crate) mod thread_settings;
