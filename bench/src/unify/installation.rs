//! Debian systems, each installed on its own, as the papers' were: what two of them have in common they have because it
//! came out the same.
//!
//! The first is installed as `pando create --from debian:` does it, the others from the mirrors that it came from, of
//! packages that are fetched once.

use crate::interrupt;
use anyhow::Context;
use pando_kernel::file::tree_removal::remove_tree;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const SUITE: &str = "bookworm";

/// Installs others like the first, several at once.
pub(super) fn others(first: &Path, others: &[PathBuf], packages: &[&str]) -> anyhow::Result<()> {
    let Some((fetching, rest)) = others.split_first() else { return Ok(()) };
    let fetched = tempfile::tempdir_in(first.parent().context("a root lies in a directory")?)?;
    let supply = Supply { first, packages, fetched: fetched.path() };
    // The one that fetches goes alone: what another reads while it is being written is not whole.
    supply.install(fetching, true)?;
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<()> {
        while let Some(at) = rest.get(next.fetch_add(1, Ordering::Relaxed)) {
            interrupt::check()?;
            supply.install(at, false)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect()
    })
}

/// What they are installed of.
#[derive(Clone, Copy)]
struct Supply<'a> {
    /// Has the mirrors, and apt's settings.
    first: &'a Path,
    packages: &'a [&'a str],
    /// Where packages lie that were fetched.
    fetched: &'a Path,
}

impl Supply<'_> {
    /// Installs one, and once more if a mirror did not answer: of thirty one fails now and then. `keep`: it leaves
    /// behind what it fetched.
    fn install(&self, at: &Path, keep: bool) -> anyhow::Result<()> {
        self.attempt(at, keep).or_else(|error| {
            eprintln!("{error:#}; once more");
            interrupt::check()?;
            if at.exists() {
                remove_tree(at).with_context(|| format!("removing {}", at.display()))?;
            }
            self.attempt(at, keep)
        })
    }

    fn attempt(&self, at: &Path, keep: bool) -> anyhow::Result<()> {
        let Self { first, packages, fetched } = *self;
        let (kept, archives) = (fetched.display(), "/var/cache/apt/archives");
        // What it mounts goes with its namespace, even if it is killed.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "mmdebstrap", "--mode=root", "--format=directory"]);
        command.args(["--variant=minbase", "--skip=download/empty", "--skip=essential/unlink"]);
        command.arg(format!("--include={}", packages.join(",")));
        command.arg(format!("--setup-hook=mkdir -p \"$1\"{archives}"));
        command.arg(format!("--setup-hook=sync-in {kept} {archives}"));
        if keep {
            command.arg(format!("--customize-hook=sync-out {archives} {kept}"));
        }
        let settings = first.join("etc/apt/apt.conf.d/99mmdebstrap");
        if settings.exists() {
            command.arg(format!("--aptopt={}", settings.display()));
        }
        command.arg(SUITE).arg(at).args(mirrors(&first.join("etc/apt")));
        let done =
            command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive").current_dir("/").output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        anyhow::ensure!(
            done.status.success(),
            "installing a Debian root failed: {}",
            said.lines().last().unwrap_or_default()
        );
        Ok(())
    }
}

/// The files in which a root's apt has its mirrors.
fn mirrors(apt: &Path) -> Vec<PathBuf> {
    let listed =
        std::fs::read_dir(apt.join("sources.list.d")).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = listed.chain([apt.join("sources.list")]);
    files.filter(|file| file.metadata().is_ok_and(|found| found.len() > 0)).collect()
}

/// How many names there are in two trees, and how many of them are not the same in both: in kind, mode, owner, length,
/// or time of modification.
pub(super) fn compare(one: &Path, other: &Path) -> anyhow::Result<(usize, usize)> {
    let (one, other) = (names(one)?, names(other)?);
    let all = one.len() + other.keys().filter(|name| !one.contains_key(*name)).count();
    let same = one.iter().filter(|(name, what)| other.get(*name) == Some(what)).count();
    Ok((all, all - same))
}

type What = (u32, u32, u32, u64, i64, i64);

fn names(tree: &Path) -> anyhow::Result<BTreeMap<PathBuf, What>> {
    let (mut names, mut todo) = (BTreeMap::new(), vec![tree.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let (path, found) = (entry.path(), entry.metadata()?);
            // How long a directory is says how it came to be, and nothing of what is in it.
            let length = if found.is_dir() { 0 } else { found.len() };
            let what = (found.mode(), found.uid(), found.gid(), length, found.mtime(), found.mtime_nsec());
            names.insert(path.strip_prefix(tree)?.to_owned(), what);
            if found.is_dir() {
                todo.push(path);
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_counted() {
        let trees = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| trees.path().join(name));
        for tree in [&one, &other] {
            std::fs::create_dir_all(tree.join("below")).unwrap();
            for name in ["same", "below/longer"] {
                std::fs::write(tree.join(name), "text").unwrap();
            }
            for name in ["same", "below/longer", "below"] {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
                std::fs::File::open(tree.join(name)).unwrap().set_modified(time).unwrap();
            }
        }
        assert_eq!(compare(&one, &other).unwrap(), (3, 0));
        std::fs::write(other.join("below/longer"), "longer").unwrap();
        std::fs::write(other.join("new"), "").unwrap();
        assert_eq!(compare(&one, &other).unwrap(), (4, 2));
    }
}
