//! What kind a socket is, and what stands in the way of capturing it. Its number says nothing: it is borrowed from its
//! process and asked.

use crate::capture::networks;
use crate::capture::plain_socket::number;
use crate::capture::sockets::{borrow, option};
use crate::image::{Image, Process, UnixSocket};
use crate::inspect::descriptors::{self, Found, Outside};
use crate::inspect::namespaces::Beside;
use crate::inspect::process_tree::Member;
use crate::inspect::socket_table;
use crate::refusal::Refusal;
use pando_kernel::socket::unix_diag::UnixEntry;
use pando_kernel::{CallError, socket};
use rustix::fs::FileType;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Why a socket that is no unix socket cannot be captured, if it cannot.
pub(crate) fn plain_objection(socket: &OwnedFd) -> Result<Option<(String, &'static str)>, CallError> {
    let (family, kind) = (number(socket, libc::SO_DOMAIN)?, number(socket, libc::SO_TYPE)?);
    let named = |what: &str, advice| Ok(Some((what.to_owned(), advice)));
    if !FAMILIES.contains(&family) {
        return named(&format!("a socket of {}", family_name(family)), "close it");
    }
    match (family, kind) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) if has_ended_unread(socket) => {
            named("a TCP connection that has ended in both directions, with something unread", RECEIVE_IT)
        }
        (libc::AF_NETLINK, _) | (_, libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_RAW) => {
            let newer = socket::option::filter(socket).is_err_and(|error| error.raw_os_error() == Some(libc::EACCES));
            if newer { named("a socket with a BPF program (SO_ATTACH_BPF)", "close it") } else { Ok(None) }
        }
        _ => named("a socket of a protocol of its own", "make the program use TCP or UDP"),
    }
}

/// Whether a socket is closed, so that no connection can be made again that would hold what was received by it.
fn has_ended_unread(socket: &OwnedFd) -> bool {
    const CLOSED: u8 = 7;
    let info = socket::option::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap_or_default();
    info.first() == Some(&CLOSED) && rustix::io::ioctl_fionread(socket).is_ok_and(|unread| unread > 0)
}

fn family_name(family: i32) -> String {
    match family {
        libc::AF_PACKET => "packets (AF_PACKET)".into(),
        libc::AF_VSOCK => "a virtual machine (AF_VSOCK)".into(),
        libc::AF_ALG => "the kernel's ciphers (AF_ALG)".into(),
        libc::AF_XDP => "AF_XDP".into(),
        other => format!("family {other}"),
    }
}

type Objection = (String, &'static str);

/// What stands in the way of capturing the sockets of all processes. What waits in them is looked through only when
/// nobody can be disturbed.
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
    let table = socket_table::table(init, nets)?;
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
        let objection = match networks::of_socket(&socket, nets) {
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
        return plain_objection(socket);
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

/// The sockets of an image in which descriptors wait that were not there when one looked. And those whose names lead
/// nowhere but in a mount namespace of their own.
pub(crate) fn late_objections(image: &Image) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let stands = |one: &&UnixSocket| {
        one.carries || one.is_untold || one.is_elsewhere || one.is_homeless || one.is_lost || one.is_urgent
    };
    for socket in image.unix.iter().filter(stands) {
        let (kind, advice) = if socket.carries {
            let kind = "a unix socket in which descriptors wait (SCM_RIGHTS) that cannot be had".to_owned();
            (kind, "let the program receive them first")
        } else if socket.is_untold {
            let kind = "a unix socket to which something was sent by connections that nobody has accepted, and of which \
                        the kernel does not tell what, or that is no mere data";
            (kind.to_owned(), "let the program accept them first")
        } else if socket.is_urgent {
            (format!("a unix socket in which {URGENT}"), RECEIVE_IT)
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
        refusals.extend(of_file(image, socket.file, (kind, advice)));
    }
    refusals
}

const URGENT: &str = "urgent data waits (MSG_OOB)";
const RECEIVE_IT: &str = "let the program receive it first";

/// The sockets of TCP in which urgent data waits: open files of an image.
pub(crate) fn urgent(image: &Image, files: &[usize]) -> Vec<Refusal> {
    let one = |file: &usize| of_file(image, *file, (format!("a TCP connection in which {URGENT}"), RECEIVE_IT));
    files.iter().filter_map(one).collect()
}

/// What is said of an open file, by who has it; of one in flight by any process.
fn of_file(image: &Image, file: usize, (kind, advice): Objection) -> Option<Refusal> {
    let holds = |process: &&Process| process.descriptors.iter().any(|one| one.file == file);
    let lives = |process: &&Process| !process.threads.is_empty();
    let process = image.processes.iter().find(holds).or_else(|| image.processes.iter().find(lives))?;
    let descriptor = process.descriptors.iter().find(|one| one.file == file).map(|one| one.number);
    let name = process.threads.first().map(|thread| String::from_utf8_lossy(&thread.name).into_owned());
    Some(Refusal { pid: process.pid, name: name.unwrap_or_default(), descriptor, kind, advice })
}

fn unnamed_peer(socket: &OwnedFd) -> bool {
    socket::option::peer_name(socket).is_ok_and(|name| name.len() <= 2)
}
