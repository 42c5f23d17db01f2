//! A name that a guest knows, as users write it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A line of a guest's /etc/hosts: `NAME:IP`, as docker and podman write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostEntry {
    /// The name that is looked up.
    pub name: String,
    /// The address that it has.
    pub ip: IpAddr,
}

/// A word that is no such line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not NAME:IP; for example --add-host db:10.9.0.5 or --add-host db:fd00::5")]
pub struct HostEntryError(String);

impl FromStr for HostEntry {
    type Err = HostEntryError;

    fn from_str(text: &str) -> Result<Self, HostEntryError> {
        let wrong = || HostEntryError(text.to_owned());
        let (name, ip) = text.split_once([':', '=']).ok_or_else(wrong)?;
        let usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = name.len() <= 253 && name.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !is_name || !name.bytes().all(usual) {
            return Err(wrong());
        }
        let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
        Ok(Self { name: name.to_owned(), ip: ip.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for HostEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.name, self.ip)
    }
}

impl From<HostEntry> for String {
    fn from(entry: HostEntry) -> Self {
        entry.to_string()
    }
}

impl TryFrom<String> for HostEntry {
    type Error = HostEntryError;

    fn try_from(text: String) -> Result<Self, HostEntryError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reads_as_it_is_written() {
        for text in ["db:10.9.0.5", "db.example.org:fd00::5"] {
            assert_eq!(text.parse::<HostEntry>().unwrap().to_string(), text);
        }
        assert_eq!("db=[fd00::5]".parse::<HostEntry>().unwrap().to_string(), "db:fd00::5");
        for wrong in ["", "db", "db:", ":10.9.0.5", "d b:10.9.0.5", "db:10.9", "-db:10.9.0.5", "a\n:10.9.0.5"] {
            assert!(wrong.parse::<HostEntry>().unwrap_err().to_string().contains("--add-host"), "{wrong}");
        }
    }
}
