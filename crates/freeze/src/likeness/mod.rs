//! Whether a clone is what was frozen: all that the kernel tells of its processes while they stand at the gate,
//! compared with the image.
//!
//! ```text
//!   members ─▶ process: who it is, below whom, what it may      ─┐
//!           ─▶ signals: what it does about them, what waits      │
//!           ─▶ files: what it has open, what that is, who shares ├─▶ differences, by process and by what it is
//!           ─▶ memory: what lies where                           │
//!           ─▶ spaces: its namespaces, what is mounted in them  ─┘
//! ```
//!
//! Each step of a script that a clone is made by tells whether it failed. That all of them together make what was
//! frozen nobody tells but the clone: a filter can answer a call with success and not make it, a kernel can do
//! something else than another, and we can be wrong. So the first clone of an image is looked at.
//!
//! What cannot be the same is not compared: clocks, what was given to the outside, what docs/clones.md says is lost;
//! and what is done behind the gate.

mod files;
mod memory;
mod process;
mod signals;
mod spaces;

use crate::image::{Image, Process};
use crate::inspect::process_tree::{self, Member, Roots};
use pando_kernel::CallError;
use std::fmt;
use std::time::{Duration, Instant};

/// Something that a clone's process is or has otherwise than the frozen one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The process's pid inside the pid namespace.
    pub pid: i32,
    /// The name of the process's first thread.
    pub name: String,
    /// What differs, in words for the user.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({}): {}", self.pid, self.name, self.what)
    }
}

/// The most that are told by name.
const TOLD: usize = 8;

/// Puts some differences into the words of an error.
pub(crate) fn list(differences: &[Difference]) -> String {
    let mut words: Vec<_> = differences.iter().take(TOLD).map(ToString::to_string).collect();
    if differences.len() > TOLD {
        words.push(format!("and {} more", differences.len() - TOLD));
    }
    words.join(" · ")
}

/// What is said of one process.
pub(crate) type Said = Vec<String>;

/// Compares the processes of a clone, which stand at the gate, with those of its image. `init` is the first process of
/// their pid namespace.
pub(crate) fn differences(image: &Image, init: i32) -> Result<Vec<Difference>, CallError> {
    let members = settled_members(image, init);
    let mut differences = Vec::new();
    let mut files = files::Files::of(image, init)?;
    let mut spaces = spaces::Spaces::of(image, init)?;
    let ids = process::Ids::of(image, init)?;
    for process in &image.processes {
        let Some(member) = members.iter().find(|member| member.pid == process.pid) else {
            if !may_be_gone(image, process) {
                differences.extend(of(process, vec!["it is not there".into()]));
            }
            continue;
        };
        let mut said = ids.compare(process, member)?;
        if process.threads.is_empty() || member.state == 'Z' {
            differences.extend(of(process, said));
            continue;
        }
        said.extend(signals::compare(process, member.outer)?);
        said.extend(files.compare(process, member.outer)?);
        said.extend(memory::compare(process, member.outer)?);
        said.extend(spaces.compare(process, member.outer)?);
        differences.extend(of(process, said));
    }
    let strangers = members.iter().filter(|member| image.processes.iter().all(|process| process.pid != member.pid));
    differences.extend(strangers.map(|member| Difference {
        pid: member.pid,
        name: member.name.clone(),
        what: "it was not frozen".into(),
    }));
    Ok(differences)
}

/// The processes, once those have ended that are to have ended. What forked a clone, or helped with that, is gone by
/// the time that all others stand.
fn settled_members(image: &Image, init: i32) -> Vec<Member> {
    const LATEST: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_micros(200);
    let begun = Instant::now();
    loop {
        let members = Roots::below(init, image.first().is_some()).members();
        let ended = image.processes.iter().filter(|process| process.threads.is_empty());
        let is_late = |process: &Process| members.iter().any(|one| one.pid == process.pid && one.state != 'Z');
        if !ended.clone().any(is_late) || begun.elapsed() > LATEST {
            return members;
        }
        std::thread::sleep(MOMENT);
    }
}

