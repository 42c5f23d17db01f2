//! The published figures as programs: `./x bench NAME`.
//!
//! Every benchmark measures Pando and its peers in the same invocation, sample by sample in turn, keeps the raw samples
//! as JSON, prints a table, and ends with one verdict a figure. The exit code is 1 where a figure is missed; a peer
//! that cannot be measured is a miss.
//!
//! ```text
//!   settings ─▶ own_pando (a state root, a daemon) ─▶ a benchmark of BENCHMARKS ─▶ report: table, verdicts, samples
//! ```

mod boot;
mod busybox_root;
mod clone;
mod cpu;
mod debian_root;
mod gate;
mod interrupt;
mod limits;
mod line_chart;
mod lmbench;
mod many;
mod neighbours;
mod net;
mod oci;
mod outside;
mod own_pando;
mod pages;
mod quiesce;
mod report;
mod service_group;
mod settings;
mod spread;
mod start;
mod thesis;
mod tx;
mod txlib;
mod unify;
mod varlink;

use anyhow::Context;
use report::Report;
use settings::Settings;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What measures a benchmark.
type Measure = fn(&Settings) -> anyhow::Result<Report>;

/// All of them.
const BENCHMARKS: &[(&str, Measure)] = &[
    ("oci", oci::measure),
    ("start", start::measure),
    ("many", many::measure),
    ("pages", pages::measure),
    ("boot", boot::measure),
    ("clone", clone::measure),
    ("cpu", cpu::measure),
    ("limits", limits::measure),
    ("lmbench", lmbench::measure),
    ("neighbours", neighbours::measure),
    ("net", net::measure),
    ("bandwidth", net::bandwidth::measure),
    ("thesis", thesis::measure),
    ("unify", unify::measure),
    ("tx", tx::measure),
    ("gate", gate::measure),
    ("txlib", txlib::measure),
];

/// Whether every figure was met.
fn run() -> anyhow::Result<bool> {
    // What is to be measured inside a guest is this program too.
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [clone::subject::NAME, ..] => return clone::subject::main(&words[1..]).map(|()| true),
        [pages::subject::NAME, ..] => return pages::subject::main(&words[1..]).map(|()| true),
        [cpu::hourglass::NAME, ..] => return cpu::hourglass::main(&words[1..]).map(|()| true),
        ["net-serve", ip] => return net::load::serve(ip).map(|()| true),
        ["net-flood", ip] => return net::flood::send(ip).map(|()| true),
        ["net-crowd", kind, time, ref ips @ ..] => return net::crowd::make(kind, time.parse()?, ips).map(|()| true),
        [neighbours::fork_bomb::NAME, ref part @ ..] => {
            return neighbours::fork_bomb::main(part.first().copied()).map(|never| match never {});
        }
        ["net-send", kind, ip, port] => return net::flow::send(kind, ip, port.parse()?).map(|()| true),
        ["net-sink", count, time] => return net::flow::sink(count.parse()?, time.parse()?).map(|()| true),
        ["net-load", ip, load, time] => return net::load::make(ip, load, time).map(|()| true),
        ["tx-calls", at] => return tx::calls::make(at.as_ref()).map(|()| true),
        ["tx-some", call, count, at] => return tx::ends::make(call, count.parse()?, at.as_ref()).map(|()| true),
        ["tx-write", path] => return Ok(std::fs::write(path, "written").map(|()| true)?),
        ["tx-fill", at] => return tx::whole::fill(at.as_ref()).map(|()| true),
        ["tx-program", name, at, scale, sync] => {
            let how = tx::workload::How { scale: scale.parse()?, sync: sync == "sync" };
            return tx::workload::run(name, at.as_ref(), how).map(|()| true);
        }
        _ => {}
    }
    let settings = Settings::from_arguments(std::env::args().skip(1))?;
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("guests need root; run it as root");
    }
    interrupt::listen().context("cannot listen for Ctrl-C")?;
    let found = BENCHMARKS.iter().find(|(name, _)| *name == settings.benchmark);
    let Some((_, measure)) = found else {
        let names: Vec<_> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("there is no benchmark '{}'; there are {}", settings.benchmark, names.join(", "));
    };
    let report = measure(&settings)?;
    let path = report.save(&settings.output)?;
    print!("{report}");
    println!("\nsamples: {}", path.display());
    Ok(report.all_met())
}
