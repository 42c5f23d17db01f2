//! Offering a process's memory to the kernel's merger of equal pages (madvise(2), MADV_MERGEABLE).
//!
//! Nobody can do that for a process but itself: process_madvise(2) does not take this advice. So a thread of it is
//! stopped for as long as the call takes, and made to execute it. The process is not to notice. A thread that waits is
//! woken by the stop, and the kernel has most calls go on by themselves, but not all: epoll_wait(2) and receiving with
//! a time limit end with EINTR. So only a thread is stopped that runs, or waits in a call of which that is known.

use crate::image::Area;
use crate::inspect::{areas, proc_file, process_tree};
use crate::refusal::FreezeError;
use crate::stop::injection::{self, Injection};
use crate::stop::seize;
use pando_kernel::memory::ksm;
use pando_kernel::trace::survivor::SurvivorTask;
use pando_kernel::{CallError, Context};
use std::collections::HashSet;

/// What came of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// What equals other offered memory will be merged with it.
    Made,
    /// Each thread waits in a call that would notice, or stands still: it is to be tried again.
    Busy,
}

/// Calls that go on by themselves when a thread that waits in them was stopped (signal(7)), whatever they wait for.
const GO_ON: [i64; 7] = [
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Offers mappings of a process, each by its first address and the one after its last. They should be whole mappings:
/// of a part the kernel would make a mapping of its own. Only for a thread without a filter of its own.
pub fn offer(pid: i32, ranges: &[(u64, u64)]) -> Result<Offer, FreezeError> {
    let what = || format!("offering memory of process {pid} to be merged");
    // What it stops goes on as it was, whatever becomes of this process.
    let tracer = SurvivorTask::new(c"pando-sharing").context(what)?;
    tracer.run(|| execute(pid, ranges)).context(what)?
}

/// Those of some mappings of a process that it has not offered yet. The kernel is asked, since a mapping may be another
/// than the one that was offered there.
pub fn not_offered(pid: i32, mut ranges: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>, CallError> {
    if ranges.is_empty() {
        return Ok(ranges);
    }
    let is_offered = |area: &Area| area.advice.contains(&(libc::MADV_MERGEABLE as u32));
    let offered = areas::read(pid)?.into_iter().map(|seen| seen.area).filter(is_offered);
    let offered: HashSet<(u64, u64)> = offered.map(|area| (area.start, area.end)).collect();
    ranges.retain(|range| !offered.contains(range));
    Ok(ranges)
}

fn execute(pid: i32, ranges: &[(u64, u64)]) -> Result<Offer, FreezeError> {
    let Some(tid) = process_tree::threads(pid)?.into_iter().find(|tid| can_be_stopped(pid, *tid)) else {
        return Ok(Offer::Busy);
    };
    let Some(thread) = seize::stop_thread(pid, tid)? else { return Ok(Offer::Busy) };
    let what = || format!("preparing process {pid} to offer memory");
    let seen: Vec<_> = areas::parse(&proc_file::text(pid, "maps")?)?.into_iter().map(|seen| seen.area).collect();
    let instruction = injection::syscall_instruction(pid, &seen)?;
    let (registers, mask) = (thread.registers().context(what)?, thread.signal_mask().context(what)?);
    let injection = Injection::without_room(&thread, registers, mask, instruction)?;
    // What has another extent by now is left.
    let there: HashSet<(u64, u64)> = seen.iter().map(|area| (area.start, area.end)).collect();
    for (start, end) in ranges.iter().filter(|range| there.contains(range)) {
        injection.call(libc::SYS_madvise, &[*start, end - start, ksm::OFFER])?;
    }
    Ok(Offer::Made)
}

/// Whether a thread can be stopped without its hearing of it.
fn can_be_stopped(pid: i32, tid: i32) -> bool {
    let Ok(text) = proc_file::text(pid, &format!("task/{tid}/syscall")) else { return false };
    match call(&text) {
        // One that is stopped by a signal or by somebody else runs as little as it waits.
        None => text.trim() == "running",
        Some((number, first)) if number == libc::SYS_read => {
            // Of a socket that may have a time limit.
            proc_file::link(pid, &format!("fd/{first}")).is_ok_and(|to| !to.starts_with("socket:"))
        }
        Some((number, _)) => GO_ON.contains(&number),
    }
}

/// The call that a thread waits in, and its first argument, by /proc/PID/task/TID/syscall.
fn call(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    Some((number, u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?))
}

/// The error of an offer that is none of the process's that it was made to.
pub fn is_of_the_moment(error: &FreezeError) -> bool {
    match error {
        FreezeError::Call(CallError { source, .. }) => {
            source.kind() == std::io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::ESRCH)
        }
        FreezeError::Refused(_) | FreezeError::Restless(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn calls_are_told_apart() {
        assert_eq!(call("230 0x1 0x0 0x7ffc 0x0 0x0 0x0 0x7ffc 0x7f12"), Some((230, 1)));
        assert_eq!([call("running"), call("-1 0x7ffc 0x7f12"), call("")], [None; 3]);
    }

    #[test]
    fn who_sleeps_can_be_stopped_and_who_is_stopped_cannot() {
        if !rustix::process::getuid().is_root() {
            return eprintln!("skipped: only root sees what others wait in");
        }
        let mut sleeper = Command::new("/bin/sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = sleeper.id() as i32;
        let within = |wanted: bool| {
            (0..500).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                can_be_stopped(pid, pid) == wanted
            })
        };
        assert!(within(true));
        let of = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(of, rustix::process::Signal::STOP).unwrap();
        assert!(within(false) || offer(pid, &[]).is_ok_and(|offer| offer == Offer::Busy));
        rustix::process::kill_process(of, rustix::process::Signal::KILL).unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn who_made_an_offer_sleeps_on() {
        if !rustix::process::getuid().is_root() {
            return eprintln!("skipped: only root stops others");
        }
        let mut sleeper = Command::new("/bin/sleep").arg("4").stdin(Stdio::null()).spawn().unwrap();
        let pid = sleeper.id() as i32;
        while !can_be_stopped(pid, pid) {
            std::thread::yield_now();
        }
        let heap = |areas: Vec<crate::image::Area>| areas.into_iter().map(|area| (area.start, area.end)).collect();
        let ranges: Vec<_> = heap(crate::clone::page_sample::own_areas(pid).unwrap());
        let Ok(flags) = proc_file::text(pid, "smaps") else { panic!("it runs") };
        assert!(!flags.contains(" mg"));
        match offer(pid, &ranges) {
            // This kernel merges nothing.
            Err(FreezeError::Call(error)) if error.source.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("skipped: {error}");
            }
            made => {
                assert_eq!(made.unwrap(), Offer::Made);
                assert!(proc_file::text(pid, "smaps").unwrap().contains(" mg"));
                assert_eq!(not_offered(pid, ranges).unwrap(), []);
            }
        }
        assert!(sleeper.wait().unwrap().success());
    }
}
