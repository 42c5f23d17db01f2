//! Captures what kind of socket an open file is.

use crate::capture::{networks, plain_socket};
use crate::image::{FileKind, Image, PlainSocket, UnixSocket};
use crate::inspect::descriptors::Found;
use crate::inspect::namespaces::Beside;
use crate::inspect::open_files::Place;
use crate::inspect::socket_table;
use pando_kernel::{CallError, Context, socket};
use std::os::fd::OwnedFd;

pub(crate) fn borrow(outer: i32, found: &Found) -> Result<OwnedFd, CallError> {
    let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
    socket_table::borrow(Place { outer, number: found.number, device, inode })
}

pub(crate) fn option(socket: &OwnedFd, number: i32) -> Result<i32, CallError> {
    socket::option::number(socket, libc::SOL_SOCKET, number).context(|| "reading a socket".into())
}

/// What an open socket is, in the image; of a unix socket the rest follows when all are known.
pub(crate) fn kind(outer: i32, found: &Found, nets: &Beside, image: &mut Image) -> Result<FileKind, CallError> {
    let socket = borrow(outer, found)?;
    let net_space = if nets.all().is_empty() { None } else { networks::of_socket(&socket, nets).flatten() };
    if option(&socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        let socket = plain_socket::capture(&socket)?;
        return Ok(FileKind::Plain(PlainSocket { net_space, ..socket }));
    }
    image.unix.push(UnixSocket { file: image.files.len(), net_space, ..UnixSocket::default() });
    Ok(FileKind::Unix { socket: image.unix.len() - 1 })
}
