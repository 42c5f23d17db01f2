//! Who made connections by unix sockets, as their other ends are told.

use crate::image::socket::NOBODY;
use crate::image::{Image, PeerCredentials};
use crate::inspect::credentials::IdMaps;
use pando_kernel::socket;
use std::io;
use std::os::fd::OwnedFd;

/// What a socket is told of its other end, in the ids of a user namespace. Who has none in it is nobody there, as the
/// socket's own processes are told too.
pub(crate) fn of(socket: &OwnedFd, maps: &IdMaps) -> io::Result<Option<PeerCredentials>> {
    let Some((user, group)) = socket::option::peer_ids(socket)? else { return Ok(None) };
    let group_inside = |id: u32| maps.group(id).unwrap_or(NOBODY);
    let mut further: Vec<u32> = socket::option::peer_groups(socket)?.into_iter().map(group_inside).collect();
    further.sort_unstable();
    Ok(Some(PeerCredentials { user: maps.user(user).unwrap_or(NOBODY), group: group_inside(group), further }))
}

/// Who connected a socket that waits to be accepted. The kernel tells that to nobody before: so it is who can have done
/// it, the one who made the socket (`maker`, user and group) and those who have it now. It is root only if all of them
/// are: nobody becomes root by waiting.
pub(crate) fn of_waiting(image: &Image, number: usize, maker: (u32, u32)) -> PeerCredentials {
    let file = image.unix[number].file;
    let has_it = image.processes.iter().filter(|process| process.descriptors.iter().any(|one| one.file == file));
    let threads = has_it.flat_map(|process| &process.threads).map(|thread| &thread.credentials);
    let holders = threads.map(|who| {
        let mut further = who.further.clone();
        further.sort_unstable();
        PeerCredentials { user: who.users[1], group: who.groups[1], further }
    });
    let mut candidates: Vec<_> = holders.collect();
    if candidates.iter().all(|who| who.user != maker.0) {
        candidates.push(PeerCredentials { user: maker.0, group: maker.1, further: Vec::new() });
    }
    candidates.retain({
        let roots_only = candidates.iter().all(|who| who.user == 0);
        move |who| roots_only || who.user != 0
    });
    candidates.dedup();
    match &candidates[..] {
        [one] => one.clone(),
        _ => PeerCredentials::nobody(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Credentials, Descriptor, Process, Thread, UnixSocket};

    #[test]
    fn who_waits_is_root_only_where_all_are_who_could_have_connected() {
        let process = |user: u32| {
            let credentials = Credentials { users: [0, user, 0, 0], groups: [user; 4], ..Credentials::default() };
            let descriptors = vec![Descriptor { number: 3, file: 5, close_on_exec: false }];
            Process { threads: vec![Thread { credentials, ..Thread::default() }], descriptors, ..Process::default() }
        };
        let with = |users: &[u32], maker: u32| {
            let unix = vec![UnixSocket { file: 5, ..UnixSocket::default() }];
            let processes = users.iter().map(|user| process(*user)).collect();
            of_waiting(&Image { processes, unix, ..Image::default() }, 0, (maker, maker)).user
        };
        assert_eq!([with(&[0, 0], 0), with(&[1000], 1000), with(&[], 7), with(&[], 0)], [0, 1000, 7, 0]);
        assert_eq!([with(&[0], 1000), with(&[1000], 0), with(&[0, 1000], 0)], [1000; 3]);
        assert_eq!([with(&[1000, 1001], 0), with(&[1000], 1001)], [NOBODY; 2]);
    }
}
