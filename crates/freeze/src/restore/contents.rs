//! How files without a name get into the holder, and from there into a clone.

use crate::image::{AreaKind, Content, ContentKind, Image, OpenFile, Process, made_mounts};
use crate::origin::Source;
use crate::restore::facts::Facts;
use crate::restore::script::{AT_FDCWD, Chapter, SLOT, Writer};
use crate::restore::slots::Slots;
use crate::restore::staging;
use pando_restorer::Special;
use std::ops::Range;

/// One call copies so many bytes at most.
const MOST_BYTES: u64 = 1 << 30;

/// Writes the holder's steps: each content into a memory file that it keeps.
pub(crate) fn stage(writer: &mut Writer, image: &Image, slots: Slots, facts: &Facts) {
    let chapter = Writer::STAGING;
    for (number, content) in image.contents.iter().enumerate() {
        if !content.kind.has_bytes() {
            continue;
        }
        let (source, base) = facts.origin.content(image, number);
        let held = slots.held(number);
        open_source(writer, &source, held);
        create_memory(writer, chapter, "held", held);
        fill(writer, chapter, content, (SLOT, base), held);
        writer.call(chapter, "closing a file without a name", libc::SYS_close, &[SLOT]);
    }
}

/// Writes the opening of what has a content. `spare` is free until then. What is not the file that was looked at,
/// because a process that has its directory open has put something else into its place, is nothing outside the
/// process's root, and is not waited for: where it is no regular file it cannot be read.
fn open_source(writer: &mut Writer, source: &Source, spare: u64) {
    let (chapter, label) = (Writer::STAGING, "opening a file without a name");
    match source {
        Source::Own(path) => {
            let path = writer.string(path);
            let arguments = [AT_FDCWD, path, READING];
            writer.open(chapter, label, libc::SYS_openat, &arguments, SLOT);
        }
        Source::Inside { process, path } => {
            let root = writer.string(&format!("/proc/{process}/root"));
            let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
            writer.open(chapter, "opening a root", libc::SYS_openat, &[AT_FDCWD, root, flags], spare);
            let at = writer.string(path);
            let resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
            let how = writer.words(&[READING, 0, resolve]);
            writer.open(chapter, format!("opening {path}"), libc::SYS_openat2, &[spare, at, how, 24], SLOT);
        }
    }
}

const READING: u64 = (libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC) as u64;

/// Writes the maker's steps that fill the directories in memory which each clone is given, before anything is mounted
/// there.
pub(crate) fn fill_given(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32)) {
    let given = here(image).filter(|number| is_by_name(&image.contents[*number].kind));
    make_some(writer, image, (slots, helper), given);
}

/// Writes the maker's steps: a file of the clone's own for each content that has no name.
pub(crate) fn make(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32)) {
    let nameless = here(image).filter(|number| !is_by_name(&image.contents[*number].kind));
    make_some(writer, image, (slots, helper), nameless);
    if writers(image) > 0 {
        let ends = [slots.unmapped(), slots.mapped()];
        writer.special(Writer::MAKING, "making a pipe to count mappings", Special::Pipe, &ends);
    }
}

/// All but those of what is mounted besides.
fn here(image: &Image) -> impl Iterator<Item = usize> {
    let elsewhere = made_mounts::contents(image);
    (0..image.contents.len()).filter(move |number| !elsewhere.iter().any(|range| range.contains(number)))
}

/// Whether it is there by its name.
fn is_by_name(kind: &ContentKind) -> bool {
    !kind.is_nameless()
}

