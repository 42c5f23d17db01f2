//! A process that calls at an abstract unix socket: this very program, called as `pando-tests abstract-caller NAME`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

/// The word that makes this program a caller.
pub(crate) const WORD: &str = "abstract-caller";

/// Connects, and says so.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let name = words.first().ok_or(io::ErrorKind::InvalidInput)?;
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    println!("reached");
    Ok(())
}
