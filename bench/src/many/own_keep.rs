//! What Pando keeps for guests outside of their groups: memory of the daemon and of those that make guests for it, and
//! files of its run-time state, which lie in memory too.

use crate::own_pando::OwnPando;
use anyhow::Context;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The daemon, the spawner, and the nursery that shims are forked from; the shims themselves are charged to their
/// groups.
const GENERATIONS: usize = 3;

/// Kilobytes of both.
pub(crate) fn kilobytes(pando: &OwnPando) -> anyhow::Result<f64> {
    let mut generation = vec![pando.daemon()];
    let mut memory = 0;
    for _ in 0..GENERATIONS {
        for pid in &generation {
            memory += anonymous_kib(*pid)?;
        }
        generation = generation.into_iter().flat_map(children).collect();
    }
    let files = pando.run_state();
    let device = files.metadata().with_context(|| format!("cannot look at {}", files.display()))?.dev();
    Ok((memory + blocks_kib(&files, device)) as f64)
}

/// What a process has of its own: its program's file is there once, however many guests there are.
fn anonymous_kib(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok())
        .with_context(|| format!("{path} says nothing of RssAnon"))
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// What is mounted below is not Pando's.
fn blocks_kib(path: &Path, device: u64) -> u64 {
    let Some(metadata) = path.symlink_metadata().ok().filter(|metadata| metadata.dev() == device) else { return 0 };
    let entries = metadata.is_dir().then(|| std::fs::read_dir(path).ok()).flatten();
    let below = entries.into_iter().flatten().flatten().map(|entry| blocks_kib(&entry.path(), device));
    metadata.blocks() / 2 + below.sum::<u64>()
}
