//! The steps of each process of a clone, from its fork to its first thread's return into the frozen program.

use crate::image::{AreaKind, Image, Process, Thread, memory, user_turns};
use crate::restore::identity::Inherited;
use crate::restore::lineage::Family;
use crate::restore::own_files::{open_pidfds, open_proc_files};
use crate::restore::process_groups::Groups;
use crate::restore::resume_trampoline::{self, ResumeTrampoline};
use crate::restore::script::{Chapter, Writer};
use crate::restore::slots::Slots;
use crate::restore::staging::{self, Stage};
use crate::restore::{
    aio, contents, control_groups, epoll, leases, memory_rules, namespaces, process_groups, sysv, terminals,
    thread_script, user_spaces,
};
use pando_restorer::{NEXT_NUMBER, PARKING, REGION, REGION_LENGTH, STACK_LENGTH, STACKS, Special, thread_stack};
use std::collections::HashMap;
use std::ops::Range;

/// What the steps of all processes are made from.
pub(crate) struct Ground<'a> {
    pub(crate) image: &'a Image,
    pub(crate) family: &'a Family,
    /// What each birth and all below it have of the holder's memory.
    pub(crate) spans: Spans,
    pub(crate) groups: Groups,
    pub(crate) stages: &'a [Stage],
    pub(crate) slots: Slots,
    pub(crate) executables: &'a [String],
    /// The holder's own mappings of the kernel: name, start, length.
    pub(crate) kernel: &'a [(String, u64, u64)],
    /// Whether one call moves several areas (Linux 6.17).
    pub(crate) moves_many: bool,
    /// Whether timers can be made with a number (Linux 6.15).
    pub(crate) ids_chosen: bool,
    /// What each process adds to epoll instances.
    pub(crate) watches: &'a HashMap<i32, Vec<epoll::Share<'a>>>,
    /// What whoever takes the steps has already of what threads were.
    pub(crate) inherited: Inherited<'a>,
}

/// Which ranges of the holder's memory births have, all below them included. What lies together is one range, so that
/// each is put together from a few.
pub(crate) struct Spans(HashMap<usize, Vec<Range<u64>>>);

impl Spans {
    pub(crate) fn of(family: &Family, stages: &[Stage]) -> Self {
        let mut spans: HashMap<usize, Vec<Range<u64>>> = HashMap::new();
        for root in family.roots.iter().chain(&family.first) {
            // Those below come first.
            for (place, _) in family.all_of(*root).into_iter().rev() {
                let birth = family.birth(place);
                let own = birth.process.into_iter().flat_map(|index| &stages[index].spans);
                let below = birth.early.iter().chain(&birth.late).flat_map(|child| &spans[child]);
                let all = joined(&own.chain(below).collect::<Vec<_>>());
                spans.insert(place, all);
            }
        }
        Self(spans)
    }

    fn of_all(&self, place: usize) -> &[Range<u64>] {
        self.0.get(&place).map_or(&[], Vec::as_slice)
    }
}

/// Since Linux 6.13.
const MADV_GUARD_INSTALL: u64 = 102;

/// Where a program's addresses begin, and end.
const USER: Range<u64> = 0x1_0000..crate::image::memory::USER_END;

