//! `./x bench boot`: a Debian system under an init of its own, booted, and rebooted from inside, as a guest and in
//! plain namespaces of the host.
//!
//! Most of either time is the system's own: its scripts, and the second that PostgreSQL's wrapper sleeps. What a guest
//! adds is told by the ratios.

mod console;
mod contender;
mod native;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::{debian_root, interrupt};
use contender::{Guest, System};
use native::Native;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Servers, and their init. rsyslog brings no script for this init any more: those of such packages are in one of their
/// own.
const PACKAGES: [&str; 6] = ["cron", "nginx", "openssh-server", "orphan-sysvinit-scripts", "postgresql", "rsyslog"];
const INIT: &str = "sysvinit-core";

/// Whether every server of a system answers, over loopback, with nothing but bash for a client. Looked at from inside
/// for a while only: a system that is just beginning may be entered before its root is its own.
const SERVED: &str = r#"
asked() { timeout 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/$1 && printf '$2' >&3 && head -n 1 <&3" 2>/dev/null | grep -q "$3"; }
all() {
    asked 80 'GET / HTTP/1.0\r\n\r\n' '200 OK' && asked 22 '' '^SSH-2.0' &&
        su postgres -c "psql -Atc 'select 6 * 7'" 2>/dev/null | grep -qx 42
}
for look in 1 2 3 4 5 6 7 8; do
    all && exit
    sleep 0.05
done
exit 1
"#;

/// Whether a system has done all that there is to do for its boot: some of it goes on while it serves.
const SETTLED: &str = "! ps ax | grep -q '[/]etc/init.d/rc '";

/// How long a system may take from one state to the next.
const PATIENCE: Duration = Duration::from_secs(120);

/// Boots and reboots both, in turn.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("boot");
    let pando = OwnPando::start(&settings.pando)?;
    let tree = tree(settings, &pando)?;
    let mut systems: [Box<dyn System>; 2] =
        [Box::new(Guest::new(&pando, &tree)?), Box::new(Native::new(&tree, &pando.directory().join("native"))?)];
    // The first round makes the database's files and the host keys what they are from then on.
    for round in 0..=settings.samples(5, 1) {
        for number in 0..systems.len() {
            let system = &mut systems[(number + round) % 2];
            let since = Instant::now();
            system.boot()?;
            served(&**system)?;
            let booted = since.elapsed();
            until(system.name(), || Ok(system.enter(SETTLED)?.status()?.success()))?;
            let since = Instant::now();
            system.reboot()?;
            served(&**system)?;
            let rebooted = since.elapsed();
            system.stop()?;
            if round > 0 {
                report.add(&format!("boot, {}", system.name()), "s", booted.as_secs_f64());
                report.add(&format!("reboot, {}", system.name()), "s", rebooted.as_secs_f64());
            }
        }
    }
    judge(&mut report);
    Ok(report)
}

/// The system's tree: one that was given, or one that is installed now.
fn tree(settings: &Settings, pando: &OwnPando) -> anyhow::Result<PathBuf> {
    if let Some(tree) = settings.trees.first() {
        return Ok(tree.clone());
    }
    let tree = pando.directory().join("debian");
    eprintln!("installing a Debian system with its servers: a minute or two");
    debian_root::install(&tree, &[&PACKAGES[..], &[INIT]].concat())?;
    Ok(tree)
}

/// Waits until everything is served. A system that is just ending, or just beginning, cannot be entered for a moment.
fn served(system: &dyn System) -> anyhow::Result<()> {
    until(system.name(), || Ok(system.enter(SERVED)?.status()?.success()))
}

/// Asks until it is so.
fn until(name: &str, mut so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    const STEP: Duration = Duration::from_millis(10);
    let end = Instant::now() + PATIENCE;
    while !so()? {
        anyhow::ensure!(Instant::now() < end, "{name}: nothing came of it in {} s", PATIENCE.as_secs());
        interrupt::pause(STEP)?;
    }
    Ok(())
}

/// A command that says nothing.
fn silent(mut command: Command) -> Command {
    use std::process::Stdio;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn judge(report: &mut Report) {
    for (what, most) in [("boot", 3.0), ("reboot", 4.0)] {
        let [guest, native] = [contender::NAME, native::NAME].map(|name| report.median(&format!("{what}, {name}")));
        report.hold(format!("{what} of a guest until it serves"), guest, most, "s");
        let ratio = guest.zip(native).map(|(guest, native)| guest / native);
        report.hold(format!("{what}: a guest against native"), ratio, 1.05, "times");
    }
    report.note("native is a process in new namespaces of process ids, mounts, hosts, IPC, network and groups, with a root changed by pivot_root; it has a console too");
}
