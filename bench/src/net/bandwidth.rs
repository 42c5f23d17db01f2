//! `./x bench bandwidth`: what guests get of a device's rate against what they are granted (section 2.2.5 of the
//! EuroSys paper), on one address that all share and on a private network.

use super::flow::{FIRST_PORT, on_the_wire};
use super::{OUTSIDE, Running, Wire, ready, within};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::Context;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const LINK: &str = "[network.link_rate]\nh0 = \"100mbit\"\n";

/// How long is measured, in milliseconds.
const TIME: u64 = 4000;

/// What guests are granted, what of 100 Mbit/s each should get when all send, and how far off that may be.
struct Scene {
    name: &'static str,
    guests: &'static [(&'static [&'static str], f64)],
    within: f64,
}

/// Of the rest, the class of all others keeps its 0.1 Mbit/s to itself only when it sends.
const SCENES: [Scene; 4] = [
    Scene { name: "cap", guests: &[(&["--net-limit", "20mbit"], 20.0)], within: 0.005 },
    Scene {
        name: "shares 1:2:3",
        guests: &[
            (&["--net-share", "100"], 100.0 / 6.0),
            (&["--net-share", "200"], 200.0 / 6.0),
            (&["--net-share", "300"], 300.0 / 6.0),
        ],
        within: 0.02,
    },
    Scene {
        name: "reserved 40, shares 1:3",
        guests: &[
            (&["--net-reserve", "40mbit"], 40.0),
            (&["--net-share", "100"], 15.0),
            (&["--net-share", "300"], 45.0),
        ],
        within: 0.02,
    },
    Scene {
        name: "reserved 40 and share, share",
        guests: &[(&["--net-reserve", "40mbit", "--net-share", "100"], 70.0), (&["--net-share", "100"], 30.0)],
        within: 0.02,
    },
];

const NETWORKS: [(&str, &[&str]); 2] =
    [("one address", &["--address", "10.9.0.5"]), ("private", &["--net", "private"])];

pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("bandwidth");
    let me = std::env::current_exe()?;
    let me = me.to_str().context("this program's path is not text")?;
    let wire = Wire::new()?;
    let home = File::open(format!("/proc/{}/ns/net", wire.host.0.id()))?;
    setns(home, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
    let pando = OwnPando::start_with(&settings.pando, LINK)?;
    for _ in 0..settings.samples(3, 1) {
        for (network, options) in NETWORKS {
            for kind in ["tcp", "udp"] {
                for scene in &SCENES {
                    interrupt::check()?;
                    let rates = play(&pando, &wire, me, (options, kind), scene)?;
                    for (number, (rate, (_, due))) in rates.iter().zip(scene.guests).enumerate() {
                        report.add(&named(network, kind, scene, number, *due), "Mbit/s", *rate);
                    }
                }
            }
        }
    }
    judge(&mut report);
    Ok(report)
}

fn named(network: &str, kind: &str, scene: &Scene, number: usize, due: f64) -> String {
    format!("{network}, {kind}, {}: guest {} ({due:.1})", scene.name, number + 1)
}

/// Has all guests of a scene send at once; what arrives of each, as it was on the wire.
fn play(
    pando: &OwnPando,
    wire: &Wire,
    me: &str,
    (options, kind): (&[&str], &str),
    scene: &Scene,
) -> anyhow::Result<Vec<f64>> {
    let mut sink = within(&wire.outside, me);
    sink.args(["net-sink", &scene.guests.len().to_string(), &TIME.to_string()]).stdout(Stdio::piped());
    let mut sink = Running(sink.spawn()?);
    let mut lines = BufReader::new(sink.0.stdout.take().context("it has no output")?).lines();
    lines.next().context("the sink ended before it listened")??;
    let mut guests = Vec::new();
    for (number, (grants, _)) in (0_u16..).zip(scene.guests) {
        let mut command = pando.command();
        command.args(["run", "--name", &format!("guest-{number}")]).args(options).args(*grants).args([
            "--volume",
            &format!("{me}:/bench:ro"),
            "--",
        ]);
        command.args(["/bench", "net-send", kind, OUTSIDE, &(FIRST_PORT + number).to_string()]);
        guests.push(ready(command.stdout(Stdio::piped()).spawn()?)?);
    }
    let line = lines.next().context("not every flow began");
    // A guest outlives the command that ran it.
    for number in 0..scene.guests.len() {
        pando.command().args(["rm", "--force", &format!("guest-{number}")]).stdout(Stdio::null()).status()?;
    }
    let line = line??;
    let rates = line.split(' ').map(|word| Ok(word.parse::<f64>()? / 1e6 * on_the_wire(kind)));
    rates.collect()
}

fn judge(report: &mut Report) {
    for (network, _) in NETWORKS {
        for kind in ["tcp", "udp"] {
            for scene in &SCENES {
                let errors = scene.guests.iter().enumerate().map(|(number, (_, due))| {
                    let rate = report.median(&named(network, kind, scene, number, *due))?;
                    Some((rate / due - 1.0).abs())
                });
                let worst = errors.collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold(0.0, f64::max));
                let figure = format!("{network}, {kind}, {}: off by", scene.name);
                report.hold(figure, worst.map(|worst| worst * 100.0), scene.within * 100.0, "%");
            }
        }
    }
    report.note("rates are of what was on the wire, headers included, as the device's classes count it");
}
