//! The steps of a guest's first process that no particular guest is needed for. A *prewarmed init* is a first process
//! that has taken them and waits: it has its namespaces, its /dev, /proc and /sys with everything masked that has to
//! be, on a stage; what is missing is a root file system.

use super::{Plan, PlanError, Want, c_string, command, text};
use crate::policy::{profile, seccomp};
use pando_api::{Profile, SeccompProfile, Spec};
use pando_shim::{Attributes, Make, Mountpoint, Namespaces, Scopes, Start, Step, Text};
use std::ffi::CStr;

/// What kind of prewarmed init a guest needs: all that its first steps depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrewarmedKind {
    /// In a user namespace of its own.
    pub user_namespace: bool,
    /// In a network namespace of its own.
    pub network_namespace: bool,
    /// What a Landlock domain around it keeps inside.
    pub scopes: Scopes,
    /// The guest brings its own init, which manages cgroups.
    pub own_init: bool,
    /// What is hidden from it, and which devices it has.
    pub profile: Profile,
    /// Whether its filter of system calls is installed ahead: the kernel tries every call there is on it, which takes
    /// longer than most steps.
    pub filtered: bool,
    /// Whether it gives up ahead what the profile's guests lack: a call for each capability.
    pub bounded: bool,
}

impl PrewarmedKind {
    /// The kind that a spec asks for.
    pub fn of(spec: &Spec) -> Self {
        Self {
            user_namespace: spec.user_namespace,
            network_namespace: !spec.network.is_the_hosts(),
            scopes: profile::of(spec.security_profile()).scopes(spec.network),
            own_init: spec.init.is_some(),
            profile: spec.security_profile(),
            // Some settings take capabilities that guests of the profile lack.
            bounded: spec.sysctl.is_empty()
                && command::bound(spec)
                    .is_ok_and(|keep| keep == command::usual(spec.security_profile(), spec.user_namespace)),
            // One that may mount has another filter than the kind says, and gets it later.
            filtered: spec.seccomp == SeccompProfile::Default
                && command::makes_user_namespaces(spec) == spec.user_namespace
                && seccomp::lets_plans_pass(spec.security_profile(), spec.user_namespace),
        }
    }

    /// The kind that clones of a guest with a spec stand in. Its processes are in a domain of their own, which signals
    /// from another would not reach: it is for the pid namespace to keep those inside.
    pub fn of_clones(spec: &Spec) -> Self {
        let kind = Self::of(spec);
        Self { scopes: kind.scopes - Scopes::SIGNALS, ..kind }
    }
}

/// The directories of the stage: what is mounted there is brought into the root file system when that is known.
pub const STAGE: [&str; 3] = ["dev", "proc", "sys"];

/// From where on the stage to where in the root.
pub(super) const BROUGHT: [(&CStr, &CStr); 3] = [(c"/dev", c"dev"), (c"/proc", c"proc"), (c"/sys", c"sys")];

/// Attributes of file systems that hold no programs and no devices.
const DATA: Attributes = Attributes::NO_SUID.union(Attributes::NO_DEV).union(Attributes::NO_EXEC);

/// Options of a guest's terminals. The machine has so many for all (kernel.pty.max, 4096 as a rule): `max` is what one
/// guest may take of them.
const TERMINALS: &str = "ptmxmode=0666,mode=0620,gid=5,max=256";

/// The plan of a first process up to where it waits. `unified`: whether this host has a unified cgroup hierarchy.
pub fn of_prewarmed_init(kind: PrewarmedKind, unified: bool) -> Result<Plan, PlanError> {
    let mut namespaces = Namespaces::PID | Namespaces::MOUNT | Namespaces::UTS | Namespaces::IPC;
    namespaces.set(Namespaces::CGROUP, unified);
    let mut plan = Plan::new();
    plan.start = Some(Start {
        init: true,
        namespaces: namespaces.bits(),
        pid_namespace: 0,
        into_cgroup: unified.then(|| plan.want(Want::Cgroup)),
    });
    plan.step("leaving the host's mounts", Step::Private);
    let fd = plan.want(Want::Stage);
    // Over the host's root itself: any path to elsewhere may lead through a directory that the guest's ids may not
    // enter.
    plan.step("entering the stage", Step::EnterRoot { fd, over: Text::from(c"/") });
    kernel_file_systems(&mut plan, kind, unified);
    hide(&mut plan, kind)?;
    plan.step("taking the stage as root", Step::Pivot);
    if kind.filtered {
        plan.step(
            "installing the system call filter",
            Step::Seccomp { program: seccomp::program(kind.profile, kind.user_namespace) },
        );
    }
    if kind.bounded {
        let keep = command::usual(kind.profile, kind.user_namespace);
        plan.step("giving up capabilities", Step::Bound { keep });
    }
    plan.step("waiting for a root file system", Step::Await);
    Ok(plan)
}

