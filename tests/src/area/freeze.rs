//! Freezing and cloning trees of processes: each kind of object by an actor that checks itself, in two clones and in
//! the source, which runs on.

use crate::case::Case;
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use pando_freeze::image::{self, Image};
use pando_freeze::{FreezeError, Frozen, Subject, Target, TaskIterator, freeze, load};
use pando_kernel::process::{held::HeldProcess, pidfd};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

pub(super) const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::Program("ip", "iproute2"),
];

pub(super) const TOLD: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::TaskIterator,
];

/// The kernel has guards since Linux 6.13, and tells of them since this.
const GUARDS: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::Linux(6, 15),
];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS)
}

pub(crate) const CASES: &[Case] = &[
    case("freeze::memory_is_shared_and_each_ones_own", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/memory.py"))
    }),
    case("freeze::memory_stays_guarded_and_sealed", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/guarded.py"))
    })
    .needs(GUARDS),
    case("freeze::guards_and_seals_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../fixtures/guarded.py"), |_| ());
    })
    .needs(GUARDS),
    case("freeze::threads_run_on", |sandbox| plays(sandbox, include_str!("../../fixtures/threads.py"))),
    case("freeze::threads_keep_where_they_run_and_what_they_wait_for", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/running.py"))
    }),
    case("freeze::files_keep_positions_flags_and_sharing", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/files.py"))
    }),
    case("freeze::descriptors_of_links_lead_to_links", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/links.py"))
    }),
    case("freeze::pipes_keep_what_is_in_them", |sandbox| plays(sandbox, include_str!("../../fixtures/pipes.py"))),
    case("freeze::signals_keep_handlers_masks_and_queues", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/signals.py"))
    }),
    case("freeze::timers_tick_on", |sandbox| plays(sandbox, include_str!("../../fixtures/timers.py"))),
    case("freeze::event_descriptors_keep_counts_and_watches", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/events.py"))
    }),
    case("freeze::trees_keep_sessions_groups_and_the_dead", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/tree.py"))
    }),
    case("freeze::a_tree_of_sixty_processes_and_two_hundred_threads", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/forest.py"))
    }),
    case("freeze::credentials_limits_and_names_are_kept", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/being.py"))
    }),
    case("freeze::filters_of_system_calls_keep_their_order", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/filters.py"))
    }),
    case("freeze::unix_sockets_keep_names_peers_and_queues", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/unix_sockets.py"))
    }),
    case("freeze::descriptors_in_flight_arrive", |sandbox| plays(sandbox, include_str!("../../fixtures/in_flight.py"))),
    case("freeze::named_pipes_keep_what_is_in_them", |sandbox| plays(sandbox, include_str!("../../fixtures/fifos.py"))),
    case("freeze::listeners_listen_on_and_connections_are_reset", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/internet.py"))
    }),
    case("freeze::shared_memory_is_shared_within_a_clone_and_not_between", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/shared_memory.py"))
    }),
    case("freeze::seals_hold_and_what_was_before_them_goes_on", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/seals.py"))
    }),
    case("freeze::system_v_objects_keep_numbers_and_contents", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/sysv.py"))
    }),
    case("freeze::host_names_of_their_own_are_kept", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/host_names.py"))
    }),
    case("freeze::mount_namespaces_of_their_own_are_made_again", |sandbox| {
        plays_after(sandbox, include_str!("../../fixtures/mount_spaces.py"), has_mounts)
    }),
    case("freeze::mount_namespaces_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../fixtures/mount_spaces.py"), has_mounts);
    }),
    case("freeze::roots_of_their_own_are_roots_again", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/own_roots.py"))
    }),
    case("freeze::roots_of_their_own_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../fixtures/own_roots.py"), |_| ());
    }),
    case("freeze::ipc_namespaces_with_nothing_in_them_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/ipc_spaces.py"))
    }),
    case("freeze::descriptors_of_namespaces_lead_to_the_clones_own", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/open_namespaces.py"))
    }),
    case("freeze::network_namespaces_with_sockets_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/net_spaces.py"))
    }),
    case("freeze::user_namespaces_of_their_own_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/user_spaces.py"))
    }),
    case("freeze::queues_and_devices_of_nested_namespaces_are_mounted_again", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/service_spaces.py"))
    }),
    case("freeze::descriptors_of_processes_lead_to_the_clones_own", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/process_descriptors.py"))
    }),
    case("freeze::message_queues_keep_what_waits_in_them", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/message_queues.py"))
    }),
    case("freeze::terminals_keep_numbers_settings_and_sessions", |sandbox| {
        plays_after(sandbox, include_str!("../../fixtures/terminals.py"), |space| {
            let words =
                ["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620,gid=5", "none", "/dev/pts"];
            assert!(space.command(&words).status().expect("mount runs").success());
        })
    }),
    case("freeze::watches_of_files_keep_their_numbers", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/inotify.py"))
    }),
    case("freeze::locks_are_held_on", |sandbox| plays(sandbox, include_str!("../../fixtures/locks.py"))),
    case("freeze::what_only_processes_themselves_know_is_kept", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/own_state.py"))
    }),
    Case::new("freeze::what_is_told_of_processes_is_what_they_say", what_is_told_is_what_they_say).needs(TOLD),
    Case::new("freeze::nobody_is_frozen_who_has_the_pid_of_one_that_has_ended", nobody_is_frozen_instead).needs(NEEDS),
    case("freeze::clones_of_clones", clones_of_clones),
    case("freeze::each_clone_of_one_holder_counts_its_pids_on", each_counts_its_pids_on),
    case("freeze::a_failed_clone_leaves_nothing", a_failed_clone_leaves_nothing),
];

