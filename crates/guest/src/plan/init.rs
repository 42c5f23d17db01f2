//! The steps of a guest's first process from the moment that its root file system is there.

use super::command::{bound, confine, run};
use super::prewarmed_init::{self, PrewarmedKind};
use super::{Plan, PlanError, Program, Stdio, Want, c_string, sysctl, text};
use crate::policy::{grants, limits};
use pando_api::{Link, Network, Spec, Tmpfs};
use pando_limit::view::View;
use pando_shim::{Attributes, Make, Mountpoint, Step, Text};

/// What a plan needs to know besides the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The guest's name, which is its host name too if the spec gives none.
    pub name: String,
    /// Whether this host has a unified cgroup hierarchy.
    pub unified: bool,
    /// Hierarchies of version 1 that programs read their limits in: controller, and options of the mount.
    pub legacy: Vec<(&'static str, String)>,
    /// The numbers of the volumes whose source is no directory.
    pub file_volumes: Vec<usize>,
    /// What comes out of an image.
    pub heritage: Heritage,
    /// Which files of the kernel's are shown otherwise.
    pub views: Vec<View>,
    /// Whether a client waits for the command's end.
    pub awaited: bool,
    /// Whether the guest has been admitted to the network when the plan is sent; else it waits for that before anything
    /// of its own runs.
    pub admitted: bool,
}

/// What of a guest's first processes comes out of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heritage {
    /// Nothing.
    #[default]
    None,
    /// The command, which has this pid and becomes the first process's child.
    Command(i32),
    /// The guest's own init: the first process executes a program that comes along, and that becomes it.
    Init,
}

/// The longest host name the kernel takes.
const LONGEST_HOST_NAME: usize = 64;

/// The most volumes, so that all descriptors fit a message.
const MOST_VOLUMES: usize = 48;

/// Paths that a guest needs for itself.
const RESERVED: [&str; 7] = ["/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup"];

/// What is left to do for a guest's first process once its [`prewarmed_init`](super::of_prewarmed_init()) stands: it
/// goes on where that plan waits. `program` is what it runs below its init, or as its init; without one it idles.
pub fn of_init(spec: &Spec, facts: &Facts, program: Option<&Program>) -> Result<Plan, PlanError> {
    let kind = PrewarmedKind::of(spec);
    let mut plan = Plan::rest(kind, facts.unified);
    sysctl::set(&mut plan, spec)?;
    root(&mut plan);
    views(&mut plan, &facts.views);
    legacy_groups(&mut plan, spec, facts)?;
    shared_memory(&mut plan, spec)?;
    volumes(&mut plan, spec, facts)?;
    if spec.read_only {
        // Every place that something is shown at has been made.
        let at = Text::from(c"");
        let set = Attributes::READ_ONLY.bits();
        let step = Step::Change { at, recursive: false, set, clear: 0, propagation: 0 };
        plan.step("making its files read-only", step);
    }
    plan.step("taking the new root", Step::TakeRoot);
    if spec.init.is_some() {
        // As systemd has it on a machine, and expects to find it where another program starts it: services get their
        // credentials through mounts made for all.
        plan.step("sharing what is mounted", Step::Share);
    }
    host_name(&mut plan, spec, facts)?;
    // One out of an image has those that it had, and needs more descriptors until then than they may allow.
    if facts.heritage != Heritage::Init {
        for (name, limit) in &grants::of_processes(spec)? {
            plan.step(format!("setting limit {name}"), limits::step(name, limit)?);
        }
    }
    if program.is_some_and(|program| program.stdio == Stdio::Console) || facts.heritage == Heritage::Init {
        let fd = plan.want(Want::Terminal);
        plan.step("opening the guest's console", Step::Console { fd });
    }
    let keep = bound(spec)?;
    confine(&mut plan, spec, keep, Some(kind));
    if !facts.admitted {
        plan.step("waiting to be admitted to the network", Step::Admission);
    }
    match facts.heritage {
        Heritage::Command(pid) => plan.step("becoming the clone's init", Step::Adopt { pid }),
        Heritage::Init => restore(&mut plan),
        Heritage::None if spec.init.is_none() => {
            let word = (facts.awaited && program.is_some()).then(|| plan.want(Want::Word));
            plan.step("becoming the guest's init", Step::Init { word });
        }
        Heritage::None => {}
    }
    if let Some(program) = program {
        run(&mut plan, spec, program, keep)?;
    }
    Ok(plan)
}

