//! The process of a container: who it is, what it may do, and what it executes.

use super::memory_policy::MemoryPolicy;
use super::seccomp::{self, Filter};
use super::{Plan, START, Want, Word, c_string, packed, text};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capabilities, Linux, LinuxPersonalityDomain, LinuxSeccomp, PosixRlimitType, Process};
use pando_shim::Step;
use serde_json::Value;

/// Where a name without a slash is looked for if the environment does not say.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Whether it waits to be started.
    pub(crate) waits: bool,
    /// How many descriptors after the standard ones it inherits.
    pub(crate) inherited: u8,
    /// Whether its terminal is the container's console.
    pub(crate) console: bool,
    /// Whether its terminal is carried to that of the command.
    pub(crate) carried: bool,
    /// Whether what is left to do when it is started comes with the start.
    pub(crate) rest_comes: bool,
}

/// What every process of a container has: the execution domain, and where its memory lies.
pub(crate) fn surroundings(plan: &mut Plan, linux: &Linux, config: &Value) -> Result<()> {
    if let Some(personality) = linux.personality() {
        const LINUX32: u32 = 8;
        let wide = personality.domain() == LinuxPersonalityDomain::PerLinux;
        plan.step("setting the personality", Step::Personality { persona: if wide { 0 } else { LINUX32 } });
    }
    if let Some(policy) = MemoryPolicy::read(config)? {
        plan.step("setting the memory policy", policy.step());
    }
    Ok(())
}

/// The steps of a process that has the container's root.
pub(crate) fn become_program(
    plan: &mut Plan,
    process: &Process,
    filter: Option<&LinuxSeccomp>,
    keyring: Option<&str>,
    manner: Manner,
) -> Result<()> {
    let arguments = process.args().as_deref().filter(|words| !words.is_empty()).context("args must not be empty")?;
    if manner.waits {
        let fd = plan.want(Want::Listener);
        plan.step("keeping the socket for the start", Step::Listener { fd });
    }
    if let Some(name) = keyring {
        let name = c_string("keyring", name)?;
        plan.step("beginning a session keyring", Step::Keyring { name: text(&name) });
    }
    limits(plan, process)?;
    streams(plan, process, manner);
    plan.step("setting the mask of permissions", Step::Umask { mask: process.user().umask().unwrap_or(0o022) });
    let filter = filter.map(seccomp::filter).transpose()?;
    let sealed = process.no_new_privileges().unwrap_or(false);
    // With the power of who begins it: others may have no way to the directory that they are put into.
    let path = c_string("working directory", &process.cwd().to_string_lossy())?;
    plan.step(
        format!("entering the working directory {}", process.cwd().display()),
        Step::WorkingDirectory { path: text(&path) },
    );
    identity(plan, process, if filter.is_some() && !sealed { INSTALLS_FILTERS } else { 0 })?;
    if sealed {
        plan.step("giving up new privileges", Step::NoNewPrivileges);
    }
    let name = packed("argument", &arguments[..1])?;
    let environment = process.env().clone().unwrap_or_default();
    let search = environment.iter().rev().find_map(|pair| pair.strip_prefix("PATH=")).unwrap_or(SEARCH).to_owned();
    plan.step(format!("exec: \"{}\"", arguments[0]), Step::Find { name: &name, search: search.as_bytes() });
    plan.end_with("being ready", Word::Ready);
    if manner.waits {
        plan.step("waiting for the start", Step::Started { word: START });
        if manner.rest_comes {
            plan.step("waiting for the rest of the start", Step::Await);
            return Ok(());
        }
    }
    last_filter(plan, process, filter.as_ref());
    execute(plan, process)
}

/// What is done last when a process is started.
pub(crate) fn execute(plan: &mut Plan, process: &Process) -> Result<()> {
    let arguments = process.args().clone().unwrap_or_default();
    let environment = process.env().clone().unwrap_or_default();
    let search = environment.iter().rev().find_map(|pair| pair.strip_prefix("PATH=")).unwrap_or(SEARCH).to_owned();
    let (packed_arguments, environment) = (packed("argument", &arguments)?, packed("variable", &environment)?);
    // It was found: what is missing now is what executes it.
    let label = format!("exec {}", arguments.first().map_or("", String::as_str));
    plan.step(
        label,
        Step::ExecFound { arguments: &packed_arguments, environment: &environment, search: search.as_bytes() },
    );
    Ok(())
}

/// Installs the filter of system calls, after all that it might not allow.
pub(crate) fn last_filter(plan: &mut Plan, process: &Process, filter: Option<&Filter>) {
    let Some(Filter { program, flags }) = filter else { return };
    let install = Step::Filter { program, flags: *flags, word: Word::Filtered as u8 };
    let sets = CapabilityNumbers::of(process);
    if process.no_new_privileges().unwrap_or(false) || sets.effective & INSTALLS_FILTERS != 0 {
        plan.step("installing the system call filter", install);
        return;
    }
    let (effective, permitted) = (sets.effective | INSTALLS_FILTERS, sets.permitted | INSTALLS_FILTERS);
    let installing = CapabilityNumbers { effective, permitted, ..sets };
    plan.step("becoming able to install the system call filter", installing.step());
    plan.step("installing the system call filter", install);
    plan.step("holding capabilities", sets.step());
}

