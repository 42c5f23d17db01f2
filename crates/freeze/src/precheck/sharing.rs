//! What processes share as only threads do: memory, descriptors, a directory (clone(2) with `CLONE_VM`, `CLONE_FILES`,
//! `CLONE_FS`); and threads that share less than threads do (unshare(2)). A clone's processes are forked and its
//! threads made as all threads are: both would come out as something else.

use crate::inspect::proc_file::Stat;
use crate::inspect::process_tree::{self, Member};
use crate::refusal::Refusal;
use pando_kernel::trace::foreign_memory::{Shared, compare};
use std::cmp::Ordering;
use std::collections::HashSet;

/// Of processes, and of threads; signal handlers are shared only with memory.
const OF_PROCESSES: [(Shared, &str); 3] = [
    (Shared::Memory, "memory"),
    (Shared::Descriptors, "a table of descriptors"),
    (Shared::Directories, "a working directory and a umask"),
];

const ADVICE: &str = "make the program use threads, or processes that share nothing but files and shared memory";

/// Processes that share what only threads do. Sharing begins with a process: those that were looked at before are
/// looked at no more, where there is no new one.
pub(crate) fn objections(members: &[Member], looked_at: Option<&HashSet<i32>>) -> Vec<Refusal> {
    let living = || members.iter().filter(|member| member.state != 'Z');
    if looked_at.is_some_and(|known| living().all(|member| known.contains(&member.outer))) {
        return Vec::new();
    }
    let mut refusals = Vec::new();
    for (kind, what) in OF_PROCESSES {
        let mut sorted: Vec<&Member> = Vec::new();
        for member in living() {
            let mut failed = false;
            let place = sorted.binary_search_by(|other| {
                let order = compare(kind, (other.outer, 0), (member.outer, 0));
                failed |= order.is_err();
                order.unwrap_or(Ordering::Less)
            });
            match place {
                // One that has gone meanwhile has nothing against it, and those that are about to go have nothing, all
                // of them.
                _ if failed => {}
                Ok(other) if is_there(member.outer, "") && is_there(sorted[other].outer, "") => {
                    let kind = format!("{what} that it shares with process {}", sorted[other].pid);
                    let (pid, name) = (member.pid, member.name.clone());
                    refusals.push(Refusal { pid, name, descriptor: None, kind, advice: ADVICE });
                }
                Ok(_) => {}
                Err(place) => sorted.insert(place, member),
            }
        }
    }
    refusals
}

/// Threads of a process that have what its others share for themselves.
pub(crate) fn thread_objection(outer: i32) -> Option<(String, &'static str)> {
    let threads = process_tree::threads(outer).unwrap_or_default();
    let (_, further) = threads.split_first()?;
    for (kind, what) in &OF_PROCESSES[1..] {
        let apart = |tid: &i32| compare(*kind, (outer, 0), (*tid, 0)).is_ok_and(Ordering::is_ne);
        let lasts = |tid: &i32| is_there(outer, "") && is_there(outer, &format!("task/{tid}/"));
        if further.iter().any(|tid| apart(tid) && lasts(tid)) {
            return Some((format!("a thread with {what} of its own"), "make the program use processes for that"));
        }
    }
    None
}

/// Whether a process, or one of its threads, is not about to end: from then on it shares nothing.
fn is_there(outer: i32, below: &str) -> bool {
    const PF_EXITING: u32 = 4;
    let Ok(stat) = Stat::read(outer, below) else { return false };
    let ended = stat.field::<char>(3).is_ok_and(|state| matches!(state, 'Z' | 'X'));
    !ended && stat.field::<u32>(9).is_ok_and(|flags| flags & PF_EXITING == 0)
}

/// A process whose first thread has ended before the others: what there is to see of it is that thread.
pub(crate) fn leaderless(outer: i32) -> Option<(String, &'static str)> {
    let threads = process_tree::threads(outer).unwrap_or_default();
    let runs =
        process_tree::has_ended(outer) && threads.iter().skip(1).any(|tid| is_there(outer, &format!("task/{tid}/")));
    let kind = || "its first thread has ended before the others".to_owned();
    runs.then(|| (kind(), "make the program's main thread wait for the others"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_nothing_has_nothing_against_it() {
        let own = std::process::id() as i32;
        let member = Member { outer: own, pid: 7, name: "it".into(), state: 'S' };
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let other = Member { outer: child.id() as i32, pid: 8, ..member.clone() };
        assert_eq!(objections(&[member.clone(), other], None), []);
        child.kill().unwrap();
        child.wait().unwrap();
        let shared = objections(&[member.clone(), Member { pid: 9, ..member.clone() }], None);
        assert_eq!(shared.len(), 3, "what is the same process shares all: {shared:?}");
        assert_eq!(objections(&[member.clone(), member], Some(&HashSet::from([own]))), []);
        assert_eq!(thread_objection(own), None);
        assert_eq!(leaderless(own), None);
    }
}
