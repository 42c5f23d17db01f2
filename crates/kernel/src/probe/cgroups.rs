//! Control groups, in a group that is made for it.

use super::child::Child;
use super::{Area, Finding, Verdict};
use crate::mount::{MountEntry, mounts};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const AREA: Area = Area("control groups");

/// A controller: its name, and a file with what may be written there without limiting anything, in version 2 and in
/// version 1.
type Controller = (&'static str, Limit, &'static str, Limit);
type Limit = (&'static str, &'static str);

const CPU: Controller = ("cpu", ("cpu.max", "max"), "cpu", ("cpu.cfs_quota_us", "-1"));
const MEMORY: Controller = ("memory", ("memory.max", "max"), "memory", ("memory.limit_in_bytes", "-1"));
const PIDS: Controller = ("pids", ("pids.max", "max"), "pids", ("pids.max", "max"));
const IO: Controller = ("io", ("io.max", ""), "blkio", ("blkio.throttle.read_bps_device", ""));
const CPUSET: Controller = ("cpuset", ("cpuset.cpus", "\n"), "cpuset", ("cpuset.cpus", "\n"));

/// A group that is removed when it is dropped.
struct Group(PathBuf);

impl Group {
    fn below(root: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("pando-doctor-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn child(&self) -> io::Result<Child> {
        Child::new(0, Some(std::fs::File::open(&self.0)?.as_fd()))
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        // Not created: a file that is missing is a controller that is.
        io::Write::write_all(&mut std::fs::File::options().write(true).open(self.0.join(file))?, text.as_bytes())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just killed leaves its group a moment after it was reaped.
        let until = Instant::now() + Duration::from_secs(1);
        while std::fs::remove_dir(&self.0).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            if Instant::now() > until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn find() -> Vec<Finding> {
    let all = mounts().unwrap_or_default();
    let unified = all.iter().find(|mount| mount.kind == "cgroup2" && mount.root == Path::new("/"));
    let unified = unified.map(|mount| mount.at.as_path());
    let group = |trial: fn(&Group) -> io::Result<()>| match unified {
        None => Verdict::Refused("version 2 is not mounted".into()),
        Some(root) => missing_file(Group::below(root).and_then(|group| trial(&group))),
    };
    let born = |group: &Group| group.child().map(drop);
    // Where there is no version 2, guests are born in the groups of their shim.
    let birth = AREA.wanted("birth in a group", "5.7", group(born), "guests cannot start in the group made for them");
    let limit = |controller| limit(unified, &all, controller);
    vec![
        AREA.wanted("version 2", "4.5", group(|_| Ok(())), "guests' own service managers and network programs fail"),
        AREA.wanted("one hierarchy", "4.5", one(&all), "starting is slower, and guests cannot divide their limits"),
        AREA.wanted("cpu controller", "2.6.24", limit(CPU), "no limits of processor time"),
        AREA.wanted(
            "processor time in small slices",
            "3.2",
            slices(),
            "a thread of a guest with a limit is now and then kept waiting a period (20 ms) more",
        ),
        AREA.wanted("memory controller", "2.6.25", limit(MEMORY), "no limits of memory"),
        AREA.wanted("pids controller", "4.3", limit(PIDS), "no limits of how many processes"),
        AREA.wanted("io controller", "2.6.37", limit(IO), "no limits of disk bandwidth"),
        AREA.wanted("cpuset controller", "2.6.24", limit(CPUSET), "guests cannot be kept to some processors"),
        Finding { needed: unified.is_some(), ..birth },
        AREA.wanted("cgroup.kill", "5.14", group(kill), "guests are killed process by process"),
        AREA.wanted("cgroup.freeze", "5.2", group(freeze), "guests cannot be halted at once"),
        AREA.wanted("pressure", "4.20", pressure(), "who waits for processor, memory or disk is not seen"),
    ]
}

/// How much of a bounded group's time one processor takes at once. With the usual 5 ms one of two takes all that both
/// are granted in 20 ms when the other comes a little late, which then waits for the next period.
fn slices() -> Verdict {
    const AT: &str = "/proc/sys/kernel/sched_cfs_bandwidth_slice_us";
    const SMALL: u32 = 1000;
    match std::fs::read_to_string(AT).map(|text| text.trim().parse::<u32>()) {
        Ok(Ok(slice)) if slice <= SMALL => Verdict::Granted,
        Ok(Ok(slice)) => Verdict::Partial(format!(
            "{} ms at once (sysctl kernel.sched_cfs_bandwidth_slice_us={SMALL} makes it 1)",
            f64::from(slice) / 1000.0
        )),
        Ok(Err(_)) => Verdict::Refused(format!("{AT} says no number")),
        Err(error) => Verdict::of(&error),
    }
}

/// A file that a group does not have is a feature that the kernel does not.
fn missing_file(result: io::Result<()>) -> Verdict {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Verdict::Missing,
        result => Verdict::from(result),
    }
}

/// Whether version 2 is all there is.
fn one(all: &[MountEntry]) -> Verdict {
    const KNOWN: [&str; 9] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "devices", "freezer", "hugetlb"];
    let options = all.iter().filter(|mount| mount.kind == "cgroup").flat_map(|mount| mount.options.split(','));
    let mut legacy: Vec<_> = options.filter(|option| KNOWN.contains(option)).collect();
    legacy.dedup();
    if legacy.is_empty() { Verdict::Granted } else { Verdict::Partial(format!("version 1 has {}", legacy.join(", "))) }
}

/// Sets a limit that limits nothing, in whichever version has the controller.
fn limit(unified: Option<&Path>, all: &[MountEntry], controller: Controller) -> Verdict {
    let (name, limit, legacy_name, legacy_limit) = controller;
    let has = |mount: &&MountEntry| mount.kind == "cgroup" && mount.options.split(',').any(|one| one == legacy_name);
    if let Some(mount) = all.iter().find(has) {
        return set(&mount.at, legacy_limit);
    }
    let Some(root) = unified else { return Verdict::Missing };
    let listed = |file: &str| {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|one| one == name)
    };
    match (listed("cgroup.controllers"), listed("cgroup.subtree_control")) {
        (false, _) => Verdict::Missing,
        (true, true) => set(root, limit),
        // Handing it down would change the host.
        (true, false) => Verdict::Partial("there, but not in the cgroup.subtree_control of the root".into()),
    }
}

fn set(root: &Path, (file, text): Limit) -> Verdict {
    missing_file(Group::below(root).and_then(|group| {
        if text.is_empty() { std::fs::metadata(group.0.join(file)).map(drop) } else { group.write(file, text) }
    }))
}

fn kill(group: &Group) -> io::Result<()> {
    let mut child = group.child()?;
    group.write("cgroup.kill", "1")?;
    if child.ends() { Ok(()) } else { Err(io::Error::other("what was killed did not end")) }
}

fn freeze(group: &Group) -> io::Result<()> {
    let _child = group.child()?;
    group.write("cgroup.freeze", "1")?;
    let until = Instant::now() + Duration::from_secs(1);
    let frozen = || Ok::<_, io::Error>(std::fs::read_to_string(group.0.join("cgroup.events"))?.contains("frozen 1"));
    while !frozen()? {
        if Instant::now() > until {
            return Err(io::Error::other("what was frozen went on"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    group.write("cgroup.freeze", "0")
}

/// Without it, the files are missing; switched off, they cannot be read.
fn pressure() -> Verdict {
    match std::fs::read_to_string("/proc/pressure/memory") {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Verdict::Refused("switched off (boot argument psi=1)".into())
        }
        result => missing_file(result.map(drop)),
    }
}
