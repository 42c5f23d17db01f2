//! Resource limits by name (getrlimit(2)).

use pando_api::Rlimit;
use pando_shim::Step;
use rustix::process::Resource;

/// Names as ulimit, docker and systemd spell them, and the kernel's numbers.
#[allow(clippy::unnecessary_cast, reason = "the C library decides the type")]
const NAMES: [(&str, u32); 16] = [
    ("cpu", libc::RLIMIT_CPU),
    ("fsize", libc::RLIMIT_FSIZE),
    ("data", libc::RLIMIT_DATA),
    ("stack", libc::RLIMIT_STACK),
    ("core", libc::RLIMIT_CORE),
    ("rss", libc::RLIMIT_RSS),
    ("nproc", libc::RLIMIT_NPROC),
    ("nofile", libc::RLIMIT_NOFILE),
    ("memlock", libc::RLIMIT_MEMLOCK),
    ("as", libc::RLIMIT_AS),
    ("locks", libc::RLIMIT_LOCKS),
    ("sigpending", libc::RLIMIT_SIGPENDING),
    ("msgqueue", libc::RLIMIT_MSGQUEUE),
    ("nice", libc::RLIMIT_NICE),
    ("rtprio", libc::RLIMIT_RTPRIO),
    ("rttime", libc::RLIMIT_RTTIME),
];

/// A limit that cannot be set.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is not a resource limit; known are cpu, fsize, data, stack, core, rss, nproc, nofile, memlock, as, locks, sigpending, msgqueue, nice, rtprio, rttime"
)]
pub struct LimitError(String);

/// The step that sets a limit.
pub fn step(name: &str, limit: &Rlimit) -> Result<Step<'static>, LimitError> {
    let resource = number(name).ok_or_else(|| LimitError(name.to_owned()))?;
    Ok(Step::Limit { resource, soft: limit.soft.unwrap_or(u64::MAX), hard: limit.hard.unwrap_or(u64::MAX) })
}

/// The kernel's number of a limit.
pub fn number(name: &str) -> Option<u32> {
    let short = name.to_ascii_lowercase();
    let short = short.strip_prefix("rlimit_").unwrap_or(&short);
    NAMES.iter().find(|(known, _)| *known == short).map(|(_, number)| *number)
}

/// A limit of cores that, where it lets none be written, keeps them from a program that the host's core_pattern pipes
/// them to as well: the kernel starts that one with a limit of 0, and does not with a limit of 1 byte (core(5)).
pub(super) fn without_pipe(core: Rlimit) -> Rlimit {
    let none = |limit: Option<u64>| limit.map(|bytes| bytes.max(1));
    if core.soft == Some(0) {
        within_own("core", Rlimit { soft: none(core.soft), hard: none(core.hard) })
    } else {
        core
    }
}

/// A limit as far as this process's own allows: a daemon that may not raise limits could not start a guest at all.
pub(super) fn within_own(name: &str, limit: Rlimit) -> Rlimit {
    let most = match name {
        "core" => Some(Resource::Core),
        "memlock" => Some(Resource::Memlock),
        "msgqueue" => Some(Resource::Msgqueue),
        "nofile" => Some(Resource::Nofile),
        "nproc" => Some(Resource::Nproc),
        _ => None,
    };
    let most = most.and_then(|resource| rustix::process::getrlimit(resource).maximum).unwrap_or(u64::MAX);
    Rlimit { soft: limit.soft.map(|soft| soft.min(most)), hard: limit.hard.map(|hard| hard.min(most)) }
}
