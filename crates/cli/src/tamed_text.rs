//! A stream of a guest's text made harmless for a terminal: its colours stay, what else drives terminals is shown and
//! does nothing.
//!
//! Programs colour what they print, so whole sequences of colours (`ESC [ … m`) pass. Titles, clipboards, answers to
//! questions, cursors, other character sets do not.

/// Where in the stream something may begin that drives a terminal.
#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`: what came of a sequence of colours.
    Colour(Vec<u8>),
    /// After the first byte of a control character of two (U+0080 to U+009F).
    Second,
}

/// What stands for a byte that is not passed on.
const STAND_IN: &str = "\u{fffd}";

/// More than any sequence of colours.
const LONGEST: usize = 32;

/// It, and where it stands in the stream.
#[derive(Debug, Default)]
pub(crate) struct TamedText {
    state: State,
}

impl TamedText {
    /// What is printed for some bytes of the stream. A sequence that has begun is kept until it is known what it is.
    pub(crate) fn tame(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut tamed = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.next(*byte, &mut tamed);
        }
        tamed
    }

    fn next(&mut self, byte: u8, tamed: &mut Vec<u8>) {
        match (std::mem::take(&mut self.state), byte) {
            (State::Escape, b'[') => self.state = State::Colour(Vec::new()),
            (State::Colour(mut sequence), b'0'..=b'9' | b';' | b':') if sequence.len() < LONGEST => {
                sequence.push(byte);
                self.state = State::Colour(sequence);
            }
            (State::Colour(sequence), b'm') => {
                tamed.extend_from_slice(b"\x1b[");
                tamed.extend_from_slice(&sequence);
                tamed.push(b'm');
            }
            (State::Second, 0x80..=0x9f) => tamed.extend_from_slice(STAND_IN.as_bytes()),
            (State::Second, _) => {
                tamed.push(0xc2);
                self.next(byte, tamed);
            }
            (State::Escape, _) => {
                tamed.extend_from_slice(STAND_IN.as_bytes());
                self.next(byte, tamed);
            }
            (State::Colour(sequence), _) => {
                tamed.extend_from_slice(STAND_IN.as_bytes());
                tamed.push(b'[');
                tamed.extend_from_slice(&sequence);
                self.next(byte, tamed);
            }
            (State::Text, 0x1b) => self.state = State::Escape,
            (State::Text, 0xc2) => self.state = State::Second,
            (State::Text, b'\n' | b'\r' | b'\t' | 0x08) => tamed.push(byte),
            (State::Text, 0..=0x1f | 0x7f) => tamed.extend_from_slice(STAND_IN.as_bytes()),
            (State::Text, _) => tamed.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tamed(pieces: &[&[u8]]) -> String {
        let mut text = TamedText::default();
        let all: Vec<u8> = pieces.iter().flat_map(|piece| text.tame(piece)).collect();
        String::from_utf8_lossy(&all).into_owned()
    }

    #[test]
    fn colours_stay_and_nothing_else_that_drives_a_terminal() {
        assert_eq!(tamed(&[b"a\tb\r\n\x1b[1;31mred\x1b[0m \xc3\xa9"]), "a\tb\r\n\x1b[1;31mred\x1b[0m \u{e9}");
        assert_eq!(tamed(&[b"\x1b]0;title\x07"]), "\u{fffd}]0;title\u{fffd}");
        assert_eq!(tamed(&[b"\x1b[2J\x1b[6n"]), "\u{fffd}[2J\u{fffd}[6n");
        assert_eq!(tamed(&["\u{9b}31m\u{a0}".as_bytes()]), "\u{fffd}31m\u{a0}");
        assert_eq!(tamed(&[b"\x1b\x1b[31m"]), "\u{fffd}\x1b[31m");
    }

    #[test]
    fn a_sequence_may_come_in_pieces() {
        assert_eq!(tamed(&[b"\x1b", b"[3", b"2mgreen"]), "\x1b[32mgreen");
        assert_eq!(tamed(&[b"\x1b", b"]52;c;x"]), "\u{fffd}]52;c;x");
        assert_eq!(tamed(&[&[0xc2], &[0x9b]]), "\u{fffd}");
    }
}