/// Writes those for some of them, in the namespace that the maker is in. `helper` is a pid that is free.
pub(crate) fn make_some(
    writer: &mut Writer,
    image: &Image,
    (slots, helper): (Slots, i32),
    numbers: impl Iterator<Item = usize>,
) {
    let chapter = Writer::MAKING;
    let some: Vec<_> = numbers.filter_map(|number| Some((number, image.contents.get(number)?))).collect();
    for (number, content) in some.iter().copied() {
        let slot = slots.content(number);
        match &content.kind {
            ContentKind::Memory { name, .. } => create_memory(writer, chapter, name, slot),
            ContentKind::DeletedDirectory { directory } => {
                let path = writer.string(&format!("{directory}/.pando-{number}"));
                let label = || format!("making a directory in {directory}/");
                writer.call(chapter, label(), libc::SYS_mkdir, &[path, 0o700]);
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                writer.open(chapter, label(), libc::SYS_openat, &[AT_FDCWD, path, flags as u64], slot);
                writer.call(chapter, "deleting a directory", libc::SYS_rmdir, &[path]);
            }
            ContentKind::Directory { .. }
            | ContentKind::Fifo { .. }
            | ContentKind::Point { .. }
            | ContentKind::Name { .. }
            | ContentKind::Link { .. } => {
                by_name(writer, content);
                continue;
            }
            ContentKind::Placed { path } => {
                let at = writer.string(path);
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                let arguments = [AT_FDCWD, at, flags as u64, 0o600];
                writer.open(chapter, format!("making {path}"), libc::SYS_openat, &arguments, slot);
            }
            ContentKind::Deleted { directory } => {
                let path = writer.string(&format!("{directory}/.pando-{number}"));
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                let label = format!("making a file in {directory}/");
                writer.open(chapter, label, libc::SYS_openat, &[AT_FDCWD, path, flags as u64, 0o600], slot);
                writer.call(chapter, "deleting a file", libc::SYS_unlink, &[path]);
            }
        }
        if content.kind.has_bytes() {
            fill_own(writer, content, slots.held(number), slot, helper);
        }
        let (user, group) = content.owner;
        writer.attempt(chapter, "setting an owner", libc::SYS_fchown, &[slot, user.into(), group.into()]);
        writer.attempt(chapter, "setting a mode", libc::SYS_fchmod, &[slot, content.mode.into()]);
        let times = writer.words(&content.times.map(i64::cast_unsigned));
        writer.attempt(chapter, "setting times", libc::SYS_utimensat, &[slot, 0, times, 0]);
        if matches!(content.kind, ContentKind::Placed { .. }) {
            // Nobody asks for it but by its name.
            writer.call(chapter, "closing a file", libc::SYS_close, &[slot]);
        } else if !is_sealed_late(content) {
            seal(writer, content, slot);
        }
        if is_executed(image, number) {
            open_for_reading_alone(writer, slot, slots.spare());
        }
    }
    // What is made in a directory changes its time.
    for (path, content) in some.into_iter().filter_map(|(_, content)| Some((path_of_dated(&content.kind)?, content))) {
        let (at, times) = (writer.string(path), writer.words(&content.times.map(i64::cast_unsigned)));
        let arguments = [AT_FDCWD, at, times, libc::AT_SYMLINK_NOFOLLOW as u64];
        writer.attempt(chapter, "setting times", libc::SYS_utimensat, &arguments);
    }
}

/// Whether a process executes it.
fn is_executed(image: &Image, content: usize) -> bool {
    image.processes.iter().any(|process| process.deleted_executable == Some(content))
}

/// No process executes what somebody has open for writing (ETXTBSY).
fn open_for_reading_alone(writer: &mut Writer, slot: u64, spare: u64) {
    let (chapter, label) = (Writer::MAKING, "opening a program for reading alone");
    let path = writer.string(&format!("/proc/self/fd/{slot}"));
    let arguments = [AT_FDCWD, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64];
    writer.open(chapter, label, libc::SYS_openat, &arguments, spare);
    writer.call(chapter, label, libc::SYS_dup3, &[spare, slot, libc::O_CLOEXEC as u64]);
    writer.call(chapter, label, libc::SYS_close, &[spare]);
}

