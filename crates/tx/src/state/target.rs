//! A system of processes inside this one, which a transaction can be about in its place: with a root, mounts and ids of
//! its own, and a control group that holds all of its processes.
//!
//! Its root file system is an overlay. That has two consequences. Nothing can be moved into it from outside: what is
//! new is copied into a hidden directory of it, and moved from there. And the numbers of its directories do not last,
//! so that its objects are told apart by their handles (`Tree::ident`).

use crate::state::name::TxName;
use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::{CallError, Context, process};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// How its root directory is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetRoot {
    /// Through its first process, which is told from a later one with its pid by when it started.
    Process {
        /// The pid.
        pid: i32,
        /// When it started, in ticks since the boot.
        started: u64,
    },
    /// By a path, while it is put together and none of its processes runs.
    Path(PathBuf),
}

/// A system of processes that a transaction is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// How its root directory is reached.
    pub root: TargetRoot,
    /// The id that its root user has here.
    pub first_id: u32,
    /// The one that it had when the transaction began: files that wait for recovery belong to that.
    pub began_with: u32,
    /// The group of all its processes but those of transactions.
    pub others: PathBuf,
    /// The group in which those of transactions get theirs.
    pub groups: PathBuf,
}

impl Target {
    /// The one whose first process is `pid`.
    pub fn of_process(pid: i32, first_id: u32, groups: PathBuf) -> Result<Self, CallError> {
        let started = process::start_time(pid).context(|| format!("looking at process {pid}"))?;
        Ok(Self {
            root: TargetRoot::Process { pid, started },
            first_id,
            began_with: first_id,
            others: groups.join("guest"),
            groups,
        })
    }

    /// The pid of its first process, while that runs.
    pub fn first_process(&self) -> Option<i32> {
        self.process().ok()
    }

    /// The same, or why not.
    pub(crate) fn process(&self) -> io::Result<i32> {
        match self.root {
            TargetRoot::Process { pid, started } if process::start_time(pid).is_ok_and(|now| now == started) => Ok(pid),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "it does not run")),
        }
    }

    /// What is opened by the pid of its first process, which was that process's when it was opened.
    pub(crate) fn opened<T>(&self, open: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
        let opened = open(self.process()?)?;
        self.process().map(|_| opened)
    }

    /// The path of its root directory. Whoever opens it [asks again](Self::process) whether it was that.
    pub fn root(&self) -> io::Result<PathBuf> {
        match &self.root {
            TargetRoot::Process { .. } => Ok(PathBuf::from(format!("/proc/{}/root", self.process()?))),
            TargetRoot::Path(path) => Ok(path.clone()),
        }
    }

    /// It has been put together again, under other ids perhaps.
    pub(crate) fn live_again(&mut self, root: &Path, first_id: u32) {
        self.root = TargetRoot::Path(root.to_owned());
        self.first_id = first_id;
    }

    /// The group of a transaction.
    pub(crate) fn group(&self, name: &TxName) -> PathBuf {
        self.groups.join(format!("tx-{name}"))
    }

    /// Takes on the ids of its root user, without which nothing could be made in it.
    pub(crate) fn owner(&self) -> io::Result<FsOwner> {
        FsOwner::assume(self.first_id)
    }

    /// The id that one of when the transaction began has now.
    pub(crate) fn now(&self, id: u32) -> u32 {
        const RANGE: u32 = 1 << 16;
        match id.checked_sub(self.began_with) {
            Some(inside) if inside < RANGE => self.first_id + inside,
            _ => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(root: TargetRoot) -> Target {
        Target { root, first_id: 131_072, began_with: 65_536, others: "/g/guest".into(), groups: "/g".into() }
    }

    #[test]
    fn a_process_that_ended_has_no_root_even_if_its_pid_is_anothers() {
        let pid = std::process::id().cast_signed();
        let started = process::start_time(pid).unwrap();
        let now = target(TargetRoot::Process { pid, started });
        assert_eq!(now.root().unwrap(), PathBuf::from(format!("/proc/{pid}/root")));
        assert!(target(TargetRoot::Process { pid, started: started + 1 }).root().is_err());
    }

    #[test]
    fn ids_move_along_with_the_target() {
        let target = target(TargetRoot::Path("/x".into()));
        assert_eq!((target.now(65_536), target.now(65_570), target.now(0)), (131_072, 131_106, 0));
    }
}
