//! Moments as users write them: how long ago, a date, or seconds since the epoch.

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, civil};

/// `10m`, `1h30m`, `2d` (ago), `2026-11-28`, `2026-11-28T14:15:00` (local time), `…Z`, `…+01:00`, or seconds since the
/// epoch: as milliseconds since the epoch.
pub(crate) fn moment(text: &str) -> Result<i64, String> {
    read(text, Timestamp::now(), &TimeZone::system()).ok_or_else(|| {
        format!("'{text}' is no time; write how long ago (10m, 1h30m, 2d), a date (2026-11-28 or 2026-11-28T14:15:00Z), or seconds since the epoch")
    })
}

fn read(text: &str, now: Timestamp, zone: &TimeZone) -> Option<i64> {
    if text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
        let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
        return seconds.parse::<i64>().ok()?.checked_mul(1000)?.checked_add(thousandths.parse().ok()?);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_millisecond());
    }
    if let Ok(local) = text.parse::<civil::DateTime>() {
        return local.to_zoned(zone.clone()).ok().map(|time| time.timestamp().as_millisecond());
    }
    let ago: Span = text.parse().ok().filter(|span: &Span| !span.is_negative())?;
    let then = now.to_zoned(zone.clone()).checked_sub(ago).ok()?;
    Some(then.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_other_tools_read_them() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let read = |text| read(text, now, &TimeZone::UTC);
        assert_eq!(read("10m"), Some(1_699_999_400_000));
        assert_eq!(read("1h30m"), Some(1_699_994_600_000));
        assert_eq!(read("2d"), Some((1_700_000_000 - 2 * 86_400) * 1000));
        assert_eq!(read("2023-11-14T22:13:20Z"), Some(1_700_000_000_000));
        assert_eq!(read("2023-11-14T23:13:20.5+01:00"), Some(1_700_000_000_500));
        assert_eq!(read("2023-11-14T22:13:20"), Some(1_700_000_000_000));
        assert_eq!(read("2023-11-14"), Some(1_699_920_000_000));
        assert_eq!((read("1700000000"), read("1700000000.25")), (Some(1_700_000_000_000), Some(1_700_000_000_250)));
        for wrong in ["", "soon", "-10m", "10", "1.x", "2023-13-01"] {
            assert!(wrong == "10" || read(wrong).is_none(), "{wrong}");
        }
        assert!(moment("soon").unwrap_err().contains("10m"));
    }
}
