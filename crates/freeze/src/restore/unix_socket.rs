//! How a clone's unix sockets are made. All at once: pairs; sockets that have names; connections, through whoever
//! listens. What waits in them comes when all other open files are made, for those may be among it.
//!
//! What was accepted has its listener's name, which no second socket can have: it is had by connecting to the listener
//! and accepting that.

use crate::image::socket::SNDBUF;
use crate::image::{Image, PeerCredentials, Sender, SocketOption, UnixSocket, Waiting};
use crate::restore::networks;
use crate::restore::peer_credentials::acting_as;
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;
use crate::restore::unix_origin::{Origin, has_name, late_widows, origin};
use pando_restorer::Special;

const MAKING: Chapter = Writer::MAKING;
const AF_UNIX: u64 = libc::AF_UNIX as u64;

/// Writes the steps that make them.
pub(crate) fn make(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32)) {
    let all = &image.unix;
    let making = Making::of(image, (slots, helper));
    for (number, origin) in making.origins.iter().enumerate() {
        making.make(writer, number, *origin);
    }
    // A name whose file is gone may be another's by now.
    for there in [false, true] {
        for (number, socket) in all.iter().enumerate() {
            let is_there = socket.place.is_some() && socket.published.is_none() || socket.path().is_none();
            if is_there == there {
                making.name(writer, number, there);
            }
        }
    }
}

/// Writes those that fill them, when all open files are there.
pub(crate) fn fill(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32)) {
    let making = Making::of(image, (slots, helper));
    for (number, socket) in image.unix.iter().enumerate() {
        making.fill(writer, number, socket);
    }
    for (number, socket) in image.unix.iter().enumerate() {
        making.finish(writer, number, socket);
    }
}

struct Making<'a> {
    image: &'a Image,
    all: &'a [UnixSocket],
    origins: Vec<Origin>,
    slots: Slots,
    /// A pid that is free.
    helper: i32,
}

impl<'a> Making<'a> {
    fn of(image: &'a Image, (slots, helper): (Slots, i32)) -> Self {
        let all = &image.unix;
        let origins = (0..all.len()).map(|number| origin(all, number)).collect();
        Self { image, all, origins, slots, helper }
    }

    /// Where the other end of a socket waits to go.
    fn widowed(&self, number: usize) -> Option<u64> {
        late_widows(self.all).position(|late| late == number).map(|place| self.slots.late_widow(place))
    }

    fn slot(&self, number: usize) -> u64 {
        self.slots.file(self.all[number].file)
    }

    fn make(&self, writer: &mut Writer, number: usize, origin: Origin) {
        let space = self.all[number].net_space;
        networks::inside(writer, self.slots, space, |writer| self.create(writer, number, origin));
        if origin == Origin::Widow && self.widowed(number).is_none() {
            let other = self.slots.spare();
            self.fill_from(writer, number, other);
            writer.call(MAKING, "closing the other end", libc::SYS_close, &[other]);
        }
    }

    fn create(&self, writer: &mut Writer, number: usize, origin: Origin) {
        let kind = self.all[number].kind as u64;
        let slot = self.slot(number);
        match origin {
            Origin::Alone => {
                // Whoever connects to a listener that takes no more would wait; flags are set when it is there.
                let kind = kind | libc::SOCK_NONBLOCK as u64;
                writer.open(MAKING, "making a unix socket", libc::SYS_socket, &[AF_UNIX, kind, 0], slot);
            }
            Origin::Pair { other } => self.pair(writer, number, self.slot(other)),
            Origin::Widow => {
                let other = self.widowed(number).unwrap_or(self.slots.spare());
                self.pair(writer, number, other);
            }
            Origin::Paired | Origin::Accepted { .. } | Origin::AcceptedLate { .. } => {}
        }
    }

    fn pair(&self, writer: &mut Writer, number: usize, other: u64) {
        let (slot, kind) = (self.slot(number), self.all[number].kind as u64);
        acting_as(writer, self.all[number].peer_credentials.as_ref(), |writer| {
            writer.special(MAKING, "making two sockets", Special::Pair, &[slot, other, kind]);
        });
    }

