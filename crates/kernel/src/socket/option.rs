//! Any option, name and state of a socket, as the kernel's bytes: getsockopt(2), setsockopt(2), getsockname(2),
//! getpeername(2). It is for code that copies sockets and need not know what each option means.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The longest option or name that is asked for: `struct sockaddr_storage` and `struct tcp_info` fit.
const LONGEST: usize = 512;

/// An option's value; as long as the kernel makes it, at most 512 bytes.
///
/// # Errors
///
/// ENOPROTOOPT where the socket has no such option.
pub fn get(socket: impl AsFd, level: i32, option: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; LONGEST];
    let mut length = LONGEST as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and how many, to places of ours.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, bytes.as_mut_ptr().cast(), &raw mut length)
    };
    finished(result, bytes, length)
}

/// An option that is a number; numbers of one byte, too.
///
/// # Errors
///
/// ENOPROTOOPT where the socket has no such option.
pub fn number(socket: impl AsFd, level: i32, option: i32) -> io::Result<i32> {
    get(socket, level, option).map(|bytes| {
        let mut word = [0; 4];
        let length = bytes.len().min(4);
        word[..length].copy_from_slice(&bytes[..length]);
        i32::from_le_bytes(word)
    })
}

/// An option that is a number of eight bytes: some take room for nothing else.
///
/// # Errors
///
/// ENOPROTOOPT where the socket has no such option.
pub fn wide_number(socket: impl AsFd, level: i32, option: i32) -> io::Result<u64> {
    let (mut number, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most eight bytes, and how many, to places of ours.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw mut number).cast(), &raw mut length)
    };
    if result == 0 { Ok(number) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option that is a number.
///
/// # Errors
///
/// ENOPROTOOPT where the socket has no such option; EINVAL for a value that it does not take; EPERM where it needs a
/// capability.
pub fn set_number(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads four bytes.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option to the kernel's bytes.
///
/// # Errors
///
/// ENOPROTOOPT where the socket has no such option; EPERM where it needs a capability; EINVAL where the value is not
/// one.
pub fn set(socket: impl AsFd, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes as there are.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Who is at a unix socket's other end (SO_PEERCRED): user and group, as the caller's user namespace knows them. `None`
/// where the kernel knows of nobody: of what is not connected, and of datagrams that were connected by a name.
///
/// # Errors
///
/// ENOTSOCK, EBADF alone.
pub fn peer_ids(socket: impl AsFd) -> io::Result<Option<(u32, u32)>> {
    const NONE: u32 = u32::MAX;
    let bytes = get(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(NONE, u32::from_le_bytes);
    let (user, group) = (word(4), word(8));
    Ok((user != NONE).then_some((user, group)))
}

/// The further groups of whoever is at a unix socket's other end (SO_PEERGROUPS, since Linux 4.13), in the order that
/// the kernel has them in; none where it knows of nobody.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 4.13.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    const SO_PEERGROUPS: i32 = 59;
    let ask = |groups: &mut [u32]| {
        let mut length = size_of_val(groups) as libc::socklen_t;
        let (number, at) = (socket.as_fd().as_raw_fd(), groups.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `length` bytes, and how many there are, to places of ours.
        let result = unsafe { libc::getsockopt(number, libc::SOL_SOCKET, SO_PEERGROUPS, at, &raw mut length) };
        let error = if result == 0 { None } else { Some(io::Error::last_os_error()) };
        (length as usize / size_of::<u32>(), error)
    };
    let raw = |error: &Option<io::Error>| error.as_ref().and_then(io::Error::raw_os_error);
    let (count, error) = ask(&mut []);
    match raw(&error) {
        Some(libc::ENODATA) => return Ok(Vec::new()),
        // It says how many there are.
        Some(libc::ERANGE) => {}
        _ => return error.map_or(Ok(Vec::new()), Err),
    }
    let mut groups = vec![0; count];
    let (_, error) = ask(&mut groups);
    error.map_or(Ok(groups), Err)
}

/// The packet filter of a socket (`SO_GET_FILTER`), as instructions of eight bytes; nothing where there is no filter.
/// EACCES for one of BPF's newer kind.
///
/// # Errors
///
/// EACCES for a filter of BPF's newer kind.
pub fn filter(socket: impl AsFd) -> io::Result<Vec<u8>> {
    const INSTRUCTION: usize = 8;
    let ask = |bytes: &mut [u8]| {
        // It counts instructions, and copies all of them or none.
        let mut count = (bytes.len() / INSTRUCTION) as libc::socklen_t;
        let (number, at) = (socket.as_fd().as_raw_fd(), bytes.as_mut_ptr());
        // SAFETY: the kernel writes at most as many instructions as there is room for, none if it is told of none, and
        // how many there are.
        let result =
            unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at.cast(), &raw mut count) };
        if result == 0 { Ok(count as usize) } else { Err(io::Error::last_os_error()) }
    };
    let count = ask(&mut [])?;
    let mut bytes = vec![0; count * INSTRUCTION];
    if count > 0 && ask(&mut bytes)? != count {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(bytes)
}

/// The file that a unix socket is bound to, whatever its name by now, open by O_PATH (SIOCUNIXFILE, since Linux 4.12).
/// ENOENT if it is bound to none. Needs CAP_NET_ADMIN over the socket's network.
///
/// # Errors
///
/// ENOENT where it is bound to no file; EPERM without CAP_NET_ADMIN over its network.
pub fn unix_file(socket: impl AsFd) -> io::Result<OwnedFd> {
    const SIOCUNIXFILE: libc::c_ulong = 0x89e0;
    // SAFETY: the request takes no argument.
    let file = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE as _, 0) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The socket's own address: a family in two bytes, then what the family wants.
///
/// # Errors
///
/// ENOTSOCK, EBADF alone.
pub fn name(socket: impl AsFd) -> io::Result<Vec<u8>> {
    address(socket, libc::getsockname)
}

/// The address that a socket is connected to.
///
/// # Errors
///
/// ENOTCONN where the socket is not connected.
pub fn peer_name(socket: impl AsFd) -> io::Result<Vec<u8>> {
    address(socket, libc::getpeername)
}

type Ask = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(socket: impl AsFd, ask: Ask) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; LONGEST];
    let mut length = LONGEST as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and how many, to places of ours.
    let result = unsafe { ask(socket.as_fd().as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut length) };
    finished(result, bytes, length)
}

fn finished(result: i32, mut bytes: Vec<u8>, length: libc::socklen_t) -> io::Result<Vec<u8>> {
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(length as usize);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn who_made_a_pair_is_known_and_nobody_where_nobody_did() {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_ids(&one).unwrap(), Some(own));
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        assert_eq!(peer_groups(&one).unwrap(), groups);
        let alone = UnixDatagram::unbound().unwrap();
        assert_eq!((peer_ids(&alone).unwrap(), peer_groups(&alone).unwrap()), (None, Vec::new()));
    }

    #[test]
    fn options_and_names_are_the_kernels_bytes() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let name = name(&socket).unwrap();
        assert_eq!((name.len(), &name[..4]), (16, &[2, 0, (port >> 8) as u8, port as u8][..]));
        assert_eq!(peer_name(&socket).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        set_number(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST, 1).unwrap();
        assert_eq!(number(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST).unwrap(), 1);
        assert_eq!(number(&socket, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap(), libc::AF_INET);
    }
}
