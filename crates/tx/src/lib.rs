//! System transactions for whole commands: commit everything, or leave no trace.
//!
//! A transaction's processes see the live system through a *view*: private overlays whose lower layers are the live
//! mounts. What they change lands in upper directories. A commit reads those as a *change set*, checks that nobody else
//! changed the same things, writes a *journal*, and does what it says to the live tree, idempotently: a crash at any
//! point is finished or undone by the next command. An abort throws the directories away.
//!
//! ```text
//!   mounts ─▶ view ─▶ CMD in a scope ─▶ upper directories
//!                                           │ walk
//!                                           ▼
//!   live tree ─────────────────────▶ Node (what each name was and is)
//!                                           │ validate ─▶ conflict: abort, run again
//!                                           │ plan
//!                                           ▼
//!                                        Steps ─▶ journal ─▶ apply ─▶ live tree
//!                                                   └─ recover ─┘
//! ```
//!
//! What a transaction read is validated as well, where the kernel tells it: see `read_set`.
//!
//! The crate works on plain paths, processes and control groups. It knows no guests and needs no daemon.

mod change;
mod crash;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod gate;
mod journal;
mod log;
mod prewarm;
mod run;
mod state;
mod supervise;
mod transaction;
mod tree;
mod validate;
mod view;

pub use change::kept::About;
pub use change::partial::{Dependence, Why};
pub use change::review::{Export, Exported, Look, PartReview, Reviewed};
pub use change::selection::Selection;
pub use change::split_attribution::FileBaseline;
pub use change::{Change, Sign};
pub use gate::{
    Exclusive, GateChoice, GateError, GateKind, GateRequest, GateUsed, HostGate, Waiter, offers, waiting_for,
};
pub use journal::commit_error::CommitError;
pub use log::{Entry, KeepBounds, LogError, Logged, PutBack, Standing, clear, entry, list, put_back};
pub use prewarm::prewarmed::{HandedOver, Prewarmed, Remains};
pub use run::{
    Attempt, Concluded, Feeding, HeldOutput, Lesson, MOST_VIEWS, Otherwise, ReplayedInput, Retry, RetryPolicy, Runner,
    Tried, run_with_retries,
};
pub use state::directory::StateDirectory;
pub use state::mount_path::Crossing;
pub use state::name::{BadName, TxName};
pub use state::overlay_part::OverlayPart;
pub use state::record::Record;
pub use state::target::{Target, TargetRoot};
pub use state::trash::{Sweep, mounted_in_trash, rubbish, sweep, sweep_mounts};
pub use supervise::{
    Answered, Bystanders, HeldSignals, Listener, Network, Passed, Reached, Still, Supervisor, Unsupported,
    WhenUnsupported, filter, note_reached,
};
pub use transaction::daemons::Settled;
pub use transaction::in_memory::Memory;
pub use transaction::recover::{Recovered, recover, recover_in};
pub use transaction::{
    BeginError, CommitRequest, EndError, Ended, Hosted, HostedCommit, KeepRequest, Leavings, Looks, Rest, Running,
    StartError, Transaction, abort_open, changes_now, commit_open, doomed_open, end_processes_of_open, processes,
    review_of_open,
};
pub use tree::attributes::Moment;
pub use tree::path::TreePath;
pub use validate::abort_reason::AbortReason;
pub use validate::change_set::{Figures, PartChanges};
pub use validate::conflict::{Conflict, Interference};
pub use validate::contention::Contention;
pub use validate::known_names::KnownNames;
pub use validate::read_set::{Watch, note_canary};
pub use view::{How, ViewPlan};
