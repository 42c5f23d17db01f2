//! Timers of timer_create(2). /proc/PID/timers lists what they do; only the process itself can ask how long they run.

use crate::image::Timer;
use crate::restore::script::{Chapter, Writer};

const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;

/// Makes timers anew, with the numbers that they had. Where the kernel cannot be told a number it counts up from 0, and
/// what is made on the way is deleted again.
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

/// How a timer that had this interval and this much left has to be set; `None` for one that did not run. One that goes
/// off again and again has nothing left while its signal waits: the kernel winds it up again when the signal is taken,
/// which for a timer made anew it cannot know.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_whose_signal_waits_goes_on() {
        assert_eq!(wound([0; 4]), None);
        assert_eq!(wound([0, 50_000, 0, 0]), Some([0, 50_000, 0, 50_000]));
        assert_eq!(wound([0, 0, 1, 2]), Some([0, 0, 1, 2]));
    }
}
