//! Descriptors of namespaces (/proc/PID/ns), held or in flight, as programs have them to come back or to keep one for
//! others. In a clone each leads to what stands for its namespace there: the first process's, or one of the image's
//! own, also where no process is in that.

use crate::image::namespace_kind::Kind;
use crate::inspect::descriptors::Found;
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use pando_kernel::namespace;
use rustix::fs::fstat;
use std::fs::File;
use std::sync::OnceLock;

/// A namespace that a process has a descriptor of.
#[derive(Debug)]
pub(crate) struct OpenNamespace {
    pub(crate) kind: Kind,
    /// As /proc tells it apart.
    pub(crate) link: String,
    /// What leads to it.
    pub(crate) at: String,
    pub(crate) member: Member,
    pub(crate) descriptor: i32,
    inode: u64,
    /// Whether it belongs to another user namespace than the first process's, or is one that we are in.
    is_foreign: bool,
}

/// All of them, each namespace once.
#[derive(Debug, Default)]
pub(crate) struct OpenNamespaces(Vec<OpenNamespace>);

/// Whether a descriptor is one: all are on one device.
pub(crate) fn is_one(found: &Found) -> bool {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let device = || rustix::fs::stat("/proc/thread-self/ns/mnt").ok().map(|stat| stat.st_dev);
    *DEVICE.get_or_init(device) == Some(found.stat.st_dev)
}

impl OpenNamespaces {
    /// Those of some processes below a first one. One that is closed meanwhile leads nowhere.
    pub(crate) fn of(init: i32, all: &[(&Member, Vec<Found>)]) -> Self {
        let mut open = Self::default();
        for (member, found) in all {
            for one in found.iter().filter(|one| is_one(one)) {
                if open.0.iter().all(|known| known.inode != one.stat.st_ino) {
                    open.0.extend(look(init, member, one));
                }
            }
        }
        open
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &OpenNamespace> {
        self.0.iter()
    }

    /// The one that a descriptor leads to.
    pub(crate) fn find(&self, found: &Found) -> Option<&OpenNamespace> {
        self.0.iter().find(|one| one.inode == found.stat.st_ino)
    }

    /// Those that stand for nothing in a clone. `is_known` tells which do where they are the guest's own.
    pub(crate) fn objections(&self, init: i32, is_known: impl Fn(&OpenNamespace) -> bool) -> Vec<Refusal> {
        let objection = |one: &OpenNamespace| {
            let kind = match one.kind.of(init) {
                Ok(home) if home == one.link => return None,
                _ if one.is_foreign => "of the outside",
                _ if is_known(one) => return None,
                _ => "of which no process is, or that is of a kind that does not come along",
            };
            let (pid, name) = (one.member.pid, one.member.name.clone());
            let kind = format!("a descriptor of {} {kind} ({})", one.kind.name, one.link);
            Some(Refusal { pid, name, descriptor: Some(one.descriptor), kind, advice: "close it" })
        };
        self.0.iter().filter_map(objection).collect()
    }
}

fn look(init: i32, member: &Member, found: &Found) -> Option<OpenNamespace> {
    let file = File::open(&found.path).ok()?;
    let kind = Kind::of_flag(namespace::kind(&file).ok()?)?;
    let owner = namespace::owner(&file).and_then(|owner| Ok(fstat(owner)?.st_ino)).ok();
    let own = rustix::fs::stat(format!("/proc/{init}/ns/user")).map(|stat| stat.st_ino).ok();
    let at = found.path.clone();
    let is_foreign = owner != own || kind.is_ours(&at).ok()?;
    let inode = found.stat.st_ino;
    Some(OpenNamespace {
        kind,
        link: kind.told(inode),
        at,
        member: member.clone(),
        descriptor: found.number,
        inode,
        is_foreign,
    })
}
