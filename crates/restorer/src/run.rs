//! Takes the steps of a script.

use crate::aio_ring::{self, Was};
use crate::bare::{self, Errno, NewThread, call, number};
use crate::gate;
use crate::handover;
use core::ops::Range;
use pando_restorer::{
    Answer, EXACT, FORGIVE, Header, NEXT_NUMBER, ONTO, PATIENT, REGION, REGION_LENGTH, Report, SCRIPT, STACK_LENGTH,
    Special, Step,
};

/// A script, mapped for good.
pub(crate) struct Script {
    header: &'static Header,
    steps: &'static [Step],
}

/// The step that failed, and with which error.
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) step: u32,
}

impl Failure {
    /// Of something that is no step.
    pub(crate) fn of_call(errno: Errno) -> Self {
        Self { errno, step: u32::MAX }
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer { errno: self.errno, step: self.step }
    }
}

impl Script {
    /// The script that lies at its place.
    pub(crate) fn mapped(length: u64) -> Option<Self> {
        if length < size_of::<Header>() as u64 {
            return None;
        }
        // SAFETY: the mapping is page-aligned, at least this long, and never unmapped; any bytes are a header.
        let header = unsafe { &*(SCRIPT as *const Header) };
        let bytes = header.count.checked_mul(size_of::<Step>() as u64)?;
        if header.steps % 8 != 0 || header.steps.checked_add(bytes)? > length {
            return None;
        }
        // SAFETY: as above; any bytes are steps, and the array is inside the mapping.
        let steps =
            unsafe { core::slice::from_raw_parts((SCRIPT + header.steps) as *const Step, header.count as usize) };
        Some(Self { header, steps })
    }

    pub(crate) fn header(&self) -> &Header {
        self.header
    }

    pub(crate) fn staging(&self) -> Range<u64> {
        0..self.header.staging
    }

    pub(crate) fn making(&self) -> Range<u64> {
        self.header.staging..self.header.staging.saturating_add(self.header.making)
    }
}

/// Takes steps in order, up to one that fails. Steps that resume or end the process do not return.
pub(crate) fn steps(script: &Script, range: Range<u64>) -> Result<(), Failure> {
    for number in range {
        let failed = |errno| Failure { errno, step: script.header.before.saturating_add(number) as u32 };
        let step = script.steps.get(number as usize).ok_or(failed(EINVAL))?;
        take(script, step).map_err(failed)?;
    }
    Ok(())
}

const EINVAL: Errno = 22;
const EPERM: Errno = 1;
const FLAGS: u64 = FORGIVE | ONTO | PATIENT | EXACT;

fn take(script: &Script, step: &Step) -> Result<(), Errno> {
    let a = step.arguments;
    match Special::from_number(step.what) {
        None => system_call(step),
        Some(Special::Fork) => {
            if bare::fork(a[0] as i32)? {
                // As deep as processes lie below one another, no stack is: each begins its own anew.
                bare::begin_stack(forked, a[1], a[2]);
            }
            Ok(())
        }
        Some(Special::Thread) => begin_thread(step),
        Some(Special::Gate) => {
            gate::pass(script.header.free, a[0], a[1], a[2] != 0);
            Ok(())
        }
        Some(Special::Gather) => {
            gate::gather(a[0]);
            Ok(())
        }
        Some(Special::Resume) => resume(a),
        Some(Special::Pipe) => {
            let [read, write] = bare::pipe()?;
            bare::move_descriptor(read, a[0])?;
            bare::move_descriptor(write, a[1])
        }
        Some(Special::Pair) => {
            let [one, other] = bare::socket_pair(a[2])?;
            bare::move_descriptor(one, a[0])?;
            bare::move_descriptor(other, a[1])
        }
        Some(Special::Hand) => handover::give(a[0], a[1]..a[2]),
        Some(Special::Take) => handover::take(a[0]),
        Some(Special::AioRing) => {
            let [requests, room, place, head, events, count] = a;
            // SAFETY: the freezer put so many events into the script, which stays mapped.
            let events = unsafe { core::slice::from_raw_parts(events as *const aio_ring::Event, count as usize) };
            aio_ring::make(&Was { requests, room, place, head, events })
        }
        Some(Special::Compare) => compare(a[0], a[1], a[2]),
        Some(Special::Stop) => {
            const SIGSTOP: u64 = 19;
            let me = bare::plain(number::GETPID, [0; 3])?;
            bare::plain(number::KILL, [me, SIGSTOP, 0])?;
            gate::let_pass(a[0]);
            Ok(())
        }
        Some(Special::Exit) => {
            if a[1] != 0 {
                let me = bare::plain(number::GETPID, [0; 3])?;
                bare::plain(number::KILL, [me, a[1], 0])?;
            }
            bare::exit(a[0])
        }
    }
}

