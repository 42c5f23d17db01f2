//! Text of a guest's made harmless for the terminal: a process may call itself `ESC ] 52 ; …`.

/// `text` on one line, with a visible stand-in for every control character.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}

/// The same, but lines stay lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// C0, DEL and C1 drive terminals; the bidirectional overrides reorder what stands beside them.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_pass() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{9b}d\u{202e}"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\u{fffd}");
        assert_eq!(printable_lines("é\n\tü"), "é\n\u{fffd}ü");
    }
}
