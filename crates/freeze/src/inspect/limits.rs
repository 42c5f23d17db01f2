//! Resource limits. /proc/PID/limits tells them of any process, where prlimit(2) wants CAP_SYS_RESOURCE for another
//! user's.

use crate::image::Image;
use crate::inspect::proc_file::{self, Lines};
use crate::refusal::Refusal;
use pando_kernel::CallError;
use rustix::process::{Pid, Resource, Rlimit};

/// Names as /proc/PID/limits has them, by `RLIMIT_*` (x86-64).
const NAMES: [&str; 16] = [
    "Max cpu time",
    "Max file size",
    "Max data size",
    "Max stack size",
    "Max core file size",
    "Max resident set",
    "Max processes",
    "Max open files",
    "Max locked memory",
    "Max address space",
    "Max file locks",
    "Max pending signals",
    "Max msgqueue size",
    "Max nice priority",
    "Max realtime priority",
    "Max realtime timeout",
];

/// Every limit of a process: number, soft, hard.
pub(crate) fn read(pid: i32) -> Result<Vec<(u32, u64, u64)>, CallError> {
    proc_file::text(pid, "limits").map(|text| parse(&text))
}

/// Lifts those of a holder to the highest that processes of its image have, as far as we may: a clone's processes are
/// forked from it with them, and can lower them but not raise them. What came from elsewhere may ask for anything, and
/// gets no more than a guest has here. But whoever makes a clone has open side by side all that its processes have.
pub(crate) fn lift(image: &Image, holder: i32) -> Result<(), CallError> {
    let had = read(holder)?;
    let most = kernels_most_open();
    for (number, resource) in (0..).zip(RESOURCES) {
        let of = |limits: &[(u32, u64, u64)]| limits.iter().find(|one| one.0 == number).map_or(0, |one| one.2);
        let wanted = match number {
            libc::RLIMIT_NOFILE => most,
            _ if image.adopted => 0,
            _ => image.processes.iter().map(|process| of(&process.limits)).max().unwrap_or(0),
        };
        if wanted > of(&had) {
            let limit = (wanted != u64::MAX).then_some(wanted);
            // Without CAP_SYS_RESOURCE it stays as it is, and who compares a clone says so.
            let _ =
                rustix::process::prlimit(Pid::from_raw(holder), resource, Rlimit { current: limit, maximum: limit });
        }
    }
    Ok(())
}

/// How many files a holder may have open at the most: as many as the kernel lets anybody, or as we may, who cannot lift
/// it without CAP_SYS_RESOURCE.
pub(crate) fn most_open() -> u64 {
    const SYS_RESOURCE: u64 = 1 << 24;
    let own = std::process::id() as i32;
    let capable = Lines::read(own, "status").and_then(|status| status.number("CapEff", 16));
    if capable.is_ok_and(|set| set & SYS_RESOURCE != 0) {
        kernels_most_open()
    } else {
        rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
    }
}

/// What stands in the way where whoever makes a clone needs more at a time than it may have open; `pid`, `name` are of
/// who has most of them.
pub(crate) fn too_many_open(needed: u64, (pid, name): (i32, &str)) -> Option<Refusal> {
    let most = most_open();
    (needed > most).then(|| Refusal {
        pid,
        name: name.to_owned(),
        descriptor: None,
        kind: format!(
            "too many descriptors: whoever makes a clone has {needed} files open at a time, and may have {most}"
        ),
        advice: "have fewer open, or raise the limit of open files of Pando's daemon, or give that CAP_SYS_RESOURCE",
    })
}

fn kernels_most_open() -> u64 {
    let text = proc_file::read("/proc/sys/fs/nr_open");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// By their numbers.
const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

pub(crate) fn parse(text: &str) -> Vec<(u32, u64, u64)> {
    let value = |word: &str| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() };
    let line = |(number, name): (usize, &&str)| {
        let rest = text.lines().find_map(|line| line.strip_prefix(*name))?;
        let mut words = rest.split_ascii_whitespace();
        Some((number as u32, value(words.next()?)?, value(words.next()?)?))
    };
    NAMES.iter().enumerate().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_by_name() {
        let text = "Limit  Soft Limit Hard Limit Units\nMax open files            1024                 524288               files     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(parse(text), [(7, 1024, 524_288), (9, u64::MAX, u64::MAX)]);
    }
}
