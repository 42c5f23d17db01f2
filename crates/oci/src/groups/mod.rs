//! The container's control groups: one in each hierarchy of the host.

pub(crate) mod freezer;
pub(crate) mod settings;

use crate::plan::cgroup_mount::{GroupPlace, GroupTree};
use anyhow::{Context, Result, bail};
use pando_guest::policy::devices::{OrderedRule, after_the_last_for_all, ordered_program};
use pando_kernel::bpf::{self, Hook};
use pando_kernel::file::lock::FileLock;
use pando_kernel::mount::{self, MountEntry};
use pando_kernel::{cgroup, file::proc_file, process::pidfd};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// Where version 2's controllers are handed down.
const HANDED_DOWN: &str = "cgroup.subtree_control";

/// How long a group may take to become empty.
const PATIENCE: Duration = Duration::from_secs(10);

/// The groups of a container that is named so. `path` is the configuration's: an absolute one is below each
/// hierarchy's root, another one below this command's own group.
pub(crate) fn find(path: Option<&Path>, id: &str, systemd: bool) -> Result<GroupTree> {
    if systemd {
        bail!("--systemd-cgroup is not supported by this runtime yet; let the engine manage groups by cgroupfs");
    }
    let fallback = PathBuf::from("/").join(id);
    let path = path.filter(|path| !path.as_os_str().is_empty()).unwrap_or(&fallback);
    if path.components().any(|part| part == Component::ParentDir) {
        bail!("cgroupsPath {} climbs; write it without '..'", path.display());
    }
    if !path.components().any(|part| matches!(part, Component::Normal(_))) {
        bail!("cgroupsPath {} names no group of the container's own", path.display());
    }
    let own = proc_file::text("/proc/self/cgroup").context("reading this process's control groups")?;
    Ok(among(&mount::mounts()?, &own, path))
}

fn among(mounts: &[MountEntry], own: &str, path: &Path) -> GroupTree {
    let mut places: Vec<GroupPlace> = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.root == Path::new("/")) {
        let legacy = match mount.kind.as_str() {
            "cgroup" => Some(mount_options(mount)),
            "cgroup2" => None,
            _ => continue,
        };
        if places.iter().any(|place| place.legacy == legacy) {
            continue;
        }
        let group = match path.strip_prefix("/") {
            Ok(below) => mount.at.join(below),
            Err(_) => mount.at.join(own_group(own, legacy.as_deref()).trim_start_matches('/')).join(path),
        };
        let name = mount.at.file_name().unwrap_or_default().to_string_lossy().into_owned();
        places.push(GroupPlace { name, legacy, group, made: None });
    }
    GroupTree { places }
}

/// Options that mount a hierarchy of version 1 once more: its controllers, or its name.
fn mount_options(mount: &MountEntry) -> String {
    let own = |word: &&str| {
        !matches!(*word, "rw" | "ro" | "xattr" | "clone_children" | "noprefix") && !word.starts_with("release_agent")
    };
    let words: Vec<_> = mount.options.split(',').filter(own).collect();
    let named = words.iter().all(|word| word.starts_with("name="));
    if named { format!("none,{}", words.join(",")) } else { words.join(",") }
}

/// This process's group in a hierarchy, as /proc/self/cgroup has it.
fn own_group<'a>(text: &'a str, legacy: Option<&str>) -> &'a str {
    let wanted: BTreeSet<_> = legacy.unwrap_or_default().split(',').filter(|word| *word != "none").collect();
    let found = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        (controllers.split(',').collect::<BTreeSet<_>>() == wanted).then_some(group)
    });
    found.unwrap_or("/")
}

impl GroupPlace {
    /// Whether it is where a controller of version 1 acts.
    fn has(&self, controller: &str) -> bool {
        // The word by which a hierarchy without controllers is mounted is no controller.
        controller != "none"
            && self.legacy.as_deref().is_some_and(|options| options.split(',').any(|word| word == controller))
    }

