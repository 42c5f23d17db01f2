//! Signals that wait for the commit.

use pando_kernel::pidfd;
use std::os::fd::OwnedFd;

/// The signals that a transaction sent to processes outside.
#[derive(Debug, Default)]
pub struct HeldSignals(Vec<(OwnedFd, i32)>);

impl HeldSignals {
    /// Keeps one. The process is held by descriptor: no other that gets its pid later is meant.
    pub(super) fn keep(&mut self, process: OwnedFd, signal: i32) {
        self.0.push((process, signal));
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends them, in the order in which they were sent. A process that has ended needs none.
    pub fn send(self) {
        for (process, signal) in self.0 {
            let _ = pidfd::send_signal(&process, signal);
        }
    }
}
