//! Processes of this machine, as /proc tells of them.

use crate::patience::seconds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// A process, at the moment when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Its arguments.
    pub(crate) words: Vec<String>,
    /// Its groups, one a line.
    pub(crate) groups: String,
}

impl Process {
    fn look(pid: i32) -> Option<Self> {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
        let words = read("cmdline")?;
        let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(Self { pid, words, groups: String::from_utf8_lossy(&read("cgroup")?).into_owned() })
    }
}

/// All that there are and that have not ended.
pub(crate) fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_alive(*pid)).filter_map(Process::look).collect()
}

/// The letter of its state in ps(1); `None` once it has gone.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether a process is there and has not ended.
pub(crate) fn is_alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// One value of its `status` file.
pub(crate) fn status(pid: i32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills a process and waits until it has gone.
pub(crate) fn kill(pid: i32) {
    let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
    signal(pid, Signal::KILL);
    // Its first thread is a zombie while others still hold its descriptors: a pidfd waits for all.
    let limit = Timespec::try_from(seconds(20)).unwrap_or_default();
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit));
}

/// The pid of its parent.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    status(pid, "PPid")?.parse().ok()
}
