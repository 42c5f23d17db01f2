//! What an image needs of the machine and of its files to go on: the kernel's code that is mapped into every process,
//! the processor's abilities, the files that are mapped.

use crate::image::{AreaKind, Image};
use crate::inspect::proc_file::{self, malformed};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_128;

/// A machine, as an image sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The kernel's release.
    pub(crate) kernel: String,
    /// Checksum of the code that the kernel maps into every process (vdso(7)): programs remember addresses in it.
    pub(crate) vdso: u128,
    /// What the processor can do, as /proc/cpuinfo lists it: programs chose their code by it when they started.
    pub(crate) features: BTreeSet<String>,
}

impl Machine {
    /// Describes the machine that this runs on.
    pub(crate) fn here() -> Result<Self, CallError> {
        let text = std::fs::read_to_string("/proc/cpuinfo").context(|| "reading /proc/cpuinfo".into())?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':')).unwrap_or_default().1;
        Ok(Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            vdso: xxh3_128(&vdso()?),
            features: flags.split_ascii_whitespace().map(str::to_owned).collect(),
        })
    }

    /// Why what was frozen on `self` cannot go on here.
    pub(crate) fn objection(&self, here: &Self) -> Option<String> {
        if self.vdso != here.vdso {
            return Some(format!(
                "it was frozen under Linux {}, whose code in every process is not that of Linux {}; boot the kernel that it was frozen under",
                self.kernel, here.kernel
            ));
        }
        let lacking: Vec<_> = self.features.difference(&here.features).map(String::as_str).collect();
        (!lacking.is_empty()).then(|| {
            format!(
                "this processor lacks what its programs may use ({}); clone it on one that has it",
                lacking.join(" ")
            )
        })
    }
}

/// How many processors this machine can have, those counted that are not there yet.
pub(crate) fn most_processors() -> Result<u32, CallError> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(POSSIBLE).context(|| format!("reading {POSSIBLE}"))?;
    count(text.trim()).ok_or_else(|| malformed(format!("parsing {POSSIBLE}")))
}

/// How many are in a list of ranges.
fn count(list: &str) -> Option<u32> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').map(of_range).sum()
}

fn vdso() -> Result<Vec<u8>, CallError> {
    let what = || "reading the vdso".to_owned();
    let me = std::process::id() as i32;
    let maps = proc_file::text(me, "maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or_else(|| malformed(what()))?;
    let (start, end) =
        line.split(' ').next().and_then(|range| range.split_once('-')).ok_or_else(|| malformed(what()))?;
    let address = |text: &str| u64::from_str_radix(text, 16).map_err(|_| malformed(what()));
    let (start, end) = (address(start)?, address(end)?);
    let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
    let memory = std::fs::File::open("/proc/self/mem").context(what)?;
    memory.read_exact_at(&mut bytes, start).context(what)?;
    Ok(bytes)
}

/// A file that processes map, or run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MappedFile {
    /// Its path inside.
    pub(crate) path: String,
    /// Its length.
    pub(crate) length: u64,
    /// Seconds since the epoch when it was last written to.
    pub(crate) written: i64,
}

/// The files that an image's processes map privately or run, as they are below a root. Pages that nobody wrote to are
/// read from them.
pub(crate) fn mapped(image: &Image, root: impl AsFd) -> Result<Vec<MappedFile>, CallError> {
    let mut paths = BTreeSet::new();
    for process in &image.processes {
        if process.deleted_executable.is_none() {
            paths.insert(process.executable.clone());
        }
        for area in &process.areas {
            if let AreaKind::Private { path, .. } = &area.kind {
                paths.insert(path.clone());
            }
        }
    }
    paths.remove("");
    paths.into_iter().map(|path| look(root.as_fd(), path)).collect()
}

fn look(root: BorrowedFd<'_>, path: String) -> Result<MappedFile, CallError> {
    let what = || format!("looking at {path}, which a process maps");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(root, path.as_str(), flags, Mode::empty(), confined).context(what)?;
    let stat = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH).context(what)?;
    Ok(MappedFile { length: stat.st_size as u64, written: stat.st_mtime, path })
}

/// Why files are not those that an image was frozen with.
pub(crate) fn changed(then: &[MappedFile], now: &[MappedFile]) -> Option<String> {
    let one = then.iter().find(|file| !now.contains(file))?;
    Some(format!(
        "{} is not the file that it was frozen with, and its processes have parts of that in memory",
        one.path
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!([count("0"), count("0-1"), count("0-3,8,10-11")], [Some(1), Some(2), Some(7)]);
        assert_eq!([count(""), count("3-1")], [None, None]);
        assert!(most_processors().unwrap() > 0);
    }

    #[test]
    fn another_kernel_or_a_lesser_processor_is_named() {
        let here = Machine::here().unwrap();
        assert!(here.vdso != 0 && here.objection(&here).is_none());
        let other = Machine { kernel: "9.9".into(), vdso: 1, ..here.clone() };
        assert!(other.objection(&here).unwrap().contains("9.9"));
        let mut better = here.clone();
        better.features.insert("warp".into());
        assert!(better.objection(&here).unwrap().contains("warp"));
        assert!(here.objection(&better).is_none());
    }
}
