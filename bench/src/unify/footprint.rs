//! What trees take: of the disk, and of the page cache.

use anyhow::Context;
use pando_kernel::memory::page_cache::resident_pages;
use rustix::fs::{Advice, fadvise};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes in a block of stat(2).
const BLOCK: u64 = 512;

/// What trees take of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

impl Footprint {
    /// That of some trees together, each inode once.
    pub(super) fn of(places: &[PathBuf]) -> anyhow::Result<Self> {
        let mut footprint = Self::default();
        each_inode(places, |_, found| {
            footprint.bytes += found.blocks() * BLOCK;
            footprint.inodes += 1;
        })?;
        Ok(footprint)
    }
}

/// Bytes of the files of some trees that are in memory.
pub(super) fn cached(places: &[PathBuf]) -> anyhow::Result<u64> {
    let page = rustix::param::page_size() as u64;
    let mut pages = 0;
    let mut failure = None;
    each_inode(places, |path, found| {
        if found.is_file() && found.len() > 0 {
            match File::open(path).and_then(|file| resident_pages(file.as_fd())) {
                Ok(resident) => pages += resident,
                Err(error) => failure = Some(error),
            }
        }
    })?;
    match failure {
        Some(error) => Err(error).context("the kernel does not tell what is in memory"),
        None => Ok(pages * page),
    }
}

/// Has the kernel let go of what it holds of the files of some trees.
pub(super) fn evict(places: &[PathBuf]) -> anyhow::Result<()> {
    if let Some(first) = places.first() {
        rustix::fs::syncfs(File::open(first)?)?;
    }
    each_inode(places, |path, found| {
        if found.is_file()
            && let Ok(file) = File::open(path)
        {
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
    })
}

fn each_inode(places: &[PathBuf], mut see: impl FnMut(&Path, &std::fs::Metadata)) -> anyhow::Result<()> {
    let mut todo = places.to_vec();
    let mut seen = HashSet::new();
    while let Some(path) = todo.pop() {
        // What a running guest removes meanwhile takes nothing.
        let Ok(found) = path.symlink_metadata() else { continue };
        if found.nlink() > 1 && !found.is_dir() && !seen.insert((found.dev(), found.ino())) {
            continue;
        }
        see(&path, &found);
        if found.is_dir() {
            todo.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}
