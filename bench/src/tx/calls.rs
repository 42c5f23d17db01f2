//! TxOS, table 4: system calls inside a transaction, against the same ones outside; and outside while a transaction is
//! open.

use super::image::Overlay;
use super::{Bed, Kept, done};
use crate::report::Report;
use crate::spread::Spread;
use anyhow::Context;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::ffi::CString;
use std::path::Path;
use std::time::Instant;

/// The paper's calls, and by how much each is slower in TxOS: inside a transaction, and with its begin and end.
pub(super) const PAPER: [(&str, f64, f64); 8] = [
    ("access", 4.7, 7.8),
    ("stat", 4.1, 7.3),
    ("open", 5.2, 8.0),
    ("unlink", 3.0, 7.3),
    ("link", 7.4, 10.7),
    ("mkdir", 4.6, 4.9),
    ("read", 4.3, 7.0),
    ("write", 1.3, 3.0),
];

/// Measured beside: what tables of calls often leave out.
const BESIDE: [&str; 2] = ["create", "rename"];

/// The first time that the transaction meets an object of the live system.
const FIRST: [&str; 3] = ["first lookup", "first chmod", "first write (4 KiB copied up)"];

pub(super) const NATIVE: &str = "outside";
const INSIDE: &str = "inside";
const IN_MEMORY: &str = "inside, in memory";
const BACKGROUND: &str = "outside, one open";
/// What a view is made of, with nothing of Pando's: the kernel's own part of what a transaction costs.
const OVERLAY: &str = "an overlay alone";

/// Files that are there beforehand, a round.
const PREPARED: usize = 300;

/// How often each call is made, of which the first and last tenth are not counted, and in how many batches.
pub(super) const TIMES: usize = 20_000;
const BATCHES: usize = 100;

/// `pando-bench tx-calls DIR`: makes the calls in a directory that [`prepare`] filled, and prints a line each.
pub(crate) fn make(directory: &Path) -> anyhow::Result<()> {
    rustix::process::chdir(directory)?;
    let name = |kind: &str, number: usize| CString::new(format!("{kind}{number}"));
    let names = |kind: &str, count: usize| (0..count).map(|number| name(kind, number)).collect::<Result<Vec<_>, _>>();
    let flags = OFlags::CLOEXEC;
    // First of all, since anything else would look them up.
    let (looked, changed, written) = (names("look", PREPARED)?, names("mode", PREPARED)?, names("copy", PREPARED)?);
    each(FIRST[0], PREPARED, |at| rustix::fs::stat(&looked[at]).map(drop))?;
    each(FIRST[1], PREPARED, |at| rustix::fs::chmod(&changed[at], Mode::RUSR))?;
    each(FIRST[2], PREPARED, |at| rustix::fs::open(&written[at], OFlags::RDWR | flags, Mode::empty()))?;
    let mut block = [b'x'; 4096];
    let file = rustix::fs::open(&written[0], OFlags::RDWR | flags, Mode::empty())?;
    each("access", TIMES, |_| rustix::fs::access(c"look0", rustix::fs::Access::READ_OK))?;
    each("stat", TIMES, |_| rustix::fs::stat(c"look0").map(drop))?;
    each("open", TIMES, |_| rustix::fs::open(c"look0", OFlags::RDONLY | flags, Mode::empty()))?;
    let reader = rustix::fs::open(c"look0", OFlags::RDONLY | flags, Mode::empty())?;
    each("read", TIMES, |_| rustix::io::pread(&reader, &mut block, 0).map(drop))?;
    each("write", TIMES, |_| rustix::io::pwrite(&file, &[b'y'; 4096], 0).map(drop))?;
    let some = TIMES / 4;
    let (made, linked, moved, directories) =
        (names("c", some)?, names("l", some)?, names("r", some)?, names("d", some)?);
    let new = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | flags;
    each("create", some, |at| rustix::fs::open(&made[at], new, Mode::RUSR))?;
    each("link", some, |at| rustix::fs::link(&made[at], &linked[at]))?;
    each("rename", some, |at| rustix::fs::rename(&linked[at], &moved[at]))?;
    each("unlink", some, |at| rustix::fs::unlinkat(CWD, &moved[at], AtFlags::empty()))?;
    each("mkdir", some, |at| rustix::fs::mkdir(&directories[at], Mode::RWXU))?;
    Ok(())
}

/// Makes a call a number of times and prints nanoseconds a call: the median of a hundred batches without the first and
/// last ten. What a call makes, such as a descriptor, is closed when its batch has been measured.
fn each<T>(name: &str, times: usize, mut call: impl FnMut(usize) -> rustix::io::Result<T>) -> anyhow::Result<()> {
    let size = times / BATCHES;
    let mut measured = Vec::with_capacity(BATCHES);
    let mut made = Vec::with_capacity(size);
    for batch in 0..BATCHES {
        let begun = Instant::now();
        for at in batch * size..(batch + 1) * size {
            made.push(call(at).with_context(|| format!("{name} number {at}"))?);
        }
        measured.push(begun.elapsed().as_nanos() as f64 / size as f64);
        made.clear();
    }
    let counted = &measured[BATCHES / 10..BATCHES - BATCHES / 10];
    let median = Spread::of(counted).context("there were no calls")?.median;
    println!("{name}\t{median:.1}");
    Ok(())
}

