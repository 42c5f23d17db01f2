//! `pando attach`: what a guest prints from now on, its input, its signals and its exit code.

use super::Verb;
use crate::client::Client;
use crate::complaint::{OWN_FAILURE, complain};
use crate::log_view::{LogFile, Paper};
use crate::replies::{Done, Inspected, Noticed};
use crate::session::detach_keys::DetachKeys;
use crate::session::line_mode::LineMode;
use crate::session::signals::{Asked, Signals};
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use pando_api::{Fault, GuestState, Method};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::stdin;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

/// How often it is looked whether something was printed: nanoseconds.
const INTERVAL: i64 = 100_000_000;

/// How much of the input is read at a time.
const PIECE: usize = 64 * 1024;

/// How much of what is typed is kept for a guest that does not read: the keys that leave it are among what comes after.
const KEPT: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    /// Whether the signals that come here go to the guest's first process; with false they end this command alone
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    sig_proxy: bool,
    /// Pass no input on
    #[arg(long)]
    no_stdin: bool,
    /// The keys that leave the guest running and end this command
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    /// The guest
    name: String,
}

impl Verb for Attach {
    const NAME: &'static str = "attach";
    const ABOUT: &'static str = "Show what a guest prints until it ends, and pass input and signals to it";
    const EXAMPLES: &'static str = "\
Examples:
  pando run -d -i --name sum -- bc       a guest with an input
  pando attach sum                       Ctrl-P Ctrl-Q leaves it running, Ctrl-C interrupts it
  echo 6*7 | pando attach --detach-keys '' sum
  pando attach --no-stdin job            look on
  pando attach --sig-proxy=false job     Ctrl-C leaves it running

The exit code is the guest's. A guest has an input if it was made with -i; the end of what is passed on is not the end of
that. One that was started with -t prints to a terminal that nobody looks at: `pando shell NAME` opens a shell in a guest.
What it printed before is in `pando logs`.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let doing = || format!("cannot attach to guest '{}'", self.name);
        let guest = client.call::<Inspected>(Method::Inspect { name: self.name.clone() }).with_context(doing)?.guest;
        if guest.status.state == GuestState::Stopped {
            let message = format!(
                "guest '{0}' does not run; `pando start {0}` starts it, and `pando logs {0}` shows what it printed",
                self.name
            );
            return Err(crate::complaint::Usage::sentence(message).into());
        }
        client.send(Method::Log { name: self.name.clone() }, false, Vec::new())?;
        let mut files = client.receive::<Done>().with_context(doing)?.descriptors.into_iter().map(File::from);
        let Some(log) = files.next() else { bail!("the daemon answered without the log") };
        let log = LogFile::new(log);
        let at = log.length()?;
        let input = match guest.spec.stdin_open && !self.no_stdin {
            true => Some(Input::open(&mut client, &self.name, self.detach_keys.clone()).with_context(doing)?),
            false => None,
        };
        // With an input also where they are not passed on: the terminal is to be as it was before.
        let signals = (self.sig_proxy || input.is_some()).then(|| Signals::take(false)).transpose();
        let mut end = Client::connect(&root.socket())?;
        end.send(Method::Wait { name: self.name.clone() }, true, Vec::new())?;
        let (signals, proxy) = (signals.context("cannot take signals")?, self.sig_proxy);
        let mut attached = Attached { name: &self.name, client, end, log, at, input, signals, proxy };
        attached.follow().with_context(doing)
    }
}

/// What goes from standard input to the guest's.
struct Input {
    sink: OwnedFd,
    keys: DetachKeys,
    /// What the guest has not taken yet.
    waiting: Vec<u8>,
    has_ended: bool,
    _mode: LineMode,
}

/// What came of a look at the input.
#[derive(PartialEq, Eq)]
enum Typed {
    Text,
    Detach,
}

impl Input {
    fn open(client: &mut Client, name: &str, keys: DetachKeys) -> anyhow::Result<Self> {
        client.send(Method::Input { name: name.to_owned() }, false, Vec::new())?;
        let sink = client.receive::<Done>()?.descriptors.into_iter().next();
        let Some(sink) = sink else { bail!("the daemon answered without the input") };
        let mode = LineMode::enter(keys.last()).context("cannot change the terminal's mode")?;
        Ok(Self { sink, keys, waiting: Vec::new(), has_ended: false, _mode: mode })
    }