/// Becomes the program that makes it the frozen init, with the socket as standard input at which that waits.
fn restore(plan: &mut Plan) {
    let socket = plan.want(Want::Stdio(1));
    plan.step("connecting the restorer", Step::Stdio { fds: [socket; 3] });
    let fd = plan.want(Want::Program);
    plan.step("running the restorer", Step::ExecFd { fd, arguments: c"pando-restorer".to_bytes_with_nul() });
}

fn root(plan: &mut Plan) {
    let fd = plan.want(Want::Root);
    plan.step("entering the root file system", Step::EnterRoot { fd, over: Text::from(c"/") });
    for (from, at) in prewarmed_init::BROUGHT {
        let on = Mountpoint { at: Text::from(at), make: Make::Directory };
        plan.step(format!("attaching {}", from.to_string_lossy()), Step::Bring { from: Text::from(from), on });
    }
}

/// What the guest sees of the machine's memory and processors. A kernel may lack the file.
fn views(plan: &mut Plan, views: &[View]) {
    for view in views {
        let fd = plan.want(Want::View(*view));
        let on = Mountpoint { at: Text::from(view.path()), make: Make::Skip };
        plan.step(format!("showing /{}", view.path().to_string_lossy()), Step::Attach { fd, on });
    }
}

/// Shows a guest with limits the files of version 1 that hold them, where a hybrid host has them: runtimes of languages
/// (Java, Go, .NET, Node) look there for how much memory and how many processors they may use. An init of the guest's
/// own finds version 2 alone, which is what it can manage.
fn legacy_groups(plan: &mut Plan, spec: &Spec, facts: &Facts) -> Result<(), PlanError> {
    let limits = grants::read(spec)?;
    let limited = limits.memory.limit.is_some()
        || limits.cpu.limit.is_some()
        || limits.cpu.reserve.is_some()
        || limits.cpu.cpus.is_some();
    if !limited || spec.init.is_some() || facts.legacy.is_empty() {
        return Ok(());
    }
    let read_only = Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC | Attributes::READ_ONLY;
    let writable = read_only - Attributes::READ_ONLY;
    let on = Mountpoint { at: Text::from(c"sys/fs/cgroup"), make: Make::Skip };
    // Room for the mount points and for nothing else.
    let options = "mode=755,size=4k,nr_inodes=16";
    let kind = Text::from(c"tmpfs");
    plan.step("making room for control groups", Step::Mount { kind, options, attributes: writable, on });
    let unified = facts.unified.then_some(("unified", ""));
    for (name, options) in facts.legacy.iter().map(|(name, options)| (*name, options.as_str())).chain(unified) {
        let kind = Text::from(if name == "unified" { c"cgroup2" } else { c"cgroup" });
        let at = c_string("control group", &format!("sys/fs/cgroup/{name}"))?;
        let on = Mountpoint { at: text(&at), make: Make::Directory };
        plan.step(format!("mounting /sys/fs/cgroup/{name}"), Step::Mount { kind, options, attributes: read_only, on });
    }
    Ok(())
}

/// /dev/shm has a size of its own only if that is wanted: /dev as a whole is bounded anyway.
fn shared_memory(plan: &mut Plan, spec: &Spec) -> Result<(), PlanError> {
    if let Some(bytes) = grants::read(spec)?.memory.shm {
        let options = format!("size={bytes},mode=1777");
        let attributes = Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
        let on = Mountpoint { at: Text::from(c"dev/shm"), make: Make::Directory };
        plan.step("mounting /dev/shm", Step::Mount { kind: Text::from(c"tmpfs"), options: &options, attributes, on });
    }
    Ok(())
}

