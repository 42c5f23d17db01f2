//! A port of the host's that leads to a guest, as users write it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What travels to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Connections (TCP).
    Tcp,
    /// Datagrams (UDP).
    Udp,
}

/// A port of the host's that leads to one of a guest's: `[[IP:]HOST:]GUEST[/tcp|/udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Publication {
    /// The host's address on which it leads there. Default: every one.
    pub ip: Option<IpAddr>,
    /// The port of the host, 1 to 65535; 0 for one that is free, which is chosen when the guest is made.
    pub host: u16,
    /// The port of the guest, 1 to 65535.
    pub guest: u16,
    /// Which protocol is forwarded: connections or datagrams.
    pub protocol: Protocol,
}

/// A word that is no publication.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "port '{0}' is not [[IP:]HOST:]GUEST[/udp]; for example 8080:80, 80 (a port of the host's that is free), 5353:53/udp, 10.9.0.1:8080:80 or [fd00::1]:8080:80"
)]
pub struct PublicationError(String);

impl FromStr for Publication {
    type Err = PublicationError;

    fn from_str(text: &str) -> Result<Self, PublicationError> {
        let wrong = || PublicationError(text.to_owned());
        let (rest, protocol) = match text.rsplit_once('/') {
            None => (text, Protocol::Tcp),
            Some((rest, "tcp")) => (rest, Protocol::Tcp),
            Some((rest, "udp")) => (rest, Protocol::Udp),
            Some(_) => return Err(wrong()),
        };
        let (rest, guest) = rest.rsplit_once(':').unwrap_or(("", rest));
        let (ip, host) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((ip, host)) => {
                let six = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
                let ip: IpAddr = six.unwrap_or(ip).parse().map_err(|_| wrong())?;
                if ip.is_ipv6() != six.is_some() {
                    return Err(wrong());
                }
                (Some(ip), host)
            }
        };
        let port = |word: &str| word.parse().ok().filter(|port| *port > 0).ok_or_else(wrong);
        // ANY is every address.
        let ip = ip.filter(|ip| !ip.is_unspecified());
        // As docker has it: no port, or none after an address, is any that is free.
        let host = if host.is_empty() { 0 } else { port(host)? };
        Ok(Self { ip, host, guest: port(guest)?, protocol })
    }
}

impl fmt::Display for Publication {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(IpAddr::V6(ip)) => write!(out, "[{ip}]:")?,
            Some(ip) => write!(out, "{ip}:")?,
            None => {}
        }
        match (self.host, self.ip) {
            (0, None) => write!(out, "{}", self.guest)?,
            (0, Some(_)) => write!(out, ":{}", self.guest)?,
            (host, _) => write!(out, "{host}:{}", self.guest)?,
        }
        if self.protocol == Protocol::Udp { write!(out, "/udp") } else { Ok(()) }
    }
}

impl From<Publication> for String {
    fn from(publication: Publication) -> Self {
        publication.to_string()
    }
}

impl TryFrom<String> for Publication {
    type Error = PublicationError;

    fn try_from(text: String) -> Result<Self, PublicationError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_is_read_and_written_alike() {
        for text in
            ["8080:80", "80", "53/udp", "10.9.0.1::80", "5353:53/udp", "10.9.0.1:8080:80", "[fd00::1]:8080:80/udp"]
        {
            assert_eq!(text.parse::<Publication>().unwrap().to_string(), text);
        }
        assert_eq!("0.0.0.0:80:80/tcp".parse::<Publication>().unwrap().to_string(), "80:80");
    }

    #[test]
    fn wrong_ones_are_refused_with_an_example() {
        for text in
            ["", "80:", "0:80", "0", "x", "80:70000", "80:80/icmp", "a:80:80", "fd00::1:80:80", "[10.0.0.1]:1:1"]
        {
            assert!(text.parse::<Publication>().unwrap_err().to_string().contains("for example 8080:80"), "{text}");
        }
    }
}
