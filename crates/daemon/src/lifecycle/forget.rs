//! Forgetting a guest: what is left to do once it is at rest, or came to nothing.

use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::store::trash::{discard, empty_trash};
use crate::store::unused_layers::discard_unused;
use std::rc::Rc;

/// Forgets a guest that lasts and did not come to anything.
pub(crate) fn throw_away(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    discard(&daemon.places, &guest.directory(&daemon.places));
    forget(daemon, guest);
}

/// Forgets a guest, and throws away its files and the layers that only it stood on.
pub(crate) fn forget(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    daemon.guests.borrow_mut().remove(&guest.name);
    if guest.ephemeral {
        discard(&daemon.places, &guest.directory(&daemon.places));
    }
    discard_unused(daemon, &guest.record.borrow().layers);
    crate::resources::admission::forget_guest(daemon, &guest.name);
    daemon.events.tell(guest.name.as_ref(), "remove", None);
    empty_trash(daemon.places.clone());
}
