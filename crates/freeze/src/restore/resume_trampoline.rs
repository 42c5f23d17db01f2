//! Where the threads of a process leave the restorer: pages of the script with their signal frames and a few
//! [instructions](pando_restorer::trampoline), laid into the process's own memory. All else that the restorer has there
//! goes as the first thread leaves, and with it the page tables that it took.
//!
//! They lie right above the stack, whose last pages are always used: so no further page table is needed. A program that
//! looks at its mappings finds a file of the script's name there, which can be read and executed.

use crate::image::{Area, Process, Thread};
use crate::restore::script::{Chapter, Writer};
use crate::restore::signal_frame;
use crate::trampoline::{self, room};
use pando_restorer::trampoline::CODE;

const PAGE: usize = 4096;

/// A frame lies at a multiple of this, for its vector state.
const ALIGNMENT: usize = 64;

/// The trampoline of a process: where its code is, and the frame of each thread. A process without has its frames in
/// the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResumeTrampoline {
    code: u64,
    frames: Vec<u64>,
}

impl ResumeTrampoline {
    /// The frame of a thread, and the code.
    pub(crate) fn of(&self, thread: usize) -> Option<(u64, u64)> {
        self.frames.get(thread).map(|frame| (*frame, self.code))
    }
}

/// Lays it into a process whose memory is in its place.
pub(crate) fn lay(writer: &mut Writer, chapter: Chapter, process: &Process) -> ResumeTrampoline {
    let offsets = offsets(process);
    let length = offsets.last().copied().unwrap_or_default().next_multiple_of(PAGE);
    let Some(at) = place(&process.areas, length as u64) else { return ResumeTrampoline::default() };
    let mut bytes = CODE.to_vec();
    let mut frames = Vec::new();
    for (thread, offset) in process.threads.iter().zip(offsets) {
        let frame = at + offset as u64;
        let goes_on = trampoline::lay(thread, frame - trampoline::LENGTH as u64);
        bytes.resize(offset - if goes_on.is_some() { trampoline::LENGTH } else { 0 }, 0);
        let (instructions, registers) = goes_on.unwrap_or_else(|| (Vec::new(), thread.registers.clone()));
        bytes.extend(instructions);
        bytes.extend(signal_frame::build(thread, &registers, frame));
        frames.push(frame);
    }
    bytes.resize(length, 0);
    let from = writer.data(&bytes, PAGE);
    let length = length as u64;
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    writer.exact(chapter, "laying the trampoline", libc::SYS_mremap, &[from, length, length, fixed, at], at);
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    writer.call(chapter, "protecting the trampoline", libc::SYS_mprotect, &[at, length, protection]);
    ResumeTrampoline { code: at, frames }
}

/// Where the frames lie behind the code, one after the other, each with room before it for what its thread [goes
/// on](crate::trampoline) by, if it needs any; last, where the last one ends.
fn offsets(process: &Process) -> Vec<usize> {
    let mut end = CODE.len();
    let mut offsets: Vec<usize> = Vec::new();
    for thread in &process.threads {
        let offset = (end + room_before(thread)).next_multiple_of(ALIGNMENT);
        offsets.push(offset);
        end = offset + signal_frame::build(thread, &thread.registers, 0).len();
    }
    offsets.push(end);
    offsets
}

fn room_before(thread: &Thread) -> usize {
    trampoline::lay(thread, 0).map_or(0, |_| trampoline::LENGTH)
}

fn place(areas: &[Area], length: u64) -> Option<u64> {
    let room = room(areas)?;
    (room.start + length <= room.end).then_some(room.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::AreaKind;
    use crate::image::memory::USER_END;

    fn area(start: u64, end: u64, grows: bool) -> Area {
        Area { grows, ..Area::new(start, end, 3, AreaKind::Anonymous) }
    }

    #[test]
    fn it_lies_above_the_stack_where_there_is_room() {
        let stack = area(0x7000_0000, 0x7002_0000, true);
        let with = |areas: &[Area]| place(&[&[area(0x1000, 0x2000, false), stack.clone()], areas].concat(), 0x2000);
        assert_eq!(with(&[]), Some(0x7002_0000));
        assert_eq!(with(&[area(0x7002_2000, 0x7003_0000, false)]), Some(0x7002_0000));
        assert_eq!(with(&[area(0x7002_1000, 0x7003_0000, false)]), None);
        assert_eq!(place(&[area(0x1000, 0x2000, false)], 0x1000), None);
        assert_eq!(place(&[area(USER_END - 0x1000, USER_END, true)], 0x1000), None);
    }

    #[test]
    fn every_thread_has_a_frame_of_its_own_in_it() {
        let thread = |tid| Thread { tid, registers: vec![0; 25], extended: vec![0; 2696], ..Thread::default() };
        let threads = vec![thread(7), thread(8), thread(9)];
        let stack = area(0x7000_0000, 0x7002_0000, true);
        let process = Process { pid: 7, threads, areas: vec![stack], ..Process::default() };
        let mut writer = Writer::new();
        let trampoline = lay(&mut writer, Writer::MAKING, &process);
        let frames: Vec<_> = (0..3).map(|number| trampoline.of(number).unwrap().0).collect();
        assert!(frames.is_sorted() && frames.iter().all(|frame| frame % ALIGNMENT as u64 == 0));
        assert_eq!((trampoline.code, trampoline.of(3)), (0x7002_0000, None));
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        assert!(text.contains("laying the trampoline") && text.contains("protecting the trampoline"), "{text}");
    }

    #[test]
    fn what_a_thread_goes_on_by_lies_before_its_frame() {
        let mut registers = vec![0; 25];
        registers[13] = libc::SYS_nanosleep as u64;
        let thread = Thread { tid: 7, registers, extended: vec![0; 2696], left: Some(5), ..Thread::default() };
        let stack = area(0x7000_0000, 0x7002_0000, true);
        let process = Process { pid: 7, threads: vec![thread], areas: vec![stack], ..Process::default() };
        let trampoline = lay(&mut Writer::new(), Writer::MAKING, &process);
        let (frame, code) = trampoline.of(0).unwrap();
        assert!(frame - code >= (CODE.len() + trampoline::LENGTH) as u64 && frame % ALIGNMENT as u64 == 0);
    }
}
