//! The steps of a process that becomes a program of the guest.

use super::{Plan, PlanError, PrewarmedKind, Want, c_string, text};
use crate::account::Account;
use crate::policy::{capabilities, grants, profile, seccomp};
use pando_api::{Network, Profile, SeccompProfile, Spec};
use pando_shim::{Capabilities, Start, Step};
use std::collections::BTreeMap;

/// Where a name without a slash is looked for if the environment does not say.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where standard input, output and error come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Descriptors of the caller's are passed on.
    Given,
    /// A terminal of the guest's own.
    Terminal {
        /// The terminal's height, in characters.
        rows: u16,
        /// The terminal's width, in characters.
        columns: u16,
    },
    /// /dev/console: a terminal of the guest's own that its shim keeps.
    Console,
}

/// A program to run in a guest.
#[derive(Clone, Debug)]
pub struct Program {
    /// The command and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables beyond the guest's own.
    pub env: BTreeMap<String, String>,
    /// Where it starts; default the spec's.
    pub workdir: Option<String>,
    /// The user and groups that run it.
    pub account: Account,
    /// Its standard input, output and error.
    pub stdio: Stdio,
    /// Whether it comes as a descriptor instead of lying in the guest's files.
    pub sent_along: bool,
}

/// The plan of a process that joins a running guest. `into_cgroup` says whether it can be born in the guest's cgroup,
/// `supervised` by which program some of its system calls wait for answers.
pub fn exec(spec: &Spec, program: &Program, into_cgroup: bool, supervised: Option<&[u8]>) -> Result<Plan, PlanError> {
    let mut plan = Plan::new();
    plan.start = Some(Start {
        init: false,
        namespaces: 0,
        pid_namespace: plan.want(Want::Namespace("pid")),
        into_cgroup: into_cgroup.then(|| plan.want(Want::Cgroup)),
    });
    // The mounts last: where they are is where the others' files were opened.
    for name in ["uts", "ipc", "cgroup", "mnt"].into_iter().filter(|name| into_cgroup || *name != "cgroup") {
        let fd = plan.want(Want::Namespace(name));
        plan.step(format!("entering the guest's {name} namespace"), Step::Join { fd });
    }
    for (name, limit) in &grants::of_processes(spec)? {
        plan.step(format!("setting limit {name}"), crate::policy::limits::step(name, limit)?);
    }
    // While it may: a profile may refuse it filters of its own. Those that answer are there from then on, for the steps
    // that follow too.
    if let Some(program) = supervised {
        let fd = plan.want(Want::Supervisor);
        plan.step("having its system calls answered by the transaction", Step::Supervise { fd, program });
    }
    let keep = bound(spec)?;
    confine(&mut plan, spec, keep, None);
    run(&mut plan, spec, program, keep)?;
    Ok(plan)
}

/// The capabilities that a spec asks for.
pub fn bound(spec: &Spec) -> Result<Capabilities, PlanError> {
    let base = usual(spec.security_profile(), spec.user_namespace);
    // Without a user namespace it would hold them over the host's network.
    let over_host = spec.network == Network::Shared && !spec.user_namespace;
    let base = if over_host { base & !capabilities::over_networks() } else { base };
    Ok(capabilities::adjusted(base, &spec.cap_drop, &spec.cap_add)?)
}

/// Whether a guest may have user namespaces made inside it: where its root is the host's, only if it may mount anyway.
pub(super) fn makes_user_namespaces(spec: &Spec) -> bool {
    spec.user_namespace || bound(spec).is_ok_and(capabilities::can_mount)
}

/// The capabilities that guests of a profile have if nobody says otherwise.
pub(super) fn usual(profile: Profile, user_namespace: bool) -> Capabilities {
    profile::of(profile).capabilities(user_namespace)
}

/// The filters of system calls that every process of a guest has, the oldest first: `struct sock_filter`s.
pub fn filters(spec: &Spec) -> Vec<&'static [u8]> {
    let of_profile = || seccomp::program(spec.security_profile(), makes_user_namespaces(spec));
    let of_profile = (spec.seccomp == SeccompProfile::Default).then(of_profile);
    of_profile.into_iter().chain((spec.network == Network::Shared).then(seccomp::shared_network)).collect()
}

