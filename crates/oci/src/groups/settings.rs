//! What a configuration's resources mean here: files of the groups and what is written to them, as plain data.

use crate::plan::cgroup_mount::GroupTree;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxResources, LinuxThrottleDevice};
use std::fs;
use std::path::{Path, PathBuf};

/// A file of a group, and what it is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The file.
    pub(crate) file: PathBuf,
    /// What is written.
    pub(crate) value: String,
    /// Whether a kernel without the file is borne.
    pub(crate) optional: bool,
}

/// Writes the settings, in order.
pub(crate) fn apply<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Result<()> {
    for Setting { file, value, optional } in settings {
        let written = fs::File::options()
            .write(true)
            .open(file)
            .and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()));
        match written {
            Err(error) if *optional && error.kind() == std::io::ErrorKind::NotFound => {}
            written => written.with_context(|| format!("writing '{value}' to {}", file.display()))?,
        }
    }
    Ok(())
}

impl Setting {
    /// Whether it says how many processes there may be.
    pub(crate) fn counts_processes(&self) -> bool {
        self.file.ends_with("pids.max")
    }
}

/// Where a controller acts.
struct Seat<'a> {
    group: &'a Path,
    legacy: bool,
}

impl Seat<'_> {
    fn set(&self, settings: &mut Vec<Setting>, file: &str, value: impl ToString) {
        settings.push(Setting { file: self.group.join(file), value: value.to_string(), optional: false });
    }

    fn offer(&self, settings: &mut Vec<Setting>, file: &str, value: impl ToString) {
        settings.push(Setting { file: self.group.join(file), value: value.to_string(), optional: true });
    }
}

/// Where a controller acts: `name` is its name in version 2, `old` in version 1.
fn seat<'a>(groups: &'a GroupTree, name: &str, old: &str) -> Result<Seat<'a>> {
    if let Some(group) = groups.legacy(old) {
        return Ok(Seat { group, legacy: true });
    }
    let group = groups.unified().with_context(|| format!("this host has no {name} controller of control groups"))?;
    Ok(Seat { group, legacy: false })
}

/// The settings of a configuration's resources.
pub(crate) fn of(resources: &LinuxResources, groups: &GroupTree) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    if let Some(wanted) = resources.memory() {
        memory(wanted, groups, &mut settings)?;
    }
    if let Some(wanted) = resources.cpu() {
        cpu(wanted, groups, &mut settings)?;
    }
    if let Some(pids) = resources.pids() {
        // The process itself is one.
        let value = if pids.limit() < 0 { "max".to_owned() } else { pids.limit().max(1).to_string() };
        seat(groups, "pids", "pids")?.set(&mut settings, "pids.max", value);
    }
    if let Some(wanted) = resources.block_io() {
        traffic(wanted, groups, &mut settings)?;
    }
    for pages in resources.hugepage_limits().iter().flatten() {
        if pages.page_size().contains('/') {
            bail!("'{}' is no size of pages; write one as the kernel does, such as 2MB", pages.page_size());
        }
        let seat = seat(groups, "hugetlb", "hugetlb")?;
        let file = if seat.legacy { "limit_in_bytes" } else { "max" };
        seat.set(&mut settings, &format!("hugetlb.{}.{file}", pages.page_size()), pages.limit());
        // What is reserved is held to the same, where the kernel counts that.
        let reserved = format!("hugetlb.{}.rsvd.{file}", pages.page_size());
        if seat.group.join(&reserved).exists() {
            seat.set(&mut settings, &reserved, pages.limit());
        }
    }
    if let Some(network) = resources.network() {
        if let Some(class) = network.class_id() {
            let group = groups.legacy("net_cls").context("this host has no net_cls controller")?;
            Seat { group, legacy: true }.set(&mut settings, "net_cls.classid", class);
        }
        for priority in network.priorities().iter().flatten() {
            let group = groups.legacy("net_prio").context("this host has no net_prio controller")?;
            let value = format!("{} {}", priority.name(), priority.priority());
            Seat { group, legacy: true }.set(&mut settings, "net_prio.ifpriomap", value);
        }
    }
    for (device, limits) in resources.rdma().iter().flatten() {
        let word = |name: &str, value: Option<u32>| value.map(|value| format!(" {name}={value}")).unwrap_or_default();
        let value =
            format!("{device}{}{}", word("hca_handle", limits.hca_handles()), word("hca_object", limits.hca_objects()));
        seat(groups, "rdma", "rdma")?.set(&mut settings, "rdma.max", value);
    }
    unified(resources, groups, &mut settings)?;
    Ok(settings)
}

