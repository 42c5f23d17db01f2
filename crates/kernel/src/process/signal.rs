//! Signals by name and number.

/// Names without `SIG`, in the order of x86's and ARM's numbers, from 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Real-time signals as a program sees them: the C library keeps two for itself.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The number of a signal given as `TERM`, `SIGTERM`, `term`, `15`, `RTMIN+3` or `RTMAX-1`.
pub fn number(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Ok(number) = name.parse::<i32>() {
        return (1..=RTMAX).contains(&number).then_some(number);
    }
    if let Some(index) = NAMES.iter().position(|known| *known == name) {
        return i32::try_from(index + 1).ok();
    }
    let offset = |rest: &str| if rest.is_empty() { Some(0) } else { rest.parse::<i32>().ok() };
    let real_time = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => RTMIN + offset(rest)?,
        (_, Some(rest)) => RTMAX + offset(rest)?,
        _ => return None,
    };
    (RTMIN..=RTMAX).contains(&real_time).then_some(real_time)
}

/// The name of a signal, with `SIG`.
pub fn name(number: i32) -> String {
    usize::try_from(number - 1)
        .ok()
        .and_then(|index| NAMES.get(index))
        .map_or(format!("signal {number}"), |name| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_many_spellings() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(number(text), Some(15), "{text}");
        }
        assert_eq!(number("RTMIN+3"), Some(37));
        assert_eq!(number("SIGRTMAX-1"), Some(63));
        for text in ["", "0", "65", "-1", "TERMS", "RTMIN-1", "RTMAX+1", "SIG"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(name(9), "SIGKILL");
    }
}
