//! Writes the making of network namespaces (network_namespaces(7)), and what is set of the guest's own. A clone has
//! those again where there is nothing but the loopback device, and sockets. A socket belongs to the namespace that it
//! was made in, wherever its process is by now.

use crate::image::Image;
use crate::image::namespace::LOOPBACK;
use crate::image::namespace_kind::NETWORK;
use crate::restore::script::{AT_FDCWD, Call, Writer};
use crate::restore::slots::Slots;

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.net_spaces.is_empty() {
        return;
    }
    NETWORK.keep(writer, slots.net_space(None));
    for (number, space) in image.net_spaces.iter().enumerate() {
        NETWORK.make(writer);
        if space.up {
            raise(writer, slots.spare());
        }
        set(writer, &space.settings, slots);
        NETWORK.keep(writer, slots.net_space(Some(number)));
    }
    NETWORK.enter(writer, Writer::MAKING, slots.net_space(None));
}

/// Writes the raising of the loopback device, which gets its addresses by that.
fn raise(writer: &mut Writer, spare: u64) {
    const RUNNING: u16 = (libc::IFF_UP | libc::IFF_RUNNING) as u16;
    let label = "raising the loopback device";
    of_device(writer, (LOOPBACK, &RUNNING.to_le_bytes()), spare, |writer, request| {
        writer.call(Writer::MAKING, label, libc::SYS_ioctl, &[spare, libc::SIOCSIFFLAGS, request]);
    });
}

/// Writes a socket to ask by, and a `struct ifreq`: the name of a device in 16 bytes, and what is asked.
fn of_device(writer: &mut Writer, (name, asked): (&str, &[u8]), spare: u64, ask: impl FnOnce(&mut Writer, u64)) {
    let arguments = [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0];
    writer.open(Writer::MAKING, "asking for a network", libc::SYS_socket, &arguments, spare);
    let mut request = name.as_bytes().to_vec();
    request.resize(16, 0);
    request.extend(asked);
    request.resize(40, 0);
    let request = writer.data(&request, 8);
    ask(writer, request);
    writer.call(Writer::MAKING, "asking no more", libc::SYS_close, &[spare]);
}

/// Writes the making of a socket in the namespace that it belongs to.
pub(crate) fn inside<T>(
    writer: &mut Writer,
    slots: Slots,
    space: Option<usize>,
    make: impl FnOnce(&mut Writer) -> T,
) -> T {
    if space.is_some() {
        NETWORK.enter(writer, Writer::MAKING, slots.net_space(space));
    }
    let made = make(writer);
    if space.is_some() {
        NETWORK.enter(writer, Writer::MAKING, slots.net_space(None));
    }
    made
}

/// Writes the maker's steps that set it, and its device first: less fits into that than some settings ask for. A trial
/// has no such device.
pub(crate) fn make_own(writer: &mut Writer, image: &Image, slots: Slots) {
    if let Some(device) = &image.net_device {
        let label = format!("having {} take packets of {} bytes", device.name, device.longest);
        let asked = device.longest.to_le_bytes();
        of_device(writer, (&device.name, &asked), slots.spare(), |writer, request| {
            writer.attempt(Writer::MAKING, label, libc::SYS_ioctl, &[slots.spare(), libc::SIOCSIFMTU, request]);
        });
    }
    set(writer, &image.net_settings, slots);
}

/// What a clone may not set its guest could not either.
fn set(writer: &mut Writer, settings: &[(String, String)], slots: Slots) {
    for (path, value) in settings {
        let (at, bytes) = (writer.string(path), writer.data(value.as_bytes(), 1));
        let label = || format!("setting {path}");
        let arguments = [AT_FDCWD, at, (libc::O_WRONLY | libc::O_CLOEXEC) as u64];
        writer.open(Writer::MAKING, label(), Call::forgiven(libc::SYS_openat), &arguments, slots.spare());
        writer.attempt(Writer::MAKING, label(), libc::SYS_write, &[slots.spare(), bytes, value.len() as u64]);
        writer.attempt(Writer::MAKING, "closing a setting", libc::SYS_close, &[slots.spare()]);
    }
}