/// What no process of the guest gets back, but for what a process that was a prewarmed init has given up ahead.
pub(super) fn confine(plan: &mut Plan, spec: &Spec, keep: Capabilities, prewarmed_init: Option<PrewarmedKind>) {
    if spec.seccomp == SeccompProfile::Default && !prewarmed_init.is_some_and(|kind| kind.filtered) {
        let program = seccomp::program(spec.security_profile(), makes_user_namespaces(spec));
        plan.step("installing the system call filter", Step::Seccomp { program });
    }
    if spec.network == Network::Shared {
        let program = seccomp::shared_network();
        plan.step("keeping sockets to the guest's own addresses", Step::Seccomp { program });
    }
    if profile::of(spec.security_profile()).no_new_privileges {
        plan.step("giving up new privileges", Step::NoNewPrivileges);
    }
    if !prewarmed_init.is_some_and(|kind| kind.bounded) {
        plan.step("giving up capabilities", Step::Bound { keep });
    }
}

/// From a process inside the guest to the program.
pub(super) fn run(plan: &mut Plan, spec: &Spec, program: &Program, keep: Capabilities) -> Result<(), PlanError> {
    match program.stdio {
        Stdio::Given => {
            let fds = [0, 1, 2].map(|number| plan.want(Want::Stdio(number)));
            plan.step("connecting standard input, output and error", Step::Stdio { fds });
            plan.step("starting a session", Step::Session);
        }
        Stdio::Terminal { rows, columns } => {
            let fd = plan.want(Want::Terminal);
            plan.step("opening a terminal inside the guest", Step::Terminal { fd, rows, columns });
        }
        // It was opened while mounts could be made.
        Stdio::Console => plan.step("starting a session", Step::Session),
    }
    let workdir = program.workdir.as_ref().or(spec.workdir.as_ref());
    // Pando's own program stays at the root: it has a descriptor to come.
    if let Some(path) = workdir.filter(|_| !program.sent_along) {
        if !path.starts_with('/') {
            return Err(PlanError::Relative { what: "working directory", path: path.clone() });
        }
        let path = c_string("working directory", path)?;
        plan.step(format!("changing to {}", path.to_string_lossy()), Step::WorkingDirectory { path: text(&path) });
    }
    program.account.check(spec.user_namespace)?;
    let groups: Vec<u8> = program.account.groups.iter().flat_map(|gid| gid.to_le_bytes()).collect();
    let Account { uid, gid, .. } = program.account;
    plan.step(format!("becoming user {uid}"), Step::User { uid, gid, groups: &groups });
    if uid == 0 {
        plan.step("holding the guest's capabilities", Step::Hold { keep });
    }
    execute(plan, spec, program)
}

fn execute(plan: &mut Plan, spec: &Spec, program: &Program) -> Result<(), PlanError> {
    let mut arguments = Vec::new();
    for argument in &program.command {
        arguments.extend_from_slice(c_string("argument", argument)?.as_bytes_with_nul());
    }
    let label = format!("running {}", program.command.first().map_or("nothing", String::as_str));
    if program.sent_along {
        let fd = plan.want(Want::Program);
        plan.step(label, Step::ExecFd { fd, arguments: &arguments });
        return Ok(());
    }
    let variables = environment(spec, program);
    let mut packed = Vec::new();
    for (name, value) in &variables {
        if name.is_empty() || name.contains('=') {
            return Err(PlanError::Variable(name.clone()));
        }
        packed.extend_from_slice(c_string("environment variable", &format!("{name}={value}"))?.as_bytes_with_nul());
    }
    let search = variables.get("PATH").map_or(SEARCH, String::as_str);
    plan.step(label, Step::Exec { arguments: &arguments, environment: &packed, search: search.as_bytes() });
    Ok(())
}

/// The few variables that programs expect, then the spec's, then the call's.
fn environment(spec: &Spec, program: &Program) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::from([
        ("PATH".to_owned(), SEARCH.to_owned()),
        ("HOME".to_owned(), program.account.home.clone()),
        ("container".to_owned(), "pando".to_owned()),
    ]);
    if let Some(name) = &program.account.name {
        variables.insert("USER".to_owned(), name.clone());
        variables.insert("LOGNAME".to_owned(), name.clone());
    }
    if let Stdio::Terminal { .. } = program.stdio {
        variables.insert("TERM".to_owned(), "xterm".to_owned());
    }
    let given = spec.env.iter().chain(&program.env);
    variables.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    variables
}
