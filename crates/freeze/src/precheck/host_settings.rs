//! Processes that are less likely to be ended than a clone of them could be made to be.

use crate::inspect::host_settings::{MEMORY_SHORTAGE, shortage, write};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use pando_kernel::CallError;
use std::io;

/// Who is less likely to be ended than a clone could be made to be: `holder` is whom its processes are forked from, and
/// is tried with.
pub(crate) fn objections(members: &[Member], holder: i32) -> Result<Vec<Refusal>, CallError> {
    let own = shortage(holder)?;
    let living = members.iter().filter(|member| member.state != 'Z');
    // One that has ended meanwhile has nothing against it.
    let mut lower: Vec<(&Member, i32)> = living
        .filter_map(|member| Some((member, shortage(member.outer).ok()?)))
        .filter(|(_, its)| *its < own)
        .collect();
    lower.sort_by_key(|(_, its)| *its);
    let Some((_, lowest)) = lower.first() else { return Ok(Vec::new()) };
    match write(holder, MEMORY_SHORTAGE, &lowest.to_string()) {
        Ok(()) => write(holder, MEMORY_SHORTAGE, &own.to_string()).map(|()| Vec::new()),
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {
            let named = lower.iter().take_while(|(_, its)| its == lowest);
            Ok(named.map(|(member, its)| refusal(member, *its)).collect())
        }
        Err(error) => Err(error),
    }
}

fn refusal(member: &Member, its: i32) -> Refusal {
    Refusal {
        pid: member.pid,
        name: member.name.clone(),
        descriptor: None,
        kind: format!("its {MEMORY_SHORTAGE} of {its}, which its clones could not have"),
        advice: "raise it to what Pando's daemon has, or give that CAP_SYS_RESOURCE",
    }
}