/// Files of version 2 by name.
fn unified(resources: &LinuxResources, groups: &GroupTree, settings: &mut Vec<Setting>) -> Result<()> {
    for (file, value) in resources.unified().iter().flatten() {
        if file.contains('/') || !file.contains('.') {
            bail!("unified resource '{file}' is no file of a control group");
        }
        // One of the group's own files takes any process of the host's, which would end with the container.
        if file.starts_with("cgroup.") && !matches!(file.as_str(), "cgroup.max.depth" | "cgroup.max.descendants") {
            bail!("unified resource '{file}' is no limit; write files of controllers, such as memory.high");
        }
        let group = groups
            .unified()
            .context("there are no control groups of version 2 on this host, which 'unified' is about")?;
        for line in value.lines() {
            settings.push(Setting { file: group.join(file), value: line.to_owned(), optional: false });
        }
    }
    Ok(())
}

fn memory(wanted: &LinuxMemory, groups: &GroupTree, settings: &mut Vec<Setting>) -> Result<()> {
    let limit = wanted.limit().filter(|limit| *limit != 0);
    let swap = wanted.swap().filter(|swap| *swap != 0);
    let reservation = wanted.reservation().filter(|reservation| *reservation != 0);
    let asked = limit.is_some() || swap.is_some() || reservation.is_some();
    if !asked && wanted.swappiness().is_none() && !wanted.disable_oom_killer().unwrap_or(false) {
        return Ok(());
    }
    let seat = seat(groups, "memory", "memory")?;
    if let (Some(limit), Some(swap)) = (limit, swap)
        && (limit < 0 || swap < limit)
        && swap >= 0
    {
        bail!("memory and swap together (swap: {swap}) have to be at least memory (limit: {limit})");
    }
    if seat.legacy {
        // Neither bound may pass the other on the way.
        let together = swap.map(|swap| swap.to_string());
        let current = |file: &str| {
            fs::read_to_string(seat.group.join(file)).ok().and_then(|text| text.trim().parse::<i64>().ok())
        };
        let rises =
            swap.is_some_and(|swap| swap < 0 || current("memory.memsw.limit_in_bytes").is_some_and(|now| swap > now));
        let memsw = |settings: &mut Vec<Setting>| {
            if let Some(value) = &together {
                seat.offer(settings, "memory.memsw.limit_in_bytes", value);
            }
        };
        if rises {
            memsw(settings);
        }
        if let Some(limit) = limit {
            seat.set(settings, "memory.limit_in_bytes", limit);
        }
        if !rises {
            memsw(settings);
        }
        if let Some(reservation) = reservation {
            seat.set(settings, "memory.soft_limit_in_bytes", reservation);
        }
        if let Some(swappiness) = wanted.swappiness() {
            seat.set(settings, "memory.swappiness", swappiness);
        }
        if wanted.disable_oom_killer().unwrap_or(false) {
            seat.set(settings, "memory.oom_control", 1);
        }
        return Ok(());
    }
    let shown = |bytes: i64| if bytes < 0 { "max".to_owned() } else { bytes.to_string() };
    if let Some(swap) = swap {
        // Here swap is bounded apart from memory.
        let alone = match limit {
            _ if swap < 0 => -1,
            Some(limit) => swap - limit,
            None => bail!("memory.swap is bounded together with memory.limit, which is not given"),
        };
        seat.offer(settings, "memory.swap.max", shown(alone));
    }
    if let Some(limit) = limit {
        seat.set(settings, "memory.max", shown(limit));
    }
    if let Some(reservation) = reservation {
        seat.set(settings, "memory.low", shown(reservation));
    }
    Ok(())
}

