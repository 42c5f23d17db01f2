//! The mounts of a namespace as a tree, out of /proc/PID/mountinfo (proc(5)): what is mounted on what, where a path
//! leads, and by which paths a place is had.

use crate::image::mount::joined;
use pando_kernel::mount::{self, MountEntry};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Its number, which no other mount of the machine has while it is there.
    pub(crate) id: u64,
    pub(crate) parent: u64,
    /// The file system, as `major:minor`.
    pub(crate) device: String,
    /// What of that is mounted.
    pub(crate) root: String,
    /// Where.
    pub(crate) path: String,
    /// The kind of file system.
    pub(crate) kind: String,
    /// What it was mounted from, which for file systems in memory is but a word.
    pub(crate) source: String,
    /// Options of the file system.
    pub(crate) options: String,
    /// `MOUNT_ATTR_*`.
    pub(crate) attributes: u64,
    /// The group of mounts that hear of what is mounted on it, if there is one.
    pub(crate) shared: Option<u64>,
    /// The group that it hears from.
    pub(crate) master: Option<u64>,
    /// Whether it cannot be mounted once more.
    pub(crate) unbindable: bool,
}

impl From<MountEntry> for Mount {
    fn from(entry: MountEntry) -> Self {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Self {
            id: entry.id,
            parent: entry.parent,
            device: entry.device,
            root: text(entry.root),
            path: text(entry.at),
            kind: entry.kind,
            source: entry.source,
            options: entry.options,
            attributes: attributes(&entry.attributes),
            shared: entry.shared,
            master: entry.master,
            unbindable: entry.unbindable,
        }
    }
}

/// `MOUNT_ATTR_STRICTATIME`, which is what a mount has that says nothing of times.
const STRICT: u64 = 0x20;

/// The words of a mount as `MOUNT_ATTR_*` (since Linux 5.12; `nosymfollow` since 5.14).
fn attributes(words: &str) -> u64 {
    const NAMES: [(&str, u64); 6] =
        [("ro", 1), ("nosuid", 2), ("nodev", 4), ("noexec", 8), ("nodiratime", 0x80), ("nosymfollow", 0x20_0000)];
    let has = |name: &str| words.split(',').any(|word| word == name);
    let times = if has("noatime") {
        0x10
    } else if has("relatime") {
        0
    } else {
        STRICT
    };
    NAMES.iter().filter(|(name, _)| has(name)).fold(times, |all, (_, bit)| all | bit)
}

/// All mounts below the root of a process.
#[derive(Clone, Debug)]
pub(crate) struct MountTree {
    mounts: Vec<Mount>,
    /// Of each mount those that are mounted on it, by their paths: two that have the same lie one on the other.
    on: Vec<HashMap<String, usize>>,
    root: usize,
}

/// A longer text is not read: guests write it.
const LONGEST: usize = 1 << 20;

impl Default for MountTree {
    /// One of which nothing is known but that there is a root.
    fn default() -> Self {
        let root = Mount { path: "/".into(), root: "/".into(), ..Mount::default() };
        Self { mounts: vec![root], on: vec![HashMap::new()], root: 0 }
    }
}

