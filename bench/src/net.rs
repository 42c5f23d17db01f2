//! `./x bench net`: a guest on the shared stack against the same server on the host itself, each reached from a
//! namespace of its own.

pub(crate) mod bandwidth;
mod beginning;
pub(crate) mod crowd;
pub(crate) mod flood;
pub(crate) mod flow;
pub(crate) mod load;

use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::service_group::ServiceGroup;
use crate::settings::Settings;
use crate::spread::{self, Spread};
use anyhow::{Context, bail};
use load::Load;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long one load runs: short, so that those that are compared have the same neighbours, and often, since what
/// others do to a machine meanwhile moves a single one by half.
const TIME: Duration = Duration::from_millis(50);
const ROUNDS: usize = 30;

/// How often a flood is looked at each time.
const FLOODS: usize = 5;

/// How often all of it begins anew, with other wires, servers and guests: where in memory those of one lie makes a
/// stream three per cent faster or slower for as long as they are there.
const BEGINNINGS: usize = 10;

/// What is told beside, and what takes longer, is looked at once in so many rounds.
const SELDOM: usize = 10;

/// The addresses of the host, of the guest, of one that is a machine on the host's network, and of the machine outside.
const HOST: &str = "10.9.0.1";
const GUEST: &str = "10.9.0.5";
const MACHINE: &str = "10.9.0.7";
const OUTSIDE: &str = "10.9.0.100";

const NATIVE: &str = "native";
/// The host itself, where a guest shares its stack.
const BESIDE: &str = "host beside guests";
/// A guest, with no network isolation at all: what its groups, namespaces and filters cost.
const UNRESTRICTED: &str = "guest, --net host";
const SHARED: &str = "guest, shared stack";
/// These two are held against one another.
const HELD: [&str; 2] = [NATIVE, SHARED];
/// Beside these, what others have: a bridge with translation, and a device on the host's.
const BRIDGED: &str = "guest, veth and bridge";
const MACVLAN: &str = "guest, macvlan";

const FLOODED: &str = "round trip under a SYN flood";

/// What a guest runs.
const SERVER: [&str; 3] = ["/bench", "net-serve", "0.0.0.0"];
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
        // What somebody pretends to have sent is answered by the default route, or not at all.
        let near = link + &up("h0", HOST) + &format!("; ip route add default via {OUTSIDE}");
        let done = [setup(&wire.host, near)?, setup(&wire.outside, up("o0", OUTSIDE))?];
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

/// Who is measured: a name, the wire it is on, and its address there.
type Contender<'a> = (&'static str, &'a Wire, &'static str);

/// Measures everything in turn.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("net");
    let me = std::env::current_exe()?;
    let me = me.to_str().context("this program's path is not text")?;
    let does = |part: &str| settings.only.as_deref().is_none_or(|only| only == part);
    if does("one") {
        one_guest(settings, &mut report, me)?;
    }
    if does("start") {
        beginning::measure(settings, &mut report)?;
    }
    if does("many") {
        crowd::measure(settings, &mut report, me)?;
    }
    Ok(report)
}

fn one_guest(settings: &Settings, report: &mut Report, me: &str) -> anyhow::Result<()> {
    let mut failed = 0.0;
    for _ in 0..settings.samples(BEGINNINGS, 1) {
        series(settings, report, me, &mut failed)?;
    }
    judge(report);
    report.hold("looks that failed and were taken again", Some(failed), 0.0, "looks");
    Ok(())
}

/// Some rounds of everything.
fn series(settings: &Settings, report: &mut Report, me: &str, failed: &mut f64) -> anyhow::Result<()> {
    // A wire each, so that the native one has not a single program on it.
    let wires = (0..6).map(|_| Wire::new()).collect::<anyhow::Result<Vec<_>>>()?;
    let [plain, other, free, shared, bridged, machine] = wires.as_slice() else { bail!("six wires are six") };
    let (one_group, other_group) = (ServiceGroup::new("native")?, ServiceGroup::new("beside")?);
    let _servers = (native(plain, me, "0.0.0.0", &one_group)?, native(other, me, "0.0.0.0", &other_group)?);
    let published = ["--publish", "7000:7000", "--publish", "7000:7000/udp"];
    let alone = ["--net", "private", "--link", "macvlan", "--address", "10.9.0.7/24@h0"];
    let _guests = [
        guest(settings, free, me, &["--net", "host"], &SERVER)?,
        guest(settings, shared, me, &["--address", GUEST], &SERVER)?,
        // Programs are on this wire as soon as a guest is; its own takes no part.
        guest(settings, other, me, &["--address", GUEST], &IDLER)?,
        guest(settings, bridged, me, &published, &SERVER)?,
        guest(settings, machine, me, &alone, &SERVER)?,
    ];
    let contenders: [Contender<'_>; 6] = [
        // Side by side, as these two are held against one another.
        (NATIVE, plain, HOST),
        (SHARED, shared, GUEST),
        (BESIDE, other, HOST),
        (UNRESTRICTED, free, HOST),
        (BRIDGED, bridged, HOST),
        (MACVLAN, machine, MACHINE),
    ];
    let rounds = if settings.quick { 2 } else { ROUNDS };
    for round in 0..=rounds {
        let mut turns = contenders;
        turns.rotate_left(round / SELDOM % contenders.len());
        if round % 2 == 1 {
            turns.reverse();
        }
        let seldom = round % SELDOM == 0;
        let looks = Load::ALL.into_iter().flat_map(|load| std::iter::repeat_n(load, load.looks()));
        for (number, load) in looks.enumerate() {
            if number > 0 {
                turns.reverse();
            }
            for (name, wire, ip) in turns.into_iter().filter(|turn| seldom || HELD.contains(&turn.0)) {
                let figure = one(wire, me, ip, load, failed)?;
                if round > 0 {
                    report.add(&format!("{}, {name}", load.name()), load.unit(), figure);
                }
            }
        }
    }
    // Last: for two minutes after a flood each packet of a connection is looked up, since it may be the answer to a
    // cookie.
    for round in 0..FLOODS {
        let [one, other, ..] = contenders;
        let mut turns = [one, other];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (name, wire, ip) in turns {
            let figure = flooded(wire, me, ip, failed)?;
            report.add(&format!("{FLOODED}, {name}"), Load::RoundTrip.unit(), figure);
        }
    }
    Ok(())
}