    /// Binds a socket and lets connect who is connected to its name.
    fn name(&self, writer: &mut Writer, number: usize, stays: bool) {
        let socket = &self.all[number];
        if !socket.is_named() || matches!(self.origins[number], Origin::Accepted { .. }) {
            return;
        }
        // What nobody listens for any more is accepted from a listener that goes again.
        let passes = matches!(self.origins[number], Origin::AcceptedLate { .. });
        let slot = if passes { self.slots.spare() } else { self.slot(number) };
        if passes {
            networks::inside(writer, self.slots, socket.net_space, |writer| {
                let arguments = [AF_UNIX, socket.kind as u64, 0];
                writer.open(MAKING, "making a listener", libc::SYS_socket, &arguments, slot);
            });
        }
        let path = socket.path();
        let set_aside = path.as_ref().map(|path| (writer.string(path), writer.string(&format!("{path}.pando"))));
        if let Some((at, aside)) = set_aside {
            if stays {
                writer.attempt(MAKING, "removing a socket's old file", libc::SYS_unlink, &[at]);
            } else {
                writer.attempt(MAKING, "setting a file aside", libc::SYS_rename, &[at, aside]);
            }
        }
        let borrowed = path.as_ref().filter(|_| socket.borrows_directory).and_then(|path| path.rsplit_once('/'));
        let borrowed = borrowed.map(|(directory, _)| writer.string(directory));
        if let Some(directory) = borrowed {
            writer.attempt(MAKING, "making a directory that was gone", libc::SYS_mkdir, &[directory, 0o700]);
        }
        bind(writer, slot, socket);
        if let (Some((at, _)), Some((mode, user, group))) = (set_aside, socket.place) {
            writer.call(MAKING, "setting the owner of a socket", libc::SYS_lchown, &[at, user.into(), group.into()]);
            writer.call(MAKING, "setting the mode of a socket", libc::SYS_fchmodat, &[AT_FDCWD, at, mode.into()]);
        }
        if let Some(backlog) = socket.backlog {
            // Those that wait may be more than it takes by now. For who connects beyond that the kernel waits, until
            // somebody accepts.
            let waiting = socket.waiting.len() + socket.gone.len();
            let mut listener = Listener { slot, room: backlog.max(waiting as u32), done: None };
            listener.listen(writer, socket.peer_credentials.as_ref());
            self.connect_all(writer, number, &mut listener);
            listener.room = backlog;
            listener.listen(writer, socket.peer_credentials.as_ref());
        } else if let Origin::AcceptedLate { client } = self.origins[number] {
            let mut listener = Listener { slot, room: 1, done: None };
            self.accept(writer, number, client, &mut listener);
            writer.call(MAKING, "listening no more", libc::SYS_close, &[slot]);
        } else {
            self.connect_datagrams(writer, number);
        }
        if let (Some((at, aside)), false) = (set_aside, stays) {
            match &socket.published {
                Some(path) => {
                    let now = writer.string(path);
                    writer.call(MAKING, format!("renaming a socket to {path}"), libc::SYS_rename, &[at, now]);
                }
                None => {
                    writer.attempt(MAKING, "removing a name that was gone", libc::SYS_unlink, &[at]);
                }
            }
            writer.attempt(MAKING, "putting a file back", libc::SYS_rename, &[aside, at]);
        }
        if let Some(directory) = borrowed {
            writer.attempt(MAKING, "removing a directory that was gone", libc::SYS_rmdir, &[directory]);
        }
    }

    /// Connects those whose connections a listener has accepted, and those that wait at it.
    fn connect_all(&self, writer: &mut Writer, to: usize, listener: &mut Listener) {
        for (number, origin) in self.origins.iter().enumerate() {
            if let Origin::Accepted { listener: of, client } = origin
                && *of == to
            {
                self.accept(writer, number, *client, listener);
            }
        }
        let target = &self.all[to];
        let connect = |writer: &mut Writer, listener: &mut Listener, client: usize| {
            listener.listen(writer, self.all[client].peer_credentials.as_ref());
            acting_as(writer, self.all[client].connector.as_ref(), |writer| self.connect(writer, client, target));
        };
        for (place, client) in target.waiting.iter().enumerate() {
            self.connect_gone(writer, (to, place), listener);
            connect(writer, listener, *client);
            self.send_all(writer, self.slot(*client), &self.all[*client].sent);
        }
        self.connect_gone(writer, (to, target.waiting.len()), listener);
    }