    /// Makes the group, and those above it. One that is there is made anew if nothing is in it: what was its
    /// container's is not that one's any more. Nobody else makes it as long as the lock is held.
    fn claim(&mut self) -> Result<FileLock> {
        let group = self.group.clone();
        let taken = || {
            format!(
                "cgroup {} is in use: end what is in it, or give the container another cgroupsPath",
                group.display()
            )
        };
        let making = || format!("making cgroup {}", group.display());
        if group.exists() {
            let _lock = FileLock::try_on(fs::File::open(&group).with_context(making)?)?.with_context(taken)?;
            if !members([group.as_path()]).is_empty() {
                bail!(taken());
            }
            cgroup::tree::remove_groups(&group).with_context(taken)?;
        }
        let above: Vec<_> = group.ancestors().skip(1).take_while(|group| !group.exists()).collect();
        for above in above.iter().rev() {
            match fs::create_dir(above) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("making cgroup {}", above.display()));
                }
                _ => {}
            }
            if self.has("cpuset") {
                inherit_processors(above);
            }
        }
        match fs::create_dir(&group) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(taken()),
            made => made.with_context(making)?,
        }
        let directory = fs::File::open(&group).with_context(making)?;
        let number = directory.metadata().with_context(making)?.ino();
        let lock = FileLock::try_on(directory)?.with_context(taken)?;
        // Before it was locked another command may have taken it for an empty one that was left.
        if number_of(&group) != Some(number) {
            bail!(taken());
        }
        self.made = Some(number);
        if self.has("cpuset") {
            inherit_processors(&group);
        }
        if self.legacy.is_none() {
            hand_down(&group);
        }
        Ok(lock)
    }

    /// Whether what is there is what was made for the container.
    fn is_own(&self) -> bool {
        self.made.is_some() && self.made == number_of(&self.group)
    }

    /// Removes a group whose making was cut short before that was noted, unless somebody has it.
    fn remove_unclaimed(&self) {
        let Ok(directory) = fs::File::open(&self.group) else { return };
        if let Ok(Some(_lock)) = FileLock::try_on(directory)
            && members([self.group.as_path()]).is_empty()
        {
            // What is in it by now keeps it.
            let _ = cgroup::tree::remove_groups(&self.group);
        }
    }
}

fn number_of(group: &Path) -> Option<u64> {
    fs::metadata(group).ok().map(|found| found.ino())
}

impl GroupTree {
    /// The group where a controller of version 1 acts.
    pub(crate) fn legacy(&self, controller: &str) -> Option<&Path> {
        self.places.iter().find(|place| place.has(controller)).map(|place| place.group.as_path())
    }

    /// The group of version 2.
    pub(crate) fn unified(&self) -> Option<&Path> {
        self.places.iter().find(|place| place.legacy.is_none()).map(|place| place.group.as_path())
    }

    /// Refuses groups that others are in, or where nothing would run.
    pub(crate) fn unused(&self) -> Result<()> {
        let found = members(self.places.iter().map(|place| place.group.as_path())).len();
        if found > 0 {
            bail!("container's cgroup is not empty: {found} process(es) found");
        }
        if freezer::is_frozen(self) {
            bail!("container's cgroup unexpectedly frozen");
        }
        Ok(())
    }

    /// Makes the groups, and those above them, for this container alone, until it is in them at least: as long as the
    /// locks are held. Those that were made before an error are noted as well.
    pub(crate) fn make(&mut self) -> Result<Vec<FileLock>> {
        self.places.iter_mut().map(GroupPlace::claim).collect()
    }

    /// Takes the groups that are there for those that were made. Older records have nothing to tell them by.
    pub(crate) fn adopt(&mut self) {
        self.places.iter_mut().for_each(|place| place.made = number_of(&place.group));
    }

