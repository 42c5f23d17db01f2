//! TxOS, section 4.2: the memory that a transaction takes more than the same program without, at its highest.

use super::programs::arguments;
use super::workload::{How, prepare};
use super::{Bed, Kept, done, settle};
use crate::report::Report;
use anyhow::Context;
use pando_kernel::cgroup::Hierarchies;
use std::path::PathBuf;
use std::process::Command;

/// The paper's representative samples, of many small files and of one large one.
const PROGRAMS: [&str; 2] = ["lfs-create", "lfs-write"];

/// What TxOS takes more than Linux: of the memory that applications and the page cache are in, for these; of the
/// kernel's own, for all.
const PAPER: [[&str; 2]; 2] = [["less than 1.01×", "1.05×"], ["1.13×", "1.05×"]];

/// What is charged, and in which file of a group of version 1 the highest is: everything, and the kernel's structures.
const CHARGES: [(&str, &str); 2] =
    [("memory", "memory.max_usage_in_bytes"), ("memory of the kernel's", "memory.kmem.max_usage_in_bytes")];

/// A memory group of version 1. Of version 2 it would not do: there a transaction's processes are in a group of their
/// own.
struct Group(PathBuf);

impl Group {
    fn new() -> anyhow::Result<Option<Self>> {
        let legacy = Hierarchies::detect()?.legacy;
        let Some((root, _)) = legacy.iter().find(|(_, held)| held.iter().any(|name| name == "memory")) else {
            return Ok(None);
        };
        let path = root.join(format!("pando-bench-tx-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Some(Self(path)))
    }

    fn highest(&self, file: &str) -> anyhow::Result<f64> {
        let path = self.0.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim().parse::<f64>()? / (1 << 20) as f64)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What it was charged for is its parent's from then on. A process that nobody waited for may leave it a little
        // later.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.0) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

pub(super) fn measure(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let how = How { scale: if bed.settings.quick { 20 } else { 1 }, sync: false };
    for (program, paper) in PROGRAMS.into_iter().zip(PAPER) {
        for inside in [false, true] {
            let Some(group) = Group::new()? else {
                report.note("memory was not measured: it takes a memory controller of cgroup version 1");
                return Ok(());
            };
            let directory = bed.fresh("program")?;
            prepare(program, &directory, how)?;
            settle(&directory)?;
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&group.0);
            if inside {
                let transaction = bed.run(Kept::OnDisk, false);
                command.arg(transaction.get_program()).args(transaction.get_args());
            }
            arguments(command.arg(&bed.me), program, &directory, how);
            done(&mut command)?;
            for (what, file) in CHARGES {
                report.add(&series(bed, program, what, inside), "MiB", group.highest(file)?);
            }
        }
        for ((what, _), txos) in CHARGES.into_iter().zip(paper) {
            let of = |inside| report.median(&series(bed, program, what, inside));
            if let (Some(outside), Some(inside)) = (of(false), of(true)) {
                let ratio = inside / outside;
                report.note(format!(
                    "{}: {program}: {what}: {ratio:.2}× ({outside:.1}, {inside:.1} MiB; TxOS {txos})",
                    bed.name
                ));
            }
        }
    }
    Ok(())
}

fn series(bed: &Bed<'_>, program: &str, what: &str, inside: bool) -> String {
    format!("{}: {program}, {what}, {}", bed.name, if inside { "inside" } else { "outside" })
}