    /// Connects those that were closed when so many waited before them, and closes them again.
    fn connect_gone(&self, writer: &mut Writer, (to, behind): (usize, usize), listener: &mut Listener) {
        let (target, spare) = (&self.all[to], self.slots.spare());
        for gone in target.gone.iter().filter(|gone| gone.behind == behind) {
            networks::inside(writer, self.slots, target.net_space, |writer| {
                let arguments = [AF_UNIX, target.kind as u64, 0];
                writer.open(MAKING, "making who is gone", libc::SYS_socket, &arguments, spare);
            });
            listener.listen(writer, None);
            acting_as(writer, Some(&gone.connector), |writer| self.connect_from(writer, spare, target));
            self.send_all(writer, spare, &gone.sent);
            writer.call(MAKING, "closing who is gone", libc::SYS_close, &[spare]);
        }
    }

    /// Connects a client to a listener, each as who it was, and accepts that.
    fn accept(&self, writer: &mut Writer, number: usize, client: usize, listener: &mut Listener) {
        let accepted = &self.all[number];
        listener.listen(writer, self.all[client].peer_credentials.as_ref());
        acting_as(writer, accepted.peer_credentials.as_ref(), |writer| self.connect(writer, client, accepted));
        writer.open(MAKING, "accepting", libc::SYS_accept4, &[listener.slot, 0, 0, 0], self.slot(number));
    }

    /// Connects one to another's name.
    fn connect(&self, writer: &mut Writer, client: usize, target: &UnixSocket) {
        self.connect_from(writer, self.slot(client), target);
    }

    fn connect_from(&self, writer: &mut Writer, slot: u64, target: &UnixSocket) {
        enter(writer, target);
        let address = writer.data(&target.name, 8);
        let arguments = [slot, address, target.name.len() as u64];
        writer.call(MAKING, "connecting a unix socket", libc::SYS_connect, &arguments);
        leave(writer, target);
    }

    fn connect_datagrams(&self, writer: &mut Writer, to: usize) {
        let follows = |number: &usize| {
            let socket = &self.all[*number];
            socket.kind == libc::SOCK_DGRAM && socket.peer == Some(to) && self.origins[*number] == Origin::Alone
        };
        for client in (0..self.all.len()).filter(follows) {
            self.connect(writer, client, &self.all[to]);
        }
    }

    /// Who a socket's messages come from: the one that is connected to it, the one that has the sender's name.
    fn fill(&self, writer: &mut Writer, number: usize, socket: &UnixSocket) {
        if let Some(other) = self.widowed(number) {
            self.fill_from(writer, number, other);
            writer.call(MAKING, "closing the other end", libc::SYS_close, &[other]);
        }
        if socket.queue.is_empty() || self.origins[number] == Origin::Widow {
            return;
        }
        if let Some(peer) = socket.peer.filter(|peer| self.all[*peer].peer == Some(number)) {
            self.fill_from(writer, number, self.slot(peer));
            return;
        }
        let spare = self.slots.spare();
        let address = writer.data(&socket.name, 8);
        for message in &socket.queue {
            let known = self.all.iter().position(|one| one.is_named() && has_name(one, socket, &message.from));
            let from = known.map_or(spare, |known| self.slot(known));
            if known.is_none() {
                let kind = socket.kind as u64;
                networks::inside(writer, self.slots, socket.net_space, |writer| {
                    writer.open(MAKING, "making a sender", libc::SYS_socket, &[AF_UNIX, kind, 0], spare);
                });
                // A sender that is gone: its name, too, unless that is a file.
                if message.from.get(2) == Some(&0) {
                    let name = writer.data(&message.from, 8);
                    let arguments = [spare, name, message.from.len() as u64];
                    writer.attempt(MAKING, "naming a sender", libc::SYS_bind, &arguments);
                }
            }
            enter(writer, socket);
            self.send(writer, from, message, Some((address, socket.name.len() as u64)));
            leave(writer, socket);
            if known.is_none() {
                writer.call(MAKING, "closing a sender", libc::SYS_close, &[spare]);
            }
        }
    }

    fn fill_from(&self, writer: &mut Writer, number: usize, slot: u64) {
        self.send_all(writer, slot, &self.all[number].queue);
    }

