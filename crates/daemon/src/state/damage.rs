//! What is wrong with a guest's files.

use pando_guest::GuestName;

/// What is wrong with a guest's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The file that cannot be read, and why.
    pub(crate) what: String,
    /// Whether the last good one stands in.
    pub(crate) known: bool,
}

impl Damage {
    /// What is said of it where something cannot be done.
    pub(crate) fn told(&self, name: &GuestName) -> String {
        let stands_in = if self.known { "; it goes on with the last one that could be read" } else { "" };
        format!("{}{stands_in}. Mend the file, or let 'pando repair {name}' put the last good one back", self.what)
    }
}
