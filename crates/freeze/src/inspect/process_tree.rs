//! Which processes there are: all of a pid namespace, with its first or without.

use crate::inspect::proc_file::{self, Lines, Stat};
use pando_kernel::{CallError, Context, process};
use std::collections::HashSet;

/// A process of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its pid here.
    pub(crate) outer: i32,
    /// Its pid in its namespace.
    pub(crate) pid: i32,
    /// Its name.
    pub(crate) name: String,
    /// One letter, as ps(1) shows it.
    pub(crate) state: char,
}

/// Where the processes of a pid namespace are found: below its first process, and below those that came in from
/// outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roots {
    init: i32,
    /// Whether the first process is one of them.
    whole: bool,
    strays: Vec<i32>,
    /// The pid namespace that strays are in, or which they are not in.
    space: Space,
}

/// What tells a stray from whoever gets its pid when it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Space {
    /// It is in this pid namespace.
    Is(String),
    /// It is in another one than this.
    IsNot(String),
    /// There are no strays.
    Any,
}

impl Space {
    /// Whether a process is there. One that has ended is nowhere, and stays what it was taken for.
    fn has(&self, outer: i32) -> bool {
        let Ok(space) = proc_file::link(outer, "ns/pid") else { return true };
        match self {
            Self::Is(known) => space == *known,
            Self::IsNot(known) => space != *known,
            Self::Any => true,
        }
    }
}

impl Roots {
    /// Those of the namespace whose first process is `init`. It looks at every process of the machine, which takes
    /// milliseconds; members of the namespace cannot make strays, so that this is done before anything is stopped.
    pub(crate) fn find(init: i32, whole: bool) -> Result<Self, CallError> {
        let namespace = proc_file::link(init, "ns/pid")?;
        // Processes that have just ended have none.
        let is_inside = |pid: &i32| proc_file::link(*pid, "ns/pid").is_ok_and(|other| other == namespace);
        let inside: HashSet<i32> =
            process::all().context(|| "listing processes".into())?.into_iter().filter(is_inside).collect();
        let has_come = |pid: &i32| {
            let parent = Stat::read(*pid, "").and_then(|stat| stat.field::<i32>(4)).unwrap_or(init);
            *pid != init && !inside.contains(&parent)
        };
        let strays = inside.iter().copied().filter(has_come).collect();
        Ok(Self { init, whole, strays, space: Space::Is(namespace) })
    }

    /// Those of a namespace that nobody came into from outside.
    pub(crate) fn below(init: i32, whole: bool) -> Self {
        Self { init, whole, strays: Vec::new(), space: Space::Any }
    }

    /// Those below some processes, and these, none of which is in this process's own pid namespace.
    pub(crate) fn of(processes: &[i32]) -> Self {
        let own = proc_file::link(std::process::id().cast_signed(), "ns/pid");
        let space = own.map_or(Space::Any, Space::IsNot);
        Self { init: 0, whole: false, strays: processes.to_vec(), space }
    }

    /// Every process of them, ended ones too.
    pub(crate) fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        let mut known = HashSet::new();
        let mut next: Vec<i32> = self.strays.iter().copied().filter(|outer| self.space.has(*outer)).collect();
        if self.whole {
            next.push(self.init);
        } else {
            next.extend(children(self.init));
        }
        while let Some(outer) = next.pop() {
            // One that is gone altogether was never of interest, and may be found on two ways while it gets another
            // parent.
            if let Ok(member) = describe(outer)
                && known.insert(outer)
            {
                members.push(member);
                next.extend(children(outer));
            }
        }
        members.sort_by_key(|member| member.pid);
        members
    }
}

/// The children of all threads of a process.
pub(crate) fn children(outer: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for tid in threads(outer).unwrap_or_default() {
        let text = proc_file::text(outer, &format!("task/{tid}/children")).unwrap_or_default();
        children.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    children
}

pub(crate) fn describe(outer: i32) -> Result<Member, CallError> {
    let status = Lines::read(outer, "status")?;
    Ok(Member {
        outer,
        pid: inner(&status).unwrap_or(outer),
        name: status.get("Name").to_owned(),
        state: status.get("State").chars().next().unwrap_or('?'),
    })
}

/// The innermost pid of a status file.
pub(crate) fn inner(status: &Lines) -> Option<i32> {
    status.words("NSpid").last()?.parse().ok()
}

/// The number that a process has in its own namespace.
pub(crate) fn number_inside(outer: i32) -> i32 {
    Lines::read(outer, "status").ok().and_then(|status| inner(&status)).unwrap_or(outer)
}

/// The threads of a process, the first one first.
pub(crate) fn threads(outer: i32) -> Result<Vec<i32>, CallError> {
    let path = format!("/proc/{outer}/task");
    let entries = std::fs::read_dir(&path).context(|| format!("reading {path}"))?;
    let mut tids: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_by_key(|tid| (*tid != outer, *tid));
    Ok(tids)
}

/// Whether a process has ended and waits to be asked for.
pub(crate) fn has_ended(outer: i32) -> bool {
    Stat::read(outer, "").is_ok_and(|stat| stat.field::<char>(3).is_ok_and(|state| state == 'Z'))
}

/// Whether there is no such process any more, or the kernel is taking it away (state `X` for a moment).
pub(crate) fn is_gone(outer: i32) -> bool {
    Stat::read(outer, "").map_or(true, |stat| stat.field::<char>(3).is_ok_and(|state| state == 'X'))
}

/// The same of a thread, which nobody asks for when it has ended.
pub(crate) fn is_thread_gone(outer: i32, tid: i32) -> bool {
    let stat = Stat::read(outer, &format!("task/{tid}/"));
    stat.map_or(true, |stat| stat.field::<char>(3).is_ok_and(|state| ['X', 'Z'].contains(&state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_strays_pid_in_another_namespace_is_no_member() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = other.id().cast_signed();
        let own = proc_file::link(pid, "ns/pid").unwrap();
        let members = |space: Space| Roots { init: 0, whole: false, strays: vec![pid], space }.members().len();
        let found = [Space::Is(own), Space::Is("pid:[1]".to_owned()), Space::Any].map(members);
        let moved = Roots::of(&[pid]).members();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((found, moved.len()), ([1, 0, 1], 0));
    }
}
