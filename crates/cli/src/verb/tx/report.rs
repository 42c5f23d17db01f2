//! What became of a transaction, in a line.

use pando_tx::Figures;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The line behind a commit or an abort.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) outcome: Outcome<'a>,
    pub(super) time: Duration,
    pub(super) retries: u32,
    /// What kept others out while it was committed.
    pub(super) gate: &'a str,
    /// Processes that were left in it at its end, and were ended.
    pub(super) ended: usize,
    /// Whether they were not to go on.
    pub(super) no_daemons: bool,
    /// Mounts that can be written outside and could not inside.
    pub(super) read_only: &'a [String],
    /// Other machines that were connected to, which is not undone.
    pub(super) connections: &'a BTreeSet<SocketAddr>,
}

/// So many addresses are named.
const NAMED: usize = 5;

#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Committed(Figures),
    /// Why.
    Aborted(&'a str),
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Committed(figures) => {
                let paths = counted(figures.paths, "path", "paths");
                write!(out, "committed: {paths}, {}", bytes(figures.bytes))?;
            }
            Outcome::Aborted(why) => write!(out, "aborted: {why}; nothing was changed")?,
        }
        write!(out, "; {:.3} s, {}", self.time.as_secs_f64(), counted(self.retries as usize, "retry", "retries"))?;
        if matches!(self.outcome, Outcome::Committed(_)) {
            write!(out, ", gate {}", self.gate)?;
        }
        if let Outcome::Committed(figures) = &self.outcome {
            match figures.read {
                Some(names) => write!(out, ", {} validated", counted(names, "name", "names"))?,
                None => write!(out, ", only its changes validated")?,
            }
        }
        if self.ended > 0 {
            write!(out, ", {} ended", counted(self.ended, "process left in it", "processes left in it"))?;
            if matches!(self.outcome, Outcome::Committed(_)) && !self.no_daemons {
                write!(out, " (no daemon can outlast its transaction yet: start it again)")?;
            }
        }
        if !self.read_only.is_empty() {
            write!(out, "; read-only inside: {}", self.read_only.join(", "))?;
        }
        self.passed(out)
    }
}

impl Report<'_> {
    fn passed(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.connections.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = self.connections.iter().take(NAMED).map(SocketAddr::to_string).collect();
        let more = if self.connections.len() > NAMED { ", …" } else { "" };
        let count = counted(self.connections.len(), "connection", "connections");
        write!(out, "; {count} had passed: {}{more}", named.join(", "))
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `12 B`, `1.2 KiB`, `3.4 GiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_it_all() {
        let time = Duration::from_millis(1500);
        let report = Report {
            outcome: Outcome::Committed(Figures { paths: 1, bytes: 1536, read: Some(7) }),
            time,
            retries: 2,
            gate: "none",
            ended: 1,
            no_daemons: true,
            read_only: &["/boot/efi".to_owned()],
            connections: &BTreeSet::from(["10.0.0.1:80".parse().unwrap()]),
        };
        assert_eq!(
            report.to_string(),
            "committed: 1 path, 1.5 KiB; 1.500 s, 2 retries, gate none, 7 names validated, 1 process left in it ended; read-only inside: /boot/efi; 1 connection had passed: 10.0.0.1:80"
        );
        let connections = &BTreeSet::new();
        let outcome = Outcome::Aborted("exit code 1");
        let report = Report { ended: 2, no_daemons: false, ..report };
        assert!(report.to_string().contains("2 processes left in it ended (no daemon can outlast"));
        let report = Report {
            outcome,
            time,
            retries: 1,
            gate: "none",
            ended: 0,
            no_daemons: false,
            read_only: &[],
            connections,
        };
        assert_eq!(report.to_string(), "aborted: exit code 1; nothing was changed; 1.500 s, 1 retry");
        assert_eq!((bytes(5), bytes(3 << 40).as_str()), ("5 B".to_owned(), "3.0 TiB"));
    }
}