/// While somebody outside begins connections without end.
fn flooded(wire: &Wire, me: &str, ip: &str, failed: &mut f64) -> anyhow::Result<f64> {
    let _flood = ready(within(&wire.outside, me).args(["net-flood", ip]).stdout(Stdio::piped()).spawn()?)?;
    one(wire, me, ip, Load::RoundTrip, failed)
}

/// A server of the host's, in groups as a service has them.
fn native(wire: &Wire, me: &str, ip: &str, group: &ServiceGroup) -> anyhow::Result<Running> {
    let server = ready(within(&wire.host, me).args(["net-serve", ip]).stdout(Stdio::piped()).spawn()?)?;
    group.take(server.0.id())?;
    Ok(server)
}

/// A Pando of its own on a wire's near machine: its daemon lives there.
fn pando_on(settings: &Settings, wire: &Wire) -> anyhow::Result<OwnPando> {
    let home = File::open(format!("/proc/{}/ns/net", wire.host.0.id()))?;
    setns(home, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
    OwnPando::start(&settings.pando)
}

/// A command in a guest that has said its first line.
fn served(pando: &OwnPando, me: &str, options: &[&str], words: &[&str]) -> anyhow::Result<Running> {
    let volume = format!("{me}:/bench:ro");
    let mut command = pando.command();
    command.arg("run").args(options).args(["--volume", &volume, "--"]).args(words);
    ready(command.stdout(Stdio::piped()).spawn()?)
}

/// A guest, alone on a wire's near machine. It goes before its Pando does.
fn guest(
    settings: &Settings,
    wire: &Wire,
    me: &str,
    options: &[&str],
    words: &[&str],
) -> anyhow::Result<(Running, OwnPando)> {
    let pando = pando_on(settings, wire)?;
    let server = served(&pando, me, options, words)?;
    Ok((server, pando))
}

/// A look that fails is taken again, and counted: one must not cost the samples of an hour, and is no figure either.
fn one(wire: &Wire, me: &str, ip: &str, load: Load, failed: &mut f64) -> anyhow::Result<f64> {
    const TRIES: usize = 3;
    let mut complaint = String::new();
    for _ in 0..TRIES {
        interrupt::check()?;
        let mut command = within(&wire.outside, me);
        let output = command.args(["net-load", ip, load.name(), &TIME.as_millis().to_string()]).output()?;
        if let Ok(figure) = String::from_utf8_lossy(&output.stdout).trim().parse() {
            return Ok(figure);
        }
        complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        eprintln!("{} of {ip}: {}", load.name(), complaint.trim());
        *failed += 1.0;
    }
    bail!("{} of {ip}: {complaint}", load.name())
}

/// Figures are held from above: where more is better, native is divided by shared. What others have, and what a guest
/// costs without any network isolation, is told beside.
fn judge(report: &mut Report) {
    let held = [(Load::Stream, 0.98), (Load::StreamOnOne, 0.98), (Load::Connections, 0.96), (Load::Datagrams, 0.92)];
    for (load, target) in held {
        hold(report, load.name(), HELD, 1.0 / target);
    }
    for (trip, target) in [(Load::RoundTrip.name(), 1.04), (FLOODED, 1.07)] {
        hold(report, trip, [SHARED, NATIVE], target);
    }
    for load in Load::ALL {
        let median = |name: &str| report.median(&format!("{}, {name}", load.name()));
        let beside = [BESIDE, UNRESTRICTED, SHARED, BRIDGED, MACVLAN].map(|name| {
            let ratio = median(name).zip(median(NATIVE)).map(|(of_it, native)| of_it / native);
            format!("{name} {}", ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.3}")))
        });
        report.note(format!("{}, medians, of native: {}", load.name(), beside.join("; ")));
    }
}

/// Holds how many times as much one of two has as the other.
fn hold(report: &mut Report, load: &str, [above, below]: [&str; 2], target: f64) {
    let figure = format!("{load}: {above} against {below}");
    compare(report, figure, &[above, below].map(|name| format!("{load}, {name}")), target);
}

/// Holds the median of what was taken side by side, and tells how sure it is.
fn compare(report: &mut Report, figure: String, [above, below]: &[String; 2], target: f64) {
    let ratios = report.ratios(above, below);
    if !ratios.is_empty() {
        let (low, high) = spread::interval(&ratios);
        report.note(format!("{figure}: 95 % interval {low:.3} to {high:.3} of {} pairs", ratios.len()));
    }
    report.hold(figure, Spread::of(&ratios).map(|spread| spread.median), target, "times");
}
