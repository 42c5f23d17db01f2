//! `./x bench clone`: how long a clone takes, against a cold start of the same guest and against CRIU's restore of it,
//! how long the source stands still, and what a clone keeps of the machine's memory.
//!
//! A clone has been made when the daemon says so: then its last thread runs, its identity is its own, and its hooks
//! have ended.

mod address;
mod criu;
mod crowd;
mod forked;
mod programs;
mod standstill;
pub(crate) mod subject;
mod warm;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::start::timed;
use crate::tx::image;
use crate::varlink::Client;
use crate::{busybox_root, interrupt};
use criu::Criu;
use pando_api::{Method, Network, Spec};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two samples: nobody's clones are made in a tight loop, but for those that are meant to be.
const PAUSE: Duration = Duration::from_millis(300);

/// How long the machine is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// A size of guest: its row, its MiB, and the most milliseconds that a clone of it and its own standstill may take.
struct Size {
    name: &'static str,
    mib: usize,
    clone: f64,
    pause: f64,
}

const SMALL: Size = Size { name: "64 MiB", mib: 64, clone: 3.0, pause: 5.0 };
const LARGE: Size = Size { name: "1 GiB", mib: 1024, clone: 4.0, pause: 40.0 };

const BY_COMMAND: &str = "64 MiB: pando clone";
const COLD: &str = "64 MiB: cold start";
const RESTORE: &str = "64 MiB: criu restore";

/// Takes every sample and judges them. Its parts, for `--only`: sizes, address, standstill, crowd, thousand, programs,
/// warm.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("clone");
    report.note("clones have all namespaces, groups and files of their own, and no network but in rows that say so; criu restores into the host's namespaces");
    // Its own disks, and a network with nobody on it.
    image::leave_the_others_mounts()?;
    if settings.wants("standstill") {
        standstill::measure(settings, [&SMALL, &LARGE], &mut report)?;
    }
    address::leave_the_others_network()?;
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    subject::install(&root)?;
    let mut client = pando.connect()?;
    if settings.wants("sizes") {
        sizes(settings, (&pando, &mut client, &root), &mut report)?;
    }
    if settings.wants("address") {
        address::measure((&pando, &mut client, &root), settings, &SMALL, &mut report)?;
    }
    if settings.wants("crowd") {
        crowds(settings, &mut report)?;
    }
    if settings.wants("thousand") {
        crowd::thousand(&mut client, &root, &mut report)?;
    }
    if settings.wants("programs") || settings.wants("warm") {
        let source = programs::install(&pando, settings)?;
        if settings.wants("programs") {
            programs::measure(&pando, &mut client, settings, &source, &mut report)?;
        }
        if settings.wants("warm") {
            warm::measure(&pando, &mut client, settings, &source, &mut report)?;
        }
    }
    Ok(report)
}

/// Hundreds of clones at once, on a disk of their own: where the temporary directory is on an ext4 without a journal,
/// the kernel asks for each new inode whether it was deleted within the last minute, and so the crowd would pay for
/// what was deleted before.
fn crowds(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let disk = image::Image::ext4(settings)?;
    let pando = OwnPando::start_in(&settings.pando, disk.path())?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    subject::install(&root)?;
    let mut client = pando.connect()?;
    // Once: a sleep that was interrupted by a freeze before is told to its program in a clone, which sleeps again, and
    // has written to its stack for that.
    freeze(&pando, &mut client, &root, &SMALL, 0, &mut Report::new("unheard"))?;
    for _ in 0..settings.samples(7, 1).min(7) {
        crowd::hundred(&pando, &mut client, &SMALL, report)?;
        forked::hundred(disk.path(), &SMALL, report)?;
    }
    crowd::judge_hundred(&SMALL, report);
    Ok(())
}

/// The guest of 64 MiB and that of 1 GiB, against a cold start and CRIU.
fn sizes(
    settings: &Settings,
    (pando, client, root): (&OwnPando, &mut Client, &Path),
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut criu = Criu::dumped(settings.criu.as_deref(), pando.directory(), SMALL.mib)
        .inspect_err(|error| report.note(format!("criu could not be measured: {error:#}")))
        .ok();
    for size in [&SMALL, &LARGE] {
        freeze(pando, client, root, size, settings.samples(11, 3), report)?;
    }
    let samples = settings.samples(50, 5);
    for round in 0..=samples {
        // The first round warms up.
        let mut unheard = Report::new("warm-up");
        let into = if round > 0 { &mut *report } else { &mut unheard };
        one_round(pando, client, criu.as_mut(), into)?;
    }
    judge(report);
    Ok(())
}

