//! Whether an image that was read can be one at all. What a script is written from is trusted to be consistent: this is
//! where that is found out for what comes from a file. What its processes may do as guests is not looked at here; that
//! is up to what confines them.

use crate::capture::fork_sharing::traits;
use crate::capture::in_flight;
use crate::disk::wrong::{Wrong, ensure, is_path};
use crate::disk::{check_namespaces, check_numbers};
use crate::image::file::{HIGHEST_TERMINAL, MOST_FILE_WATCHES, is_nameless_end};
use crate::image::ipc::{LONGEST_MESSAGE, MOST_MESSAGES, MOST_QUEUES};
use crate::image::memory::{PAGE, USER_END};
use crate::image::namespace::LONGEST_HOST_NAME;
use crate::image::own_files::GONE;
use crate::image::own_files::{self, is_own_proc, process_of};
use crate::image::socket::{MOST_GONE, MOST_IN_FLIGHT};
use crate::image::{
    Area, AreaKind, ContentKind, Descriptor, FileKind, FileOwner, GoneClient, HostNames, Image, Lease, Process, Queue,
    Terminal, Thread, Waiting, aio,
};
use crate::precheck::own_proc;
use crate::restore::lineage::DEEPEST;
use crate::restore::staging::{self, STAGING};
use crate::restore::sysv::steps_to;
use pando_kernel::terminal::SETTINGS;
use pando_restorer::REGION;
use std::collections::{HashMap, HashSet};

const MOST_PROCESSES: usize = 16_384;
const MOST_THREADS: usize = 16_384;
const MOST_OBJECTS: usize = 1 << 20;
const MOST_NUMBERS: u32 = 4096;
const HIGHEST_DESCRIPTOR: i32 = 1 << 20;
const HIGHEST_PID: i32 = 1 << 22;
const LONGEST_STATE: usize = 64 << 10;
const SIGNAL: usize = 128;

/// Checks all of an image.
pub(crate) fn check(image: &Image) -> Result<(), Wrong> {
    let most = image.processes.len() <= MOST_PROCESSES;
    ensure(most, || "it has too many processes".into())?;
    let objects = [image.files.len(), image.pipes.len(), image.unix.len(), image.contents.len(), image.keyed.len()];
    ensure(objects.iter().all(|count| *count <= MOST_OBJECTS), || "it has too many objects".into())?;
    ensure(is_pid(image.init), || "its first pid is none".into())?;
    family(image)?;
    for process in &image.processes {
        let of = |what| format!("process {}: {what}", process.pid);
        ensure(process.ended.is_some() == process.threads.is_empty(), || of("it neither runs nor has ended".into()))?;
        if process.ended.is_none() {
            threads(process).map_err(of)?;
            memory(image, process).map_err(of)?;
            belongings(image, process).map_err(of)?;
        }
    }
    check_sharing(&image.processes)?;
    let memories = image.processes.iter().map(|process| process.areas.as_slice());
    ensure(staging::has_room(memories), || "its memory does not fit".into())?;
    objects_of(image)
}

fn is_pid(pid: i32) -> bool {
    (1..HIGHEST_PID).contains(&pid)
}

/// Pids are everybody's own, parents come first, and no chain of them is deeper than the planner's recursion can be.
fn family(image: &Image) -> Result<(), Wrong> {
    // A first process is of the image, or somebody else's.
    let mut taken = image.first().is_none().then_some(image.init).into_iter().collect::<HashSet<_>>();
    let rootless = |first: usize| image.processes[first].parent == 0 && image.processes[first].ended.is_none();
    ensure(image.first().is_none_or(rootless), || "its first process is none".into())?;
    let mut depths: std::collections::HashMap<i32, usize> = std::collections::HashMap::new();
    let all: HashSet<i32> = image.processes.iter().map(|process| process.pid).collect();
    for process in &image.processes {
        let depth = match depths.get(&process.parent) {
            Some(depth) => depth + 1,
            None => 0,
        };
        let early = depth > 0 || !all.contains(&process.parent);
        ensure(early && depth < DEEPEST, || format!("process {} has no place in the tree", process.pid))?;
        depths.insert(process.pid, depth);
        let ids = [process.parent, process.group, process.session];
        ensure(ids.iter().all(|id| *id == 0 || is_pid(*id)), || "a group or session is none".into())?;
        let tids = process.threads.iter().map(|thread| thread.tid);
        let own: HashSet<i32> = tids.chain([process.pid]).collect();
        ensure(process.threads.first().is_none_or(|thread| thread.tid == process.pid), || {
            format!("process {} has another first thread", process.pid)
        })?;
        ensure(own.len() == process.threads.len().max(1), || format!("process {} has a thread twice", process.pid))?;
        ensure(own.iter().all(|pid| is_pid(*pid) && taken.insert(*pid)), || "a pid is taken twice".into())?;
    }
    Ok(())
}

