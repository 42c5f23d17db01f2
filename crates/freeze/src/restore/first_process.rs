//! The script of a clone's first process, where that is one of the image: the frozen guest's own init.
//!
//! It cannot be forked from the holder, for it has to be there before anything else can be in its pid namespace. So
//! whoever made that namespace has the first process become a restorer as well, with a socket as descriptor 0. It gets
//! a script of its own, written for it alone, and *copies* its memory out of the holder's; an init is small. What
//! processes share is handed over by the maker, which has made it.
//!
//! ```text
//!   cloner ──Become: script, holder's memory, socket──▶ first process: takes what it is handed, copies its memory,
//!                                                       forks who is in its session
//!   cloner ──Clone───────────────────▶ holder ─▶ maker: makes what is shared, hands it over ▲, forks all others
//! ```

use crate::image::Image;
use crate::inspect::proc_file::Lines;
use crate::inspect::{areas, limits};
use crate::refusal::FreezeError;
use crate::restore::identity::Inherited;
use crate::restore::process_groups::Groups;
use crate::restore::process_script::{self, Ground, Spans};
use crate::restore::script::{Script, Writer};
use crate::restore::slots::Slots;
use crate::restore::staging::{self, Source};
use crate::restore::{epoll, lineage};
use pando_kernel::CallError;
use pando_restorer::{HANDOVER, Special};
use std::collections::HashSet;

/// What its script depends on besides the image: what it is before it becomes one of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The kernel's own mappings in it: name, start, length.
    kernel: Vec<(String, u64, u64)>,
    /// How many filters of system calls it has already.
    filtered: usize,
    /// How many descriptors it may have.
    most_descriptors: u64,
    /// Whether one mremap(2) moves several areas (Linux 6.17).
    pub(crate) moves_many: bool,
    /// Whether timers can be made with a number (Linux 6.15).
    pub(crate) ids_chosen: bool,
    /// How many steps the others' script has: its own are counted on from there.
    pub(crate) before: u64,
}

impl Facts {
    /// Those of a process that waits to become one.
    pub(crate) fn of(pid: i32) -> Result<Self, CallError> {
        let limits = limits::read(pid)?;
        let most = limits.iter().find(|(number, ..)| *number == libc::RLIMIT_NOFILE).map_or(0, |(_, _, hard)| *hard);
        let filters = Lines::read(pid, "status")?.number("Seccomp_filters", 10).unwrap_or(0);
        let kernel = areas::kernels(pid)?;
        Ok(Self { kernel, filtered: filters as usize, most_descriptors: most, ..Self::default() })
    }
}

/// Writes the maker's steps: everything that it has made goes to the first process too. What is the holder's does not.
pub(crate) fn hand_over(writer: &mut Writer, slots: Slots, executables: usize) {
    let (chapter, label) = (Writer::MAKING, "handing over what the processes share");
    let ranges = [(slots.free, slots.held(0)), (slots.host_names(None), slots.executable(executables)), (0, 0)];
    for (first, behind) in ranges {
        writer.special(chapter, label, Special::Hand, &[slots.handover(), first, behind]);
    }
    writer.call(chapter, "closing what leads to the first process", libc::SYS_close, &[slots.handover()]);
}

/// The script of the first process. `None` if it is not one of the image.
pub(crate) fn script(image: &Image, facts: &Facts) -> Result<Option<Script>, FreezeError> {
    let family = lineage::family(image)?;
    let Some(first) = family.first else { return Ok(None) };
    let stages = staging::arrange(image);
    let (slots, executables) = (Slots::of(image), lineage::executables(image));
    let mut writer = Writer::after(facts.before);
    process_script::heed_every_signal(&mut writer);
    let most = writer.words(&[facts.most_descriptors; 2]);
    let arguments = [u64::from(libc::RLIMIT_NOFILE), most];
    writer.attempt(Writer::STAGING, "making room for descriptors", libc::SYS_setrlimit, &arguments);
    writer.special(Writer::STAGING, "taking what the processes share", Special::Take, &[HANDOVER]);
    let mut filled = HashSet::new();
    for process in family.processes(first) {
        let (process, stage) = (&image.processes[process], &stages[process]);
        let from = (&mut Source::Holder, &mut filled);
        staging::fill(&mut writer, process, stage, |content| slots.content(content), from);
    }
    let watches = epoll::shares(image);
    let ground = Ground {
        image,
        family: &family,
        spans: Spans::of(&family, &stages),
        groups: Groups::of(image),
        stages: &stages,
        slots,
        executables: &executables,
        kernel: &facts.kernel,
        moves_many: facts.moves_many,
        ids_chosen: facts.ids_chosen,
        watches: &watches,
        inherited: Inherited { filters: facts.filtered, bounding: u64::MAX, plain: false, space: None },
    };
    ground.make_all(&mut writer, vec![(Writer::MAKING, first)]);
    let refused = writer.refused();
    if !refused.is_empty() {
        return Err(FreezeError::Refused(refused));
    }
    Ok(Some(writer.finish(family.maker, slots.free, 0, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Process, Thread};
    use crate::restore::{facts, plan};

    fn image() -> Image {
        let process = |pid, parent, session| Process {
            pid,
            parent,
            session,
            threads: vec![Thread { tid: pid, registers: vec![0; 25], extended: vec![0; 576], ..Thread::default() }],
            ..Process::default()
        };
        Image { processes: vec![process(1, 0, 1), process(2, 1, 2), process(3, 1, 1)], init: 1, ..Image::default() }
    }

    #[test]
    fn it_forks_whom_it_must_and_counts_its_steps_on() {
        let facts = Facts { before: 1000, ..Facts::default() };
        let text = format!("{:?}", script(&image(), &facts).unwrap().unwrap());
        assert!(text.contains("forking process 3") && !text.contains("forking process 2"), "{text}");
        let others = format!("{:?}", plan::script(&image(), &facts::Facts::default()).unwrap());
        assert!(others.contains("forking process 2") && !others.contains("forking process 3"), "{others}");
        assert!(others.find("handing over").unwrap() < others.find("forking process 2").unwrap());
    }

    #[test]
    fn it_is_nobodys_where_it_is_not_of_the_image() {
        let mut image = image();
        image.processes.remove(0);
        assert_eq!(script(&image, &Facts::default()).unwrap(), None);
    }
}