/// `CAP_SYS_ADMIN`: only with that, or without new privileges for good, a process may have a filter of system calls.
const INSTALLS_FILTERS: u64 = 1 << 21;

fn streams(plan: &mut Plan, process: &Process, manner: Manner) {
    if process.terminal().unwrap_or(false) {
        let size = process.console_size();
        let cells = |cells: u64| u16::try_from(cells).unwrap_or(0);
        let (rows, columns) = size.map_or((0, 0), |size| (cells(size.height()), cells(size.width())));
        let fd = plan.want(Want::Console);
        // Before the terminal's step, which lets go of all else.
        inherit(plan, manner);
        plan.step("opening the terminal", Step::Terminal { fd, rows, columns });
        if manner.carried {
            plan.step("having lines end as they are written", Step::PlainLines);
        }
        if manner.console {
            plan.step("showing the terminal as the console", Step::ShowTerminal);
        }
        return;
    }
    let fds = [0, 1, 2].map(|number| plan.want(Want::Stdio(number)));
    plan.step("connecting standard input, output and error", Step::Stdio { fds });
    inherit(plan, manner);
    plan.step("beginning a session", Step::Session);
}

fn inherit(plan: &mut Plan, manner: Manner) {
    if manner.inherited == 0 {
        return;
    }
    let fds: Vec<_> = (0..manner.inherited).map(|number| plan.want(Want::Inherited(3 + i32::from(number)))).collect();
    plan.step("handing descriptors on", Step::Inherit { first: fds[0], count: manner.inherited });
}

/// The names of limits, in the order of their numbers.
const LIMITS: [PosixRlimitType; 16] = [
    PosixRlimitType::RlimitCpu,
    PosixRlimitType::RlimitFsize,
    PosixRlimitType::RlimitData,
    PosixRlimitType::RlimitStack,
    PosixRlimitType::RlimitCore,
    PosixRlimitType::RlimitRss,
    PosixRlimitType::RlimitNproc,
    PosixRlimitType::RlimitNofile,
    PosixRlimitType::RlimitMemlock,
    PosixRlimitType::RlimitAs,
    PosixRlimitType::RlimitLocks,
    PosixRlimitType::RlimitSigpending,
    PosixRlimitType::RlimitMsgqueue,
    PosixRlimitType::RlimitNice,
    PosixRlimitType::RlimitRtprio,
    PosixRlimitType::RlimitRttime,
];

fn limits(plan: &mut Plan, process: &Process) -> Result<()> {
    let mut seen = Vec::new();
    for limit in process.rlimits().iter().flatten() {
        if seen.contains(&limit.typ()) {
            bail!("malformed spec: {:?} is limited twice", limit.typ());
        }
        seen.push(limit.typ());
        let number = LIMITS.iter().position(|known| *known == limit.typ()).context("a limit that is not known")?;
        let resource = u32::try_from(number)?;
        let label = format!("setting limit {:?}", limit.typ());
        plan.step(label, Step::Limit { resource, soft: limit.soft(), hard: limit.hard() });
    }
    Ok(())
}

/// Becomes the process's user, with its capabilities. `also` may be put in force later.
fn identity(plan: &mut Plan, process: &Process, also: u64) -> Result<()> {
    // Without any sets as well: root would have all that is bounded by nothing as soon as it executes a program.
    let bounding = process.capabilities().as_ref().and_then(|sets| sets.bounding().as_ref()).map_or(0, bits);
    plan.step("giving up capabilities", Step::Bound { keep: bounding });
    plan.step("keeping capabilities", Step::KeepCapabilities);
    let user = process.user();
    let groups: Vec<u8> = user.additional_gids().iter().flatten().flat_map(|group| group.to_le_bytes()).collect();
    plan.step(
        format!("becoming user {} of group {}", user.uid(), user.gid()),
        Step::User { uid: user.uid(), gid: user.gid(), groups: &groups },
    );
    let sets = CapabilityNumbers::of(process);
    plan.step("holding capabilities", CapabilityNumbers { permitted: sets.permitted | also, ..sets }.step());
    Ok(())
}

/// The sets of capabilities that a process holds; bit N is capability N.
#[derive(Clone, Copy, Default)]
struct CapabilityNumbers {
    effective: u64,
    permitted: u64,
    inheritable: u64,
    ambient: u64,
}

impl CapabilityNumbers {
    fn of(process: &Process) -> Self {
        let Some(sets) = process.capabilities() else { return Self::default() };
        let set = |set: &Option<Capabilities>| set.as_ref().map_or(0, bits);
        Self {
            effective: set(sets.effective()),
            permitted: set(sets.permitted()),
            inheritable: set(sets.inheritable()),
            ambient: set(sets.ambient()),
        }
    }

