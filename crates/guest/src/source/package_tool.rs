//! Running another program whose output is read line by line: it may be silent only so long, and can be stopped. What
//! it leaves running ends with it.

use pando_kernel::process::contained::Contained;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often cancellation is asked for.
const BEAT: Duration = Duration::from_millis(200);

/// Longer lines are cut in pieces.
const LONGEST_LINE: usize = 4_096;

/// After its end, so much is read at most of what it has said: more than a pipe holds.
const LAST_WORDS: usize = 256 << 10;

/// How long a program may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Without a word.
    pub(crate) silent: Duration,
    /// In all.
    pub(crate) whole: Duration,
    /// Between being asked to stop, so that it can clean up, and being killed.
    pub(crate) grace: Duration,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Exited(ExitStatus),
    /// It said nothing for too long and was killed.
    Silent,
    /// It took longer than any may, and was killed.
    Late,
    /// The user stopped it.
    Cancelled,
}

/// Runs `command`, calls `line` with each line of its output and errors. Nothing of it runs any more afterwards. The
/// error: it could not be started.
pub(crate) fn run(
    mut command: Command,
    patience: Patience,
    cancelled: &dyn Fn() -> bool,
    line: &mut dyn FnMut(&str),
) -> io::Result<Ending> {
    // A process group of its own: what it starts is asked to stop with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut program = Contained::start(command)?;
    let mut output = Lines::of(program.take_output());
    let mut errors = Lines::of(program.take_errors());
    let begun = Instant::now();
    let (mut heard, mut asked) = (begun, None::<Instant>);
    loop {
        let [said, complained] = program.wait_for([output.pipe(), errors.pipe()], BEAT)?;
        if (said && output.read(line) > 0) | (complained && errors.read(line) > 0) {
            heard = Instant::now();
        }
        if let Some(status) = program.ended()? {
            output.read_rest(line);
            errors.read_rest(line);
            return Ok(Ending::Exited(status));
        }
        // One that talks without a pause is not what decides how often that is asked.
        if asked.is_some_and(|asked| asked.elapsed() < BEAT) {
            continue;
        }
        asked = Some(Instant::now());
        let over = match cancelled() {
            true => Ending::Cancelled,
            false if begun.elapsed() > patience.whole => Ending::Late,
            false if heard.elapsed() > patience.silent => Ending::Silent,
            false => continue,
        };
        stop(&mut program, patience.grace)?;
        return Ok(over);
    }
}

/// Asks the program and all that it started to stop, then makes them.
fn stop(program: &mut Contained, grace: Duration) -> io::Result<()> {
    if !grace.is_zero() && program.ended()?.is_none() {
        if let Some(group) = i32::try_from(program.id()).ok().and_then(Pid::from_raw) {
            // It may have become another group's.
            let _ = kill_process_group(group, Signal::TERM);
        }
        program.wait_for([], grace)?;
    }
    program.end().map(drop)
}

/// What comes out of a pipe, line by line.
struct Lines<P> {
    pipe: Option<P>,
    pending: Vec<u8>,
}

impl<P: Read + AsFd> Lines<P> {
    fn of(pipe: Option<P>) -> Self {
        Self { pipe, pending: Vec::new() }
    }

    /// The pipe, until its end.
    fn pipe(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Some(self.pipe.as_ref()?.as_fd())
    }

    /// Reads once, which does not wait where there is something to read; how much there was.
    fn read(&mut self, line: &mut dyn FnMut(&str)) -> usize {
        let mut buffer = [0; LONGEST_LINE];
        let Some(pipe) = &mut self.pipe else { return 0 };
        let count = pipe.read(&mut buffer).unwrap_or(0);
        for byte in &buffer[..count] {
            let ends = matches!(byte, b'\n' | b'\r');
            if ends || self.pending.len() >= LONGEST_LINE {
                self.tell(line);
            }
            if !ends {
                self.pending.push(*byte);
            }
        }
        if count == 0 {
            self.pipe = None;
            if !self.pending.is_empty() {
                self.tell(line);
            }
        }
        count
    }

    fn tell(&mut self, line: &mut dyn FnMut(&str)) {
        line(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }

    /// What is left after the program's end. Whoever was handed the other end may say more and more.
    fn read_rest(&mut self, line: &mut dyn FnMut(&str)) {
        let mut count = 0;
        while count < LAST_WORDS && self.pipe.as_ref().is_some_and(is_ready) {
            count += self.read(line);
        }
        if !self.pending.is_empty() {
            self.tell(line);
        }
    }
}

/// Whether there is something to read, or the end.
fn is_ready(pipe: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, silent: Duration, cancelled: bool) -> (Ending, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let patience = Patience { silent, whole: Duration::from_secs(25), grace: Duration::from_millis(100) };
        let ending = run(command, patience, &|| cancelled, &mut |line| lines.push(line.to_owned())).unwrap();
        (ending, lines)
    }

    #[test]
    fn lines_of_both_streams_and_the_status_arrive() {
        let (ending, mut lines) = shell("echo a; echo b >&2; printf c; exit 3", Duration::from_secs(20), false);
        lines.sort();
        assert_eq!(lines, ["a", "b", "c"]);
        assert!(matches!(ending, Ending::Exited(status) if status.code() == Some(3)));
    }

    #[test]
    fn a_silent_program_is_stopped_with_its_children() {
        let begun = Instant::now();
        let (ending, _) = shell("sleep 60 & sleep 60", Duration::from_millis(300), false);
        assert!(matches!(ending, Ending::Silent));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_is_stopped_on_request() {
        let (ending, _) = shell("sleep 60", Duration::from_secs(60), true);
        assert!(matches!(ending, Ending::Cancelled));
    }

    #[test]
    fn what_a_program_leaves_running_ends_with_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (pipe, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::empty()).unwrap();
        let script = format!("setsid sh -c 'exec >&- 2>&-; sleep 1000' & exec {}>&-; echo x", {
            use std::os::fd::AsRawFd;
            theirs.as_raw_fd()
        });
        let (ending, lines) = shell(&script, Duration::from_secs(60), false);
        drop(theirs);
        assert!(matches!(ending, Ending::Exited(status) if status.success()));
        assert_eq!(lines, ["x"]);
        // It ends where nobody has the other end any more.
        assert_eq!(std::fs::File::from(pipe).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn one_that_talks_without_end_is_stopped() {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do echo x; done"]);
        let patience =
            Patience { silent: Duration::from_secs(60), whole: Duration::from_millis(300), grace: Duration::ZERO };
        assert!(matches!(run(command, patience, &|| false, &mut |_| ()).unwrap(), Ending::Late));
    }

    #[test]
    fn the_last_words_without_a_line_end_are_heard() {
        let (_, lines) = shell("exec 2>&-; printf 1; sleep 0.1; printf 2", Duration::from_secs(20), false);
        assert_eq!(lines, ["12"]);
    }
}