/// Writes the making of what nobody has open: it is there by its name alone.
fn by_name(writer: &mut Writer, content: &Content) {
    match &content.kind {
        ContentKind::Directory { path } => {
            directory(writer, path, content);
        }
        ContentKind::Fifo { path } => {
            let at = writer.string(path);
            let kind = u64::from(libc::S_IFIFO | 0o600);
            writer.attempt(Writer::MAKING, format!("making {path}"), libc::SYS_mknod, &[at, kind, 0]);
            own(writer, at, content);
        }
        ContentKind::Point { path } => {
            let (at, kind) = (writer.string(path), u64::from(libc::S_IFREG | 0o600));
            writer.attempt(Writer::MAKING, format!("making {path}"), libc::SYS_mknod, &[at, kind, 0]);
        }
        ContentKind::Name { path, first } => {
            let (at, first) = (writer.string(path), writer.string(first));
            writer.attempt(Writer::MAKING, format!("making {path}"), libc::SYS_link, &[first, at]);
        }
        ContentKind::Link { path, target } => {
            let (at, to) = (writer.string(path), writer.string(target));
            let (user, group) = content.owner;
            writer.attempt(Writer::MAKING, format!("making {path}"), libc::SYS_symlink, &[to, at]);
            writer.attempt(Writer::MAKING, "setting an owner", libc::SYS_lchown, &[at, user.into(), group.into()]);
        }
        ContentKind::Memory { .. }
        | ContentKind::Placed { .. }
        | ContentKind::Deleted { .. }
        | ContentKind::DeletedDirectory { .. } => {}
    }
}

/// The path of what gets its times when all is there.
fn path_of_dated(kind: &ContentKind) -> Option<&str> {
    match kind {
        ContentKind::Directory { path } | ContentKind::Fifo { path } | ContentKind::Link { path, .. } => Some(path),
        _ => None,
    }
}

/// Seals that leave mappings alone that were there before them, and let no such mapping be made after.
fn is_sealed_late(content: &Content) -> bool {
    matches!(content.kind, ContentKind::Memory { seals, .. } if seals & F_SEAL_FUTURE_WRITE != 0)
}

/// Since Linux 5.1.
const F_SEAL_FUTURE_WRITE: u32 = 0x10;

fn seal(writer: &mut Writer, content: &Content, slot: u64) {
    if let ContentKind::Memory { seals, .. } = content.kind
        && seals != 0
    {
        let arguments = [slot, libc::F_ADD_SEALS as u64, seals.into()];
        writer.call(Writer::MAKING, "sealing memory", libc::SYS_fcntl, &arguments);
    }
}

/// How many processes map for writing what is sealed against that.
fn writers(image: &Image) -> usize {
    image.processes.iter().filter(|process| writes_to_sealed(image, process)).count()
}

fn writes_to_sealed(image: &Image, process: &Process) -> bool {
    process.areas.iter().any(|area| {
        let AreaKind::Nameless { content, shared: true, writable: true, .. } = area.kind else { return false };
        image.contents.get(content).is_some_and(is_sealed_late)
    })
}

/// Writes the maker's last steps: what is sealed late is sealed when every process has mapped it, and before any of
/// them runs.
pub(crate) fn seal_late(writer: &mut Writer, image: &Image, slots: Slots) {
    let (chapter, writers) = (Writer::MAKING, writers(image));
    if writers > 0 {
        writer.call(chapter, "counting mappings", libc::SYS_close, &[slots.mapped()]);
        let byte = writer.words(&[0]);
        for _ in 0..writers {
            // At the pipe's end a process has failed, which says so itself.
            writer.attempt(chapter, "waiting for a mapping", libc::SYS_read, &[slots.unmapped(), byte, 1]);
        }
    }
    for (number, content) in image.contents.iter().enumerate().filter(|(_, content)| is_sealed_late(content)) {
        seal(writer, content, slots.content(number));
    }
}

fn directory(writer: &mut Writer, path: &str, content: &Content) {
    let (chapter, at) = (Writer::MAKING, writer.string(path));
    writer.attempt(chapter, format!("making {path}"), libc::SYS_mkdir, &[at, 0o700]);
    own(writer, at, content);
}

/// Owner and mode of what has a path.
fn own(writer: &mut Writer, at: u64, content: &Content) {
    let (chapter, (user, group)) = (Writer::MAKING, content.owner);
    writer.attempt(chapter, "setting an owner", libc::SYS_lchown, &[at, user.into(), group.into()]);
    writer.attempt(chapter, "setting a mode", libc::SYS_fchmodat, &[AT_FDCWD, at, content.mode.into()]);
}

fn create_memory(writer: &mut Writer, chapter: Chapter, name: &str, slot: u64) {
    let name = writer.string(name);
    let arguments = [name, (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).into()];
    writer.open(chapter, "making a memory file", libc::SYS_memfd_create, &arguments, slot);
}

