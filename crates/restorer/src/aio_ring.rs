//! A context of asynchronous input and output (io_setup(2)), made as one was: a ring of events in the process's memory,
//! into which the kernel puts them and out of which the program takes them.
//!
//! Where it puts the next one, and for how many more requests there is room, the kernel keeps to itself. Both become
//! what they were by requests that do nothing: first as many as lead to where the program takes the next event, each of
//! them taken at once; then one for each event that waits there.

use crate::bare::{self, EAGAIN, Errno, call, number, plain};
use pando_restorer::RINGS;

/// `struct io_event` (linux/aio_abi.h).
pub(crate) type Event = [u64; 4];

/// What a context of the frozen process was like.
pub(crate) struct Was<'a> {
    /// So many requests it was made for.
    pub(crate) requests: u64,
    /// Events that its ring has room for.
    pub(crate) room: u64,
    /// Where its ring lay, which is its number.
    pub(crate) place: u64,
    /// Where in the ring the next event is taken.
    pub(crate) head: u64,
    /// The events that wait there.
    pub(crate) events: &'a [Event],
}

const EINVAL: Errno = 22;

/// Words of a ring's head (`struct aio_ring` of fs/aio.c), behind which the events lie.
const ROOM: u64 = 1;
const HEAD: u64 = 2;
const TAIL: u64 = 3;
const HEAD_LENGTH: u64 = 32;

/// Makes it, at its place.
pub(crate) fn make(was: &Was<'_>) -> Result<(), Errno> {
    /// Room for requests is handed out by processor: who is moved to another one meanwhile may leave some behind that a
    /// ring that was full needs.
    const TRIES: usize = 64;
    for _ in 0..TRIES {
        let ring = Ring::new(was.requests)?;
        match ring.fill(was) {
            Err(EAGAIN) => ring.destroy()?,
            filled => return filled.and_then(|()| ring.lie(was)),
        }
    }
    Err(EAGAIN)
}

/// The ring of a new context.
struct Ring {
    at: u64,
}

impl Ring {
    fn new(requests: u64) -> Result<Self, Errno> {
        let mut at = 0_u64;
        // SAFETY: the kernel writes the number, eight bytes, and maps the ring where nothing is.
        unsafe { call(number::IO_SETUP, [requests, (&raw mut at) as u64, 0, 0, 0, 0]) }?;
        Ok(Self { at })
    }

    fn destroy(self) -> Result<(), Errno> {
        // SAFETY: the kernel unmaps the ring, which goes with this value.
        unsafe { call(number::IO_DESTROY, [self.at, 0, 0, 0, 0, 0]) }.map(drop)
    }

    fn word(&self, number: u64) -> u64 {
        // SAFETY: the ring is mapped for as long as this value is there, and the word lies in its head. The kernel
        // writes it, too, but only in calls.
        u64::from(unsafe { ((self.at + number * 4) as *const u32).read_volatile() })
    }

    /// Says where the next event is taken.
    fn take_at(&self, place: u64) {
        // SAFETY: as above.
        unsafe { ((self.at + HEAD * 4) as *mut u32).write_volatile(place as u32) }
    }

    fn put(&self, place: u64, event: Event) {
        // SAFETY: as above; places are less than what the ring has room for.
        unsafe { ((self.at + HEAD_LENGTH + place * size_of::<Event>() as u64) as *mut Event).write_volatile(event) }
    }

    fn fill(&self, was: &Was<'_>) -> Result<(), Errno> {
        // A machine with other processors may make it of another length.
        if self.word(ROOM) != was.room {
            return Err(EINVAL);
        }
        let waiting = was.events.len() as u64;
        let [reader, writer] = bare::pipe()?;
        let passed = self.pass(reader, was.head, true).and_then(|()| self.pass(reader, waiting, false));
        plain(number::CLOSE, [reader, 0, 0])?;
        plain(number::CLOSE, [writer, 0, 0])?;
        passed?;
        if self.word(TAIL) != (was.head + waiting) % was.room {
            return Err(EINVAL);
        }
        for (place, event) in (was.head..).zip(was.events) {
            self.put(place % was.room, *event);
        }
        Ok(())
    }

    /// Has some requests made and done: to read nothing from a pipe.
    fn pass(&self, pipe: u64, count: u64, are_taken: bool) -> Result<(), Errno> {
        const AT_ONCE: usize = 64;
        let mut request = Request { file: pipe as u32, ..Request::default() };
        let requests = [&raw mut request; AT_ONCE];
        let mut left = count;
        while left > 0 {
            let portion = left.min(AT_ONCE as u64);
            // SAFETY: the kernel reads the pointers and what they point at, and writes a word to that. Nothing is read
            // into memory.
            let passed = unsafe { call(number::IO_SUBMIT, [self.at, portion, requests.as_ptr() as u64, 0, 0, 0]) }?;
            left -= passed;
            if are_taken {
                self.take_at(self.word(TAIL));
            }
        }
        Ok(())
    }

    /// Moves the ring to its place, by which the kernel knows the context from then on. It may lie across that already,
    /// so that it goes elsewhere first.
    fn lie(self, was: &Was<'_>) -> Result<(), Errno> {
        const MAY_MOVE_FIXED: u64 = 3;
        let length = HEAD_LENGTH + was.room * size_of::<Event>() as u64;
        let mut at = self.at;
        for place in [RINGS, was.place] {
            // SAFETY: the ring is this context's own and nothing refers into it; there is nothing at either place.
            at = unsafe { call(number::MREMAP, [at, length, length, MAY_MOVE_FIXED, place, 0]) }?;
        }
        Ok(())
    }
}

/// `struct iocb` (linux/aio_abi.h). All zeros but for the file: IOCB_CMD_PREAD of no bytes.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    read_flags: u32,
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}