impl Ground<'_> {
    /// Writes the forks of some births into their forker's chapter, and the chapters of all that is forked so.
    pub(crate) fn fork_all(&self, writer: &mut Writer, forker: Chapter, births: &[usize]) {
        let forked = self.forks(writer, forker, births);
        self.make_all(writer, forked);
    }

    /// Writes the chapters of some births, and of all that those fork.
    pub(crate) fn make_all(&self, writer: &mut Writer, births: Vec<(Chapter, usize)>) {
        let mut next = births;
        while let Some((chapter, place)) = next.pop() {
            let birth = self.family.birth(place);
            let forked = match birth.process {
                Some(index) => self.process(writer, chapter, place, index),
                None => self.ghost(writer, chapter, place),
            };
            next.extend(forked.into_iter().rev());
        }
    }

    /// Writes the forks alone; the chapters that are still to be written, and of whom.
    fn forks(&self, writer: &mut Writer, forker: Chapter, births: &[usize]) -> Vec<(Chapter, usize)> {
        let mut forked = Vec::new();
        for place in births {
            let (birth, chapter) = (self.family.birth(*place), writer.chapter());
            for span in self.spans.of_all(*place) {
                staging::advise(writer, forker, span, libc::MADV_DOFORK);
            }
            writer.fork(forker, birth.pid, chapter);
            for span in self.spans.of_all(*place) {
                staging::advise(writer, forker, span, libc::MADV_DONTFORK);
            }
            if birth.process.is_none() {
                process_groups::await_end(writer, forker, birth.pid);
            }
            forked.push((chapter, *place));
        }
        forked
    }

    fn ghost(&self, writer: &mut Writer, chapter: Chapter, place: usize) -> Vec<(Chapter, usize)> {
        let birth = self.family.birth(place);
        if birth.leads {
            writer.call(chapter, "making a session", libc::SYS_setsid, &[]);
        }
        self.keep_below(writer, chapter, place);
        let forked = self.forks(writer, chapter, &birth.late);
        writer.special(chapter, "ending a helper", Special::Exit, &[0, 0]);
        forked
    }

    /// Before a task forks, nothing is taken along.
    fn keep_below(&self, writer: &mut Writer, chapter: Chapter, place: usize) {
        for span in self.spans.of_all(place) {
            staging::advise(writer, chapter, span, libc::MADV_DONTFORK);
        }
    }

    /// Writes a process's own steps; the chapters of those that it forks are still to be written.
    fn process(&self, writer: &mut Writer, chapter: Chapter, place: usize, index: usize) -> Vec<(Chapter, usize)> {
        let (process, birth) = (&self.image.processes[index], self.family.birth(place));
        control_groups::enter(writer, chapter, self.image, process, self.slots);
        namespaces::enter(writer, chapter, self.image, process, self.slots);
        let forks = !birth.early.is_empty() || !birth.late.is_empty();
        if forks || self.groups.founds(process) {
            self.keep_below(writer, chapter, place);
        }
        if process.flags.subreaper {
            let arguments = [libc::PR_SET_CHILD_SUBREAPER as u64, 1];
            writer.call(chapter, "becoming a subreaper", libc::SYS_prctl, &arguments);
        }
        let mut forked = self.forks(writer, chapter, &birth.early);
        if birth.leads {
            writer.call(chapter, "making a session", libc::SYS_setsid, &[]);
            terminals::take_own(writer, chapter, self.image, self.slots, process.pid);
        } else if process.group == process.pid {
            writer.call(chapter, "making a process group", libc::SYS_setpgid, &[0, 0]);
        }
        forked.extend(self.forks(writer, chapter, &birth.late));
        if !birth.leads && process.group != process.pid && process.group != 0 {
            self.groups.join(writer, chapter, process, self.slots.free);
        }
        if let Some(status) = process.ended {
            let (code, signal) = (status >> 8 & 0xff, status & 0x7f);
            if signal != 0 {
                die_of(writer, chapter, signal as u64);
            }
            writer.special(chapter, "having ended", Special::Exit, &[code as u64, signal as u64]);
            return forked;
        }
        terminals::set_foreground(writer, chapter, self.image, self.slots, process);
        control_groups::set(writer, chapter, self.image, process, self.slots);
        self.belongings(writer, chapter, process);
        self.memory(writer, chapter, index);
        locks(writer, chapter, process);
        leases::take(writer, chapter, process);
        self.enter_root(writer, chapter, process);
        let trampoline = resume_trampoline::lay(writer, chapter, process);
        memory_rules::ask_again(writer, chapter, process.memory_rules);
        user_spaces::enter(writer, chapter, process, self.slots);
        let inherited = self.inherited_by(process);
        let threads = self.threads(writer, chapter, process, (&trampoline, inherited));
        thread_script::first_thread(writer, chapter, process, threads, (self.ids_chosen, inherited, &trampoline));
        forked
    }

    /// Descriptors, directory, and what else is the process's and not a thread's.
    fn belongings(&self, writer: &mut Writer, chapter: Chapter, process: &Process) {
        open_proc_files(writer, chapter, self.image, process, self.slots);
        open_pidfds(writer, chapter, self.image, process, self.slots);
        let watches = self.watches.get(&process.pid).map_or(&[][..], Vec::as_slice);
        epoll::watch_what_lost_its_number(writer, chapter, process, (watches, self.slots));
        let mut next = 0;
        for one in &process.descriptors {
            let number = one.number as u64;
            if number > next {
                writer.call(chapter, "closing descriptors", libc::SYS_close_range, &[next, number - 1, 0]);
            }
            next = number + 1;
            let flag = if one.close_on_exec { libc::O_CLOEXEC as u64 } else { 0 };
            let label = format!("placing descriptor {number}");
            writer.call(chapter, label, libc::SYS_dup3, &[self.slots.file(one.file), number, flag]);
        }
        if self.slots.free > next {
            writer.call(chapter, "closing descriptors", libc::SYS_close_range, &[next, self.slots.free - 1, 0]);
        }
        // The executable, and no other descriptor above the gate.
        let number = || self.executables.iter().position(|path| *path == process.executable).unwrap_or(0);
        let deleted = process.deleted_executable.map(|content| self.slots.content(content));
        let executable = deleted.unwrap_or_else(|| self.slots.executable(number()));
        let scratch = self.slots.scratch();
        writer.call(chapter, "keeping the executable", libc::SYS_dup3, &[executable, scratch, 0]);
        // What is yet to be entered and to be mapped stays, too.
        user_spaces::keep(writer, chapter, self.image, process, self.slots);
        let (enters, maps) = (self.slots.kept_to_enter(), self.slots.contents());
        for closed in [scratch + 1..enters.start, enters.end..maps.start, maps.end..1 << 32] {
            if !closed.is_empty() {
                writer.call(chapter, "closing descriptors", libc::SYS_close_range, &[closed.start, closed.end - 1, 0]);
            }
        }
        epoll::watch(writer, chapter, watches);
        let label = format!("entering {}", process.directory);
        if let Some(content) = process.deleted_directory {
            writer.call(chapter, label, libc::SYS_fchdir, &[self.slots.content(content)]);
        } else {
            let (flags, slot) = (libc::O_PATH | libc::O_DIRECTORY, self.slots.unmapped());
            writer.open_named(chapter, &process.directory, flags as u64, slot);
            writer.call(chapter, label, libc::SYS_fchdir, &[slot]);
            writer.call(chapter, "closing a directory", libc::SYS_close, &[slot]);
        }
        writer.call(chapter, "setting the umask", libc::SYS_umask, &[u64::from(process.umask)]);
        for (signal, action) in &process.actions {
            let action = writer.words(action);
            writer.call(
                chapter,
                format!("setting what signal {signal} does"),
                libc::SYS_rt_sigaction,
                &[*signal as u64, action, 0, 8],
            );
        }
    }

    /// The entering of a root directory of its own (chroot(2)), when no path is looked for any more. Where the process
    /// is stays outside of it, if it was.
    fn enter_root(&self, writer: &mut Writer, chapter: Chapter, process: &Process) {
        let Some(root) = &process.root else { return };
        let (there, here) = (self.slots.scratch(), self.slots.unmapped());
        let place = (libc::O_PATH | libc::O_DIRECTORY) as u64;
        writer.open_named(chapter, root, place, there);
        writer.open_named(chapter, ".", place, here);
        writer.call(chapter, format!("going to {root}"), libc::SYS_fchdir, &[there]);
        let own = writer.string(".");
        writer.call(chapter, format!("making {root} its root"), libc::SYS_chroot, &[own]);
        writer.call(chapter, "going back", libc::SYS_fchdir, &[here]);
        for slot in [there, here] {
            writer.call(chapter, "closing a directory", libc::SYS_close, &[slot]);
        }
    }

    /// Everything unmapped but this process's memory, which goes to its place.
    fn memory(&self, writer: &mut Writer, chapter: Chapter, index: usize) {
        let (process, stage) = (&self.image.processes[index], &self.stages[index]);
        let kept = joined(&stage.spans.iter().collect::<Vec<_>>());
        for span in &kept {
            staging::advise(writer, chapter, span, libc::MADV_DOFORK);
        }
        let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let parked = park(writer, chapter, self.kernel);
        let restorer = REGION..REGION + REGION_LENGTH;
        let kept = joined(&kept.iter().chain([&restorer]).collect::<Vec<_>>());
        let starts = [USER.start].into_iter().chain(kept.iter().map(|range| range.end));
        let ends = kept.iter().map(|range| range.start).chain([USER.end]);
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            writer.call(chapter, "unmapping the holder's memory", libc::SYS_munmap, &[start, end - start]);
        }
        for one in &stage.moves {
            let label = format!("moving memory to {:#x}", one.to);
            if self.moves_many || one.pieces.len() == 1 {
                writer.exact(
                    chapter,
                    label,
                    libc::SYS_mremap,
                    &[one.from, one.length, one.length, fixed, one.to],
                    one.to,
                );
                continue;
            }
            for (from, length) in &one.pieces {
                let to = one.to + (from - one.from);
                writer.exact(chapter, label.clone(), libc::SYS_mremap, &[*from, *length, *length, fixed, to], to);
            }
        }
        for area in &process.areas {
            let AreaKind::Kernel { name } = &area.kind else { continue };
            if let Some((_, from, length)) = parked.iter().find(|(parked, _, _)| parked == name) {
                let arguments = [*from, *length, *length, fixed, area.start];
                writer.exact(chapter, format!("placing {name}"), libc::SYS_mremap, &arguments, area.start);
            }
        }
        self.layout(writer, chapter, process);
        shared_files(writer, chapter, process, self.slots.scratch());
        sysv::attach(writer, chapter, self.image, process);
        contents::map(writer, chapter, self.image, process, self.slots);
        aio::make(writer, chapter, process);
        for area in process.areas.iter().filter(|area| !matches!(area.kind, AreaKind::Kernel { .. })) {
            let length = area.end - area.start;
            // What was staged has the rest.
            for advice in area.advice.iter().filter(|advice| !area.kind.is_own() || !memory::is_kept(**advice)) {
                let arguments = [area.start, length, u64::from(*advice)];
                writer.call(chapter, "advising on memory", libc::SYS_madvise, &arguments);
            }
            for (at, length) in &area.guards {
                let arguments = [*at, *length, MADV_GUARD_INSTALL];
                writer.call(chapter, "guarding memory", libc::SYS_madvise, &arguments);
            }
            if area.locked {
                let flags = if area.locked_later { libc::MLOCK_ONFAULT } else { 0 };
                let arguments = [area.start, length, u64::from(flags)];
                writer.attempt(chapter, "locking memory", libc::SYS_mlock2, &arguments);
            }
            if area.sealed {
                writer.call(chapter, "sealing memory", libc::SYS_mseal, &[area.start, length, 0]);
            }
        }
    }

    fn layout(&self, writer: &mut Writer, chapter: Chapter, process: &Process) {
        const PR_SET_MM_MAP: u64 = 14;
        let auxiliary = writer.data(&process.layout.auxiliary, 8);
        let mut words = process.layout.words.to_vec();
        words.push(auxiliary);
        // Two fields of four bytes: the vector's length and the executable's descriptor.
        words.push(process.layout.auxiliary.len() as u64 | self.slots.scratch() << 32);
        let map = writer.words(&words);
        let length = words.len() as u64 * 8;
        let arguments = [libc::PR_SET_MM as u64, PR_SET_MM_MAP, map, length, 0];
        writer.call(chapter, "telling the kernel where things lie", libc::SYS_prctl, &arguments);
        writer.call(chapter, "closing the executable", libc::SYS_close, &[self.slots.scratch()]);
        // Khugepaged would make copies of what is shared.
        writer.attempt(chapter, "keeping pages shared", libc::SYS_prctl, &[libc::PR_SET_THP_DISABLE as u64, 1]);
    }

    /// Writes the making of the further threads; how many there are.
    fn threads(
        &self,
        writer: &mut Writer,
        chapter: Chapter,
        process: &Process,
        (trampoline, inherited): (&ResumeTrampoline, Inherited<'_>),
    ) -> u64 {
        let further = process.threads.get(1..).unwrap_or_default();
        if further.is_empty() {
            return 0;
        }
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let arguments = [STACKS, further.len() as u64 * STACK_LENGTH, 3, flags, u64::MAX, 0];
        writer.exact(chapter, "making stacks", libc::SYS_mmap, &arguments, STACKS);
        for (number, thread) in (0..).zip(further) {
            let own = writer.chapter();
            let stack = (thread_stack(number), inherited);
            thread_script::further_thread(writer, own, process, thread, stack, (trampoline, number as usize + 1));
            if inherited.space.is_some() {
                let make = |writer: &mut Writer| make_thread(writer, chapter, (thread, NEXT_NUMBER), number, own);
                user_spaces::take_turn(writer, chapter, self.slots, make);
            } else {
                make_thread(writer, chapter, (thread, 0), number, own);
            }
        }
        if inherited.space.is_some() {
            writer.call(chapter, "taking no more turns", libc::SYS_close, &[self.slots.own_turn()]);
        }
        further.len() as u64
    }

    /// Who has entered a user namespace has all powers in it, and its further groups.
    fn inherited_by(&self, process: &Process) -> Inherited<'_> {
        match user_turns::of(self.image, process) {
            Some(space) => Inherited { bounding: u64::MAX, plain: false, space: Some(space), ..self.inherited },
            None => self.inherited,
        }
    }
}

