//! The columns of the papers' tables 1 and 2, as the kernel tells them for the whole machine.

use anyhow::Context;

/// Their names in the tables.
pub(super) const COLUMNS: [&str; 8] = ["Active", "Buffers", "Cache", "Anon", "Mapped", "Slab", "Recl.", "Unrecl."];

/// Their names in /proc/meminfo.
const NAMES: [&str; 8] = ["Active", "Buffers", "Cached", "AnonPages", "Mapped", "Slab", "SReclaimable", "SUnreclaim"];

/// Kilobytes of each column.
pub(super) type Row = [i64; 8];

/// As it is now.
pub(super) fn now() -> anyhow::Result<Row> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    parse(&text).context("/proc/meminfo lacks a line")
}

fn parse(text: &str) -> Option<Row> {
    let field = |name: &str| -> Option<i64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    let mut row = Row::default();
    for (value, name) in row.iter_mut().zip(NAMES) {
        *value = field(name)?;
    }
    Some(row)
}

/// How much more it is than it was.
pub(super) fn since(before: &Row, now: &Row) -> Row {
    std::array::from_fn(|column| now[column] - before[column])
}

/// What guests take in all, in kilobytes: the page cache, memory of processes, and the kernel's own.
pub(super) fn all(row: &Row) -> i64 {
    let [_, buffers, cache, anon, _, slab, ..] = row;
    buffers + cache + anon + slab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_read() {
        let text: String = NAMES.iter().enumerate().map(|(at, name)| format!("{name}:   {at} kB\n")).collect();
        let row = parse(&format!("MemTotal: 9 kB\nActive(file): 99 kB\n{text}")).unwrap();
        assert_eq!(row, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all(&row), 1 + 2 + 3 + 5);
        assert_eq!(since(&row, &[9; 8])[7], 2);
        assert_eq!(parse("Active: 1 kB\n"), None);
    }
}
