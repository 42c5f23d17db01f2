//! Contexts of asynchronous input and output (io_setup(2)). Each has a ring of events in its process's memory: the kernel puts in what has been done of what the program
//! asked for, and the program, or a call of it, takes that out. What has been asked for and not been done is nowhere but in the kernel.
//!
//! That ends by itself, where it is about files, and is waited for when the processes stand still: then what is in the rings is all there is. What does not
//! end is refused, for it would be lost. How much there is only the [onlooker](crate::onlooker) tells.

use crate::image::aio::{EVENT, of, room};
use crate::image::{AioRing, Area, AreaKind, Process};
use crate::script::{Chapter, Writer};
use crate::stop::PATIENCE;
use crate::told::Told;
use pando_kernel::{CallError, Context, foreign_memory};
use pando_restorer::Special;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What is told of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AioContext {
    /// Its number, which is where its ring lies.
    pub(crate) address: u64,
    /// So many requests it was made for.
    pub(crate) requests: u32,
    /// Events that its ring has room for.
    pub(crate) room: u32,
    /// Where in the ring the kernel puts the next event.
    pub(crate) tail: u32,
    /// Requests of which not all has been done.
    pub(crate) in_flight: u32,
    /// Whether one of them waits for a file to become ready (IOCB_CMD_POLL).
    pub(crate) polls: bool,
}

impl AioContext {
    /// Whether an area is its ring, all of it, and can be read, as the kernel must to find the context.
    fn has(&self, area: &Area) -> bool {
        let is_one = matches!(area.kind, AreaKind::AioRing(_)) && area.protection & libc::PROT_READ as u32 != 0;
        is_one && area.start == self.address && room(area) == self.room
    }
}

type Objection = (String, &'static str);

/// What stands in the way of a process, by its memory and its contexts, if these are told of. What one that runs has asked for may be done in a moment, unless it waits.
pub(crate) fn objections(areas: &[Area], contexts: Option<&[AioContext]>, stands_still: bool) -> Vec<Objection> {
    const SET_UP: &str = "make the program set it up after it forks, and leave its memory alone";
    let rings = || areas.iter().filter(|area| matches!(area.kind, AreaKind::AioRing(_)));
    let Some(contexts) = contexts else {
        let untold =
            "a context of asynchronous input and output (io_setup), and this kernel does not tell what it does";
        return rings().take(1).map(|_| (untold.to_owned(), "make the program do without it")).collect();
    };
    let mut objections = Vec::new();
    for ring in rings().filter(|area| !contexts.iter().any(|context| context.has(area))) {
        let kind = format!(
            "memory of a context of asynchronous input and output that it does not have (at {:#x})",
            ring.start
        );
        objections.push((kind, SET_UP));
    }
    for context in contexts {
        if !areas.iter().any(|area| context.has(area)) {
            let kind = "a context of asynchronous input and output (io_setup) without its memory";
            objections.push((format!("{kind} (at {:#x})", context.address), SET_UP));
        }
        if context.polls {
            let kind = "a request of asynchronous input and output that waits for a file (IOCB_CMD_POLL)";
            objections.push((kind.to_owned(), "make the program use epoll"));
        } else if stands_still && context.in_flight > 0 {
            let kind =
                format!("requests of asynchronous input and output that do not end ({} of them)", context.in_flight);
            objections.push((kind, "wait until they are done"));
        }
    }
    objections
}

/// Waits until all that processes have asked for has been done, as long as it takes to stop a thread, and takes what is told of them then for what was told before. They
/// stand still, so it becomes no more.
pub(crate) fn let_end(told: &mut HashMap<i32, Told>, look: impl Fn(i32) -> Option<Told>) {
    const MOMENT: Duration = Duration::from_micros(50);
    let begun = Instant::now();
    loop {
        let in_flight = |told: &Told| told.contexts.iter().flatten().any(|context| context.in_flight > 0);
        let waiting: Vec<i32> = told.iter().filter(|(_, told)| in_flight(told)).map(|(pid, _)| *pid).collect();
        if waiting.is_empty() || begun.elapsed() > PATIENCE {
            return;
        }
        std::thread::sleep(MOMENT);
        told.extend(waiting.into_iter().filter_map(|pid| Some((pid, look(pid)?))));
    }
}

/// Reads the rings of a process that stands still.
pub(crate) fn capture(outer: i32, told: Option<&Told>, areas: &mut [Area]) -> Result<(), CallError> {
    let contexts: Vec<_> = told.iter().flat_map(|told| told.contexts.iter().flatten()).collect();
    for area in areas {
        if let Some(context) = contexts.iter().find(|context| context.has(area)) {
            area.kind = AreaKind::AioRing(read(outer, context)?);
        }
    }
    Ok(())
}

fn read(outer: i32, context: &AioContext) -> Result<AioRing, CallError> {
    const HEAD_AT: usize = 8;
    let what = || format!("reading the ring at {:#x} of process {outer}", context.address);
    let mut begins = [0; EVENT as usize];
    foreign_memory::read(outer, context.address, &mut begins).context(what)?;
    let (_, head) = begins.split_at(HEAD_AT);
    // A program may write to it what it likes; this is how the kernel reads it.
    let head = head.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)) % context.room;
    let waiting = (context.tail + context.room - head) % context.room;
    let mut bytes = vec![0; waiting as usize * EVENT as usize];
    let before_the_end = (context.room - head).min(waiting) as usize * EVENT as usize;
    let (first, rest) = bytes.split_at_mut(before_the_end);
    let events = context.address + EVENT;
    for (from, portion) in [(events + u64::from(head) * EVENT, first), (events, rest)] {
        if !portion.is_empty() {
            foreign_memory::read(outer, from, portion).context(what)?;
        }
    }
    let events =
        bytes.as_chunks::<8>().0.as_chunks::<4>().0.iter().map(|event| event.map(u64::from_ne_bytes)).collect();
    Ok(AioRing { requests: context.requests, head, events })
}