fn threads(process: &Process) -> Result<(), Wrong> {
    ensure(process.threads.len() <= MOST_THREADS, || "it has too many threads".into())?;
    process.threads.iter().try_for_each(thread)?;
    let signals = process.actions.iter().map(|(signal, _)| *signal);
    ensure(signals.into_iter().all(|signal| (1..=64).contains(&signal)), || "a signal is none".into())?;
    ensure(process.waiting.iter().all(|info| info.len() == SIGNAL), || "a waiting signal is none".into())?;
    ensure(process.timers.len() <= MOST_OBJECTS && process.limits.len() <= 64, || "it has too many timers".into())
}

fn thread(thread: &Thread) -> Result<(), Wrong> {
    let of = |what: &str| format!("thread {}: {what}", thread.tid);
    ensure(thread.registers.len() <= 32 && thread.registers.len() >= 2, || of("its registers are none"))?;
    ensure(thread.extended.len() <= LONGEST_STATE, || of("its vector state is too long"))?;
    ensure(thread.waiting.iter().all(|info| info.len() == SIGNAL), || of("a waiting signal is none"))?;
    ensure(thread.name.len() <= 64, || of("its name is too long"))?;
    ensure(thread.scheduling.processors.len() <= 1024, || of("it has too many processors"))?;
    ensure(thread.credentials.further.len() <= 65_536, || of("it has too many groups"))?;
    let filters = thread.filters.iter().all(|filter| filter.len() % 8 == 0 && filter.len() <= 4096 * 8);
    ensure(filters && thread.filters.len() <= 64, || of("a filter is none"))
}

fn memory(image: &Image, process: &Process) -> Result<(), Wrong> {
    ensure(process.areas.len() <= MOST_OBJECTS, || "it has too many areas".into())?;
    ensure(process.layout.auxiliary.len() <= 4096, || "its auxiliary vector is too long".into())?;
    let mut behind = 0;
    for area in &process.areas {
        let of = |what: &str| format!("memory at {:#x}: {what}", area.start);
        let aligned = area.start % PAGE == 0 && area.end % PAGE == 0;
        ensure(aligned && area.start < area.end && area.start >= behind, || of("it has no place"))?;
        ensure(area.end <= REGION || area.start >= STAGING.end, || of("it lies where the restorer works"))?;
        ensure(area.end <= USER_END && area.start >= 0x1000, || of("it lies outside"))?;
        check_numbers::of_area(area).map_err(|what| of(&what))?;
        behind = area.end;
        kind(image, area).map_err(|what| of(&what))?;
        pages(area).map_err(|what| of(&what))?;
    }
    Ok(())
}

fn kind(image: &Image, area: &Area) -> Result<(), Wrong> {
    let offset = match &area.kind {
        AreaKind::Anonymous => 0,
        AreaKind::Private { path, offset } | AreaKind::Shared { path, offset, .. } => {
            is_path(path)?;
            *offset
        }
        AreaKind::Segment { id, .. } => {
            ensure(image.keyed.iter().any(|one| one.id == *id), || "it is of no segment".into())?;
            0
        }
        AreaKind::Nameless { content, offset, .. } => {
            let there = image.contents.get(*content).is_some_and(|one| one.kind.has_bytes());
            ensure(there, || "it is of no file".into())?;
            *offset
        }
        AreaKind::AioRing(ring) => {
            return ensure(aio::is_one(area, ring), || "it is of no context".into());
        }
        AreaKind::Kernel { name } => {
            return ensure(name.starts_with("[v") && name.len() < 32, || "it is not the kernel's".into());
        }
    };
    ensure(offset % PAGE == 0 && offset.checked_add(area.end - area.start).is_some_and(|end| end < 1 << 62), || {
        "its place in the file is none".into()
    })
}

