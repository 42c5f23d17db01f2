//! Captures instances of inotify(7). An instance is a list of watches, each on an inode, and the kernel tells no path
//! of those. It tells their handles, and a handle leads to a path where the file still has the name that it was found
//! by; where it leads nowhere, the file is looked for. What happened and was not read stays with the frozen process.

use crate::image::FileWatch;
use crate::image::file::MOST_FILE_WATCHES;
use crate::inspect::descriptors::Found;
use crate::inspect::{handle_walk, proc_file};
use pando_kernel::file::confined::Root;
use pando_kernel::file::handle::{FileHandle, MAX_BYTES};
use pando_kernel::mount::{self, MountEntry};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What inotify_add_watch(2) takes of what the kernel tells: all events, and that a watch is for one event or not for
/// unlinked files.
pub(crate) const ASKED: u32 = 0xfff | libc::IN_ONESHOT | libc::IN_EXCL_UNLINK;

/// Whether a descriptor is an instance.
pub(crate) fn is_instance(found: &Found) -> bool {
    found.target == "anon_inode:inotify"
}

/// A watch as fdinfo has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    number: i32,
    device: u32,
    events: u32,
    handle: FileHandle,
}

/// `inotify wd:2 ino:2e1 sdev:fe00000 mask:80000002 ignored_mask:0 fhandle-bytes:8 fhandle-type:1
/// f_handle:e102000000000000`, all numbers hexadecimal.
pub(crate) fn line(text: &str) -> Option<Line> {
    let text = text.strip_prefix("inotify ")?;
    let word = |key: &str| text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
    let hexadecimal = |key: &str| u32::from_str_radix(word(key)?, 16).ok();
    let digits = word("f_handle")?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Option<_>>()?;
    let whole = bytes.len() <= MAX_BYTES && hexadecimal("fhandle-bytes")? as usize == bytes.len();
    let handle = FileHandle { kind: i32::try_from(hexadecimal("fhandle-type")?).ok()?, bytes };
    whole.then_some(Line {
        number: i32::try_from(hexadecimal("wd")?).ok()?,
        device: hexadecimal("sdev")?,
        events: hexadecimal("mask")? & ASKED,
        handle,
    })
}

/// The paths of watched files that had to be looked for, and those that were not found: nobody looks for them again
/// while the processes stand still.
#[derive(Debug, Default)]
pub(crate) struct Searched(RefCell<HashMap<(u32, FileHandle), Option<String>>>);

/// The mounts of the processes' first: by them files are opened, and paths mean what they mean inside.
#[derive(Debug)]
pub(crate) struct Mounts<'a> {
    root: OwnedFd,
    places: Vec<Place>,
    searched: &'a Searched,
}

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    device: u32,
    path: String,
    /// Whether it may tell handles that it does not open.
    is_overlay: bool,
}

impl<'a> Mounts<'a> {
    pub(crate) fn of(init: i32, searched: &'a Searched) -> Result<Self, CallError> {
        let what = || format!("opening /proc/{init}/root");
        let root = Root::of_process(init).map_err(io::Error::from).context(what)?.into();
        let text = proc_file::text(init, "mountinfo")?;
        Ok(Self { root, places: mount::entries(&text).filter_map(place).collect(), searched })
    }

