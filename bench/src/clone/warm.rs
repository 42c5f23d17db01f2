//! Whether a clone, once warm, works as fast as a guest that was started cold.

use super::{milliseconds, remove};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use anyhow::{Context, ensure};
use pando_api::{Method, Network, Spec};
use std::time::Instant;

/// The rows.
const COLD: &str = "sysbench, started cold";
const CLONE: &str = "sysbench, in a clone";
const MEMORY_COLD: &str = "memory walked, started cold";
const MEMORY_CLONE: &str = "memory walked, in a clone";

/// A program that walks through its memory, over and over, and says how often it did in a second.
const WALK: &str = r#"
import os, sys, time
cells = bytearray(64 << 20)
page = os.sysconf("SC_PAGE_SIZE")
def walk():
    begun = time.monotonic(); rounds = 0
    while time.monotonic() - begun < 1:
        for at in range(0, len(cells), page):
            cells[at] = (cells[at] + 1) & 255
        rounds += 1
    return rounds / (time.monotonic() - begun)
walk()
while True:
    asked = open("/ask").read()
    # What is touched for the first time is apart.
    walk()
    said = walk()
    open("/said.new", "w").write(str(said)); os.rename("/said.new", "/said")
"#;

/// Measures both, in turn. `source` has the programs.
pub(super) fn measure(
    pando: &OwnPando,
    client: &mut Client,
    settings: &Settings,
    source: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let spec = || Spec { network: Network::None, ..Spec::default() };
    let create = |client: &mut Client, name: &str| {
        let create = Method::Create { name: name.into(), source: Some(source.into()), spec: spec(), start: true };
        client.call(&create).map(drop)
    };
    create(client, "warm")?;
    shell(
        pando,
        "warm",
        &format!(
            "mkfifo /ask; cat >/walk.py <<'END'\n{WALK}\nEND\nsetsid python3 /walk.py </dev/null >/dev/null 2>&1 &"
        ),
    )?;
    walk(pando, "warm")?;
    let image = Some("warm".into());
    client.call(&Method::Freeze {
        name: "warm".into(),
        image,
        stop: false,
        memory: true,
        wait: false,
        unchecked: false,
    })?;
    remove(client, "warm")?;
    create(client, "cold")?;
    shell(
        pando,
        "cold",
        &format!(
            "mkfifo /ask; cat >/walk.py <<'END'\n{WALK}\nEND\nsetsid python3 /walk.py </dev/null >/dev/null 2>&1 &"
        ),
    )?;
    let names = vec!["clone".to_owned()];
    client.call(&Method::Clone {
        image: "warm".into(),
        names,
        addresses: Vec::new(),
        signal: None,
        admit: None,
        overbook: None,
    })?;
    for round in 0..=settings.samples(11, 2) {
        interrupt::check()?;
        let rows = [(COLD, "cold"), (CLONE, "clone")];
        for (row, guest) in rows {
            let events = sysbench(pando, guest)?;
            if round > 0 {
                report.add(row, "events/s", events);
            }
        }
        for (row, guest) in [(MEMORY_COLD, "cold"), (MEMORY_CLONE, "clone")] {
            let walks = walk(pando, guest)?;
            if round > 0 {
                report.add(row, "walks/s", walks);
            }
        }
    }
    for (what, cold, clone) in [("sysbench", COLD, CLONE), ("memory walked", MEMORY_COLD, MEMORY_CLONE)] {
        // By time rather than speed: what is held is the most that it may take.
        let ratio = report.median(cold).zip(report.median(clone)).map(|(cold, clone)| cold / clone);
        report.hold(
            format!("{what}: a warm clone's time against that of one started cold"),
            ratio,
            1.0 / 0.98,
            "times",
        );
    }
    remove(client, "cold")?;
    remove(client, "clone").map(drop)
}

fn sysbench(pando: &OwnPando, guest: &str) -> anyhow::Result<f64> {
    let text = shell(pando, guest, "sysbench --time=1 --threads=1 cpu run")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("events per second:"));
    line.context("sysbench told no speed")?.trim().parse().context("its speed is no number")
}

fn walk(pando: &OwnPando, guest: &str) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let text = shell(pando, guest, "rm -f /said; echo >/ask; until [ -e /said ]; do sleep 0.01; done; cat /said")?;
    text.trim().parse().with_context(|| format!("after {} ms it said '{text}'", milliseconds(begun)))
}

fn shell(pando: &OwnPando, guest: &str, script: &str) -> anyhow::Result<String> {
    let done = pando.command().args(["exec", guest, "--", "sh", "-c", script]).output()?;
    ensure!(done.status.success(), "'{script}' failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
