//! Quantities as people write them: `512M`, `25%`, `1.5`, `0-3,6`.
//!
//! Each reader says why it takes no other text, in words that fit after "… cannot be 'x': ".

/// A size in bytes: a number, with K, M, G or T for powers of 1024, and an optional `B` or `iB`.
pub fn size(text: &str) -> Result<u64, String> {
    const EXAMPLE: &str = "write bytes, or a number with K, M, G or T, such as 512M";
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if text.starts_with('-') {
        return Err(format!("a size cannot be negative; {EXAMPLE}"));
    }
    let short = unit.to_ascii_uppercase();
    let short = short.strip_suffix("IB").or_else(|| short.strip_suffix('B')).unwrap_or(&short);
    let power = match short {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ if number.is_empty() => return Err(EXAMPLE.to_owned()),
        _ => return Err(format!("'{unit}' is not a unit; {EXAMPLE}")),
    };
    let number: f64 = number.parse().map_err(|_| EXAMPLE.to_owned())?;
    let bytes = number * 1024_f64.powi(power);
    // Beyond 2^53 a floating number does not count single bytes, and no machine has so many.
    if bytes > (1_u64 << 53) as f64 {
        return Err("that is more than any machine has".to_owned());
    }
    Ok(bytes as u64)
}

/// A part of the whole machine, `25%` for a quarter, as a fraction of 1.
pub fn part(text: &str) -> Result<f64, String> {
    const EXAMPLE: &str = "write a part of the machine's processors in percent, such as 25%";
    let number = text.strip_suffix('%').ok_or_else(|| EXAMPLE.to_owned())?;
    let number: f64 = number.trim().parse().map_err(|_| EXAMPLE.to_owned())?;
    match number {
        number if !number.is_finite() => Err(EXAMPLE.to_owned()),
        number if number < 0.0 => Err(format!("a reservation cannot be negative; {EXAMPLE}")),
        number if number < 0.1 => Err("less than 0.1% cannot be told from nothing; leave it out instead".to_owned()),
        number if number > 100.0 => Err("a machine has 100%".to_owned()),
        number => Ok(number / 100.0),
    }
}

/// Processors' worth of time: `1.5` is all of one and half of another.
pub fn processors(text: &str) -> Result<f64, String> {
    const EXAMPLE: &str = "write a number of processors, such as 1.5";
    match text.parse::<f64>() {
        Ok(number) if !number.is_finite() => Err(EXAMPLE.to_owned()),
        Ok(number) if number < 0.0 => Err(format!("processor time cannot be negative; {EXAMPLE}")),
        Ok(number) if number < 0.01 => Err("less than 0.01 of a processor lets nothing run".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(EXAMPLE.to_owned()),
    }
}

/// A whole number between two others, both included.
pub fn whole(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) => Err(format!("write a whole number from {least} to {most}")),
        Err(_) if text.starts_with('-') => Err(format!("it cannot be negative; write a whole number from {least} on")),
        Err(_) => Err(format!("it is not a whole number; write one from {least} on, such as {}", least.max(100))),
    }
}

/// A number of things, with k or M for thousands and millions: `200k`.
pub fn count(text: &str, least: u64) -> Result<u64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K', 'M']) {
        Some(number) if text.ends_with('M') => (number, 1_000_000),
        Some(number) => (number, 1000),
        None => (text, 1),
    };
    whole(number, 0, u64::MAX / 1_000_000)
        .map(|number| number * factor)
        .and_then(|number| if number < least { Err(format!("it must be {least} at least")) } else { Ok(number) })
}

/// A list of processors as the kernel writes it, `0-3,6`, in order and without doubles.
pub fn list(text: &str) -> Result<Vec<u32>, String> {
    const EXAMPLE: &str = "write processors by their numbers, such as 0-1 or 0,2";
    /// The most processors that a kernel is built for.
    const MOST: u32 = 8192;
    let mut ranges = Vec::new();
    for piece in text.split(',') {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| EXAMPLE.to_owned());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= MOST {
            return Err(EXAMPLE.to_owned());
        }
        ranges.push((first, last));
    }
    ranges.sort_unstable();
    // Each number once from the start: an image's maker wrote this, and a few bytes could say all numbers again.
    let (mut found, mut next) = (Vec::new(), 0);
    for (first, last) in ranges {
        found.extend(first.max(next)..=last);
        next = next.max(last + 1);
    }
    Ok(found)
}

/// A size for people, in the unit that leaves one to four digits.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if value < 1024.0 {
            return if value < 10.0 && unit != "B" { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

/// A list of processors as the kernel reads it.
pub fn show_list(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1K", 1024), ("512M", 512 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_said_again_and_again_takes_no_more_memory() {
        let all = list(&["0-8191"; 20_000].join(",")).unwrap();
        assert_eq!((all.len(), all.first(), all.last()), (8192, Some(&0), Some(&8191)));
        assert!(all.capacity() <= 4 * all.len(), "{} were made room for", all.capacity());
        assert_eq!(list("5,0-3,2-4,5,1"), Ok(vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_a_reason() {
        for (result, word) in [
            (size("-1"), "negative"),
            (size("5X"), "'X' is not a unit"),
            (size("much"), "such as 512M"),
            (size(""), "such as 512M"),
            (size("1.2.3M"), "such as 512M"),
            (size("99999999T"), "more than any machine"),
            (whole("-3", 1, 9), "negative"),
            (whole("x", 1, 9), "not a whole number"),
            (whole("10", 1, 9), "from 1 to 9"),
            (count("0", 1), "1 at least"),
        ] {
            let why = result.unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        for (result, word) in [
            (part("25"), "such as 25%"),
            (part("-1%"), "negative"),
            (part("0%"), "leave it out"),
            (part("101%"), "has 100%"),
            (part("NaN%"), "such as 25%"),
            (processors("-1"), "negative"),
            (processors("0"), "lets nothing run"),
            (processors("inf"), "such as 1.5"),
        ] {
            let why = result.unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn lists_are_put_in_order() {
        assert_eq!(list("2,0-1,1"), Ok(vec![0, 1, 2]));
        for wrong in ["", "a", "3-1", "-1", "0-", "0-9999999"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_take_thousands() {
        assert_eq!((count("200k", 1), count("2M", 1), count("7", 1)), (Ok(200_000), Ok(2_000_000), Ok(7)));
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(
            [show_size(5), show_size(1536), show_size(512 << 20), show_size(3 << 40)],
            ["5B", "1.5K", "512M", "3.0T"]
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_fail_otherwise(text in ".{0,12}") {
            let _ = (size(&text), part(&text), processors(&text), whole(&text, 1, 5), count(&text, 1), list(&text));
        }
    }
}
