//! `pando logs`: what a guest wrote to its log.

use super::Verb;
use crate::client::Client;
use crate::complaint::NoReader;
use crate::replies::{Done, Inspected};
use crate::state_root::StateRoot;
use crate::tamed_text::TamedText;
use anyhow::{Context, bail};
use pando_api::{Fault, FaultKind, GuestState, Method};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

/// How often a followed log is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// After how many looks at a silent log the guest is asked for: it may have stopped.
const LOOKS: u32 = 5;
const PIECE: u64 = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Go on with what is added, until the guest stops
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, visible_alias = "tail", value_name = "N")]
    lines: Option<u64>,
    /// Print to a terminal whatever the guest wrote, also what drives terminals
    #[arg(long)]
    raw: bool,
    /// The guest
    name: String,
}

impl Verb for Logs {
    const NAME: &'static str = "logs";
    const ABOUT: &'static str = "Show what a guest wrote to its log";
    const EXAMPLES: &'static str = "\
Examples:
  pando logs web
  pando logs -n 20 -f web";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let failed = || format!("cannot show the log of guest '{}'", self.name);
        let log = open(&mut client, &self.name).with_context(failed)?;
        let mut at = match self.lines {
            Some(lines) => start_of_last(&log, lines).with_context(failed)?,
            None => 0,
        };
        let mut paper = Paper::new(self.raw);
        at = show(&log, at, &mut paper).with_context(failed)?;
        if self.follow {
            follow(&mut client, &self.name, &log, at, &mut paper).with_context(failed)?;
        }
        Ok(0)
    }
}

fn open(client: &mut Client, name: &str) -> anyhow::Result<File> {
    client.send(Method::Log { name: name.to_owned() }, false, Vec::new())?;
    let mut descriptors = client.receive::<Done>()?.descriptors;
    let Some(log) = descriptors.pop() else { bail!("the daemon answered without it") };
    Ok(File::from(log))
}

/// Where something stands from `at` on: the beginning of a long log was cut away and is a hole. None where nothing
/// does.
fn standing(log: &File, at: u64) -> anyhow::Result<Option<u64>> {
    match seek(log, SeekFrom::Data(at)) {
        Ok(standing) => Ok(Some(standing)),
        Err(Errno::NXIO) => Ok(None),
        // A log that was never written to is the null device.
        Err(Errno::SPIPE | Errno::INVAL) => Ok(Some(at)),
        Err(error) => Err(error).context("cannot look where it begins"),
    }
}

/// Where the line after the one at `at` begins, if that is near: the cut goes through a line.
fn next_line(log: &File, at: u64) -> anyhow::Result<u64> {
    let mut piece = vec![0; usize::try_from(PIECE)?];
    let length = log.read_at(&mut piece, at).context("cannot read it")?;
    let newline = piece[..length].iter().position(|byte| *byte == b'\n');
    Ok(at + newline.map_or(0, |newline| newline as u64 + 1))
}

/// Where a log is printed. Of what goes to a terminal colours are left, and nothing that drives it: a guest may have
/// written anything.
struct Paper {
    tamed: Option<TamedText>,
}

impl Paper {
    fn new(raw: bool) -> Self {
        Self { tamed: (!raw && std::io::stdout().is_terminal()).then(TamedText::default) }
    }

    fn print(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        match &mut self.tamed {
            Some(tamed) => out.write_all(&tamed.tame(bytes))?,
            None => out.write_all(bytes)?,
        }
        out.flush()
    }
}

/// Prints what stands from `at` on; the answer is where it ends.
fn show(log: &File, mut at: u64, paper: &mut Paper) -> anyhow::Result<u64> {
    let mut piece = vec![0; usize::try_from(PIECE)?];
    loop {
        match standing(log, at)? {
            None => return Ok(at),
            Some(data) if data > at => at = next_line(log, data)?,
            Some(_) => {}
        }
        let length = log.read_at(&mut piece, at).context("cannot read it")?;
        if length == 0 {
            return Ok(at);
        }
        at += length as u64;
        match paper.print(&piece[..length]) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(NoReader.into()),
            other => other.context("cannot write to standard output")?,
        }
    }
}

fn follow(client: &mut Client, name: &str, log: &File, mut at: u64, paper: &mut Paper) -> anyhow::Result<()> {
    let mut silent = 0;
    loop {
        sleep(INTERVAL);
        if log.metadata().context("cannot look at it")?.len() < at {
            // It was emptied to make room: what is there now is new.
            at = 0;
        }
        let shown = show(log, at, paper)?;
        silent = if shown == at { silent + 1 } else { 0 };
        at = shown;
        if silent >= LOOKS {
            silent = 0;
            if has_ended(client, name)? {
                // Its last words may have come after the look before.
                return show(log, at, paper).map(drop);
            }
        }
    }
}

/// Whether the guest has stopped; one that is gone has.
fn has_ended(client: &mut Client, name: &str) -> anyhow::Result<bool> {
    match client.call::<Inspected>(Method::Inspect { name: name.to_owned() }) {
        Ok(answer) => Ok(answer.guest.status.state == GuestState::Stopped),
        Err(error) => match error.downcast_ref::<Fault>() {
            Some(fault) if fault.kind == FaultKind::NoSuchGuest => Ok(true),
            _ => Err(error),
        },
    }
}

/// Where the last `lines` lines begin, found from the end: logs grow large.
fn start_of_last(log: &File, lines: u64) -> anyhow::Result<u64> {
    let end = log.metadata().context("cannot look at it")?.len();
    if lines == 0 {
        return Ok(end);
    }
    // Nothing before that is worth a look.
    let begin = standing(log, 0)?.unwrap_or(end);
    let mut piece = vec![0; usize::try_from(PIECE)?];
    let (mut at, mut found) = (end, 0);
    while at > begin {
        let from = at.saturating_sub(PIECE).max(begin);
        let piece = &mut piece[..usize::try_from(at - from)?];
        log.read_exact_at(piece, from).context("cannot read it")?;
        for (index, byte) in piece.iter().enumerate().rev() {
            let position = from + index as u64;
            // The newline at the very end closes the last line and begins none.
            if *byte == b'\n' && position + 1 != end {
                found += 1;
                if found >= lines {
                    return Ok(position + 1);
                }
            }
        }
        at = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(text: &str, lines: u64) -> String {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let from = usize::try_from(start_of_last(&file, lines).unwrap()).unwrap();
        text[from..].to_owned()
    }

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 1), "c");
        assert_eq!(last("a\nb\n", 9), "a\nb\n");
        assert_eq!(last("", 3), "");
        assert_eq!(last("\n\n", 1), "\n");
        let long = "x".repeat(100_000);
        assert_eq!(last(&format!("{long}\n{long}\ny\n"), 2), format!("{long}\ny\n"));
    }

    #[test]
    fn a_beginning_that_was_cut_away_is_passed_over() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"of a line\nwhole\nlast\n", 1 << 20).unwrap();
        assert_eq!(standing(&file, 0).unwrap(), Some(1 << 20));
        assert_eq!(next_line(&file, 1 << 20).unwrap(), (1 << 20) + 10);
        assert_eq!(start_of_last(&file, 1).unwrap(), (1 << 20) + 16);
        assert_eq!(standing(&file, (1 << 20) + 21).unwrap(), None);
        assert_eq!(standing(&File::open("/dev/null").unwrap(), 0).unwrap(), Some(0));
    }

    #[test]
    fn no_line_is_none() {
        assert_eq!(last("a\nb", 0), "");
        assert_eq!(last("a\nb\n", 0), "");
    }
}
