//! The process that serves a [recording disk](crate::recording_disk): a file system of one file, out of the memory that
//! it was given.
//!
//! It is a process of its own because whoever waits for a disk cannot end before the disk answers: if one process did
//! both, and were killed, neither could, and with them everybody who waits for all disks (sync(2)). This one never
//! waits for the disk that it serves, and sees nothing that is mounted from it. It ends when its parent has ended; with
//! it the kernel ends the connection, and what still waits gets an error. An xfs that is being mounted would try again
//! for ever then, and is told not to.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use pando_kernel::process::pidfd;
use rustix::process::{Pid, getppid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

/// The word that asks this program for it: `AT PARENT`, with the disk's content as standard input and what happens to
/// it as standard output.
pub(crate) const WORD: &str = "--disk-server";

/// The name of the one file.
pub(crate) const NAME: &str = "disk";

/// In the place of a length: the disk was told to keep what it has.
pub(crate) const FLUSHED: u64 = u64::MAX;

const INODE: INodeNo = INodeNo(2);
const FOR_A_WHILE: Duration = Duration::from_secs(3600);

/// Serves until its parent ends, or ends it.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let [at, parent] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let above = getppid().map(Pid::as_raw_nonzero).filter(|pid| pid.to_string() == *parent);
    // It may have ended already.
    let Some(above) = above else { return Ok(()) };
    let above = pidfd::open(above.get())?;
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.to_string()).as_ref() != Some(parent) {
        return Ok(());
    }
    std::thread::spawn(move || {
        while !pidfd::wait_for_end(&above, FOR_A_WHILE) {}
        give_up();
        std::process::exit(0);
    });
    let file = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map(File::from);
    let (content, log) = (file(&io::stdin())?, file(&io::stdout())?);
    let size = content.metadata()?.len();
    let served = fuser::mount(Served { content, log, size }, at, &Config::default());
    served.map_err(|error| io::Error::other(format!("serving a disk through /dev/fuse: {error}")))
}

/// Has those file systems on disks of this kind end that would wait for theirs (xfs, since Linux 4.7). Others find no
/// error there, and are none the worse.
fn give_up() {
    for device in std::fs::read_dir("/sys/fs/xfs").into_iter().flatten().flatten() {
        let name = device.file_name();
        let served = std::path::Path::new("/sys/block").join(&name).join("loop/backing_file");
        if std::fs::read_to_string(served).is_ok_and(|file| file.trim_start_matches('/').trim() == NAME) {
            for kind in ["EIO", "ENODEV", "default"] {
                let _ = std::fs::write(device.path().join(format!("error/metadata/{kind}/max_retries")), "0");
            }
        }
    }
}

struct Served {
    content: File,
    /// For each event two numbers, where it was written and how much, and the bytes.
    log: File,
    size: u64,
}

impl Served {
    fn note(&self, at: u64, length: u64, bytes: &[u8]) -> io::Result<()> {
        let event = [&at.to_ne_bytes(), &length.to_ne_bytes(), bytes].concat();
        (&self.log).write_all(&event)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at + bytes.len() as u64 > self.size {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.content.write_all_at(bytes, at)?;
        self.note(at, bytes.len() as u64, bytes)
    }

    fn read_at(&self, at: u64, most: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; u64::from(most).min(self.size.saturating_sub(at)) as usize];
        self.content.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let directory = inode == INodeNo::ROOT;
        let size = if directory { 0 } else { self.size };
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
        match self.read_at(offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
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
        match self.write_at(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.note(0, FLUSHED, &[]) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }
}
