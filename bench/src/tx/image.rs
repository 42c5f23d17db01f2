//! File systems of the benchmark's own: images in sparse files, on loop devices, mounted where only this process and
//! its children see them.

use crate::settings::Settings;
use anyhow::{Context, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::filesystem::loop_device::LoopDevice;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of an image; only what is written takes room.
const SIZE: u64 = 6 << 30;

/// Room for a few hundred thousand small files.
const INODES: &str = "800000";

/// One of them, mounted. Everything goes with this value.
#[derive(Debug)]
pub(crate) struct Image {
    at: PathBuf,
    _device: LoopDevice,
    _directory: TemporaryDirectory,
}

/// Mounts from here on are this process's own.
pub(crate) fn leave_the_others_mounts() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("cannot make the mounts private")
}

impl Image {
    pub(crate) fn ext4(settings: &Settings) -> anyhow::Result<Self> {
        Self::make(settings, "ext4", &["-q", "-F", "-N", INODES], None)
    }

    /// All data go through the journal, as in the paper's durable runs.
    pub(super) fn ext4_with_journalled_data(settings: &Settings) -> anyhow::Result<Self> {
        Self::make(settings, "ext4", &["-q", "-F", "-N", INODES], Some("data=journal"))
    }

    pub(crate) fn xfs(settings: &Settings) -> anyhow::Result<Self> {
        Self::make(settings, "xfs", &["-q"], None)
    }

    fn make(settings: &Settings, kind: &str, options: &[&str], how: Option<&str>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&settings.output)?;
        // Beside the samples, since /tmp may be memory.
        let directory = tempfile::Builder::new().prefix("tx-").tempdir_in(&settings.output)?;
        let directory = TemporaryDirectory::of(directory.keep());
        let (path, at) = (directory.path().join("image"), directory.path().join("mounted"));
        let file = File::create_new(&path)?;
        file.set_len(SIZE)?;
        let status = Command::new(format!("mkfs.{kind}")).args(options).arg(&path).status();
        if !status.with_context(|| format!("cannot start mkfs.{kind}"))?.success() {
            bail!("mkfs.{kind} failed");
        }
        let device = LoopDevice::over(&File::options().read(true).write(true).open(&path)?)?;
        std::fs::create_dir(&at)?;
        mount(Some(device.path()), &at, Some(kind), MsFlags::empty(), how)
            .with_context(|| format!("cannot mount {}", path.display()))?;
        Ok(Self { at, _device: device, _directory: directory })
    }

    /// An overlay as a transaction's view has it, over a directory of this file system, with its changes on it.
    pub(super) fn overlay(&self, lower: &Path) -> anyhow::Result<Overlay> {
        let changes = TemporaryDirectory::of(tempfile::tempdir_in(&self.at)?.keep());
        let [upper, work, at] = ["upper", "work", "laid"].map(|name| changes.path().join(name));
        for directory in [&upper, &work, &at] {
            std::fs::create_dir(directory)?;
        }
        let layers = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let options = format!("{layers},redirect_dir=on,metacopy=on,index=on,xino=off,volatile");
        mount(Some("overlay"), &at, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("cannot lay an overlay over {}", lower.display()))?;
        Ok(Overlay { at, _changes: changes })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }
}

/// An overlay, mounted; with its changes it goes with this value.
#[derive(Debug)]
pub(super) struct Overlay {
    at: PathBuf,
    _changes: TemporaryDirectory,
}

impl Overlay {
    pub(super) fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::empty());
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The namespace's end would do it as well.
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}