/// Whether one that had ended, and that nobody had asked for, may have gone: its parent asks at once, as a guest's
/// first process does, or does not want to be asked.
fn may_be_gone(image: &Image, process: &Process) -> bool {
    let unasked = |action: &[u64; 4]| action[0] == 1 || action[1] & libc::SA_NOCLDWAIT as u64 != 0;
    let parent = image.processes.iter().find(|other| other.pid == process.parent && !other.threads.is_empty());
    let cares = parent.is_some_and(|parent| {
        !parent.actions.iter().any(|(signal, action)| *signal == libc::SIGCHLD && unasked(action))
    });
    process.ended.is_some() && !cares
}

fn of(process: &Process, said: Said) -> impl Iterator<Item = Difference> {
    let (pid, name) = (process.pid, name(process));
    said.into_iter().map(move |what| Difference { pid, name: name.clone(), what })
}

fn name(process: &Process) -> String {
    let thread = process.threads.first();
    thread.map_or_else(|| "ended".into(), |thread| String::from_utf8_lossy(&thread.name).into_owned())
}

/// Says what differs, if it does: what it is, as it is, as it was.
pub(crate) fn unlike<T: PartialEq + fmt::Debug>(what: &str, is: &T, was: &T) -> Option<String> {
    (is != was).then(|| format!("{what} is {is:?} instead of {was:?}"))
}

/// The same of numbers that are told in octal or hexadecimal.
pub(crate) fn unlike_bits(what: &str, is: u64, was: u64) -> Option<String> {
    (is != was).then(|| format!("{what} is {is:#x} instead of {was:#x}"))
}

/// Whether a pid is that of one of the image's processes that lives.
pub(crate) fn lives(image: &Image, pid: i32) -> bool {
    image.processes.iter().any(|process| process.pid == pid && !process.threads.is_empty())
}

/// The number of a thread inside, by the number that it has here.
pub(crate) fn inner(outer: i32, tid: i32) -> Result<(i32, crate::inspect::proc_file::Lines), CallError> {
    let status = crate::inspect::proc_file::Lines::read(outer, &format!("task/{tid}/status"))?;
    Ok((process_tree::inner(&status).unwrap_or(tid), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_in_words_and_bounded() {
        let one = |pid| Difference { pid, name: "db".into(), what: unlike("its umask", &7, &18).unwrap() };
        assert_eq!(one(4).to_string(), "process 4 (db): its umask is 7 instead of 18");
        let many: Vec<_> = (0..20).map(one).collect();
        assert!(list(&many).ends_with("process 7 (db): its umask is 7 instead of 18 · and 12 more"));
        assert_eq!(unlike("its umask", &7, &7), None);
    }

    #[test]
    fn who_had_ended_is_missed_where_somebody_may_ask_for_it() {
        let dead = Process { pid: 6, parent: 5, ended: Some(0), ..Process::default() };
        let lives = |actions| {
            let thread = crate::image::Thread::default();
            Process { pid: 5, threads: vec![thread], actions, ..Process::default() }
        };
        let with = |processes| may_be_gone(&Image { processes, init: 1, ..Image::default() }, &dead);
        assert!(!with(vec![lives(Vec::new())]));
        assert!(with(vec![lives(vec![(libc::SIGCHLD, [1, 0, 0, 0])])]) && with(Vec::new()));
    }

    #[test]
    fn who_is_not_there_is_missed() {
        // Nobody is below this process.
        let process = Process { pid: 5, threads: vec![crate::image::Thread::default()], ..Process::default() };
        let image = Image { processes: vec![process], init: 1, ..Image::default() };
        let found = differences(&image, std::process::id() as i32).unwrap();
        assert!(found.iter().any(|one| one.pid == 5 && one.what == "it is not there"), "{found:?}");
    }
}
