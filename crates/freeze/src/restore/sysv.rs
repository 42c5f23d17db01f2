//! How a clone's System V objects are made: in the order of their numbers, which a new namespace counts through.

use crate::image::ipc::SHM_DEST;
use crate::image::{AreaKind, Image, Keyed, KeyedKind, Process};
use crate::restore::script::{Chapter, Writer};
use pando_restorer::Special;
use std::collections::BTreeSet;

const MAKING: Chapter = Writer::MAKING;

/// A namespace hands out so many places in turn (RADIX_TREE_MAP_SIZE), as long as few are taken, and so many
/// generations apart.
const PLACES: i32 = 64;

const GENERATION: i32 = 32_768;

/// How many numbers a new namespace hands out up to this one.
pub(crate) fn steps_to(id: i32) -> u32 {
    let (generation, place) = (id / GENERATION, id % GENERATION);
    if place >= PLACES { u32::MAX } else { (generation * PLACES + place + 1).max(0) as u32 }
}

/// Where a segment is attached while it is filled: below everything of the holder's.
const ATTACHED: u64 = 0x2000_0000_0000;

const IPC_RMID: u64 = libc::IPC_RMID as u64;
const IPC_SET: u64 = libc::IPC_SET as u64;
const NEW: u64 = (libc::IPC_CREAT | libc::IPC_EXCL) as u64 | 0o600;

/// Whom steps are written for.
#[derive(Clone, Copy)]
pub(crate) struct Makers {
    /// The maker's pid.
    pub(crate) own: i32,
    /// A pid that is free.
    pub(crate) helper: i32,
    /// Two descriptors that are free.
    pub(crate) pipe: [u64; 2],
}

/// Writes the maker's making of all objects of System V IPC.
pub(crate) fn write(writer: &mut Writer, image: &Image, maker: Makers) {
    let is = |wanted: fn(&KeyedKind) -> bool| {
        let mut some: Vec<&Keyed> = image.keyed.iter().filter(|one| wanted(&one.kind)).collect();
        some.sort_by_key(|one| steps_to(one.id));
        some
    };
    let segments = is(|kind| matches!(kind, KeyedKind::Segment { .. }));
    make_all(writer, maker, &segments, libc::SYS_shmctl, &[libc::IPC_PRIVATE as u64, 4096, NEW], libc::SYS_shmget);
    let semaphores = is(|kind| matches!(kind, KeyedKind::Semaphores { .. }));
    make_all(writer, maker, &semaphores, libc::SYS_semctl, &[libc::IPC_PRIVATE as u64, 1, NEW], libc::SYS_semget);
    let queues = is(|kind| matches!(kind, KeyedKind::Queue { .. }));
    make_all(writer, maker, &queues, libc::SYS_msgctl, &[libc::IPC_PRIVATE as u64, NEW], libc::SYS_msgget);
}

/// Makes those of one kind, sorted by number; `passing` are the arguments of `get` for one that is only there to be
/// counted.
fn make_all(writer: &mut Writer, maker: Makers, sorted: &[&Keyed], control: i64, passing: &[u64], get: i64) {
    let mut taken: BTreeSet<i32> = BTreeSet::new();
    let mut step = 0;
    for one in sorted {
        loop {
            let (place, generation) = (step % PLACES, step / PLACES);
            step += 1;
            if taken.contains(&place) {
                continue;
            }
            let id = generation * GENERATION + place;
            if id >= one.id {
                taken.insert(place);
                break;
            }
            writer.attempt(MAKING, "counting numbers of System V", get, passing);
            // Segments and queues take the command second, semaphores third.
            let arguments =
                if control == libc::SYS_semctl { [id as u64, 0, IPC_RMID] } else { [id as u64, IPC_RMID, 0] };
            writer.attempt(MAKING, "removing what was counted", control, &arguments);
        }
        make(writer, maker, one);
    }
}

fn make(writer: &mut Writer, maker: Makers, one: &Keyed) {
    let (id, key) = (one.id as u64, one.key as u32 as u64);
    let about = about(writer, one);
    match &one.kind {
        KeyedKind::Segment { length, content } => {
            let arguments = [key, *length, NEW];
            writer.exact(MAKING, format!("making segment {id}"), libc::SYS_shmget, &arguments, id);
            fill(writer, maker, id, content);
            writer.call(MAKING, "setting a segment's owner", libc::SYS_shmctl, &[id, IPC_SET, about]);
        }
        KeyedKind::Semaphores { values } => {
            const SETALL: u64 = 17;
            let arguments = [key, values.len() as u64, NEW];
            writer.exact(MAKING, format!("making semaphores {id}"), libc::SYS_semget, &arguments, id);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let bytes = writer.data(&bytes, 8);
            writer.call(MAKING, "setting semaphores", libc::SYS_semctl, &[id, 0, SETALL, bytes]);
            writer.call(MAKING, "setting semaphores' owner", libc::SYS_semctl, &[id, 0, IPC_SET, about]);
        }
        KeyedKind::Queue { messages } => {
            writer.exact(MAKING, format!("making queue {id}"), libc::SYS_msgget, &[key, NEW], id);
            for (kind, bytes) in messages {
                let mut message = kind.to_le_bytes().to_vec();
                message.extend(bytes);
                let at = writer.data(&message, 8);
                let arguments = [id, at, bytes.len() as u64, libc::IPC_NOWAIT as u64];
                writer.call(MAKING, "filling a queue", libc::SYS_msgsnd, &arguments);
            }
            writer.call(MAKING, "setting a queue's owner", libc::SYS_msgctl, &[id, IPC_SET, about]);
        }
    }
}

