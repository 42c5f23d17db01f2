//! The name of a layer.

use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use std::fmt;
use std::str::FromStr;

/// A layer's name: the digest of its image, as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId([u8; 32]);

/// What was to name a layer does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' does not name a layer: 64 hexadecimal digits do")]
pub struct NotALayer(String);

impl LayerId {
    pub(crate) fn from_digest(digest: &Sha256HashValue) -> Self {
        let mut bytes = [0; 32];
        // Both have the length of a SHA-256 digest.
        hex_pairs(&digest.to_hex(), &mut bytes);
        Self(bytes)
    }

    pub(crate) fn digest(&self) -> Sha256HashValue {
        Sha256HashValue::from_hex(self.to_string()).unwrap_or(Sha256HashValue::EMPTY)
    }
}

/// Reads lower-case hexadecimal digits; false where `text` has others, or more or fewer than fill `bytes`.
fn hex_pairs(text: &str, bytes: &mut [u8; 32]) -> bool {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    text.len() == 2 * bytes.len()
        && bytes.iter_mut().zip(text.chunks_exact(2)).all(|(byte, pair)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

impl fmt::Display for LayerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for LayerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LayerId({self})")
    }
}

impl FromStr for LayerId {
    type Err = NotALayer;

    fn from_str(text: &str) -> Result<Self, NotALayer> {
        let mut bytes = [0; 32];
        if hex_pairs(text, &mut bytes) { Ok(Self(bytes)) } else { Err(NotALayer(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_as_it_was_written() {
        let text = "0123456789abcdef".repeat(4);
        let id: LayerId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(LayerId::from_digest(&id.digest()), id);
    }

    #[test]
    fn a_path_names_no_layer() {
        for text in ["", "../../etc", &"0".repeat(63), &"0".repeat(65), &"A".repeat(64), &"é".repeat(32)] {
            assert!(text.parse::<LayerId>().is_err(), "{text}");
        }
    }
}
