//! How mounts of an image differ from those that a clone is given.

use serde::{Deserialize, Serialize};

/// A change to the mounts that a clone is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountChange {
    /// What is mounted at a path is not.
    Gone {
        /// The path.
        path: String,
    },
    /// What is mounted at a path has other attributes.
    Set {
        /// The path.
        path: String,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
    },
    /// Files that are elsewhere, too, are mounted at a path.
    Bind {
        /// The path.
        path: String,
        /// The files that are mounted there.
        from: MountSource,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
    },
    /// A file system in memory is mounted at a path.
    Memory {
        /// The path.
        path: String,
        /// Its options: what bounds it.
        options: String,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
        /// What is in it: a range of [`contents`](crate::image::Image::contents), the first and the one behind the
        /// last.
        contents: (usize, usize),
    },
    /// The file system of processes (proc(5)) is mounted at a path, one of its own.
    Proc {
        /// The path.
        path: String,
        /// Its options: what is to be seen in it.
        options: String,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
    },
    /// The message queues of an ipc namespace (mq_overview(7)) are mounted at a path.
    Queues {
        /// The path.
        path: String,
        /// Which ipc namespace's, one of [`ipc_spaces`](crate::image::Image::ipc_spaces).
        space: usize,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
        /// The device that they are on, by which the namespace is found.
        #[serde(skip)]
        device: String,
    },
    /// The devices of a network namespace (sysfs(5)) are mounted at a path.
    Devices {
        /// The path.
        path: String,
        /// Which network namespace's, an index into [`net_spaces`](crate::image::Image::net_spaces).
        space: usize,
        /// Attributes of the mount: `MOUNT_ATTR_*`, or'ed.
        attributes: u64,
        /// The device that the file system is on, by which the namespace is found.
        #[serde(skip)]
        device: String,
    },
    /// Others hear of what is mounted on what is at a path, or do not (`mount_namespaces(7)`), unlike most of the
    /// namespace.
    Propagate {
        /// The path.
        path: String,
        /// `MS_SHARED`, `MS_SLAVE`, `MS_PRIVATE` or `MS_UNBINDABLE`.
        kind: u64,
    },
}

/// Where files are that are mounted once more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSource {
    /// The namespace in which their path leads to them, one that comes before or the same, when all that comes before
    /// is mounted; none for the first process's.
    pub space: Option<usize>,
    /// The path of the files in that namespace.
    pub path: String,
}

/// What a namespace's mounts hear of what is mounted in the first process's (`mount_namespaces(7)`, shared subtrees).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// They are the same group: each hears of the other's.
    Peers,
    /// Mounts there hear of what is mounted here.
    #[default]
    Follows,
    /// Mounts there hear of nothing from here.
    Alone,
}

/// More changes than this in one namespace are not made.
pub(crate) const MOST_MOUNT_CHANGES: usize = 1024;

/// Whether a change mounts something, rather than changing what is mounted.
pub(crate) fn is_made(change: &MountChange) -> bool {
    use MountChange::{Bind, Devices, Memory, Proc, Queues};
    matches!(change, Bind { .. } | Memory { .. } | Proc { .. } | Queues { .. } | Devices { .. })
}

/// The path of the mount that a change is about.
pub(crate) fn path(change: &MountChange) -> &str {
    match change {
        MountChange::Gone { path }
        | MountChange::Set { path, .. }
        | MountChange::Bind { path, .. }
        | MountChange::Memory { path, .. }
        | MountChange::Proc { path, .. }
        | MountChange::Queues { path, .. }
        | MountChange::Devices { path, .. }
        | MountChange::Propagate { path, .. } => path,
    }
}

