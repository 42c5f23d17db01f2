//! `pando logs`: what guests wrote to their logs.

use super::Verb;
use crate::client::Client;
use crate::complaint::Usage;
use crate::log_view::{Lines, LogFile, Merge, Paper, Shown, moment, start_of_last};
use crate::replies::{Done, Inspected};
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use jiff::Timestamp;
use pando_api::{Fault, FaultKind, GuestState, Method};
use std::fs::File;
use std::thread::sleep;
use std::time::Duration;

/// How often a followed log is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// After how many looks at a silent log the guest is asked for: it may have stopped.
const LOOKS: u32 = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Go on with what is added, until the guest stops
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, visible_alias = "tail", value_name = "N")]
    lines: Option<u64>,
    /// Show when each line was printed, in UTC
    #[arg(short, long)]
    timestamps: bool,
    /// Only what was printed from then on: how long ago (10m, 1h30m, 2d), a date (2026-11-28, 2026-11-28T14:15:00), or
    /// seconds since the epoch
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<i64>,
    /// Only what was printed until then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<i64>,
    /// Print to a terminal whatever the guest wrote, also what drives terminals
    #[arg(long)]
    raw: bool,
    /// The guests; of several each line begins with whose it is
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Verb for Logs {
    const NAME: &'static str = "logs";
    const ABOUT: &'static str = "Show what guests wrote to their logs";
    const EXAMPLES: &'static str = "\
Examples:
  pando logs web
  pando logs -n 20 -f web
  pando logs -t --since 10m web db       of both, in the order of time";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let shown = Shown { since: self.since, until: self.until, times: self.timestamps };
        let bounded = self.since.is_some() || self.until.is_some();
        match self.names.as_slice() {
            [name] if !bounded && !self.timestamps => self.show_one(&mut client, name).with_context(|| failed(name))?,
            _ => self.show_lines(&mut client, shown)?,
        }
        Ok(0)
    }
}

fn failed(name: &str) -> String {
    format!("cannot show the log of guest '{name}'")
}

impl Logs {
    /// One log, byte for byte.
    fn show_one(&self, client: &mut Client, name: &str) -> anyhow::Result<()> {
        let (log, _) = open(client, name)?;
        let mut paper = Paper::new(self.raw);
        let at = show(&log, self.begin(&log)?, &mut paper)?;
        if self.follow { follow(client, name, &log, at, &mut paper) } else { Ok(()) }
    }

    /// One log or several, line by line.
    fn show_lines(&self, client: &mut Client, shown: Shown) -> anyhow::Result<()> {
        let mut logs = Vec::new();
        for name in &self.names {
            let lines = self.lines_of(client, name, shown).with_context(|| failed(name))?;
            logs.push((name.clone(), lines));
        }
        let mut logs = Merge::new(logs, shown, self.raw);
        if !self.follow {
            return logs.print(true).map(drop);
        }
        let mut silent = 0;
        loop {
            silent = if logs.print(false)? { 0 } else { silent + 1 };
            if self.until.is_some_and(|until| Timestamp::now().as_millisecond() > until) {
                return Ok(());
            }
            if silent >= LOOKS {
                silent = 0;
                if have_ended(client, &self.names)? {
                    // Their last words may have come after the look before.
                    return logs.print(true).map(drop);
                }
            }
            sleep(INTERVAL);
        }
    }

    fn lines_of(&self, client: &mut Client, name: &str, shown: Shown) -> anyhow::Result<Lines> {
        let (log, times) = open(client, name)?;
        let at = self.begin(&log)?;
        let mut lines = Lines::new(log, times, at);
        if (shown.since.is_some() || shown.until.is_some()) && lines.are_timeless()? {
            let message = format!(
                "when its lines were printed is not known: an earlier Pando started it. `pando logs {name}` shows all of them"
            );
            return Err(Usage::sentence(message).into());
        }
        Ok(lines)
    }

    fn begin(&self, log: &LogFile) -> anyhow::Result<u64> {
        self.lines.map_or(Ok(0), |lines| start_of_last(log, lines))
    }
}

/// A guest's log, and the times of its lines where they are known.
fn open(client: &mut Client, name: &str) -> anyhow::Result<(LogFile, Option<File>)> {
    client.send(Method::Log { name: name.to_owned() }, false, Vec::new())?;
    let mut files = client.receive::<Done>()?.descriptors.into_iter().map(File::from);
    let Some(log) = files.next() else { bail!("the daemon answered without it") };
    Ok((LogFile::new(log), files.next()))
}

/// Prints what stands from `at` on; the answer is where it ends.
fn show(log: &LogFile, mut at: u64, paper: &mut Paper) -> anyhow::Result<u64> {
    while let Some((begins, piece)) = log.read(at)? {
        at = begins + piece.len() as u64;
        paper.print(&piece)?;
    }
    Ok(at)
}

fn follow(client: &mut Client, name: &str, log: &LogFile, mut at: u64, paper: &mut Paper) -> anyhow::Result<()> {
    let mut silent = 0;
    loop {
        sleep(INTERVAL);
        if log.length()? < at {
            // It was emptied to make room: what is there now is new.
            at = 0;
        }
        let shown = show(log, at, paper)?;
        silent = if shown == at { silent + 1 } else { 0 };
        at = shown;
        if silent >= LOOKS {
            silent = 0;
            if have_ended(client, std::slice::from_ref(&name.to_owned()))? {
                // Its last words may have come after the look before.
                return show(log, at, paper).map(drop);
            }
        }
    }
}

/// Whether all of these guests have stopped; one that is gone has.
fn have_ended(client: &mut Client, names: &[String]) -> anyhow::Result<bool> {
    for name in names {
        match client.call::<Inspected>(Method::Inspect { name: name.clone() }) {
            Ok(answer) if answer.guest.status.state == GuestState::Stopped => {}
            Ok(_) => return Ok(false),
            Err(error) => match error.downcast_ref::<Fault>() {
                Some(fault) if fault.kind == FaultKind::NoSuchGuest => {}
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}
