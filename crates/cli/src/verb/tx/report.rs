//! What became of a transaction, in a line.

use pando_tx::{Figures, Reached, Settled};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The line behind a commit or an abort.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) outcome: Outcome<'a>,
    pub(super) time: Duration,
    pub(super) retries: u32,
    /// Whether all others stood still for the whole of it.
    pub(super) alone: bool,
    /// Processes that were left in it at its end, and were ended.
    pub(super) ended: usize,
    /// Mounts that can be written outside and could not inside.
    pub(super) read_only: &'a [String],
    /// Paths at and below which what it read was not validated.
    pub(super) ignored: &'a [PathBuf],
    pub(super) passed: PassedOutside<'a>,
}

/// What has passed outside, and is not undone.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassedOutside<'a> {
    /// Other machines that were connected to.
    pub(super) connections: &'a BTreeSet<SocketAddr>,
    /// Servers of this machine that were, by their sockets.
    pub(super) sockets: &'a BTreeSet<String>,
    /// Files of the kernel's that were written to.
    pub(super) written: &'a BTreeSet<String>,
}

impl<'a> PassedOutside<'a> {
    pub(super) fn of(reached: &'a Reached) -> Self {
        let Reached { connections, sockets, written } = reached;
        Self { connections, sockets, written }
    }
}

/// So many addresses are named.
const NAMED: usize = 5;

#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Committed(Figures, &'a Settled),
    /// Why.
    Aborted(Cow<'a, str>),
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Committed(figures, _) => {
                let paths = counted(figures.paths, "path", "paths");
                write!(out, "committed: {paths}, {}", bytes(figures.bytes))?;
                if let Some(number) = figures.logged {
                    write!(out, ", number {number} in the log")?;
                }
                if figures.left_out > 0 {
                    write!(out, ", {} left out", counted(figures.left_out, "path", "paths"))?;
                }
            }
            Outcome::Aborted(why) if self.passed.written.is_empty() => {
                write!(out, "aborted: {why}; nothing was changed")?;
            }
            Outcome::Aborted(why) => write!(out, "aborted: {why}; no files were changed but the kernel's")?,
        }
        write!(out, "; {:.3} s, {}", self.time.as_secs_f64(), counted(self.retries as usize, "retry", "retries"))?;
        if let Outcome::Committed(figures, _) = &self.outcome {
            let whole = if self.alone { " for the whole run" } else { "" };
            write!(out, ", gate {}{whole}", figures.gate)?;
            match figures.read {
                Some(names) => write!(out, ", {} validated", counted(names, "name", "names"))?,
                None => write!(out, ", only its changes validated")?,
            }
        }
        if !self.ignored.is_empty() {
            let paths: Vec<_> = self.ignored.iter().map(|path| path.display().to_string()).collect();
            write!(out, ", reads below {} not validated", paths.join(", "))?;
        }
        if self.ended > 0 {
            write!(out, ", {} ended", counted(self.ended, "process left in it", "processes left in it"))?;
        }
        if let Outcome::Committed(_, settled) = &self.outcome {
            daemons(settled, out)?;
        }
        if let Outcome::Committed(Figures { too_large_to_keep: Some(taken), .. }, _) = &self.outcome {
            write!(out, ", not in the log: to keep what it replaces takes {}", bytes(*taken))?;
        }
        if !self.read_only.is_empty() {
            write!(out, "; read-only inside: {}", self.read_only.join(", "))?;
        }
        write!(out, "{}", self.passed)?;
        match &self.outcome {
            Outcome::Committed(_, settled) if !settled.failed.is_empty() => {
                write!(out, "; what failed behind the commit: {}", settled.failed.join("; "))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for PassedOutside<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machines: Vec<String> = self.connections.iter().map(SocketAddr::to_string).collect();
        let [sockets, written] = [self.sockets, self.written].map(|all| all.iter().cloned().collect::<Vec<_>>());
        for (names, one, many) in [
            (machines, "connection", "connections"),
            (sockets, "local connection", "local connections"),
            (written, "write to the kernel's files", "writes to the kernel's files"),
        ] {
            if !names.is_empty() {
                let more = if names.len() > NAMED { ", …" } else { "" };
                let count = counted(names.len(), one, many);
                write!(out, "; {count} had passed: {}{more}", names[..names.len().min(NAMED)].join(", "))?;
            }
        }
        Ok(())
    }
}

/// What the command left running.
fn daemons(settled: &Settled, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !settled.moved.is_empty() {
        let count = counted(settled.moved.len(), "process goes", "processes go");
        write!(out, ", {count} on: {}", settled.moved.join("; "))?;
    }
    if !settled.ended.is_empty() {
        let count = counted(settled.ended.len(), "process left in it", "processes left in it");
        write!(out, ", {count} ended: {}; start again what is needed", settled.ended.join("; "))?;
    }
    Ok(())
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
        let settled = &Settled { moved: vec!["sshd, pid 7".into()], ..Settled::default() };
        let figures = Figures { paths: 1, bytes: 1536, read: Some(7), left_out: 2, ..Figures::default() };
        let report = Report {
            outcome: Outcome::Committed(figures, settled),
            time,
            retries: 2,
            alone: false,
            ended: 1,
            read_only: &["/boot/efi".to_owned()],
            ignored: &["/var/log".into()],
            passed: PassedOutside {
                connections: &BTreeSet::from(["10.0.0.1:80".parse().unwrap()]),
                sockets: &BTreeSet::from(["/dev/log".to_owned()]),
                written: &BTreeSet::new(),
            },
        };
        assert_eq!(
            report.to_string(),
            "committed: 1 path, 1.5 KiB, 2 paths left out; 1.500 s, 2 retries, gate none, 7 names validated, reads below /var/log not validated, 1 process left in it ended, 1 process goes on: sshd, pid 7; read-only inside: /boot/efi; 1 connection had passed: 10.0.0.1:80; 1 local connection had passed: /dev/log"
        );
        let (outcome, nothing) = (Outcome::Aborted("exit code 1".into()), &Reached::default());
        let settled = &Settled {
            ended: vec!["sh, pid 7 (its root is /x)".into()],
            failed: vec!["adding it to the log: why".into()],
            ..Settled::default()
        };
        let report = Report { ended: 0, outcome: Outcome::Committed(figures, settled), ..report };
        assert!(report.to_string().contains("1 process left in it ended: sh, pid 7 (its root is /x); start again"));
        assert!(report.to_string().ends_with("; what failed behind the commit: adding it to the log: why"));
        let report = Report {
            outcome,
            time,
            retries: 1,
            alone: false,
            ended: 0,
            read_only: &[],
            ignored: &[],
            passed: PassedOutside::of(nothing),
        };
        assert_eq!(report.to_string(), "aborted: exit code 1; nothing was changed; 1.500 s, 1 retry");
        assert_eq!((bytes(5), bytes(3 << 40).as_str()), ("5 B".to_owned(), "3.0 TiB"));
    }
}
