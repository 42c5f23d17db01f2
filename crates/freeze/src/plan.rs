//! From an image to a script: every address, descriptor and pid decided, nothing done yet.

use crate::content_making;
use crate::epoll;
use crate::first;
use crate::growth::{self, Ground};
use crate::image::{Image, Process};
use crate::lineage;
use crate::objects::{self, Slots};
use crate::origin::Origin;
use crate::pid_counter;
use crate::rebirth::Inherited;
use crate::refusal::{FreezeError, Refusal};
use crate::script::{Script, Writer};
use crate::staging;
use crate::sysv_making;
use crate::user_spaces;
use crate::verdict;

/// What a script depends on besides the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Where memory is copied from.
    pub(crate) origin: Origin,
    /// The highest pid that somebody else has where it is to live; 0 where nobody does.
    pub(crate) taken: i32,
    /// The kernel's own mappings in the holder: name, start, length.
    pub(crate) kernel: Vec<(String, u64, u64)>,
    /// Whether one mremap(2) moves several areas (Linux 6.17).
    pub(crate) moves_many: bool,
    /// Whether timers can be made with a number (Linux 6.15).
    pub(crate) ids_chosen: bool,
}

/// The script of an image.
pub(crate) fn script(image: &Image, facts: &Facts) -> Result<Script, FreezeError> {
    let early = common_filters(image);
    match written(image, facts, early)? {
        Some(script) => Ok(script),
        None => written(image, facts, &[]).map(Option::unwrap_or_default),
    }
}

/// The same, with some filters of system calls given to all processes by the maker. `None` where those would refuse what is to be done.
fn written(image: &Image, facts: &Facts, filters: &[Vec<u8>]) -> Result<Option<Script>, FreezeError> {
    let family = family(image)?;
    let maker = family.maker.max(facts.taken + 1);
    let stages = staging::arrange(image);
    let slots = Slots::of(image);
    let executables = executables(image);
    let mut writer = Writer::new();
    growth::heed_every_signal(&mut writer);
    // Once, and not by each process that is forked.
    let kernel = growth::park(&mut writer, Writer::STAGING, &facts.kernel);
    pid_counter::stage(&mut writer, slots);
    content_making::stage(&mut writer, image, slots, facts);
    staging::write(&mut writer, image, &stages, slots, &facts.origin);
    // One helps at a time.
    let helper = maker + 1;
    user_spaces::make(&mut writer, image, slots, helper);
    objects::write(&mut writer, image, (slots, helper), &executables);
    let behind = slots.executable(executables.len());
    let makers = sysv_making::Makers { own: maker, helper, pipe: [behind, behind + 1] };
    sysv_making::write(&mut writer, image, makers);
    pid_counter::set(&mut writer, slots, maker);
    let (inherited, filtered) = Inherited::of_maker(&mut writer, image, filters);
    let watches = epoll::shares(image);
    let ground = Ground {
        image,
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
        first::hand_over(&mut writer, slots, executables.len());
    }
    ground.fork_all(&mut writer, Writer::MAKING, &family.roots);
    content_making::seal_late(&mut writer, image, slots);
    user_spaces::give_turns(&mut writer, image, slots, maker);
    if !verdict::lets_pass(filters, |number| writer.made_from(filtered + number + 1)) {
        return Ok(None);
    }
    let refused = writer.refused();
    if !refused.is_empty() {
        return Err(FreezeError::Refused(refused));
    }
    let reports = image.processes.iter().filter(|process| !process.threads.is_empty()).count();
    Ok(Some(writer.finish(maker, slots.free, reports, slots.supplied())))
}

/// Who forks whom in a clone of an image.
pub(crate) fn family(image: &Image) -> Result<lineage::Family, FreezeError> {
    let refused = |unplaced: lineage::Unplaced| {
        FreezeError::Refused(vec![Refusal {
            pid: unplaced.pid,
            name: name_of(image, unplaced.pid),
            descriptor: None,
            kind: "it is in a session that none of its ancestors was in".into(),
            advice: "start it again",
        }])
    };
    lineage::births(image).map_err(refused)
}

fn name_of(image: &Image, pid: i32) -> String {
    let thread = image.processes.iter().find(|process| process.pid == pid).and_then(|process| process.threads.first());
    thread.map(|thread| String::from_utf8_lossy(&thread.name).into_owned()).unwrap_or_default()
}

/// The paths of all programs that the processes run.
pub(crate) fn executables(image: &Image) -> Vec<String> {
    let mut paths: Vec<String> = image.processes.iter().map(|process| process.executable.clone()).collect();
    paths.retain(|path| !path.is_empty());
    paths.sort();
    paths.dedup();
    paths
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
