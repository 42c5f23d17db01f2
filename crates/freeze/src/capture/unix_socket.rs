//! Unix sockets: who is connected to whom, what waits in them, what they are called.

use crate::capture::in_flight::Flight;
use crate::capture::nested::Nested;
use crate::capture::{lost_names, peer_credentials, socket_options, socket_queue, unaccepted_unix, urgent_data};
use crate::image::socket::{NOBODY, path};
use crate::image::{Image, Sender, UnixSocket, Waiting};
use crate::inspect::credentials::IdMaps;
use crate::inspect::open_files::Place;
use crate::inspect::proc_file::{self, DELETED, malformed};
use crate::inspect::process_tree;
use crate::inspect::socket_table::{borrow, table};
use pando_kernel::file::confined::{Links, Root};
use pando_kernel::socket::unix_diag::UnixEntry;
use pando_kernel::{CallError, Context, socket};
use rustix::fs::{FileType, Stat};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// Captures what is not known of a socket when its descriptor is found: `places` are where each open file was found.
pub(crate) fn capture(
    init: i32,
    nested: &Nested,
    image: &mut Image,
    (places, flight): (&[Place], &mut Flight),
) -> Result<(), CallError> {
    if image.unix.is_empty() {
        return Ok(());
    }
    let table = table(init, &nested.nets)?;
    let table: HashMap<u32, &UnixEntry> = table.iter().map(|entry| (entry.inode, entry)).collect();
    let maps = IdMaps::of(init)?;
    let inodes: Vec<u32> = image.unix.iter().map(|socket| places[socket.file].inode as u32).collect();
    let numbers: HashMap<u32, usize> =
        inodes.iter().enumerate().rev().map(|(number, inode)| (*inode, number)).collect();
    let index = |inode: u32| numbers.get(&inode).copied().filter(|_| inode != 0);
    for number in 0..image.unix.len() {
        let place = places[image.unix[number].file];
        let entry = table.get(&inodes[number]);
        let entry = entry.ok_or_else(|| malformed(format!("looking for unix socket {}", inodes[number])))?;
        let handle = borrow(place)?;
        let socket = &mut image.unix[number];
        describe(socket, &handle, entry, flight.take(place.inode))?;
        socket.queue.iter_mut().for_each(|message| message.sender = message.sender.map(|one| inside(one, &maps)));
        socket.peer_credentials = peer_credentials::of(&handle, &maps).context(|| READING.into())?;
        socket.peer = entry.peer.and_then(index);
        socket.waiting = entry.waiting.iter().copied().filter_map(index).collect();
        if path(&socket.name, "/").is_some() && entry.file.is_some() {
            find_place(init, place, (socket, &handle), &maps)?;
            let path = socket.path().unwrap_or_default();
            socket.is_elsewhere = nested.mounts.is_elsewhere(place.outer, &path);
            // A socket is bound anew at its path, also where its file is gone: its directory has to be there for that.
            let above =
                |path: &str| path.rsplit_once('/').map_or_else(String::new, |(directory, _)| directory.to_owned());
            let is_there = |directory: &str| look_inside(init, &format!("{directory}/.")).is_some();
            let directory = above(&path);
            if !is_there(&directory) {
                socket.borrows_directory = socket.published.is_some() && is_there(&above(&directory));
                socket.is_homeless = !socket.borrows_directory;
            }
        }
    }
    unaccepted_unix::capture(image, places, &table, &maps)?;
    // What waits to be accepted is connected to nothing that has an inode.
    let waiting: Vec<usize> = image.unix.iter().flat_map(|socket| socket.waiting.clone()).collect();
    for client in waiting {
        image.unix[client].connected = false;
        let maker = maker(&borrow(places[image.unix[client].file])?, &maps)?;
        image.unix[client].connector = Some(peer_credentials::of_waiting(image, client, maker));
    }
    Ok(())
}

const READING: &str = "reading a unix socket";

/// A message's sender, as he is known inside.
pub(super) fn inside(sender: Sender, maps: &IdMaps) -> Sender {
    let process = proc_file::Lines::read(sender.process, "status").ok().and_then(|status| process_tree::inner(&status));
    Sender {
        process: process.unwrap_or(0),
        user: maps.user(sender.user).unwrap_or(NOBODY),
        group: maps.group(sender.group).unwrap_or(NOBODY),
    }
}

/// Who made a socket: user and group.
fn maker(socket: &OwnedFd, maps: &IdMaps) -> Result<(u32, u32), CallError> {
    let stat = rustix::fs::fstat(socket).context(|| READING.into())?;
    Ok((maps.user(stat.st_uid).unwrap_or(NOBODY), maps.group(stat.st_gid).unwrap_or(NOBODY)))
}

