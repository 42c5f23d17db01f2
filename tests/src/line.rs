//! A command line: run to its end within a time limit, and looked at.

use crate::patience::seconds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::ffi::OsStr;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Seconds that a command may take, if its test gives it no others.
const LIMIT: u64 = 60;

/// A command line that is being put together.
#[derive(Debug)]
pub(crate) struct Line {
    command: Command,
    input: Vec<u8>,
    limit: Duration,
    held: Option<(PipeReader, PipeWriter)>,
}

impl Line {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(program), input: Vec::new(), limit: seconds(LIMIT), held: None }
    }

    pub(crate) fn args<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.command.args(words);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, path: impl AsRef<std::path::Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    /// What it reads from its standard input.
    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    pub(crate) fn limit(mut self, number: u64) -> Self {
        self.limit = seconds(number);
        self
    }

    /// Starts it, with pipes for its standard descriptors.
    #[track_caller]
    pub(crate) fn start(mut self) -> Started {
        let shown = format!("{:?}", self.command);
        let (stdin, held) = match self.held {
            Some((read, write)) => (Stdio::from(read), Some(write)),
            None => (Stdio::piped(), None),
        };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{shown} cannot be started: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            let input = self.input;
            // What it does not read is no matter: it may have ended.
            std::thread::spawn(move || drop(stdin.write_all(&input)));
        }
        let out = collect(child.stdout.take().expect("it was asked for"));
        let err = collect(child.stderr.take().expect("it was asked for"));
        Started { shown, child, out, err, limit: self.limit, held }
    }

    /// Starts it with an input that has no end until [`Started::close_input`].
    #[track_caller]
    pub(crate) fn start_with_open_input(mut self) -> Started {
        let (read, write) = std::io::pipe().expect("a pipe can be made");
        self.held = Some((read, write));
        self.start()
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs it, and wants it to succeed; what it printed is the answer.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        self.run().succeeded().out()
    }
}

/// Reads to the end on a thread of its own, so that neither pipe can block the other.
fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// A command that runs. One that is dropped is killed.
#[derive(Debug)]
pub(crate) struct Started {
    shown: String,
    child: Child,
    out: Receiver<Vec<u8>>,
    err: Receiver<Vec<u8>>,
    limit: Duration,
    held: Option<PipeWriter>,
}

impl Started {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
    }

    /// Where its input is written to, if that has no end yet.
    #[track_caller]
    pub(crate) fn input(&mut self) -> &mut PipeWriter {
        self.held.as_mut().expect("it was started with an open input")
    }

    /// Ends its input.
    pub(crate) fn close_input(mut self) -> Self {
        self.held = None;
        self
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end; one that takes too long is killed, and fails the test.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let Some(status) = end_of(&mut self.child, self.limit) else {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let said = |pipe: &Receiver<Vec<u8>>| text(&pipe.recv_timeout(seconds(1)).unwrap_or_default());
            panic!(
                "{} did not end within {:?}; it had said: {}{}",
                self.shown,
                self.limit,
                said(&self.out),
                said(&self.err)
            );
        };
        let rest = |pipe: &Receiver<Vec<u8>>| {
            let bytes = pipe.recv_timeout(seconds(LIMIT));
            bytes.unwrap_or_else(|_| panic!("{} has ended, and something holds its output open", self.shown))
        };
        Ended { shown: self.shown.clone(), status, stdout: rest(&self.out), stderr: rest(&self.err) }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a child ended; `None` if it has not in time.
pub(crate) fn end_of(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        let limit = Timespec::try_from(limit).unwrap_or_default();
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit));
    }
    child.try_wait().ok().flatten()
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    shown: String,
    status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Ended {
    /// Its exit code; 128 + signal for a death by signal.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    pub(crate) fn out(&self) -> String {
        text(&self.stdout)
    }

    pub(crate) fn err(&self) -> String {
        text(&self.stderr)
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        self.ended_with(0)
    }

    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert!(
            self.code() == code,
            "{}: exit code {} instead of {code}\nout: {}\nerr: {}",
            self.shown,
            self.code(),
            self.out(),
            self.err()
        );
        self
    }

    /// Wants these words in its complaint.
    #[track_caller]
    pub(crate) fn complains_of(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err().contains(word), "{}: no '{word}' in: {}", self.shown, self.err());
        }
        self
    }

    /// Wants exactly this output.
    #[track_caller]
    pub(crate) fn says(self, expected: &str) -> Self {
        assert!(
            self.out() == expected,
            "{}: said {:?} instead of {expected:?}\nerr: {}",
            self.shown,
            self.out(),
            self.err()
        );
        self
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
