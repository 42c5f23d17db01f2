//! `./x bench cpu`: processor time by reservation, share and limit, after section 3.3 of Linux-VServer's paper and
//! figure 8 of EuroSys 2007.
//!
//! Every guest of an experiment runs an [`hourglass`] on as many threads as the machine has processors. What is due is
//! due of what was *delivered*: the host of a virtual machine takes some of its time away, and other work on it takes
//! more.

pub(crate) mod hourglass;
mod native;
mod scenario;
mod slices;

use crate::many::daemon_cost;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use crate::{busybox_root, interrupt};
use anyhow::Context;
use hourglass::{CLASSES, Hourglass};
use pando_api::{Method, Spec};
use scenario::{Part, Scenario};
use std::path::Path;
use std::time::Duration;

/// Nanoseconds a second.
const SECOND: u64 = 1_000_000_000;

/// A tick of /proc/stat in nanoseconds: USER_HZ is 100 everywhere.
const TICK: u64 = 10_000_000;

/// The worst error that is accepted, in percentage points of what was delivered.
const WORST_ERROR: f64 = 0.5;

/// The longest gap that is accepted under a bound's period of 20 ms, in milliseconds.
const LONGEST_GAP: f64 = 25.0;

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("cpu");
    let processors = std::thread::available_parallelism()?.get() as u64;
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    std::fs::copy(std::env::current_exe()?, root.join("bin").join(hourglass::NAME))
        .context("cannot copy the hourglass")?;
    let seconds = if settings.quick { 6 } else { 14 };
    let scenarios: Vec<_> =
        scenario::all(processors as f64).into_iter().filter(|scenario| settings.wants(scenario.name)).collect();
    let compete = scenarios.iter().any(|scenario| scenario.parts.len() > 1);
    for _ in 0..settings.samples(3, 1) {
        if compete {
            let had = native::run(&root.join("bin").join(hourglass::NAME), processors, seconds)?;
            report.add(NATIVE, "%", (1.0 - had) * 100.0);
        }
        for scenario in &scenarios {
            let run = Run { pando: &pando, root: &root, scenario, processors, seconds: seconds + scenario.settle };
            // Until this experiment is over.
            let _small = if scenario.name == scenario::CAPPED {
                run.as_it_comes(&mut report)?;
                slices::Slices::small()?
            } else {
                None
            };
            run.run().with_context(|| format!("in '{}'", scenario.name))?.tell(scenario, &mut report);
        }
    }
    for scenario in &scenarios {
        let row = row(scenario, "worst error");
        report.hold(row.clone(), report.median(&row), WORST_ERROR, "points");
        if scenario.parts.len() > 1 {
            let had = |row: &str| report.median(row).map(|missing| 100.0 - missing);
            let missing = had(&self::row(scenario, NOT_HAD)).zip(had(NATIVE));
            let missing = missing.map(|(guests, native)| (1.0 - guests / native) * 100.0);
            report.hold(self::row(scenario, "not had, of what native ones had"), missing, 1.0, "%");
        }
    }
    for scenario in scenarios.iter().filter(|scenario| scenario.name == scenario::CAPPED) {
        let gap = row(scenario, "longest gap");
        report.hold(gap.clone(), report.median(&gap), LONGEST_GAP, "ms");
    }
    if settings.wants("the governor's cost") {
        crowd(&pando, &root, settings, &mut report)?;
    }
    Ok(report)
}

/// What nobody had of that which was delivered. Interrupts are in it, and what the host of a virtual machine takes
/// without telling.
const NOT_HAD: &str = "delivered, and not had";

/// The same of as many programs in plain groups.
const NATIVE: &str = "8 native: delivered, and not had";

/// The same bound with the slices that the kernel comes with: of a program in a plain group, and of a guest.
const NATIVE_CAPPED: &str = "capped at a quarter, alone, natively, slices as they come";
const CAPPED_AS_IT_COMES: &str = "capped at a quarter, alone, slices as they come";

fn row(scenario: &Scenario, what: &str) -> String {
    format!("{}: {what}", scenario.name)
}

/// One run of an experiment.
struct Run<'a> {
    pando: &'a OwnPando,
    root: &'a Path,
    scenario: &'a Scenario,
    processors: u64,
    seconds: u64,
}

