//! What a program outside of a transaction calls: TxOS's paper, table 4, each call on files of its own.

use crate::report::Report;
use anyhow::{Context, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Without a transaction, beside an open one, and beside one that holds.
pub(crate) const ALONE: &str = "no transaction";
pub(crate) const BESIDE: &str = "one is open";
pub(crate) const HELD: &str = "one holds";

/// Calls of a sample.
const CALLS: usize = 4_000;

/// Files that the transaction which holds has read.
const READ: usize = 10_000;

type Call = fn(&Outsider, usize) -> std::io::Result<()>;

const TABLE: &[(&str, Call)] = &[
    ("access", |at, _| Ok(rustix::fs::access(at.file(), rustix::fs::Access::READ_OK)?)),
    ("stat", |at, _| at.file().metadata().map(drop)),
    ("open", |at, _| File::open(at.file()).map(drop)),
    ("read", |at, _| at.open.read_at(&mut [0; 1024], 0).map(drop)),
    ("write", |at, _| at.open.write_at(&[0; 1024], 0).map(drop)),
    ("link", |at, number| std::fs::hard_link(at.file(), at.directory.join(format!("l{number}")))),
    ("unlink", |at, number| std::fs::remove_file(at.directory.join(format!("l{number}")))),
    ("mkdir", |at, number| std::fs::create_dir(at.directory.join(format!("d{number}")))),
    ("rmdir", |at, number| std::fs::remove_dir(at.directory.join(format!("d{number}")))),
    ("rename", |at, number| {
        let name = |number: usize| at.directory.join(format!("r{}", number % 2));
        std::fs::rename(name(number), name(number + 1))
    }),
];

/// A program with a directory of its own.
pub(crate) struct Outsider {
    directory: PathBuf,
    open: File,
    /// Where the files are that a transaction which holds reads.
    many: PathBuf,
}

impl Outsider {
    pub(crate) fn new(beside: &Path) -> anyhow::Result<Self> {
        let (directory, many) = (beside.join("outside"), beside.join("many"));
        for made in [&directory, &many] {
            std::fs::create_dir(made).with_context(|| format!("cannot make {}", made.display()))?;
        }
        for number in 0..READ {
            std::fs::write(many.join(number.to_string()), "read")?;
        }
        std::fs::write(directory.join("file"), [0; 1024])?;
        std::fs::write(directory.join("r0"), "")?;
        let open = File::options().read(true).write(true).open(directory.join("file"))?;
        Ok(Self { directory, open, many })
    }

    fn file(&self) -> PathBuf {
        self.directory.join("file")
    }

    /// Makes each call of the table some times, and adds how long one took.
    pub(crate) fn sample(&self, report: &mut Report, when: &str) -> anyhow::Result<()> {
        for (name, call) in TABLE {
            let begun = Instant::now();
            for number in 0..CALLS {
                call(self, number).with_context(|| format!("{name} has failed"))?;
            }
            report.add(&series(name, when), "ns", begun.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        }
        Ok(())
    }
}

fn series(name: &str, when: &str) -> String {
    format!("{name}, {when}")
}

/// Holds the geometric mean of what each call takes against the same without a transaction.
pub(crate) fn judge(report: &mut Report, when: &str, most: f64) {
    let ratio =
        |(name, _): &(&str, Call)| Some(report.median(&series(name, when))? / report.median(&series(name, ALONE))?);
    let ratios: Option<Vec<f64>> = TABLE.iter().map(ratio).collect();
    let mean = ratios.map(|ratios| (ratios.iter().map(|one| one.ln()).sum::<f64>() / ratios.len() as f64).exp());
    report.hold(format!("calls outside while {when}, against none"), mean, most, "×");
}

/// A transaction that has read many files, and has others wait who would change them.
pub(crate) struct Held(Child);

impl Held {
    pub(crate) fn begin(mut run: Command, outsider: &Outsider) -> anyhow::Result<Self> {
        let script = "cat $0/* >/dev/null; echo ready; read line; exit 1";
        run.args(["-q", "--gate", "hold", "--hold-timeout", "600", "--retry", "0", "--", "sh", "-c", script]);
        let mut child = run.arg(&outsider.many).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut word = [0; 6];
        child.stdout.as_mut().context("it has an output")?.read_exact(&mut word)?;
        ensure!(&word == b"ready\n", "the transaction did not begin");
        Ok(Self(child))
    }

    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.0.stdin.as_mut().context("it has an input")?.write_all(b"\n")?;
        ensure!(self.0.wait()?.code() == Some(1), "the transaction did not end as it should");
        Ok(())
    }
}
