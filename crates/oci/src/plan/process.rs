//! The process of a container: who it is, what it may do, and what it executes.

use super::{Plan, START, Want, Word, c_string, packed, seccomp, text};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capabilities, LinuxSeccomp, PosixRlimitType, Process};
use pando_shim::Step;

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
    /// Whether what is left to do when it is started comes with the start.
    pub(crate) rest_comes: bool,
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
    let filter = filter.map(seccomp::program).transpose()?.filter(|program| !program.is_empty());
    let sealed = process.no_new_privileges().unwrap_or(false);
    // Without that only who may administer the machine may install one.
    if let (Some(program), false) = (&filter, sealed) {
        plan.step("installing the system call filter", Step::Seccomp { program });
    }
    identity(plan, process)?;
    if sealed {
        plan.step("giving up new privileges", Step::NoNewPrivileges);
    }
    let path = c_string("working directory", &process.cwd().to_string_lossy())?;
    plan.step(
        format!("entering the working directory {}", process.cwd().display()),
        Step::WorkingDirectory { path: text(&path) },
    );
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
    if let (Some(program), true) = (&filter, sealed) {
        plan.step("installing the system call filter", Step::Seccomp { program });
    }
    execute(plan, process)
}

/// What is done last when a process is started.
pub(crate) fn execute(plan: &mut Plan, process: &Process) -> Result<()> {
    let arguments = process.args().clone().unwrap_or_default();
    let environment = process.env().clone().unwrap_or_default();
    let search = environment.iter().rev().find_map(|pair| pair.strip_prefix("PATH=")).unwrap_or(SEARCH).to_owned();
    let (packed_arguments, environment) = (packed("argument", &arguments)?, packed("variable", &environment)?);
    let label = format!("exec: \"{}\"", arguments.first().map_or("", String::as_str));
    plan.step(label, Step::Exec { arguments: &packed_arguments, environment: &environment, search: search.as_bytes() });
    Ok(())
}

/// The filter of a process that is sealed, which is installed last.
pub(crate) fn last_filter(plan: &mut Plan, process: &Process, filter: Option<&LinuxSeccomp>) -> Result<()> {
    let filter = filter.map(seccomp::program).transpose()?.filter(|program| !program.is_empty());
    if let (Some(program), true) = (&filter, process.no_new_privileges().unwrap_or(false)) {
        plan.step("installing the system call filter", Step::Seccomp { program });
    }
    Ok(())
}

fn streams(plan: &mut Plan, process: &Process, manner: Manner) {
    if process.terminal().unwrap_or(false) {
        let size = process.console_size();
        let cells = |cells: u64| u16::try_from(cells).unwrap_or(0);
        let (rows, columns) = size.map_or((0, 0), |size| (cells(size.height()), cells(size.width())));
        let fd = plan.want(Want::Console);
        // Before the terminal's step, which lets go of all else.
        inherit(plan, manner);
        plan.step("opening the terminal", Step::Terminal { fd, rows, columns });
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

fn identity(plan: &mut Plan, process: &Process) -> Result<()> {
    let sets = process.capabilities().as_ref();
    let set = |of: &dyn Fn(&oci_spec::runtime::LinuxCapabilities) -> Option<Capabilities>| {
        sets.and_then(of).map_or(0, |set| bits(&set))
    };
    let bounding = set(&|sets| sets.bounding().clone());
    if sets.is_some() {
        plan.step("giving up capabilities", Step::Bound { keep: bounding });
    }
    plan.step("keeping capabilities", Step::KeepCapabilities);
    let user = process.user();
    let groups: Vec<u8> = user.additional_gids().iter().flatten().flat_map(|group| group.to_le_bytes()).collect();
    plan.step(
        format!("becoming user {} of group {}", user.uid(), user.gid()),
        Step::User { uid: user.uid(), gid: user.gid(), groups: &groups },
    );
    let (effective, permitted, inheritable, ambient) = (
        set(&|sets| sets.effective().clone()),
        set(&|sets| sets.permitted().clone()),
        set(&|sets| sets.inheritable().clone()),
        set(&|sets| sets.ambient().clone()),
    );
    plan.step("holding capabilities", Step::CapabilitySets { effective, permitted, inheritable, ambient });
    Ok(())
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

    const MANNER: Manner = Manner { waits: true, inherited: 0, console: true, rest_comes: false };

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
    fn a_sealed_process_is_filtered_last_and_another_first() {
        let order = |text: &str, parts: &[&str]| {
            let places: Vec<_> = parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
            assert!(places.is_sorted(), "{parts:?} in {text}");
        };
        let sealed = planned(&process(r#","noNewPrivileges":true"#), Some(FILTER), MANNER).unwrap();
        order(&sealed, &["User {", "NoNewPrivileges", "WorkingDirectory", "Find", "Started", "Seccomp", "Exec"]);
        let open = planned(&process(""), Some(FILTER), MANNER).unwrap();
        order(&open, &["Listener", "Seccomp", "User {", "Started", "Exec"]);
    }

    #[test]
    fn each_set_of_capabilities_is_its_own() {
        let sets = r#","capabilities":{"bounding":["CAP_KILL","CAP_CHOWN"],"permitted":["CAP_KILL"],"effective":["CAP_KILL"]}"#;
        let plan = planned(&process(sets), None, MANNER).unwrap();
        assert!(plan.contains("Bound { keep: 33 }"), "{plan}");
        assert!(plan.contains("effective: 32, permitted: 32, inheritable: 0, ambient: 0"), "{plan}");
    }

    #[test]
    fn a_process_without_arguments_and_one_limited_twice_are_refused() {
        let none = planned(r#"{"user":{"uid":0,"gid":0},"args":[],"cwd":"/"}"#, None, MANNER);
        assert!(none.unwrap_err().to_string().contains("args"));
        let limit = r#"{"type":"RLIMIT_CPU","soft":1,"hard":1}"#;
        assert!(planned(&process(&format!(r#","rlimits":[{limit},{limit}]"#)), None, MANNER).is_err());
    }
}
