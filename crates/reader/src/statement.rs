//! What the signature of an export is about: a text with the digest of each of its parts, put together while they pass.

use crate::digest::hex;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// The parts that are signed, in their order.
pub const STATED_PARTS: [&str; 5] = ["name", "about", "tree", "memory", "files"];

/// A statement in the making.
#[derive(Clone, Debug, Default)]
pub struct Statement {
    digests: Vec<String>,
    current: Sha256,
}

impl Statement {
    /// Takes bytes of the part that is passing.
    pub fn update(&mut self, bytes: &[u8]) {
        self.current.update(bytes);
    }

    /// Notes that the part has passed.
    pub fn end_part(&mut self) {
        let digest = std::mem::take(&mut self.current).finalize();
        self.digests.push(hex(&digest));
    }

    /// The text: a line that says what this is, and one for each part. Where the text is equal, so are all parts.
    pub fn text(&self) -> String {
        let mut text = "pando image export 2\n".to_owned();
        for (part, digest) in STATED_PARTS.iter().zip(&self.digests) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "sha256:{digest} {part}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_counts_in_its_own_part_alone() {
        let text = |parts: &[&[&str]]| {
            let mut statement = Statement::default();
            for part in parts {
                part.iter().for_each(|bytes| statement.update(bytes.as_bytes()));
                statement.end_part();
            }
            statement.text()
        };
        assert_eq!(text(&[&["web"], &["ab", "c"]]), text(&[&["w", "eb"], &["abc"]]));
        assert_ne!(text(&[&["web"], &["abc"]]), text(&[&["weba"], &["bc"]]));
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(text(&[&["abc"]]), format!("pando image export 2\nsha256:{digest} name\n"));
    }
}
