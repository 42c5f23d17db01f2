//! Captures the control groups below the guest's own.

use crate::image::control_group::{DEEPEST_GROUP, MOST_GROUPS, SETTINGS};
use crate::image::{ControlGroup, ControlGroups};
use crate::inspect::credentials::IdMaps;
use crate::inspect::mount_tree::MountTree;
use crate::inspect::proc_file;
use crate::subject::Subject;
use pando_kernel::file::confined::Root;
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

/// Where the groups of a guest are.
#[derive(Debug)]
pub(crate) struct Tree {
    init: i32,
    /// Where the guest has them mounted.
    mounted: String,
    /// The guest's own, as we see it.
    outer: String,
}

impl Tree {
    /// Those of a guest with an init of its own, which alone makes any; none where it has not mounted them.
    pub(crate) fn of(subject: &Subject<'_>) -> Result<Option<Self>, CallError> {
        if !subject.whole {
            return Ok(None);
        }
        let tree = MountTree::parse(&proc_file::text(subject.init, "mountinfo")?).unwrap_or_default();
        let is_one = |path: &str| {
            let mount = tree.get(tree.leads_to(path, &std::collections::HashSet::new()));
            (mount.kind == "cgroup2" && mount.path == path).then(|| mount.root.clone())
        };
        let mut mounts = tree.all().iter().filter_map(|mount| Some((mount.path.clone(), is_one(&mount.path)?)));
        Ok(mounts.next().map(|(mounted, outer)| Self { init: subject.init, mounted, outer }))
    }

    fn open(&self, path: &str, flags: OFlags) -> Option<OwnedFd> {
        let root = Root::of_process(self.init).ok()?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let path = format!("{}{path}", self.mounted);
        rustix::fs::openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve).ok()
    }

    /// What is in a file of a group.
    fn read(&self, path: &str, name: &str) -> Option<String> {
        const LONGEST: u64 = 4096;
        let mut text = String::new();
        // By now the guest may have something else there, which is not to be waited for.
        let file = File::from(self.open(&format!("{path}/{name}"), OFlags::RDONLY | OFlags::NONBLOCK)?);
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    }

    fn given(&self, path: &str) -> Vec<String> {
        let text = self.read(path, "cgroup.subtree_control").unwrap_or_default();
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// The paths of all groups below the guest's own, each before those inside.
    fn paths(&self) -> Vec<String> {
        let (mut paths, mut next) = (Vec::new(), vec![String::new()]);
        while let Some(above) = next.pop() {
            let Some(directory) = self.open(&above, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let Ok(entries) = rustix::fs::Dir::read_from(&directory) else { continue };
            for entry in entries.flatten().filter(|entry| entry.file_type().is_dir()) {
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name != "." && name != ".." && paths.len() <= MOST_GROUPS {
                    paths.push(format!("{above}/{name}"));
                    next.push(format!("{above}/{name}"));
                }
            }
        }
        paths.sort_by_key(|path| path.matches('/').count());
        paths
    }

    /// What stands in the way.
    pub(crate) fn objections(&self) -> Vec<(String, &'static str)> {
        let paths = self.paths();
        let mut objections = Vec::new();
        if paths.len() > MOST_GROUPS || paths.iter().any(|path| path.matches('/').count() > DEEPEST_GROUP) {
            objections.push((format!("more than {MOST_GROUPS} control groups, or too deep ones"), "remove some"));
        }
        for path in paths.iter().take(MOST_GROUPS) {
            let kind = self.read(path, "cgroup.type").unwrap_or_default();
            if !matches!(kind.as_str(), "" | "domain") {
                objections.push((format!("a control group of threads ({}{path})", self.mounted), "remove it"));
            }
            if self.read(path, "cgroup.freeze").is_some_and(|text| text == "1") {
                objections.push((format!("a control group that is frozen ({}{path})", self.mounted), "thaw it"));
            }
        }
        objections
    }

    /// Reads all of them.
    pub(crate) fn capture(&self, maps: &IdMaps) -> Result<ControlGroups, CallError> {
        let one = |path: String| {
            let what = || format!("looking at the control group {path}");
            let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
            let directory = self.open(&path, OFlags::PATH).ok_or_else(gone).context(what)?;
            let about = rustix::fs::fstat(&directory).context(what)?;
            let differs = |(name, new): &(&str, &str)| {
                let now = self.read(&path, name)?;
                (now != *new).then(|| ((*name).to_owned(), now))
            };
            Ok(ControlGroup {
                owner: (maps.user(about.st_uid).unwrap_or(0), maps.group(about.st_gid).unwrap_or(0)),
                given: self.given(&path),
                settings: SETTINGS.iter().filter_map(differs).collect(),
                path,
            })
        };
        let groups = self.paths().into_iter().map(one).collect::<Result<Vec<_>, CallError>>()?;
        let root = if groups.is_empty() { String::new() } else { self.mounted.clone() };
        Ok(ControlGroups { root, given: self.given(""), groups })
    }

    /// The path of a process's group below the guest's own.
    pub(crate) fn of_process(&self, outer: i32) -> Result<String, CallError> {
        let text = proc_file::text(outer, "cgroup")?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        Ok(path.strip_prefix(self.outer.trim_end_matches('/')).unwrap_or_default().to_owned())
    }
}