    /// The groups, with some exchanged for groups below them: `[CONTROLLERS:]PATH`, without controllers for all.
    pub(crate) fn below(&self, paths: &[String]) -> Result<Self> {
        let mut groups = self.clone();
        for text in paths {
            let (controllers, path) = match text.split_once(':') {
                Some((controllers, path)) => (controllers.split(',').collect(), path),
                None => (Vec::new(), text.as_str()),
            };
            if Path::new(path).components().any(|part| part == Component::ParentDir) {
                bail!("bad sub cgroup path: {path}");
            }
            if let Some(unknown) = controllers.iter().find(|name| !groups.places.iter().any(|place| place.has(name))) {
                bail!("unknown controller {unknown} in {text}");
            }
            let meant = |place: &GroupPlace| controllers.is_empty() || controllers.iter().any(|name| place.has(name));
            for place in groups.places.iter_mut().filter(|place| meant(place)) {
                place.group.push(path.trim_start_matches('/'));
            }
        }
        Ok(groups)
    }

    /// The files by which a process walks into the groups.
    pub(crate) fn entrances(&self) -> impl Iterator<Item = PathBuf> {
        let file = |place: &GroupPlace| if place.legacy.is_some() { "tasks" } else { "cgroup.procs" };
        self.places.iter().map(move |place| place.group.join(file(place)))
    }

    /// Holds the container to its devices: by a program in version 2, by the controller where there is version 1
    /// alone.
    pub(crate) fn hold_to(&self, rules: &[OrderedRule]) -> Result<()> {
        if let Some(group) = self.unified() {
            let program = bpf::load_device_program(&ordered_program(rules), "pando_devices")
                .context("loading the list of devices")?;
            let directory = fs::File::open(group).with_context(|| format!("opening {}", group.display()))?;
            return bpf::attach_to_cgroup(program.as_fd(), directory.as_fd(), Hook::CgroupDevice)
                .with_context(|| format!("allowing devices to {}", group.display()));
        }
        let group = self
            .legacy("devices")
            .context("there are neither control groups of version 2 nor the devices controller")?;
        let (allowed, rules) = after_the_last_for_all(rules);
        let say = |allow: bool, text: &str| {
            let path = group.join(if allow { "devices.allow" } else { "devices.deny" });
            fs::write(&path, text).with_context(|| format!("writing '{text}' to {}", path.display()))
        };
        say(allowed, "a")?;
        rules.iter().try_for_each(|rule| say(rule.allows(), &rule.to_string()))
    }

    /// The processes in the groups and in those below.
    pub(crate) fn processes(&self) -> Vec<i32> {
        // Wherever somebody has moved a process, it is still in the others.
        members(self.places.iter().filter(|place| place.is_own()).map(|place| place.group.as_path()))
    }

