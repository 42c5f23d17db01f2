//! `./x bench pages`: memory of clones that have all written everything and left most of it as it was, as python does
//! by its counts of references: how much of it is shared again, how soon, and what that takes of the processors. The
//! peer in the same run is the kernel's merger over everything that the same clones have.

pub(crate) mod subject;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use crate::{busybox_root, interrupt};
use anyhow::Context;
use pando_api::{Method, Network, Spec};
use pando_kernel::memory::ksm::{self, Pace};
use std::time::{Duration, Instant};

/// How many clones there are.
const CLONES: usize = 10;

/// How long sharing may take altogether.
const LONGEST: Duration = Duration::from_secs(120);

const MOMENT: Duration = Duration::from_millis(500);

/// As the figures are asked for: one percent of a processor on the whole.
const SHARING: &str = "[memory]\nshare = \"clones\"\nshare_every = 1\n";

const OURS: &str = "shared by what was seen of samples";
const ALL: &str = "the kernel's merger over everything";

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("pages");
    let mib = if settings.quick { 32 } else { 200 };
    report.note(format!(
        "{CLONES} clones of a guest of {mib} MiB that write to each page what it has, but for one page of 64"
    ));
    let found = ksm::pace().context("this kernel was built without KSM")?;
    anyhow::ensure!(found.run != 1, "somebody else has the kernel's merger run; nothing can be measured beside that");
    // Beside a virtual machine whose memory may be merged, as QEMU has it, no clone's is.
    let offers = |pid: &i32| ksm::has_offered(*pid).unwrap_or(false);
    if let Some(stranger) = pando_kernel::process::all()?.into_iter().find(offers) {
        anyhow::bail!("process {stranger} offers memory to be merged; nothing can be measured beside that");
    }
    let _found = PutBack(found);
    for _ in 0..settings.samples(3, 1) {
        one_round(settings, mib, SHARING, OURS, &mut report)?;
        one_round(settings, mib, "", ALL, &mut report)?;
    }
    judge(mib, &mut report);
    Ok(report)
}

/// The merger as it was found, again, whatever happens to the measurement.
struct PutBack(Pace);

impl Drop for PutBack {
    fn drop(&mut self) {
        if let Err(error) = ksm::set_pace(self.0) {
            eprintln!("bench: the kernel's merger is not as it was found: {error}");
        }
    }
}

fn row(of: &str, what: &str) -> String {
    format!("{of}: {what}")
}

fn one_round(settings: &Settings, mib: usize, said: &str, of: &str, report: &mut Report) -> anyhow::Result<()> {
    let pando = OwnPando::start_with(&settings.pando, said)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    subject::install(&root)?;
    let mut client = pando.connect()?;
    let before = ticks(&pando)?;
    let pids = clones(&mut client, &root.to_string_lossy(), mib, of == ALL)?;
    let begun = Instant::now();
    let parted = wait_for(|| private_mib(&pids), |now| now > mib as f64 * 0.9)?;
    report.add(&row(of, "private memory of each before"), "MiB", parted);
    if of == ALL {
        ksm::set_pace(Pace { run: 1, pages_to_scan: 4000, sleep_millisecs: 20 })?;
    }
    // Until it is not less than five seconds before.
    let (mut least, mut since) = (f64::INFINITY, Instant::now());
    while begun.elapsed() < LONGEST && (since.elapsed() < Duration::from_secs(15) || least > parted * 0.9) {
        interrupt::pause(MOMENT)?;
        let now = private_mib(&pids)?;
        if now < least * 0.98 {
            (least, since) = (now, Instant::now());
        }
    }
    if of == ALL {
        ksm::set_pace(Pace { run: 0, pages_to_scan: 100, sleep_millisecs: 20 })?;
    }
    report.add(&row(of, "private memory of each after"), "MiB", least);
    report.add(&row(of, "saved of what was parted"), "%", (parted - least) / parted * 100.0);
    report.add(&row(of, "until it was least"), "s", (since - begun).as_secs_f64());
    report.add(&row(of, "processor time, daemon and merger"), "ms", (ticks(&pando)? - before) * 10.0);
    Ok(())
}

