//! Files as block devices (loop(4)).

use crate::{CallError, Context, file::proc_file};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` (linux/loop.h).
const GET_FREE: libc::c_ulong = 0x4C82;
const CONFIGURE: libc::c_ulong = 0x4C0A;
/// `LOOP_SET_CAPACITY`: look at the file's size again.
const SET_CAPACITY: libc::c_ulong = 0x4C07;

/// `LOOP_GET_STATUS64`: what file it is over.
const GET_STATUS: libc::c_ulong = 0x4C05;

/// The device goes with its last user.
const AUTOCLEAR: u32 = 4;
/// The file is read and written past the page cache, which would otherwise hold everything twice.
const DIRECT_IO: u32 = 16;

/// The longest name that the kernel notes.
const NAME: usize = 64;

/// `struct loop_info64` (linux/loop.h).
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` (linux/loop.h).
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A loop device, held open. When the last user is gone, a mount or this value, it lets go of its file.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    open_device: File,
}

impl LoopDevice {
    /// Puts a device over a file that is open for reading and writing (LOOP_CONFIGURE, since Linux 5.8), with direct
    /// I/O where the file system below can do that. The device shares the open file: a lock that it holds (flock(2)) is
    /// held for as long as the device is.
    ///
    /// # Errors
    ///
    /// ENOENT where /dev/loop-control is missing; ENOSPC where there are no more devices.
    pub fn over(file: &File) -> Result<Self, CallError> {
        Self::attempts(file).context(|| "putting a loop device over a file".into())
    }

    fn attempts(file: &File) -> io::Result<Self> {
        /// Others take devices too, between our asking for a free one and our taking it.
        const TRIES: usize = 64;
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..TRIES {
            // SAFETY: this request takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            let configured = configure(&device, file.as_raw_fd(), AUTOCLEAR | DIRECT_IO).or_else(|error| {
                if busy(&error) { Err(error) } else { configure(&device, file.as_raw_fd(), AUTOCLEAR) }
            });
            match configured {
                Ok(()) => return Ok(Self { path, open_device: device }),
                Err(error) if busy(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// The device over the file at a path, if one is.
    pub fn of(path: &Path) -> Option<Self> {
        let path = std::fs::canonicalize(path).ok()?;
        let is_its = |name: &str| {
            let backing = proc_file::read(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
            Path::new(OsStr::from_bytes(backing.strip_suffix(b"\n").unwrap_or(&backing))) == path
        };
        let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let name = names.filter(|name| name.starts_with("loop")).find(|name| is_its(name))?;
        let path = Path::new("/dev").join(name);
        open(&path).ok().map(|device| Self { path, open_device: device })
    }

    /// Takes in that the file has another size now (LOOP_SET_CAPACITY, since Linux 2.6.30).
    ///
    /// # Errors
    ///
    /// ENXIO where the device has no file any more.
    pub fn look_at_size(&self) -> Result<(), CallError> {
        // SAFETY: this request takes no argument.
        let result = unsafe { libc::ioctl(self.open_device.as_raw_fd(), SET_CAPACITY, 0) };
        let done = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        done.context(|| format!("taking in the size of what lies under {}", self.path.display()))
    }

    /// The path of the device's node, below /dev.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The device number of the file system on which the file lies that a loop device is over (LOOP_GET_STATUS64, since
/// Linux 2.6.13).
///
/// # Errors
///
/// ENOTTY for another device; ENXIO where it is over none.
pub fn file_system_below(device: &Path) -> io::Result<u64> {
    let device = File::open(device)?;
    let mut info = std::mem::MaybeUninit::<Info>::zeroed();
    // SAFETY: the request writes this structure, of plain numbers.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, info.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it, and zeros are a value of it.
    Ok(unsafe { info.assume_init() }.device)
}

fn busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// A device that was just made may not have its node yet: the kernel's own /dev has it at once.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn configure(device: &File, file: RawFd, flags: u32) -> io::Result<()> {
    let fd = u32::try_from(file).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; NAME],
        crypt_name: [0; NAME],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = Config { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the kernel reads the structure, which has its layout, and keeps no pointer to it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