    /// Sends a signal to all processes in the groups.
    pub(crate) fn signal(&self, number: i32) {
        let held = self.processes().into_iter().filter_map(|pid| Some((pid, pidfd::open(pid).ok()?)));
        let held: Vec<_> = held.collect();
        // A number may have become another's before it was opened. What is listed again is what was opened, or that
        // has ended.
        let still = self.processes();
        for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = pidfd::send_signal(process, number);
        }
    }

    /// Kills what is in the groups, and waits until nothing is.
    pub(crate) fn kill(&self) {
        const KILL: i32 = 9;
        let begun = Instant::now();
        for place in self.places.iter().filter(|place| place.legacy.is_none() && place.is_own()) {
            let _ = fs::write(place.group.join("cgroup.kill"), "1");
        }
        while !self.processes().is_empty() && begun.elapsed() < PATIENCE {
            self.signal(KILL);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the groups, with those below. What others have made at their paths stays.
    pub(crate) fn remove(&self) -> Result<()> {
        let begun = Instant::now();
        for place in &self.places {
            if place.made.is_none() {
                place.remove_unclaimed();
            }
            if !place.is_own() {
                continue;
            }
            loop {
                match cgroup::tree::remove_groups(&place.group) {
                    // A process that has ended leaves a moment later.
                    Err(error) if error.raw_os_error() == Some(EBUSY) && begun.elapsed() < PATIENCE => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    removed => {
                        removed.with_context(|| format!("removing cgroup {}", place.group.display()))?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

const EBUSY: i32 = 16;

/// The processes in groups and in those below.
fn members<'a>(groups: impl IntoIterator<Item = &'a Path>) -> Vec<i32> {
    let in_group = |group: &'a Path| cgroup::tree::members(group, "cgroup.procs", cgroup::tree::Bounds::ALL).ids;
    let pids: BTreeSet<i32> = groups.into_iter().flat_map(in_group).collect();
    pids.into_iter().collect()
}

/// In version 1 a group without processors and memory nodes takes no process.
fn inherit_processors(group: &Path) {
    let Some(above) = group.parent() else { return };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let all = fs::read_to_string(above.join(file)).unwrap_or_default();
        // A refusal shows when a process is put there.
        let _ = fs::write(group.join(file), all.trim());
    }
}

/// Has the groups above one of version 2 offer their controllers to it. One that refuses is missing there, which
/// whoever asks for a limit is told.
fn hand_down(group: &Path) {
    let mut above: Vec<_> = group.ancestors().skip(1).take_while(|above| above.join(HANDED_DOWN).exists()).collect();
    above.reverse();
    for above in above {
        let offered = fs::read_to_string(above.join("cgroup.controllers")).unwrap_or_default();
        let handed = fs::read_to_string(above.join(HANDED_DOWN)).unwrap_or_default();
        for controller in offered.split_ascii_whitespace() {
            if !handed.split_ascii_whitespace().any(|known| known == controller) {
                let _ = fs::write(above.join(HANDED_DOWN), format!("+{controller}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(kind: &str, at: &str, options: &str) -> MountEntry {
        MountEntry {
            at: at.into(),
            root: "/".into(),
            kind: kind.into(),
            options: options.into(),
            ..MountEntry::default()
        }
    }

    #[test]
    fn a_hybrid_host_has_a_group_in_each_hierarchy() {
        let mounts = [
            mounted("cgroup", "/c/cpu,cpuacct", "rw,cpu,cpuacct"),
            mounted("cgroup", "/c/systemd", "rw,xattr,name=systemd"),
            mounted("cgroup2", "/c/unified", "rw"),
        ];
        let found = among(&mounts, "", Path::new("/a/b"));
        assert_eq!(found.legacy("cpuacct"), Some(Path::new("/c/cpu,cpuacct/a/b")));
        assert_eq!(found.unified(), Some(Path::new("/c/unified/a/b")));
        assert_eq!(found.places[1].legacy.as_deref(), Some("none,name=systemd"));
        assert_eq!(found.legacy("memory"), None);
    }

    #[test]
    fn a_relative_path_is_below_this_processs_own_group() {
        let own = "3:cpu,cpuacct:/x\n2:name=systemd:/y\n0::/z\n";
        let mounts = [mounted("cgroup", "/c/cpu", "rw,cpuacct,cpu"), mounted("cgroup2", "/c/unified", "rw")];
        let found = among(&mounts, own, Path::new("a"));
        assert_eq!(found.legacy("cpu"), Some(Path::new("/c/cpu/x/a")));
        assert_eq!(found.unified(), Some(Path::new("/c/unified/z/a")));
    }

    #[test]
    fn a_further_process_may_be_in_groups_below() {
        let mounts = [mounted("cgroup", "/c/cpu", "rw,cpu"), mounted("cgroup2", "/c/unified", "rw")];
        let found = among(&mounts, "", Path::new("/a"));
        let below = |words: &[&str]| found.below(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(below(&["b"]).unwrap().unified(), Some(Path::new("/c/unified/a/b")));
        let one = below(&["cpu:/b"]).unwrap();
        assert_eq!(
            (one.legacy("cpu"), one.unified()),
            (Some(Path::new("/c/cpu/a/b")), Some(Path::new("/c/unified/a")))
        );
        assert!(below(&["../b"]).is_err() && below(&["none:b"]).is_err());
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        for wrong in ["/a/../../b", "/", "//", ".", "./"] {
            assert!(find(Some(Path::new(wrong)), "x", false).is_err(), "{wrong}");
        }
    }
}