/// A directory that everybody may write to.
pub(super) fn stage(sandbox: &Sandbox) -> PathBuf {
    let stage = sandbox.scratch().join("stage");
    for path in [sandbox.root(), &sandbox.scratch(), &stage] {
        std::fs::create_dir_all(path).expect("a directory");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("its mode");
    }
    stage
}

/// What tells of processes, where this machine can have it.
static ONLOOKER: LazyLock<Option<TaskIterator>> = LazyLock::new(|| TaskIterator::load().ok());

fn subject(space: &Space) -> Subject<'static> {
    Subject { init: space.init(), task_iterator: ONLOOKER.as_ref(), ..Subject::default() }
}

pub(super) fn frozen(space: &Space) -> Result<Frozen, FreezeError> {
    frozen_with(space, &subject(space))
}

/// The same where every process has to be asked.
pub(super) fn frozen_untold(space: &Space) -> Result<Frozen, FreezeError> {
    frozen_with(space, &Subject { task_iterator: None, ..subject(space) })
}

fn frozen_with(space: &Space, subject: &Subject<'_>) -> Result<Frozen, FreezeError> {
    let root = File::open(format!("/proc/{}/root", space.init())).expect("the root of a space");
    freeze(subject, || Ok(root.into()))
}

fn nobody_is_frozen_instead(sandbox: &Sandbox) {
    let (stage, space) = (stage(sandbox), Space::new());
    let _actor = space.play(include_str!("../../fixtures/being.py"), &stage);
    let as_that_of = |held: &HeldProcess| frozen_with(&space, &Subject { held: Some(held), ..subject(&space) });
    let pid = space.init();
    as_that_of(&HeldProcess::new(pid, pidfd::open(pid).unwrap())).unwrap_or_else(|error| panic!("{error}"));
    let error = as_that_of(&HeldProcess::ended(pid)).expect_err("its first process has ended");
    assert!(matches!(error, FreezeError::Restless(_)), "{error}");
}

/// Processes are asked where the kernel does not tell; either way they come out the same.
fn what_is_told_is_what_they_say(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let scripts = [
        include_str!("../../fixtures/own_state.py"),
        include_str!("../../fixtures/signals.py"),
        include_str!("../../fixtures/being.py"),
        include_str!("../../fixtures/threads.py"),
        include_str!("../../fixtures/timers.py"),
        include_str!("../../fixtures/settings.py"),
    ];
    for script in scripts {
        let space = Space::new();
        let _ = std::fs::remove_file(stage.join("ready"));
        let _actor = space.play(script, &stage);
        let seen = |task_iterator| {
            let frozen = frozen_with(&space, &Subject { task_iterator, ..subject(&space) });
            state(&frozen.unwrap_or_else(|error| panic!("{error}")).image)
        };
        let told = ONLOOKER.as_ref();
        assert!(told.is_some());
        assert_eq!(seen(told), seen(None), "{}", space.shown());
    }
}

/// What processes can be asked for, and nobody else, but for what is left of timers that run.
fn state(image: &Image) -> String {
    let of_thread = |thread: &image::Thread| {
        let bits = thread.credentials.secure_bits;
        let settings = &thread.settings;
        format!(
            "{} {} {:?} {} {} {bits} {settings:?}",
            thread.tid, thread.clear, thread.signal_stack, thread.parent_death, thread.slack
        )
    };
    let of_process = |process: &image::Process| {
        let threads: Vec<_> = process.threads.iter().map(of_thread).collect();
        let runs: Vec<_> = process.intervals.iter().map(|interval| [interval[0], interval[1]]).collect();
        let (heap_end, flags) = (process.layout.words[5], &process.flags);
        let asked_for = (&process.memory_rules, &process.by_host);
        format!("{} {threads:?} {:?} {runs:?} {flags:?} {heap_end:x} {asked_for:?}", process.pid, process.actions)
    };
    // The first look leaves one that has ended, which is for the first process to wait for.
    image.processes.iter().filter(|process| !process.threads.is_empty()).map(of_process).collect::<Vec<_>>().join("\n")
}

pub(super) fn clone_into(frozen: &Frozen, space: &Space) {
    let target =
        Target { init: space.init(), held: None, cgroup: None, groups: &[], supplied: &[], handoff: None, scopes: 0 };
    let ready = frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}"));
    ready.go().expect("it runs");
}

/// An actor is frozen and cloned twice; then all three check themselves. Each has its own version of the directory
/// `own` on the stage.
#[track_caller]
pub(super) fn plays(sandbox: &Sandbox, script: &str) {
    plays_after(sandbox, script, |_| ());
}

