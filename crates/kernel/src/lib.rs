//! The kernel's offers as safe Rust: what std, rustix and nix leave out, and what they offer too thinly for hosting
//! guests.
//!
//! This crate knows no guests. Each module is one offer of the kernel; each resource is a value whose drop releases it;
//! each function is named by its system call and says its units, its errors and since which kernel it exists. With the
//! freestanding [seed](../pando_seed) it is the only place of Pando that holds unsafe code.
//!
//! ```text
//!   bpf       programs attached to groups, devices, namespaces
//!   mount     detached trees: clone, id-map, overlay, tmpfs        cgroup   v1 and v2, decided hierarchy by hierarchy
//!   fs_owner  the file-system identity of this thread              pidfd    processes without pid races
//!   id_map    ids of a user namespace                              packet   messages that carry descriptors
//!   memory_file  sealed memory as a file                           signal   signals by name
//!   page_cache  what of a file is in memory
//!   erofs    images of metadata, from a file                        io_priority  stepping back for others
//!   inheritance  what an executed program gets of ours             probe    what this kernel grants
//!   attach    trees in another mount namespace                    mount_watch  hearing of changes to one
//!   read_gate  reads of files, held up until somebody lets them through
//!   real_time  a thread that runs before all others              time_slice  one that has its turn sooner
//!   fanotify  who opens what on a file system                     file_handle  files by inode and generation
//!   born_in_group  programs started in a control group            seccomp_notify  system calls that another answers
//!   loop_device  files as block devices                            ext4      growing in use
//!   project_quota  room of a directory                            uts      host names of others
//!   btrfs     subvolumes and their quotas
//!   trace     threads of other processes, stopped                  foreign_memory  their memory and descriptors
//!   borrowed  what such threads are made to do                    outliving  what puts them right if this is killed
//!   socket_option, socket_peek  sockets as bytes                   unix_diag  which of them are connected
//!   sysv      segments, semaphores and messages by number        terminal  pseudo-terminals
//!   mqueue    message queues by name                             pid_namespace  processes as others number them
//!   unfiltered  threads without this process's filter             forbidden  whether there is one
//!   user_namespace  which lie in which                            namespace  kind and owner of open ones
//!   swap_files  what the kernel swaps to                          spare_room  what foreign data may take
//!   tree_removal  trees of files, mounts in them excepted         directory_chain  a walk, however deep
//!   trusted_directory  directories that only root can change, by descriptor
//!   network   what a network namespace has besides sockets        netlink_dump  all answers to one question
//! ```

#![warn(clippy::missing_errors_doc)]

pub mod attach;
pub mod born_in_group;
pub mod borrowed;
pub mod bpf;
mod bpf_command;
pub mod bpf_iterator;
pub mod btrfs;
pub mod cgroup;
pub mod collapse;
pub mod confined;
pub mod conntrack;
pub mod dedupe;
pub mod directory_chain;
pub mod erofs;
pub mod ext4;
pub mod fanotify;
pub mod file_handle;
pub mod file_signal;
pub mod follower;
pub mod forbidden;
pub mod foreign_memory;
pub mod fs_owner;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod guardian;
pub mod heap;
pub mod id_map;
pub mod inheritance;
pub mod io_priority;
pub mod lock;
pub mod loop_device;
pub mod memory_file;
pub mod memory_map;
pub mod mistake;
pub mod mount;
pub mod mount_lock;
pub mod mount_watch;
pub mod mqueue;
pub mod namespace;
mod netlink_dump;
pub mod network;
pub mod network_settings;
pub mod outliving;
pub mod overlay;
mod owed;
pub mod own_program;
pub mod packet;
pub mod page_cache;
pub mod pagemap;
pub mod pid_namespace;
pub mod pidfd;
pub mod probe;
pub mod proc_file;
pub mod process;
pub mod project_quota;
pub mod read_gate;
pub mod real_time;
pub mod release;
pub mod scheduling_policy;
pub mod seccomp_notify;
pub mod signal;
pub mod socket_option;
pub mod socket_peek;
pub mod spare_room;
pub mod stranger;
pub mod subreaper;
pub mod swap_files;
pub mod sysv;
pub mod tcp_repair;
pub mod terminal;
pub mod time_slice;
pub mod trace;
mod trace_calls;
pub mod tree_copy;
pub mod tree_removal;
pub mod trusted_directory;
pub mod unfiltered;
pub mod unix_diag;
pub mod user_namespace;
pub mod uts;

/// An error of a system call, and what the call was about.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct CallError {
    /// What was tried, on what.
    pub what: String,
    /// The error that the system call gave.
    #[source]
    pub source: std::io::Error,
}

/// Names what a fallible system call was about.
pub trait Context<T> {
    /// Adds what was tried, on what.
    ///
    /// # Errors
    ///
    /// The one that there was, named.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, CallError>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, CallError> {
        self.map_err(|source| CallError { what: what(), source: source.into() })
    }
}