/// What came of it.
struct Outcome {
    /// What each had of the time that counts, in nanoseconds; those that slept had none.
    had: Vec<u64>,
    /// What the machine had to give in that time: everything but what its host and other work took.
    delivered: u64,
    /// What it would have had to give if nobody else had taken anything.
    capacity: u64,
    glasses: Vec<Hourglass>,
}

impl Run<'_> {
    fn run(&self) -> anyhow::Result<Outcome> {
        let mut client = self.pando.connect()?;
        // Time to make and start them all.
        let begin = hourglass::now() + SECOND * 2 + SECOND / 4 * self.scenario.parts.len() as u64;
        for (number, part) in self.scenario.parts.iter().enumerate() {
            self.create(&mut client, number, part, begin)?;
        }
        let from = begin + self.scenario.settle * SECOND;
        let until = begin + self.seconds * SECOND;
        wait_until(from)?;
        let before = Taken::look(used(&mut client)?)?;
        wait_until(until - SECOND / 2)?;
        let after = Taken::look(used(&mut client)?)?;
        wait_until(until + SECOND / 2)?;
        let span = until - SECOND / 2 - from;
        let glasses = (0..self.scenario.parts.len())
            .map(|number| self.collect(&mut client, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let first = |part: &Part| part.from.unwrap_or(0) * SECOND;
        let had = glasses.iter().zip(&self.scenario.parts).map(|(glass, part)| {
            let offset = self.scenario.settle * SECOND - first(part);
            if part.from.is_some() { glass.between(offset, offset + span) } else { 0 }
        });
        let capacity = span * self.processors;
        let delivered = capacity.saturating_sub(after.by_others_since(&before));
        Ok(Outcome { had: had.collect(), delivered, capacity, glasses })
    }

    /// The gaps of one that is bounded, and of a native one, whatever is set on this machine.
    fn as_it_comes(&self, report: &mut Report) -> anyhow::Result<()> {
        let quota = native::PERIOD * self.processors / 4;
        let glass =
            native::bounded(&self.root.join("bin").join(hourglass::NAME), self.processors, self.seconds, quota)?;
        tell_gaps(NATIVE_CAPPED, &glass, report);
        tell_gaps(CAPPED_AS_IT_COMES, &self.run()?.glasses[0], report);
        Ok(())
    }

    fn create(&self, client: &mut Client, number: usize, part: &Part, begin: u64) -> anyhow::Result<()> {
        let until = begin + self.seconds * SECOND;
        let command = part.from.map(|from| {
            let from = begin + from * SECOND;
            [
                format!("/bin/{}", hourglass::NAME),
                hourglass::NAME.to_owned(),
                self.processors.to_string(),
                from.to_string(),
                until.to_string(),
            ]
        });
        let spec = Spec { cpu: part.cpu.clone(), command: command.into_iter().flatten().collect(), ..Spec::default() };
        let source = Some(self.root.to_string_lossy().into_owned());
        client.call(&Method::Create { name: name(number), source, spec, start: true }).map(drop)
    }

    /// The notes of a guest, which is removed.
    fn collect(&self, client: &mut Client, number: usize) -> anyhow::Result<Hourglass> {
        let inspected = client.call(&Method::Inspect { name: name(number) })?;
        let path = inspected["guest"]["log"].as_str().context("a guest has a log")?.to_owned();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        client.call(&Method::Remove { name: name(number), force: true })?;
        if self.scenario.parts[number].from.is_none() {
            return Ok(Hourglass::default());
        }
        Hourglass::read(&text)
    }
}

fn name(number: usize) -> String {
    format!("glass-{number}")
}

fn wait_until(moment: u64) -> anyhow::Result<()> {
    interrupt::pause(Duration::from_nanos(moment.saturating_sub(hourglass::now())))
}

impl Outcome {
    fn tell(&self, scenario: &Scenario, report: &mut Report) {
        let due = self.due(scenario);
        let together: u64 = self.had.iter().sum();
        let part = |had: u64| had as f64 / self.whole(scenario) * 100.0;
        let worst = self.had.iter().zip(&due).map(|(had, due)| (part(*had) - due).abs()).fold(0.0, f64::max);
        report.add(&row(scenario, "first guest, of what was delivered"), "%", part(self.had[0]));
        report.add(&row(scenario, "first guest, due"), "%", due[0]);
        report.add(&row(scenario, "worst error"), "points", worst);
        if scenario.parts.len() > 1 {
            let missing = (1.0 - together as f64 / self.delivered.max(1) as f64) * 100.0;
            report.add(&row(scenario, NOT_HAD), "%", missing);
        }
        tell_gaps(scenario.name, &self.glasses[0], report);
    }
}

fn tell_gaps(name: &str, glass: &Hourglass, report: &mut Report) {
    report.add(&format!("{name}: longest gap"), "ms", glass.longest as f64 / 1e6);
    report.note(format!("{name}: gaps of the first: {}", histogram(glass)));
}

impl Outcome {
    /// What parts are counted of: what the guests had together. A single one that is bounded leaves most of it to
    /// nobody.
    fn whole(&self, scenario: &Scenario) -> f64 {
        let together: u64 = self.had.iter().sum();
        if scenario.parts.len() > 1 { together.max(1) as f64 } else { self.capacity as f64 }
    }

    /// What each is due, in percent of that. Bounds are of the machine's whole time: where others took some of it they
    /// are a larger part of what was delivered, and the rest is less.
    fn due(&self, scenario: &Scenario) -> Vec<f64> {
        let factor = self.capacity as f64 / self.whole(scenario);
        let bounded: f64 = scenario.parts.iter().filter(|part| part.bounded).map(|part| part.due).sum();
        let rest = (100.0 - bounded * factor) / (100.0 - bounded);
        scenario.parts.iter().map(|part| part.due * if part.bounded { factor } else { rest }).collect()
    }
}

fn histogram(glass: &Hourglass) -> String {
    let ends = CLASSES.iter().map(|most| format!("<{most}")).chain([format!("≥{}", CLASSES[CLASSES.len() - 1])]);
    let words = ends.zip(&glass.gaps).filter(|(_, count)| **count > 0).map(|(end, count)| format!("{end} ms: {count}"));
    words.collect::<Vec<_>>().join(", ")
}

/// Processor time that the guests used so far, in nanoseconds.
fn used(client: &mut Client) -> anyhow::Result<u64> {
    let stats = client.call(&Method::Stats { name: None, history: false })?;
    let guests = stats["guests"].as_array().into_iter().flatten();
    let sum: i64 = guests.filter_map(|guest| guest["now"]["cpu_ms"].as_i64()).sum();
    Ok(sum as u64 * 1_000_000)
}

/// Processor time that was taken so far, in nanoseconds.
struct Taken {
    /// By everything that ran on this machine.
    busy: u64,
    /// By those that are measured.
    ours: u64,
    /// By the host of this machine.
    stolen: u64,
}

impl Taken {
    fn look(ours: u64) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat has a first line")?;
        let ticks: Vec<u64> = line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let sum = |fields: &[usize]| fields.iter().filter_map(|field| ticks.get(*field)).sum::<u64>() * TICK;
        // user, nice, system, irq, softirq; steal.
        Ok(Self { busy: sum(&[0, 1, 2, 5, 6]), ours, stolen: sum(&[7]) })
    }

    /// What others than those that are measured took since.
    fn by_others_since(&self, before: &Self) -> u64 {
        (self.busy - before.busy).saturating_sub(self.ours - before.ours) + self.stolen - before.stolen
    }
}