fn volumes(plan: &mut Plan, spec: &Spec, facts: &Facts) -> Result<(), PlanError> {
    let given = spec.volumes.len() + spec.tmpfs.len();
    if given > MOST_VOLUMES {
        return Err(PlanError::TooMany { given, most: MOST_VOLUMES });
    }
    if spec.network != Network::None {
        let fd = plan.want(Want::Resolver);
        let on = Mountpoint { at: Text::from(c"etc/resolv.conf"), make: Make::File };
        plan.step("showing the resolver configuration", Step::Attach { fd, on });
    }
    if spec.network == Network::Private && spec.link != Link::Macvlan {
        let fd = plan.want(Want::Hosts);
        let on = Mountpoint { at: Text::from(c"etc/hosts"), make: Make::File };
        plan.step("showing who else is on the network", Step::Attach { fd, on });
    }
    for (target, shown) in in_order(spec)? {
        let at = c_string("volume's target", target.trim_start_matches('/'))?;
        match shown {
            Shown::Volume(number) => {
                let fd = plan.want(Want::Volume(number));
                let make = if facts.file_volumes.contains(&number) { Make::File } else { Make::Directory };
                let on = Mountpoint { at: text(&at), make };
                plan.step(format!("mounting volume {target}"), Step::Attach { fd, on });
            }
            Shown::Memory(tmpfs) => {
                let (options, attributes) = in_memory(tmpfs);
                let on = Mountpoint { at: text(&at), make: Make::Directory };
                let kind = Text::from(c"tmpfs");
                let step = Step::Mount { kind, options: &options, attributes, on };
                plan.step(format!("mounting a file system in memory on {target}"), step);
            }
        }
    }
    Ok(())
}

/// What a user has mounted in his guest.
#[derive(Clone, Copy)]
enum Shown<'a> {
    /// A place of the host's, by its number.
    Volume(usize),
    /// A file system in memory.
    Memory(&'a Tmpfs),
}

/// The options of a file system in memory, and its attributes.
fn in_memory(tmpfs: &Tmpfs) -> (String, Attributes) {
    let mode = tmpfs.mode.as_deref().unwrap_or("1777");
    let size = tmpfs.size.as_ref().map(|size| format!(",size={size}")).unwrap_or_default();
    let kept = Attributes::NO_SUID | Attributes::NO_DEV;
    (format!("mode={mode}{size}"), if tmpfs.exec { kept } else { kept | Attributes::NO_EXEC })
}

