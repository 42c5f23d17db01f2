//! `./x bench thesis`: chapter 5 of the Freezer's thesis with today's programs. How long a minimal and a graphical
//! guest take to be frozen and to go on as a clone (figure 5.1), what that takes of memory (table 5.1), and what
//! several browsers take, each in a guest of its own (figure 5.2).
//!
//! ```text
//!   guest ─▶ frozen ─▶ a clone: latency, memory              a browser × n: its own memory, n times over
//!                 └──▶ n clones, a browser started in each   n clones of a guest in which it runs already
//! ```

mod browser;
mod charge;
mod charts;
mod desktop;

use crate::busybox_root;
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use charge::Charge;
use pando_api::{Method, Network, Spec};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Between two samples.
const PAUSE: Duration = Duration::from_millis(300);

/// How long a guest is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(1);

/// A kind of guest that is frozen: its name in the table, its source and its command.
struct Setup {
    name: &'static str,
    source: String,
    command: Vec<String>,
}

/// Takes every sample, and draws both figures.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("thesis");
    report.note(
        "the thesis froze a whole kernel with its RAM disk; a guest's kernel is the host's, and its files are a layer",
    );
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let minimal = Setup {
        name: "minimal",
        source: root.to_string_lossy().into_owned(),
        command: ["sh", "-c", "sleep 100000 & sh -c 'while :; do sleep 1000; done' & wait"].map(str::to_owned).to_vec(),
    };
    desktop::install(&pando)?;
    let graphical = Setup { name: "X11", source: desktop::source(), command: desktop::command() };
    let samples = settings.samples(20, 3);
    for setup in [&minimal, &graphical] {
        one_setup(&pando, setup, samples, &mut report)?;
    }
    let instances = settings.guests.unwrap_or(if settings.quick { 2 } else { 10 });
    let lines = browser::measure(&pando, instances, &mut report)?;
    let latencies = [minimal.name, graphical.name].map(|name| {
        let median = |what| report.median(&row(name, what)).unwrap_or(f64::NAN);
        (name, median(FREEZE), median(RESUME))
    });
    for path in charts::draw(&settings.output, &latencies, &lines)? {
        report.note(format!("drawn: {}", path.display()));
    }
    Ok(report)
}

const FREEZE: &str = "freeze";
const STANDSTILL: &str = "standstill of the source";
const RESUME: &str = "resume as a clone";
const IMAGE: &str = "frozen image";
const HOLDING: &str = "overhead 1, what holds it beside";
const CLONE_MEMORY: &str = "resume, memory of the clone's processes";
const KERNEL: &str = "overhead 2, the kernel's for the clone";

fn row(setup: &str, what: &str) -> String {
    format!("{setup}: {what}")
}

/// Freezes one, has clones go on, and looks at what both take. The guest and its image stay.
fn one_setup(pando: &OwnPando, setup: &Setup, samples: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut client = pando.connect()?;
    let spec = Spec { network: Network::None, command: setup.command.clone(), ..Spec::default() };
    let (name, source) = (setup.name.to_lowercase(), Some(setup.source.clone()));
    client.call(&Method::Create { name: name.clone(), source, spec, start: true })?;
    if setup.source == desktop::source() {
        desktop::wait_until_ready(pando, &name)?;
    }
    interrupt::pause(SETTLE)?;
    for round in 0..=samples {
        // The first round warms up.
        let mut unheard = Report::new("warm-up");
        one_round(&mut client, &name, setup.name, if round > 0 { &mut *report } else { &mut unheard })?;
        if round < samples {
            client.call(&Method::RemoveImage { image: name.clone() })?;
        }
    }
    Ok(())
}

fn one_round(client: &mut Client, name: &str, setup: &str, report: &mut Report) -> anyhow::Result<()> {
    const CLONE: &str = "resumed";
    interrupt::pause(PAUSE)?;
    let since = Instant::now();
    let answer = freeze(client, name)?;
    report.add(&row(setup, FREEZE), "ms", milliseconds(since));
    let status = &answer["image"];
    let number = |key: &str| status[key].as_f64().unwrap_or(f64::NAN);
    report.add(&row(setup, STANDSTILL), "ms", number("pause_us") / 1e3);
    let frozen = number("memory_kib");
    report.add(&row(setup, IMAGE), "kB", frozen);
    report.add(&row(setup, HOLDING), "kB", charge::of_holder(client, name)? - frozen);
    interrupt::pause(PAUSE)?;
    let since = Instant::now();
    clone(client, name, CLONE)?;
    report.add(&row(setup, RESUME), "ms", milliseconds(since));
    interrupt::pause(SETTLE)?;
    let charge = Charge::of_guest(client, CLONE)?;
    report.add(&row(setup, CLONE_MEMORY), "kB", charge.processes);
    report.add(&row(setup, KERNEL), "kB", charge.kernel);
    remove(client, CLONE)
}

fn freeze(client: &mut Client, name: &str) -> anyhow::Result<Value> {
    client.call(&Method::Freeze {
        name: name.to_owned(),
        image: Some(name.to_owned()),
        stop: false,
        memory: true,
        wait: false,
        unchecked: false,
    })
}

fn clone(client: &mut Client, image: &str, name: &str) -> anyhow::Result<()> {
    let names = vec![name.to_owned()];
    client
        .call(&Method::Clone {
            image: image.to_owned(),
            names,
            addresses: Vec::new(),
            signal: None,
            admit: None,
            overbook: None,
        })
        .map(drop)
}

fn remove(client: &mut Client, name: &str) -> anyhow::Result<()> {
    client.call(&Method::Remove { name: name.to_owned(), force: true }).map(drop)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