impl MountTree {
    /// The tree of a text. `None` where nothing is mounted at the root, or too much.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        Self::build(mount::entries(text).map(Mount::from).collect())
    }

    /// The tree of some mounts.
    pub(crate) fn build(mounts: Vec<Mount>) -> Option<Self> {
        let places: HashMap<u64, usize> = mounts.iter().enumerate().map(|(place, mount)| (mount.id, place)).collect();
        let parent = |mount: &Mount| places.get(&mount.parent).copied().filter(|_| mount.parent != mount.id);
        let root = mounts.iter().position(|mount| mount.path == "/" && parent(mount).is_none())?;
        let mut on = vec![HashMap::new(); mounts.len()];
        for (place, mount) in mounts.iter().enumerate() {
            if let Some(parent) = parent(mount) {
                on[parent].insert(mount.path.clone(), place);
            }
        }
        Some(Self { mounts, on, root })
    }

    /// Adds to some mounts, of which the first is at the root, one of which nothing is known but its path.
    pub(crate) fn add(mounts: &mut Vec<Mount>, path: &str) {
        let above = |mount: &&Mount| below(path, &mount.path).is_some();
        let parent = mounts.iter().filter(above).max_by_key(|mount| mount.path.len()).map_or(0, |mount| mount.id);
        // Numbers begin with 1, and no machine has as many mounts.
        let id = u64::MAX - mounts.len() as u64;
        mounts.push(Mount { id, parent, path: path.to_owned(), root: "/".into(), ..Mount::default() });
    }

    /// The one at the root.
    pub(crate) fn root(&self) -> usize {
        self.root
    }

    /// A mount.
    pub(crate) fn get(&self, mount: usize) -> &Mount {
        &self.mounts[mount]
    }

    /// All of them, those too that no path leads to.
    pub(crate) fn all(&self) -> &[Mount] {
        &self.mounts
    }

    /// What is mounted on a mount, by paths.
    pub(crate) fn on(&self, mount: usize) -> &HashMap<String, usize> {
        &self.on[mount]
    }

    /// The uppermost of the mounts that lie one on the other where a mount is.
    pub(crate) fn top(&self, mount: usize) -> usize {
        self.stack(mount).last().unwrap_or(mount)
    }

    /// A mount, and those that lie on it, one on the other.
    pub(crate) fn stack(&self, mount: usize) -> impl Iterator<Item = usize> {
        let path = &self.get(mount).path;
        // A tree is no deeper than it has mounts.
        std::iter::successors(Some(mount), move |at| self.on[*at].get(path).copied()).take(self.mounts.len())
    }

    /// The mount that a path without links leads to, if some were not there.
    pub(crate) fn leads_to(&self, path: &str, without: &HashSet<usize>) -> usize {
        let mut at = self.root;
        // On its way down a path meets the highest first.
        let ends = path.match_indices('/').map(|(place, _)| place).chain([path.len()]);
        for prefix in ends.map(|end| if end == 0 { "/" } else { &path[..end] }) {
            for _ in 0..self.mounts.len() {
                match self.on[at].get(prefix) {
                    Some(next) if !without.contains(next) => at = *next,
                    _ => break,
                }
            }
        }
        at
    }

    /// The place of a file system that a path leads to: the device, and the path in it.
    pub(crate) fn place(&self, path: &str) -> (&str, String) {
        let mount = self.get(self.leads_to(path, &HashSet::new()));
        (&mount.device, joined(&mount.root, below(path, &mount.path).unwrap_or_default()))
    }

    /// The paths that lead to a place of a file system.
    pub(crate) fn paths_to<'a>(&'a self, device: &'a str, place: &'a str) -> impl Iterator<Item = String> + 'a {
        let on_it = self.mounts.iter().enumerate().filter(move |(_, mount)| mount.device == device);
        on_it.filter_map(move |(number, mount)| {
            let path = joined(&mount.path, below(place, &mount.root)?);
            (self.leads_to(&path, &HashSet::new()) == number).then_some(path)
        })
    }
}

/// What follows another path in one that lies below it: nothing, or a slash and more.
pub(crate) fn below<'a>(path: &'a str, above: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(above.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(if rest == "/" { "" } else { rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
58 46 0:47 / / rw,nodev,relatime shared:3 - overlay deb rw
60 58 0:70 / /run rw,nosuid,noatime master:4 shared:7 - tmpfs tmpfs rw,size=5k
61 60 0:71 / /run/my\\040lock ro - tmpfs tmpfs rw
62 58 0:47 /etc /etc rw,relatime - overlay deb rw
63 58 0:47 /var/tmp /etc/deep rw,relatime - overlay deb rw
64 60 0:70 /inner /run rw - tmpfs tmpfs rw
90 89 0:70 / /elsewhere rw - tmpfs tmpfs rw
";

    fn tree() -> MountTree {
        MountTree::parse(TEXT).unwrap()
    }

    fn id(path: &str) -> u64 {
        let tree = tree();
        tree.get(tree.leads_to(path, &HashSet::new())).id
    }

    #[test]
    fn paths_lead_to_what_is_uppermost() {
        assert_eq!(["/", "/etc/deep/x", "/etcetera", "/run", "/run/my lock/x"].map(id), [58, 62, 58, 64, 64]);
        let tree = tree();
        assert_eq!(tree.get(tree.leads_to("/run/my lock", &HashSet::from([5]))).id, 61, "what lay above is not there");
        assert_eq!(tree.get(tree.leads_to("/etc/deep/x", &HashSet::from([3]))).id, 63);
    }

    #[test]
    fn places_are_had_by_paths_that_nothing_covers() {
        let tree = tree();
        let paths = |device, place| tree.paths_to(device, place).collect::<Vec<_>>();
        assert_eq!(paths("0:47", "/etc/passwd"), ["/etc/passwd"]);
        assert_eq!(paths("0:47", "/var/tmp"), ["/var/tmp"], "the other is covered");
        assert_eq!(paths("0:70", "/inner/x"), ["/run/x"]);
        assert!(paths("0:70", "/outer").is_empty() && paths("0:99", "/").is_empty());
        assert_eq!(tree.place("/run/x"), ("0:70", "/inner/x".to_owned()));
        assert_eq!(paths("0:47", "/"), ["/"]);
    }

    #[test]
    fn attributes_and_groups_are_read() {
        let tree = tree();
        let of = |number: usize| (tree.get(number).attributes, tree.get(number).shared, tree.get(number).master);
        assert_eq!(of(0), (4, Some(3), None));
        assert_eq!(of(1), (2 | 0x10, Some(7), Some(4)));
        assert_eq!(of(2), (1 | STRICT, None, None));
        assert_eq!((tree.top(1), tree.stack(1).count(), tree.stack(3).count()), (5, 2, 1));
        assert_eq!(MountTree::default().place("/x"), ("", "/x".to_owned()));
        assert!(MountTree::parse("").is_none() && MountTree::parse("x y - z").is_none());
    }
}
