//! What /proc tells of a process. All of it can be gone at any moment, and part of it is what a hostile program chose
//! to put there.

pub mod contained;
pub mod deferred_close;
pub mod follower;
pub mod guardian;
pub mod held;
pub mod identity;
pub mod inheritance;
pub mod io_priority;
pub mod own_program;
pub mod pidfd;
pub mod real_time;
pub mod restraint;
pub mod scheduling_policy;
pub mod signal;
pub mod subreaper;
pub mod time_slice;
pub mod user_rights;

use std::io::{self, Read};

/// No file of /proc/PID is read further than this.
const LONGEST: u64 = 64 * 1024;

/// A process in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The pid of the process, as this process sees it.
    pub pid: i32,
    /// Its pid in the innermost namespace that it is in.
    pub inner_pid: i32,
    /// The pid of its parent, as this process sees it.
    pub parent: i32,
    /// Its effective user id here.
    pub uid: u32,
    /// One letter, as ps(1) shows it.
    pub state: char,
    /// CPU time in clock ticks, usually hundredths of a second.
    pub ticks: u64,
    /// The resident memory of the process, in KiB.
    pub rss_kib: u64,
    /// When it started, in clock ticks since boot: with the pid, its identity.
    pub start: u64,
    /// Its command line, or its name in brackets.
    pub command: String,
}

/// Reads a file of /proc as text, up to a bound.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone; EACCES where it may not be looked at.
pub fn read(pid: i32, file: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(format!("/proc/{pid}/{file}"))?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The user who has logged in and whose process this one is, whatever that has become since; its own user where the
/// kernel knows none.
pub fn login_user() -> u32 {
    login_user_of(rustix::process::getpid().as_raw_nonzero().get())
}

/// The same for another process; this one's user where that has gone.
pub fn login_user_of(pid: i32) -> u32 {
    const NOBODY: u32 = u32::MAX;
    let told = read(pid, "loginuid").ok().and_then(|text| text.trim().parse().ok());
    let owner = || std::fs::metadata(format!("/proc/{pid}")).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
    told.filter(|uid| *uid != NOBODY).or_else(|| owner().ok()).unwrap_or_else(|| rustix::process::getuid().as_raw())
}

/// When a process started, in clock ticks since boot.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = read(pid, "stat")?;
    field(&stat, 22).and_then(|word| word.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The process group of a process; 0 for the kernel's own threads and for one whose leader cannot be seen from here.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone.
pub fn group(pid: i32) -> io::Result<i32> {
    let stat = read(pid, "stat")?;
    field(&stat, 5).and_then(|word| word.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The session of a process; 0 for one whose leader cannot be seen from here.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone.
pub fn session(pid: i32) -> io::Result<i32> {
    let stat = read(pid, "stat")?;
    field(&stat, 6).and_then(|word| word.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The scheduling priority of a process as the kernel counts it: 0 to 39 for nice values from -20 to 19, below 0 for
/// real time. A lower one runs first.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone.
pub fn priority(pid: i32) -> io::Result<i64> {
    let stat = read(pid, "stat")?;
    field(&stat, 18).and_then(|word| word.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field `number` of /proc/PID/stat, counted from 1 as in proc(5). The name, field 2, may hold anything, so counting
/// starts after it.
pub(crate) fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// The line of one process.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone.
pub fn describe(pid: i32) -> io::Result<Process> {
    let (stat, status) = (read(pid, "stat")?, read(pid, "status")?);
    let number = |which| field(&stat, which).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let word = |key: &str, which: usize| line(key).and_then(|rest| rest.split_ascii_whitespace().nth(which));
    let arguments = read(pid, "cmdline").unwrap_or_default();
    let command = printable(arguments.trim_end_matches('\0'));
    let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map_or("?", |(name, _)| name);
    Ok(Process {
        pid,
        inner_pid: line("NSpid:").and_then(|pids| pids.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(pid),
        parent: field(&stat, 4).and_then(|word| word.parse().ok()).unwrap_or(0),
        uid: word("Uid:", 1).and_then(|word| word.parse().ok()).unwrap_or(u32::MAX),
        state: field(&stat, 3).and_then(|word| word.chars().next()).unwrap_or('?'),
        ticks: number(14) + number(15),
        rss_kib: word("VmRSS:", 0).and_then(|word| word.parse().ok()).unwrap_or(0),
        start: number(22),
        command: if command.is_empty() { format!("[{}]", printable(name)) } else { command },
    })
}

/// A program chooses its own name and arguments: no control characters of it reach a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '\0' {
                ' '
            } else if c.is_control() {
                '·'
            } else {
                c
            }
        })
        .collect()
}

/// Whether this process is in the first pid namespace, whose pids are those that the kernel itself counts by: what BPF
/// programs tell, for example.
pub fn counts_as_the_kernel() -> bool {
    /// `PROC_PID_INIT_INO`
    const FIRST: u64 = 0xEFFF_FFFC;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|found| std::os::unix::fs::MetadataExt::ino(&found) == FIRST)
}

/// Every pid of this namespace.
///
/// # Errors
///
/// Those of reading /proc.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_pids_these_are_is_known() {
        // In the first namespace the kernel's own threads are there: the second process is their parent.
        let threads = read(2, "comm").is_ok_and(|name| name.trim_end() == "kthreadd");
        assert_eq!(counts_as_the_kernel(), threads);
    }

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 0";
        assert_eq!(field(stat, 3), Some("S"));
        assert_eq!(field(stat, 4), Some("1"));
        assert_eq!(field(stat, 22), Some("4242"));
    }

    #[test]
    fn this_process_is_described() {
        let me = describe(std::process::id() as i32).unwrap();
        assert_eq!(me.pid, me.inner_pid);
        assert!(me.rss_kib > 0);
    }

    #[test]
    fn control_characters_are_not_passed_on() {
        assert_eq!(printable("a\0b\x1b[2J"), "a b·[2J");
    }
}
