//! Writing a script for the restorer: steps with names, and the data that they point at.

use crate::refusal::Refusal;
use pando_restorer::{EXACT, FORGIVE, Header, ONTO, PATIENT, SCRIPT, Special, Step};
use std::ffi::CString;
use std::fmt;

/// The steps of one task: the holder's staging, the maker's, a process's, a thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chapter(usize);

/// A script that is being written.
pub(crate) struct Writer {
    data: Vec<u8>,
    chapters: Vec<Vec<(String, Step)>>,
    /// How many steps of another script are counted before these.
    before: u64,
    /// What cannot be made.
    refused: Vec<Refusal>,
}

/// A script that is complete.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) bytes: Vec<u8>,
    labels: Vec<String>,
    steps: Vec<Step>,
    /// How many processes report when a clone is ready.
    pub(crate) reports: usize,
    /// How many descriptors a clone must be supplied with.
    pub(crate) supplied: usize,
}

/// A system call by its number: one that must succeed, unless it is said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call(u64);

impl From<i64> for Call {
    fn from(number: i64) -> Self {
        Self(number as u64)
    }
}

impl Call {
    /// One that may fail.
    pub(crate) fn forgiven(number: i64) -> Self {
        Self(number as u64 | FORGIVE)
    }

    /// One that fails until another process has come as far.
    pub(crate) fn patient(number: i64) -> Self {
        Self(number as u64 | PATIENT)
    }
}

/// Space before the data: the header, rounded up.
const HEAD: usize = 64;

impl Writer {
    /// The two chapters that every script has: [`Self::STAGING`] and [`Self::MAKING`].
    pub(crate) const STAGING: Chapter = Chapter(0);
    /// The maker's.
    pub(crate) const MAKING: Chapter = Chapter(1);

    pub(crate) fn new() -> Self {
        Self::after(0)
    }

    /// One whose steps are counted on from those of another script.
    pub(crate) fn after(before: u64) -> Self {
        Self { data: vec![0; HEAD], chapters: vec![Vec::new(), Vec::new()], before, refused: Vec::new() }
    }

    /// A new chapter, to be forked or made a thread of.
    pub(crate) fn chapter(&mut self) -> Chapter {
        self.chapters.push(Vec::new());
        Chapter(self.chapters.len() - 1)
    }

