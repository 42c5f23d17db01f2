//! What the maker makes before it forks: the open files that processes share.

use crate::image::own_files::{is_own_proc, process_of};
use crate::image::{FileKind, FileOwner, Image, OpenFile};
use crate::restore::namespaces::{self, make_host_names, make_ipc_spaces};
use crate::restore::networks::{self, make_own};
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;
use crate::restore::{
    contents, control_groups, inotify, mounts, own_files, plain_socket, pressure, queues, terminals, unix_socket,
};
use pando_restorer::Special;

/// Writes the maker's steps up to the first fork of a process. `executables` are paths, `helper` is a pid that is free.
pub(crate) fn write(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32), executables: &[String]) {
    make_host_names(writer, image, slots);
    make_ipc_spaces(writer, image, slots);
    networks::make(writer, image, slots);
    make_own(writer, image, slots);
    control_groups::make(writer, image);
    mounts::make_first(writer, image, (slots, helper), |writer| {
        contents::make(writer, image, (slots, helper));
    });
    pipes(writer, image, slots, None);
    unix_socket::make(writer, image, (slots, helper));
    terminals::make(writer, image, slots);
    queues::make(writer, image, slots);
    // What they mount once more is there by now, sockets too.
    mounts::make(writer, image, (slots, helper), |writer, space| {
        pipes(writer, image, slots, Some(space));
        files(writer, image, (slots, helper), Some(space));
    });
    files(writer, image, (slots, helper), None);
    unix_socket::fill(writer, image, (slots, helper));
    for FileOwner { file, user, group } in &image.owners {
        let arguments = [slots.file(*file), u64::from(*user), u64::from(*group)];
        writer.call(Writer::MAKING, "giving a pipe or a socket to its owner", libc::SYS_fchown, &arguments);
    }
    for (number, path) in executables.iter().enumerate() {
        writer.open_named(Writer::MAKING, path, libc::O_RDONLY as u64, slots.executable(number));
    }
}

/// Those that are opened in a mount namespace.
fn files(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32), space: Option<usize>) {
    for (number, file) in image.files.iter().enumerate().filter(|(_, file)| file.mount_space == space) {
        if is_own_proc(image, number) || process_of(image, number).is_some() {
            continue;
        }
        if matches!(file.kind, FileKind::Process { .. }) {
            own_files::of_one_that_is_gone(writer, file, slots.file(number), helper);
            continue;
        }
        make(writer, image, file, slots, number);
    }
}

fn pipes(writer: &mut Writer, image: &Image, slots: Slots, space: Option<usize>) {
    for (number, pipe) in image.pipes.iter().enumerate().filter(|(_, pipe)| pipe.mount_space == space) {
        let (read, write) = (slots.pipe(number, false), slots.pipe(number, true));
        match &pipe.path {
            None => writer.special(Writer::MAKING, "making a pipe", Special::Pipe, &[read, write]),
            Some(path) => {
                // For reading and writing at once it never waits for another end, and while it is open nobody does.
                writer.open_named(Writer::MAKING, path, libc::O_RDWR as u64, read);
                writer.call(Writer::MAKING, "keeping a named pipe", libc::SYS_dup3, &[read, write, 0]);
            }
        }
        let capacity = u64::from(pipe.capacity);
        writer.attempt(Writer::MAKING, "sizing a pipe", libc::SYS_fcntl, &[write, libc::F_SETPIPE_SZ as u64, capacity]);
        if !pipe.content.is_empty() {
            // Nobody reads meanwhile: what does not fit is an error, and nothing to wait for.
            let arguments = [write, libc::F_SETFL as u64, libc::O_NONBLOCK as u64];
            writer.call(Writer::MAKING, "filling a pipe without waiting", libc::SYS_fcntl, &arguments);
            let content = writer.data(&pipe.content, 1);
            let length = pipe.content.len() as u64;
            writer.exact(Writer::MAKING, "filling a pipe", libc::SYS_write, &[write, content, length], length);
        }
    }
}

