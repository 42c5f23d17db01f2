//! What is charged for a guest and for an image, in kilobytes.

use crate::varlink::Client;
use anyhow::Context;
use pando_api::Method;
use std::path::{Path, PathBuf};

/// What the kernel charges a guest's memory group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Charge {
    /// For its processes, and the files that it was the first to read.
    pub(super) processes: f64,
    /// For itself: page tables, stacks, mounts, sockets.
    pub(super) kernel: f64,
}

impl Charge {
    pub(super) fn of_guest(client: &mut Client, name: &str) -> anyhow::Result<Self> {
        let answer = client.call(&Method::Inspect { name: name.to_owned() })?;
        let groups = answer["guest"]["cgroups"].as_array().into_iter().flatten();
        let groups: Vec<PathBuf> = groups.filter_map(|group| group.as_str().map(PathBuf::from)).collect();
        let found = groups.iter().find_map(|group| Self::version_1(group).or_else(|| Self::version_2(group)));
        found.with_context(|| format!("nothing counts the memory of guest '{name}'"))
    }

    fn version_1(group: &Path) -> Option<Self> {
        let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<f64>().ok();
        let (all, kernel) = (number("memory.usage_in_bytes")?, number("memory.kmem.usage_in_bytes")?);
        Some(Self { processes: (all - kernel) / 1024.0, kernel: kernel / 1024.0 })
    }

    fn version_2(group: &Path) -> Option<Self> {
        let all: f64 = std::fs::read_to_string(group.join("memory.current")).ok()?.trim().parse().ok()?;
        let stat = std::fs::read_to_string(group.join("memory.stat")).ok()?;
        let kernel: f64 = stat.lines().find_map(|line| line.strip_prefix("kernel "))?.parse().ok()?;
        Some(Self { processes: (all - kernel) / 1024.0, kernel: kernel / 1024.0 })
    }

    pub(super) fn sum(self) -> f64 {
        self.processes + self.kernel
    }
}

/// What the process takes that holds an image: resident memory, and page tables.
pub(super) fn of_holder(client: &mut Client, image: &str) -> anyhow::Result<f64> {
    let answer = client.call(&Method::InspectImage { image: image.to_owned() })?;
    let holder =
        answer["image"]["holder"].as_i64().with_context(|| format!("nobody holds image '{image}': {answer}"))?;
    let path = format!("/proc/{holder}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let field = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    field("VmRSS").zip(field("VmPTE")).map(|(resident, tables)| resident + tables).context("its memory is not told")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_tell_what_is_the_kernels() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(Charge::version_1(group.path()), None);
        write("memory.usage_in_bytes", "10240\n");
        write("memory.kmem.usage_in_bytes", "2048\n");
        let charge = Charge::version_1(group.path()).unwrap();
        assert_eq!(charge, Charge { processes: 8.0, kernel: 2.0 });
        write("memory.current", "5120\n");
        write("memory.stat", "anon 4096\nfile 0\nkernel 1024\nkernel_stack 512\n");
        assert_eq!(Charge::version_2(group.path()), Some(Charge { processes: 4.0, kernel: 1.0 }));
        assert_eq!(charge.sum(), 10.0);
    }
}
