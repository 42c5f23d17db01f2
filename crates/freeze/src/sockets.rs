//! What kind a socket is, and what stands in the way of capturing it. Its number says nothing: it is borrowed from its process and asked.

use crate::descriptors::{self, Found, Outside};
use crate::image::{FileKind, Image, PlainSocket, Process, UnixSocket};
use crate::namespaces::Beside;
use crate::net_spaces;
use crate::open_files::Place;
use crate::plain_socket;
use crate::refusal::Refusal;
use crate::tree::Member;
use crate::unix_socket;
use pando_kernel::unix_diag::UnixEntry;
use pando_kernel::{CallError, Context, socket_option};
use rustix::fs::FileType;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

fn borrow(outer: i32, found: &Found) -> Result<OwnedFd, CallError> {
    let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
    unix_socket::borrow(Place { outer, number: found.number, device, inode })
}

fn option(socket: &OwnedFd, number: i32) -> Result<i32, CallError> {
    socket_option::number(socket, libc::SOL_SOCKET, number).context(|| "reading a socket".into())
}

/// What an open socket is, in the image; of a unix socket the rest follows when all are known.
pub(crate) fn kind(outer: i32, found: &Found, nets: &Beside, image: &mut Image) -> Result<FileKind, CallError> {
    let socket = borrow(outer, found)?;
    let net_space = if nets.all().is_empty() { None } else { net_spaces::of_socket(&socket, nets).flatten() };
    if option(&socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        let socket = plain_socket::capture(&socket)?;
        return Ok(FileKind::Plain(PlainSocket { net_space, ..socket }));
    }
    image.unix.push(UnixSocket { file: image.files.len(), net_space, ..UnixSocket::default() });
    Ok(FileKind::Unix { socket: image.unix.len() - 1 })
}

type Objection = (String, &'static str);

/// What stands in the way of capturing the sockets of all processes. What waits in them is looked through only when nobody can be disturbed.
pub(crate) fn objections(
    init: i32,
    all: &[(&Member, Vec<Found>)],
    outside: &[Outside],
    (nets, stopped): (&Beside, bool),
) -> Result<Vec<Refusal>, CallError> {
    let sockets: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter(|(_, one)| descriptors::is(one, FileType::Socket) && !descriptors::is_name_alone(one))
        .filter(|(_, one)| descriptors::supplied(one, outside).is_none())
        .collect();
    if sockets.is_empty() {
        return Ok(Vec::new());
    }
    let table = unix_socket::table(init, nets)?;
    let table: HashMap<u32, &UnixEntry> = table.iter().map(|entry| (entry.inode, entry)).collect();
    let inodes: HashSet<u32> = sockets.iter().map(|(_, one)| one.stat.st_ino as u32).collect();
    let mut seen = HashSet::new();
    let mut refusals = Vec::new();
    for (member, found) in sockets {
        if seen.contains(&found.stat.st_ino) {
            continue;
        }
        // One that has been closed meanwhile has nothing against it.
        let Ok(socket) = borrow(member.outer, found) else { continue };
        let objection = match net_spaces::of_socket(&socket, nets) {
            Some(_) => objection(&socket, found, &table, &inodes, stopped)?,
            None => Some((format!("a socket of a net namespace that nobody is in ({})", found.target), "close it")),
        };
        if let Some((kind, advice)) = objection {
            refusals.push(Refusal {
                pid: member.pid,
                name: member.name.clone(),
                descriptor: Some(found.number),
                kind,
                advice,
            });
        }
        seen.insert(found.stat.st_ino);
    }
    Ok(refusals)
}

fn objection(
    socket: &OwnedFd,
    found: &Found,
    table: &HashMap<u32, &UnixEntry>,
    inodes: &HashSet<u32>,
    stopped: bool,
) -> Result<Option<Objection>, CallError> {
    if option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return plain_socket::objection(socket);
    }
    let named = |what: &str, advice| Ok(Some((format!("{what} ({})", found.target), advice)));
    let inode = found.stat.st_ino as u32;
    let entry_of = |inode: u32| table.get(&inode);
    let Some(entry) = entry_of(inode) else {
        return if stopped { named("a unix socket that the kernel does not list", "close it") } else { Ok(None) };
    };
    if let Some(peer) = entry.peer.filter(|peer| *peer != 0) {
        if !inodes.contains(&peer) {
            return named("a unix socket whose other end is outside", "close it, or start the other end inside");
        }
        let answers = entry_of(peer).is_some_and(|peer| peer.peer == Some(inode));
        if !answers && entry_of(peer).is_some_and(|peer| peer.file.is_none()) && unnamed_peer(socket) {
            return named("a unix socket that sends to one without a name", "give that a name, or connect it back");
        }
    }
    if entry.waiting.iter().any(|client| *client != 0 && !inodes.contains(client)) {
        return named("a unix socket to which somebody outside is connecting", "let the program accept it first");
    }
    Ok(None)
}

/// The sockets of an image in which descriptors wait that were not there when one looked. And those whose names lead nowhere but in a mount namespace of their
/// own.
pub(crate) fn late_objections(image: &Image) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for socket in
        image.unix.iter().filter(|socket| socket.carries || socket.is_elsewhere || socket.is_homeless || socket.is_lost)
    {
        let holds = |process: &&Process| process.descriptors.iter().any(|one| one.file == socket.file);
        // What nobody holds is in flight.
        let lives = |process: &&Process| !process.threads.is_empty();
        let process = image.processes.iter().find(holds).or_else(|| image.processes.iter().find(lives));
        let Some(process) = process else { continue };
        let descriptor = process.descriptors.iter().find(|one| one.file == socket.file).map(|one| one.number);
        let name = process.threads.first().map(|thread| String::from_utf8_lossy(&thread.name).into_owned());
        let (kind, advice) = if socket.carries {
            let kind = "a unix socket in which descriptors wait (SCM_RIGHTS) that cannot be had".to_owned();
            (kind, "let the program receive them first")
        } else if socket.is_homeless {
            let kind = format!("a unix socket whose directory is gone ({})", socket.path().unwrap_or_default());
            (kind, "close it, or have it bind to a path in a directory that stays")
        } else if socket.is_elsewhere {
            let path = socket.path().unwrap_or_default();
            let kind = format!("a unix socket whose file only its mnt namespace has ({path})");
            (kind, "have it bind to a path that the guest's first process sees, too")
        } else {
            let kind = format!("a unix socket whose file was moved ({})", socket.path().unwrap_or_default());
            (kind, "move it back, or have it bind to the name that it has")
        };
        refusals.push(Refusal { pid: process.pid, name: name.unwrap_or_default(), descriptor, kind, advice });
    }
    refusals
}

fn unnamed_peer(socket: &OwnedFd) -> bool {
    socket_option::peer_name(socket).is_ok_and(|name| name.len() <= 2)
}
