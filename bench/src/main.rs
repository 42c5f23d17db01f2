//! The published figures as programs: `./x bench NAME`.
//!
//! Every benchmark measures Pando and its peers in the same invocation, sample by sample in turn, keeps the raw samples as JSON, prints a table,
//! and ends with one verdict a figure. The exit code is 1 where a figure is missed; a peer that cannot be measured is a miss.
//!
//! ```text
//!   settings ─▶ own_pando (a state root, a daemon) ─▶ start | many | cpu | limits | net | unify ─▶ report: table, verdicts, samples
//! ```

mod busybox_root;
mod cpu;
mod interrupt;
mod limits;
mod many;
mod net;
mod own_pando;
mod report;
mod settings;
mod spread;
mod start;
mod unify;
mod varlink;

use anyhow::Context;
use settings::Settings;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = arguments.as_slice()
        && first == cpu::hourglass::NAME
    {
        return match cpu::hourglass::main(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("bench: {error:#}");
                ExitCode::from(2)
            }
        };
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every figure was met.
fn run() -> anyhow::Result<bool> {
    // What is to be measured inside a guest is this program too.
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["net-serve"] => return net::load::serve().map(|()| true),
        ["net-load", ip, load, time] => return net::load::make(ip, load, time).map(|()| true),
        _ => {}
    }
    let settings = Settings::from_arguments(std::env::args().skip(1))?;
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("guests need root; run it as root");
    }
    interrupt::listen().context("cannot listen for Ctrl-C")?;
    let report = match settings.benchmark.as_str() {
        "start" => start::measure(&settings)?,
        "cpu" => cpu::measure(&settings)?,
        "limits" => limits::measure(&settings)?,
        "many" => many::measure(&settings)?,
        "net" => net::measure(&settings)?,
        "unify" => unify::measure(&settings)?,
        other => anyhow::bail!("there is no benchmark '{other}'; there are start, many, cpu, limits, net and unify"),
    };
    let path = report.save(&settings.output)?;
    print!("{report}");
    println!("\nsamples: {}", path.display());
    Ok(report.all_met())
}
