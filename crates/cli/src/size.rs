//! Sizes for people.

/// A number of bytes: `0`, `512 B`, `1.5 KiB`, `20 MiB`.
pub(crate) fn size(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (bytes, unit) {
        (0, _) => "0".to_owned(),
        (_, 0) => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let cases = [(0, "0"), (512, "512 B"), (1_536, "1.5 KiB"), (20 << 20, "20 MiB"), (3 << 50, "3072 TiB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
