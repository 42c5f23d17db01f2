//! Terminals that no clone could have.

use crate::image::file::HIGHEST_TERMINAL;
use crate::inspect::descriptors::Found;
use crate::inspect::process_tree::Member;
use crate::inspect::terminal_ends::{End, end, number};
use crate::refusal::Refusal;

/// What stands in the way: terminals whose master is outside, as those of `pando exec -t` are, unless it is the
/// console; and high numbers.
pub(crate) fn objections(
    all: &[(&Member, Vec<Found>)],
    console: Option<u32>,
    supplied: impl Fn(&Found) -> bool,
) -> Vec<Refusal> {
    let ends: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter_map(|(member, one)| Some((member, one, end(one)?)))
        .filter(|(_, one, _)| !supplied(one))
        .map(|(member, one, end)| (member, one, end, number(member.outer, one)))
        .collect();
    let mut refusals = Vec::new();
    for (member, one, end, number) in &ends {
        let mastered = |other: &(&Member, &Found, End, Option<u32>)| other.2 == End::Master && other.3 == *number;
        let advice = match number {
            Some(_) if *number == console => continue,
            Some(number) if *number > HIGHEST_TERMINAL => "close terminals, so that their numbers are low",
            Some(_) if *end == End::Master || ends.iter().any(mastered) => continue,
            _ => "start the program without a terminal, or in one that a program inside has made (tmux, script)",
        };
        refusals.push(Refusal {
            pid: member.pid,
            name: member.name.clone(),
            descriptor: Some(one.number),
            kind: format!("a terminal whose other end is outside ({})", one.target),
            advice,
        });
    }
    refusals
}