/// Fills a segment. One that is large is filled by a process that is forked for it, whose memory is charged to the
/// clone: the maker's is the holder's. One that is ended there, for want of memory, has not said that it has come to an
/// end.
fn fill(writer: &mut Writer, maker: Makers, id: u64, content: &[u8]) {
    const LITTLE: usize = 256 << 10;
    if content.is_empty() {
        return;
    }
    if content.len() <= LITTLE {
        fill_in(writer, MAKING, maker.own, id, content);
        return writer.call(MAKING, "detaching a segment", libc::SYS_shmdt, &[ATTACHED]);
    }
    let [heard, said] = maker.pipe;
    let byte = writer.words(&[0]);
    writer.special(MAKING, "making a pipe to a helper", Special::Pipe, &[heard, said]);
    let helper = writer.chapter();
    writer.fork(MAKING, maker.helper, helper);
    fill_in(writer, helper, maker.helper, id, content);
    writer.exact(helper, "telling of a segment", libc::SYS_write, &[said, byte, 1], 1);
    writer.special(helper, "ending a helper", Special::Exit, &[0, 0]);
    writer.call(MAKING, "listening to a helper", libc::SYS_close, &[said]);
    let label = "copying a segment that the processes share, which has to fit the limit of the guest's memory";
    writer.exact(MAKING, label, libc::SYS_read, &[heard, byte, 1], 1);
    writer.call(MAKING, "listening no more", libc::SYS_close, &[heard]);
    writer.call(MAKING, "waiting for a helper's end", libc::SYS_wait4, &[maker.helper as u64, 0, 0, 0]);
}

/// Copies bytes of the script to where a segment is attached: a process, by its pid, writes to its own memory as if it
/// were another's.
fn fill_in(writer: &mut Writer, chapter: Chapter, pid: i32, id: u64, content: &[u8]) {
    writer.exact(chapter, "attaching a segment", libc::SYS_shmat, &[id, ATTACHED, 0], ATTACHED);
    let at = writer.data(content, 8);
    let local = writer.words(&[at, content.len() as u64]);
    let remote = writer.words(&[ATTACHED, content.len() as u64]);
    let arguments = [pid as u64, local, 1, remote, 1, 0];
    let length = content.len() as u64;
    writer.exact(chapter, "filling a segment", libc::SYS_process_vm_writev, &arguments, length);
}

/// `struct shmid64_ds`, `semid64_ds`: of all fields IPC_SET heeds owner, group and mode of the `struct ipc64_perm` that
/// they begin with.
fn about(writer: &mut Writer, one: &Keyed) -> u64 {
    let (user, group) = one.owner;
    let words = [0, user, group, 0, 0, one.mode & 0o777];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(256, 0);
    // Of a queue also how many bytes it takes: as many as a new one.
    bytes[88..90].copy_from_slice(&16_384_u16.to_le_bytes());
    writer.data(&bytes, 8)
}

/// Writes the attachments of a process. What is marked to go can be attached before it is marked, and goes with its
/// last user.
pub(crate) fn attach(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process) {
    for area in &process.areas {
        let AreaKind::Segment { id, writable } = area.kind else { continue };
        let mut flags = libc::SHM_REMAP;
        if !writable {
            flags |= libc::SHM_RDONLY;
        }
        if area.protection & libc::PROT_EXEC as u32 != 0 {
            flags |= libc::SHM_EXEC;
        }
        let arguments = [id as u64, area.start, flags as u64];
        writer.exact(chapter, format!("attaching segment {id}"), libc::SYS_shmat, &arguments, area.start);
        if image.keyed.iter().any(|one| one.id == id && one.mode & SHM_DEST != 0) {
            writer.attempt(chapter, "marking a segment to go", libc::SYS_shmctl, &[id as u64, IPC_RMID, 0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_to() {
        assert_eq!((steps_to(0), steps_to(63), steps_to(32_769), steps_to(64)), (1, 64, 66, u32::MAX));
        let keyed = |id| Keyed {
            id,
            key: 0,
            mode: 0o600,
            owner: (0, 0),
            kind: KeyedKind::Segment { length: 1, content: Vec::new() },
        };
        let image = Image { keyed: vec![keyed(32_769), keyed(1)], ..Image::default() };
        let mut writer = Writer::new();
        write(&mut writer, &image, Makers { own: 99, helper: 100, pipe: [7, 8] });
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        // 0, then 2 to 63, then 32768 are passed.
        assert_eq!(text.lines().filter(|line| line.contains("counting")).count(), 1 + 62 + 1);
        assert!(text.find("making segment 1").unwrap() < text.find("making segment 32769").unwrap());
    }
}
