//! `./x bench tx`: system calls and programs inside a transaction against the same ones outside (TxOS, tables 4 and 5), and what a transaction itself costs.
//!
//! ```text
//!   image (ext4, xfs on loop devices) ─▶ calls     eight calls, a million times less    table 4
//!                                      ▶ whole     begin, commit, abort                 the figures of a transaction as such
//!                                      ▶ programs  postmark, LFS, RAB                   table 5
//! ```
//!
//! The images and everything on them are in a mount namespace of this process, and gone with it.

pub(crate) mod calls;
pub(crate) mod image;
mod programs;
pub(crate) mod whole;
pub(crate) mod workload;

use crate::report::Report;
use crate::settings::Settings;
use anyhow::{Context, bail};
use image::Image;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A file system to measure on.
struct Bed<'a> {
    settings: &'a Settings,
    image: Image,
    name: &'static str,
    me: PathBuf,
}

impl Bed<'_> {
    /// A directory on it that nothing is in.
    fn fresh(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.image.path().join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// `pando tx ACTION…`, with its state on this file system, as on a machine that has one file system.
    fn tx(&self, action: &str) -> Command {
        let mut command = Command::new(&self.settings.pando);
        command.arg("--root").arg(self.image.path().join("state")).args(["tx", action]).stdin(Stdio::null());
        command
    }

    /// `pando tx run`, and what to run follows.
    fn run(&self, durable: bool) -> Command {
        let mut command = self.tx("run");
        if !durable {
            command.arg("--no-durable");
        }
        command.args(["--quiet", "--"]);
        command
    }
}

/// Runs to the end; what it says.
fn done(command: &mut Command) -> anyhow::Result<Output> {
    crate::interrupt::check()?;
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output)
}

/// Waits until everything is on the disk, so that one sample does not pay for another.
fn settle(at: &Path) -> anyhow::Result<()> {
    Ok(rustix::fs::syncfs(std::fs::File::open(at)?)?)
}

/// Measures everything in turn.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("tx");
    image::leave_the_others_mounts()?;
    let me = std::env::current_exe()?;
    let bed = |name, image| Bed { settings, image, name, me: me.clone() };
    let ext4 = bed("ext4", Image::ext4(settings)?);
    calls::measure(&ext4, &mut report)?;
    whole::measure(&ext4, &mut report)?;
    let xfs = bed("xfs", Image::xfs(settings)?);
    calls::measure(&xfs, &mut report)?;
    whole::measure(&xfs, &mut report)?;
    drop(xfs);
    let journalled = bed("ext4, data=journal", Image::ext4_with_journalled_data(settings)?);
    programs::measure(&ext4, &journalled, &mut report)?;
    Ok(report)
}
