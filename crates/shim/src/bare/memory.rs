//! Memory: what is mapped for a launch, and what a process that only waits from then on gives back. A guest keeps two
//! of those for as long as it runs.

use super::{call, compact, number};
use core::arch::asm;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;

const PAGE: usize = 4096;

/// Where mappings are requested for: in the two megabytes that the program itself lies in, whose page table is there
/// anyway. Elsewhere they cost two more. What is taken already the kernel puts where it likes. The stacks lie above:
/// see [`compact`].
const NEAR: [usize; 3] = [0x28_0000, 0x30_0000, 0x38_0000];

/// The same for what a program is executed with, arguments and environment: a process that executes it in the init's
/// memory leaves them there.
pub(super) const VECTORS: [usize; 2] = [0x24_0000, 0x26_0000];

/// Bytes that stay mapped for as long as the process lives, or is not [`alone`].
#[derive(Clone, Copy)]
pub(crate) struct Mapped(&'static [u8]);

impl Mapped {
    /// The bytes.
    pub(crate) fn bytes(self) -> &'static [u8] {
        self.0
    }
}

/// Maps a file, read-only.
pub(crate) fn map(file: &OwnedFd, length: usize) -> Result<Mapped, Errno> {
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    if length == 0 {
        return Ok(Mapped(&[]));
    }
    // SAFETY: a new mapping at a place of the kernel's choice. The file is a sealed memory file, so it cannot shrink.
    unsafe {
        let at = call(number::MMAP, [NEAR[0], length, PROT_READ, MAP_PRIVATE, file.as_raw_fd() as usize, 0])?;
        Ok(Mapped(core::slice::from_raw_parts(at as *const u8, length)))
    }
}

/// Room for so many bytes.
pub(crate) struct Room(&'static mut [u8]);

impl Room {
    /// One to be filled once. Its first page is there at once.
    pub(crate) fn new(length: usize) -> Result<Self, Errno> {
        let room = Self::at(NEAR[1], length)?;
        if let Some(first) = room.0.first_mut() {
            // SAFETY: a byte of the room. Volatile, so that it is written although it says what was there.
            unsafe { core::ptr::write_volatile(first, 0) };
        }
        Ok(room)
    }

    /// One that is a stack.
    pub(crate) fn for_stack() -> Result<Self, Errno> {
        /// Deeper than any step goes.
        const DEEPEST: usize = 64 * 1024;
        Self::at(NEAR[2], DEEPEST)
    }

    /// The init's stack.
    pub(crate) fn for_init() -> Result<Self, Errno> {
        Self::at(compact::TRUNK.start, compact::TRUNK.end - compact::TRUNK.start)
    }

    fn at(place: usize, length: usize) -> Result<Self, Errno> {
        const READ_WRITE: usize = 3;
        const PRIVATE_ANONYMOUS: usize = 0x22;
        // SAFETY: a new mapping at a place of the kernel's choice, of zeros, that nothing else knows.
        let room = unsafe {
            let at = call(number::MMAP, [place, length, READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0])?;
            core::slice::from_raw_parts_mut(at as *mut u8, length)
        };
        Ok(Self(room))
    }

    /// What is to be filled.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    /// What it was filled with.
    pub(crate) fn filled(self) -> Mapped {
        Mapped(self.0)
    }
}

/// Goes on with `act` for good, without what was mapped, and without what earlier calls have used of the stack.
pub(crate) fn alone(
    mapped: impl IntoIterator<Item = Mapped>,
    act: fn(Option<i32>, bool) -> !,
    command: Option<i32>,
    heard: bool,
) -> ! {
    for Mapped(bytes) in mapped {
        // SAFETY: mapped by this file, and nothing refers to it any more: the caller does not go on, and what `act` is
        // given are numbers.
        let _ = unsafe { call(number::MUNMAP, [bytes.as_ptr() as usize, bytes.len(), 0, 0, 0, 0]) };
    }
    let [first, ..] = VECTORS;
    // SAFETY: between the program and the init's stack there is nothing but what was requested for here, and of that
    // the same holds.
    let _ = unsafe { call(number::MUNMAP, [first, compact::TRUNK.start - first, 0, 0, 0, 0]) };
    compact::from_the_top(act, command, heard)
}

/// Gives back what earlier, deeper calls have used of the stack. The kernel puts zeros there when it is needed again.
pub(crate) fn give_back_stack() {
    const MADV_DONTNEED: usize = 4;
    /// Deeper than any call of this program goes, and less than the kernel keeps free below a stack.
    const DEEPEST: usize = 128 * 1024;
    let stack: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    // A function that calls none may use 128 bytes below the pointer.
    let end = (stack - 128) & !(PAGE - 1);
    // SAFETY: below the stack pointer and what the psABI lets leaf functions have there, nothing is alive. What is not
    // mapped there is passed over.
    let _ = unsafe { call(number::MADVISE, [end - DEEPEST, DEEPEST, MADV_DONTNEED, 0, 0, 0]) };
}
