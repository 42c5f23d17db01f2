//! What the kernel charges the guests' memory groups: processes, page tables, kernel stacks, mounts.

use crate::own_pando::OwnPando;
use anyhow::Context;
use pando_api::Method;
use pando_kernel::cgroup::Hierarchies;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of a memory group that tells it, in version 1 and in version 2.
pub(crate) const FILES: [&str; 2] = ["memory.usage_in_bytes", "memory.current"];

/// Kilobytes by such a file.
pub(crate) fn kib(file: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let bytes: f64 = text.trim().parse().with_context(|| format!("{} is no number", file.display()))?;
    Ok(bytes / 1024.0)
}

/// The groups as they were before the guests started.
#[derive(Debug)]
pub(crate) struct GroupCharge {
    field: PathBuf,
    file: &'static str,
}

impl GroupCharge {
    /// Finds the memory groups of a Pando: version 1's, or version 2's where that holds the memory controller.
    pub(crate) fn of(pando: &OwnPando) -> anyhow::Result<Self> {
        let hierarchies = Hierarchies::detect()?;
        let legacy = hierarchies.legacy.iter().find(|(_, held)| held.iter().any(|name| name == "memory"));
        let unified =
            hierarchies.unified.as_ref().filter(|_| hierarchies.unified_controllers().contains(&"memory".into()));
        let (root, file) = legacy
            .map(|(root, _)| (root, FILES[0]))
            .or(unified.map(|root| (root, FILES[1])))
            .context("no cgroup hierarchy of this machine has the memory controller")?;
        Ok(Self { field: root.join(pando.field()), file })
    }

    /// Kilobytes of the average guest, whatever of Pando's runs in its groups included, and of the average shim that
    /// waits for a guest, with the root made ahead for it, if one does. A host with cgroups of version 2 alone has no
    /// shims.
    pub(crate) fn each(&self, pando: &OwnPando) -> anyhow::Result<(f64, Option<f64>)> {
        self.each_named(pando, "")
    }

    /// The same of those guests whose names begin so; all other groups count as shims'.
    pub(crate) fn each_named(&self, pando: &OwnPando, prefix: &str) -> anyhow::Result<(f64, Option<f64>)> {
        let groups = self.groups()?;
        let occupied = occupied(pando, prefix)?;
        let (guests, shims): (Vec<_>, Vec<_>) = groups.iter().partition(|(slot, _)| occupied.contains(slot));
        let average = |charges: Vec<(&String, &f64)>| {
            (!charges.is_empty()).then(|| charges.iter().map(|(_, kb)| **kb).sum::<f64>() / charges.len() as f64)
        };
        Ok((average(guests).context("no guest has a memory group")?, average(shims)))
    }

    fn groups(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let entries =
            std::fs::read_dir(&self.field).with_context(|| format!("cannot list {}", self.field.display()))?;
        let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories
            .map(|entry| {
                let charge = kib(&entry.path().join(self.file))?;
                Ok((entry.file_name().to_string_lossy().into_owned(), charge))
            })
            .collect()
    }
}

/// The names of the groups that belong to guests whose names begin so.
fn occupied(pando: &OwnPando, prefix: &str) -> anyhow::Result<Vec<String>> {
    let mut client = pando.connect()?;
    let listing = client.call(&Method::List {})?;
    let mut slots = Vec::new();
    let listed = listing["guests"].as_array().into_iter().flatten().filter_map(|guest| guest["name"].as_str());
    for name in listed.filter(|name| name.starts_with(prefix)) {
        let answer = client.call(&Method::Inspect { name: name.to_owned() })?;
        let group = answer["guest"]["cgroups"][0].as_str().and_then(|path| Path::new(path).file_name()?.to_str());
        slots.extend(group.map(str::to_owned));
    }
    Ok(slots)
}