/// Fills a clone's own. The kernel charges memory to whom the memory belongs that whoever takes it runs in, and the
/// maker runs in the holder's: so what is much is filled by a process that is forked for it, and has a memory and the
/// clone's control groups. One that is ended there, for want of memory, has not come to the end of the file.
fn fill_own(writer: &mut Writer, content: &Content, held: u64, slot: u64, helper: i32) {
    const LITTLE: u64 = 256 << 10;
    let bytes = content.runs.iter().fold(0_u64, |bytes, (_, length)| bytes.saturating_add(*length));
    let end = content.runs.last().map_or(0, |(at, length)| at + length);
    if bytes <= LITTLE {
        return fill(writer, Writer::MAKING, content, (held, None), slot);
    }
    let chapter = writer.chapter();
    writer.fork(Writer::MAKING, helper, chapter);
    fill(writer, chapter, content, (held, None), slot);
    writer.special(chapter, "ending a helper", Special::Exit, &[0, 0]);
    writer.call(Writer::MAKING, "waiting for a helper's end", libc::SYS_wait4, &[helper as u64, 0, 0, 0]);
    let label = "copying memory that the processes share, which has to fit the limit of the guest's memory";
    writer.exact(Writer::MAKING, label, libc::SYS_lseek, &[slot, 0, libc::SEEK_CUR as u64], end);
}

/// Copies what is in it out of `from`, where it lies in its place, or run after run from `base` on.
fn fill(writer: &mut Writer, chapter: Chapter, content: &Content, (from, mut base): (u64, Option<u64>), to: u64) {
    writer.call(chapter, "sizing a file without a name", libc::SYS_ftruncate, &[to, content.length]);
    let set = libc::SEEK_SET as u64;
    for (mut at, mut left) in content.runs.iter().copied() {
        for (slot, place) in [(from, base.unwrap_or(at)), (to, at)] {
            writer.attempt(chapter, "finding a place in a file without a name", libc::SYS_lseek, &[slot, place, set]);
        }
        base = base.map(|base| base + left);
        while left > 0 {
            let length = left.min(MOST_BYTES);
            let arguments = [to, from, 0, length];
            writer.exact(chapter, "copying a file without a name", libc::SYS_sendfile, &arguments, length);
            (at, left) = (at + length, left - length);
        }
    }
}

/// Writes the opening of one for a descriptor.
pub(crate) fn open(writer: &mut Writer, file: &OpenFile, slots: Slots, content: usize, slot: u64) {
    let path = writer.string(&format!("/proc/self/fd/{}", slots.content(content)));
    let flags = u64::from(file.flags) & !(libc::O_NOFOLLOW as u64) | libc::O_CLOEXEC as u64;
    let label = "opening a file without a name";
    writer.open(Writer::MAKING, label, libc::SYS_openat, &[AT_FDCWD, path, flags], slot);
}

/// Writes the mappings of a process; the contents' descriptors go after that.
pub(crate) fn map(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    for area in &process.areas {
        let AreaKind::Nameless { content, offset, shared: true, writable } = area.kind else { continue };
        let mut slot = slots.content(content);
        if !writable {
            // A mapping by a descriptor for reading can never become one for writing.
            let path = writer.string(&format!("/proc/self/fd/{slot}"));
            slot = slots.scratch();
            let arguments = [AT_FDCWD, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64];
            writer.open(chapter, "opening a file without a name for reading", libc::SYS_openat, &arguments, slot);
        }
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | staging::reserving(area)) as u64;
        let length = area.end - area.start;
        let protection = u64::from(area.protection);
        let arguments = [area.start, length, protection, flags, slot, offset];
        writer.exact(chapter, "mapping a file without a name", libc::SYS_mmap, &arguments, area.start);
        if !writable {
            writer.call(chapter, "closing a mapped file", libc::SYS_close, &[slot]);
        }
    }
    if writes_to_sealed(image, process) {
        let byte = writer.words(&[0]);
        writer.exact(chapter, "saying that it is mapped", libc::SYS_write, &[slots.mapped(), byte, 1], 1);
    }
    let Range { start, end } = slots.contents();
    if start < end {
        writer.call(chapter, "closing files without a name", libc::SYS_close_range, &[start, end - 1, 0]);
    }
}