fn prepare(directory: &Path) -> anyhow::Result<()> {
    for kind in ["look", "mode", "copy"] {
        for number in 0..PREPARED {
            std::fs::write(directory.join(format!("{kind}{number}")), [b'x'; 4096])?;
        }
    }
    super::settle(directory)
}

/// Both kinds in turn, with and without a transaction in the background.
pub(super) fn measure(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    for round in 0..=bed.settings.samples(9, 2) {
        for way in [NATIVE, INSIDE, IN_MEMORY, BACKGROUND, OVERLAY] {
            let directory = bed.fresh("calls")?;
            prepare(&directory)?;
            let laid = if way == OVERLAY { Some(bed.image.overlay(&directory)?) } else { None };
            let directory = laid.as_ref().map_or(directory.as_path(), Overlay::path);
            let _open = if way == BACKGROUND { Some(Open::begin(bed)?) } else { None };
            let inside = match way {
                INSIDE => Some(Kept::OnDisk),
                IN_MEMORY => Some(Kept::InMemory),
                _ => None,
            };
            let output = done(bed.command(inside, false, &bed.me).arg("tx-calls").arg(directory))?;
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let (name, time) = line.split_once('\t').context("a line without a time")?;
                if round > 0 {
                    report.add(&series(bed, name, way), "ns", time.parse()?);
                }
            }
        }
    }
    judge(bed, report);
    Ok(())
}

pub(super) fn series(bed: &Bed<'_>, call: &str, way: &str) -> String {
    format!("{}: {call}, {way}", bed.name)
}

fn judge(bed: &Bed<'_>, report: &mut Report) {
    let ratio = |report: &Report, call: &str, way: &str| {
        Some(report.median(&series(bed, call, way))? / report.median(&series(bed, call, NATIVE))?)
    };
    let mean = |report: &Report, way: &str| {
        let ratios: Option<Vec<f64>> = PAPER.iter().map(|(call, ..)| ratio(report, call, way)).collect();
        ratios.map(|ratios| (ratios.iter().map(|one| one.ln()).sum::<f64>() / ratios.len() as f64).exp())
    };
    for (call, inside, _) in PAPER {
        let (ours, open) = (ratio(report, call, INSIDE), ratio(report, call, BACKGROUND));
        if let (Some(ours), Some(open)) = (ours, open) {
            let [memory, alone] = [IN_MEMORY, OVERLAY].map(|way| ratio(report, call, way).unwrap_or(f64::NAN));
            report.note(format!(
                "{}: {call}: inside {ours:.2}×, in memory {memory:.2}×, an overlay alone {alone:.2}×, one open {open:.2}× (TxOS {inside:.1}×)",
                bed.name
            ));
        }
    }
    for call in BESIDE.into_iter().chain(FIRST) {
        if let Some(ours) = ratio(report, call, INSIDE) {
            let memory = ratio(report, call, IN_MEMORY).unwrap_or(f64::NAN);
            report.note(format!("{}: {call}: inside {ours:.2}×, in memory {memory:.2}×", bed.name));
        }
    }
    let name = |what: &str| format!("{}: eight calls, {what}, geometric mean", bed.name);
    report.hold(name("inside a transaction (TxOS 3.93)"), mean(report, INSIDE), 1.4, "times");
    report.hold(name("inside a transaction in memory (TxOS 3.93)"), mean(report, IN_MEMORY), 1.4, "times");
    if let Some(alone) = mean(report, OVERLAY) {
        report.note(format!("{}: {alone:.2} times", name("in an overlay without Pando")));
    }
    // The target is 1.00; what two runs of the same program differ by is allowed for.
    report.hold(name("outside with one open (TxOS 1.42)"), mean(report, BACKGROUND), 1.03, "times");
}

/// A transaction that is open, with changes in it.
struct Open<'a>(&'a Bed<'a>);

impl<'a> Open<'a> {
    fn begin(bed: &'a Bed<'a>) -> anyhow::Result<Self> {
        done(bed.tx("begin").arg("background"))?;
        let open = Self(bed);
        let file = bed.image.path().join("of-the-background");
        let script = format!("for i in 1 2 3 4 5 6 7 8 9; do echo $i > {}-$i; done", file.display());
        done(bed.tx("enter").args(["background", "--", "sh", "-c", &script]))?;
        Ok(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let _ = self.0.tx("abort").arg("background").output();
    }
}
