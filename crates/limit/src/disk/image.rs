//! A file system of its own, in a file.
//!
//! All its room is set aside when it is made. In a sparse file the guest would be promised what its neighbours may
//! take; where the disk below were full then, the journal of the file system inside would end, with all that was
//! written and not yet there. The file is read and written past the page cache of the file system that it lies on, so
//! nothing is held twice, and a guest that fills it gets ENOSPC and harms no other. It is attached to one device at
//! most, for as long as it is mounted: two file systems over one image would ruin it.

use pando_kernel::filesystem::ext4;
use pando_kernel::filesystem::loop_device::LoopDevice;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What makes the file system.
const MAKER: &str = "mkfs.ext4";

/// How long an image may still be in use by a mount that is going away: what its guest wrote last goes to the disk
/// first, which others write to as well.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// An image in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image(PathBuf);

impl Image {
    /// The image in a file, whether that is there or not.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Whether the image file was made already.
    pub fn exists(&self) -> bool {
        self.0.is_file()
    }

    /// Sets aside what of its room is not yet its own: an earlier release made sparse files.
    ///
    /// # Errors
    ///
    /// ENOSPC where that is not left.
    pub fn set_aside(&self) -> Result<(), CallError> {
        let what = || format!("setting the room of the disk {} aside", self.0.display());
        let file = File::options().write(true).open(&self.0).context(what)?;
        let size = file.metadata().context(what)?.len();
        set_aside(&file, size).context(what)
    }

    /// The path of the image file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it: so many bytes, room for so many files.
    ///
    /// # Errors
    ///
    /// ENOENT where `mkfs.ext4` is not installed; what it says where it fails.
    pub fn make(&self, size: u64, inodes: Option<u64>) -> Result<(), CallError> {
        let made = self.fill(size, inodes);
        if made.is_err() {
            // Half an image is of no use.
            let _ = std::fs::remove_file(&self.0);
        }
        made.context(|| format!("making a disk of {size} bytes at {}", self.0.display()))
    }