/// A weight of version 2 (1 to 10,000) for shares of version 1 (2 to 262,144), as all runtimes map them.
fn weight_of_shares(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

fn cpu(wanted: &LinuxCpu, groups: &GroupTree, settings: &mut Vec<Setting>) -> Result<()> {
    for (file, value) in [("cpuset.cpus", wanted.cpus()), ("cpuset.mems", wanted.mems())] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            seat(groups, "cpuset", "cpuset")?.set(settings, file, value);
        }
    }
    let shares = wanted.shares().filter(|shares| *shares != 0);
    let period = wanted.period().filter(|period| *period != 0);
    let quota = wanted.quota().filter(|quota| *quota != 0);
    let timed = wanted.realtime_period().is_some_and(|period| period != 0)
        || wanted.realtime_runtime().is_some_and(|runtime| runtime != 0);
    if shares.is_none()
        && period.is_none()
        && quota.is_none()
        && wanted.idle().is_none()
        && wanted.burst().is_none()
        && !timed
    {
        return Ok(());
    }
    let seat = seat(groups, "cpu", "cpu")?;
    if timed && !seat.legacy {
        bail!("real-time scheduling of a group needs the cpu controller of version 1, which this host does not have");
    }
    if seat.legacy {
        let pairs = [
            ("cpu.idle", wanted.idle().map(|idle| idle.to_string())),
            ("cpu.shares", shares.map(|shares| shares.to_string())),
            ("cpu.cfs_period_us", period.map(|period| period.to_string())),
            ("cpu.cfs_quota_us", quota.map(|quota| quota.to_string())),
            ("cpu.cfs_burst_us", wanted.burst().map(|burst| burst.to_string())),
            (
                "cpu.rt_period_us",
                wanted.realtime_period().filter(|period| *period != 0).map(|period| period.to_string()),
            ),
            ("cpu.rt_runtime_us", wanted.realtime_runtime().filter(|time| *time != 0).map(|time| time.to_string())),
        ];
        for (file, value) in pairs {
            if let Some(value) = value {
                seat.set(settings, file, value);
            }
        }
        return Ok(());
    }
    if let Some(idle) = wanted.idle() {
        seat.set(settings, "cpu.idle", idle);
    }
    if let Some(shares) = shares {
        seat.set(settings, "cpu.weight", weight_of_shares(shares));
    }
    if quota.is_some() || period.is_some() {
        let quota = quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
        seat.set(settings, "cpu.max", format!("{quota} {}", period.unwrap_or(100_000)));
    }
    if let Some(burst) = wanted.burst() {
        seat.set(settings, "cpu.max.burst", burst);
    }
    Ok(())
}

