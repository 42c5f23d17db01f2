//! From errors inside to faults that a client can show.

use crate::state::state_disk;
use pando_api::{Fault, FaultKind};
use pando_guest::plan::PlanError;
use pando_guest::{GuestName, NameError};
use pando_kernel::CallError;
use pando_store::StoreError;
use std::io;

/// No guest of that name.
pub(crate) fn no_such_guest(name: &str) -> Fault {
    Fault::new(FaultKind::NoSuchGuest, name, format!("there is no guest '{name}'; 'pando ls' lists those there are"))
}

/// Refuses a name that another guest has.
pub(crate) fn exists(name: &GuestName) -> Fault {
    let message =
        format!("there is a guest '{name}' already; choose another name, or remove it with 'pando rm {name}'");
    Fault::new(FaultKind::GuestExists, name.as_ref(), message)
}

/// Refuses what cannot be done to a guest that runs.
pub(crate) fn running(name: &GuestName, instead: &str) -> Fault {
    Fault::new(FaultKind::GuestRunning, name.as_ref(), format!("guest '{name}' is running; {instead}"))
}

/// Refuses what cannot be done to a guest at rest.
pub(crate) fn not_running(name: &GuestName) -> Fault {
    let message = format!("guest '{name}' is not running; start it with 'pando start {name}'");
    Fault::new(FaultKind::GuestNotRunning, name.as_ref(), message)
}

/// Another command works on it.
pub(crate) fn busy(name: &GuestName, doing: &str) -> Fault {
    let message = format!("guest '{name}' is being {doing} by another command; try again when that is done");
    Fault::new(FaultKind::Busy, name.as_ref(), message)
}

/// A guest that somebody has paused.
pub(crate) fn paused(name: &GuestName) -> Fault {
    let message = format!("guest '{name}' is paused: nothing in it goes on; 'pando unpause {name}' lets it");
    Fault::new(FaultKind::Busy, name.as_ref(), message)
}

/// A guest whose processes stand still.
pub(crate) fn stands_still(name: &GuestName) -> Fault {
    let message = format!(
        "guest '{name}' stands still: a transaction has it to itself; try again when that has ended (pando tx ls --guest {name})"
    );
    Fault::new(FaultKind::Busy, name.as_ref(), message)
}

/// Refuses a word that is not a name.
pub(crate) fn bad_name(name: &str, error: &NameError) -> Fault {
    Fault::new(FaultKind::BadRequest, name, error.to_string())
}

/// A request that makes no sense.
pub(crate) fn bad(object: &str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::BadRequest, object, message)
}

/// A spec that cannot be turned into steps.
pub(crate) fn bad_plan(name: &GuestName, error: &PlanError) -> Fault {
    Fault::new(FaultKind::BadRequest, name.as_ref(), format!("guest '{name}' cannot be started as asked: {error}"))
}

/// A system call that failed while something was done to a guest.
pub(crate) fn call(doing: &str, object: &str, error: &CallError) -> Fault {
    if let Some(full) = state_disk::is_why(&error.source) {
        return Fault::new(FaultKind::Unavailable, object, format!("{doing} failed: {}: {full}", error.what));
    }
    let kind = match error.source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::Unsupported => {
            FaultKind::Unavailable
        }
        _ => FaultKind::Failed,
    };
    Fault::new(
        kind,
        object,
        format!("{doing} failed: {}: {}{}", error.what, reason(&error.source), advice(&error.source)),
    )
}

/// An error of the store.
pub(crate) fn store(doing: &str, object: &str, error: &StoreError) -> Fault {
    match error {
        StoreError::Call(error) => call(doing, object, error),
        StoreError::Busy => Fault::new(FaultKind::Busy, object, format!("{doing} has to wait: {error}")),
        other => Fault::new(FaultKind::Failed, object, format!("{doing} failed: {other}")),
    }
}

/// An error of a file of ours.
pub(crate) fn io(doing: &str, object: &str, error: &io::Error) -> Fault {
    if let Some(full) = state_disk::is_why(error) {
        return Fault::new(FaultKind::Unavailable, object, format!("{doing} failed: {full}"));
    }
    Fault::new(FaultKind::Failed, object, format!("{doing} failed: {}{}", reason(error), advice(error)))
}

/// A sentence without the numbers that the standard library puts behind the kernel's words.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once(')').map_or(part, |(_, rest)| rest))
}

/// An error's words without its number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = without_numbers(&error.to_string());
    // The kernel's words begin as a sentence does. Ours may have paths in them.
    if error.raw_os_error().is_some() { text.to_lowercase() } else { text }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => "; free some space there, or move the state with --root",
        Some(libc::EPERM | libc::EACCES) => "; 'pando doctor' shows what this kernel grants",
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL) => {
            "; this kernel may lack the feature: 'pando doctor' shows what it grants"
        }
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files ('ulimit -n') and restart the daemon",
        _ => "",
    }
}

/// No image of that name.
pub(crate) fn no_such_image(name: &str) -> Fault {
    Fault::new(
        FaultKind::NoSuchGuest,
        name,
        format!("there is no image '{name}'; 'pando images' lists those there are"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out_and_nothing_else() {
        assert_eq!(
            without_numbers("a: No such file (os error 2); b (c): x (os error 13)"),
            "a: No such file; b (c): x"
        );
        assert_eq!(without_numbers("plain (text)"), "plain (text)");
    }
}
