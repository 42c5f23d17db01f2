//! What a transaction as such costs: its beginning and commit, an abort, a commit of many files.

use super::{Bed, Kept, done, settle};
use crate::own_pando::OwnPando;
use crate::report::Report;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Files of the large ones.
const MANY: usize = 10_000;

/// How long what is done behind the end of a transaction takes at most.
pub(crate) const BEHIND: Duration = Duration::from_millis(150);

/// One without such a pause.
const AT_ONCE: &str = "durable, beside a daemon, right behind another";

const IN_MEMORY: &str = "durable, in memory";

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

pub(super) fn timed(command: &mut Command) -> anyhow::Result<f64> {
    let begun = Instant::now();
    done(command)?;
    Ok(milliseconds(begun.elapsed()))
}

pub(super) fn measure(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    one_file(bed, report)?;
    many_files(bed, report)
}

/// A command that writes one file: plainly, and as a transaction.
fn one_file(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let series = |way: &str| format!("{}: one file, {way}", bed.name);
    let directory = bed.fresh("one")?;
    let writer = |mut command: Command, number: usize, pause: Duration| -> anyhow::Result<f64> {
        // Nobody pays for what others left unwritten, or for what is done behind their end: a view is taken apart, the
        // next one made.
        settle(&directory)?;
        std::thread::sleep(pause);
        timed(command.arg(&bed.me).arg("tx-write").arg(directory.join(number.to_string())))
    };
    let plain = || {
        let mut command = Command::new("env");
        command.stdin(Stdio::null());
        command
    };
    let with_env = |mut command: Command| {
        command.arg("env");
        command
    };
    // It has a state of its own, and makes the beginnings ahead.
    let daemon = OwnPando::start_in(&bed.settings.pando, bed.image.path())?;
    let beside = |durable| with_env(bed.run_in(daemon.root(), durable));
    let alone = |kept, durable| with_env(bed.run(kept, durable));
    for round in 0..=bed.settings.samples(60, 5) {
        let ways = [
            ("plainly", plain(), BEHIND),
            ("durable, beside a daemon", beside(true), BEHIND),
            (AT_ONCE, beside(true), Duration::ZERO),
            ("not durable, beside a daemon", beside(false), BEHIND),
            ("durable", alone(Kept::OnDisk, true), BEHIND),
            ("not durable", alone(Kept::OnDisk, false), BEHIND),
            (IN_MEMORY, alone(Kept::InMemory, true), BEHIND),
        ];
        for (way, command, pause) in ways {
            let time = writer(command, round, pause)?;
            if round > 0 {
                report.add(&series(way), "ms", time);
            }
            std::fs::remove_file(directory.join(round.to_string()))?;
        }
    }
    let over = |report: &Report, way: &str| Some(report.median(&series(way))? - report.median(&series("plainly"))?);
    for way in ["durable, beside a daemon", "durable"] {
        let what = format!("{}: begin and commit of a one-file command, {way}, over plain", bed.name);
        let time = over(report, way);
        report.hold(what, time, 6.0, "ms");
    }
    for way in [AT_ONCE, "not durable, beside a daemon", "not durable", IN_MEMORY] {
        if let Some(time) = over(report, way) {
            report
                .note(format!("{}: begin and commit of a one-file command, {way}, over plain: {time:.2} ms", bed.name));
        }
    }
    let volatile = over(report, "not durable");
    // The paper's last column wraps each call in a transaction of its own. One of ours is for a whole command: from so
    // many calls on it is cheaper.
    let call = report.median(&format!("{}: stat, outside", bed.name));
    if let (Some(call), Some(volatile)) = (call, volatile) {
        let calls = volatile * 1e6 / (call * (6.61 - 1.4));
        report.note(format!(
            "{}: begin and end weigh less than TxOS's 6.61× from {calls:.0} calls in a transaction on",
            bed.name
        ));
    }
    Ok(())
}

/// Ten thousand new files: aborted, and committed. The command's own time is taken off: what is held is how long the
/// end takes.
fn many_files(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let (abort, commit) =
        (format!("{}: abort of {MANY} files", bed.name), format!("{}: commit of {MANY} files", bed.name));
    for _ in 0..bed.settings.samples(7, 2) {
        for (series, end) in [(&abort, "abort"), (&commit, "commit")] {
            let directory = bed.fresh("many")?;
            done(bed.tx("begin").arg("many"))?;
            let filled = done(bed.tx("enter").args(["many", "--"]).arg(&bed.me).arg("tx-fill").arg(&directory));
            let ended = timed(bed.tx(end).arg("many"));
            filled?;
            report.add(series, "ms", ended?);
        }
    }
    report.hold(format!("{abort} returns within"), report.median(&abort), 50.0, "ms");
    report.hold(commit.clone(), report.median(&commit), 500.0, "ms");
    Ok(())
}

/// `pando-bench tx-fill DIR`: makes the many files.
pub(crate) fn fill(directory: &Path) -> anyhow::Result<()> {
    for number in 0..MANY {
        std::fs::write(directory.join(number.to_string()), [b'x'; 1024])?;
    }
    Ok(())
}
