//! The namespaces of others that a container joins, each opened once: what is asked about one is asked of what is
//! joined, whatever its path leads to by then.
//!
//! One that is joined may be the host's, by `/proc/self/ns/net` or a path that was mounted over. Settings of such a one
//! are the host's, so it is told apart by its inode.

use crate::plan::namespaces::{KINDS, Namespaces, Place};
use anyhow::{Context, Result, bail};
use std::fs::{File, Metadata, metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Namespaces by their kinds: `CLONE_NEW*`.
pub(crate) type Held = Vec<(u32, OwnedFd)>;

/// Opens those that a configuration names by path, and notes which of them are the host's.
pub(crate) fn open(namespaces: &mut Namespaces) -> Result<Held> {
    let mut held = Held::new();
    for (kind, place) in &namespaces.joined {
        let Place::Path(path) = place else { continue };
        let namespace = open_one(path, *kind)?;
        if is_hosts(&namespace, *kind).with_context(|| format!("looking at the namespace {}", path.display()))? {
            namespaces.hosts |= *kind;
        }
        held.push((*kind, namespace.into()));
    }
    Ok(held)
}

/// A namespace of the host's of that kind, and nothing else that has that path.
pub(crate) fn open_one(path: &Path, wanted: u32) -> Result<File> {
    let file = File::open(path).with_context(|| format!("opening the namespace {}", path.display()))?;
    let kind = pando_kernel::namespace::kind(&file).with_context(|| format!("{} is no namespace", path.display()))?;
    if kind.cast_unsigned() != wanted {
        bail!("the namespace {} is of another kind than the one that it is given for", path.display());
    }
    Ok(file)
}

/// Whether it is this command's own, or that of the first process that this command sees: the machine's, as a rule.
fn is_hosts(namespace: &File, kind: u32) -> Result<bool> {
    let name = KINDS.iter().find(|(_, known, _)| *known == kind).map_or("", |(_, _, name)| name);
    let found = namespace.metadata()?;
    let own = metadata(format!("/proc/self/ns/{name}"))?;
    // Whoever may not look at the first process has no settings of its namespaces to change either.
    let first = metadata(format!("/proc/1/ns/{name}")).ok();
    Ok(same(&own, &found) || first.is_some_and(|first| same(&first, &found)))
}

/// Whether both are the same namespace.
pub(crate) fn same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
