//! Bytes that a program chose, as text on one line from which they can be told again.

use std::fmt::Write;

/// A path as it is, or, where it has anything in it that could be taken for something else, between quotation marks and
/// escaped as git does it: `"a\377\n"`.
pub(super) fn path(bytes: &[u8]) -> String {
    let escaped = escaped(bytes);
    let is_plain = escaped.as_bytes() == bytes && !bytes.is_empty() && bytes[0] != b' ' && bytes.last() != Some(&b' ');
    if is_plain { escaped } else { format!("\"{escaped}\"") }
}

/// A value, always between quotation marks.
pub(super) fn value(bytes: &[u8]) -> String {
    format!("\"{}\"", escaped(bytes))
}

/// Text of a file, line by line: what would drive the terminal is shown as less(1) does it, `<U+001B>`.
pub(super) fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) || matches!(c, '\n' | '\t') {
            out.push(c);
        } else {
            let _ = write!(out, "<U+{:04X}>", u32::from(c));
        }
    }
    out
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if is_harmless(c) => out.push(c),
                c => octal(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut out),
            }
        }
        octal(chunk.invalid(), &mut out);
    }
    out
}

fn octal(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        let _ = write!(out, "\\{byte:03o}");
    }
}

/// Whether a character is seen, and moves nothing that stands beside it: no control, no joiner, no mark of direction,
/// no space but the plain one.
fn is_harmless(c: char) -> bool {
    let is_hidden = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_path_is_left_alone_and_all_others_can_be_told_apart() {
        for plain in ["/srv/a b", "/srv/ü", "/"] {
            assert_eq!(path(plain.as_bytes()), plain);
        }
        assert_eq!(path(b"/a\xff\xfe"), r#""/a\377\376""#);
        assert_eq!(path(b"/a\n- /b"), r#""/a\n- /b""#);
        assert_eq!(path(b"/a\\377"), r#""/a\\377""#);
        assert_eq!(path(b"\"/a\""), r#""\"/a\"""#);
        assert_eq!(path(b"/a "), r#""/a ""#);
        assert_eq!(path("/a\u{202e}b\u{1b}".as_bytes()), r#""/a\342\200\256b\033""#);
        assert_eq!(value(b"x"), "\"x\"");
    }

    #[test]
    fn text_keeps_its_lines_and_drives_no_terminal() {
        assert_eq!(lines("é\n\tü\u{1b}[31m\r"), "é\n\tü<U+001B>[31m<U+000D>");
    }
}
