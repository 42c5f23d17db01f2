//! Files and trees of files, found and changed by descriptor.

pub mod access_gate;
pub mod confined;
pub mod dedupe;
pub mod directory_chain;
pub mod fanotify;
pub mod fs_owner;
pub mod handle;
pub mod lock;
pub mod operator_path;
pub mod proc_file;
pub mod read_gate;
pub mod signal;
pub mod tree_copy;
pub mod tree_removal;
pub mod trusted_directory;
pub mod writers;
