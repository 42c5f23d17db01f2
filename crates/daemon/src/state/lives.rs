//! Lives that have begun, on their way to the supervisor.
//!
//! Whatever starts a guest or takes one over says so here, and knows nothing of what follows from a life or from its
//! end.

use crate::state::guest::{Guest, Running};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::mpsc;

/// A guest and a life of it that has begun.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) guest: Rc<Guest>,
    pub(crate) running: Rc<Running>,
}

/// The queue of lives that have begun.
#[derive(Debug)]
pub(crate) struct Lives {
    sender: mpsc::UnboundedSender<Life>,
    receiver: RefCell<Option<mpsc::UnboundedReceiver<Life>>>,
}

impl Lives {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: RefCell::new(Some(receiver)) }
    }

    /// Tells the supervisor of a life that has begun.
    pub(crate) fn tell(&self, guest: &Rc<Guest>, running: &Rc<Running>) {
        let life = Life { guest: Rc::clone(guest), running: Rc::clone(running) };
        // The supervisor ends with the daemon, which no life is told to any more.
        let _ = self.sender.send(life);
    }

    /// The lives that have begun, for the supervisor: there is one.
    pub(crate) fn listen(&self) -> Option<mpsc::UnboundedReceiver<Life>> {
        self.receiver.take()
    }
}