/// What is mounted by the user's request, and where: one inside another comes after that, or it would be hidden.
fn in_order(spec: &Spec) -> Result<Vec<(String, Shown<'_>)>, PlanError> {
    let volumes = spec.volumes.iter().enumerate().map(|(number, volume)| (&volume.target, Shown::Volume(number)));
    let memory = spec.tmpfs.iter().map(|tmpfs| (&tmpfs.target, Shown::Memory(tmpfs)));
    let mut targets: Vec<(String, Shown<'_>)> = Vec::with_capacity(spec.volumes.len() + spec.tmpfs.len());
    for (target, shown) in volumes.chain(memory) {
        let target =
            clean(target).ok_or_else(|| PlanError::Relative { what: "volume's target", path: target.clone() })?;
        if RESERVED.contains(&target.as_str()) {
            return Err(PlanError::VolumeTarget(target));
        }
        if targets.iter().any(|(known, _)| *known == target) {
            return Err(PlanError::SameTarget(target));
        }
        targets.push((target, shown));
    }
    targets.sort_by_key(|(target, _)| target.matches('/').count());
    Ok(targets)
}

/// An absolute path without doubled or closing slashes and without `.`; `None` where it is relative or climbs.
fn clean(path: &str) -> Option<String> {
    let rest = path.strip_prefix('/')?;
    let parts: Vec<_> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    (!parts.contains(&"..")).then(|| format!("/{}", parts.join("/")))
}

fn host_name(plan: &mut Plan, spec: &Spec, facts: &Facts) -> Result<(), PlanError> {
    let name = spec.hostname.as_ref().unwrap_or(&facts.name);
    // What resolvers, mail and the prompt of a shell take for one (hostname(7)), and underscores, which many have.
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins_well || name.len() > LONGEST_HOST_NAME || !name.bytes().all(is_usual) {
        return Err(PlanError::HostName(name.escape_debug().to_string()));
    }
    plan.step("setting the host name", Step::HostName { name: name.as_bytes() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use std::collections::BTreeMap;

    fn facts() -> Facts {
        Facts {
            name: "web".into(),
            unified: true,
            legacy: Vec::new(),
            file_volumes: Vec::new(),
            heritage: Heritage::None,
            views: Vec::new(),
            awaited: false,
            admitted: true,
        }
    }

    fn program(command: &[&str]) -> Program {
        Program {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            env: BTreeMap::new(),
            workdir: None,
            account: Account::root(),
            stdio: Stdio::Given,
            sent_along: false,
        }
    }

    /// Where in the plan a step with this label stands.
    fn place(plan: &Plan, label: &str) -> usize {
        let mut labels = (0..).map(|number| plan.label(number)).take_while(|known| known != "starting");
        labels.position(|known| known == label).unwrap_or_else(|| panic!("no step '{label}' in {plan:?}"))
    }

    #[test]
    fn privilege_is_given_up_before_anything_of_the_guest_runs() {
        let plan = of_init(&Spec::default(), &facts(), Some(&program(&["true"]))).unwrap();
        let filter = "installing the system call filter";
        let bound = "giving up capabilities";
        let order = ["taking the new root", filter, bound, "becoming the guest's init", "running true"];
        let places = |plan: &Plan| order.map(|label| place(plan, label));
        let [root, filtered, bounded, init, run] = places(&plan);
        assert!([root, init, run].is_sorted() && filtered < root && bounded < root, "{plan:?}");
        // What is not as the profile has it, or refuses the steps of a start, is not done ahead of them.
        let more = Spec { cap_add: vec!["NET_ADMIN".into()], ..Spec::default() };
        let [root, _, bounded, init, _] = places(&of_init(&more, &facts(), Some(&program(&["true"]))).unwrap());
        assert!([root, bounded, init].is_sorted());
        let strict = Spec { profile: Some(pando_api::Profile::Strict), ..Spec::default() };
        let [root, filtered, _, init, _] = places(&of_init(&strict, &facts(), Some(&program(&["true"]))).unwrap());
        assert!([root, filtered, init].is_sorted());
        let unfiltered = Spec { seccomp: pando_api::SeccompProfile::Off, ..Spec::default() };
        let unfiltered = of_init(&unfiltered, &facts(), Some(&program(&["true"]))).unwrap();
        assert!(!unfiltered.labels.iter().any(|label| label == filter));
        assert_eq!(plan.label(run as u32 + 1), "starting", "it is the last");
    }

    #[test]
    fn a_guest_without_a_command_idles() {
        let plan = of_init(&Spec::default(), &facts(), None).unwrap();
        assert_eq!(plan.labels.last().unwrap(), "becoming the guest's init");
        assert!(!plan.wants.contains(&Want::Stdio(0)));
    }

    #[test]
    fn a_guest_with_its_own_init_has_no_other() {
        let spec = Spec { init: Some("/sbin/init".into()), ..Spec::default() };
        let plan = of_init(&spec, &facts(), Some(&program(&["/sbin/init"]))).unwrap();
        assert!(!plan.labels.iter().any(|label| label == "becoming the guest's init"));
    }

    #[test]
    fn an_init_out_of_an_image_has_a_console_and_no_other_init() {
        let spec = Spec { init: Some("/sbin/init".into()), ..Spec::default() };
        let plan = of_init(&spec, &Facts { heritage: Heritage::Init, ..facts() }, None).unwrap();
        let (console, restorer) = (place(&plan, "opening the guest's console"), place(&plan, "running the restorer"));
        assert!(console < restorer);
        assert_eq!(plan.last_label(), "running the restorer");
        assert!(plan.wants.contains(&Want::Terminal) && plan.wants.contains(&Want::Stdio(1)));
    }

    #[test]
    fn a_console_is_there_before_nothing_can_be_mounted_any_more() {
        let spec =
            Spec { init: Some("/sbin/init".into()), profile: Some(pando_api::Profile::Strict), ..Spec::default() };
        let init = Program { stdio: Stdio::Console, ..program(&["/sbin/init"]) };
        let plan = of_init(&spec, &facts(), Some(&init)).unwrap();
        let console = place(&plan, "opening the guest's console");
        assert!(place(&plan, "taking the new root") < console);
        assert!(console < place(&plan, "installing the system call filter"));
        assert!(plan.wants.contains(&Want::Terminal) && !plan.wants.contains(&Want::Stdio(0)));
    }

    #[test]
    fn volumes_stay_inside_and_off_the_guests_own_places() {
        for target in ["relative", "/../etc", "/a/../../b"] {
            let spec = Spec { volumes: vec![format!("/srv:/{}", "x").parse().unwrap()], ..Spec::default() };
            let mut spec = spec;
            spec.volumes[0].target = target.into();
            assert!(matches!(of_init(&spec, &facts(), None), Err(PlanError::Relative { .. })), "{target}");
        }
        for target in ["/", "//", "/proc/", "/dev/./pts"] {
            let mut spec = Spec { volumes: vec!["/srv:/x".parse().unwrap()], ..Spec::default() };
            spec.volumes[0].target = target.into();
            assert!(matches!(of_init(&spec, &facts(), None), Err(PlanError::VolumeTarget(_))), "{target}");
        }
    }

    #[test]
    fn a_volume_inside_another_comes_after_it() {
        let volumes = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let spec = Spec { volumes: volumes(&["/a:/srv/x/y", "/b:/srv", "/c:/opt", "/d:/srv//x"]), ..Spec::default() };
        let order: Vec<_> = in_order(&spec).unwrap().into_iter().map(|(target, _)| target).collect();
        assert_eq!(order, ["/srv", "/opt", "/srv/x", "/srv/x/y"]);
        let spec = Spec { volumes: volumes(&["/a:/srv/x", "/b:/srv/./x/"]), ..Spec::default() };
        assert!(matches!(in_order(&spec), Err(PlanError::SameTarget(target)) if target == "/srv/x"));
    }

    #[test]
    fn a_host_name_is_one_that_others_can_use() {
        let named = |name: &str| of_init(&Spec { hostname: Some(name.into()), ..Spec::default() }, &facts(), None);
        for wrong in ["", "5\n", "a/b", "a b", "-a", ".a", "ä", "a\0"] {
            assert!(matches!(named(wrong), Err(PlanError::HostName(_))), "{wrong:?}");
        }
        for right in ["a", "web-1.example.org", "a_b", "5"] {
            assert!(named(right).is_ok(), "{right}");
        }
    }

    #[test]
    fn nul_bytes_are_refused_by_name() {
        let error = of_init(&Spec::default(), &facts(), Some(&program(&["a\0b"]))).unwrap_err();
        assert!(error.to_string().contains("argument 'a\\0b'"), "{error}");
    }

    #[test]
    fn it_goes_on_where_the_prewarmed_init_waits() {
        let before = prewarmed_init::of_prewarmed_init(PrewarmedKind::of(&Spec::default()), true).unwrap();
        let plan = of_init(&Spec::default(), &facts(), None).unwrap();
        assert_eq!(place(&plan, "entering the root file system"), before.labels.len());
        assert_eq!(plan.start, None);
        assert!(plan.label(0).contains("host's mounts"), "a step of the prewarmed init that failed keeps its words");
    }

    #[test]
    fn what_is_shown_otherwise_is_there_before_anything_of_the_guest_runs() {
        let facts = Facts { views: vec![View::MemInfo, View::Online], ..facts() };
        let plan = of_init(&Spec::default(), &facts, Some(&program(&["true"]))).unwrap();
        let shown = place(&plan, "showing /proc/meminfo");
        assert!(place(&plan, "attaching /sys") < shown && shown < place(&plan, "taking the new root"));
        assert!(plan.wants.contains(&Want::View(View::Online)));
    }

    #[test]
    fn a_plan_can_be_printed() {
        let plan = of_init(&Spec::default(), &facts(), None).unwrap();
        assert!(format!("{plan:?}").contains("attaching /proc: Bring"));
    }
}
