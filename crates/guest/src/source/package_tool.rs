//! Running another program whose output is read line by line: it may be silent only so long, and can be stopped.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often cancellation is asked for while the program is silent.
const BEAT: Duration = Duration::from_millis(200);

/// Between asking the program to stop, so that it can clean up, and killing it.
const GRACE: Duration = Duration::from_secs(5);

/// After the program's end, how long something that it left running may keep its output open.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// Longer lines are cut in pieces.
const LONGEST_LINE: usize = 4_096;

/// How a program ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Exited(ExitStatus),
    /// It said nothing for too long and was killed.
    Silent,
    /// The user stopped it.
    Cancelled,
}

/// Runs `command`, calls `line` with each line of its output and errors. The error: it could not be started.
pub(crate) fn run(
    command: &mut Command,
    patience: Duration,
    cancelled: &dyn Fn() -> bool,
    line: &mut dyn FnMut(&str),
) -> io::Result<Ending> {
    // A process group of its own: what it starts is stopped with it.
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
    let (sender, lines) = channel();
    read_lines(child.stdout.take(), sender.clone());
    read_lines(child.stderr.take(), sender);
    let (mut heard, mut ended) = (Instant::now(), None);
    loop {
        match lines.recv_timeout(BEAT) {
            Ok(text) => {
                heard = Instant::now();
                line(&text);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return finish(&mut child, patience, cancelled);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if cancelled() {
            stop(&mut child);
            return Ok(Ending::Cancelled);
        }
        if ended.is_none() {
            ended = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        if let Some((status, _)) = ended.filter(|(_, at)| at.elapsed() > STRAGGLERS) {
            return Ok(Ending::Exited(status));
        }
        if heard.elapsed() > patience {
            stop(&mut child);
            return Ok(Ending::Silent);
        }
    }
}

/// The output is closed: the program is about to end, or means to go on unheard.
fn finish(child: &mut Child, patience: Duration, cancelled: &dyn Fn() -> bool) -> io::Result<Ending> {
    let closed = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ending::Exited(status));
        }
        if cancelled() {
            stop(child);
            return Ok(Ending::Cancelled);
        }
        if closed.elapsed() > patience {
            stop(child);
            return Ok(Ending::Silent);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(BEAT);
    }
}

/// Asks the program and all it started to stop, then makes them.
fn stop(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| group.is_some_and(|group| kill_process_group(group, signal).is_ok());
    let asked = Instant::now();
    signal(Signal::TERM);
    while asked.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(Signal::KILL);
    // The group's leader is dead or dying; if this fails it has been reaped already.
    let _ = child.wait();
}

/// Sends each line of `stream`, in a thread that ends with it, or with the receiver.
fn read_lines(stream: Option<impl Read + Send + 'static>, sender: Sender<String>) {
    let Some(mut stream) = stream else { return };
    std::thread::spawn(move || {
        let (mut buffer, mut pending) = ([0; LONGEST_LINE], Vec::new());
        while let Ok(count) = stream.read(&mut buffer) {
            for byte in &buffer[..count] {
                let end = matches!(byte, b'\n' | b'\r') || pending.len() >= LONGEST_LINE;
                if end && sender.send(String::from_utf8_lossy(&pending).into_owned()).is_err() {
                    return;
                }
                if end {
                    pending.clear();
                }
                if !matches!(byte, b'\n' | b'\r') {
                    pending.push(*byte);
                }
            }
            if count == 0 {
                break;
            }
        }
        if !pending.is_empty() {
            // Nobody may be listening any more; then nobody misses it.
            let _ = sender.send(String::from_utf8_lossy(&pending).into_owned());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration, cancelled: bool) -> (Ending, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        let ending =
            run(command.args(["-c", script]), patience, &|| cancelled, &mut |line| lines.push(line.to_owned()))
                .unwrap();
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
    fn what_a_program_leaves_running_does_not_keep_it() {
        let begun = Instant::now();
        let (ending, _) = shell("sleep 15 & echo x", Duration::from_secs(60), false);
        assert!(matches!(ending, Ending::Exited(status) if status.success()));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