/// Processor time of the daemon and of the merger so far: clock ticks.
fn ticks(pando: &OwnPando) -> anyhow::Result<f64> {
    let merger = ksm::thread().map_or(Ok(0), ksm::ticks)?;
    Ok(crate::many::daemon_cost::ticks(pando.daemon())? + merger as f64)
}

/// Makes a guest, an image of it, and clones; the pid of each clone's process with the memory.
fn clones(client: &mut Client, source: &str, mib: usize, merges: bool) -> anyhow::Result<Vec<i32>> {
    let spec = Spec { network: Network::None, command: subject::command(mib, merges), ..Spec::default() };
    let name = subject::SOURCE.to_owned();
    client.call(&Method::Create { name: name.clone(), source: Some(source.to_owned()), spec, start: true })?;
    let of_source = [largest(client, subject::SOURCE)?];
    wait_for(|| private_mib(&of_source), |now| now > mib as f64 * 0.98)?;
    let (image, stop, memory, wait) = (Some("warm".to_owned()), true, false, false);
    client.call(&Method::Freeze { name, image, stop, memory, wait, unchecked: false })?;
    let names: Vec<String> = (0..CLONES).map(|number| format!("warm-{number}")).collect();
    let (addresses, signal, admit, overbook) = (Vec::new(), None, None, None);
    client.call(&Method::Clone { image: "warm".into(), names: names.clone(), addresses, signal, admit, overbook })?;
    names.iter().map(|name| largest(client, name)).collect()
}

/// The pid of a guest's process with the most memory.
fn largest(client: &mut Client, name: &str) -> anyhow::Result<i32> {
    let answer = client.call(&Method::Processes { name: Some(name.to_owned()), host: false })?;
    let processes = answer["processes"].as_array().cloned().unwrap_or_default();
    let largest = processes.iter().max_by_key(|process| process["rss_kib"].as_i64());
    let pid = largest.and_then(|process| i32::try_from(process["host_pid"].as_i64()?).ok());
    pid.with_context(|| format!("guest '{name}' has no process"))
}

/// The memory that each of some processes has for itself, on the average: MiB.
fn private_mib(pids: &[i32]) -> anyhow::Result<f64> {
    let mut kib = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let lines =
            text.lines().filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
        kib += lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(kib as f64 / 1024.0 / pids.len().max(1) as f64)
}

fn wait_for(mut look: impl FnMut() -> anyhow::Result<f64>, done: impl Fn(f64) -> bool) -> anyhow::Result<f64> {
    let until = Instant::now() + LONGEST;
    loop {
        let now = look()?;
        if done(now) {
            return Ok(now);
        }
        anyhow::ensure!(Instant::now() < until, "the guests do not come to what they should: {now:.1} MiB each");
        interrupt::pause(Duration::from_millis(100))?;
    }
}

fn judge(mib: usize, report: &mut Report) {
    // One page of 64 differs, and stays each clone's own.
    let own = mib as f64 / 64.0;
    let after = report.median(&row(OURS, "private memory of each after"));
    report.hold("private memory of each beyond what differs", after.map(|after| after - own), 1.0, "MiB");
    report.hold("until it is shared again", report.median(&row(OURS, "until it was least")), 20.0, "s");
    let saved = |of| report.median(&row(of, "saved of what was parted"));
    let part = saved(ALL).zip(saved(OURS)).map(|(all, ours)| all / ours);
    report.hold("what the merger over everything saves, of what is saved", part, 1.0 / 0.95, "times");
    let cost =
        report.ratios(&row(OURS, "processor time, daemon and merger"), &row(ALL, "processor time, daemon and merger"));
    let cost = crate::spread::Spread::of(&cost).map(|spread| spread.median);
    report.hold("processor time, of the merger's over everything", cost, 0.1, "times");
}
