//! Watches of inotify(7) that no clone could have.

use crate::capture::inotify::{Mounts, Searched, is_instance};
use crate::inspect::descriptors::{Found, Outside, supplied};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use pando_kernel::CallError;

/// Instances that watch what cannot be found again.
pub(crate) fn objections(
    init: i32,
    all: &[(&Member, Vec<Found>)],
    outside: &[Outside],
    searched: &Searched,
) -> Result<Vec<Refusal>, CallError> {
    let instances: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter(|(_, one)| is_instance(one) && supplied(one, outside).is_none())
        .collect();
    if instances.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = Mounts::of(init, searched)?;
    let objection = |(member, found): (&Member, &Found)| {
        let lost = mounts.watches(found).err()?;
        Some(Refusal {
            pid: member.pid,
            name: member.name.clone(),
            descriptor: Some(found.number),
            kind: format!("an inotify instance with {lost} watches that no path leads to, or too many"),
            advice: "have it watch files that are there, outside of /proc and /sys",
        })
    };
    Ok(instances.into_iter().filter_map(objection).collect())
}
