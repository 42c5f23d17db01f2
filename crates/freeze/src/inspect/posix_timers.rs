//! Timers of timer_create(2), as /proc shows them.

use crate::image::Timer;
use crate::inspect::proc_file::{self, Lines};
use crate::inspect::process_tree;
use pando_kernel::CallError;

/// Every timer of any process, but for what it is set to.
pub(crate) fn listed(pid: i32) -> Result<Vec<Timer>, CallError> {
    let mut timers = parse(&proc_file::text(pid, "timers")?);
    for timer in timers.iter_mut().filter(|timer| timer.thread != 0) {
        // The file says the number that the thread has here.
        let status = Lines::read(pid, &format!("task/{}/status", timer.thread))?;
        timer.thread = process_tree::inner(&status).unwrap_or(timer.thread);
    }
    Ok(timers)
}

/// A list such as `ID: 1 / signal: 60/00007fff86e452a8 / notify: signal/tid.2634 / ClockID: 0`, one fact a line.
pub(crate) fn parse(text: &str) -> Vec<Timer> {
    let mut timers: Vec<Timer> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(": ") else { continue };
        if key == "ID" {
            timers.push(Timer { id: value.trim().parse().unwrap_or(-1), ..Timer::default() });
        }
        let Some(timer) = timers.last_mut() else { continue };
        match key {
            "signal" => {
                let (signal, word) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.trim().parse().unwrap_or(0);
                timer.value = u64::from_str_radix(word.trim(), 16).unwrap_or(0);
            }
            "notify" => {
                let (how, whom) = value.split_once('/').unwrap_or((value, ""));
                timer.notify = match how {
                    "signal" => libc::SIGEV_SIGNAL,
                    "thread" => libc::SIGEV_THREAD,
                    _ => libc::SIGEV_NONE,
                };
                if let Some(tid) = whom.trim().strip_prefix("tid.") {
                    timer.notify |= libc::SIGEV_THREAD_ID;
                    timer.thread = tid.parse().unwrap_or(0);
                }
            }
            "ClockID" => timer.clock = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    timers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_listed_with_what_they_do() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/tid.2634\nClockID: 0\nID: 2\nsignal: 14/0\nnotify: none/pid.9\nClockID: 1\n";
        let timers = parse(text);
        assert_eq!((timers[0].signal, timers[0].thread, timers[0].notify), (60, 2634, libc::SIGEV_THREAD_ID));
        assert_eq!((timers[1].id, timers[1].notify, timers[1].clock), (2, libc::SIGEV_NONE, 1));
    }
}