fn make(writer: &mut Writer, image: &Image, file: &OpenFile, slots: Slots, number: usize) {
    let slot = slots.file(number);
    let chapter = Writer::MAKING;
    match &file.kind {
        FileKind::Named { path } => named(writer, chapter, file, path, slot),
        FileKind::Nameless { content } => {
            contents::open(writer, file, slots, *content, slot);
            place(writer, chapter, file, "a file without a name", slot);
        }
        FileKind::PipeEnd { pipe, writes } => {
            // A second description of the same end, with flags of its own, is had by opening it once more.
            reopen(writer, "opening an end of a pipe", slots.pipe(*pipe, *writes), file, slot);
        }
        FileKind::Supplied { number } => {
            // Opened anew, as the program had it: it may be another kind of file than what it stands for.
            reopen(writer, "opening what is supplied", slots.scratch() + *number as u64, file, slot);
        }
        FileKind::Event { count, semaphore } => {
            let flags = u64::from(*semaphore);
            // The initial value has four bytes; a larger count is written.
            writer.open(chapter, "making an eventfd", libc::SYS_eventfd2, &[0, flags], slot);
            if *count > 0 {
                let word = writer.words(&[*count]);
                writer.exact(chapter, "setting an eventfd", libc::SYS_write, &[slot, word, 8], 8);
            }
        }
        FileKind::Unix { .. } | FileKind::Process { .. } => {}
        FileKind::Terminal { terminal, end } => {
            terminals::open(writer, file, image, slots, (*terminal, *end), slot);
        }
        FileKind::Plain(socket) => networks::inside(writer, slots, socket.net_space, |writer| {
            plain_socket::make(writer, socket, slot, slots.spare());
        }),
        FileKind::Namespace { kind, space } => namespaces::open(writer, slots, (*kind, *space), slot),
        FileKind::Inotify { watches } => {
            let early = watches.iter().filter(|watch| !image.control_groups.has(&watch.path));
            inotify::make(writer, early, slot);
        }
        FileKind::Queue { queue } => queues::open(writer, file, &image.queues[*queue], slot),
        FileKind::Epoll => writer.open(chapter, "making an epoll instance", libc::SYS_epoll_create1, &[0], slot),
        FileKind::SignalFd { mask } => {
            let word = writer.words(&[*mask]);
            writer.open(chapter, "making a signalfd", libc::SYS_signalfd4, &[u64::MAX, word, 8, 0], slot);
        }
        FileKind::TimerFd { clock, flags, setting, ticks } => {
            writer.open(chapter, "making a timerfd", libc::SYS_timerfd_create, &[*clock as u64, 0], slot);
            let words = writer.words(setting);
            writer.call(chapter, "setting a timerfd", libc::SYS_timerfd_settime, &[slot, u64::from(*flags), words, 0]);
            if *ticks > 0 {
                let word = writer.words(&[*ticks]);
                writer.attempt(chapter, "ticking a timerfd", libc::SYS_ioctl, &[slot, TFD_IOC_SET_TICKS, word]);
            }
        }
    }
    if !matches!(
        file.kind,
        FileKind::Named { .. } | FileKind::Nameless { .. } | FileKind::Supplied { .. } | FileKind::Namespace { .. }
    ) {
        let flags = u64::from(file.flags) & (libc::O_NONBLOCK | libc::O_ASYNC | libc::O_APPEND) as u64;
        writer.call(
            chapter,
            "setting the flags of an open file",
            libc::SYS_fcntl,
            &[slot, libc::F_SETFL as u64, flags],
        );
    }
}

/// `_IOW('T', 0, u64)`, since Linux 3.17.
const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;

/// Writes the opening of what the maker has open once more, as a program had it open.
fn reopen(writer: &mut Writer, label: &str, descriptor: u64, file: &OpenFile, slot: u64) {
    let path = writer.string(&format!("/proc/self/fd/{descriptor}"));
    // That is a link, whatever the program opened.
    let flags = u64::from(file.flags) & !(libc::O_NOFOLLOW as u64);
    writer.open(Writer::MAKING, label, libc::SYS_openat, &[AT_FDCWD, path, flags], slot);
}

/// Writes the opening of a file by its path.
pub(crate) fn named(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    // A device in this place must not become the maker's terminal.
    let flags = u64::from(file.flags);
    writer.open_named(chapter, path, flags | libc::O_NOCTTY as u64, slot);
    // Nor may a device or a fifo make the maker wait.
    if flags & (libc::O_PATH | libc::O_NONBLOCK) as u64 == 0 {
        let flags = flags & (libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME) as u64;
        let label = format!("setting the flags of {path}");
        writer.call(chapter, label, libc::SYS_fcntl, &[slot, libc::F_SETFL as u64, flags]);
    }
    pressure::ask(writer, chapter, file, path, slot);
    place(writer, chapter, file, path, slot);
}

/// Writes the opening of a process's own file of /proc, under whatever filter it has by then: more of those know
/// openat(2).
pub(crate) fn own(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    let at = writer.string(path);
    let flags = u64::from(file.flags) | (libc::O_NOCTTY | libc::O_CLOEXEC) as u64;
    writer.open(chapter, format!("opening {path}"), libc::SYS_openat, &[AT_FDCWD, at, flags], slot);
    place(writer, chapter, file, path, slot);
}

/// Position and lock.
fn place(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    if file.position > 0 {
        let arguments = [slot, file.position as u64, libc::SEEK_SET as u64];
        writer.attempt(chapter, format!("positioning {path}"), libc::SYS_lseek, &arguments);
    }
    if let Some(lock) = file.lock {
        let arguments = [slot, (lock | libc::LOCK_NB) as u64];
        writer.call(chapter, format!("locking {path}"), libc::SYS_flock, &arguments);
    }
    for (kind, start, length) in &file.ranges {
        let lock = writer.words(&[*kind as u16 as u64, *start as u64, *length as u64, 0]);
        let arguments = [slot, libc::F_OFD_SETLK as u64, lock];
        writer.call(chapter, format!("locking a range of {path}"), libc::SYS_fcntl, &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Descriptor, Pipe, Process};

    #[test]
    fn slots_do_not_overlap() {
        let file = |kind| OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let image = Image {
            processes: vec![Process {
                descriptors: vec![Descriptor { number: 500, file: 0, close_on_exec: false }],
                ..Process::default()
            }],
            files: vec![file(FileKind::Supplied { number: 1 }), file(FileKind::Epoll)],
            pipes: vec![Pipe { capacity: 4096, content: Vec::new(), path: None, mount_space: None }],
            init: 1,
            ..Image::default()
        };
        let slots = Slots::of(&image);
        assert_eq!((slots.free, slots.supplied()), (501, 2));
        let all = [
            slots.scratch(),
            slots.scratch() + 1,
            slots.file(0),
            slots.file(1),
            slots.pipe(0, false),
            slots.pipe(0, true),
            slots.spare(),
            slots.mapped(),
            slots.unmapped(),
            slots.pid_counter(),
            slots.executable(0),
        ];
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    }
}
