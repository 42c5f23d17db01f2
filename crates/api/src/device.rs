//! A device of the host's that a guest may use, as users write it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A device of the host's that a guest may use: `HOST[:GUEST][:rwm]`, as docker and podman write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Device {
    /// Absolute path on the host, of a device or of a directory with devices.
    pub source: String,
    /// Absolute path in the guest, below /dev.
    pub target: String,
    /// Some of the letters `rwm`: read, write, make a node of it.
    pub access: String,
}

/// A word that is no device.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is not HOST[:GUEST][:rwm] with absolute paths, that in the guest below /dev; for example --device /dev/fuse or --device /dev/sdb:/dev/disk:r"
)]
pub struct DeviceError(String);

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let wrong = || DeviceError(text.escape_debug().to_string());
        let is_access = |word: &str| !word.is_empty() && word.len() <= 3 && word.bytes().all(|b| b"rwm".contains(&b));
        let words: Vec<&str> = text.split(':').collect();
        let (source, target, access) = match words.as_slice() {
            [source] => (*source, *source, "rwm"),
            [source, access] if is_access(access) => (*source, *source, *access),
            [source, target] => (*source, *target, "rwm"),
            [source, target, access] if is_access(access) => (*source, *target, *access),
            _ => return Err(wrong()),
        };
        let below = target.strip_prefix("/dev/").ok_or_else(wrong)?;
        let is_plain = below.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !source.starts_with('/') || !is_plain || text.contains(char::is_control) {
            return Err(wrong());
        }
        Ok(Self { source: source.to_owned(), target: target.to_owned(), access: access.to_owned() })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.source, self.target, self.access)
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl TryFrom<String> for Device {
    type Error = DeviceError;

    fn try_from(text: String) -> Result<Self, DeviceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reads_as_docker_reads_it() {
        let read = |text: &str| text.parse::<Device>().unwrap().to_string();
        assert_eq!(read("/dev/fuse"), "/dev/fuse:/dev/fuse:rwm");
        assert_eq!(read("/dev/fuse:r"), "/dev/fuse:/dev/fuse:r");
        assert_eq!(read("/srv/x:/dev/a/b"), "/srv/x:/dev/a/b:rwm");
        assert_eq!(read("/dev/x:/dev/y:rw"), "/dev/x:/dev/y:rw");
        for wrong in
            ["", "fuse", "/dev/a:/etc/b", "/dev/a:/dev/../b", "/dev/a:/dev/", "/dev/a:/dev/b:x", "/dev/a:/dev/b:r:r"]
        {
            assert!(wrong.parse::<Device>().unwrap_err().to_string().contains("--device"), "{wrong}");
        }
    }
}
