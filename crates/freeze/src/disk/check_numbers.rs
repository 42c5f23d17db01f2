//! Whether the numbers of an image that was read are ones that a capture writes. Each becomes an argument of a system
//! call of those that make a clone, which have powers that no process of it has: what they are asked must be no more
//! than what captures ask.

use crate::capture::{inotify, socket_options};
use crate::disk::wrong::{Wrong, ensure};
use crate::image::memory::KEPT_ADVICE;
use crate::image::{Area, FileKind, Image, Lease, OpenFile, PeerCredentials, Process, Role, SocketOption};
use crate::inspect::descriptors;

/// Those of memory.
pub(crate) fn of_area(area: &Area) -> Result<(), Wrong> {
    let is_kept = |advice: &u32| KEPT_ADVICE.iter().any(|(_, kept)| *kept as u32 == *advice);
    ensure(area.protection <= 7, || "it has no such rights".into())?;
    let once = area.advice.len() <= KEPT_ADVICE.len();
    ensure(once && area.advice.iter().all(is_kept), || "no memory has such advice".into())
}

/// Those of a process's locks and leases.
pub(crate) fn of_process(process: &Process) -> Result<(), Wrong> {
    let is_taken = |Lease { kind, signal, .. }: &Lease| is_lock(*kind) && (0..=64).contains(signal);
    ensure(process.leases.iter().all(is_taken), || "a lease is of no such kind".into())?;
    ensure(process.locks.iter().all(|(_, kind, ..)| is_lock((*kind).into())), || "a lock is of no such kind".into())
}

fn is_lock(kind: i32) -> bool {
    matches!(kind, libc::F_RDLCK | libc::F_WRLCK)
}

/// Those of open files and sockets.
pub(crate) fn of_files(image: &Image) -> Result<(), Wrong> {
    for (number, file) in image.files.iter().enumerate() {
        of_file(file).map_err(|what| format!("open file {number}: {what}"))?;
    }
    for socket in &image.unix {
        let kind = matches!(socket.kind, libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_SEQPACKET);
        ensure(kind && socket.shut <= 3, || "a unix socket is of no such kind".into())?;
        let connectors = socket.gone.iter().map(|one| &one.connector);
        let known =
            [&socket.peer_credentials, &socket.connector].into_iter().flatten().chain(connectors).all(is_somebody);
        ensure(known, || "whoever connected a unix socket is nobody".into())?;
        options(&socket.options)?;
    }
    Ok(())
}

/// Whether these are ids. The one that is none would leave whoever takes it who he is.
fn is_somebody(who: &PeerCredentials) -> bool {
    const MOST_GROUPS: usize = 65_536;
    let is_id = |id: &u32| *id != u32::MAX;
    who.further.len() <= MOST_GROUPS && [who.user, who.group].iter().chain(&who.further).all(is_id)
}

fn of_file(file: &OpenFile) -> Result<(), Wrong> {
    ensure(file.flags == descriptors::lasting(file.flags), || "it makes what it opens".into())?;
    let locked = file.lock.is_none_or(|lock| matches!(lock, libc::LOCK_SH | libc::LOCK_EX));
    let ranges = file.ranges.iter().all(|(kind, ..)| is_lock((*kind).into()));
    ensure(locked && ranges, || "a lock is of no such kind".into())?;
    match &file.kind {
        FileKind::Inotify { watches } => {
            let asked = watches.iter().all(|watch| watch.events & !inotify::ASKED == 0);
            ensure(asked, || "it watches for what there is not".into())
        }
        FileKind::Plain(socket) => {
            // TCP connects by waiting for an answer; no socket of it was captured so.
            let waits = matches!(socket.role, Role::Sends { .. }) && socket.kind == libc::SOCK_STREAM;
            ensure(!waits, || "a socket of a connection sends without one".into())?;
            options(&socket.options)
        }
        _ => Ok(()),
    }
}

