//! Freezes a running tree of processes, holds it, and clones it copy-on-write: the Freezer of the thesis, for processes
//! of a stock kernel.
//!
//! ```text
//!   precheck ─▶ stop ─▶ capture ─▶ Image ─▶ snapshot ─▶ restore ──▶ Script ──▶ holder
//!   what cannot be      ptrace:    plain    a fork of   every address,          │ a process of its own: the program
//!   frozen is named     SEIZE,     data     each        descriptor, pid         │ in ../restorer; it copies the frozen
//!   before any process  INTERRUPT           process     and call decided        │ memory once, out of the snapshots,
//!   is stopped                                                                  │ while the processes run on
//!                                                                               ▼
//!                clone: entrant ▷ maker ▷ processes ▷ threads ▷ gate ▷ rt_sigreturn
//! ```
//!
//! | room | what is in it | what it may import |
//! |---|---|---|
//! | `image` | the image: plain data, and what follows from that data alone | nothing of the other rooms |
//! | `inspect` | what /proc and the kernel say of processes | `image` |
//! | `stop` | stopping processes, calls in their place, interrupted calls, snapshots | `inspect` |
//! | `bpf` | programs in the kernel: the iterator over tasks, the map of touched files | `stop`, `inspect` |
//! | `capture` | what processes have becomes an image: a file for each kind of object | `bpf`, `stop`, `inspect` |
//! | `restore` | an image becomes a script: a file for each kind, and `plan` | `image`, a little of `inspect` |
//! | `precheck` | what cannot be frozen: a file for each kind of object, and `survey` of all | all above |
//! | `likeness` | how a clone differs from its image | `capture`, `restore` |
//! | `clone` | the holder, the making of clones, their pages worth sharing | `restore`, `likeness` |
//! | `disk` | an image as files: saving, loading, checking all that was read | `clone`, `restore` |
//! | `freeze` | the verbs: freezing, and taking a tree from one pid namespace to another | all |
//!
//! `capture` and `restore` never import each other: an object's two files share what `image` says of it. What both must
//! know of the code that a thread resumes through is in `trampoline`.
//!
//! It works on plain pids, cgroups and descriptors. What is frozen is every process of a pid namespace, but its first
//! if that belongs to the caller. What is made by a clone lives below the first process of another pid namespace, which
//! the caller has started, in its namespaces and root, with the pids that it had. That process becomes the frozen first
//! one, if there is one (`restore::first_process`). A clone's memory is forked from the holder's and moved into place
//! (mremap(2)): so it is ordinary anonymous memory, shared until it is written to. What processes share since a fork is
//! found (`capture::fork_sharing`) when it is known which pages they have, and kept once.

mod bpf;
mod capture;
mod clone;
mod disk;
#[cfg(any(test, feature = "fuzz"))]
mod example;
mod freeze;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod image;
mod inspect;
#[cfg(test)]
mod kinds;
mod likeness;
mod origin;
mod precheck;
mod refusal;
mod restore;
mod stop;
mod subject;
mod trampoline;

pub use bpf::accept_queue::AcceptQueues;
pub use bpf::task_iterator::TaskIterator;
pub use bpf::touched::{Entries, Since, Touched};
pub use capture::generators::Generator;
pub use clone::error::CloneError;
pub use clone::frozen::Frozen;
pub use clone::holder::{Holder, program};
pub use clone::page_offer::{Offer, is_of_the_moment, not_offered, offer};
pub use clone::page_sample::{HeldPages, SampledArea, SampledPage, Sampling, has_gone};
pub use clone::revival::{Revived, revive};
pub use clone::start::{Going, Handoff, Ready, Target};
pub use disk::image_file::{
    ImageFile, ImageFileError, Kind, VERSION, open_image_file, read_image_file, write_image_file,
};
pub use disk::load::{LONGEST_TREE, LoadError, adopt, fold, load, put_anew};
pub use disk::needed_calls::NeededCall;
pub use disk::powers::Powers;
pub use freeze::migrate::{Bed, MigrateError, Moved, migrate};
pub use freeze::{Manner, freeze, freeze_and_end, freeze_with};
pub use image::connection::{Connection, Ends, Peer, is_loopback};
pub use image::dormancy::Dormancy;
pub use inspect::descriptors::Outside;
pub use likeness::Difference;
pub use precheck::survey::{survey, written_mappings};
pub use refusal::{FreezeError, Refusal};
pub use subject::{Given, GivenNetwork, GivenPlace, Subject};