fn pages(area: &Area) -> Result<(), Wrong> {
    ensure(area.kind.is_own() || area.pages.is_empty() && area.guards.is_empty(), || "it cannot have pages".into())?;
    for runs in [&area.pages, &area.guards] {
        let mut behind = area.start;
        for (at, length) in runs {
            let end = at.checked_add(*length).unwrap_or(u64::MAX);
            let inside = *at >= behind && end <= area.end && *length > 0;
            ensure(inside && at % PAGE == 0 && length % PAGE == 0, || "its pages have no place".into())?;
            behind = end;
        }
    }
    Ok(())
}

fn belongings(image: &Image, process: &Process) -> Result<(), Wrong> {
    let mut last = -1;
    for one in &process.descriptors {
        let placed = one.number > last && one.number < HIGHEST_DESCRIPTOR && one.file < image.files.len();
        ensure(placed, || format!("descriptor {} is none", one.number))?;
        last = one.number;
    }
    is_path(&process.executable)?;
    is_path(&process.directory)?;
    process.root.as_deref().map_or(Ok(()), is_path)?;
    ensure(process.root.is_none() || process.pid != image.init, || "the first process has another root".into())?;
    let has_bytes =
        |content: usize| image.contents.get(content).is_some_and(|one| one.kind.is_nameless() && one.kind.has_bytes());
    ensure(process.deleted_executable.is_none_or(has_bytes), || "its program is none".into())?;
    let is_directory = |content: usize| {
        image.contents.get(content).is_some_and(|one| matches!(one.kind, ContentKind::DeletedDirectory { .. }))
    };
    ensure(process.deleted_directory.is_none_or(is_directory), || "its working directory is none".into())?;
    let held = |lease: &Lease| process.descriptors.iter().any(|one| one.number == lease.descriptor);
    ensure(process.leases.iter().all(held), || "a lease is of no file".into())?;
    ensure(process.descriptors.iter().all(|one| opens_its_own(image, process, one)), || {
        "it opens a file of /proc that none of a clone's processes could".into()
    })?;
    check_numbers::of_process(process)?;
    ensure(process.memory_rules.are_known(), || "it has registered for what there is not".into())?;
    let is_there = process
        .watches
        .iter()
        .all(|watch| (0..HIGHEST_DESCRIPTOR).contains(&watch.target) && watch.file < image.files.len());
    ensure(is_there, || "it watches by epoll what there is not".into())?;
    ensure(process.locks.len() <= MOST_OBJECTS && process.watches.len() <= MOST_OBJECTS, || {
        "it has too many locks".into()
    })
}

/// Whether a process may open what a descriptor of it leads to, if that is a file of /proc that each opens itself. It
/// does so while descriptors of its maker are still there, and links of /proc lead to any of them.
fn opens_its_own(image: &Image, process: &Process, descriptor: &Descriptor) -> bool {
    let about = own_files::path(image, descriptor.file).and_then(|path| own_files::about(image.init, path));
    let flags = image.files[descriptor.file].flags as i32;
    about.is_none_or(|about| own_proc::opens_its_own(process.pid, about, flags))
}

