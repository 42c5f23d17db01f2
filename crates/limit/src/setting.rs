//! The plan: which file of which controller says what.
//!
//! Plain data, made without looking at the machine. A file that is not in the plan says what the kernel says of itself,
//! which is [`Setting::usual`]; a change of limits is the new plan, and the usual words for what only the old one had.

use crate::block_device::Device;
use crate::groups::{Controller, Groups};
use crate::limits::{Cpu, Io, Limits, Memory};
use crate::quantity;
use crate::quota;
use crate::refusal::Refusal;
use crate::socket_bound;

/// What the inner group of version 2 says of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// The inner group says nothing of it.
    Silent,
    /// The same, where it has the file: that group is all of the hierarchy that programs inside can read, and the heap
    /// of a Java program or the threads of a Go program go by what stands there.
    Shown,
    /// The same, or it does not hold: protection is given on the whole way down.
    Held,
}

/// A file and what is written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The limit that it comes from.
    pub key: &'static str,
    /// The controller whose file it is.
    pub controller: Controller,
    /// The file, or several of which a kernel has one or the other.
    pub files: &'static [&'static str],
    /// What it is to say.
    pub value: String,
    /// What it says when nothing is limited.
    pub usual: String,
    /// What the inner group of version 2 says of it.
    pub inside: Inside,
    /// Whether a kernel without the file is borne.
    pub optional: bool,
}

impl Setting {
    pub(crate) fn new(
        key: &'static str,
        controller: Controller,
        files: &'static [&'static str],
        value: impl ToString,
        usual: impl ToString,
    ) -> Self {
        let (value, usual) = (value.to_string(), usual.to_string());
        Self { key, controller, files, value, usual, inside: Inside::Silent, optional: false }
    }

    /// The same, shown to programs inside.
    fn shown(self) -> Self {
        Self { inside: Inside::Shown, ..self }
    }

    /// Whether a limit is held by it: version 2 has one line for all bounds of a device's traffic.
    pub fn holds(&self, key: &str) -> bool {
        const TOGETHER: [&str; 4] = ["io.read_rate", "io.write_rate", "io.read_ops", "io.write_ops"];
        self.key == key || self.files == ["io.max"] && TOGETHER.contains(&key)
    }

    /// The setting that takes this one back.
    #[must_use]
    pub fn undone(&self) -> Self {
        Self { value: self.usual.clone(), ..self.clone() }
    }
}

/// What the plan has to know besides the limits.
#[derive(Clone, Debug)]
pub struct Site<'a> {
    /// Which controllers there are, in which version.
    pub groups: &'a Groups,
    /// The block device that the files lie on; why it is not known otherwise.
    pub device: Result<Device, String>,
    /// Processes in the groups that are not to be counted.
    pub uncounted: u64,
    /// How many processes there may be where no number is given: see [`crate::process_bound`].
    pub processes: u64,
    /// What the machine grants to all sockets, in bytes, where version 1 counts them apart.
    pub sockets: Option<u64>,
}

/// The settings of limits, in the order in which they are to be made. Weights of processor time are not among them:
/// those depend on which others are busy (see [`crate::governor`]).
pub fn plan(limits: &Limits, site: &Site<'_>, processors: u32) -> Result<Vec<Setting>, Refusal> {
    let mut settings = Vec::new();
    cpu(&limits.cpu, site, processors, &mut settings)?;
    memory(&limits.memory, site, &mut settings)?;
    if let Some(pids) = limits.pids {
        needs(site, Controller::Pids, "pids", &pids)?;
        let files = &["pids.max"];
        let usual = site.processes + site.uncounted;
        settings.push(Setting::new("pids", Controller::Pids, files, pids + site.uncounted, usual).shown());
    }
    io(&limits.io, site, &mut settings)?;
    Ok(settings)
}

