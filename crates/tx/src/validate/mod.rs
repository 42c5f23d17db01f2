//! Validation: whether what a transaction read and changed is still what it found, and who goes on when two of them
//! meet.

pub(crate) mod abort_reason;
pub(crate) mod change_set;
pub(crate) mod changes;
pub(crate) mod conflict;
pub(crate) mod contention;
pub(crate) mod in_use;
pub(crate) mod known_names;
pub(crate) mod permission;
pub(crate) mod reach;
pub(crate) mod read_set;
pub(crate) mod removed;
pub(crate) mod revalidation;
pub(crate) mod twice_changed;
pub(crate) mod unmounted;