fn objects_of(image: &Image) -> Result<(), Wrong> {
    check_numbers::of_files(image)?;
    for (number, file) in image.files.iter().enumerate() {
        let of = |what: &str| format!("open file {number}: {what}");
        let there = match &file.kind {
            FileKind::Named { path } => return_path(path, of)?,
            FileKind::PipeEnd { pipe, .. } => *pipe < image.pipes.len(),
            FileKind::Supplied { number } => *number < 64,
            FileKind::Nameless { content } => image.contents.get(*content).is_some_and(|one| one.kind.is_nameless()),
            FileKind::Unix { socket } => image.unix.get(*socket).is_some_and(|socket| socket.file == number),
            FileKind::Plain(socket) => {
                let filter = socket.filter.len() % 8 == 0 && socket.filter.len() <= 4096 * 8;
                filter && socket.name.len() <= 128 && socket.options.len() <= 1024
            }
            FileKind::Queue { queue } => *queue < image.queues.len(),
            FileKind::Process { pid } => {
                [image.init, GONE].contains(pid) || image.processes.iter().any(|process| process.pid == *pid)
            }
            FileKind::Namespace { kind, space } => check_namespaces::is_namespace(image, *kind, *space),
            FileKind::Terminal { terminal, .. } => *terminal < image.terminals.len(),
            FileKind::Inotify { watches } => {
                watches.iter().try_for_each(|watch| is_path(&watch.path)).map_err(|what| of(&what))?;
                watches.len() <= MOST_FILE_WATCHES && watches.iter().all(|watch| watch.number > 0)
            }
            FileKind::Event { .. } | FileKind::Epoll | FileKind::TimerFd { .. } | FileKind::SignalFd { .. } => true,
        };
        ensure(there, || of("what it opens is not there"))?;
    }
    for pipe in &image.pipes {
        pipe.path.iter().try_for_each(|path| is_path(path))?;
        ensure(pipe.content.len() <= 64 << 20, || "a pipe holds too much".into())?;
    }
    for socket in &image.unix {
        socket.published.iter().try_for_each(|path| is_path(path))?;
        let is = |number: &usize| *number < image.unix.len();
        let of_file = image.files.get(socket.file).is_some_and(|file| matches!(file.kind, FileKind::Unix { .. }));
        let named = (socket.name.len() >= 2 || socket.name.is_empty()) && socket.name.len() <= 110;
        ensure(of_file && named && socket.peer.iter().all(is) && socket.waiting.iter().all(is), || {
            "a unix socket is none".into()
        })?;
        ensure(!socket.directory.contains('\0') && socket.options.len() <= 1024, || "a unix socket is none".into())?;
    }
    unaccepted(image)?;
    in_flight(image)?;
    let mut numbers = HashSet::new();
    let whole = |one: &Terminal| one.number <= HIGHEST_TERMINAL && one.settings.len() == SETTINGS;
    let alone = image.terminals.iter().all(|one| whole(one) && numbers.insert(one.number));
    ensure(alone, || "a terminal is none".into())?;
    let named = |one: &HostNames| one.host.len().max(one.domain.len()) <= LONGEST_HOST_NAME;
    let known = |process: &Process| process.host_names.is_none_or(|one| one < image.host_names.len());
    let right = image.host_names.len() <= MOST_PROCESSES && image.host_names.iter().all(named);
    ensure(right && image.processes.iter().all(known), || "a host name is none".into())?;
    image.contents.iter().try_for_each(content)?;
    check_namespaces::spaces(image)?;
    check_namespaces::control_groups(image)?;
    let is_owner = |one: &FileOwner| image.files.get(one.file).is_some_and(|file| is_nameless_end(&file.kind, image));
    ensure(image.owners.len() <= image.files.len() && image.owners.iter().all(is_owner), || {
        "what has an owner is no pipe and no socket".into()
    })?;
    ensure(image.queues.len() <= MOST_QUEUES && image.queues.iter().all(is_queue), || {
        "a message queue is none".into()
    })?;
    let counted = |id: i32| id >= 0 && steps_to(id) <= MOST_NUMBERS;
    ensure(image.keyed.iter().all(|one| counted(one.id)), || "an object of System V has no such number".into())
}

/// What was sent by unix sockets that nobody has accepted.
fn unaccepted(image: &Image) -> Result<(), Wrong> {
    let plain = |sent: &[Waiting]| sent.iter().all(|message| message.files.is_empty());
    let waits: HashSet<usize> = image.unix.iter().flat_map(|socket| socket.waiting.iter().copied()).collect();
    for (number, socket) in image.unix.iter().enumerate() {
        let own = socket.sent.is_empty() || waits.contains(&number) && plain(&socket.sent);
        let listens = socket.backlog.is_some() && socket.kind != libc::SOCK_DGRAM || socket.gone.is_empty();
        let in_order = socket.gone.is_sorted_by_key(|one| one.behind);
        let known = |one: &GoneClient| one.behind <= socket.waiting.len() && plain(&one.sent);
        let gone = socket.gone.len() <= MOST_GONE && in_order && socket.gone.iter().all(known);
        ensure(own && listens && gone, || "a unix connection that waits is none".into())?;
    }
    Ok(())
}

