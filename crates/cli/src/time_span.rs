//! Spans of time for people: two units at most.

/// `seconds` as `45s`, `3m 20s`, `2h 5m`, `12d 3h`.
pub(crate) fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m {}s", seconds % 60),
        3600..86400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// CPU time as ps(1) shows it: `1:02.34`.
pub(crate) fn cpu(milliseconds: i64) -> String {
    let hundredths = milliseconds.max(0) / 10;
    format!("{}:{:02}.{:02}", hundredths / 6000, hundredths / 100 % 60, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        let cases = [(-5, "0s"), (59, "59s"), (60, "1m 0s"), (3661, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(span(seconds), text);
        }
        assert_eq!(cpu(62_345), "1:02.34");
    }
}
