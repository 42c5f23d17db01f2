//! An address of a guest's, as users write it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address that a guest owns: `IP[/LENGTH][@DEVICE]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// The address itself, without its network's length.
    pub ip: IpAddr,
    /// How many of its first bits name the network in which it talks to others directly. Default: as the host's device
    /// has it.
    pub prefix: Option<u8>,
    /// The device it lies on, where the host does not have it already. Default: the one whose network it belongs to.
    pub device: Option<String>,
}

/// A word that is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("address '{0}' is not IP[/LENGTH][@DEVICE]; for example 10.9.0.5, fd00:9::5/64 or 10.9.0.5/24@eth0")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let (rest, device) = match text.split_once('@') {
            Some((_, "")) => return Err(wrong()),
            Some((rest, device)) => (rest, Some(device.to_owned())),
            None => (text, None),
        };
        let (ip, prefix) = match rest.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        if prefix.is_some_and(|prefix: u8| prefix > longest) {
            return Err(wrong());
        }
        Ok(Self { ip, prefix, device })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.ip)?;
        if let Some(prefix) = self.prefix {
            write!(out, "/{prefix}")?;
        }
        self.device.iter().try_for_each(|device| write!(out, "@{device}"))
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written_alike() {
        for text in ["10.9.0.5", "10.9.0.5/24", "fd00:9::5/64@eth0", "::1@lo"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_ones_are_refused_with_an_example() {
        for text in ["", "10.9.0", "10.9.0.5/", "10.9.0.5/33", "fd00::/129", "10.9.0.5@", "@eth0", "10.9.0.5/x", "a b"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("for example 10.9.0.5"), "{text}: {error}");
        }
    }
}
