//! How a container sees the control groups: a mount of kind `cgroup`, on hosts of version 1, 2 or both.

use super::mount_options::Change;
use super::{Plan, Want, inner, text};
use anyhow::Result;
use pando_shim::{Attributes, Make, Mountpoint, Step};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A hierarchy of the host, and where the container is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupPlace {
    /// The directory's name below /sys/fs/cgroup.
    pub(crate) name: String,
    /// Options by which a hierarchy of version 1 is mounted once more; none for version 2.
    pub(crate) legacy: Option<String>,
    /// The container's group.
    pub(crate) group: PathBuf,
    /// The number of the directory that was made for the container, once it was: another's of the same path has
    /// another.
    #[serde(default)]
    pub(crate) made: Option<u64>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupTree {
    /// The hierarchies, in the order of mounting.
    pub(crate) places: Vec<GroupPlace>,
}

impl GroupTree {
    /// Whether version 2 is all that there is.
    pub(crate) fn is_unified(&self) -> bool {
        self.places.iter().all(|place| place.legacy.is_none())
    }
}

/// The mount. `own`: in a namespace of its own the container's group is the root of what is mounted.
pub(crate) fn mount(plan: &mut Plan, place: &str, change: Change, groups: &GroupTree, own: bool) -> Result<()> {
    let attributes = Attributes::from_bits_retain(change.set);
    let at = inner("mount point", place)?;
    let on = Mountpoint { at: text(&at), make: Make::Directory };
    if groups.is_unified() {
        let kind = c"cgroup2".into();
        plan.step(format!("mounting {place}"), Step::Mount { kind, options: "source=cgroup", attributes, on });
        return Ok(());
    }
    let writable = attributes - Attributes::READ_ONLY;
    let kind = c"tmpfs".into();
    plan.step(
        format!("mounting {place}"),
        Step::Mount { kind, options: "source=cgroup,mode=755", attributes: writable, on },
    );
    for hierarchy in &groups.places {
        let below = inner("mount point", &format!("{place}/{}", hierarchy.name))?;
        let on = Mountpoint { at: text(&below), make: Make::Directory };
        let label = format!("mounting {place}/{}", hierarchy.name);
        if own {
            let kind = if hierarchy.legacy.is_some() { c"cgroup" } else { c"cgroup2" };
            let options = hierarchy.legacy.as_deref().unwrap_or_default();
            plan.step(label, Step::Mount { kind: kind.into(), options, attributes, on });
        } else {
            let path = hierarchy.group.clone();
            let fd = plan.want(Want::Tree { path, recursive: false, change, owners: None });
            plan.step(label, Step::Attach { fd, on });
        }
        for part in hierarchy.name.split(',').filter(|part| *part != hierarchy.name) {
            let link = inner("link", &format!("{place}/{part}"))?;
            let to = super::c_string("link", &hierarchy.name)?;
            plan.step(format!("linking {place}/{part}"), Step::Link { at: text(&link), to: text(&to) });
        }
    }
    if attributes.contains(Attributes::READ_ONLY) {
        let set = Attributes::READ_ONLY.bits();
        let change = Step::Change { at: text(&at), recursive: false, set, clear: 0, propagation: 0 };
        plan.step(format!("protecting {place}"), change);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(places: &[(&str, Option<&str>)], own: bool) -> String {
        let place = |(name, legacy): &(&str, Option<&str>)| GroupPlace {
            name: (*name).into(),
            legacy: legacy.map(Into::into),
            group: format!("/sys/fs/cgroup/{name}/x").into(),
            made: None,
        };
        let groups = GroupTree { places: places.iter().map(place).collect() };
        let mut plan = Plan::new();
        mount(&mut plan, "/sys/fs/cgroup", Change { set: 1, ..Change::default() }, &groups, own).unwrap();
        format!("{plan:?}")
    }

    #[test]
    fn version_2_alone_is_one_mount() {
        let plan = planned(&[("", None)], true);
        assert!(plan.contains("cgroup2") && !plan.contains("tmpfs"));
    }

    #[test]
    fn a_hybrid_host_has_a_directory_for_each_hierarchy() {
        let plan = planned(&[("cpu,cpuacct", Some("cpu,cpuacct")), ("unified", None)], true);
        assert!(
            plan.contains(r#"at: "sys/fs/cgroup/unified""#)
                && plan.contains(r#"at: "sys/fs/cgroup/cpuacct", to: "cpu,cpuacct""#)
        );
        let plan = planned(&[("cpu", Some("cpu"))], false);
        assert!(plan.contains(r#"path: "/sys/fs/cgroup/cpu/x""#), "{plan}");
    }
}
