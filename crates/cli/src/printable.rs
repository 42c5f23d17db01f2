//! Text of a guest's made harmless for the terminal: a process may call itself `ESC ] 52 ; …`.

/// `text` on one line, with a visible stand-in for every control character.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}

/// The same, but lines stay lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// JSON that a terminal may be shown: what drives terminals stands in it as escapes, which mean the same to whoever
/// parses it.
pub(crate) fn printable_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push(c),
            c if is_control(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

/// C0, DEL and C1 drive terminals; the bidirectional overrides reorder what stands beside them.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_without_them() {
        let value = serde_json::json!({ "name": "a\u{1b}[31m\n\u{9b}31mb\u{202e}\u{7f}é" });
        let shown = printable_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(shown.contains(r"\u009b31mb\u202e\u007fé"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn control_characters_do_not_pass() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{9b}d\u{202e}"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\u{fffd}");
        assert_eq!(printable_lines("é\n\tü"), "é\n\u{fffd}ü");
    }
}