/// What the governor costs with two hundred guests, two of them competing.
fn crowd(pando: &OwnPando, root: &Path, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    const WATCHED: u64 = 10;
    let guests = if settings.quick { 20 } else { 200 };
    let mut client = pando.connect()?;
    let source = Some(root.to_string_lossy().into_owned());
    for number in 0..guests {
        let mut spec = Spec::default();
        if number < 2 {
            let spin = "while :; do :; done".to_owned();
            spec.command = vec!["/bin/sh".into(), "-c".into(), spin];
            spec.cpu.reserve = Some("10%".into());
            spec.cpu.share = Some("100".into());
        }
        client.call(&Method::Create { name: name(number), source: source.clone(), spec, start: true })?;
    }
    interrupt::pause(Duration::from_secs(3))?;
    let before = daemon_cost::ticks(pando.daemon())?;
    interrupt::pause(Duration::from_secs(WATCHED))?;
    let ticks = daemon_cost::ticks(pando.daemon())? - before;
    for number in 0..guests {
        client.call(&Method::Remove { name: name(number), force: true })?;
    }
    let row = format!("the daemon's part of one processor, {guests} guests");
    report.add(&row, "%", ticks / WATCHED as f64);
    report.hold(row.clone(), report.median(&row), 1.0, "%");
    Ok(())
}