/// The same, each space prepared.
#[track_caller]
fn plays_after(sandbox: &Sandbox, script: &str, prepare: fn(&Space)) {
    let stage = stage(sandbox);
    let (own, kept) = (stage.join("own"), stage.join("kept"));
    std::fs::create_dir(&own).expect("a directory");
    let source = Space::new();
    prepare(&source);
    let _actor = source.play(script, &stage);
    let root = File::open(format!("/proc/{}/root", source.init())).expect("the root of a space");
    let files = root.try_clone().expect("a descriptor");
    let frozen = freeze(&subject(&source), || {
        copy(&own, &kept);
        Ok(root.into())
    });
    let frozen = frozen.unwrap_or_else(|error| panic!("{error}"));
    let image = stage.join("image");
    std::fs::create_dir(&image).expect("a directory");
    frozen.keep(&image, None).unwrap_or_else(|error| panic!("{error}"));
    let thawed = load(&image, files.as_fd()).unwrap_or_else(|error| panic!("{error}"));
    let clones = [Space::new(), Space::new()];
    for (number, clone) in clones.iter().enumerate() {
        prepare(clone);
        let version = stage.join(format!("own-{number}"));
        copy(&kept, &version);
        let words = ["mount", "--bind", &version.to_string_lossy(), &own.to_string_lossy()];
        assert!(clone.command(&words).status().expect("mount runs").success());
        // One from memory, one from the disk.
        clone_into(if number == 0 { &frozen } else { &thawed }, clone);
    }
    all_are_right(&stage, &[&source, &clones[0], &clones[1]]);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success(), "{} is copied", from.display());
}

/// Lets actors check themselves and wants each to have found itself right.
#[track_caller]
pub(super) fn all_are_right(stage: &std::path::Path, spaces: &[&Space]) {
    std::fs::write(stage.join("now"), "").expect("a file");
    for (number, space) in spaces.iter().enumerate() {
        let verdict = stage.join(space.number().to_string());
        assert!(comes_true(|| verdict.exists()), "number {number} has not checked itself:\n{}", space.shown());
        let said = std::fs::read_to_string(&verdict).expect("a verdict");
        assert_eq!(said, "right", "number {number} (the source is 0)");
    }
}

/// What a clone is made of can be frozen again, restorer's leftovers and all.
fn clones_of_clones(sandbox: &Sandbox) {
    again_and_again(sandbox, include_str!("../../fixtures/threads.py"), |_| ());
}

/// They are told of it through one open file of the holder's.
fn each_counts_its_pids_on(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../fixtures/tree.py"), &stage);
    let frozen = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let clones = [Space::new(), Space::new()];
    clones.iter().for_each(|clone| clone_into(&frozen, clone));
    all_are_right(&stage, &[&source, &clones[0], &clones[1]]);
}

/// Something that is mounted in two places.
fn has_mounts(space: &Space) {
    for place in ["/mnt", "/media"] {
        assert!(space.command(&["mount", "-t", "tmpfs", "none", place]).status().expect("mount runs").success());
    }
}

pub(super) fn again_and_again(sandbox: &Sandbox, script: &str, prepare: fn(&Space)) {
    let stage = stage(sandbox);
    let source = Space::new();
    prepare(&source);
    let _actor = source.play(script, &stage);
    let mut spaces = vec![source];
    for _ in 0..3 {
        let newest = spaces.last().expect("there is the source");
        let frozen = frozen(newest).unwrap_or_else(|error| panic!("{error}"));
        let clone = Space::new();
        prepare(&clone);
        clone_into(&frozen, &clone);
        spaces.push(clone);
    }
    all_are_right(&stage, &spaces.iter().collect::<Vec<_>>());
}

/// A clone whose files are missing is not made, whereupon the image still serves.
fn a_failed_clone_leaves_nothing(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../fixtures/files.py"), &stage);
    let frozen = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let barren = Space::new();
    let hide = barren.command(&["mount", "-t", "tmpfs", "none", &stage.to_string_lossy()]).status();
    assert!(hide.expect("mount runs").success());
    let target =
        Target { init: barren.init(), held: None, cgroup: None, groups: &[], supplied: &[], handoff: None, scopes: 0 };
    let said = frozen.clone_into(&target).map(drop).expect_err("its files are not there").to_string();
    assert!(said.contains("opening ") && said.contains("stage"), "{said}");
    let inside = || barren.command(&["sh", "-c", "! ps ax --no-headers | grep -q '[p]ython'"]).status();
    eventually("nothing of it is left", || inside().expect("sh runs").success());
    let clone = Space::new();
    // One that is made but never let go ends, too.
    let target =
        Target { init: clone.init(), held: None, cgroup: None, groups: &[], supplied: &[], handoff: None, scopes: 0 };
    drop(frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}")));
    let inside =
        || clone.command(&["sh", "-c", "! ps ax -o stat,args --no-headers | grep '[p]ython' | grep -qv ^Z"]).status();
    eventually("nothing of that is left either", || inside().expect("sh runs").success());
    let whole = Space::new();
    clone_into(&frozen, &whole);
    all_are_right(&stage, &[&source, &whole]);
}