/// The name of a row.
fn row(size: &Size, what: &str) -> String {
    format!("{}: {what}", size.name)
}

/// Starts a guest and freezes it over and over; the last image stays.
fn freeze(
    pando: &OwnPando,
    client: &mut Client,
    root: &Path,
    size: &Size,
    samples: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = format!("source-{}", size.mib);
    let spec = Spec { network: Network::None, command: subject::command(size.mib), ..Spec::default() };
    let source = Some(root.to_string_lossy().into_owned());
    client.call(&Method::Create { name: name.clone(), source, spec, start: false })?;
    cold_start(pando, client, &name)?;
    for round in 0..=samples {
        interrupt::pause(PAUSE)?;
        let image = client.call(&Method::Freeze {
            name: name.clone(),
            image: Some(name.clone()),
            stop: false,
            memory: true,
            wait: false,
            unchecked: false,
        })?;
        if round > 0 {
            let pause = image["image"]["pause_us"].as_f64().unwrap_or(f64::NAN) / 1e3;
            report.add(&row(size, "standstill of the source"), "ms", pause);
        }
        if round < samples {
            client.call(&Method::RemoveImage { image: name.clone() })?;
        }
    }
    Ok(())
}

/// From the request to the moment when the guest has filled its memory. Milliseconds.
fn cold_start(pando: &OwnPando, client: &mut Client, name: &str) -> anyhow::Result<f64> {
    const MOMENT: Duration = Duration::from_micros(100);
    let ready = pando.state().join("guests").join(name).join("files/upper").join(subject::READY);
    let _ = std::fs::remove_file(&ready);
    let since = Instant::now();
    client.call(&Method::Start { name: name.to_owned() })?;
    while !ready.exists() {
        interrupt::check()?;
        std::thread::sleep(MOMENT);
    }
    Ok(milliseconds(since))
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn remove(client: &mut Client, name: &str) -> anyhow::Result<Value> {
    client.call(&Method::Remove { name: name.to_owned(), force: true })
}

fn clone(client: &mut Client, size: &Size, names: Vec<String>) -> anyhow::Result<f64> {
    let since = Instant::now();
    client.call(&Method::Clone {
        image: format!("source-{}", size.mib),
        names,
        addresses: Vec::new(),
        signal: None,
        admit: None,
        overbook: None,
    })?;
    Ok(milliseconds(since))
}

fn one_round(
    pando: &OwnPando,
    client: &mut Client,
    criu: Option<&mut Criu>,
    report: &mut Report,
) -> anyhow::Result<()> {
    const NAME: &str = "clone";
    for size in [&SMALL, &LARGE] {
        interrupt::pause(PAUSE)?;
        report.add(&row(size, "clone, from the request to the daemon"), "ms", clone(client, size, vec![NAME.into()])?);
        remove(client, NAME)?;
    }
    interrupt::pause(PAUSE)?;
    let image = format!("source-{}", SMALL.mib);
    report.add(BY_COMMAND, "ms", timed(pando.command().args(["clone", &image, NAME]))?);
    remove(client, NAME)?;
    let name = image;
    interrupt::pause(PAUSE)?;
    client.call(&Method::Stop { name: name.clone(), signal: Some("KILL".into()), grace: None })?;
    interrupt::pause(PAUSE)?;
    report.add(COLD, "ms", cold_start(pando, client, &name)?);
    if let Some(criu) = criu {
        interrupt::pause(PAUSE)?;
        report.add(RESTORE, "ms", criu.restore()?);
    }
    Ok(())
}

fn judge(report: &mut Report) {
    for size in [&SMALL, &LARGE] {
        let made = row(size, "clone, from the request to the daemon");
        report.hold(made.clone(), report.median(&made), size.clone, "ms");
        let stood = row(size, "standstill of the source");
        report.hold(stood.clone(), report.median(&stood), size.pause, "ms");
    }
    report.hold(BY_COMMAND, report.median(BY_COMMAND), 4.0, "ms");
    let made = report.median(&row(&SMALL, "clone, from the request to the daemon"));
    let ratio = made.zip(report.median(RESTORE)).map(|(own, peer)| own / peer);
    report.hold("clone against criu's restore", ratio, 1.0 / 30.0, "times");
}
