//! Freezes a running tree of processes, holds it, and clones it copy-on-write: the Freezer of the thesis, for processes of a stock kernel.
//!
//! ```text
//!   survey ─▶ stop ─▶ capture ─▶ Image ─▶ snapshot ─▶ plan ─▶ Script ──▶ holder (a process of its own: the program in ../restorer)
//!   what cannot be     ptrace:    plain    a fork of  every address,       │ copies the frozen memory once, out of the snapshots,
//!   frozen is named    SEIZE,     data     each       descriptor, pid      │ while the processes run on
//!   before anything    INTERRUPT           process    and call decided     ▼
//!   is stopped                                            clone: entrant ▷ maker ▷ processes ▷ threads ▷ gate ▷ rt_sigreturn
//! ```
//!
//! What processes share since a fork is found (`fork_sharing`) when it is known which pages they have, and kept once.
//!
//! Each kind of object has a file that captures it and writes how it is made: `descriptors` and `objects` (files, pipes, events), `epoll`, `leases`, `own_proc`, `memory_rules`, `pressure`, `process_descriptors`, `unix_socket` and
//! `unix_making`, `socket_queue` and `in_flight` (what waits in them), `plain_socket` (TCP, UDP, netlink), `connections` and `revival` (TCP), `contents` and `content_making` (what has no name: shared
//! memory, deleted files), `aio` (what was asked of files and is done meanwhile), `sysv` and `sysv_making`, `queues`, `timers`, `credentials`, `terminals`, `inotify`, `given` (what the guest has mounted since),
//! `nested` (namespaces beside the first process's: `namespaces`, `mount_spaces` and `mount_making`, `ipc_spaces`, `net_spaces`, `own_network` (the guest's own), `user_spaces`,
//! `host_names`, `open_namespaces`), `control_groups`.
//!
//! What a clone could not have is looked for by each of them, and, where it is none of these objects, by `survey`, `sharing` and `oddities`.
//!
//! An image can be kept as files (`keep`: a `sheet` each, out of the holder) and a holder be made from those (`thaw`), once all that was read has been
//! looked at (`check`), and the `machine` with it.
//!
//! A tree of processes can be taken out of one pid namespace and put into another (`transplant`): a clone of it there, and the end of it here.
//!
//! It works on plain pids, cgroups and descriptors. What is frozen is every process of a pid namespace, but its first if that is somebody else's; what is made
//! by a clone lives below the first process of another pid namespace, which somebody else has started, in its namespaces and root, with the pids that it had,
//! and that process becomes the frozen first one, if there is one (`first`). A
//! clone's memory is forked from the holder's and moved into place (mremap(2)), so it is ordinary anonymous memory, shared until it is written to.

mod ahead;
mod aio;
mod areas;
mod arrivals;
mod asking;
mod bounded;
mod bpf_object;
mod capture;
mod check;
mod check_numbers;
mod check_spaces;
mod clone;
mod connections;
mod content_making;
mod contents;
mod control_groups;
mod credentials;
mod descriptors;
mod dispatched_calls;
mod early_contents;
mod epoll;
#[cfg(any(test, feature = "fuzz"))]
mod example;
mod first;
mod fork_sharing;
mod frame;
mod freeze;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod generators;
mod given;
mod growth;
mod handle_walk;
mod holder;
mod host_names;
mod host_settings;
mod identity;
pub mod image;
mod in_flight;
mod injection;
mod inotify;
mod interrupted;
mod ipc;
mod ipc_spaces;
mod keep;
#[cfg(test)]
mod kinds;
mod landing;
mod leases;
mod likeness;
mod limits;
mod lineage;
mod lost_names;
mod machine;
mod memory_rules;
mod mount_difference;
mod mount_making;
mod mount_spaces;
mod mount_tree;
mod namespaces;
mod needed_calls;
mod nested;
mod net_spaces;
mod objects;
mod oddities;
mod onlooker;
mod open_files;
mod open_namespaces;
mod origin;
mod own_network;
mod own_proc;
mod pid_counter;
mod pipes;
mod plain_socket;
mod plan;
mod planted;
mod powers;
mod pressure;
mod proc_file;
mod process_descriptors;
mod process_groups;
mod queues;
mod rebirth;
mod refusal;
mod resumption;
mod revival;
mod script;
mod sharing;
mod sheet;
mod snapshot;
mod socket_options;
mod socket_queue;
mod sockets;
mod staging;
mod standing;
mod stop;
mod survey;
mod sysv;
mod sysv_making;
mod terminals;
mod thaw;
mod thread_settings;
mod timers;
mod told;
mod touched;
mod transplant;
mod tree;
mod unix_making;
mod unix_socket;
mod user_spaces;
mod verdict;

pub use clone::{CloneError, Cradle, Going, Ready, Target};
pub use descriptors::Outside;
pub use freeze::{Frozen, Manner, Subject, freeze, freeze_and_end, freeze_with};
pub use generators::Generator;
pub use given::Given;
pub use holder::{Holder, program};
pub use image::connection::{Connection, Ends, Peer, is_loopback};
pub use image::dormancy::Dormancy;
pub use likeness::Difference;
pub use needed_calls::NeededCall;
pub use onlooker::Onlooker;
pub use own_network::GivenNetwork;
pub use powers::Powers;
pub use refusal::{FreezeError, Refusal};
pub use revival::{Revived, revive};
pub use sheet::{Kind, Sheet, SheetError, VERSION, open_sheet, read_sheet, write_sheet};
pub use survey::{survey, written_mappings};
pub use thaw::{LONGEST_TREE, ThawError, adopt, put_anew, thaw};
pub use touched::{Entries, Since, Touched};
pub use transplant::{Bed, Moved, TransplantError, transplant};