/// What leads from one plan to another: first what is no more, then what is new or different.
pub fn change(old: &[Setting], new: &[Setting]) -> Vec<Setting> {
    let gone = old.iter().filter(|setting| !new.iter().any(|other| other.files == setting.files));
    gone.map(Setting::undone).chain(new.iter().filter(|setting| !old.contains(setting)).cloned()).collect()
}

fn needs(site: &Site<'_>, controller: Controller, key: &str, value: &dyn ToString) -> Result<(), Refusal> {
    if site.groups.seat(controller).is_some() {
        return Ok(());
    }
    let why = format!("this host hands down no {} controller; 'pando doctor' shows what there is", controller.name());
    Err(Refusal::new(key, value.to_string(), why))
}

fn cpu(cpu: &Cpu, site: &Site<'_>, processors: u32, settings: &mut Vec<Setting>) -> Result<(), Refusal> {
    if let Some(reserve) = cpu.reserve {
        needs(site, Controller::Cpu, "cpu.reserve", &format!("{}%", reserve * 100.0))?;
    }
    if let Some(share) = cpu.share {
        needs(site, Controller::Cpu, "cpu.share", &share)?;
    }
    if let Some(bound) = cpu.bound(processors) {
        needs(site, Controller::Cpu, "cpu.limit", &bound)?;
        let key = if cpu.limit == Some(bound) { "cpu.limit" } else { "cpu.reserve" };
        let settings_of_bound = quota::settings(key, bound, site.groups.is_legacy(Controller::Cpu));
        settings.extend(settings_of_bound.into_iter().map(Setting::shown));
    }
    if let Some(cpus) = &cpu.cpus {
        let list = quantity::show_list(cpus);
        needs(site, Controller::Cpuset, "cpu.cpus", &list)?;
        // A group with processes in it can never be left without processors again (ENOSPC): what is usual are those of
        // the group above.
        settings.push(Setting::new("cpu.cpus", Controller::Cpuset, &["cpuset.cpus"], list, INHERITED).shown());
    }
    Ok(())
}

/// Stands for what the group above has.
pub(crate) const INHERITED: &str = "(as the group above)";

fn memory(memory: &Memory, site: &Site<'_>, settings: &mut Vec<Setting>) -> Result<(), Refusal> {
    let legacy = site.groups.is_legacy(Controller::Memory);
    for (key, value) in
        [("memory.limit", memory.limit), ("memory.swap", memory.swap), ("memory.reserve", memory.reserve)]
    {
        if let Some(bytes) = value {
            needs(site, Controller::Memory, key, &quantity::show_size(bytes))?;
        }
    }
    let (limit, usual) = if legacy { (&["memory.limit_in_bytes"], "-1") } else { (&["memory.max"], "max") };
    let limit = memory.limit.map(|bytes| Setting::new("memory.limit", Controller::Memory, limit, bytes, usual).shown());
    if let (Some(swap), None, true) = (memory.swap, memory.limit, legacy) {
        let why = "this host's memory controller counts memory and swap together; set memory.limit as well";
        return Err(Refusal::new("memory.swap", quantity::show_size(swap), why));
    }
    settings.extend(limit);
    settings.extend(memory.swap_bound().map(|swap| {
        let setting = match (legacy, memory.limit) {
            (true, Some(most)) => {
                let files = &["memory.memsw.limit_in_bytes"];
                Setting::new("memory.swap", Controller::Memory, files, most.saturating_add(swap), -1)
            }
            _ => Setting::new("memory.swap", Controller::Memory, &["memory.swap.max"], swap, "max").shown(),
        };
        // A kernel that does not account for swap is borne where nothing was asked for.
        Setting { optional: memory.swap.is_none(), ..setting }
    }));
    settings.extend(socket_bound::setting(memory, site.sockets, site.groups));
    if let Some(reserve) = memory.reserve {
        let (files, usual): (&[&str], _) =
            if legacy { (&["memory.soft_limit_in_bytes"], "-1") } else { (&["memory.min"], "0") };
        let setting = Setting::new("memory.reserve", Controller::Memory, files, reserve, usual);
        settings.push(Setting { inside: Inside::Held, ..setting });
    }
    Ok(())
}

