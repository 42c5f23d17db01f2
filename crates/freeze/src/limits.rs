//! Resource limits. /proc/PID/limits tells them of any process, where prlimit(2) wants CAP_SYS_RESOURCE for another user's.

use crate::proc_file;
use pando_kernel::CallError;

/// Names as /proc/PID/limits has them, by `RLIMIT_*` (x86-64).
const NAMES: [&str; 16] = [
    "Max cpu time",
    "Max file size",
    "Max data size",
    "Max stack size",
    "Max core file size",
    "Max resident set",
    "Max processes",
    "Max open files",
    "Max locked memory",
    "Max address space",
    "Max file locks",
    "Max pending signals",
    "Max msgqueue size",
    "Max nice priority",
    "Max realtime priority",
    "Max realtime timeout",
];

/// Every limit of a process: number, soft, hard.
pub(crate) fn read(pid: i32) -> Result<Vec<(u32, u64, u64)>, CallError> {
    proc_file::text(pid, "limits").map(|text| parse(&text))
}

fn parse(text: &str) -> Vec<(u32, u64, u64)> {
    let value = |word: &str| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() };
    let line = |(number, name): (usize, &&str)| {
        let rest = text.lines().find_map(|line| line.strip_prefix(*name))?;
        let mut words = rest.split_ascii_whitespace();
        Some((number as u32, value(words.next()?)?, value(words.next()?)?))
    };
    NAMES.iter().enumerate().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_by_name() {
        let text = "Limit  Soft Limit Hard Limit Units\nMax open files            1024                 524288               files     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(parse(text), [(7, 1024, 524_288), (9, u64::MAX, u64::MAX)]);
    }
}
