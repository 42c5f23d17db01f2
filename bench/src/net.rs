//! `./x bench net`: a guest on the shared stack against the same server on the host itself, each reached from a namespace of its own.

pub(crate) mod bandwidth;
pub(crate) mod flow;
pub(crate) mod load;

use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::{Context, bail};
use load::Load;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long one load runs.
const TIME: Duration = Duration::from_millis(1500);

/// The addresses of the host, of the guest, and of the machine outside.
const HOST: &str = "10.9.0.1";
const GUEST: &str = "10.9.0.5";
const OUTSIDE: &str = "10.9.0.100";

const NATIVE: &str = "native";
/// The host itself, where a guest shares its stack.
const BESIDE: &str = "host beside guests";
/// A guest, with no network isolation at all: what its groups, namespaces and filters cost.
const UNRESTRICTED: &str = "guest, --net host";
const SHARED: &str = "guest, shared stack";

/// What a guest runs.
const SERVER: [&str; 2] = ["/bench", "net-serve"];
const IDLER: [&str; 3] = ["sh", "-c", "echo; exec sleep 100000"];

/// A process that is killed when this goes.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two machines on a wire.
struct Wire {
    host: Running,
    outside: Running,
}

impl Wire {
    fn new() -> anyhow::Result<Self> {
        let wire = Self { host: namespace()?, outside: namespace()? };
        let setup = |at: &Running, script: String| within(at, "sh").args(["-euc", &script]).status();
        let up = |device: &str, ip: &str| {
            format!("ip link set lo up; ip address add {ip}/24 dev {device}; ip link set {device} up")
        };
        let link = format!("ip link add h0 type veth peer name o0; ip link set o0 netns {}; ", wire.outside.0.id());
        let done = [setup(&wire.host, link + &up("h0", HOST))?, setup(&wire.outside, up("o0", OUTSIDE))?];
        if !done.iter().all(std::process::ExitStatus::success) {
            bail!("two network namespaces could not be linked; is iproute2 installed?");
        }
        Ok(wire)
    }
}

/// A process in a network namespace of its own.
fn namespace() -> anyhow::Result<Running> {
    let started =
        Command::new("unshare").args(["--net", "sh", "-c", "echo; exec sleep 100000"]).stdout(Stdio::piped()).spawn();
    ready(started.context("cannot make a network namespace")?)
}

/// Waits for a process's first line.
fn ready(mut child: Child) -> anyhow::Result<Running> {
    let out = child.stdout.take();
    let running = Running(child);
    let mut line = String::new();
    BufReader::new(out.context("it has no output")?).read_line(&mut line)?;
    if line.is_empty() {
        bail!("a server ended before it served");
    }
    Ok(running)
}

fn within(at: &Running, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", at.0.id())).arg(program);
    command
}

/// Measures everything in turn.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("net");
    let me = std::env::current_exe()?;
    let me = me.to_str().context("this program's path is not text")?;
    // A wire each, so that the native one has not a single program on it.
    let (plain, other, free, shared) = (Wire::new()?, Wire::new()?, Wire::new()?, Wire::new()?);
    let serve = |wire: &Wire| ready(within(&wire.host, me).arg("net-serve").stdout(Stdio::piped()).spawn()?);
    let (_native, _beside) = (serve(&plain)?, serve(&other)?);
    let (_unrestricted, _first) = guest(settings, &free, me, &["--net", "host"], &SERVER)?;
    let (_confined, _second) = guest(settings, &shared, me, &["--address", GUEST], &SERVER)?;
    // Programs are on this wire as soon as a guest is; its own takes no part.
    let (_idle, _third) = guest(settings, &other, me, &["--address", GUEST], &IDLER)?;
    let contenders =
        [(NATIVE, &plain, HOST), (BESIDE, &other, HOST), (UNRESTRICTED, &free, HOST), (SHARED, &shared, GUEST)];
    let samples = settings.samples(15, 2);
    for round in 0..=samples {
        for load in Load::ALL {
            for number in 0..contenders.len() {
                let (name, wire, ip) = contenders[(number + round) % contenders.len()];
                let figure = one(wire, me, ip, load, settings.quick)?;
                if round > 0 {
                    report.add(&format!("{}, {name}", load.name()), load.unit(), figure);
                }
            }
        }
    }
    judge(&mut report);
    Ok(report)
}

/// A command in a guest, on a wire's near machine, with a daemon that lives there.
fn guest(
    settings: &Settings,
    wire: &Wire,
    me: &str,
    options: &[&str],
    words: &[&str],
) -> anyhow::Result<(OwnPando, Running)> {
    let home = File::open(format!("/proc/{}/ns/net", wire.host.0.id()))?;
    setns(home, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
    let pando = OwnPando::start(&settings.pando)?;
    let volume = format!("{me}:/bench:ro");
    let mut command = pando.command();
    command.arg("run").args(options).args(["--volume", &volume, "--"]).args(words);
    let server = ready(command.stdout(Stdio::piped()).spawn()?)?;
    Ok((pando, server))
}

fn one(wire: &Wire, me: &str, ip: &str, load: Load, quick: bool) -> anyhow::Result<f64> {
    interrupt::check()?;
    let time = if quick { TIME / 5 } else { TIME };
    let mut command = within(&wire.outside, me);
    let output = command.args(["net-load", ip, load.name(), &time.as_millis().to_string()]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{} of {ip}: {}", load.name(), String::from_utf8_lossy(&output.stderr)))
}

/// Figures are held from above: where more is better, native is divided by shared. What a guest costs without any network isolation is told beside.
fn judge(report: &mut Report) {
    for (load, target) in [(Load::Stream, 0.98), (Load::Connections, 0.96), (Load::Datagrams, 0.92)] {
        let ratio = ratio(report, load, NATIVE, SHARED);
        report.hold(format!("{}: native against shared stack", load.name()), ratio, 1.0 / target, "times");
    }
    for load in Load::ALL {
        let (above, below) = if load == Load::RoundTrip { (SHARED, UNRESTRICTED) } else { (UNRESTRICTED, SHARED) };
        if let Some(ratio) = ratio(report, load, above, below) {
            report.note(format!("{}: against a guest with --net host {ratio:.2} times", load.name()));
        }
    }
    let trips = ratio(report, Load::RoundTrip, SHARED, NATIVE);
    report.hold("round trip: shared stack against native", trips, 1.04, "times");
}

fn ratio(report: &Report, load: Load, above: &str, below: &str) -> Option<f64> {
    let median = |name: &str| report.median(&format!("{}, {name}", load.name()));
    Some(median(above)? / median(below)?)
}
