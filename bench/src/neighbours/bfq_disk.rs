//! A block device of the benchmark's own, whose scheduler knows groups: a loop device over a file, with bfq and a file
//! system on it.

use anyhow::{Context, bail};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounted for as long as this lives.
pub(super) struct BfqDisk {
    device: Option<String>,
    mounted: bool,
    directory: TemporaryDirectory,
}

impl BfqDisk {
    /// One of so many gigabytes, which are there from the beginning: a file that still grows would be measured with its
    /// file system's work.
    pub(super) fn make(gigabytes: u64) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("pando-bench-").tempdir()?;
        let directory = TemporaryDirectory::of(directory.keep());
        let mut disk = Self { device: None, mounted: false, directory };
        let image = disk.directory.path().join("image");
        let (size, image) = (format!("{gigabytes}G"), image.to_string_lossy().into_owned());
        run(Command::new("fallocate").args(["-l", &size, &image]))?;
        let device = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on", &image]))?;
        disk.device = Some(device.clone());
        run(Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0,nodiscard", &device]))?;
        disk.tell("scheduler", "bfq").context("this kernel has no bfq scheduler")?;
        std::fs::create_dir(disk.path())?;
        run(Command::new("mount").args([Path::new(&device), &disk.path()]))?;
        disk.mounted = true;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Changes a property of the device's queue.
    pub(super) fn tell(&self, property: &str, value: &str) -> anyhow::Result<()> {
        let device = self.device.as_deref().and_then(|path| path.rsplit('/').next()).context("there is no device")?;
        let path = format!("/sys/block/{device}/queue/{property}");
        std::fs::write(&path, value).with_context(|| format!("cannot write '{value}' to {path}"))
    }
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Drop for BfqDisk {
    fn drop(&mut self) {
        if self.mounted && run(Command::new("umount").arg(self.path())).is_err() {
            let _ = run(Command::new("umount").arg("--lazy").arg(self.path()));
        }
        if let Some(device) = &self.device {
            let _ =
                std::fs::write(format!("/sys/block/{}/queue/scheduler", device.trim_start_matches("/dev/")), "none");
            let _ = run(Command::new("losetup").args(["--detach", device]));
        }
    }
}
