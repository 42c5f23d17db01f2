//! What the daemon says of a process, or of what it has done, as far as a plain line needs to understand it.

/// What a message of the daemon's means to a plain line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The process runs.
    Runs,
    /// The process has ended, with this exit code.
    Exited(u8),
    /// What was asked for is done.
    Done,
    /// Something else, a complaint for example. `main` understands all of them.
    Other,
}

/// The first message in `heard` and how many bytes it takes; `None` if it is not all there.
pub fn first_notice(heard: &[u8]) -> Option<(Notice, usize)> {
    let end = heard.iter().position(|byte| *byte == 0)?;
    Some((read(&heard[..end]).unwrap_or(Notice::Other), end + 1))
}

/// Reads a message that says no more than it has to, in the order in which the daemon writes it.
fn read(message: &[u8]) -> Option<Notice> {
    if matches!(message, br#"{"parameters":{}}"# | br#"{"parameters":{},"continues":false}"#) {
        return Some(Notice::Done);
    }
    let rest = message.strip_prefix(br#"{"parameters":{"notice":{"guest":""#)?;
    // A guest's name has no character that JSON would escape.
    let quote = rest.iter().position(|byte| *byte == b'"' || *byte == b'\\')?;
    let (_, rest) = number(rest[quote..].strip_prefix(br#"","pid":"#)?)?;
    if let Some(rest) = rest.strip_prefix(br#","exited":false}}"#) {
        return (rest == br#","continues":true}"#).then_some(Notice::Runs);
    }
    let (code, rest) = number(rest.strip_prefix(br#","exited":true,"exit_code":"#)?)?;
    let rest = match rest.strip_prefix(br#","micros":"#) {
        Some(rest) => number(rest)?.1,
        None => rest,
    };
    let last = matches!(rest, br#"}}}"# | br#"}},"continues":false}"#);
    last.then(|| u8::try_from(code).ok().map(Notice::Exited)).flatten()
}

/// Digits, and what follows them.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let value = text[..digits]
        .iter()
        .try_fold(0_u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    (digits > 0).then_some((value, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &str) -> Option<(Notice, usize)> {
        first_notice(text.as_bytes())
    }

    #[test]
    fn a_life_is_followed() {
        let runs = "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":7,\"exited\":false}},\"continues\":true}\0";
        assert_eq!(heard(runs), Some((Notice::Runs, runs.len())));
        for end in ["}}}", "}},\"continues\":false}"] {
            for micros in ["", ",\"micros\":1234"] {
                let text = format!(
                    "{{\"parameters\":{{\"notice\":{{\"guest\":\"web\",\"pid\":7,\"exited\":true,\"exit_code\":3{micros}{end}\0rest"
                );
                assert_eq!(heard(&text), Some((Notice::Exited(3), text.len() - 4)), "{text}");
            }
        }
    }

    #[test]
    fn what_is_done_is_told() {
        for text in ["{\"parameters\":{}}\0", "{\"parameters\":{},\"continues\":false}\0"] {
            assert_eq!(heard(text), Some((Notice::Done, text.len())), "{text}");
        }
    }

    #[test]
    fn half_a_message_is_none() {
        assert_eq!(heard("{\"parameters\":{\"notice\""), None);
        assert_eq!(heard(""), None);
    }

    #[test]
    fn everything_else_is_left_to_main() {
        for text in [
            "\0",
            "{}\0",
            "{\"error\":\"org.pando.Guests.NoSuchGuest\",\"parameters\":{\"object\":\"x\",\"message\":\"y\"}}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":7,\"exited\":true}}}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":7,\"exited\":true,\"exit_code\":256}}}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":7,\"exited\":true,\"exit_code\":-1}}}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":7,\"exited\":false}}}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"web\",\"pid\":99999999999999999999,\"exited\":false}},\"continues\":true}\0",
            "{\"parameters\":{\"notice\":{\"guest\":\"a\\\"b\",\"pid\":7,\"exited\":false}},\"continues\":true}\0",
        ] {
            assert_eq!(heard(text), Some((Notice::Other, text.len())), "{text}");
        }
    }
}
