//! The shim: what a guest grows from. See the library for the language it understands.
//!
//! The spawner starts this program once, as the nursery, with a socket as descriptor 0; shims are forked from it (see
//! `nursery.rs`), each with a handshake socket, a listening socket, and a descriptor that it merely holds (the lock on
//! its slot). It has no arguments, no environment and no heap; its memory is a few pages.
//!
//! The handshake: the shim, already in its cgroups, makes its namespaces *after* the program was executed, so that its
//! memory belongs to the host's user namespace and stays out of reach of a guest's root, whatever capabilities that has
//! inside; then the spawner maps its ids; then it becomes root of its namespace and listens. Words are four bytes: a
//! negative one is an error number.
//!
//! Its user namespace is made in the name of the guest's own first id. What the kernel counts for each user (inotify
//! instances, timers, queued signals, namespaces, …) it counts twice: inside, and for the user of the host that made
//! the namespace. Were that the host's root, one guest could use up what all others and the host itself have.

#![no_std]
#![no_main]

mod bare;
mod command;
mod console;
mod container;
mod grow;
mod held_mounts;
mod init;
mod log;
mod memory;
mod mountpoint;
mod nursery;
mod packet;
mod serve;

use bare::signals;
use nursery::Newborn;
use pando_shim::Scopes;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

const CLONE_NEWUSER: u32 = 0x1000_0000;
const CLONE_NEWNET: u32 = 0x4000_0000;

fn program() -> ! {
    signals::block();
    signals::all_default();
    bare::undumpable();
    let Newborn { handshake, listener } = nursery::tend();
    let outcome = match settle(&handshake) {
        Ok(()) => serve::serve(handshake, listener),
        Err(errno) => say(&handshake, -errno.raw_os_error()),
    };
    bare::exit(if outcome.is_ok() { 1 } else { 2 })
}

fn say(handshake: &OwnedFd, word: i32) -> Result<(), Errno> {
    rustix::io::write(handshake, &word.to_le_bytes()).map(drop)
}

fn hear(handshake: &OwnedFd) -> Result<u32, Errno> {
    let mut word = [0; 4];
    if rustix::io::read(handshake, &mut word)? != word.len() {
        bare::exit(0);
    }
    Ok(u32::from_le_bytes(word))
}

/// Moves into the namespaces that the spawner names (`CLONE_NEW*`; then the guest's first id on the host) and becomes
/// root there.
#[inline(never)]
fn settle(handshake: &OwnedFd) -> Result<(), Errno> {
    let (namespaces, owner) = (hear(handshake)?, hear(handshake)?);
    if namespaces & CLONE_NEWUSER != 0 {
        own_by(owner)?;
    }
    bare::unshare(namespaces & (CLONE_NEWUSER | CLONE_NEWNET))?;
    // Only the nursery knows its pid otherwise; the spawner writes its id maps now.
    say(handshake, rustix::process::getpid().as_raw_nonzero().get())?;
    hear(handshake)?;
    if namespaces & CLONE_NEWUSER != 0 {
        set_thread_groups(&[])?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        bare::undumpable();
    }
    // Guests share no keys. Where its user may have no more, the daemon's is as empty.
    let _ = bare::begin_session_keyring(None);
    let scopes = Scopes::from_bits_truncate(namespaces);
    if !scopes.is_empty() {
        // An older kernel cannot; `pando doctor` tells what is lost.
        let _ = bare::keep_inside(scopes);
    }
    if namespaces & CLONE_NEWNET != 0 {
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
        bare::loopback_up(socket.as_fd())?;
        open_to_users();
    }
    say(handshake, 0)
}

/// Has `owner` make the next user namespace. The real id stays root's: for another the new namespace would be bound to
/// root's own limit of processes. Capabilities stay too, which hosts ask for that let no other user make such
/// namespaces; a new namespace begins with neither.
fn own_by(owner: u32) -> Result<(), Errno> {
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(owner), Uid::ROOT)?;
    // A change of credentials may have undone this.
    bare::undumpable();
    Ok(())
}

/// Lets every user of a network that no other shares listen on any port, and ping (ip-sysctl): the kernel keeps both
/// from all but root for the sake of others. One that knows neither keeps them.
#[inline(never)]
fn open_to_users() {
    let settings = [
        (c"/proc/sys/net/ipv4/ip_unprivileged_port_start", b"0".as_slice()),
        (c"/proc/sys/net/ipv4/ping_group_range", b"0 65535"),
    ];
    for (path, value) in settings {
        let opened = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let _ = opened.and_then(|setting| rustix::io::write(setting, value));
    }
}
