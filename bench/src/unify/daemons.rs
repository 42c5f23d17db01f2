//! Tables 1 to 3 of the papers: guests with log, cron, secure shell, web, mail and database each, started one after
//! another, separate and unified.
//!
//! Separate guests are as many as the disk holds. Of the unified ones it holds all: each root is made, becomes a guest,
//! and goes.

use super::meminfo;
use super::supply::Supply;
use super::tables::{self, Kind, Sample};
use super::{charts, crowd, footprint};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::quiesce::Quiesce;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::Context;
use pando_kernel::file::tree_removal::remove_tree;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// As many as the papers had, and the fewest that tell something.
const GUESTS: usize = 200;
const FEWEST: usize = 100;

const PACKAGES: [&str; 6] = ["rsyslog", "cron", "openssh-server", "apache2", "postfix", "postgresql"];
const SERVE: &str = include_str!("serve.sh");

/// What must stay free of the disk, what a guest writes beyond its tree, and what its layer takes, in bytes.
const FREE: u64 = 3 << 30;
const WRITTEN: u64 = 24 << 20;
const LAYER: u64 = 3 << 20;

/// How many guests there are of each kind.
struct Numbers {
    separate: usize,
    unified: usize,
}

pub(super) fn measure(settings: &Settings, pando: &OwnPando, report: &mut Report) -> anyhow::Result<()> {
    let supply = Supply::open(pando.directory(), settings, &PACKAGES)?;
    let each = footprint::Footprint::of(&[supply.sample().to_owned()])?;
    let numbers = fitting(pando.directory(), settings, each.bytes)?;
    report.note(format!(
        "{} separate guests and {} unified ones, on Debian roots of {} files and {} MB, reduced to what the daemons read; {} made one by one, \
         the others are copies with files of their own",
        numbers.separate,
        numbers.unified,
        each.inodes,
        each.bytes >> 20,
        supply.installed(),
    ));
    let separate = separate(&supply, numbers.separate, pando, settings, report).context("separate guests")?;
    let unified = unified(&supply, numbers.unified, pando, settings, report).context("unified guests")?;
    report.text(tables::table(Kind::Separate, &separate, 0));
    report.text(tables::table(Kind::Unified, &unified, separate.len()));
    report.text(tables::overhead(&separate, &unified));
    for chart in charts::draw(&settings.output, &separate, &unified)? {
        report.note(format!("drawn: {}", chart.display()));
    }
    judge(&numbers, &separate, &unified, report);
    Ok(())
}

/// At the last guest that there is of both kinds.
fn judge(numbers: &Numbers, separate: &[Sample], unified: &[Sample], report: &mut Report) {
    let fewest = FEWEST as f64 / numbers.unified as f64;
    report.hold("fewest unified guests against how many there were", Some(fewest), 1.0, "x");
    let both = separate.last().zip(unified.get(separate.len() - 1));
    let part = |of: &dyn Fn(&Sample) -> f64| both.map(|(one, other)| of(other) / of(one));
    report.hold("time, unified against separate", part(&|sample| sample.seconds), 1.0, "x");
    report.hold("memory of all, unified against separate", part(&|sample| meminfo::all(&sample.row) as f64), 1.0, "x");
}

/// As many guests as were asked for; of the separate ones as fit on the disk beside the others.
fn fitting(directory: &Path, settings: &Settings, each: u64) -> anyhow::Result<Numbers> {
    let unified = settings.guests.unwrap_or(if settings.quick { 3 } else { GUESTS });
    let disk = rustix::fs::statvfs(directory)?;
    let taken = FREE + unified as u64 * (WRITTEN + LAYER) + 2 * each;
    let room = (disk.f_bavail * disk.f_frsize).saturating_sub(taken);
    let most = usize::try_from(room / (each + WRITTEN))?.min(settings.separate.unwrap_or(unified));
    anyhow::ensure!(
        most >= 2,
        "not even two roots of {} MB fit on the disk beside {unified} unified guests",
        each >> 20
    );
    Ok(Numbers { separate: most.min(unified), unified })
}

fn separate(
    supply: &Supply,
    guests: usize,
    pando: &OwnPando,
    settings: &Settings,
    report: &mut Report,
) -> anyhow::Result<Vec<Sample>> {
    let trees: Vec<PathBuf> = (0..guests).map(|number| supply.tree(number)).collect::<Result<_, _>>()?;
    footprint::evict(&trees)?;
    let mut crowd = crowd::Separate::default();
    let mut cache = 0;
    let samples =
        line(settings, guests, &mut |number| crowd.start(pando, &trees[number], SERVE).map(drop), &mut |number| {
            cache += footprint::cached(&trees[number..=number])?;
            Ok(())
        })?;
    report.add("separate: disk", "MB", footprint::Footprint::of(&trees)?.bytes as f64 / super::MIB);
    report.add("separate: page cache of their roots", "MB", cache as f64 / super::MIB);
    crowd.end(pando)?;
    Ok(samples)
}

fn unified(
    supply: &Supply,
    guests: usize,
    pando: &OwnPando,
    settings: &Settings,
    report: &mut Report,
) -> anyhow::Result<Vec<Sample>> {
    for number in 0..guests {
        let tree = supply.passing_tree(number)?;
        report.add("unified: create", "s", crowd::create(pando, &crowd::name(number), &tree, SERVE)?);
        // The disk may hold them once only, and what they have in memory is in nobody's way then.
        remove_tree(&tree).with_context(|| format!("removing {}", tree.display()))?;
        interrupt::check()?;
    }
    let places: Vec<PathBuf> = ["store", "guests"].iter().map(|name| pando.state().join(name)).collect();
    footprint::evict(&places)?;
    let samples = line(settings, guests, &mut |number| crowd::start_unified(pando, number).map(drop), &mut |_| Ok(()))?;
    report.add("unified: disk", "MB", footprint::Footprint::of(&places)?.bytes as f64 / super::MIB);
    report.add("unified: page cache of their files", "MB", footprint::cached(&places)? as f64 / super::MIB);
    crowd::stop(pando, 0..guests)?;
    Ok(samples)
}

/// Starts one guest after another, and looks at the machine's memory after each; what `after` does takes none of the
/// guests' time.
fn line(
    settings: &Settings,
    guests: usize,
    start: &mut dyn FnMut(usize) -> anyhow::Result<()>,
    after: &mut dyn FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Sample>> {
    let _quiet = Quiesce::begin(settings.quiesce.as_deref())?;
    let before = meminfo::now()?;
    let mut seconds = 0.0;
    let mut samples = Vec::new();
    for number in 0..guests {
        let since = Instant::now();
        start(number)?;
        seconds += since.elapsed().as_secs_f64();
        samples.push(Sample { seconds, row: meminfo::since(&before, &meminfo::now()?) });
        after(number)?;
    }
    Ok(samples)
}
