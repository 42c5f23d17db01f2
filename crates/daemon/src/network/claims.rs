//! What the private networks have of the host that is there once for all of them: forwarding, its ports, addresses.
//! Plain data.

use crate::network::networks::NetworkError;
use pando_net::private::{Published, Subnet, Turned};
use std::collections::BTreeMap;

/// What each network has claimed.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// What was turned on for those that stand, by the letters in the names of their devices: the same for each.
    forwarding: BTreeMap<String, Turned>,
    /// Published ports by slot, with the guest's name.
    ports: BTreeMap<u32, (String, Vec<Published>)>,
    /// The addresses of networks that were made by name.
    pub(crate) subnets: BTreeMap<String, Subnet>,
}

impl Claims {
    /// What is on for a network because it stands. What the first has had to turn on stays on for the others.
    pub(crate) fn forward<E>(&mut self, tag: &str, needed: impl FnOnce() -> Result<Turned, E>) -> Result<Turned, E> {
        let turned = self.forwarding.values().next().cloned().map_or_else(needed, Ok)?;
        self.forwarding.insert(tag.to_owned(), turned.clone());
        Ok(turned)
    }

    /// Notes what an earlier daemon turned on.
    pub(crate) fn forwards(&mut self, tag: &str, turned: Turned) {
        self.forwarding.insert(tag.to_owned(), turned);
    }

    /// A network stands no longer; what is to be turned off again if it was the last.
    pub(crate) fn stop_forwarding(&mut self, tag: &str) -> Option<Turned> {
        self.forwarding.remove(tag).filter(|_| self.forwarding.is_empty())
    }

    /// Gives a guest ports of the host's that lead to no other guest.
    pub(crate) fn publish(&mut self, slot: u32, name: &str, published: &[Published]) -> Result<(), NetworkError> {
        let others = self.ports.iter().filter(|(other, _)| **other != slot);
        for (other, one) in others.flat_map(|(_, (name, ports))| ports.iter().map(move |one| (name, one))) {
            if published.iter().any(|own| own.conflicts_with(one)) {
                return Err(NetworkError::Published(one.host, other.clone()));
            }
        }
        if !published.is_empty() {
            self.ports.insert(slot, (name.to_owned(), published.to_vec()));
        }
        Ok(())
    }

    /// Takes them back.
    pub(crate) fn withdraw(&mut self, slot: u32) {
        self.ports.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarding_stays_on_until_the_last_goes() {
        let mut claims = Claims::default();
        let on: Turned = serde_json::from_str(r#"["net/ipv4/ip_forward"]"#).unwrap();
        assert_eq!(claims.forward::<()>("a", || Ok(on.clone())), Ok(on.clone()));
        assert_eq!(claims.forward::<()>("b", || panic!("it is on already")), Ok(on.clone()));
        assert_eq!(claims.stop_forwarding("a"), None);
        assert_eq!(claims.stop_forwarding("a"), None);
        assert_eq!(claims.stop_forwarding("b"), Some(on));
    }

    #[test]
    fn what_was_turned_on_is_read_as_each_release_writes_it() {
        for text in [r#"["net/ipv4/ip_forward"]"#, r#"{"switches":["net/ipv4/ip_forward"],"devices":["eth0"]}"#] {
            let read: Turned = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::from_str::<Turned>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
            assert_ne!(read, Turned::default());
        }
    }

    #[test]
    fn a_port_is_one_guests_whatever_network_it_is_on() {
        let mut claims = Claims::default();
        let port = [Published { ip: None, host: 80, guest: 1, udp: false }];
        claims.publish(1, "a", &port).unwrap();
        claims.publish(1, "a", &port).unwrap();
        assert!(matches!(claims.publish(2, "b", &port), Err(NetworkError::Published(80, other)) if other == "a"));
        claims.withdraw(1);
        claims.publish(2, "b", &port).unwrap();
    }
}
