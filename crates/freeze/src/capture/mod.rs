//! Reads what processes have into an image, all but the contents of their memory: a file for each kind of object, and
//! [`tree`] that has them all read.
//!
//! Nothing here knows how an object is made again: that is in `restore`, which knows nothing of this room.

pub(crate) mod ahead;
pub(crate) mod aio;
pub(crate) mod connections;
pub(crate) mod contents;
pub(crate) mod control_groups;
pub(crate) mod descriptors;
pub(crate) mod early_contents;
pub(crate) mod epoll;
pub(crate) mod findings;
pub(crate) mod fork_sharing;
pub(crate) mod generators;
pub(crate) mod given;
pub(crate) mod in_flight;
pub(crate) mod inotify;
pub(crate) mod ipc;
pub(crate) mod leases;
pub(crate) mod lost_names;
pub(crate) mod mount_difference;
pub(crate) mod mount_spaces;
pub(crate) mod nested;
pub(crate) mod networks;
pub(crate) mod peer_credentials;
pub(crate) mod pipes;
pub(crate) mod plain_socket;
pub(crate) mod process;
pub(crate) mod ptrace_query;
pub(crate) mod queues;
pub(crate) mod registers;
pub(crate) mod socket_options;
pub(crate) mod socket_queue;
pub(crate) mod sockets;
pub(crate) mod sysv;
pub(crate) mod terminals;
pub(crate) mod tree;
pub(crate) mod unaccepted;
pub(crate) mod unaccepted_unix;
pub(crate) mod unix_socket;
pub(crate) mod urgent_data;
pub(crate) mod user_spaces;
