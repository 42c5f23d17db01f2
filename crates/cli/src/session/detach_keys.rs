//! The keys that leave a process running and give the terminal back.

use std::str::FromStr;

/// A sequence of keys, and how much of it was typed last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys {
    sequence: Vec<u8>,
    matched: usize,
}

/// The longest sequence that can be asked for: nobody types more.
const LONGEST: usize = 16;

impl Default for DetachKeys {
    fn default() -> Self {
        Self { sequence: vec![0x10, 0x11], matched: 0 }
    }
}

impl DetachKeys {
    /// The default, as docker and podman have it.
    pub(crate) const DEFAULT: &str = "ctrl-p,ctrl-q";

    /// None: there is no way to leave.
    pub(crate) fn none() -> Self {
        Self { sequence: Vec::new(), matched: 0 }
    }

    /// The key that completes the sequence.
    pub(crate) fn last(&self) -> Option<u8> {
        self.sequence.last().copied()
    }

    /// Takes typed bytes. Those for the process go to `out`; `true` says that the sequence is complete, and that what
    /// came after it is dropped.
    ///
    /// A byte that may be the sequence's is held back until the next one decides.
    pub(crate) fn filter(&mut self, typed: &[u8], out: &mut Vec<u8>) -> bool {
        if self.sequence.is_empty() {
            out.extend_from_slice(typed);
            return false;
        }
        for byte in typed {
            self.step(*byte, out);
            if self.matched == self.sequence.len() {
                self.matched = 0;
                return true;
            }
        }
        false
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        let mut held = self.sequence[..self.matched].to_vec();
        held.push(byte);
        // The longest end of what was typed that begins the sequence stays; a, a, b is found in a, a, a, b too.
        let kept =
            (0..=held.len()).rev().find(|kept| self.sequence.starts_with(&held[held.len() - kept..])).unwrap_or(0);
        out.extend_from_slice(&held[..held.len() - kept]);
        self.matched = kept;
    }

    /// Whether bytes are held back.
    pub(crate) fn holds(&self) -> bool {
        self.matched > 0
    }

    /// Lets the bytes go that are held back: the next key did not come in time. ctrl-p alone is a key that shells know.
    pub(crate) fn release(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sequence[..self.matched]);
        self.matched = 0;
    }
}

impl FromStr for DetachKeys {
    type Err = String;

    /// Reads `ctrl-p,ctrl-q`, as docker and podman write it; an empty text is no sequence at all.
    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split(',').filter(|_| !text.is_empty());
        let sequence: Option<Vec<u8>> = words.map(key).collect();
        match sequence {
            Some(sequence) if sequence.len() <= LONGEST => Ok(Self { sequence, matched: 0 }),
            _ => Err(format!("'{text}' is not a sequence of keys; for example ctrl-p,ctrl-q or ctrl-],x")),
        }
    }
}

fn key(word: &str) -> Option<u8> {
    let of = |word: &str| <[u8; 1]>::try_from(word.as_bytes()).ok().map(|[byte]| byte);
    match word.strip_prefix("ctrl-") {
        Some(letter) => match of(letter)?.to_ascii_lowercase() {
            letter @ (b'a'..=b'z' | b'[' | b'\\' | b']' | b'^' | b'_' | b'@') => Some(letter & 0x1f),
            _ => None,
        },
        None => of(word).filter(|byte| byte.is_ascii_graphic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let (mut keys, mut out) = (keys.parse::<DetachKeys>().unwrap(), Vec::new());
        let detached = pieces.iter().any(|piece| keys.filter(piece, &mut out));
        (out, detached)
    }

    #[test]
    fn sequences_are_read() {
        assert_eq!("ctrl-p,ctrl-q".parse::<DetachKeys>().unwrap().sequence, [16, 17]);
        assert_eq!(DetachKeys::DEFAULT.parse(), Ok(DetachKeys::default()));
        assert_eq!("ctrl-],x,ctrl-@".parse::<DetachKeys>().unwrap().sequence, [29, b'x', 0]);
        assert!("".parse::<DetachKeys>().unwrap().sequence.is_empty());
        for wrong in ["ctrl-", "ctrl-1", "ab", ",", "ctrl-p,", "é", &"a,".repeat(20)] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_sequence_is_found_across_reads_and_not_passed_on() {
        assert_eq!(typed("ctrl-p,ctrl-q", &[b"ls\r\x10", b"\x11rest"]), (b"ls\r".to_vec(), true));
        assert_eq!(typed("a,a,b", &[b"a", b"a", b"a", b"b"]), (b"a".to_vec(), true));
        assert_eq!(typed("a,b,a,c", &[b"abab", b"ac"]), (b"ab".to_vec(), true));
    }

    #[test]
    fn everything_else_passes_in_order() {
        assert_eq!(typed("ctrl-p,ctrl-q", &[b"\x10", b"x\x10\x10y\x11"]), (b"\x10x\x10\x10y\x11".to_vec(), false));
        assert_eq!(typed("", &[b"\x10\x11"]), (b"\x10\x11".to_vec(), false));
    }

    #[test]
    fn a_key_that_is_held_back_can_be_released() {
        let (mut keys, mut out) = ("ctrl-p,ctrl-q".parse::<DetachKeys>().unwrap(), Vec::new());
        assert!(!keys.filter(b"\x10", &mut out) && keys.holds() && out.is_empty());
        keys.release(&mut out);
        assert!(!keys.holds() && out == [16]);
        assert!(!keys.filter(b"\x11", &mut out), "the sequence starts over");
    }

    /// Against a plain search, over all inputs of a small alphabet.
    #[test]
    fn the_machine_agrees_with_a_search() {
        for sequence in ["a,a,b", "a,b,a", "a,a,a", "a,b"] {
            let needle: Vec<u8> = sequence.bytes().filter(|byte| *byte != b',').collect();
            for number in 0u32..1 << 10 {
                let input: Vec<u8> = (0..10).map(|bit| if number >> bit & 1 == 0 { b'a' } else { b'b' }).collect();
                let (mut out, detached) = typed(sequence, &[&input]);
                let found = input.windows(needle.len()).position(|window| window == needle);
                assert_eq!(detached, found.is_some());
                let passed = found.map_or(input.len(), |at| at);
                if !detached {
                    // What is still held back is the end of the input.
                    out.extend_from_slice(&input[out.len()..]);
                }
                assert_eq!(out, &input[..passed], "{sequence} in {input:?}");
            }
        }
    }
}