fn on(at: &CStr) -> Mountpoint<'_> {
    Mountpoint { at: Text::from(at), make: Make::Nothing }
}

fn mount(plan: &mut Plan, kind: &CStr, options: &str, attributes: Attributes, at: &CStr) {
    let label = format!("mounting /{}", at.to_string_lossy());
    plan.step(label, Step::Mount { kind: Text::from(kind), options, attributes, on: on(at) });
}

fn kernel_file_systems(plan: &mut Plan, kind: PrewarmedKind, unified: bool) {
    let devices = plan.want(Want::Devices);
    plan.step("attaching /dev", Step::Attach { fd: devices, on: on(c"dev") });
    let quiet = Attributes::NO_SUID | Attributes::NO_EXEC;
    mount(plan, c"devpts", TERMINALS, quiet, c"dev/pts");
    mount(plan, c"mqueue", "", DATA, c"dev/mqueue");
    mount(plan, c"proc", "", DATA, c"proc");
    if kind.network_namespace {
        mount(plan, c"sysfs", "", DATA | Attributes::READ_ONLY, c"sys");
    } else {
        // A sysfs shows the devices of a network namespace, and only that one's owner may mount it.
        let fd = plan.want(Want::HostSys);
        plan.step("attaching /sys", Step::Attach { fd, on: on(c"sys") });
    }
    if unified {
        let attributes = if kind.own_init { DATA } else { DATA | Attributes::READ_ONLY };
        let on = Mountpoint { at: Text::from(c"sys/fs/cgroup"), make: Make::Skip };
        plan.step("mounting /sys/fs/cgroup", Step::Mount { kind: Text::from(c"cgroup2"), options: "", attributes, on });
    }
}

fn hide(plan: &mut Plan, kind: PrewarmedKind) -> Result<(), PlanError> {
    let policy = profile::of(kind.profile);
    for path in &policy.masked_files {
        let at = c_string("path", path)?;
        plan.step(format!("hiding /{path}"), Step::Mask { at: text(&at) });
    }
    for (number, path) in policy.masked_directories() {
        let empty = plan.want(Want::Empty(number));
        let at = c_string("path", path)?;
        let on = Mountpoint { at: text(&at), make: Make::Skip };
        plan.step(format!("hiding /{path}"), Step::Attach { fd: empty, on });
    }
    for path in policy.read_only(kind.user_namespace) {
        let at = c_string("path", path)?;
        plan.step(format!("protecting /{path}"), Step::Protect { at: text(&at) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_after_all_is_hidden_and_the_host_is_gone() {
        for user_namespace in [true, false] {
            let kind = PrewarmedKind { user_namespace, ..PrewarmedKind::of(&Spec::default()) };
            let plan = of_prewarmed_init(kind, true).unwrap();
            let place = |label: &str| plan.labels.iter().position(|known| known == label).expect(label);
            assert_eq!(place("waiting for a root file system") + 1, plan.labels.len());
            assert!(place("taking the stage as root") < place("installing the system call filter"));
            assert!(place("mounting /proc") < place("hiding /proc/kcore"));
            assert_eq!(plan.labels.iter().any(|label| label == "protecting /proc/sys"), !user_namespace);
        }
    }

    #[test]
    fn a_strict_guest_is_in_a_domain_and_reads_what_others_write() {
        let spec = Spec { profile: Some(Profile::Strict), ..Spec::default() };
        let plan = of_prewarmed_init(PrewarmedKind::of(&spec), true).unwrap();
        assert!(plan.labels.iter().any(|label| label == "protecting /proc/sys"));
        assert_eq!(
            (PrewarmedKind::of(&spec).scopes, PrewarmedKind::of(&Spec::default()).scopes),
            (Scopes::all(), Scopes::empty())
        );
    }

    #[test]
    fn the_stage_has_a_place_for_all_that_is_brought() {
        let places: Vec<_> = BROUGHT.iter().map(|(_, at)| at.to_str().unwrap()).collect();
        assert_eq!(places, STAGE);
    }
}