fn options(options: &[SocketOption]) -> Result<(), Wrong> {
    let kept = options.iter().all(|(level, number, _)| socket_options::is_kept(*level, *number));
    ensure(kept, || "a socket has an option that nobody keeps".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::check::check;
    use crate::example::image;
    use crate::image::{FileWatch, GoneClient, NetDevice, PlainSocket, Waiting};

    #[test]
    fn networks_and_connections_that_no_capture_writes_are_refused() {
        let gone = |behind, files| GoneClient {
            behind,
            sent: vec![Waiting { files, ..Waiting::default() }],
            connector: PeerCredentials::default(),
        };
        let listens = |gone: Vec<GoneClient>| {
            let mut image = image();
            (image.unix[0].backlog, image.unix[0].gone) = (Some(1), gone);
            check(&image)
        };
        assert_eq!(listens(vec![gone(0, Vec::new())]), Ok(()));
        assert!(listens(vec![gone(1, Vec::new())]).is_err(), "nobody waits before it");
        assert!(listens(vec![gone(0, vec![0])]).is_err(), "it comes with a descriptor");
        assert!(listens(vec![GoneClient::default(); 5000]).is_err(), "there are too many");
        let nobody = PeerCredentials { user: u32::MAX, ..PeerCredentials::default() };
        assert!(listens(vec![GoneClient { connector: nobody, ..GoneClient::default() }]).is_err());
        let device = |name: &str, longest| {
            let net_device = Some(NetDevice { name: name.into(), longest });
            check(&Image { net_device, ..image() })
        };
        assert_eq!(device("eth0", 1300), Ok(()));
        for (name, longest) in [("eth0", 67), ("eth0", 1 << 16), ("", 1300), ("a/b", 1300), ("sixteen-letters-", 1300)]
        {
            assert!(device(name, longest).is_err(), "{name} {longest}");
        }
        let changes: [fn(&mut Image); 4] = [
            |image| image.unix[0].sent = vec![Waiting::default()],
            |image| image.unix[0].gone = vec![GoneClient::default()],
            |image| image.net_spaces[0].settings = vec![("/proc/sys/kernel/core_pattern".into(), "x".into())],
            |image| image.net_spaces[0].settings = vec![("/proc/sys/net/../kernel/hostname".into(), "x".into())],
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut image = image();
            change(&mut image);
            assert!(check(&image).is_err(), "{number}");
        }
    }

    #[test]
    fn what_no_capture_writes_is_refused() {
        const ADVICE: [i32; 6] = [0, libc::MADV_WILLNEED, libc::MADV_REMOVE, 23, libc::MADV_HWPOISON, 101];
        for advice in ADVICE {
            let mut image = image();
            image.processes[0].areas[0].advice = vec![advice as u32];
            assert!(check(&image).is_err(), "{advice}");
        }
        let changes: [fn(&mut Image); 8] = [
            |image| image.files[0].flags |= libc::O_CREAT as u32,
            |image| image.files[0].flags |= libc::O_TRUNC as u32,
            |image| image.files[0].lock = Some(libc::LOCK_UN),
            |image| image.processes[0].locks = vec![(0, 7, 0, 0)],
            |image| {
                image.processes[0].leases = vec![Lease { descriptor: 0, kind: libc::F_WRLCK, signal: 99, owner: 0 }];
            },
            |image| {
                let watch = FileWatch { number: 1, events: 1 << 28, path: "/".into() };
                image.files[0].kind = FileKind::Inotify { watches: vec![watch] };
            },
            |image| {
                let (family, kind, role) = (libc::AF_INET, libc::SOCK_STREAM, Role::Sends { to: vec![2; 16] });
                image.files[0].kind = FileKind::Plain(PlainSocket { family, kind, role, ..PlainSocket::default() });
            },
            |image| {
                // IPT_SO_SET_REPLACE: the rules of a packet filter.
                let options = vec![(0, 64, vec![0; 4])];
                let socket = PlainSocket { family: libc::AF_INET, kind: 3, options, ..PlainSocket::default() };
                image.files[0].kind = FileKind::Plain(socket);
            },
        ];
        assert_eq!(check(&image()), Ok(()));
        for (number, change) in changes.into_iter().enumerate() {
            let mut image = image();
            change(&mut image);
            assert!(check(&image).is_err(), "{number}");
        }
    }
}