/// Writes the making of a process's contexts, once all else of its memory is in its place.
pub(crate) fn make(writer: &mut Writer, chapter: Chapter, process: &Process) {
    const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    for (area, ring) in process.areas.iter().filter_map(|area| Some((area, of(area)?))) {
        let events = writer.words(ring.events.as_flattened());
        let count = ring.events.len() as u64;
        let label = "making a context of asynchronous input and output, of which the machine has as many as /proc/sys/fs/aio-max-nr allows";
        let (requests, room) = (u64::from(ring.requests), u64::from(room(area)));
        let arguments = [requests, room, area.start, u64::from(ring.head), events, count];
        writer.special(chapter, label, Special::AioRing, &arguments);
        if area.protection != READ_WRITE {
            let arguments = [area.start, area.end - area.start, u64::from(area.protection)];
            writer.call(chapter, "protecting memory", libc::SYS_mprotect, &arguments);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::image::aio::{fit, is_one, made};

    const PAGE: u64 = 4096;

    fn ring_at(start: u64, pages: u64) -> Area {
        Area::new(start, start + pages * PAGE, 3, AreaKind::AioRing(AioRing::default()))
    }

    fn context(address: u64) -> AioContext {
        AioContext { address, requests: 5, room: 127, tail: 0, in_flight: 0, polls: false }
    }

    fn said(areas: &[Area], contexts: &[AioContext], stands_still: bool) -> Vec<String> {
        objections(areas, Some(contexts), stands_still).into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn a_ring_is_of_a_context_and_a_context_has_its_ring() {
        let ring = ring_at(0x5000, 1);
        assert_eq!(said(std::slice::from_ref(&ring), &[context(0x5000)], true), [""; 0]);
        let lost = |areas: &[Area], contexts: &[AioContext]| said(areas, contexts, true).join(" ");
        assert!(lost(std::slice::from_ref(&ring), &[]).contains("does not have"));
        assert!(lost(&[], &[context(0x5000)]).contains("without its memory"));
        let blind = Area { protection: 0, ..ring };
        for other in [ring_at(0x5000, 2), ring_at(0x6000, 1), blind] {
            let both = lost(&[other], &[context(0x5000)]);
            assert!(both.contains("does not have") && both.contains("without its memory"), "{both}");
        }
    }

    #[test]
    fn what_is_in_flight_stands_in_the_way_when_it_could_have_ended_and_what_waits_always() {
        let ring = [ring_at(0x5000, 1)];
        let busy = [AioContext { in_flight: 3, ..context(0x5000) }];
        assert_eq!(said(&ring, &busy, false), [""; 0]);
        assert!(said(&ring, &busy, true)[0].contains("3 of them"));
        let waits = [AioContext { polls: true, ..busy[0] }];
        assert!([false, true].iter().all(|still| said(&ring, &waits, *still)[0].contains("IOCB_CMD_POLL")));
    }

    #[test]
    fn where_nobody_tells_of_contexts_they_are_refused() {
        assert_eq!(objections(&[ring_at(0x5000, 1), ring_at(0x8000, 1)], None, true).len(), 1);
        assert_eq!(objections(&[Area::new(0x5000, 0x6000, 3, AreaKind::Anonymous)], None, true), []);
    }

    #[test]
    fn what_waits_in_a_ring_is_read_also_around_its_end() {
        let mut ring = vec![0_u32; PAGE as usize / 4];
        let (room, head, tail) = (127, 125, 3);
        (ring[1], ring[2], ring[3]) = (room, head + room, tail);
        for (number, place) in (1..).zip([125, 126, 0, 1, 2]) {
            ring[8 + place * 8] = number;
        }
        let address = ring.as_ptr() as u64;
        let read = read(std::process::id() as i32, &AioContext { address, tail, ..context(0) }).unwrap();
        assert_eq!((read.head, read.requests), (head, 5));
        assert_eq!(read.events.iter().map(|event| event[0]).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn as_many_requests_are_asked_for_as_make_the_same_ring() {
        assert_eq!([made(1, 2), made(62, 2), made(63, 2), made(1, 64)], [127, 127, 255, 639]);
        let image = |pages, requests| {
            let mut area = ring_at(0x5000, pages);
            area.kind = AreaKind::AioRing(AioRing { requests, ..AioRing::default() });
            Image { processes: vec![Process { areas: vec![area], ..Process::default() }], ..Image::default() }
        };
        let fitted = |pages, requests, processors| {
            let mut image = image(pages, requests);
            fit(&mut image, processors).map(|()| of(&image.processes[0].areas[0]).unwrap().requests)
        };
        assert_eq!(fitted(1, 7, 2), Ok(7));
        let of_large = fitted(5, 10, 2).unwrap();
        assert_eq!(made(of_large, 2), 639, "it was made on a machine with 64 processors");
        assert!(fitted(1, 7, 64).unwrap_err().contains("64 processors"));
    }

    #[test]
    fn what_could_be_no_ring_is_told_apart() {
        let one = AioRing { requests: 5, head: 126, events: vec![[0; 4]; 126] };
        let area = ring_at(0x5000, 1);
        assert!(is_one(&area, &one));
        assert!(!is_one(&area, &AioRing { head: 127, ..one.clone() }));
        assert!(!is_one(&area, &AioRing { requests: 0, ..one.clone() }));
        assert!(!is_one(&area, &AioRing { events: vec![[0; 4]; 127], ..one }));
    }

    #[test]
    fn it_is_made_with_what_waits_in_it() {
        let mut area = ring_at(0x5000, 1);
        area.kind = AreaKind::AioRing(AioRing { requests: 5, head: 9, events: vec![[1, 2, 3, 4]] });
        area.protection = 1;
        let mut writer = Writer::new();
        make(&mut writer, Writer::MAKING, &Process { areas: vec![area], ..Process::default() });
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        assert!(text.contains("[5, 7f, 5000, 9, ") && text.contains("protecting memory"), "{text}");
    }
}
