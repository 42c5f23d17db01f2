//! Open namespaces (ioctl_ns(2)): of which kind one is, which one owns it, in which it lies, which user made it, and
//! which one a socket belongs to.

pub mod id_map;
pub mod mount;
pub mod pid;
pub mod user;
pub mod uts;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `NS_GET_USERNS`, since Linux 4.9: `_IO(0xb7, 1)`.
const OWNER: libc::c_ulong = 0xb701;
/// `NS_GET_PARENT`, since Linux 4.9: `_IO(0xb7, 2)`.
const PARENT: libc::c_ulong = 0xb702;
/// `NS_GET_OWNER_UID`, since Linux 4.11: `_IO(0xb7, 4)`.
const MAKER: libc::c_ulong = 0xb704;
/// `NS_GET_NSTYPE`, since Linux 4.11: `_IO(0xb7, 3)`.
const KIND: libc::c_ulong = 0xb703;
/// `SIOCGSKNS`, since Linux 4.10.
const OF_SOCKET: libc::c_ulong = 0x894c;

/// The kind of an open namespace, `CLONE_NEW*` (NS_GET_NSTYPE, since Linux 4.11).
///
/// # Errors
///
/// ENOTTY where the descriptor is no namespace.
pub fn kind(namespace: impl AsFd) -> io::Result<i32> {
    ask(namespace, KIND)
}

/// The user namespace that owns an open namespace (NS_GET_USERNS, since Linux 4.9).
///
/// # Errors
///
/// EPERM where that is neither ours nor lies in ours.
pub fn owner(namespace: impl AsFd) -> io::Result<OwnedFd> {
    ask(namespace, OWNER).map(own)
}

/// The namespace that a user namespace lies in (NS_GET_PARENT, since Linux 4.9).
///
/// # Errors
///
/// EPERM where that is neither ours nor lies in ours.
pub fn parent(namespace: impl AsFd) -> io::Result<OwnedFd> {
    ask(namespace, PARENT).map(own)
}

/// The id of the user who made a user namespace, as this process sees it (NS_GET_OWNER_UID, since Linux 4.11).
///
/// # Errors
///
/// EINVAL for a namespace of another kind.
pub fn maker(namespace: impl AsFd) -> io::Result<u32> {
    let mut user: libc::uid_t = 0;
    // SAFETY: the call writes one `uid_t`, which outlives it.
    let answer = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), MAKER, &raw mut user) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(user) }
}

/// The network namespace that a socket belongs to, wherever its process is by now. Needs CAP_NET_ADMIN there.
///
/// # Errors
///
/// EPERM without CAP_NET_ADMIN over its network.
pub fn of_socket(socket: impl AsFd) -> io::Result<OwnedFd> {
    ask(socket, OF_SOCKET).map(own)
}

/// Does something in a network namespace: sockets that are made there belong to it for good.
pub(crate) fn inside_network<T: Send>(
    namespace: BorrowedFd<'_>,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace, Some(kind))?;
        act()
    };
    // A thread is in a namespace by itself.
    let acted = std::thread::scope(|scope| scope.spawn(enter).join());
    acted.map_err(|_| io::Error::other("a thread failed"))?
}

fn ask(file: impl AsFd, what: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: none of these calls touches memory.
    let answer = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), what) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn own(number: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn namespaces_tell_of_themselves() {
        let open = |name: &str| File::open(format!("/proc/self/ns/{name}")).unwrap();
        assert_eq!(kind(open("net")).unwrap(), libc::CLONE_NEWNET);
        assert_eq!(kind(File::open("/").unwrap()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        let inode = |file: &dyn AsFd| rustix::fs::fstat(file.as_fd()).unwrap().st_ino;
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        match of_socket(&socket) {
            Ok(namespace) => assert_eq!(inode(&namespace), inode(&open("net"))),
            Err(error) => eprintln!("skipped: {error}"),
        }
        match maker(open("user")) {
            Ok(user) => assert!(user == rustix::process::geteuid().as_raw() || user != u32::MAX),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert!(maker(open("net")).is_err() && parent(open("net")).is_err());
        match owner(open("uts")) {
            Ok(owner) => assert_eq!(kind(owner).unwrap(), libc::CLONE_NEWUSER),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
