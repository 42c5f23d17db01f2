//! What happens to guests, for those who listen.

use pando_api::Event;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// How many events a slow listener may be behind before it misses some.
const BACKLOG: usize = 1024;

/// The sender of events to all who listen.
#[derive(Clone, Debug)]
pub(crate) struct Events(broadcast::Sender<Event>);

impl Events {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }

    /// Tells that something happened to a guest. That nobody listens is no matter.
    pub(crate) fn tell(&self, guest: &str, what: &str, detail: Option<String>) {
        tracing::debug!(guest, what, detail, "event");
        let _ = self.0.send(Event { time_ms: now_ms(), guest: guest.to_owned(), what: what.to_owned(), detail });
    }

    /// Listens to all events from now on.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Event> {
        self.0.subscribe()
    }
}

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Seconds since the epoch.
pub(crate) fn now() -> i64 {
    now_ms() / 1000
}
