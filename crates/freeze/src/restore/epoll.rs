//! Writes what epoll instances watch.

use crate::image::{Image, Process, Watch};
use crate::restore::script::{Chapter, Writer};
use crate::restore::slots::Slots;
use pando_restorer::Special;
use std::collections::{HashMap, HashSet};

/// A watch that a process adds, and whether its number leads to the file.
pub(crate) type Share<'a> = (&'a Watch, bool);

/// What each process of an image is to add.
pub(crate) fn shares(image: &Image) -> HashMap<i32, Vec<Share<'_>>> {
    let file = |process: &Process, number: i32| {
        let place = process.descriptors.binary_search_by_key(&number, |one| one.number).ok()?;
        Some(process.descriptors[place].file)
    };
    let mut added = HashSet::new();
    let mut shares: HashMap<_, Vec<_>> = HashMap::new();
    for process in &image.processes {
        for watch in &process.watches {
            let Some(instance) = file(process, watch.epoll) else { continue };
            if added.insert((instance, watch.target, watch.file)) {
                let share = (watch, file(process, watch.target) == Some(watch.file));
                shares.entry(process.pid).or_default().push(share);
            }
        }
    }
    shares
}

/// Writes the watching of what has its number, by a process whose descriptors are in their places.
pub(crate) fn watch(writer: &mut Writer, chapter: Chapter, shares: &[Share<'_>]) {
    let numbered = shares.iter().filter(|(_, has_number)| *has_number).map(|(watch, _)| *watch);
    let (fired, others): (Vec<_>, Vec<_>) = numbered.partition(|watch| watch.has_fired());
    // What has fired does so again, while nothing else of its instance can.
    for watch in fired {
        fire(writer, chapter, watch);
    }
    for watch in others {
        add(writer, chapter, watch, watch.epoll as u64);
    }
}

/// Writes the watching of what has lost its number, which it has for that moment, before descriptors go to their
/// places.
pub(crate) fn watch_what_lost_its_number(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    (shares, slots): (&[Share<'_>], Slots),
) {
    for (watch, _) in shares.iter().filter(|(_, has_number)| !has_number) {
        let Some(instance) = process.descriptors.iter().find(|one| one.number == watch.epoll) else { continue };
        let arguments = [slots.file(watch.file), watch.target as u64, 0];
        writer.call(chapter, "giving a watched file its number", libc::SYS_dup3, &arguments);
        add(writer, chapter, watch, slots.file(instance.file));
    }
}

fn add(writer: &mut Writer, chapter: Chapter, watch: &Watch, instance: u64) {
    let mut event = watch.events.to_le_bytes().to_vec();
    event.extend(watch.data.to_le_bytes());
    let event = writer.data(&event, 8);
    let arguments = [instance, libc::EPOLL_CTL_ADD as u64, watch.target as u64, event];
    writer.call(chapter, "watching a descriptor", libc::SYS_epoll_ctl, &arguments);
}

/// Writes the watching for any event, and the taking of the one that there is: nothing else disarms a watch.
fn fire(writer: &mut Writer, chapter: Chapter, watch: &Watch) {
    const ANY: u32 = (libc::EPOLLIN | libc::EPOLLOUT) as u32;
    let instance = watch.epoll as u64;
    add(writer, chapter, &Watch { events: watch.events | ANY, ..*watch }, instance);
    // `struct epoll_event`: what happened, and the program's word.
    let place = writer.data(&[[0; 4].as_slice(), &(!watch.data).to_le_bytes()].concat(), 8);
    let wanted = writer.data(&watch.data.to_le_bytes(), 8);
    let label = "taking the event of a watch that has fired";
    writer.exact(chapter, label, libc::SYS_epoll_wait, &[instance, place, 1, 0], 1);
    writer.special(chapter, label, Special::Compare, &[place + 4, wanted, 8]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Descriptor;

    fn watch_of(target: i32, file: usize) -> Watch {
        Watch { epoll: 3, target, file, events: 1, data: 7 }
    }

    #[test]
    fn what_has_fired_does_so_before_anything_else_can() {
        let fired = Watch { events: 1 << 30, ..watch_of(6, 2) };
        assert!(fired.has_fired() && !watch_of(5, 1).has_fired());
        // Errors it would tell of: it has not fired.
        assert!(!Watch { events: 1 << 30 | 0x18, ..fired }.has_fired());
        let mut writer = Writer::new();
        watch(&mut writer, Writer::MAKING, &[(&watch_of(5, 1), true), (&fired, true)]);
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 4 && lines[1].contains("taking the event") && lines[3].contains("watching"), "{text}");
    }

    #[test]
    fn the_first_of_those_that_share_an_instance_adds_what_it_watches() {
        let descriptor = |(number, file)| Descriptor { number, file, close_on_exec: false };
        let process = |pid, open: &[(i32, usize)], watches: &[Watch]| Process {
            pid,
            descriptors: open.iter().copied().map(descriptor).collect(),
            watches: watches.to_vec(),
            ..Process::default()
        };
        // The second one has something else by the number 5, and none of its own has watched that.
        let both = [watch_of(5, 1), watch_of(6, 2)];
        let processes = vec![process(2, &[(3, 0), (5, 1)], &both), process(4, &[(3, 0), (5, 2)], &both)];
        let image = Image { processes, ..Image::default() };
        let shares = shares(&image);
        assert_eq!(shares[&2], [(&both[0], true), (&both[1], false)]);
        assert!(!shares.contains_key(&4));
        let mut writer = Writer::new();
        let slots = Slots::of(&image);
        watch_what_lost_its_number(&mut writer, Writer::MAKING, &image.processes[0], (&shares[&2], slots));
        watch(&mut writer, Writer::MAKING, &shares[&2]);
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().next().is_some_and(|line| line.contains("its number")), "{text}");
    }
}
