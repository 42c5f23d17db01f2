//! Merging of pages that are the same (KSM, since Linux 2.6.32): the machine's one merger, a thread of the kernel that
//! looks at memory which was offered to it (MADV_MERGEABLE), and what it has come to.

use crate::file::proc_file;
use std::io;
use std::path::Path;

/// Where the kernel has the merger's settings and counters.
const DIRECTORY: &str = "/sys/kernel/mm/ksm";

/// The advice by which memory is offered: `MADV_MERGEABLE` of madvise(2).
pub const OFFER: u64 = libc::MADV_MERGEABLE as u64;

/// How fast the merger works, and whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Whether it runs: 0 is no, 1 yes, 2 no with everything parted again.
    pub run: u64,
    /// How many pages it looks at before it sleeps.
    pub pages_to_scan: u64,
    /// For how many milliseconds it sleeps then.
    pub sleep_millisecs: u64,
}

/// What the merger has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages that are kept for several places.
    pub pages_shared: u64,
    /// Places that have one of those instead of a page of their own: what is saved.
    pub pages_sharing: u64,
    /// How often it has looked at all that was offered.
    pub full_scans: u64,
}

/// Reads how the merger works now.
///
/// # Errors
///
/// ENOENT where the kernel was built without it.
pub fn pace() -> io::Result<Pace> {
    Ok(Pace {
        run: number("run")?,
        pages_to_scan: number("pages_to_scan")?,
        sleep_millisecs: number("sleep_millisecs")?,
    })
}

/// Has the merger work so from now on.
///
/// # Errors
///
/// ENOENT where the kernel was built without it; EACCES where its settings cannot be written.
pub fn set_pace(pace: Pace) -> io::Result<()> {
    match write("pages_to_scan", pace.pages_to_scan) {
        // The kernel's own advisor decides how many (since Linux 6.8).
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        written => written?,
    }
    write("sleep_millisecs", pace.sleep_millisecs)?;
    write("run", pace.run)
}

/// Reads what the merger has come to.
///
/// # Errors
///
/// ENOENT where the kernel was built without it.
pub fn counters() -> io::Result<Counters> {
    Ok(Counters {
        pages_shared: number("pages_shared")?,
        pages_sharing: number("pages_sharing")?,
        full_scans: number("full_scans")?,
    })
}

/// How many pages a process has that are merged with others (since Linux 6.1).
///
/// # Errors
///
/// ENOENT where the process has gone, or the kernel does not tell.
pub fn merged_pages(pid: i32) -> io::Result<u64> {
    parse(&proc_file::text(format!("/proc/{pid}/ksm_merging_pages"))?)
}

/// Whether a process has offered any of its memory (since Linux 6.16), or the merger has looked at some of it (6.2).
///
/// # Errors
///
/// ENOENT where the process has gone, or the kernel does not tell.
pub fn has_offered(pid: i32) -> io::Result<bool> {
    proc_file::text(format!("/proc/{pid}/ksm_stat")).map(|text| tells_of_an_offer(&text))
}

fn tells_of_an_offer(text: &str) -> bool {
    text.lines().any(|line| match line.split_once(' ') {
        Some(("ksm_mergeable:" | "ksm_merge_any:", said)) => said == "yes",
        Some(("ksm_rmap_items", count)) => count != "0",
        _ => false,
    })
}

/// Offers all memory of this process, and of what it forks from now on (prctl(2), PR_SET_MEMORY_MERGE, since Linux
/// 6.4).
///
/// # Errors
///
/// EINVAL where the kernel is older, or was built without the merger; EPERM without CAP_SYS_RESOURCE.
pub fn merge_all() -> io::Result<()> {
    const PR_SET_MEMORY_MERGE: i32 = 67;
    // SAFETY: plain numbers; what is merged reads as it did before.
    match unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The processor time that the merger has used since the machine was started, in clock ticks of a hundredth of a
/// second; `pid` is that of its [thread](thread).
///
/// # Errors
///
/// ENOENT where there is no such thread.
pub fn ticks(pid: i32) -> io::Result<u64> {
    ticks_of(&proc_file::text(format!("/proc/{pid}/stat"))?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The pid of the merger's thread, a child of the kernel's second process. None where this process sees only those of
/// its own pid namespace.
pub fn thread() -> Option<i32> {
    const KTHREADD: &str = "2";
    let is_it = |pid: &i32| {
        let Ok(text) = proc_file::text(format!("/proc/{pid}/stat")) else { return false };
        let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
        text.contains("(ksmd)") && behind.split_ascii_whitespace().nth(1) == Some(KTHREADD)
    };
    crate::process::all().ok()?.into_iter().find(is_it)
}

fn ticks_of(stat: &str) -> Option<u64> {
    // Fields 14 and 15 of proc(5); the first behind the name is 3.
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?)
}

fn number(name: &str) -> io::Result<u64> {
    parse(&std::fs::read_to_string(Path::new(DIRECTORY).join(name))?)
}

fn parse(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn write(name: &str, value: u64) -> io::Result<()> {
    std::fs::write(Path::new(DIRECTORY).join(name), value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_program_and_of_the_kernel() {
        let stat = "32 (a b) c) S 2 0 0 0 -1 2129984 0 0 0 0 5 17 0 0 25 5 1 0 60 0";
        assert_eq!(ticks_of(stat), Some(22));
        assert_eq!(ticks_of("32 (ksmd) S 2"), None);
    }

    #[test]
    fn an_offer_is_told_by_each_of_its_signs() {
        let text = |items: u32, any: &str, some: &str| {
            format!("ksm_rmap_items {items}\nksm_merging_pages 0\nksm_merge_any: {any}\nksm_mergeable: {some}\n")
        };
        let offers = [text(0, "no", "yes"), text(0, "yes", "no"), text(7, "no", "no")];
        assert!(offers.iter().all(|text| tells_of_an_offer(text)));
        assert!(!tells_of_an_offer(&text(0, "no", "no")) && !tells_of_an_offer(""));
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let Ok(pace) = pace() else { return eprintln!("skipped: this kernel has no KSM") };
        assert!(pace.pages_to_scan > 0 && counters().is_ok());
        assert_eq!(merged_pages(std::process::id() as i32).unwrap_or(0), 0);
    }
}