fn make_thread(writer: &mut Writer, chapter: Chapter, (thread, how): (&Thread, u64), number: u64, own: Chapter) {
    let end = thread_stack(number) + STACK_LENGTH;
    let pointer = thread_script::bases(thread)[0];
    let arguments = [thread.tid as u64 | how, pointer, thread.clear, end];
    writer.thread(chapter, format!("making thread {}", thread.tid), arguments, own);
}

/// Writes the ending of whatever disregard of signals whoever takes the steps has inherited: all that is forked, and
/// executed, would inherit it too. Each process ignores then what the frozen one did.
pub(crate) fn heed_every_signal(writer: &mut Writer) {
    const SIGNALS: u64 = 64;
    let default = writer.words(&[0; 4]);
    for signal in 1..=SIGNALS {
        // Two of them can be ignored by nobody.
        let arguments = [signal, default, 0, 8];
        writer.attempt(Writer::STAGING, "ignoring no signal", libc::SYS_rt_sigaction, &arguments);
    }
}

/// Writes the moving of the kernel's own mappings to where they are out of the way, unless they lie there already;
/// where they lie then.
pub(crate) fn park(writer: &mut Writer, chapter: Chapter, kernel: &[(String, u64, u64)]) -> Vec<(String, u64, u64)> {
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let mut parking = PARKING;
    let mut parked = Vec::new();
    for (name, start, length) in kernel {
        if *start != parking {
            let arguments = [*start, *length, *length, fixed, parking];
            writer.exact(chapter, format!("parking {name}"), libc::SYS_mremap, &arguments, parking);
        }
        parked.push((name.clone(), parking, *length));
        parking += length;
    }
    parked
}