    /// Sends to whom a socket is connected to, however much that is.
    fn send_all(&self, writer: &mut Writer, slot: u64, queue: &[Waiting]) {
        const SNDBUFFORCE: i32 = 32;
        const ROOM: u32 = 8 << 20;
        if !queue.is_empty() {
            set(writer, slot, &(libc::SOL_SOCKET, SNDBUF, ROOM.to_le_bytes().to_vec()));
            set(writer, slot, &(libc::SOL_SOCKET, SNDBUFFORCE, ROOM.to_le_bytes().to_vec()));
        }
        for message in queue {
            self.send(writer, slot, message, None);
        }
    }

    /// Sends a whole message with all that comes with it, or fails. The kernel names no process as a sender but one
    /// that is there: so one has that number for as long as it sends.
    fn send(&self, writer: &mut Writer, slot: u64, message: &Waiting, to: Option<(u64, u64)>) {
        let Some(Sender { process, .. }) = message.sender.filter(|sender| sender.process != self.image.init) else {
            return self.send_as(writer, (MAKING, self.image.init), (slot, message, to));
        };
        // The number of a process that is gone is another's by now.
        let is_there = self.image.processes.iter().any(|one| one.pid == process);
        let process = if is_there { process } else { self.helper };
        let sender = writer.chapter();
        writer.fork(MAKING, process, sender);
        self.send_as(writer, (sender, process), (slot, message, to));
        writer.special(sender, "having sent", Special::Exit, &[0, 0]);
        let arguments = [process as u64, 0, 0, 0];
        writer.exact(MAKING, "waiting for a sender", libc::SYS_wait4, &arguments, process as u64);
    }

    /// The same by a process, which is named as the sender where anybody is.
    fn send_as(
        &self,
        writer: &mut Writer,
        (chapter, process): (Chapter, i32),
        (slot, message, to): (u64, &Waiting, Option<(u64, u64)>),
    ) {
        let (at, length) = (writer.data(&message.bytes, 1), message.bytes.len() as u64);
        let (address, address_length) = to.unwrap_or((0, 0));
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        if message.files.is_empty() && message.sender.is_none() {
            let arguments = [slot, at, length, flags, address, address_length];
            writer.exact(chapter, "filling a unix socket", libc::SYS_sendto, &arguments, length);
            return;
        }
        let mut control = if message.files.is_empty() { Vec::new() } else { self.rights(&message.files) };
        if let Some(Sender { user, group, .. }) = message.sender {
            control.extend(ancillary(libc::SCM_CREDENTIALS, &[process as u32, user, group]));
        }
        let (part, at) = (writer.words(&[at, length]), writer.data(&control, 8));
        // `struct msghdr`.
        let header = writer.words(&[address, address_length, part, 1, at, control.len() as u64, 0]);
        let arguments = [slot, header, flags];
        writer.exact(chapter, "putting descriptors into a unix socket", libc::SYS_sendmsg, &arguments, length);
    }

    fn rights(&self, files: &[usize]) -> Vec<u8> {
        let numbers: Vec<u32> = files.iter().map(|file| self.slots.file(*file) as u32).collect();
        ancillary(libc::SCM_RIGHTS, &numbers)
    }

    fn finish(&self, writer: &mut Writer, number: usize, socket: &UnixSocket) {
        let slot = self.slot(number);
        let filled = socket.peer.is_some_and(|peer| !self.all[peer].queue.is_empty()) || !socket.sent.is_empty();
        if filled && socket.options.iter().all(|(level, option, _)| (*level, *option) != (libc::SOL_SOCKET, SNDBUF)) {
            // As much as a new one has: net.core.wmem_default.
            const USUAL: u32 = 212_992 / 2;
            set(writer, slot, &(libc::SOL_SOCKET, SNDBUF, USUAL.to_le_bytes().to_vec()));
        }
        for option in &socket.options {
            set(writer, slot, option);
        }
        if let Some(how) = [None, Some(0), Some(1), Some(2)][usize::from(socket.shut & 3)]
            && self.origins[number] != Origin::Widow
        {
            writer.attempt(MAKING, "shutting a socket", libc::SYS_shutdown, &[slot, how]);
        }
    }
}