fn traffic(wanted: &LinuxBlockIo, groups: &GroupTree, settings: &mut Vec<Setting>) -> Result<()> {
    let throttled: [(&Option<Vec<LinuxThrottleDevice>>, &str, &str); 4] = [
        (wanted.throttle_read_bps_device(), "blkio.throttle.read_bps_device", "rbps"),
        (wanted.throttle_write_bps_device(), "blkio.throttle.write_bps_device", "wbps"),
        (wanted.throttle_read_iops_device(), "blkio.throttle.read_iops_device", "riops"),
        (wanted.throttle_write_iops_device(), "blkio.throttle.write_iops_device", "wiops"),
    ];
    let weight = wanted.weight().filter(|weight| *weight != 0);
    let devices = wanted.weight_device().as_ref().filter(|devices| !devices.is_empty());
    if weight.is_none()
        && devices.is_none()
        && throttled.iter().all(|(devices, ..)| devices.iter().flatten().next().is_none())
    {
        return Ok(());
    }
    let seat = seat(groups, "io", "blkio")?;
    let bfq = |file: &str| seat.group.join(file).exists();
    if let Some(weight) = weight {
        match (seat.legacy, bfq("blkio.bfq.weight"), bfq("io.bfq.weight")) {
            (true, true, _) => seat.set(settings, "blkio.bfq.weight", weight),
            (true, false, _) => seat.set(settings, "blkio.weight", weight),
            (false, _, true) => seat.set(settings, "io.bfq.weight", weight),
            (false, ..) => seat.set(settings, "io.weight", 1 + (u64::from(weight).max(10) - 10) * 9999 / 990),
        }
    }
    for device in devices.into_iter().flatten() {
        let Some(weight) = device.weight() else { continue };
        let value = format!("{}:{} {weight}", device.major(), device.minor());
        let file = match (seat.legacy, bfq("blkio.bfq.weight_device")) {
            (true, true) => "blkio.bfq.weight_device",
            (true, false) => "blkio.weight_device",
            (false, _) => "io.bfq.weight",
        };
        seat.set(settings, file, value);
    }
    for (devices, old, word) in throttled {
        for device in devices.iter().flatten() {
            let (numbers, rate) = (format!("{}:{}", device.major(), device.minor()), device.rate());
            if seat.legacy {
                seat.set(settings, old, format!("{numbers} {rate}"));
            } else {
                let rate = if rate == 0 { "max".to_owned() } else { rate.to_string() };
                seat.set(settings, "io.max", format!("{numbers} {word}={rate}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cgroup_mount::GroupPlace;

    fn lines(legacy: &[&str], json: &str) -> Result<Vec<String>> {
        let unified = GroupPlace { name: "unified".into(), legacy: None, group: "/u".into(), made: None };
        let old = |name: &&str| GroupPlace {
            name: (*name).into(),
            legacy: Some((*name).into()),
            group: format!("/{name}").into(),
            made: None,
        };
        let groups = GroupTree { places: legacy.iter().map(old).chain([unified]).collect() };
        let settings = of(&serde_json::from_str(json).unwrap(), &groups)?;
        Ok(settings.into_iter().map(|setting| format!("{}={}", setting.file.display(), setting.value)).collect())
    }

    #[test]
    fn both_versions_say_the_same_in_their_own_words() {
        let json = r#"{"memory":{"limit":1000,"swap":3000,"reservation":500},"cpu":{"shares":1024,"quota":5000,"period":20000,"cpus":"0"},"pids":{"limit":7}}"#;
        assert_eq!(
            lines(&[], json).unwrap(),
            [
                "/u/memory.swap.max=2000",
                "/u/memory.max=1000",
                "/u/memory.low=500",
                "/u/cpuset.cpus=0",
                "/u/cpu.weight=39",
                "/u/cpu.max=5000 20000",
                "/u/pids.max=7"
            ]
        );
        assert_eq!(
            lines(&["memory", "cpu", "cpuset", "pids"], json).unwrap(),
            [
                "/memory/memory.limit_in_bytes=1000",
                "/memory/memory.memsw.limit_in_bytes=3000",
                "/memory/memory.soft_limit_in_bytes=500",
                "/cpuset/cpuset.cpus=0",
                "/cpu/cpu.shares=1024",
                "/cpu/cpu.cfs_period_us=20000",
                "/cpu/cpu.cfs_quota_us=5000",
                "/pids/pids.max=7"
            ]
        );
    }

    #[test]
    fn a_hybrid_host_is_decided_controller_by_controller() {
        let json = r#"{"pids":{"limit":-1},"hugepageLimits":[{"pageSize":"2MB","limit":4}],"unified":{"cgroup.max.depth":"2"}}"#;
        assert_eq!(
            lines(&["pids"], json).unwrap(),
            ["/pids/pids.max=max", "/u/hugetlb.2MB.max=4", "/u/cgroup.max.depth=2"]
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(lines(&[], r#"{"memory":{"limit":1000,"swap":10}}"#).is_err());
        for file in ["../x", "cgroup.procs", "cgroup.threads", "cgroup.kill", "cgroup.subtree_control"] {
            assert!(lines(&[], &format!(r#"{{"unified":{{"{file}":"1"}}}}"#)).is_err(), "{file}");
        }
        assert!(lines(&[], r#"{"hugepageLimits":[{"pageSize":"x/../2MB","limit":4}]}"#).is_err());
        assert!(lines(&[], r#"{"cpu":{"realtimePeriod":5}}"#).unwrap_err().to_string().contains("version 1"));
        assert!(lines(&[], "{}").unwrap().is_empty());
    }
}
