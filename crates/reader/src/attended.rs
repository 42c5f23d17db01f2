//! Hearing a reader without waiting for one that was taken over and says nothing any more.
//!
//! What it may still do is to sleep: that takes no processor time, which is bounded. So the caller that waits for it
//! looks, now and then, whether it has done anything since, and whether there is something that it could read: one that
//! waits for its input is not standing still.

use pando_kernel::mistake::planted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io::{self, Read};

/// Seconds between two looks. A disk that has hung up for so long is reported by the kernel: a process that waits for
/// it does not sleep.
const SECONDS: i64 = 120;

pub(crate) struct Attended {
    said: File,
    /// The reader's own input.
    input: OwnedFd,
    pid: u32,
    /// The processor time that it had taken at the last look, if it slept.
    slept_at: Option<u64>,
    seconds: i64,
}

impl Attended {
    pub(crate) fn new(said: File, input: OwnedFd, pid: u32) -> Self {
        let seconds = if planted("reader.lie.silence") { 1 } else { SECONDS };
        Self { said, input, pid, slept_at: None, seconds }
    }

    /// Whether it has slept since the last look, with something to read.
    fn stands_still(&mut self) -> io::Result<bool> {
        let before = self.slept_at;
        self.slept_at = sleeper(&pando_kernel::file::proc_file::text(format!("/proc/{}/stat", self.pid))?);
        Ok(self.slept_at.is_some() && self.slept_at == before && is_ready(&self.input, 0)?)
    }
}

impl Read for Attended {
    /// # Errors
    ///
    /// `TimedOut` where it stands still.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !is_ready(&self.said, self.seconds)? {
            if self.stands_still()? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.slept_at = None;
        self.said.read(into)
    }
}

/// Whether there is something to read, or an end, within some seconds.
fn is_ready(file: impl AsFd, seconds: i64) -> io::Result<bool> {
    let most = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&most)))? > 0)
}

/// The processor time of a process that sleeps, by its `stat` (proc_pid_stat(5)).
fn sleeper(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = behind.split(' ').collect();
    let time = |field: usize| fields.get(field)?.parse::<u64>().ok();
    // State is field 3; time in the program and in the kernel are 14 and 15.
    (fields.first() == Some(&"S")).then(|| Some(time(11)? + time(12)?)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Child, Command, Stdio};

    const STAT: &str = "7 (a) S) S 1 7 7 0 -1 4194560 110 0 0 0 21 4 0 0 20 0 1 0 100 1000 200";

    #[test]
    fn a_sleeper_is_told_by_its_state_and_time() {
        assert_eq!(sleeper(STAT), Some(25));
        assert_eq!(sleeper(&STAT.replace(") S 1", ") D 1")), None, "it waits for a disk");
        assert_eq!(sleeper(&STAT.replace(") S 1", ") R 1")), None);
        assert_eq!(sleeper("7 (a"), None);
    }

    /// What hears a program that sleeps, whose input is one end of a pipe; the other end, and the program.
    fn sleeping() -> (Attended, File, Child) {
        let (said, theirs) = rustix::pipe::pipe().unwrap();
        let (input, fill) = rustix::pipe::pipe().unwrap();
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).stdout(theirs).spawn().unwrap();
        let attended = Attended { seconds: 0, ..Attended::new(said.into(), input, child.id()) };
        (attended, fill.into(), child)
    }

    #[test]
    fn one_that_waits_for_its_input_does_not_stand_still() {
        let (mut attended, mut fill, mut child) = sleeping();
        // Until it sleeps.
        while attended.slept_at.is_none() {
            assert!(!attended.stands_still().unwrap());
        }
        for _ in 0..3 {
            assert!(!attended.stands_still().unwrap(), "there is nothing to read");
        }
        fill.write_all(b"x").unwrap();
        let error = attended.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
