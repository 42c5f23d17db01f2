//! inotify(7): an instance is a list of watches, each on an inode, and the kernel tells no path of those. It tells their handles, and a handle leads to a
//! path where the file still has the name that it was found by. What happened and nobody has read stays with the frozen process.

use crate::descriptors::{Found, Outside, supplied};
use crate::proc_file;
use crate::refusal::Refusal;
use crate::script::Writer;
use crate::tree::Member;
use pando_kernel::file_handle::{FileHandle, MAX_BYTES};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// What an instance watches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWatch {
    /// Its number.
    pub number: i32,
    /// `IN_*`.
    pub events: u32,
    /// The path of what is watched.
    pub path: String,
}

/// More than this are not captured.
pub(crate) const MOST: usize = 16_384;

/// What inotify_add_watch(2) takes of what the kernel tells: all events, and that a watch is for one event or not for unlinked files.
const ASKED: u32 = 0xfff | libc::IN_ONESHOT | libc::IN_EXCL_UNLINK;

/// Whether a descriptor is an instance.
pub(crate) fn is_instance(found: &Found) -> bool {
    found.target == "anon_inode:inotify"
}

/// A watch as fdinfo has it.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    number: i32,
    device: u32,
    events: u32,
    handle: FileHandle,
}

/// `inotify wd:2 ino:2e1 sdev:fe00000 mask:80000002 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:e102000000000000`, all numbers but the first
/// hexadecimal.
fn line(text: &str) -> Option<Line> {
    let text = text.strip_prefix("inotify ")?;
    let word = |key: &str| text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
    let hexadecimal = |key: &str| u32::from_str_radix(word(key)?, 16).ok();
    let digits = word("f_handle")?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Option<_>>()?;
    let whole = bytes.len() <= MAX_BYTES && hexadecimal("fhandle-bytes")? as usize == bytes.len();
    let handle = FileHandle { kind: i32::try_from(hexadecimal("fhandle-type")?).ok()?, bytes };
    whole.then_some(Line {
        number: word("wd")?.parse().ok()?,
        device: hexadecimal("sdev")?,
        events: hexadecimal("mask")? & ASKED,
        handle,
    })
}

/// The mounts of the processes' first: by them files are opened, and paths mean what they mean inside.
#[derive(Debug)]
pub(crate) struct Mounts {
    root: OwnedFd,
    /// Device and place of each.
    places: Vec<(u32, String)>,
}

impl Mounts {
    pub(crate) fn of(init: i32) -> Result<Self, CallError> {
        let path = format!("/proc/{init}/root");
        let root = File::open(&path).context(|| format!("opening {path}"))?.into();
        let text = proc_file::text(init, "mountinfo")?;
        Ok(Self { root, places: text.lines().filter_map(place).collect() })
    }

    /// Opens a place inside.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), confined)?)
    }

    /// The path of a watched file, if it has one that leads to it.
    fn path(&self, watch: &Line) -> Option<String> {
        self.places.iter().filter(|(device, _)| *device == watch.device).find_map(|(_, place)| {
            let mount = self.open(place, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
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

    /// What an instance watches, in the order of their numbers; or how many of it have no path.
    fn watches(&self, found: &Found) -> Result<Vec<FileWatch>, usize> {
        let lines: Vec<_> = found.info.lines().filter(|line| line.starts_with("inotify ")).collect();
        if lines.len() > MOST {
            return Err(lines.len());
        }
        let watch = |text: &&str| {
            let line = line(text)?;
            Some(FileWatch { number: line.number, events: line.events, path: self.path(&line)? })
        };
        let mut watches: Vec<_> = lines.iter().filter_map(watch).collect();
        watches.sort_by_key(|watch| watch.number);
        if watches.len() == lines.len() { Ok(watches) } else { Err(lines.len() - watches.len()) }
    }

    /// Captures an instance.
    pub(crate) fn capture(&self, found: &Found) -> Result<Vec<FileWatch>, CallError> {
        self.watches(found)
            .map_err(|lost| io::Error::other(format!("{lost} of its watches have no path any more")))
            .context(|| "reading an inotify instance".into())
    }
}

/// Of a line of mountinfo: `36 35 98:0 /root /place rw,… - ext4 …`.
fn place(line: &str) -> Option<(u32, String)> {
    /// As the kernel numbers devices inside.
    const MINOR_BITS: u32 = 20;
    let mut words = line.split(' ');
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let device = major.parse::<u32>().ok()?.checked_shl(MINOR_BITS)? | minor.parse::<u32>().ok()?;
    // A space in it would be written otherwise; such a mount is not looked through.
    words.nth(1).map(|place| (device, place.to_owned()))
}

/// Instances that watch what cannot be found again.
pub(crate) fn objections(
    init: i32,
    all: &[(&Member, Vec<Found>)],
    outside: &[Outside],
) -> Result<Vec<Refusal>, CallError> {
    let instances: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter(|(_, one)| is_instance(one) && supplied(one, outside).is_none())
        .collect();
    if instances.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = Mounts::of(init)?;
    let objection = |(member, found): (&Member, &Found)| {
        let lost = mounts.watches(found).err()?;
        Some(Refusal {
            pid: member.pid,
            name: member.name.clone(),
            descriptor: Some(found.number),
            kind: format!("an inotify instance with {lost} watches that no path leads to, or too many"),
            advice: "have it watch files that are there, outside of /proc and /sys; those of a guest of 'pando run' cannot be found",
        })
    };
    Ok(instances.into_iter().filter_map(objection).collect())
}

/// Writes the making of an instance onto a slot.
pub(crate) fn make(writer: &mut Writer, watches: &[FileWatch], slot: u64) {
    /// `_IOW('I', 0, s32)`: the number of the next watch (since Linux 4.16).
    const INOTIFY_IOC_SETNEXTWD: u64 = 0x4004_4900;
    let chapter = Writer::MAKING;
    writer.open(chapter, "making an inotify instance", libc::SYS_inotify_init1, &[0], slot);
    for watch in watches {
        let number = watch.number as u64;
        writer.attempt(chapter, "numbering a watch", libc::SYS_ioctl, &[slot, INOTIFY_IOC_SETNEXTWD, number]);
        let path = writer.string(&watch.path);
        let events = watch.events | libc::IN_DONT_FOLLOW;
        let label = format!("watching {}", watch.path);
        writer.exact(chapter, label, libc::SYS_inotify_add_watch, &[slot, path, u64::from(events)], number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_mounts_are_read_as_the_kernel_writes_them() {
        let text = "inotify wd:2 ino:2e1 sdev:fe00001 mask:88000102 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:e102000000000000";
        let handle = FileHandle { kind: 1, bytes: vec![0xe1, 2, 0, 0, 0, 0, 0, 0] };
        assert_eq!(line(text), Some(Line { number: 2, device: 0xfe0_0001, events: 0x8000_0102, handle }));
        assert_eq!(line(&text.replace("bytes:8", "bytes:9")), None);
        assert_eq!(line(&text.replace("f_handle:e1", "f_handle:é")), None);
        let mount = "36 35 254:1 / /var/lib rw,noatime shared:1 - ext4 /dev/root rw";
        assert_eq!(place(mount), Some((0xfe0_0001, "/var/lib".into())));
    }
}