/// Writes the locking of ranges of files (F_SETLK of fcntl(2)), when the process closes no file any more: close(2) of
/// any descriptor gives up all locks that it has on that file, and what it maps it has opened and closed.
fn locks(writer: &mut Writer, chapter: Chapter, process: &Process) {
    for (number, kind, start, length) in &process.locks {
        let lock = [*kind as u16 as u64, *start as u64, *length as u64, 0];
        let lock = writer.words(&lock);
        let arguments = [*number as u64, libc::F_SETLK as u64, lock];
        writer.call(chapter, "locking a range of a file", libc::SYS_fcntl, &arguments);
    }
}

/// Mappings of files that are seen by all: of the clone's own files.
fn shared_files(writer: &mut Writer, chapter: Chapter, process: &Process, slot: u64) {
    for area in &process.areas {
        let AreaKind::Shared { path, offset, writable } = &area.kind else { continue };
        let mode = if *writable { libc::O_RDWR } else { libc::O_RDONLY };
        writer.open_named(chapter, path, mode as u64, slot);
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | staging::reserving(area)) as u64;
        let length = area.end - area.start;
        let arguments = [area.start, length, u64::from(area.protection), flags, slot, *offset];
        writer.exact(chapter, format!("mapping {path}"), libc::SYS_mmap, &arguments, area.start);
        writer.call(chapter, "closing a mapped file", libc::SYS_close, &[slot]);
    }
}

