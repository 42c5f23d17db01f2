//! Timers of timer_create(2). /proc/PID/timers lists what they do; only the process itself can ask how long they run.

use crate::asking::Asking;
use crate::image::Timer;
use crate::proc_file::{self, Lines};
use crate::script::{Chapter, Writer};
use crate::tree;
use pando_kernel::CallError;

/// Every timer of a stopped process.
pub(crate) fn read(pid: i32, asking: &Asking<'_>) -> Result<Vec<Timer>, CallError> {
    let mut timers = listed(pid)?;
    for timer in &mut timers {
        let injection = asking.injection()?;
        injection.call(libc::SYS_timer_gettime, &[timer.id as u64, injection.room()])?;
        timer.setting = injection.words(0)?;
    }
    Ok(timers)
}

/// Every timer of any process, but for what it is set to.
pub(crate) fn listed(pid: i32) -> Result<Vec<Timer>, CallError> {
    let mut timers = parse(&proc_file::text(pid, "timers")?);
    for timer in timers.iter_mut().filter(|timer| timer.thread != 0) {
        // The file says the number that the thread has here.
        let status = Lines::read(pid, &format!("task/{}/status", timer.thread))?;
        timer.thread = tree::inner(&status).unwrap_or(timer.thread);
    }
    Ok(timers)
}

const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;

/// Makes timers anew, with the numbers that they had. Where the kernel cannot be told a number it counts up from 0, and what is made on the way is
/// deleted again.
pub(crate) fn create(writer: &mut Writer, chapter: Chapter, timers: &[Timer], ids_chosen: bool) {
    let mut sorted: Vec<_> = timers.iter().collect();
    sorted.sort_by_key(|timer| timer.id);
    let choose = |writer: &mut Writer, on: u64| {
        let arguments = [PR_TIMER_CREATE_RESTORE_IDS, on, 0, 0, 0];
        writer.call(chapter, "choosing the numbers of timers", libc::SYS_prctl, &arguments);
    };
    if ids_chosen && !sorted.is_empty() {
        choose(writer, 1);
    }
    let mut next = 0;
    for timer in sorted {
        let id = writer.data(&timer.id.to_le_bytes(), 8);
        let event = writer.data(&event(timer), 8);
        let arguments = [timer.clock as u64, event, id];
        for passed in (next..timer.id).filter(|_| !ids_chosen) {
            writer.call(chapter, "making a timer to pass a number", libc::SYS_timer_create, &arguments);
            writer.call(chapter, "deleting a timer", libc::SYS_timer_delete, &[passed as u64]);
        }
        writer.call(chapter, "making a timer", libc::SYS_timer_create, &arguments);
        next = timer.id + 1;
    }
    if ids_chosen && !timers.is_empty() {
        choose(writer, 0);
    }
}

/// How a timer that had this interval and this much left has to be set; `None` for one that did not run. One that goes off again and again has
/// nothing left while its signal waits: the kernel winds it up again when the signal is taken, which for a timer made anew it cannot know.
pub(crate) fn wound(setting: [u64; 4]) -> Option<[u64; 4]> {
    match setting {
        [0, 0, 0, 0] => None,
        [seconds, rest, 0, 0] => Some([seconds, rest, seconds, rest]),
        running => Some(running),
    }
}

/// Lets timers run that ran.
pub(crate) fn start(writer: &mut Writer, chapter: Chapter, timers: &[Timer]) {
    for (timer, setting) in timers.iter().filter_map(|timer| Some((timer, wound(timer.setting)?))) {
        let setting = writer.words(&setting);
        writer.call(chapter, "setting a timer", libc::SYS_timer_settime, &[timer.id as u64, 0, setting, 0]);
    }
}

/// `struct sigevent` of the kernel, 64 bytes.
fn event(timer: &Timer) -> Vec<u8> {
    let mut event = timer.value.to_le_bytes().to_vec();
    event.extend(timer.signal.to_le_bytes());
    event.extend(timer.notify.to_le_bytes());
    event.extend(timer.thread.to_le_bytes());
    event.resize(64, 0);
    event
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
    fn a_timer_whose_signal_waits_goes_on() {
        assert_eq!(wound([0; 4]), None);
        assert_eq!(wound([0, 50_000, 0, 0]), Some([0, 50_000, 0, 50_000]));
        assert_eq!(wound([0, 0, 1, 2]), Some([0, 0, 1, 2]));
    }

    #[test]
    fn timers_are_listed_with_what_they_do() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/tid.2634\nClockID: 0\nID: 2\nsignal: 14/0\nnotify: none/pid.9\nClockID: 1\n";
        let timers = parse(text);
        assert_eq!((timers[0].signal, timers[0].thread, timers[0].notify), (60, 2634, libc::SIGEV_THREAD_ID));
        assert_eq!((timers[1].id, timers[1].notify, timers[1].clock), (2, libc::SIGEV_NONE, 1));
    }
}