    fn step(self) -> Step<'static> {
        let Self { effective, permitted, inheritable, ambient } = self;
        Step::CapabilitySets { effective, permitted, inheritable, ambient }
    }
}

/// A set by the numbers of its capabilities (linux/capability.h).
fn bits(set: &Capabilities) -> u64 {
    use oci_spec::runtime::Capability as C;
    const NUMBERED: [C; 41] = [
        C::Chown,
        C::DacOverride,
        C::DacReadSearch,
        C::Fowner,
        C::Fsetid,
        C::Kill,
        C::Setgid,
        C::Setuid,
        C::Setpcap,
        C::LinuxImmutable,
        C::NetBindService,
        C::NetBroadcast,
        C::NetAdmin,
        C::NetRaw,
        C::IpcLock,
        C::IpcOwner,
        C::SysModule,
        C::SysRawio,
        C::SysChroot,
        C::SysPtrace,
        C::SysPacct,
        C::SysAdmin,
        C::SysBoot,
        C::SysNice,
        C::SysResource,
        C::SysTime,
        C::SysTtyConfig,
        C::Mknod,
        C::Lease,
        C::AuditWrite,
        C::AuditControl,
        C::Setfcap,
        C::MacOverride,
        C::MacAdmin,
        C::Syslog,
        C::WakeAlarm,
        C::BlockSuspend,
        C::AuditRead,
        C::Perfmon,
        C::Bpf,
        C::CheckpointRestore,
    ];
    NUMBERED.iter().enumerate().filter(|(_, capability)| set.contains(capability)).fold(0, |bits, (n, _)| bits | 1 << n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANNER: Manner = Manner { waits: true, inherited: 0, console: true, carried: false, rest_comes: false };

    fn planned(json: &str, filter: Option<&str>, manner: Manner) -> Result<String> {
        let process: Process = serde_json::from_str(json).unwrap();
        let filter: Option<LinuxSeccomp> = filter.map(|text| serde_json::from_str(text).unwrap());
        let mut plan = Plan::new();
        become_program(&mut plan, &process, filter.as_ref(), None, manner)?;
        Ok(format!("{plan:?}"))
    }

    const FILTER: &str =
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mount"],"action":"SCMP_ACT_ERRNO"}]}"#;

    fn process(rest: &str) -> String {
        format!(r#"{{"user":{{"uid":5,"gid":6,"additionalGids":[7]}},"args":["sh"],"cwd":"/"{rest}}}"#)
    }

    #[test]
    fn a_filter_comes_last_whoever_may_install_one() {
        let order = |text: &str, parts: &[&str]| {
            let places: Vec<_> = parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
            assert!(places.is_sorted(), "{parts:?} in {text}");
        };
        let sealed = planned(&process(r#","noNewPrivileges":true"#), Some(FILTER), MANNER).unwrap();
        order(&sealed, &["WorkingDirectory", "User {", "NoNewPrivileges", "Find", "Started", "Filter {", "ExecFound"]);
        let open = planned(&process(""), Some(FILTER), MANNER).unwrap();
        let (able, final_sets) = ("permitted: 2097152, inheritable: 0", "permitted: 0, inheritable: 0");
        order(&open, &["User {", able, "Find", "Started", "Filter {", final_sets, "ExecFound"]);
        let sets = r#","capabilities":{"bounding":["CAP_SYS_ADMIN"],"permitted":["CAP_SYS_ADMIN"],"effective":["CAP_SYS_ADMIN"]}"#;
        let able = planned(&process(sets), Some(FILTER), MANNER).unwrap();
        assert_eq!(able.matches("CapabilitySets").count(), 1, "{able}");
    }

    #[test]
    fn each_set_of_capabilities_is_its_own() {
        let sets = r#","capabilities":{"bounding":["CAP_KILL","CAP_CHOWN"],"permitted":["CAP_KILL"],"effective":["CAP_KILL"]}"#;
        let plan = planned(&process(sets), None, MANNER).unwrap();
        assert!(plan.contains("Bound { keep: 33 }"), "{plan}");
        assert!(plan.contains("effective: 32, permitted: 32, inheritable: 0, ambient: 0"), "{plan}");
    }

    #[test]
    fn a_process_without_sets_of_capabilities_has_none() {
        let plan = planned(&process(""), None, MANNER).unwrap();
        assert!(plan.contains("Bound { keep: 0 }"), "{plan}");
    }

    #[test]
    fn a_process_without_arguments_and_one_limited_twice_are_refused() {
        let none = planned(r#"{"user":{"uid":0,"gid":0},"args":[],"cwd":"/"}"#, None, MANNER);
        assert!(none.unwrap_err().to_string().contains("args"));
        let limit = r#"{"type":"RLIMIT_CPU","soft":1,"hard":1}"#;
        assert!(planned(&process(&format!(r#","rlimits":[{limit},{limit}]"#)), None, MANNER).is_err());
    }
}
