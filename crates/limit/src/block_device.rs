//! The block device that files lie on: what traffic is bounded on.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A block device by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The major number of the device.
    pub major: u32,
    /// The minor number of the device.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.major, self.minor)
    }
}

impl Device {
    /// The whole device below the files at `path`: bounds are refused on partitions.
    ///
    /// # Errors
    ///
    /// A sentence, where the files lie on no block device (a network, memory, an overlay).
    pub fn below(path: &Path) -> Result<Self, String> {
        let number =
            std::fs::metadata(path).map_err(|error| format!("{} cannot be looked at: {error}", path.display()))?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        // Some file systems (btrfs) have numbers of their own: their device is what they were mounted from.
        let device = if major == 0 { mounted_from(path) } else { Some(Self { major, minor }) };
        let device = device.and_then(Self::whole);
        device.ok_or_else(|| format!("{} lies on no block device, whose traffic alone can be bounded", path.display()))
    }

    /// Itself, or the device that it is a partition of; `None` where the kernel knows no such device.
    fn whole(self) -> Option<Self> {
        let entry = std::fs::canonicalize(format!("/sys/dev/block/{self}")).ok()?;
        if !entry.join("partition").exists() {
            return Some(self);
        }
        read(&entry.parent()?.join("dev"))
    }
}

fn mounted_from(path: &Path) -> Option<Device> {
    let path = std::fs::canonicalize(path).ok()?;
    let mounts = pando_kernel::mount::mounts().ok()?;
    let mount =
        mounts.iter().filter(|mount| path.starts_with(&mount.at)).max_by_key(|mount| mount.at.as_os_str().len())?;
    let found = std::fs::metadata(&mount.source).ok()?;
    let number = found.rdev();
    (number != 0).then(|| Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

fn read(path: &Path) -> Option<Device> {
    let text = std::fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_no_block_device() {
        assert!(Device::below(Path::new("/proc")).unwrap_err().contains("no block device"));
        assert!(Device::below(Path::new("/no/such/path")).is_err());
    }
}
