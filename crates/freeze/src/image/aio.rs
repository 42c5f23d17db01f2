//! Contexts of asynchronous input and output (io_setup(2)) of an image: what their rings must be like for a machine.

use crate::image::Image;
use crate::image::memory::{AioRing, Area, AreaKind};

/// Bytes of an event (`struct io_event`), and of what a ring begins with (`struct aio_ring` of fs/aio.c).
pub(crate) const EVENT: u64 = 32;

/// How many events an area has room for.
pub(crate) fn room(area: &Area) -> u32 {
    ((area.end - area.start) / EVENT - 1) as u32
}

pub(crate) fn of(area: &Area) -> Option<&AioRing> {
    if let AreaKind::AioRing(ring) = &area.kind { Some(ring) } else { None }
}

/// Whether a process of an image has one.
pub(crate) fn are_in(image: &Image) -> bool {
    image.processes.iter().flat_map(|process| &process.areas).any(|area| of(area).is_some())
}

/// Whether an area that was read can be a ring.
pub(crate) fn is_one(area: &Area, ring: &AioRing) -> bool {
    // As the kernel bounds them, and not much more.
    const MOST: u32 = 1 << 22;
    const LONGEST: u64 = 257 << 20;
    let fits = area.end - area.start <= LONGEST && ring.events.len() < room(area) as usize;
    fits && (1..=MOST).contains(&ring.requests) && ring.head < room(area)
}

/// Asks for as many requests as make rings of the same length on a machine that can have so many processors, by which
/// the kernel chooses that; the reason where none do.
pub(crate) fn fit(image: &mut Image, processors: u32) -> Result<(), String> {
    for area in image.processes.iter_mut().flat_map(|process| &mut process.areas) {
        let room = room(area);
        let AreaKind::AioRing(ring) = &mut area.kind else { continue };
        let most = (room - 2) / 2;
        let fitting = [ring.requests, most].into_iter().find(|requests| made(*requests, processors) == room);
        ring.requests = fitting.ok_or_else(|| {
            format!(
                "a process of it has a context of asynchronous input and output (io_setup) that has room for {room} events, and a machine that can have \
                 {processors} processors makes none as small; clone it on one that can have fewer"
            )
        })?;
    }
    Ok(())
}

/// How many events a ring has room for that is made for so many requests: all that fit the pages which those take that
/// there may be on each processor.
pub(crate) fn made(requests: u32, processors: u32) -> u32 {
    const PAGE: u64 = 4096;
    let events = u64::from(requests).max(u64::from(processors) * 4) * 2 + 2;
    let pages = ((events + 1) * EVENT).div_ceil(PAGE);
    (pages * PAGE / EVENT - 1) as u32
}
