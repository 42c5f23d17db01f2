//! Writes the making of namespaces of host names and of ipc, and the entering of namespaces of any kind. A descriptor
//! keeps each namespace: by that processes enter it, and the maker comes back.

use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK};
use crate::image::{Image, Process};
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;

impl Kind {
    /// Writes the maker's leaving what it is in for a new one.
    pub(crate) fn make(self, writer: &mut Writer) {
        writer.call(Writer::MAKING, format!("making {}", self.name), libc::SYS_unshare, &[self.flag as u64]);
    }

    /// Writes the keeping of the one that the maker is in.
    pub(crate) fn keep(self, writer: &mut Writer, slot: u64) {
        self.open(writer, &format!("/proc/self/ns/{}", self.link), slot);
    }

    /// Writes the keeping of the one that another process is in.
    pub(crate) fn keep_of(self, writer: &mut Writer, pid: i32, slot: u64) {
        self.open(writer, &format!("/proc/{pid}/ns/{}", self.link), slot);
    }

    /// Writes the opening of one, by a path that leads to it.
    pub(crate) fn open(self, writer: &mut Writer, path: &str, slot: u64) {
        let path = writer.string(path);
        let arguments = [AT_FDCWD, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64];
        writer.open(Writer::MAKING, format!("keeping {}", self.name), libc::SYS_openat, &arguments, slot);
    }

    /// Writes the entering of one that is kept.
    pub(crate) fn enter(self, writer: &mut Writer, chapter: Chapter, slot: u64) {
        writer.call(chapter, format!("entering {}", self.name), libc::SYS_setns, &[slot, self.flag as u64]);
    }
}

/// Writes a process's entering of its own, whosever it has been forked with. The first process of an image is in its
/// own.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    if process.pid == image.init {
        return;
    }
    for (kind, count, slot) in [
        (HOST_NAMES, image.host_names.len(), slots.host_names(process.host_names)),
        (IPC, image.ipc_spaces, slots.ipc_space(process.ipc_space)),
        (NETWORK, image.net_spaces.len(), slots.net_space(process.net_space)),
        (MOUNTS, image.mount_spaces.len(), slots.mount_space(process.mount_space)),
    ] {
        // Where there is but the first process's, everybody is in that.
        if count > 0 {
            kind.enter(writer, chapter, slot);
        }
    }
}

/// Writes the opening of one: of those that are kept, or of the maker's own, which is in the first process's.
pub(crate) fn open(writer: &mut Writer, slots: Slots, (flag, space): (i32, Option<usize>), slot: u64) {
    let Some(kind) = Kind::of_flag(flag) else { return };
    match space.and_then(|space| slots.namespace(kind, space)) {
        Some(kept) => kind.open(writer, &format!("/proc/self/fd/{kept}"), slot),
        None => kind.keep(writer, slot),
    }
}

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make_host_names(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.host_names.is_empty() {
        return;
    }
    HOST_NAMES.keep(writer, slots.host_names(None));
    for (number, names) in image.host_names.iter().enumerate() {
        HOST_NAMES.make(writer);
        for (label, call, name) in [
            ("setting a host name", libc::SYS_sethostname, &names.host),
            ("setting a domain name", libc::SYS_setdomainname, &names.domain),
        ] {
            let bytes = writer.data(name, 1);
            writer.call(Writer::MAKING, label, call, &[bytes, name.len() as u64]);
        }
        HOST_NAMES.keep(writer, slots.host_names(Some(number)));
    }
    HOST_NAMES.enter(writer, Writer::MAKING, slots.host_names(None));
}

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make_ipc_spaces(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.ipc_spaces == 0 {
        return;
    }
    IPC.keep(writer, slots.ipc_space(None));
    for number in 0..image.ipc_spaces {
        IPC.make(writer);
        IPC.keep(writer, slots.ipc_space(Some(number)));
    }
    IPC.enter(writer, Writer::MAKING, slots.ipc_space(None));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{HostNames, NetSpace};
    use crate::restore::networks;

    #[test]
    fn each_process_enters_its_own_and_nobody_where_there_is_but_one() {
        let image = || Image { processes: vec![Process { pid: 2, ..Process::default() }], init: 1, ..Image::default() };
        let steps = |image: &Image, process: &Process| {
            let (mut writer, slots) = (Writer::new(), Slots::of(image));
            make_host_names(&mut writer, image, slots);
            make_ipc_spaces(&mut writer, image, slots);
            networks::make(&mut writer, image, slots);
            enter(&mut writer, Writer::MAKING, image, process, slots);
            format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count()
        };
        let names = Image { host_names: vec![HostNames::default()], ..image() };
        let ipc = Image { ipc_spaces: 2, ..image() };
        let net =
            Image { net_spaces: vec![NetSpace { up: true, ..NetSpace::default() }, NetSpace::default()], ..image() };
        // What the maker is in is kept, the others are made and kept, and it goes back.
        for (image, made) in [(image(), 0), (names, 1 + 4 + 1), (ipc, 1 + 4 + 1), (net, 1 + (2 + 3) + 2 + 1)] {
            let entered = usize::from(made > 0);
            assert_eq!(steps(&image, &image.processes[0]), made + entered);
            assert_eq!(steps(&image, &Process { pid: 1, ..Process::default() }), made);
        }
    }
}