/// Ranges in ascending order, those that touch or overlap made one.
fn joined(ranges: &[&Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).map(|range| (*range).clone()).collect();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Has a signal be the end of whoever takes it, and nothing else: all are blocked while a clone is made, and some are
/// ignored by whom the holder comes from.
fn die_of(writer: &mut Writer, chapter: Chapter, signal: u64) {
    const BYTES: u64 = 8;
    let zeros = writer.words(&[0; 4]);
    // The clone's directory is no place for what a core dump would have of a restorer.
    writer.attempt(chapter, "dumping no core", libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 0]);
    writer.attempt(chapter, "ignoring no signal", libc::SYS_rt_sigaction, &[signal, zeros, 0, BYTES]);
    let arguments = [libc::SIG_SETMASK as u64, zeros, 0, BYTES];
    writer.attempt(chapter, "blocking no signal", libc::SYS_rt_sigprocmask, &arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parked_stays_there() {
        let kernel = [("[vvar]".to_owned(), 0x7fff_0000_0000, 0x4000), ("[vdso]".to_owned(), 0x7fff_0000_4000, 0x2000)];
        let mut writer = Writer::new();
        let parked = park(&mut writer, Writer::STAGING, &kernel);
        assert_eq!(parked[1], ("[vdso]".to_owned(), PARKING + 0x4000, 0x2000));
        assert_eq!(park(&mut writer, Writer::MAKING, &parked), parked);
        assert_eq!(format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count(), 2);
    }

    #[test]
    fn touching_ranges_are_one() {
        assert_eq!(joined(&[&(5..9), &(1..5), &(12..13), &(3..3)]), [1..9, 12..13]);
        assert_eq!(joined(&[&(1..9), &(20..30), &(2..4), &(1..9), &(25..31)]), [1..9, 20..31]);
    }
}
