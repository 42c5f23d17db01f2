//! Captures contexts of asynchronous input and output (io_setup(2)).

use crate::bpf::task_records::TaskRecords;
use crate::image::aio::EVENT;
use crate::image::{AioRing, Area, AreaKind};
use crate::stop::task_state::AioContext;
use pando_kernel::{CallError, Context, trace::foreign_memory};

/// Reads the rings of a process that stands still.
pub(crate) fn capture(outer: i32, told: Option<&TaskRecords>, areas: &mut [Area]) -> Result<(), CallError> {
    let contexts: Vec<_> = told.iter().flat_map(|told| told.contexts.iter().flatten()).collect();
    for area in areas {
        if let Some(context) = contexts.iter().find(|context| context.has(area)) {
            area.kind = AreaKind::AioRing(read(outer, context)?);
        }
    }
    Ok(())
}

pub(crate) fn read(outer: i32, context: &AioContext) -> Result<AioRing, CallError> {
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
