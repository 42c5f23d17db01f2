//! What this daemon knows of a guest's being started again.

use std::cell::Cell;
use tokio::sync::Notify;

/// A start that is due, and how the lives before it were. What has to outlive the daemon stands in the guest's record.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// Counts what was arranged: a start is for the arrangement that it belongs to.
    turn: Cell<u64>,
    /// When the next start is due, in milliseconds since the epoch.
    due: Cell<Option<i64>>,
    /// How many short lives came one after another.
    pub(crate) short_lives: Cell<u32>,
    /// Whether somebody has asked for the guest to be at rest since it was last started: it does not start itself then.
    is_down: Cell<bool>,
    /// Tells whoever waits for a start that it is not due any more.
    given_up: Notify,
}

impl Restarts {
    /// Arranges for a start, in the place of any other; what it is told apart by.
    pub(crate) fn arrange(&self, due_ms: i64) -> u64 {
        self.turn.set(self.turn.get() + 1);
        self.due.set(Some(due_ms));
        self.turn.get()
    }

    /// Whether a start that was arranged for is still wanted.
    pub(crate) fn is_wanted(&self, turn: u64) -> bool {
        self.due.get().is_some() && self.turn.get() == turn
    }

    /// Has no start be due.
    pub(crate) fn give_up(&self) {
        self.due.set(None);
        self.given_up.notify_waiters();
    }

    /// Somebody wants the guest to be up, or at rest.
    pub(crate) fn is_wanted_up(&self, up: bool) {
        self.is_down.set(!up);
        self.give_up();
    }

    /// A life begins, whoever asked for it.
    pub(crate) fn begins(&self) {
        self.is_down.set(false);
    }

    /// Whether somebody wants it to be at rest.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.get()
    }

    /// Waits until a start that was arranged for is not wanted any more.
    pub(crate) async fn until_given_up(&self, turn: u64) {
        while self.is_wanted(turn) {
            let given_up = self.given_up.notified();
            if !self.is_wanted(turn) {
                return;
            }
            given_up.await;
        }
    }

    /// When the next start is due, in seconds since the epoch.
    pub(crate) fn due(&self) -> Option<i64> {
        self.due.get().map(|due_ms| due_ms / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_arrangement_counts() {
        let restarts = Restarts::default();
        let first = restarts.arrange(1000);
        let second = restarts.arrange(2500);
        assert_eq!((restarts.is_wanted(first), restarts.is_wanted(second), restarts.due()), (false, true, Some(2)));
        restarts.give_up();
        assert_eq!((restarts.is_wanted(second), restarts.due()), (false, None));
    }
}
