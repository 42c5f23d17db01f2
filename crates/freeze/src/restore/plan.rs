//! From an image to a script: every address, descriptor and pid decided, nothing done yet.

use crate::image::{Image, Process};
use crate::refusal::FreezeError;
use crate::restore::facts::Facts;
use crate::restore::identity::Inherited;
use crate::restore::lineage::{executables, family};
use crate::restore::process_groups::Groups;
use crate::restore::process_script::{self, Ground, Spans};
use crate::restore::script::{Script, Writer};
use crate::restore::slots::Slots;
use crate::restore::{
    contents, epoll, filter_verdict, first_process, objects, pid_counter, staging, sysv, user_spaces,
};

/// The script of an image.
pub(crate) fn script(image: &Image, facts: &Facts) -> Result<Script, FreezeError> {
    let early = common_filters(image);
    match written(image, facts, early)? {
        Some(script) => Ok(script),
        None => written(image, facts, &[]).map(Option::unwrap_or_default),
    }
}

/// The same, with some filters of system calls given to all processes by the maker. `None` where those would refuse
/// what is to be done.
fn written(image: &Image, facts: &Facts, filters: &[Vec<u8>]) -> Result<Option<Script>, FreezeError> {
    let family = family(image)?;
    let maker = family.maker.max(facts.taken + 1);
    let stages = staging::arrange(image);
    let slots = Slots::of(image);
    let executables = executables(image);
    let mut writer = Writer::new();
    process_script::heed_every_signal(&mut writer);
    // Once, and not by each process that is forked.
    let kernel = process_script::park(&mut writer, Writer::STAGING, &facts.kernel);
    pid_counter::stage(&mut writer, slots);
    contents::stage(&mut writer, image, slots, facts);
    staging::write(&mut writer, image, &stages, slots, &facts.origin);
    // One helps at a time.
    let helper = maker + 1;
    user_spaces::make(&mut writer, image, slots, helper);
    objects::write(&mut writer, image, (slots, helper), &executables);
    let behind = slots.executable(executables.len());
    let makers = sysv::Makers { own: maker, helper, pipe: [behind, behind + 1] };
    sysv::write(&mut writer, image, makers);
    pid_counter::set(&mut writer, slots, maker);
    let (inherited, filtered) = Inherited::of_maker(&mut writer, image, filters);
    let watches = epoll::shares(image);
    let ground = Ground {
        image,
        family: &family,
        spans: Spans::of(&family, &stages),
        groups: Groups::of(image),
        stages: &stages,
        slots,
        executables: &executables,
        kernel: &kernel,
        moves_many: facts.moves_many,
        ids_chosen: facts.ids_chosen,
        watches: &watches,
        inherited,
    };
    if family.first.is_some() {
        first_process::hand_over(&mut writer, slots, executables.len());
    }
    ground.fork_all(&mut writer, Writer::MAKING, &family.roots);
    contents::seal_late(&mut writer, image, slots);
    user_spaces::give_turns(&mut writer, image, slots, maker);
    if !filter_verdict::lets_pass(filters, |number| writer.made_from(filtered + number + 1)) {
        return Ok(None);
    }
    let refused = writer.refused();
    if !refused.is_empty() {
        return Err(FreezeError::Refused(refused));
    }
    let reports = image.processes.iter().filter(|process| !process.threads.is_empty()).count();
    Ok(Some(writer.finish(maker, slots.free, reports, slots.supplied())))
}

/// The filters that all threads forked by the maker have, oldest first.
fn common_filters(image: &Image) -> &[Vec<u8>] {
    let first = image.first();
    let others = image.processes.iter().enumerate().filter(|(index, _)| Some(*index) != first);
    let mut threads = others.flat_map(|(_, process): (usize, &Process)| &process.threads);
    let Some(one) = threads.next() else { return &[] };
    let shared = |filters: usize, other: &[Vec<u8>]| {
        one.filters[..filters].iter().zip(other).take_while(|(own, other)| own == other).count()
    };
    let count = threads.fold(one.filters.len(), |count, thread| shared(count, &thread.filters));
    &one.filters[..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Thread;

    #[test]
    fn what_all_threads_have_is_found() {
        let process = |filters: &[&[u8]]| {
            let filters = filters.iter().map(|filter| filter.to_vec()).collect();
            Process { threads: vec![Thread { filters, ..Thread::default() }], ..Process::default() }
        };
        let of = |processes: Vec<Process>| common_filters(&Image { processes, init: 1, ..Image::default() }).len();
        assert_eq!(of(vec![process(&[b"a", b"b"]), process(&[b"a", b"c"])]), 1);
        assert_eq!(of(vec![process(&[b"a"]), process(&[b"a", b"c"])]), 1);
        assert_eq!(of(vec![process(&[b"a"]), process(&[])]), 0);
        assert_eq!(of(vec![]), 0);
    }
}