/// What waits in unix sockets to be received.
fn in_flight(image: &Image) -> Result<(), Wrong> {
    let messages = || image.unix.iter().flat_map(|socket| &socket.queue);
    let bounded = messages().all(|message| message.files.len() <= in_flight::MOST_AT_ONCE);
    ensure(bounded && image.in_flight().count() <= MOST_IN_FLIGHT, || "it has too many descriptors in flight".into())?;
    // What a process opens itself nobody has before.
    let has_owner = |file: usize| is_own_proc(image, file) || process_of(image, file).is_some();
    let there = |file: usize| file < image.files.len() && !has_owner(file);
    ensure(image.in_flight().all(there), || "a descriptor in flight is none".into())
}

fn is_queue(queue: &Queue) -> bool {
    let named = (1..256).contains(&queue.name.len()) && !queue.name.contains(['/', '\0']);
    let bounded = (1..=MOST_MESSAGES).contains(&queue.capacity) && (1..=LONGEST_MESSAGE).contains(&queue.longest);
    let fits = |(_, message): &(u32, Vec<u8>)| message.len() as u64 <= queue.longest;
    named && bounded && queue.messages.len() as u64 <= queue.capacity && queue.messages.iter().all(fits)
}

fn return_path(path: &str, of: impl Fn(&str) -> String) -> Result<bool, Wrong> {
    is_path(path).map(|()| true).map_err(|what| of(&what))
}

fn content(content: &crate::image::Content) -> Result<(), Wrong> {
    let mut behind = 0;
    for (at, length) in &content.runs {
        let end = at.checked_add(*length).unwrap_or(u64::MAX);
        ensure(*at >= behind && *length > 0 && end <= content.length, || {
            "a file without a name has no such parts".into()
        })?;
        behind = end;
    }
    ensure(content.length < 1 << 62, || "a file without a name is too long".into())?;
    match &content.kind {
        ContentKind::Memory { name, .. } => ensure(name.len() < 250, || "a memory file has too long a name".into()),
        ContentKind::Deleted { directory } | ContentKind::DeletedDirectory { directory } if directory.is_empty() => {
            Ok(())
        }
        kind if !kind.has_bytes() && !content.runs.is_empty() => Err("a directory has content".into()),
        ContentKind::Link { path, target } => {
            is_path(path)?;
            ensure(!target.contains('\0') && target.len() < PAGE as usize, || "a link leads nowhere".into())
        }
        ContentKind::Deleted { directory: path }
        | ContentKind::DeletedDirectory { directory: path }
        | ContentKind::Placed { path }
        | ContentKind::Directory { path }
        | ContentKind::Point { path }
        | ContentKind::Fifo { path } => is_path(path),
        ContentKind::Name { path, first } => is_path(path).and_then(|()| is_path(first)),
    }
}

