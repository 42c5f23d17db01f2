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

/// The seconds of a span as people write it: `90s`, `15m`, `12h`, `30d`, or a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86400)];
    let (number, unit) = match units.iter().find(|(letter, _)| text.ends_with(*letter)) {
        Some((letter, unit)) => (text.trim_end_matches(*letter), *unit),
        None => (text, 1),
    };
    let count = number.parse::<u32>().map_err(|_| format!("'{text}' is no time; write 90s, 15m, 12h or 30d"))?;
    Ok(i64::from(count) * unit)
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
        for (text, number) in [("5", 5), ("90s", 90), ("15m", 900), ("2h", 7200), ("30d", 2_592_000)] {
            assert_eq!(seconds(text), Ok(number));
        }
        assert!(seconds("soon").is_err() && seconds("-1d").is_err() && seconds("").is_err());
    }
}
