//! `pando carry-output`: carries bytes between a pipe of a command's and a file or a socket of the caller's.
//!
//! A guest prints into a file through a pipe (`session::stdio`). Processes that the command leaves behind would be
//! killed by the next word they print, were nobody there to take it after `pando` has ended with the command. The
//! command of a transaction has pipes in the place of sockets (`tx::standard_descriptors`).

use super::Verb;
use crate::session::End;
use crate::state_root::StateRoot;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, write};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::stdio::{dup2_stderr, dup2_stdout, stdin, stdout};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much is passed on at a time: what a pipe holds.
const BUFFER: usize = 64 << 10;

/// How long this program waits at its end for what was printed.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Who carries what this program prints itself.
static CARRIERS: Mutex<Vec<Child>> = Mutex::new(Vec::new());

#[derive(Debug, clap::Args)]
pub(crate) struct CarryOutput {
    /// End with the process that has started this, though more may come
    #[arg(long, value_name = "PID")]
    with_caller: Option<i32>,
}

impl Verb for CarryOutput {
    const NAME: &'static str = "carry-output";
    const ABOUT: &'static str = "Carry bytes between a command's pipe and its caller; the command starts it";
    const EXAMPLES: &'static str = "";
    const HIDDEN: bool = true;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        if let Some(caller) = self.with_caller {
            let signal = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            signal.context("cannot end with the caller")?;
            // One that had ended before has given this process to another parent.
            if rustix::process::Pid::as_raw(rustix::process::getppid()) != caller {
                return Ok(0);
            }
        }
        rustix::process::setsid().context("cannot leave the session of the caller")?;
        // Nobody hears of a failure; the descendants do, as of every pipe whose reader has gone.
        Ok(u8::from(copy(stdin(), stdout()).is_err()))
    }
}

/// Passes on what comes as it comes: who waits for one word may be who would send the next.
fn copy(source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut rest = match read(source, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => &buffer[..count],
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait_for(source, PollFlags::IN)?;
                continue;
            }
            Err(errno) => return Err(errno),
        };
        while !rest.is_empty() {
            match write(sink, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(sink, PollFlags::OUT)?,
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// A caller's descriptor may be one that does not wait by itself, and stays so: others have it too.
fn wait_for(descriptor: BorrowedFd<'_>, what: PollFlags) -> Result<(), Errno> {
    match poll(&mut [PollFd::from_borrowed_fd(descriptor, what)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Leaves what comes out of `source` and goes into `sink` to a process of its own.
pub(crate) fn carry_on(source: End, sink: End) -> anyhow::Result<Child> {
    let flags = fcntl_getfl(source.as_fd()).context("cannot look at a pipe")?;
    fcntl_setfl(source.as_fd(), flags - OFlags::NONBLOCK).context("cannot change a pipe")?;
    carry(source.as_fd(), sink.as_fd(), &[])
}

/// The same for as long as this process lives.
pub(crate) fn carry_while_here(source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> anyhow::Result<()> {
    carry(source, sink, &["--with-caller", &std::process::id().to_string()]).map(drop)
}

/// Has this program wait for them at its end.
pub(crate) fn to_be_waited_for(carriers: Vec<Child>) {
    CARRIERS.lock().unwrap_or_else(PoisonError::into_inner).extend(carriers);
}

/// Waits until what this program and its command have printed is where it goes to: who called it may read no further
/// then, and a service manager ends what is left of a service.
pub(crate) fn wait_for_carriers() {
    let carriers = std::mem::take(&mut *CARRIERS.lock().unwrap_or_else(PoisonError::into_inner));
    if carriers.is_empty() {
        return;
    }
    // They end once nobody has the pipes any more.
    let Ok(nowhere) = File::options().write(true).open("/dev/null") else { return };
    if dup2_stdout(&nowhere).and_then(|()| dup2_stderr(&nowhere)).is_err() {
        return;
    }
    let until = Instant::now() + LAST_WORDS;
    for carrier in carriers {
        let Some(process) = Pid::from_raw(carrier.id().cast_signed()) else { continue };
        let Ok(process) = pidfd_open(process, PidfdFlags::empty()) else { continue };
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left));
    }
}

fn carry(source: BorrowedFd<'_>, sink: BorrowedFd<'_>, options: &[&str]) -> anyhow::Result<Child> {
    let copy = |end| fcntl_dupfd_cloexec(end, 3).context("cannot pass a descriptor on");
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").arg("carry-output").args(options).env_clear().current_dir("/");
    command.stdin(copy(source)?).stdout(copy(sink)?).stderr(Stdio::null());
    command.spawn().context("cannot leave bytes to a process of its own")
}
