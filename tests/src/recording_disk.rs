//! A disk that remembers in which order it was written to, and when it was told to keep what it has: a file on a file system of this process's own, under
//! a loop device. From what it remembers every disk can be made that a loss of power could have left.

use crate::dice::Dice;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use pando_kernel::loop_device::LoopDevice;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The name of the one file.
const NAME: &str = "disk";
const INODE: INodeNo = INodeNo(2);
const FOR_A_WHILE: Duration = Duration::from_secs(3600);

/// What happened to the disk.
#[derive(Clone, Debug)]
enum Event {
    Written {
        at: usize,
        bytes: Vec<u8>,
    },
    /// All that was written before lasts.
    Flushed,
}

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    events: Vec<Event>,
}

/// The disk.
#[derive(Clone, Debug)]
pub(crate) struct RecordingDisk(Arc<Mutex<Content>>);

/// The disk as a device; it is gone with this value.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) device: LoopDevice,
    _session: fuser::BackgroundSession,
}

/// What happened from some moment on.
#[derive(Debug)]
pub(crate) struct Recording {
    start: Vec<u8>,
    events: Vec<Event>,
}

impl RecordingDisk {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Content { bytes, events: Vec::new() })))
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a device of it, by way of a file system that is mounted at `at`.
    pub(crate) fn attach(&self, at: &Path) -> io::Result<Attached> {
        let session = fuser::spawn_mount(Served(self.clone()), at, &Config::default())?;
        let file = File::options().read(true).write(true).open(at.join(NAME))?;
        let device = LoopDevice::over(&file).map_err(|error| error.source)?;
        // The device holds the file from now on. Nobody else needs to see it: to a transaction it would be one more mount to make changes on.
        rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH)?;
        Ok(Attached { device, _session: session })
    }

    /// Forgets what happened so far.
    pub(crate) fn start(&self) {
        self.content().events.clear();
    }

    /// How much has happened since.
    pub(crate) fn position(&self) -> usize {
        self.content().events.len()
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.content().bytes.clone()
    }

    /// What happened to a disk that held `start` then.
    pub(crate) fn recording(&self, start: Vec<u8>) -> Recording {
        Recording { start, events: self.content().events.clone() }
    }
}

impl Recording {
    /// How many moments there are at which the power can go.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// What the disk holds after a loss of power before event number `moment`: everything up to the last time that it was told to keep it, and of what
    /// was written since, whatever the dice say.
    pub(crate) fn cut(&self, moment: usize, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.start.clone();
        let events = &self.events[..moment];
        let kept = events.iter().rposition(|event| matches!(event, Event::Flushed)).map_or(0, |last| last + 1);
        // Also a disk that happens to keep all, or nothing.
        let odds = dice.throw(5);
        for (number, event) in events.iter().enumerate() {
            let lasts = number < kept || dice.throw(4) < odds;
            if let (Event::Written { at, bytes: new }, true) = (event, lasts) {
                bytes[*at..*at + new.len()].copy_from_slice(new);
            }
        }
        bytes
    }
}

struct Served(RecordingDisk);

impl Served {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let directory = inode == INodeNo::ROOT;
        let size = if directory { 0 } else { self.0.content().bytes.len() as u64 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&FOR_A_WHILE, &self.attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_A_WHILE, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Nothing is kept back: what the device gets is written, in that order.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let content = self.0.content();
        let from = (offset as usize).min(content.bytes.len());
        let to = (from + size as usize).min(content.bytes.len());
        reply.data(&content.bytes[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut content = self.0.content();
        let at = offset as usize;
        let Some(place) = content.bytes.get_mut(at..at + data.len()) else { return reply.error(Errno::ENOSPC) };
        place.copy_from_slice(data);
        content.events.push(Event::Written { at, bytes: data.to_vec() });
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.content().events.push(Event::Flushed);
        reply.ok();
    }
}