    /// Opens a place inside.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), confined)?)
    }

    fn on(&self, device: u32) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.device == device)
    }

    /// The path of a watched file, if the kernel opens it by its handle and it has one that leads to it.
    fn opened_path(&self, watch: &Line) -> Option<String> {
        self.on(watch.device).find_map(|place| {
            let mount = self.open(&place.path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
            let file = watch.handle.open(&mount).ok()?;
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            let path = path.to_str()?.to_owned();
            let again = self.open(&path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
            let identity = |file: &OwnedFd| {
                rustix::fs::statat(file, "", AtFlags::EMPTY_PATH).map(|stat| (stat.st_dev, stat.st_ino)).ok()
            };
            (identity(&file)? == identity(&again)?).then_some(path)
        })
    }

    /// The path that a watched file was found at, if it is there still.
    fn searched_path(&self, watch: &Line) -> Option<String> {
        let path = self.searched.0.borrow().get(&(watch.device, watch.handle.clone()))?.clone()?;
        let file = self.open(&path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let (handle, _) = FileHandle::identifier(&file, "").ok()?;
        (handle == watch.handle).then_some(path)
    }

    /// Looks for files that the kernel does not open.
    fn search(&self, watches: &[&Line]) {
        let mut searched = self.searched.0.borrow_mut();
        let mut wanted: HashMap<u32, HashSet<FileHandle>> = HashMap::new();
        for watch in watches {
            if !searched.contains_key(&(watch.device, watch.handle.clone())) {
                wanted.entry(watch.device).or_default().insert(watch.handle.clone());
            }
        }
        for (device, mut handles) in wanted {
            for place in self.on(device).filter(|place| place.is_overlay) {
                let found = handle_walk::find(self.root.as_fd(), &place.path, handles.clone()).unwrap_or_default();
                handles.retain(|handle| !found.contains_key(handle));
                searched.extend(found.into_iter().map(|(handle, path)| ((device, handle), Some(path))));
            }
            searched.extend(handles.into_iter().map(|handle| ((device, handle), None)));
        }
    }

    /// What an instance watches, in the order of their numbers; or how many of it have no path.
    pub(crate) fn watches(&self, found: &Found) -> Result<Vec<FileWatch>, usize> {
        let lines: Vec<_> = found.info.lines().filter(|line| line.starts_with("inotify ")).collect();
        let count = lines.len();
        if count > MOST_FILE_WATCHES {
            return Err(count);
        }
        let lines: Vec<Line> = lines.iter().filter_map(|text| line(text)).collect();
        let mut paths: Vec<_> = lines.iter().map(|line| self.opened_path(line)).collect();
        let lost: Vec<_> = lines.iter().zip(&paths).filter(|(_, path)| path.is_none()).map(|(line, _)| line).collect();
        if !lost.is_empty() {
            self.search(&lost);
            for (line, path) in lines.iter().zip(&mut paths).filter(|(_, path)| path.is_none()) {
                *path = self.searched_path(line);
            }
        }
        let found = lines.iter().zip(paths);
        let watch = |(line, path): (&Line, Option<String>)| {
            Some(FileWatch { number: line.number, events: line.events, path: path? })
        };
        let mut watches: Vec<_> = found.filter_map(watch).collect();
        watches.sort_by_key(|watch| watch.number);
        if watches.len() == count { Ok(watches) } else { Err(count - watches.len()) }
    }

    /// Captures an instance.
    pub(crate) fn capture(&self, found: &Found) -> Result<Vec<FileWatch>, CallError> {
        self.watches(found)
            .map_err(|lost| io::Error::other(format!("{lost} of its watches have no path any more")))
            .context(|| "reading an inotify instance".into())
    }
}

/// Where to look through a mount.
fn place(mount: MountEntry) -> Option<Place> {
    /// As the kernel numbers devices inside.
    const MINOR_BITS: u32 = 20;
    let (major, minor) = mount.device.split_once(':')?;
    let device = major.parse::<u32>().ok()?.checked_shl(MINOR_BITS)? | minor.parse::<u32>().ok()?;
    Some(Place { device, path: mount.at.into_os_string().into_string().ok()?, is_overlay: mount.kind == "overlay" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_mounts_are_read_as_the_kernel_writes_them() {
        let text = "inotify wd:1b ino:2e1 sdev:fe00001 mask:88000102 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:e102000000000000";
        let handle = FileHandle { kind: 1, bytes: vec![0xe1, 2, 0, 0, 0, 0, 0, 0] };
        assert_eq!(line(text), Some(Line { number: 27, device: 0xfe0_0001, events: 0x8000_0102, handle }));
        assert_eq!(line(&text.replace("bytes:8", "bytes:9")), None);
        assert_eq!(line(&text.replace("f_handle:e1", "f_handle:é")), None);
        let mount = "36 35 254:1 / /var/lib rw,noatime shared:1 - ext4 /dev/root rw";
        let there = |is_overlay| Some(Place { device: 0xfe0_0001, path: "/var/lib".into(), is_overlay });
        let place = |text: &str| mount::entries(text).find_map(place);
        assert_eq!(place(mount), there(false));
        assert_eq!(place(&mount.replace("ext4", "overlay")), there(true));
    }
}