/// Whether all who share an area have it, and have the same.
pub(crate) fn check_sharing(processes: &[Process]) -> Result<(), Wrong> {
    let mut known: HashMap<usize, Vec<&Area>> = HashMap::new();
    for process in processes {
        let mut own: HashMap<usize, Vec<&Area>> = HashMap::new();
        for area in &process.areas {
            let Some(number) = area.fork_shared else { continue };
            let full = area.pages == [(area.start, area.end - area.start)] && area.kind.is_own() && !area.grows;
            ensure(full, || format!("memory at {:#x} cannot be shared", area.start))?;
            own.entry(number).or_default().push(area);
        }
        for (number, areas) in own {
            let alike = |others: &mut Vec<&Area>| {
                let key = |area: &Area| (area.start, area.end, traits(area));
                others.iter().map(|area| key(area)).eq(areas.iter().map(|area| key(area)))
            };
            let wrong = || format!("process {} does not have the memory that it shares", process.pid);
            ensure(known.get_mut(&number).is_none_or(alike), wrong)?;
            known.entry(number).or_insert(areas);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{
        ControlGroup, ControlGroups, Descriptor, FileWatch, MountChange, MountSource, MountSpace, OpenFile, UnixSocket,
        Waiting,
    };

    fn area(start: u64, end: u64) -> Area {
        Area { pages: vec![(start, PAGE)], ..Area::new(start, end, 3, AreaKind::Anonymous) }
    }

    fn image() -> Image {
        let thread = Thread { tid: 2, registers: vec![0; 25], ..Thread::default() };
        let process = Process {
            pid: 2,
            parent: 1,
            threads: vec![thread],
            areas: vec![area(0x10000, 0x20000)],
            descriptors: vec![Descriptor { number: 0, file: 0, close_on_exec: false }],
            executable: "/bin/sh".into(),
            directory: "/".into(),
            ..Process::default()
        };
        let file = OpenFile {
            flags: 0,
            position: 0,
            lock: None,
            ranges: Vec::new(),
            kind: FileKind::Epoll,
            mount_space: None,
        };
        Image { processes: vec![process], files: vec![file], init: 1, ..Image::default() }
    }

    fn changed(image: &mut Image, change: MountChange) {
        image.mount_spaces.push(MountSpace { changes: vec![change], ..MountSpace::default() });
    }

    fn carrying(image: &mut Image, files: Vec<usize>) {
        let file = OpenFile { kind: FileKind::Unix { socket: 0 }, ..image.files[0].clone() };
        let queue = vec![Waiting { files, ..Waiting::default() }];
        let (number, kind) = (image.files.len(), libc::SOCK_STREAM);
        image.unix.push(UnixSocket { file: number, kind, queue, ..UnixSocket::default() });
        image.files.push(file);
    }

    #[test]
    fn what_was_captured_is_right() {
        assert_eq!(check(&image()), Ok(()));
        let mut other = image();
        carrying(&mut other, vec![0, 1]);
        changed(&mut other, MountChange::Gone { path: "/run".into() });
        (other.processes[0].mount_space, other.files[0].mount_space) = (Some(0), Some(0));
        assert_eq!(check(&other), Ok(()));
    }

    #[test]
    fn what_would_lead_a_script_astray_is_found() {
        let wrongs: [fn(&mut Image); 29] = [
            |image| image.init = 0,
            |image| (image.processes[0].pid, image.processes[0].parent) = (1, 3),
            |image| image.processes[0].parent = 2,
            |image| image.processes.push(image.processes[0].clone()),
            |image| image.processes[0].descriptors[0].file = 1,
            |image| image.processes[0].areas[0].start += 1,
            |image| image.processes[0].areas[0] = area(REGION, REGION + PAGE),
            |image| image.processes[0].areas[0] = area(0x7fff_ffff_e000, 0x8000_0000_0000),
            |image| image.processes[0].areas[0].pages = vec![(0x10000, 1 << 40)],
            |image| image.processes[0].areas[0].pages = vec![(0x10000, PAGE), (0x10000, PAGE)],
            |image| image.processes[0].areas.push(area(0x1f000, 0x21000)),
            |image| image.processes[0].executable = "bin/sh".into(),
            |image| image.files[0].kind = FileKind::PipeEnd { pipe: 0, writes: false },
            |image| image.files[0].kind = FileKind::Inotify { watches: vec![FileWatch::default()] },
            |image| image.processes[0].threads.clear(),
            |image| carrying(image, vec![2]),
            |image| carrying(image, vec![0; 254]),
            |image| image.processes[0].mount_space = Some(0),
            |image| image.processes[0].ipc_space = Some(0),
            |image| image.processes[0].net_space = Some(0),
            |image| image.files[0].kind = FileKind::Namespace { kind: libc::CLONE_NEWNET, space: Some(0) },
            |image| image.files[0].kind = FileKind::Namespace { kind: 7, space: None },
            |image| image.files[0].kind = FileKind::Process { pid: 3 },
            |image| image.processes[0].control_group = Some(0),
            |image| {
                let group = ControlGroup { path: "/../x".into(), ..ControlGroup::default() };
                image.control_groups = ControlGroups { root: "/".into(), given: Vec::new(), groups: vec![group] };
            },
            |image| image.files[0].mount_space = Some(0),
            |image| changed(image, MountChange::Gone { path: "run".into() }),
            |image| {
                let options = String::new();
                changed(image, MountChange::Memory { path: "/run".into(), options, attributes: 0, contents: (0, 1) });
            },
            |image| {
                let from = MountSource { space: Some(1), path: "/".into() };
                changed(image, MountChange::Bind { path: "/run".into(), from, attributes: 0 });
            },
        ];
        for (number, wrong) in wrongs.into_iter().enumerate() {
            let mut image = image();
            wrong(&mut image);
            assert!(check(&image).is_err(), "number {number}");
        }
    }
}