    /// What poll(2) is to wait for.
    fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sink = (!self.waiting.is_empty()).then(|| PollFd::from_borrowed_fd(self.sink.as_fd(), PollFlags::OUT));
        let source = self.reads_on().then(|| PollFd::from_borrowed_fd(stdin(), PollFlags::IN));
        sink.into_iter().chain(source)
    }

    /// Whether more is read: of a terminal also what the guest does not take yet.
    fn reads_on(&self) -> bool {
        let kept = if stdin().is_terminal() { KEPT } else { 1 };
        !self.has_ended && self.waiting.len() < kept
    }

    /// Reads what there is and hands it on.
    fn carry(&mut self) -> anyhow::Result<Typed> {
        let mut detach = false;
        if self.reads_on() && is_ready()? {
            let mut piece = vec![0; PIECE];
            match rustix::io::read(stdin(), &mut piece) {
                Ok(0) => {
                    self.keys.release(&mut self.waiting);
                    self.has_ended = true;
                }
                Ok(count) => detach = self.keys.filter(&piece[..count], &mut self.waiting),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // A terminal that has gone.
                Err(Errno::IO) => self.has_ended = true,
                Err(error) => return Err(error).context("cannot read standard input"),
            }
        }
        while !self.waiting.is_empty() {
            match rustix::io::write(&self.sink, &self.waiting) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => break,
                // Nobody in the guest has it any more.
                Err(Errno::PIPE) => (self.waiting, self.has_ended) = (Vec::new(), true),
                Err(error) => return Err(error).context("cannot write to the guest's input"),
            }
        }
        Ok(if detach { Typed::Detach } else { Typed::Text })
    }
}

/// Whether standard input can be read without waiting.
fn is_ready() -> anyhow::Result<bool> {
    let mut watched = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut watched, Some(&now)).context("cannot wait for standard input")? > 0)
}

/// A guest that this command stands for.
struct Attached<'a> {
    name: &'a str,
    client: Client,
    end: Client,
    log: LogFile,
    /// How far the log has been shown.
    at: u64,
    input: Option<Input>,
    signals: Option<Signals>,
    /// Whether they are passed on.
    proxy: bool,
}

impl Attached<'_> {
    /// Prints what comes into the log until the guest has ended or is left; the answer is the exit code.
    fn follow(&mut self) -> anyhow::Result<u8> {
        let mut paper = Paper::new(false);
        loop {
            self.wait();
            if let Some(signal) = self.heed()? {
                return Ok(u8::try_from(128 + signal).unwrap_or(OWN_FAILURE));
            }
            let left = self.input.as_mut().map(Input::carry).transpose()? == Some(Typed::Detach);
            let ended = self.end.receive_now::<Noticed>()?.map(|answer| answer.reply.notice);
            self.print(&mut paper)?;
            if let Some(notice) = ended.filter(|notice| notice.exited) {
                return Ok(notice.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAILURE));
            }
            if left {
                self.input = None;
                eprintln!("\nDetached from guest '{0}': it goes on running. `pando attach {0}` comes back.", self.name);
                return Ok(0);
            }
        }
    }

    /// Until there is something to do, or it is to be looked whether there is.
    fn wait(&self) {
        let mut watched = vec![PollFd::new(&self.end, PollFlags::IN)];
        watched.extend(self.signals.as_ref().map(|signals| PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)));
        watched.extend(self.input.iter().flat_map(Input::watched));
        let _ = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: INTERVAL }));
    }

    /// Passes signals on; the one that ends this command, where they are not passed on.
    fn heed(&mut self) -> anyhow::Result<Option<i32>> {
        while let Some(Asked::Forward(signal) | Asked::FromTerminal(signal)) =
            self.signals.as_mut().and_then(Signals::next)
        {
            if !self.proxy {
                return Ok(Some(signal));
            }
            let method = Method::Kill { name: self.name.to_owned(), signal: Some(signal.to_string()) };
            match self.client.call::<Done>(method) {
                Ok(_) => {}
                // It may just have ended.
                Err(error) if error.chain().any(|cause| cause.is::<Fault>()) => {
                    complain(&error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn print(&mut self, paper: &mut Paper) -> anyhow::Result<()> {
        if self.log.length()? < self.at {
            // It was emptied to make room: what is there now is new.
            self.at = 0;
        }
        while let Some((begins, piece)) = self.log.read(self.at)? {
            self.at = begins + piece.len() as u64;
            paper.print(&piece)?;
        }
        Ok(())
    }
}