/// A path and what follows it: nothing, or a slash and more.
pub(crate) fn joined(path: &str, rest: &str) -> String {
    match (path.trim_end_matches('/'), rest) {
        ("", "") => "/".to_owned(),
        (path, rest) => format!("{path}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::mount_difference::Difference;
    use crate::inspect::mount_tree::MountTree;

    const FIRST: &str = "\
58 46 0:47 / / rw,relatime shared:1 - overlay deb rw
60 58 0:70 / /run rw,nosuid,relatime shared:2 - tmpfs tmpfs rw
61 58 0:44 / /proc rw,relatime shared:3 - proc none rw
62 61 0:90 /views/7 /proc/meminfo ro,relatime - tmpfs none rw
63 58 0:91 /h /etc/hosts ro,relatime - ext4 none rw
";

    /// Each line of the first tree as a follower has it, and more.
    fn difference(change: impl Fn(&str) -> Option<String>, more: &str) -> Difference {
        let copied = |line: &str| change(line).map(|line| line.replace("shared:", "master:") + "\n");
        let other: String = FIRST.lines().filter_map(copied).collect();
        let tree = |text: &str| MountTree::parse(text).unwrap();
        Difference::between(&tree(FIRST), &tree(&(other + more)), &[])
    }

    fn same(line: &str) -> Option<String> {
        Some(line.to_owned())
    }

    fn paths(difference: &Difference) -> Vec<&str> {
        let shown = |change: &MountChange| match change {
            MountChange::Gone { path } => format!("-{path}"),
            MountChange::Set { path, attributes } => format!("={path} {attributes:x}"),
            MountChange::Bind { path, from, .. } => format!("{}>{path}", from.path),
            MountChange::Memory { path, options, .. } => format!("{options}>{path}"),
            MountChange::Proc { path, options, .. } => format!("proc {options}>{path}"),
            MountChange::Queues { path, device, .. } => format!("queues {device}>{path}"),
            MountChange::Devices { path, device, .. } => format!("devices {device}>{path}"),
            MountChange::Propagate { path, kind } => format!("~{path} {kind:x}"),
        };
        difference.changes.iter().map(|change| shown(change).leak() as &str).collect()
    }

    #[test]
    fn what_is_equal_needs_nothing() {
        let found = difference(same, "");
        assert_eq!(found, Difference { link: Link::Follows, ..Difference::default() });
    }

    #[test]
    fn what_is_made_taken_away_and_protected_is_said() {
        let change = |line: &str| {
            let protected = if line.starts_with("58 ") { line.replace(" rw,", " ro,") } else { line.to_owned() };
            (!line.starts_with("62 ")).then_some(protected)
        };
        let more = "\
70 58 0:47 /tmp/private /tmp rw,relatime - overlay deb rw
71 70 0:99 / /tmp/deep rw,nodev,relatime - tmpfs none rw,size=5k,uid=7
72 58 0:47 /etc /etc rw,relatime - overlay deb rw
73 72 0:91 /h /etc/hosts ro,relatime - ext4 none rw
74 58 0:70 /lock /var/run/lock rw,relatime - tmpfs tmpfs rw
";
        let found = difference(change, more);
        assert_eq!(found.objections, []);
        assert_eq!(
            paths(&found),
            [
                "-/proc/meminfo",
                "=/ 1",
                "/run/lock>/var/run/lock",
                "/tmp/private>/tmp",
                "size=5k,source=none>/tmp/deep",
                "/etc>/etc",
                "/etc/hosts>/etc/hosts"
            ]
        );
    }

    #[test]
    fn attributes_of_what_both_have_are_set() {
        let found = difference(|line| Some(line.replace("/run rw,nosuid", "/run ro,nosuid")), "");
        assert_eq!(paths(&found), ["=/run 3"]);
    }

    #[test]
    fn deep_mounts_come_before_what_hides_them() {
        let more = "\
70 58 0:47 /x /srv rw,relatime - overlay deb rw
71 58 0:47 /y /srv/deep rw,relatime - overlay deb rw
72 58 0:47 /z /proc/x rw,relatime - overlay deb rw
";
        assert_eq!(paths(&difference(same, more)), ["/y>/srv/deep", "/x>/srv"], "one is below what stays, and unseen");
    }

    #[test]
    fn what_cannot_be_had_is_named_but_for_what_each_clone_has_of_its_own() {
        let unknown = "70 58 0:98 / /mnt rw,relatime - fuse x rw\n71 61 0:97 /views/8 /proc/stat rw - ext4 x rw\n";
        let found = difference(same, unknown);
        assert_eq!(found.objections.len(), 1);
        assert!(found.objections[0].0.contains("(fuse on /mnt)"), "{found:?}");
        let deleted = difference(same, "70 58 0:47 /gone//deleted /mnt rw,relatime - overlay x rw\n");
        assert!(deleted.objections[0].0.contains("were deleted (on /mnt)"), "{deleted:?}");
        let covered = "70 58 0:98 / /mnt rw,relatime - tmpfs x rw\n71 70 0:47 /x /mnt rw,relatime - overlay x rw\n";
        assert!(difference(same, covered).objections[0].0.contains("covers (tmpfs on /mnt)"));
    }

    #[test]
    fn parts_of_its_own_file_systems_come_after_them() {
        let more = "\
70 58 0:98 /x /mnt rw,relatime - tmpfs x rw
71 58 0:98 / /dev rw,relatime - tmpfs x rw
72 58 0:99 / /proc rw,relatime - proc proc rw,hidepid=invisible
74 71 0:95 / /dev/mqueue rw,relatime - mqueue mqueue rw
73 72 0:99 /sys /proc/sys ro,relatime - proc proc rw,hidepid=invisible
";
        let found = difference(|line| (!line.contains(" /proc")).then(|| line.to_owned()), more);
        assert_eq!(found.objections, []);
        let wanted = [
            "-/proc",
            "proc hidepid=invisible>/proc",
            "/proc/sys>/proc/sys",
            "source=x>/dev",
            "queues 0:95>/dev/mqueue",
            "/dev/x>/mnt",
        ];
        assert_eq!(paths(&found), wanted);
        let from = MountSource { space: Some(0), path: "/dev/x".into() };
        assert_eq!(found.changes[5], MountChange::Bind { path: "/mnt".into(), from, attributes: 0 });
        let grouped = difference(same, "72 58 0:99 / /mnt rw,relatime - proc proc rw,gid=7\n");
        assert!(grouped.objections[0].0.contains("(proc on /mnt)"), "{grouped:?}");
    }

    #[test]
    fn groups_are_kept_apart() {
        let tree = |text: &str| MountTree::parse(text).unwrap();
        let between = |text: &str| Difference::between(&tree(FIRST), &tree(text), &[]);
        assert_eq!(between(FIRST).link, Link::Peers);
        assert_eq!(between(&FIRST.replace("shared:", "x:")).link, Link::Alone);
        let both = FIRST.replace("shared:", "master:").replace("master:1", "master:1 shared:31");
        assert_eq!((between(&both).link, between(&both).shared), (Link::Follows, true));
        let differs = FIRST.to_owned() + "70 58 0:98 / /mnt rw,relatime - tmpfs x rw\n";
        assert!(between(&differs).objections[0].1.contains("make-rslave"));
        let elsewhere = FIRST.replace("0:47 / /", "0:47 /root /");
        let found = between(&elsewhere);
        assert_eq!((found.link, found.shared, found.objections.clone()), (Link::Alone, true, vec![]));
        assert_eq!(paths(&found)[0], "/root>/", "all the rest is mounted in it");
        assert!(!found.changes.iter().any(|change| matches!(change, MountChange::Gone { .. })), "{found:?}");
        let memory = "70 58 0:99 / / rw,relatime - tmpfs none rw,size=5k\n71 70 0:47 /usr /usr ro,relatime master:1 - overlay deb rw\n";
        let found = between(memory);
        assert_eq!(
            (found.link, paths(&found)),
            (Link::Follows, vec!["size=5k,source=none>/", "/usr>/usr", "~/ 40000"])
        );
    }

    #[test]
    fn what_an_earlier_namespace_has_is_had_from_there() {
        let tree = |text: &str| MountTree::parse(text).unwrap();
        let one = FIRST.replace("shared:", "master:") + "70 58 0:98 / /mnt rw,relatime - tmpfs x rw\n";
        let other = one.replace("/mnt ", "/srv ");
        let found = Difference::between(&tree(FIRST), &tree(&other), &[&tree(&one)]);
        let from = MountSource { space: Some(0), path: "/mnt".into() };
        assert_eq!(found.changes, [MountChange::Bind { path: "/srv".into(), from, attributes: 0 }]);
    }
}
