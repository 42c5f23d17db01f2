//! Namespaces that processes are in beside those of the first process.

use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK};
use crate::inspect::open_namespaces::OpenNamespaces;
use crate::inspect::proc_file;
use crate::inspect::process_tree::{self, Member};
use crate::refusal::Refusal;
use pando_kernel::{CallError, Context};
use std::os::unix::fs::MetadataExt;

impl Kind {
    /// Which one a process is in, as /proc tells them apart.
    pub(crate) fn of(self, outer: i32) -> Result<String, CallError> {
        proc_file::link(outer, &format!("ns/{}", self.link))
    }

    /// Whether a path leads to the same as we are in.
    pub(crate) fn is_ours(self, at: &str) -> Result<bool, CallError> {
        let inode =
            |path: &str| std::fs::metadata(path).map(|about| about.ino()).context(|| format!("looking at {path}"));
        Ok(inode(at)? == inode(&self.at(std::process::id() as i32))?)
    }

    /// Which one a thread of a process is in.
    fn of_thread(self, outer: i32, tid: i32) -> Result<String, CallError> {
        proc_file::link(outer, &format!("task/{tid}/ns/{}", self.link))
    }
}

/// One beside the first process's.
#[derive(Debug)]
pub(crate) struct Space {
    link: String,
    /// The path in /proc that leads to it.
    pub(crate) at: String,
    /// A process that is in it, or one that has a descriptor of it.
    member: Member,
    descriptor: Option<i32>,
}

impl Space {
    /// A process that is in it, as we know it. None where only a descriptor leads to it.
    pub(crate) fn process(&self) -> Option<i32> {
        self.descriptor.is_none().then_some(self.member.outer)
    }

    /// What is said against it.
    pub(crate) fn refusal(&self, kind: String, advice: &'static str) -> Refusal {
        let (pid, name) = (self.member.pid, self.member.name.clone());
        Refusal { pid, name, descriptor: self.descriptor, kind, advice }
    }

    /// Whether it is told so.
    pub(crate) fn is(&self, link: &str) -> bool {
        self.link == link
    }

    /// Whether nothing leads to it any more.
    pub(crate) fn is_gone(&self) -> bool {
        std::fs::metadata(&self.at).is_err()
    }
}

/// The namespaces of a kind beside the first process's.
#[derive(Debug)]
pub(crate) struct Beside {
    kind: Kind,
    home: String,
    all: Vec<Space>,
}

impl Beside {
    /// Those that some processes below a first one are in. One that has gone meanwhile is in none.
    pub(crate) fn of<'a>(
        kind: Kind,
        init: i32,
        members: impl IntoIterator<Item = &'a Member>,
    ) -> Result<Self, CallError> {
        let mut beside = Self { kind, home: kind.of(init)?, all: Vec::new() };
        for member in members.into_iter().filter(|member| member.state != 'Z') {
            let Ok(link) = kind.of(member.outer) else { continue };
            if beside.place(&link).is_none() {
                let (at, member) = (kind.at(member.outer), member.clone());
                beside.all.push(Space { link, at, member, descriptor: None });
            }
        }
        Ok(beside)
    }

    /// Adds those that only descriptors lead to.
    pub(crate) fn add(&mut self, open: &OpenNamespaces) {
        for one in open.all().filter(|one| one.kind == self.kind) {
            if self.place(&one.link).is_none() {
                let (link, at, member) = (one.link.clone(), one.at.clone(), one.member.clone());
                self.all.push(Space { link, at, member, descriptor: Some(one.descriptor) });
            }
        }
    }

    /// All namespaces of the kind that were found.
    pub(crate) fn all(&self) -> &[Space] {
        &self.all
    }

    /// Which one is told so; none of them if the first process's. `None` if nobody is in it.
    pub(crate) fn place(&self, link: &str) -> Option<Option<usize>> {
        let known = || self.all.iter().position(|other| other.link == link);
        if link == self.home { Some(None) } else { known().map(Some) }
    }

    /// Which one a process is in; none if it is in that of the first process.
    pub(crate) fn of_process(&self, outer: i32) -> Result<Option<usize>, CallError> {
        Ok(self.place(&self.kind.of(outer)?).flatten())
    }
}

/// Threads of a process that are in a namespace of their own.
pub(crate) fn thread_objection(outer: i32) -> Option<(String, &'static str)> {
    let threads = process_tree::threads(outer).unwrap_or_default();
    let strays = |kind: &Kind| {
        let Ok(own) = kind.of(outer) else { return false };
        threads.iter().skip(1).any(|tid| kind.of_thread(outer, *tid).is_ok_and(|other| other != own))
    };
    let kind = [MOUNTS, IPC, NETWORK, HOST_NAMES].into_iter().find(strays)?;
    Some((format!("a thread with {} of its own", kind.name), "stop what made it"))
}
