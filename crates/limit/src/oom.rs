//! Kills for want of memory, as the kernel's log reports them.
//!
//! Groups count such kills but do not say which process it was. The log does, in one line a kill (since Linux 4.19):
//!
//! ```text
//!   oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/pando/7,task_memcg=/pando/7,task=hog,pid=123,uid=0
//! ```
//!
//! A process chooses its name, and may choose one that looks like a part of the line. So the fields after it are read
//! from the end, and those before it from the beginning, where no slash can be forged.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A process that the kernel killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Whether its group's limit was the reason, and not the whole machine's want.
    pub by_limit: bool,
    /// The memory group that it was in, from the root of the hierarchy on.
    pub group: String,
    /// Its name, as it called itself: 15 bytes at most.
    pub task: String,
    /// Its pid on the host.
    pub pid: i32,
}

/// The longest name of a task (TASK_COMM_LEN), in bytes.
const LONGEST_NAME: usize = 15;

/// How many bytes the log shows: those that are no text, and backslashes, as `\xff`.
fn shown(text: &str) -> usize {
    text.len().saturating_sub(3 * text.matches("\\x").count())
}

/// Reads a line of the kernel's log; `None` for one that reports no kill, or that does not prove whose process it was.
/// Tasks and groups have the names that their owners chose, and one guest must not speak for another.
pub fn victim(line: &str) -> Option<Victim> {
    // What stands further on in a message may be a guest's words, such as a program's path.
    let text = line.split_once(';')?.1.strip_prefix("oom-kill:constraint=")?.trim_end();
    let (constraint, rest) = text.split_once(',')?;
    let (rest, _uid) = rest.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    // A group's name may be longer than any task's.
    let (at, mark) = rest.match_indices(",task=").find(|(at, mark)| shown(&rest[at + mark.len()..]) <= LONGEST_NAME)?;
    let (before, task) = (&rest[..at], &rest[at + mark.len()..]);
    // Groups that hold the victim stand before its own, and may have any of these words in their names.
    let (_, group) = before.split_once(",task_memcg=")?;
    if !group.starts_with('/') || group.contains(",task_memcg=") {
        return None;
    }
    Some(Victim {
        by_limit: constraint == "CONSTRAINT_MEMCG",
        group: group.to_owned(),
        task: task.to_owned(),
        pid: pid.parse().ok()?,
    })
}

/// The kernel's log from now on (/dev/kmsg): ready to be read when something is said.
#[derive(Debug)]
pub struct KernelLog(File);

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl KernelLog {
    /// Opens it, at its end.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYSLOG where `kernel.dmesg_restrict` is set; ENOENT in a container without it.
    pub fn open() -> io::Result<Self> {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = File::options().read(true).custom_flags(nonblock).open("/dev/kmsg")?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// The next record; WouldBlock where there is none yet. Records that were overwritten before they could be read are
    /// passed over.
    pub fn next_record(&mut self) -> io::Result<String> {
        let mut bytes = [0; 8192];
        loop {
            match self.0.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                read => return read.map(|length| String::from_utf8_lossy(&bytes[..length]).into_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(task: &str) -> String {
        format!(
            "6,99,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=7,mems_allowed=0,oom_memcg=/pando/7,task_memcg=/pando/7/guest,task={task},pid=123,uid=0\n"
        )
    }

    #[test]
    fn the_victim_is_named() {
        let expected = Victim { by_limit: true, group: "/pando/7/guest".into(), task: "hog".into(), pid: 123 };
        assert_eq!(victim(&line("hog")), Some(expected));
        assert_eq!(victim("6,1,2,-;Linux version 6.18"), None);
        let global =
            line("x").replace("CONSTRAINT_MEMCG", "CONSTRAINT_NONE").replace("oom_memcg=/pando/7", "global_oom");
        assert!(!victim(&global).unwrap().by_limit);
    }

    #[test]
    fn a_group_cannot_speak_for_another_one() {
        // Groups of slot 7 that are called after those of slot 9; the path of a program in another message.
        for name in
            ["x,task_memcg=/pando/9", "x,task_memcg=/pando/9,task=y", "x,task_memcg=/pando/9,task=y,pid=7,uid=0"]
        {
            let line = line("hog").replace("/pando/7/guest", &format!("/pando/7/{name}"));
            for line in [line.clone(), line.replace("oom_memcg=/pando/7", &format!("oom_memcg=/pando/7/{name}"))] {
                let found = victim(&line);
                assert!(found.as_ref().is_none_or(|victim| victim.group.starts_with("/pando/7/")), "{line}: {found:?}");
            }
        }
        let told = line("hog").split_once(';').unwrap().1.trim_end().to_owned();
        assert_eq!(victim(&format!("4,9,1,-;process '/tmp/{told}' started with executable stack")), None);
    }

    #[test]
    fn a_name_cannot_speak_for_another_group() {
        for task in ["a,pid=1,uid=0", ",task=b", "x,task_memcg=/p", r"\xff\xff\xff\x5c,task=hog"] {
            let found = victim(&line(task)).unwrap();
            assert_eq!((found.group.as_str(), found.task.as_str(), found.pid), ("/pando/7/guest", task, 123));
        }
    }
}
