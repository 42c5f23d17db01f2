//! Over a private network's tables: whoever may change the host's firewall can remove them with all others, as a reload
//! of /etc/nftables.conf does. They are made anew at once, since without them guests have whatever addresses they like.

use crate::network::networks::NetworkError;
use crate::network::private_network::{PrivateNetwork, Work};
use crate::runtime::readable::readable;
use pando_kernel::Context;
use pando_kernel::network::filter_tables::Departures;
use std::rc::Rc;
use std::time::Duration;

/// How long it is left alone where it could not be made whole.
const AGAIN: Duration = Duration::from_secs(5);

impl PrivateNetwork {
    /// Keeps it guarded while it stands.
    pub(super) fn watch(self: &Rc<Self>) {
        if !self.stands() || self.watched.replace(true) {
            return;
        }
        let network = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Err(error) = network.keep_guarded().await {
                network.watched.set(false);
                tracing::warn!(%error, "the tables of a private network are not watched over; the next guest on it finds out whether they are there");
            }
        });
    }

    async fn keep_guarded(&self) -> Result<(), NetworkError> {
        let hear = || "listening for tables of the firewall that go".into();
        let departures = readable(Departures::hear().context(hear)?).context(hear)?;
        loop {
            // Also for what went before anybody listened.
            let restored = self.blocking(Work::restore).await;
            // Nobody can have begun to watch since.
            if !self.stands() {
                self.watched.set(false);
                return Ok(());
            }
            if let Err(error) = restored {
                tracing::warn!(%error, "a private network is without its tables: its guests are not kept from foreign addresses");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            loop {
                let mut ready = departures.readable().await.context(hear)?;
                ready.clear_ready();
                if departures.get_ref().heard().context(hear)? {
                    break;
                }
            }
        }
    }
}
