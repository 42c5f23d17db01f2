//! What a process has from whoever started it, and a daemon that any command may start is not to have from that one:
//! guests would have it in turn.

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The resources, by their names in `/proc/PID/limits` (proc(5)).
const RESOURCES: [(&str, Resource); 16] = [
    ("Max cpu time", Resource::Cpu),
    ("Max file size", Resource::Fsize),
    ("Max data size", Resource::Data),
    ("Max stack size", Resource::Stack),
    ("Max core file size", Resource::Core),
    ("Max resident set", Resource::Rss),
    ("Max processes", Resource::Nproc),
    ("Max open files", Resource::Nofile),
    ("Max locked memory", Resource::Memlock),
    ("Max address space", Resource::As),
    ("Max file locks", Resource::Locks),
    ("Max pending signals", Resource::Sigpending),
    ("Max msgqueue size", Resource::Msgqueue),
    ("Max nice priority", Resource::Nice),
    ("Max realtime priority", Resource::Rtprio),
    ("Max realtime timeout", Resource::Rttime),
];

/// Becomes a process as the machine's init starts them: of ordinary niceness, on every processor, no likelier victim
/// than others when memory is short, with a usual mask for new files, and with no lower limits than init has. What the
/// kernel does not allow stays as it is: a daemon with it is better than none.
pub(crate) fn shed() {
    let _ = setpriority_process(None, 0);
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    let _ = sched_setaffinity(None, &all);
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let limits = std::fs::read_to_string("/proc/1/limits").unwrap_or_default();
    for (resource, soft, hard) in limits.lines().filter_map(limit) {
        raise(resource, soft, hard);
    }
}

/// A line of that file.
fn limit(line: &str) -> Option<(Resource, Option<u64>, Option<u64>)> {
    let (name, resource) = RESOURCES.iter().find(|(name, _)| line.starts_with(name))?;
    let mut values = line[name.len()..].split_whitespace().map(|word| match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some((*resource, values.next()??, values.next()??))
}

fn raise(resource: Resource, soft: Option<u64>, hard: Option<u64>) {
    let now = getrlimit(resource);
    let higher = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.max(other));
    let lower = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let wanted = Rlimit { current: higher(now.current, soft), maximum: higher(now.maximum, hard) };
    // To raise the hard one takes a capability that not every root has.
    if setrlimit(resource, wanted).is_err() {
        let within = Rlimit { current: lower(higher(now.current, soft), now.maximum), maximum: now.maximum };
        let _ = setrlimit(resource, within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_the_kernel_is_read() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        assert_eq!(text.lines().skip(1).filter(|line| limit(line).is_none()).count(), 0, "{text}");
        let line = "Max open files            1024                 1048576              files     ";
        assert!(matches!(limit(line), Some((Resource::Nofile, Some(1024), Some(1_048_576)))));
        let line = "Max cpu time              unlimited            unlimited            seconds   ";
        assert!(matches!(limit(line), Some((Resource::Cpu, None, None))));
        assert!(limit("Max of something new      1                    2                    files").is_none());
    }
}