fn begin_thread(step: &Step) -> Result<(), Errno> {
    let a = step.arguments;
    let new = NewThread {
        tid: a[0] as i32,
        chooses: a[0] & NEXT_NUMBER == 0,
        pointer: a[1],
        clear: a[2],
        stack: a[3] - STACK_LENGTH,
        stack_length: STACK_LENGTH,
    };
    // The new thread finds its steps in the script, by the step that made it: nothing of this stack need outlive the
    // call.
    bare::thread(&new, thread, core::ptr::from_ref(step) as usize)
}

fn resume([frame, trampoline, stack, length, ..]: [u64; 6]) -> ! {
    let (gone, passed) = match (stack, trampoline) {
        (0, 0) => (bare::process_stack(), None),
        (0, _) => ((REGION, REGION_LENGTH), None),
        _ => ((stack, length), Some(gate::passed())),
    };
    // SAFETY: the freezer built the frame and the trampoline, which stay mapped; the stack is this thread's own. A
    // first thread comes here when all others have left the region.
    unsafe { bare::resume(frame, trampoline, gone, passed) }
}

/// Fails where what a call has written is not what was expected.
fn compare(written: u64, expected: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: the freezer gives places of this length in the script, which stays mapped; nobody writes to them now, the
    // call before this step has.
    let bytes = |at: u64| unsafe { core::slice::from_raw_parts(at as *const u8, length as usize) };
    if bytes(written) == bytes(expected) { Ok(()) } else { Err(EPERM) }
}

fn system_call(step: &Step) -> Result<(), Errno> {
    const MOMENT_US: u64 = 100;
    const MOMENTS: u32 = 50_000;
    let number = step.what & !FLAGS;
    let moments = if step.what & PATIENT != 0 { MOMENTS } else { 1 };
    let mut outcome = Err(EINVAL);
    for _ in 0..moments {
        // SAFETY: scripts come from the freezer alone, over the holder's socket, as sealed memory. Its steps name
        // memory of the script, of the staging area and of the process being restored, none of which this program holds
        // references into but for the script, which no step unmaps.
        outcome = unsafe { call(number, step.arguments) };
        if outcome.is_ok() || step.what & PATIENT == 0 {
            break;
        }
        bare::sleep(MOMENT_US);
    }
    match outcome {
        Ok(fd) if step.what & ONTO != 0 => bare::move_descriptor(fd, step.want),
        Ok(result) if result == step.want || step.what & FORGIVE != 0 => Ok(()),
        Ok(_) if step.want == 0 && step.what & EXACT == 0 => Ok(()),
        Ok(_) => Err(EINVAL),
        Err(_) if step.what & FORGIVE != 0 => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A new process's steps. Whatever fails is reported, and ends it.
pub(crate) fn process(script: &Script, range: Range<u64>) -> ! {
    let failure = match steps(script, range) {
        Ok(()) => Failure::of_call(EINVAL),
        Err(failure) => failure,
    };
    let report = Report { errno: failure.errno, step: failure.step };
    let _ = bare::write(script.header.free, &report.bytes());
    bare::exit(1)
}

extern "C" fn thread(step: usize) -> ! {
    // SAFETY: `take` passed a step of the script.
    let step = unsafe { &*(step as *const Step) };
    let [.., first, count] = step.arguments;
    forked(first, count)
}

/// A task that has nothing yet but its steps: it finds the script for itself.
extern "C" fn forked(first: u64, count: u64) -> ! {
    match Script::mapped(u64::MAX) {
        Some(script) => process(&script, first..first.saturating_add(count)),
        None => bare::exit(1),
    }
}