/// `struct cmsghdr` and the words behind it.
fn ancillary(kind: i32, words: &[u32]) -> Vec<u8> {
    const HEADER: usize = 16;
    let mut bytes = ((HEADER + 4 * words.len()) as u64).to_le_bytes().to_vec();
    bytes.extend([libc::SOL_SOCKET, kind].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// A socket that listens, and as whom: whoever connects to it is told that.
struct Listener {
    slot: u64,
    /// How many connections may wait.
    room: u32,
    /// What was done last: room, and as whom.
    done: Option<(u32, Option<PeerCredentials>)>,
}

impl Listener {
    /// Has it listen as somebody. It does so again where that is another than before.
    fn listen(&mut self, writer: &mut Writer, who: Option<&PeerCredentials>) {
        let wanted = Some((self.room, who.cloned()));
        if self.done != wanted {
            let arguments = [self.slot, self.room.into()];
            acting_as(writer, who, |writer| writer.call(MAKING, "listening", libc::SYS_listen, &arguments));
            self.done = wanted;
        }
    }
}

/// Names without a leading slash start at a directory.
fn enter(writer: &mut Writer, socket: &UnixSocket) {
    if socket.path().is_some() && socket.directory != "/" {
        let directory = writer.string(&socket.directory);
        writer.call(MAKING, format!("entering {}", socket.directory), libc::SYS_chdir, &[directory]);
    }
}

fn leave(writer: &mut Writer, socket: &UnixSocket) {
    if socket.path().is_some() && socket.directory != "/" {
        let root = writer.string("/");
        writer.call(MAKING, "going back", libc::SYS_chdir, &[root]);
    }
}

fn bind(writer: &mut Writer, slot: u64, socket: &UnixSocket) {
    enter(writer, socket);
    let address = writer.data(&socket.name, 8);
    let arguments = [slot, address, socket.name.len() as u64];
    let name = String::from_utf8_lossy(&socket.name[2..]).replace('\0', "@");
    let label = format!("binding a unix socket to {name}");
    if is_automatic(&socket.name) {
        writer.attempt(MAKING, label, libc::SYS_bind, &arguments);
    } else {
        writer.call(MAKING, label, libc::SYS_bind, &arguments);
    }
    leave(writer, socket);
}

/// Whether a name is one that the kernel chose (autobind in unix(7)): another will do.
fn is_automatic(name: &[u8]) -> bool {
    matches!(name, [_, _, 0, digits @ ..] if digits.len() == 5 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Sets an option; some can be set by nobody but root, and say nothing about the data.
pub(crate) fn set(writer: &mut Writer, slot: u64, (level, number, value): &SocketOption) {
    let at = writer.data(value, 8);
    let arguments = [slot, *level as u64, *number as u64, at, value.len() as u64];
    writer.attempt(MAKING, "setting an option of a socket", libc::SYS_setsockopt, &arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_sent_when_all_is_made() {
        use crate::image::{FileKind, OpenFile};
        let file = |kind| OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let waiting = Waiting { bytes: b"x".to_vec(), from: Vec::new(), files: vec![1, 1, 0], sender: None };
        let widow = UnixSocket {
            kind: libc::SOCK_STREAM,
            name: b"\x01\x00".to_vec(),
            connected: true,
            queue: vec![waiting],
            ..UnixSocket::default()
        };
        let files = vec![file(FileKind::Unix { socket: 0 }), file(FileKind::Epoll)];
        let image = Image { files, unix: vec![widow], ..Image::default() };
        let slots = Slots::of(&image);
        let making = Making::of(&image, (slots, 9));
        let rights = making.rights(&[1, 1, 0]);
        assert_eq!((rights.len(), rights[0], &rights[16..20]), (32, 28, &(slots.file(1) as u32).to_le_bytes()[..]));
        let mut writer = Writer::new();
        make(&mut writer, &image, (slots, 9));
        writer.call(MAKING, "all is made", 0, &[]);
        fill(&mut writer, &image, (slots, 9));
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let place = |label: &str| text.find(label).unwrap_or_else(|| panic!("{text}"));
        assert!(place("making two sockets") < place("all is made"));
        assert!(place("all is made") < place("putting descriptors"));
        assert!(place("putting descriptors") < place("closing the other end"));
    }
}