fn io(io: &Io, site: &Site<'_>, settings: &mut Vec<Setting>) -> Result<(), Refusal> {
    let legacy = site.groups.is_legacy(Controller::Io);
    if let Some(weight) = io.weight {
        needs(site, Controller::Io, "io.weight", &weight)?;
        let files: &[&str] = if legacy { &["blkio.bfq.weight"] } else { &["io.bfq.weight", "io.weight"] };
        settings.push(Setting::new("io.weight", Controller::Io, files, weight, 100));
    }
    if !io.is_throttled() {
        return Ok(());
    }
    let bounds = [
        ("io.read_rate", &["blkio.throttle.read_bps_device"], "rbps", io.read_rate),
        ("io.write_rate", &["blkio.throttle.write_bps_device"], "wbps", io.write_rate),
        ("io.read_ops", &["blkio.throttle.read_iops_device"], "riops", io.read_ops),
        ("io.write_ops", &["blkio.throttle.write_iops_device"], "wiops", io.write_ops),
    ];
    let first = bounds.iter().find_map(|(key, _, _, value)| value.map(|value| (*key, value)));
    let (key, value) = first.unwrap_or(("io.read_rate", 0));
    needs(site, Controller::Io, key, &value)?;
    let device = site.device.as_ref().map_err(|why| Refusal::new(key, value.to_string(), why.clone()))?;
    if legacy {
        for (key, files, _, value) in bounds {
            if let Some(value) = value {
                let usual = format!("{device} 0");
                settings.push(Setting::new(key, Controller::Io, files, format!("{device} {value}"), usual));
            }
        }
        return Ok(());
    }
    let words = |shown: &dyn Fn(Option<u64>) -> String| {
        let words = bounds.iter().map(|(_, _, word, value)| format!(" {word}={}", shown(*value)));
        format!("{device}{}", words.collect::<String>())
    };
    let value = words(&|value| value.map_or("max".to_owned(), |value| value.to_string()));
    settings.push(Setting::new(key, Controller::Io, &["io.max"], value, words(&|_| "max".to_owned())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::all;

    fn planned(unified: bool, pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, Refusal> {
        let groups = all(unified);
        let site = Site {
            groups: &groups,
            device: Ok(Device { major: 8, minor: 0 }),
            uncounted: 1,
            processes: 1000,
            sockets: None,
        };
        let settings = plan(&Limits::read(pairs.iter().copied()).unwrap(), &site, 2)?;
        Ok(settings.into_iter().map(|setting| (setting.files[0].to_owned(), setting.value)).collect())
    }

    fn lines(unified: bool, pairs: &[(&str, &str)]) -> Vec<String> {
        planned(unified, pairs).unwrap().into_iter().map(|(file, value)| format!("{file}={value}")).collect()
    }

    #[test]
    fn one_line_holds_every_bound_of_traffic_in_version_2() {
        let limits = Limits::read([("io.read_rate", "1M"), ("io.write_ops", "5")]).unwrap();
        for (unified, count) in [(true, 1), (false, 2)] {
            let groups = all(unified);
            let site = Site {
                groups: &groups,
                device: Ok(Device { major: 8, minor: 0 }),
                uncounted: 1,
                processes: 1000,
                sockets: None,
            };
            let settings = plan(&limits, &site, 2).unwrap();
            assert_eq!(settings.len(), count);
            for key in ["io.read_rate", "io.write_ops"] {
                assert_eq!(settings.iter().filter(|setting| setting.holds(key)).count(), 1, "{key}");
            }
            assert!(!settings.iter().any(|setting| setting.holds("io.weight")));
        }
    }

    #[test]
    fn nothing_asked_nothing_written() {
        assert!(lines(true, &[]).is_empty() && lines(false, &[("memory.locked", "1M")]).is_empty());
    }

    #[test]
    fn both_versions_say_the_same_in_their_own_words() {
        let pairs = [
            ("cpu.limit", "1.5"),
            ("cpu.cpus", "0"),
            ("memory.limit", "512M"),
            ("memory.swap", "0"),
            ("memory.reserve", "64M"),
            ("pids", "100"),
            ("io.weight", "300"),
            ("io.write_rate", "1M"),
        ];
        assert_eq!(
            lines(false, &pairs),
            [
                "cpu.cfs_period_us=20000",
                "cpu.cfs_quota_us=30000",
                "cpuset.cpus=0",
                "memory.limit_in_bytes=536870912",
                "memory.memsw.limit_in_bytes=536870912",
                "memory.soft_limit_in_bytes=67108864",
                "pids.max=101",
                "blkio.bfq.weight=300",
                "blkio.throttle.write_bps_device=8:0 1048576",
            ]
        );
        assert_eq!(
            lines(true, &pairs),
            [
                "cpu.max=30000 20000",
                "cpuset.cpus=0",
                "memory.max=536870912",
                "memory.swap.max=0",
                "memory.min=67108864",
                "pids.max=101",
                "io.bfq.weight=300",
                "io.max=8:0 rbps=max wbps=1048576 riops=max wiops=max",
            ]
        );
    }

    #[test]
    fn a_bare_reservation_is_bounded_and_a_shared_one_is_not() {
        assert_eq!(lines(true, &[("cpu.reserve", "25%")]), ["cpu.max=10000 20000"]);
        assert!(lines(true, &[("cpu.reserve", "25%"), ("cpu.share", "100")]).is_empty());
        // The kernel takes no quota below a millisecond.
        assert_eq!(lines(true, &[("cpu.limit", "0.01")]), ["cpu.max=1000 100000"]);
    }

    #[test]
    fn bounded_memory_bounds_swap_unless_something_else_is_said() {
        let limit = ("memory.limit", "64M");
        assert_eq!(lines(true, &[limit]), ["memory.max=67108864", "memory.swap.max=67108864"]);
        assert_eq!(lines(false, &[limit]), ["memory.limit_in_bytes=67108864", "memory.memsw.limit_in_bytes=134217728"]);
        assert_eq!(lines(true, &[limit, ("memory.swap", "1G")])[1], "memory.swap.max=1073741824");
    }

    #[test]
    fn what_a_version_cannot_do_alone_is_refused() {
        let refused = planned(false, &[("memory.swap", "1G")]).unwrap_err();
        assert!(refused.to_string().contains("set memory.limit as well"), "{refused}");
        assert_eq!(lines(true, &[("memory.swap", "1G")]), ["memory.swap.max=1073741824"]);
        let nothing = Groups::default();
        let site = Site {
            groups: &nothing,
            device: Err("it lies on no block device".into()),
            uncounted: 0,
            processes: 0,
            sockets: None,
        };
        let refused = plan(&Limits::read([("pids", "5")]).unwrap(), &site, 2).unwrap_err();
        assert!(refused.to_string().contains("no pids controller"), "{refused}");
    }

    #[test]
    fn a_change_takes_back_what_is_no_more() {
        let groups = all(true);
        let site = Site { groups: &groups, device: Err(String::new()), uncounted: 0, processes: 1001, sockets: None };
        let settings = |pairs: &[(&str, &str)]| plan(&Limits::read(pairs.iter().copied()).unwrap(), &site, 2).unwrap();
        let old = settings(&[("pids", "5"), ("memory.limit", "1G")]);
        let new = settings(&[("memory.limit", "2G"), ("cpu.limit", "1")]);
        let changed: Vec<_> =
            change(&old, &new).into_iter().map(|setting| format!("{}={}", setting.files[0], setting.value)).collect();
        assert_eq!(
            changed,
            ["pids.max=1001", "cpu.max=20000 20000", "memory.max=2147483648", "memory.swap.max=2147483648"]
        );
        assert!(change(&new, &new).is_empty());
    }
}