/// Describes one. `waiting` is what waits in it, if descriptors do and it has been looked at already.
fn describe(
    socket: &mut UnixSocket,
    handle: &OwnedFd,
    entry: &UnixEntry,
    waiting: Option<Vec<Waiting>>,
) -> Result<(), CallError> {
    let what = || READING.to_owned();
    socket.kind = socket::option::number(handle, libc::SOL_SOCKET, libc::SO_TYPE).context(what)?;
    socket.name = socket::option::name(handle).context(what)?;
    socket.connected = entry.peer.is_some();
    socket.shut = entry.shut;
    let listens = socket::option::number(handle, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).context(what)? != 0;
    socket.backlog = listens.then_some(entry.queues.1);
    let kind = rustix::net::SocketType::from_raw(socket.kind as u32);
    let fresh = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).context(what)?;
    socket.options = socket_options::differing(handle, fresh);
    if let Some(waiting) = waiting {
        socket.queue = waiting;
    } else if !listens {
        let queue = socket_queue::all(handle, socket.kind)?;
        socket.carries = queue.iter().any(|seen| seen.lacks || !seen.descriptors.is_empty());
        let plain = |seen: socket_queue::Message| Waiting {
            bytes: seen.bytes,
            from: seen.from,
            files: Vec::new(),
            sender: seen.sender,
        };
        socket.queue = queue.into_iter().map(plain).collect();
    }
    let waits = socket.kind == libc::SOCK_STREAM && !socket.queue.is_empty();
    socket.is_urgent = waits && urgent_data::waits_in_unix(handle).context(what)?;
    Ok(())
}

/// What is at a path of a guest's, if anything. A link in it, such as /var/run, leads to where it does in the guest.
fn look_inside(init: i32, path: &str) -> Option<rustix::fs::Stat> {
    Root::of_process(init).and_then(|root| root.place(path, Links::OnTheWay)?.about()).ok()
}

/// Finds the file of a bound socket, if it still is: a relative name starts at the directory that its owner is in now,
/// as far as we know; where the file is not there, the kernel is asked for it.
fn find_place(
    init: i32,
    place: Place,
    (socket, handle): (&mut UnixSocket, &OwnedFd),
    maps: &IdMaps,
) -> Result<(), CallError> {
    let relative = socket.name.get(2) != Some(&b'/');
    // What is in flight has no owner, only who looks at it.
    let owned = place.outer != std::process::id() as i32;
    socket.directory = if relative && owned { proc_file::link(place.outer, "cwd")? } else { "/".to_owned() };
    let file = socket::option::unix_file(handle).ok();
    let identity = |stat: &Stat| (stat.st_dev, stat.st_ino);
    let known = file.as_ref().and_then(|file| rustix::fs::fstat(file).ok());
    let is_its = |stat: &Stat| match &known {
        Some(known) => identity(stat) == identity(known),
        None => FileType::from_raw_mode(stat.st_mode).is_socket() && (owned || !relative),
    };
    let mut found = look_inside(init, &socket.path().unwrap_or_default()).filter(is_its);
    if found.is_none()
        && let (Some(file), Some(stat)) = (&file, known.filter(|stat| stat.st_nlink > 0))
    {
        match name_now(init, file, identity(&stat)) {
            Some(path) if look_inside(init, &path).as_ref().is_some_and(is_its) => {
                let (directory, _) = path.rsplit_once('/').unwrap_or_default();
                if relative {
                    socket.directory = if directory.is_empty() { "/".to_owned() } else { directory.to_owned() };
                }
                socket.published = Some(path).filter(|path| socket.path().as_ref() != Some(path));
                found = Some(stat);
            }
            _ => socket.is_lost = true,
        }
    }
    if let Some(stat) = found {
        socket.place = Some((stat.st_mode & 0o7777, maps.user(stat.st_uid)?, maps.group(stat.st_gid)?));
    }
    Ok(())
}

/// The path of a file that has been renamed, or linked in its directory and lost its first name.
fn name_now(init: i32, file: &OwnedFd, identity: (u64, u64)) -> Option<String> {
    let path =
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?.into_os_string().into_string().ok()?;
    let Some(lost) = path.strip_suffix(DELETED) else { return Some(path) };
    let (directory, _) = lost.rsplit_once('/')?;
    let name = lost_names::find(&Root::of_process(init).ok()?, directory, identity)?;
    Some(format!("{directory}/{name}"))
}
