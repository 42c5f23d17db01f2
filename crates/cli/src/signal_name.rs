//! Signals by name and by number.

use nix::sys::signal::Signal;

/// The number of `TERM`, `SIGTERM`, `15`; the kinds that users of kill(1) write.
pub(crate) fn number(word: &str) -> Result<i32, String> {
    let wrong = || format!("'{word}' is not a signal; for example TERM, SIGHUP or 9 (`kill -l` lists them)");
    if let Ok(number) = word.parse::<i32>() {
        // Up to 64: the real-time signals have no names.
        return if (1..=64).contains(&number) { Ok(number) } else { Err(wrong()) };
    }
    let upper = word.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    full.parse::<Signal>().map(|signal| signal as i32).map_err(|_| wrong())
}

/// The word itself once it is known to be a signal: for arguments that travel by name.
pub(crate) fn checked(word: &str) -> Result<String, String> {
    number(word).map(|_| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_mean_the_same() {
        for word in ["15", "TERM", "SIGTERM", "term", "sigterm"] {
            assert_eq!(number(word), Ok(15), "{word}");
        }
        assert_eq!(number("37"), Ok(37));
        for word in ["", "0", "65", "-9", "SIG", "FOO"] {
            assert!(number(word).is_err(), "{word}");
        }
    }
}
