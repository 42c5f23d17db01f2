//! What is known of a process or a thread that stands still, whoever reports it: the iterator in the kernel, or the
//! task itself under ptrace(2).

use crate::image::aio::room;
use crate::image::{Area, AreaKind, ByHost};
use crate::stop::interrupted::Interrupted;

/// What a thread is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfThread {
    /// Where the kernel writes 0 when it ends.
    pub(crate) clear: u64,
    /// The stack for signal handlers: address, flags, length.
    pub(crate) signal_stack: [u64; 3],
    /// The signal that it gets when its parent ends.
    pub(crate) parent_death: i32,
    /// Nanoseconds by which its sleeps may be late.
    pub(crate) slack: u64,
    pub(crate) secure_bits: u64,
    /// What personality(2) says of it.
    pub(crate) personality: u32,
    /// The call that it is in, if the kernel would go on with that.
    pub(crate) interrupted: Option<Interrupted>,
}

/// What its process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfProcess {
    /// Signals whose action is [set](is_set), and that: a `struct sigaction` of the kernel.
    pub(crate) actions: Vec<(i32, [u64; 4])>,
    /// Where its heap ends.
    pub(crate) heap_end: u64,
    pub(crate) subreaper: bool,
    pub(crate) dumpable: bool,
    pub(crate) by_host: ByHost,
    /// What it has registered for by membarrier(2), as that tells of it.
    pub(crate) barriers: u32,
}

/// Whether the action (handler, flags, restorer, mask) of a signal is another than that of a process that has just
/// begun. What is done by default has flags of consequence for SIGCHLD alone.
pub(crate) fn is_set((signal, [handler, flags, ..]): (i32, [u64; 4])) -> bool {
    handler != 0 || signal == libc::SIGCHLD && flags != 0
}

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
    pub(crate) fn has(&self, area: &Area) -> bool {
        let is_one = matches!(area.kind, AreaKind::AioRing(_)) && area.protection & libc::PROT_READ as u32 != 0;
        is_one && area.start == self.address && room(area) == self.room
    }
}

/// What is told of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsupportedState {
    /// As the program numbers them.
    pub(crate) bits: u64,
    /// In how many Landlock domains it is, one around the other, as far as anybody knows.
    pub(crate) layers: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::aio::read;
    use crate::image::aio::{fit, is_one, made, of};
    use crate::image::{AioRing, Image, Process};
    use crate::precheck::aio::objections;
    use crate::restore::aio::make;
    use crate::restore::script::Writer;

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
