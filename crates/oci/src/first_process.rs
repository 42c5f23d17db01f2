//! A container's first process, held by descriptors: nothing of it is looked up by a number that may be another's.
//!
//! A process that has ended has no namespaces any more, and its number may be given to another. So the order counts:
//!
//! ```text
//!   pidfd ─▶ does it live? ─▶ open its namespaces, and its root ─▶ has it ended? ─▶ they are the container's
//! ```

use crate::container::Record;
use crate::joined_namespaces::same;
use crate::plan::namespaces::KINDS;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::LinuxNamespaceType;
use pando_kernel::process::pidfd;
use rustix::fs::{CWD, Mode, OFlags};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

/// What a command says of a container whose first process has ended.
pub(crate) const STOPPED: &str = "cannot exec in a stopped container";

/// The first process of a container.
#[derive(Debug)]
pub(crate) struct FirstProcess<'a> {
    record: &'a Record,
    process: OwnedFd,
}

/// Where a further process of a container has to be.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The namespaces that are not this command's, in the order of joining: `CLONE_NEW*` and the namespace.
    pub(crate) namespaces: Vec<(u32, OwnedFd)>,
    /// The root's directory.
    pub(crate) root: OwnedFd,
}

impl<'a> FirstProcess<'a> {
    /// Holds it; `None` where it has ended.
    pub(crate) fn hold(record: &'a Record) -> Option<Self> {
        let process = pidfd::open(record.pid).ok()?;
        // Asked afterwards: the number may have become another's before.
        record.lives().then_some(Self { record, process })
    }

    /// Opens what it is in. `own` are the kinds of namespaces that the container made new: one of these that is this
    /// command's own is not the container's.
    pub(crate) fn surroundings(&self, own: u32) -> Result<Surroundings> {
        let mut namespaces = Vec::new();
        for (kind, flag, name) in KINDS {
            let Some((theirs, found)) = self.namespace(&kind, name)? else { continue };
            let ours = std::fs::metadata(format!("/proc/self/ns/{name}"))
                .with_context(|| format!("looking for this command's {name} namespace"))?;
            if same(&ours, &found) {
                if own & flag != 0 {
                    bail!("the container's first process is in this command's own {name} namespace");
                }
                continue;
            }
            namespaces.push((flag, theirs));
        }
        let path = format!("/proc/{}/root", self.record.pid);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &path, flags, Mode::empty());
        // What was opened is its own if it is there still.
        if pidfd::has_ended(&self.process) || !self.record.lives() {
            bail!(STOPPED);
        }
        let root = root.context("opening the root of the container's first process")?;
        Ok(Surroundings { namespaces, root })
    }

    /// Its namespace of a kind; `None` where this kernel has none of the kind.
    fn namespace(&self, kind: &LinuxNamespaceType, name: &str) -> Result<Option<(OwnedFd, Metadata)>> {
        match File::open(format!("/proc/{}/ns/{name}", self.record.pid)) {
            // A process that is about to end has no namespaces any more either.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match std::fs::symlink_metadata(format!("/proc/self/ns/{name}")) {
                    Err(missing) if missing.kind() == ErrorKind::NotFound => Ok(None),
                    _ => bail!(STOPPED),
                }
            }
            _ if pidfd::has_ended(&self.process) => bail!(STOPPED),
            opened => {
                let opened = opened.with_context(|| format!("opening the container's {kind:?} namespace"))?;
                let found =
                    opened.metadata().with_context(|| format!("looking at the container's {kind:?} namespace"))?;
                Ok(Some((opened.into(), found)))
            }
        }
    }
}