    fn fill(&self, size: u64, inodes: Option<u64>) -> io::Result<()> {
        let file = File::options().write(true).create_new(true).open(&self.0)?;
        file.set_len(size)?;
        let mut maker = Command::new(MAKER);
        // Nothing is kept back for root, since root inside is limited too. What is not written at once is written when
        // it is used.
        maker.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"]);
        if let Some(inodes) = inodes {
            maker.arg("-N").arg(inodes.to_string());
        }
        let output = maker.arg(&self.0).stdin(Stdio::null()).output().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other(format!("{MAKER} is missing; install the package e2fsprogs")),
            _ => error,
        })?;
        if output.status.success() {
            return set_aside(&file, size);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{MAKER} says: {}", said.trim().replace('\n', "; "))))
    }

    /// Mounts it, detached: only the holder of the tree sees it. It is free again when the last mount of it is gone.
    ///
    /// # Errors
    ///
    /// EBUSY where it is mounted already.
    pub fn mount(&self) -> Result<Tree, CallError> {
        let device = self.attach().context(|| format!("attaching the disk {}", self.0.display()))?;
        let source = device.path().to_string_lossy().into_owned();
        // Its holder waits for the disk where the data has to last, and says so by fsync(2).
        Tree::new("ext4", &[("source", &source)], Attributes::MOUNT_ATTR_NODEV)
    }

    /// Mounts it once more for reading, detached, while it is mounted: it is the same file system.
    ///
    /// # Errors
    ///
    /// ENOENT where nobody has.
    pub fn look(&self) -> Result<Tree, CallError> {
        let device = LoopDevice::of(&self.0).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let device = device.context(|| format!("looking for the device of the disk {}", self.0.display()))?;
        let source = device.path().to_string_lossy().into_owned();
        Tree::new("ext4", &[("source", &source)], Attributes::MOUNT_ATTR_NODEV | Attributes::MOUNT_ATTR_RDONLY)
    }

    /// Makes it larger, whether it is mounted or not.
    ///
    /// # Errors
    ///
    /// EPERM where the kernel lets only processes grow it that may pass over limits (CAP_SYS_RESOURCE).
    pub fn grow(&self, size: u64) -> Result<(), CallError> {
        let what = || format!("making the disk {} larger", self.0.display());
        let file = File::options().write(true).open(&self.0).context(what)?;
        let before = file.metadata().context(what)?.len();
        if before < size {
            lengthen(&file, before, size).context(what)?;
        }
        let device = match LoopDevice::of(&self.0) {
            Some(device) => device,
            None => self.attach().context(what)?,
        };
        device.look_at_size()?;
        // Mounted once more, it is the same file system: what is changed here is changed there.
        let source = device.path().to_string_lossy().into_owned();
        let tree = Tree::new("ext4", &[("source", &source)], Attributes::MOUNT_ATTR_NODEV)?;
        ext4::grow(&tree, size).inspect_err(|_| {
            let _ = file.set_len(before);
            let _ = device.look_at_size();
        })
    }

    /// Makes it smaller or larger while nobody has it mounted.
    ///
    /// # Errors
    ///
    /// EBUSY where it is mounted; what the tools say where it holds more than that.
    pub fn fit(&self, size: u64) -> Result<(), CallError> {
        let what = || format!("making the disk {} {size} bytes large", self.0.display());
        let file = self.locked().context(what)?;
        let before = file.metadata().context(what)?.len();
        if before < size {
            lengthen(&file, before, size).context(what)?;
        }
        // It refuses what was not looked over; 1 says that something was put right.
        let (code, said) = run(Command::new("e2fsck").arg("-fp").arg(&self.0)).context(what)?;
        if code > 1 {
            return Err(io::Error::other(format!("e2fsck says: {said}"))).context(what);
        }
        let (code, said) =
            run(Command::new("resize2fs").arg(&self.0).arg(format!("{}K", size / 1024))).context(what)?;
        if code != 0 {
            return Err(io::Error::other(format!("resize2fs says: {said}"))).context(what);
        }
        file.set_len(size).context(what)
    }

    fn attach(&self) -> io::Result<LoopDevice> {
        LoopDevice::over(&self.locked()?).map_err(|error| error.source)
    }

    fn locked(&self) -> io::Result<File> {
        let file = File::options().read(true).write(true).open(&self.0)?;
        let until = Instant::now() + PATIENCE;
        // The device keeps this open file, and with it the lock: it is what says that the image is in use.
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK || Instant::now() > until {
                return Err(rustix::io::Errno::BUSY.into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(file)
    }
}

/// Has a file have all its blocks. What is in it stays.
fn set_aside(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP) => Err(io::Error::other(
            "the file system there can set no room aside (fallocate(2)), so that others could take what a disk promises",
        )),
        done => Ok(done?),
    }
}

/// Makes a file longer, with all its blocks; a failure leaves it as it was.
fn lengthen(file: &File, before: u64, size: u64) -> io::Result<()> {
    set_aside(file, size).inspect_err(|_| {
        let _ = file.set_len(before);
    })
}

/// A program's exit code and what it says.
fn run(command: &mut Command) -> io::Result<(i32, String)> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("its tools are missing; install the package e2fsprogs"),
        _ => error,
    })?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().lines().last().unwrap_or_default().to_owned();
    Ok((output.status.code().unwrap_or(128), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_room_and_a_failure_leaves_none() {
        let directory = tempfile::tempdir().unwrap();
        let image = Image::at(directory.path().join("disk"));
        assert!(!image.exists());
        assert!(image.make(4096, None).is_err() && !image.exists());
        match image.make(64 << 20, Some(5000)) {
            Ok(()) => {
                let found = std::fs::metadata(image.path()).unwrap();
                let used = std::os::unix::fs::MetadataExt::blocks(&found) * 512;
                assert!(found.len() == 64 << 20 && used >= 64 << 20, "{used} bytes are in use");
            }
            Err(error) => assert!(error.to_string().contains("e2fsprogs"), "{error}"),
        }
        if image.exists() {
            let size = || std::fs::metadata(image.path()).unwrap().len();
            image.fit(32 << 20).unwrap();
            assert_eq!(size(), 32 << 20);
            image.fit(96 << 20).unwrap();
            assert_eq!(size(), 96 << 20);
            let lock = image.locked().unwrap();
            assert!(image.fit(1 << 20).is_err(), "it is in use, and that is too small");
            drop(lock);
            assert!(image.fit(1 << 20).is_err() && size() == 96 << 20, "a refusal changes nothing");
        }
    }
}