    /// Puts bytes into the script, at a multiple of `align`; the address that they will have.
    pub(crate) fn data(&mut self, bytes: &[u8], align: usize) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(align), 0);
        let address = self.next_address(1);
        self.data.extend_from_slice(bytes);
        address
    }

    /// Where the next data will lie.
    pub(crate) fn next_address(&self, align: usize) -> u64 {
        SCRIPT + self.data.len().next_multiple_of(align) as u64
    }

    /// Words, as the kernel reads them.
    pub(crate) fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.data(&bytes, 8)
    }

    /// A string that ends in NUL. What follows a NUL inside is cut off: /proc gives none.
    pub(crate) fn string(&mut self, text: &str) -> u64 {
        let bytes = text.as_bytes().split(|byte| *byte == 0).next().unwrap_or_default();
        let text = CString::new(bytes).unwrap_or_default();
        self.data(text.as_bytes_with_nul(), 1)
    }

    /// A system call that must succeed.
    pub(crate) fn call(&mut self, chapter: Chapter, label: impl Into<String>, number: i64, arguments: &[u64]) {
        self.push(chapter, label, number as u64, arguments, 0);
    }

    /// A system call that may fail.
    pub(crate) fn attempt(&mut self, chapter: Chapter, label: impl Into<String>, number: i64, arguments: &[u64]) {
        self.push(chapter, label, Call::forgiven(number).0, arguments, 0);
    }

    /// A system call that fails until another process has come as far.
    pub(crate) fn await_call(&mut self, chapter: Chapter, label: impl Into<String>, number: i64, arguments: &[u64]) {
        self.push(chapter, label, Call::patient(number).0, arguments, 0);
    }

    /// A system call that must give a value, which may be 0.
    pub(crate) fn exact(
        &mut self,
        chapter: Chapter,
        label: impl Into<String>,
        number: i64,
        arguments: &[u64],
        want: u64,
    ) {
        self.push(chapter, label, number as u64 | EXACT, arguments, want);
    }

    /// A system call that writes what is expected to a place of the script: its arguments, given that place.
    pub(crate) fn reading(
        &mut self,
        chapter: Chapter,
        label: &str,
        number: i64,
        arguments: impl FnOnce(u64) -> Vec<u64>,
        expected: &[u8],
    ) {
        let unlike: Vec<u8> = expected.iter().map(|byte| !byte).collect();
        let (place, wanted) = (self.data(&unlike, 8), self.data(expected, 8));
        self.call(chapter, label, number, &arguments(place));
        self.special(chapter, label, Special::Compare, &[place, wanted, expected.len() as u64]);
    }

    /// A system call whose descriptor becomes `slot`.
    pub(crate) fn open(
        &mut self,
        chapter: Chapter,
        label: impl Into<String>,
        call: impl Into<Call>,
        arguments: &[u64],
        slot: u64,
    ) {
        self.push(chapter, label, call.into().0 | ONTO, arguments, slot);
    }

    /// The opening of a path that an image names, whose descriptor becomes `slot`. No link of /proc leads from it to a
    /// descriptor (openat2(2), since Linux 5.6): those that are open here are not all the clone's own. What makes its
    /// opener wait does not.
    pub(crate) fn open_named(&mut self, chapter: Chapter, path: &str, flags: u64, slot: u64) {
        const PLACE: u64 = (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW) as u64;
        // It refuses what openat(2) passes over: flags that mean nothing, and all others beside O_PATH. None of these
        // makes anything.
        const OTHERS: u64 = (libc::O_ACCMODE
            | libc::O_APPEND
            | libc::O_ASYNC
            | libc::O_DIRECT
            | libc::O_DIRECTORY
            | libc::O_NOATIME
            | libc::O_NOCTTY
            | libc::O_NOFOLLOW
            | libc::O_SYNC) as u64;
        let is_place = flags & libc::O_PATH as u64 != 0;
        let known = if is_place { flags & PLACE } else { flags & OTHERS | libc::O_NONBLOCK as u64 };
        let at = self.string(path);
        let how = self.words(&[known | libc::O_CLOEXEC as u64, 0, libc::RESOLVE_NO_MAGICLINKS]);
        let arguments = [libc::AT_FDCWD as i64 as u64, at, how, 24];
        self.open(chapter, format!("opening {path}"), libc::SYS_openat2, &arguments, slot);
    }

    /// A special step. Those that start a task take its chapter in the place of its first step; see [`Self::finish`].
    pub(crate) fn special(&mut self, chapter: Chapter, label: impl Into<String>, special: Special, arguments: &[u64]) {
        self.push(chapter, label, special as u64, arguments, 0);
    }

    /// Forks a process.
    pub(crate) fn fork(&mut self, chapter: Chapter, pid: i32, child: Chapter) {
        self.special(chapter, format!("forking process {pid}"), Special::Fork, &[pid as u64, child.0 as u64]);
    }

    /// Makes a thread: its tid, thread pointer, clear-tid address and the end of its stack.
    pub(crate) fn thread(&mut self, chapter: Chapter, label: impl Into<String>, thread: [u64; 4], own: Chapter) {
        let [tid, pointer, clear, end] = thread;
        self.special(chapter, label, Special::Thread, &[tid, pointer, clear, end, own.0 as u64]);
    }

    fn push(&mut self, chapter: Chapter, label: impl Into<String>, what: u64, given: &[u64], want: u64) {
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        self.chapters[chapter.0].push((label.into(), Step { what, arguments, want }));
    }

    /// How many steps a chapter has so far.
    pub(crate) fn length(&self, chapter: Chapter) -> usize {
        self.chapters[chapter.0].len()
    }

    /// The steps of a chapter so far, from one on.
    pub(crate) fn steps_from(&self, chapter: Chapter, first: usize) -> impl Iterator<Item = &Step> {
        self.chapters[chapter.0].iter().skip(first).map(|(_, step)| step)
    }

    /// Notes that something cannot be made.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.refused.push(refusal);
    }

    /// What cannot be made.
    pub(crate) fn refused(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refused)
    }

    /// The maker's steps from one on, and those of all that it forks.
    pub(crate) fn made_from(&self, first: usize) -> impl Iterator<Item = &Step> {
        let making = self.chapters[Self::MAKING.0].iter().skip(first);
        making.chain(self.chapters[Self::MAKING.0 + 1..].iter().flatten()).map(|(_, step)| step)
    }

    /// Puts everything in its place.
    pub(crate) fn finish(mut self, maker: i32, free: u64, reports: usize, supplied: usize) -> Script {
        let mut firsts = Vec::new();
        let mut first = 0_u64;
        for chapter in &self.chapters {
            firsts.push((first, chapter.len() as u64));
            first += chapter.len() as u64;
        }
        let (mut labels, mut steps) = (Vec::new(), Vec::new());
        for (label, mut step) in self.chapters.into_iter().flatten() {
            let place = match Special::from_number(step.what) {
                Some(Special::Fork) => Some(1),
                Some(Special::Thread) => Some(4),
                _ => None,
            };
            if let Some(place) = place {
                let (first, count) = firsts[step.arguments[place] as usize];
                step.arguments[place] = first;
                step.arguments[place + 1] = count;
            }
            labels.push(label);
            steps.push(step);
        }
        self.data.resize(self.data.len().next_multiple_of(64), 0);
        let header = Header {
            steps: self.data.len() as u64,
            count: steps.len() as u64,
            staging: firsts[0].1,
            making: firsts[1].1,
            maker: maker as u64,
            free,
            before: self.before,
        };
        let words =
            [header.steps, header.count, header.staging, header.making, header.maker, header.free, header.before];
        for (place, word) in words.into_iter().enumerate() {
            self.data[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        for step in &steps {
            for word in [step.what].into_iter().chain(step.arguments).chain([step.want]) {
                self.data.extend_from_slice(&word.to_le_bytes());
            }
        }
        Script { bytes: self.data, labels, steps, reports, supplied }
    }
}

impl Script {
    /// How many steps it has.
    pub(crate) fn length(&self) -> u64 {
        self.steps.len() as u64
    }

    /// What a step does, by the number that a report gives.
    pub(crate) fn label(&self, step: u32) -> &str {
        self.labels.get(step as usize).map_or("preparing", String::as_str)
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl Script {
    /// Panics where a task would take steps that are none, or a step looks beyond the script.
    pub(crate) fn check_bounds(&self) {
        let (count, end) = (self.length(), SCRIPT + self.bytes.len() as u64);
        for step in &self.steps {
            let task = match Special::from_number(step.what) {
                Some(Special::Fork) => Some((step.arguments[1], step.arguments[2])),
                Some(Special::Thread) => Some((step.arguments[4], step.arguments[5])),
                _ => None,
            };
            assert!(task.is_none_or(|(first, steps)| first.checked_add(steps).is_some_and(|last| last <= count)));
            let beyond = |argument: &u64| (end + 1..pando_restorer::PARKING).contains(argument);
            assert!(!step.arguments.iter().any(beyond), "{step:x?} with a script that ends at {end:#x}");
        }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (label, step)) in self.labels.iter().zip(&self.steps).enumerate() {
            writeln!(out, "{number} {label}: {:#x} {:x?} {:#x}", step.what, step.arguments, step.want)?;
        }
        Ok(())
    }
}

/// The working directory, as openat(2) wants it.
pub(crate) const AT_FDCWD: u64 = libc::AT_FDCWD as i64 as u64;

/// A descriptor that the holder uses for a moment; it has a handful of others.
pub(crate) const SLOT: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_follow_one_another_and_forks_find_theirs() {
        let mut writer = Writer::new();
        let child = writer.chapter();
        writer.fork(Writer::MAKING, 7, child);
        writer.call(child, "one", 1, &[]);
        writer.call(child, "two", 2, &[]);
        writer.call(Writer::STAGING, "staging", 9, &[]);
        let script = writer.finish(99, 3, 1, 0);
        assert_eq!(script.label(0), "staging");
        assert_eq!(script.steps[1].arguments[..3], [7, 2, 2]);
        assert_eq!(script.label(3), "two");
        assert_eq!(size_of::<Step>() * script.steps.len(), script.bytes.len() - word(&script.bytes, 0) as usize);
        assert_eq!((word(&script.bytes, 4), word(&script.bytes, 5)), (99, 3));
    }

    fn word(bytes: &[u8], place: usize) -> u64 {
        u64::from_le_bytes(bytes[place * 8..place * 8 + 8].try_into().unwrap())
    }

    #[test]
    fn data_lies_where_it_was_said_to() {
        let mut writer = Writer::new();
        writer.string("a");
        let address = writer.data(b"frame", 64);
        assert_eq!(address % 64, 0);
        let script = writer.finish(1, 1, 0, 0);
        let offset = (address - SCRIPT) as usize;
        assert_eq!(&script.bytes[offset..offset + 5], b"frame");
    }
}
