//! `./x bench lmbench`: what lmbench's OS subset measures, inside a guest against outside, as in table 2 of Soltesz et
//! al. (EuroSys 2007).
//!
//! One and the same static program waits in three places, on the same tree with the same paths (outside by chroot), and
//! is asked in turn: in a guest; outside, in control groups as every service of systemd is; and outside in none, as a
//! program of 2007 was, which is told beside.

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::service_group::ServiceGroup;
use crate::settings::Settings;
use crate::spread::{self, Spread};
use crate::{busybox_root, interrupt};
use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lm"));

/// The tests, as the program names them, and the paper's times under Linux and under VServer, in µs.
const TESTS: [(&str, Option<(f64, f64)>); 18] = [
    ("null call", None),
    ("read", None),
    ("write", None),
    ("stat", None),
    ("open and close", None),
    ("select of 100", None),
    ("signal, installing", None),
    ("signal, handling", None),
    ("mmap", None),
    ("page fault, file", Some((1.065, 1.070))),
    ("page fault, memory", None),
    ("unix socket", None),
    ("fork process", Some((103.2, 103.4))),
    ("exec process", Some((252.9, 253.6))),
    ("sh process", Some((1054.9, 1047.1))),
    ("ctx (2p/0K), by pipes", Some((2.254, 2.496))),
    ("ctx (16p/16K), by pipes", Some((3.008, 3.310))),
    ("ctx (16p/64K), by pipes", Some((5.026, 4.994))),
];

/// The same on a directory of the host that the guest is shown: told beside the others.
const BESIDE: [&str; 2] = ["stat, on a volume", "open and close, on a volume"];

/// The most that the geometric mean, and that any one, may be of what it is outside.
const MEAN: f64 = 1.03;
const WORST: f64 = 1.10;

/// Where it is measured.
const GUEST: &str = "in a guest";
const NATIVE: &str = "native";
const BARE: &str = "native in no group";

/// The program, where it waits for names of tests.
struct Worker {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Worker {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start lm")?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("it has no output")?);
        Ok(Self { child, to, from })
    }

    /// Nanoseconds an operation.
    fn ask(&mut self, test: &str) -> anyhow::Result<f64> {
        let to = self.to.as_mut().context("it has no input")?;
        writeln!(to, "{test}").with_context(|| format!("asking for '{test}'"))?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("'{test}' was answered with '{}'", line.trim()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without input it ends by itself, and its guest with it.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("lmbench");
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("tree");
    make_tree(&root)?;
    let outside = || {
        let mut chroot = Command::new("chroot");
        chroot.arg(&root).arg("/bin/lm");
        Worker::start(chroot)
    };
    let mut inside = pando.command();
    let volume = format!("{}:/data:ro", root.join("data").display());
    inside.args(["run", "--from"]).arg(&root).args(["--volume", &volume, "--", "/bin/lm"]);
    let group = ServiceGroup::new("lmbench")?;
    let grouped = outside()?;
    group.take(grouped.child.id())?;
    let mut workers = [(GUEST, Worker::start(inside)?), (NATIVE, grouped), (BARE, outside()?)];
    let rounds = settings.samples(25, 3);
    let names: Vec<&str> = TESTS.iter().map(|(name, _)| *name).chain(BESIDE).collect();
    for round in 0..=rounds {
        // Who goes first changes; the first round warms up.
        workers.rotate_left(1);
        for test in &names {
            interrupt::check()?;
            for (place, worker) in &mut workers {
                let took = worker.ask(test)?;
                if round > 0 {
                    report.add(&format!("{test}: {place}"), "ns", took);
                }
            }
        }
    }
    judge(&mut report)?;
    Ok(report)
}

fn make_tree(root: &Path) -> anyhow::Result<()> {
    /// As many pages as the program touches.
    const PAGES: usize = 256;
    busybox_root::make(root)?;
    let program = root.join("bin/lm");
    std::fs::write(&program, PROGRAM)?;
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
    std::fs::create_dir(root.join("data"))?;
    for directory in ["etc", "data"] {
        std::fs::write(root.join(directory).join("lm-file"), vec![0; PAGES * 4096])?;
    }
    // Outside there is no other /dev.
    for (name, minor) in [("null", 3), ("zero", 5)] {
        let (mode, device) = (rustix::fs::Mode::from_raw_mode(0o666), rustix::fs::makedev(1, minor));
        let path = root.join("dev").join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::CharacterDevice, mode, device)
            .with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(())
}

/// Held to the figures are the rows that the paper has: processes, context switches, page faults. The others are told
/// beside.
fn judge(report: &mut Report) -> anyhow::Result<()> {
    let (mut all, mut of_the_paper, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    let mut worst = ("", 0.0);
    let tests = TESTS.iter().copied().map(|(test, paper)| (test, paper, true));
    let tests = tests.chain(BESIDE.map(|test| (test, None, false)));
    for (test, paper, counts) in tests {
        let ratios = |below: &str| report.ratios(&format!("{test}: {GUEST}"), &format!("{test}: {below}"));
        let (ratios, to_bare) = (ratios(NATIVE), Spread::of(&ratios(BARE)));
        let measured = Spread::of(&ratios).zip(to_bare);
        let (Spread { median, .. }, to_bare) = measured.with_context(|| format!("'{test}' was not measured"))?;
        let (low, high) = spread::interval(&ratios);
        let vserver = paper.map_or("not in it".to_owned(), |(linux, vserver)| format!("{:.3}", vserver / linux));
        report.note(format!(
            "{test}: {median:.3} of native (95 % interval {low:.3} to {high:.3}), {:.3} of native in no group; \
             the paper's VServer: {vserver}",
            to_bare.median
        ));
        all.extend(counts.then_some(median));
        if paper.is_some() {
            of_the_paper.push(median);
            bare.push(to_bare.median);
            worst = if median > worst.1 { (test, median) } else { worst };
        }
    }
    report.note(format!("geometric mean of all rows but those on a volume: {:.3}", mean(&all)));
    report.note(format!("the paper's rows against native in no group: {:.3}", mean(&bare)));
    report.hold("geometric mean of guest against native, the paper's rows", Some(mean(&of_the_paper)), MEAN, "times");
    report.hold(format!("the worst of them, {}", worst.0), Some(worst.1), WORST, "times");
    Ok(())
}

/// The geometric one.
fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}
