//! What of System V IPC no clone could have.

use crate::capture::sysv::{Keys, LARGEST, Row, number, rows};
use crate::image::{Area, AreaKind};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use crate::restore::sysv::steps_to;
use pando_kernel::CallError;
use std::collections::HashMap;

/// What stands in the way: segments that are too large, numbers that a new namespace would have to count long for.
pub(crate) fn objections(keys: &Keys, members: &[Member]) -> Result<Vec<Refusal>, CallError> {
    let Some(lists) = keys.lists()? else { return Ok(Vec::new()) };
    let mut refusals = Vec::new();
    let mut refuse = |kind: String, advice| {
        let (pid, name) = members.first().map_or((1, String::new()), |member| (member.pid, member.name.clone()));
        refusals.push(Refusal { pid, name, descriptor: None, kind, advice });
    };
    for (what, text) in [("shared memory", &lists.shm), ("semaphores", &lists.sem), ("a message queue", &lists.msg)] {
        for row in rows(text) {
            let (id, length) = (number(&row, 1).unwrap_or(0), number(&row, 3).unwrap_or(0));
            if what == "shared memory" && length as u64 > LARGEST {
                refuse(format!("System V shared memory {id} of more than 256 MiB"), "make the program use mmap");
            }
            if steps_to(id as i32) > MOST_STEPS {
                refuse(format!("{what} with the high number {id} (System V)"), "restart the programs that use them");
            }
        }
    }
    Ok(refusals)
}

/// Segments of which a process has attached only a part: attaching is a matter of all.
pub(crate) fn part_objections(
    keys: &Keys,
    members: &[Member],
    areas: &HashMap<i32, Vec<Area>>,
) -> Result<Vec<Refusal>, CallError> {
    const ADVICE: &str = "make the program attach all of it, with one protection";
    const PAGE: u64 = 4096;
    let attached = |area: &Area| match area.kind {
        AreaKind::Segment { id, .. } => Some((id, area.end - area.start)),
        _ => None,
    };
    if !areas.values().flatten().any(|area| attached(area).is_some()) {
        return Ok(Vec::new());
    }
    let lists = keys.lists()?.map(|lists| lists.shm).unwrap_or_default();
    let row = |row: Row| Some((number(&row, 1).ok()? as i32, number(&row, 3).ok()? as u64));
    let lengths: HashMap<i32, u64> = rows(&lists).into_iter().filter_map(row).collect();
    let mut refusals = Vec::new();
    for member in members {
        let own = areas.get(&member.outer).into_iter().flatten().filter_map(attached);
        let in_part =
            |(id, length): &(i32, u64)| lengths.get(id).is_none_or(|all| all.next_multiple_of(PAGE) != *length);
        for (id, _) in own.filter(in_part) {
            let (pid, name) = (member.pid, member.name.clone());
            let kind = format!("a part of the System V shared memory {id}");
            refusals.push(Refusal { pid, name, descriptor: None, kind, advice: ADVICE });
        }
    }
    refusals.dedup();
    Ok(refusals)
}

/// How far a new namespace may have to count.
const MOST_STEPS: u32 = 4096;
