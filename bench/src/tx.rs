//! `./x bench tx`: system calls and programs inside a transaction against the same ones outside (TxOS, tables 4 and 5),
//! and what a transaction itself costs.
//!
//! ```text
//!   image (ext4, xfs on loop devices) ─▶ calls     eight calls, a million times less    table 4
//!                                      ▶ ends      the same with begin and end          its last column
//!                                      ▶ whole     begin, commit, abort                 a transaction as such
//!                                      ▶ programs  postmark, LFS, RAB                   table 5
//!                                      ▶ packages  make, make install, dpkg             table 5
//! ```
//!
//! The images and everything on them are in a mount namespace of this process, and gone with it.

pub(crate) mod calls;
pub(crate) mod ends;
pub(crate) mod image;
mod memory;
mod packages;
mod programs;
mod table5;
pub(crate) mod whole;
pub(crate) mod workload;

use crate::report::Report;
use crate::settings::Settings;
use anyhow::{Context, bail};
use image::Image;
use packages::Debian;
use pando_kernel::file::tree_removal::remove_tree;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where a transaction keeps its changes until it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    OnDisk,
    InMemory,
}

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
            remove_tree(&path)?;
        }
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// `pando tx ACTION…`, with its state on this file system, as on a machine that has one file system.
    fn tx(&self, action: &str) -> Command {
        self.tx_in(&self.image.path().join("state"), action)
    }

    /// The same with this state.
    fn tx_in(&self, root: &Path, action: &str) -> Command {
        let mut command = Command::new(&self.settings.pando);
        command.arg("--root").arg(root).args(["tx", action]).stdin(Stdio::null());
        command
    }

    /// `pando tx run`, and what to run follows.
    fn run(&self, kept: Kept, durable: bool) -> Command {
        self.run_kept(&self.image.path().join("state"), kept, durable)
    }

    /// A program, as a transaction or plainly; its arguments follow.
    fn command(&self, inside: Option<Kept>, durable: bool, program: impl AsRef<OsStr>) -> Command {
        let Some(kept) = inside else { return Command::new(program) };
        let mut command = self.run(kept, durable);
        command.arg(program);
        command
    }

    /// The same with this state.
    fn run_in(&self, root: &Path, durable: bool) -> Command {
        self.run_kept(root, Kept::OnDisk, durable)
    }

    fn run_kept(&self, root: &Path, kept: Kept, durable: bool) -> Command {
        let mut command = self.tx_in(root, "run");
        if kept == Kept::InMemory {
            command.arg("--in-memory");
        }
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

type Make = fn(&Settings) -> anyhow::Result<Image>;

/// The file systems, and how each is made where all that is written has to last.
const KINDS: [(&str, Make, Make); 2] =
    [("ext4", Image::ext4, Image::ext4_with_journalled_data), ("xfs", Image::xfs, Image::xfs)];

/// Measures everything in turn, or those parts that are wanted.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("tx");
    image::leave_the_others_mounts()?;
    let me = std::env::current_exe()?;
    let bed = |name, image| Bed { settings, image, name, me: me.clone() };
    let debian = if settings.wants("packages") { Some(Debian::kept_in(&settings.output)?) } else { None };
    for (name, make, make_lasting) in KINDS {
        let plain = bed(name, make(settings)?);
        if settings.wants("calls") {
            calls::measure(&plain, &mut report)?;
            ends::measure(&plain, &mut report)?;
        }
        if settings.wants("whole") {
            whole::measure(&plain, &mut report)?;
        }
        if !settings.wants("programs") && debian.is_none() {
            continue;
        }
        let lasting = bed(name, make_lasting(settings)?);
        if settings.wants("programs") {
            programs::measure(&plain, &lasting, &mut report)?;
        }
        if let Some(debian) = &debian {
            packages::measure(&plain, &lasting, debian, &mut report)?;
        }
        if let Some(table) = table5::text(name, &report) {
            report.text(table);
        }
    }
    Ok(report)
}
