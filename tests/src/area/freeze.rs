//! Freezing and cloning trees of processes: each kind of object by an actor that checks itself, in two clones and in the source, which runs on.

use crate::case::Case;
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use pando_freeze::image::{self, Image};
use pando_freeze::{FreezeError, Frozen, Onlooker, Subject, Target, freeze, thaw};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::Program("ip", "iproute2"),
];

const TOLD: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::Onlooker,
];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS)
}

pub(crate) const CASES: &[Case] = &[
    case("freeze::memory_is_shared_and_each_ones_own", |sandbox| {
        plays(sandbox, include_str!("../../actors/memory.py"))
    }),
    case("freeze::threads_run_on", |sandbox| plays(sandbox, include_str!("../../actors/threads.py"))),
    case("freeze::threads_keep_where_they_run_and_what_they_wait_for", |sandbox| {
        plays(sandbox, include_str!("../../actors/running.py"))
    }),
    case("freeze::files_keep_positions_flags_and_sharing", |sandbox| {
        plays(sandbox, include_str!("../../actors/files.py"))
    }),
    case("freeze::pipes_keep_what_is_in_them", |sandbox| plays(sandbox, include_str!("../../actors/pipes.py"))),
    case("freeze::signals_keep_handlers_masks_and_queues", |sandbox| {
        plays(sandbox, include_str!("../../actors/signals.py"))
    }),
    case("freeze::timers_tick_on", |sandbox| plays(sandbox, include_str!("../../actors/timers.py"))),
    case("freeze::event_descriptors_keep_counts_and_watches", |sandbox| {
        plays(sandbox, include_str!("../../actors/events.py"))
    }),
    case("freeze::trees_keep_sessions_groups_and_the_dead", |sandbox| {
        plays(sandbox, include_str!("../../actors/tree.py"))
    }),
    case("freeze::a_tree_of_sixty_processes_and_two_hundred_threads", |sandbox| {
        plays(sandbox, include_str!("../../actors/forest.py"))
    }),
    case("freeze::credentials_limits_and_names_are_kept", |sandbox| {
        plays(sandbox, include_str!("../../actors/being.py"))
    }),
    case("freeze::filters_of_system_calls_keep_their_order", |sandbox| {
        plays(sandbox, include_str!("../../actors/filters.py"))
    }),
    case("freeze::unix_sockets_keep_names_peers_and_queues", |sandbox| {
        plays(sandbox, include_str!("../../actors/unix_sockets.py"))
    }),
    case("freeze::descriptors_in_flight_arrive", |sandbox| plays(sandbox, include_str!("../../actors/in_flight.py"))),
    case("freeze::named_pipes_keep_what_is_in_them", |sandbox| plays(sandbox, include_str!("../../actors/fifos.py"))),
    case("freeze::listeners_listen_on_and_connections_are_reset", |sandbox| {
        plays(sandbox, include_str!("../../actors/internet.py"))
    }),
    case("freeze::shared_memory_is_shared_within_a_clone_and_not_between", |sandbox| {
        plays(sandbox, include_str!("../../actors/shared_memory.py"))
    }),
    case("freeze::seals_hold_and_what_was_before_them_goes_on", |sandbox| {
        plays(sandbox, include_str!("../../actors/seals.py"))
    }),
    case("freeze::system_v_objects_keep_numbers_and_contents", |sandbox| {
        plays(sandbox, include_str!("../../actors/sysv.py"))
    }),
    case("freeze::host_names_of_their_own_are_kept", |sandbox| {
        plays(sandbox, include_str!("../../actors/host_names.py"))
    }),
    case("freeze::mount_namespaces_of_their_own_are_made_again", |sandbox| {
        plays_after(sandbox, include_str!("../../actors/mount_spaces.py"), has_mounts)
    }),
    case("freeze::mount_namespaces_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../actors/mount_spaces.py"), has_mounts);
    }),
    case("freeze::ipc_namespaces_with_nothing_in_them_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../actors/ipc_spaces.py"))
    }),
    case("freeze::descriptors_of_namespaces_lead_to_the_clones_own", |sandbox| {
        plays(sandbox, include_str!("../../actors/open_namespaces.py"))
    }),
    case("freeze::network_namespaces_with_sockets_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../actors/net_spaces.py"))
    }),
    case("freeze::user_namespaces_of_their_own_are_made_again", |sandbox| {
        plays(sandbox, include_str!("../../actors/user_spaces.py"))
    }),
    case("freeze::queues_and_devices_of_nested_namespaces_are_mounted_again", |sandbox| {
        plays(sandbox, include_str!("../../actors/service_spaces.py"))
    }),
    case("freeze::descriptors_of_processes_lead_to_the_clones_own", |sandbox| {
        plays(sandbox, include_str!("../../actors/process_descriptors.py"))
    }),
    case("freeze::message_queues_keep_what_waits_in_them", |sandbox| {
        plays(sandbox, include_str!("../../actors/message_queues.py"))
    }),
    case("freeze::terminals_keep_numbers_settings_and_sessions", |sandbox| {
        plays_after(sandbox, include_str!("../../actors/terminals.py"), |space| {
            let words =
                ["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620,gid=5", "none", "/dev/pts"];
            assert!(space.command(&words).status().expect("mount runs").success());
        })
    }),
    case("freeze::watches_of_files_keep_their_numbers", |sandbox| {
        plays(sandbox, include_str!("../../actors/inotify.py"))
    }),
    case("freeze::locks_are_held_on", |sandbox| plays(sandbox, include_str!("../../actors/locks.py"))),
    case("freeze::what_only_processes_themselves_know_is_kept", |sandbox| {
        plays(sandbox, include_str!("../../actors/own_state.py"))
    }),
    Case::new("freeze::what_is_told_of_processes_is_what_they_say", what_is_told_is_what_they_say).needs(TOLD),
    case("freeze::clones_of_clones", clones_of_clones),
    case("freeze::each_clone_of_one_holder_counts_its_pids_on", each_counts_its_pids_on),
    case("freeze::what_cannot_be_frozen_is_named", what_cannot_be_frozen_is_named),
    case("freeze::a_failed_clone_leaves_nothing", a_failed_clone_leaves_nothing),
];

/// A directory that everybody may write to.
fn stage(sandbox: &Sandbox) -> PathBuf {
    let stage = sandbox.scratch().join("stage");
    for path in [sandbox.root(), &sandbox.scratch(), &stage] {
        std::fs::create_dir_all(path).expect("a directory");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("its mode");
    }
    stage
}

/// What tells of processes, where this machine can have it.
static ONLOOKER: LazyLock<Option<Onlooker>> = LazyLock::new(|| Onlooker::load().ok());

fn subject(space: &Space) -> Subject<'static> {
    Subject { init: space.init(), onlooker: ONLOOKER.as_ref(), ..Subject::default() }
}

fn frozen(space: &Space) -> Result<Frozen, FreezeError> {
    frozen_with(space, &subject(space))
}

fn frozen_with(space: &Space, subject: &Subject<'_>) -> Result<Frozen, FreezeError> {
    let root = File::open(format!("/proc/{}/root", space.init())).expect("the root of a space");
    freeze(subject, || Ok(root.into()))
}

/// Processes are asked where the kernel does not tell; either way they come out the same.
fn what_is_told_is_what_they_say(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let scripts = [
        include_str!("../../actors/own_state.py"),
        include_str!("../../actors/signals.py"),
        include_str!("../../actors/being.py"),
        include_str!("../../actors/threads.py"),
        include_str!("../../actors/timers.py"),
    ];
    for script in scripts {
        let space = Space::new();
        let _ = std::fs::remove_file(stage.join("ready"));
        let _actor = space.play(script, &stage);
        let seen = |onlooker| {
            let frozen = frozen_with(&space, &Subject { onlooker, ..subject(&space) });
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
        format!(
            "{} {} {:?} {} {} {bits}",
            thread.tid, thread.clear, thread.signal_stack, thread.parent_death, thread.slack
        )
    };
    let of_process = |process: &image::Process| {
        let threads: Vec<_> = process.threads.iter().map(of_thread).collect();
        let runs: Vec<_> = process.intervals.iter().map(|interval| [interval[0], interval[1]]).collect();
        let (heap_end, flags) = (process.layout.words[5], &process.flags);
        format!("{} {threads:?} {:?} {runs:?} {flags:?} {heap_end:x}", process.pid, process.actions)
    };
    // The first look leaves one that has ended, which is for the first process to wait for.
    image.processes.iter().filter(|process| !process.threads.is_empty()).map(of_process).collect::<Vec<_>>().join("\n")
}

fn clone_into(frozen: &Frozen, space: &Space) {
    let target = Target { init: space.init(), cgroup: None, groups: &[], supplied: &[], cradle: None };
    let ready = frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}"));
    ready.go().expect("it runs");
}

/// An actor is frozen and cloned twice; then all three check themselves. Each has its own version of the directory `own` on the stage.
#[track_caller]
fn plays(sandbox: &Sandbox, script: &str) {
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
    frozen.keep(&image).unwrap_or_else(|error| panic!("{error}"));
    let thawed = thaw(&image, files.as_fd()).unwrap_or_else(|error| panic!("{error}"));
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
fn all_are_right(stage: &std::path::Path, spaces: &[&Space]) {
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
    again_and_again(sandbox, include_str!("../../actors/threads.py"), |_| ());
}

/// They are told of it through one open file of the holder's.
fn each_counts_its_pids_on(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../actors/tree.py"), &stage);
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

fn again_and_again(sandbox: &Sandbox, script: &str, prepare: fn(&Space)) {
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

/// What stands in the way, and words of the refusal.
const UNSUPPORTED: [(&str, &[&str]); 23] = [
    (
        "libc = __import__('ctypes').CDLL(None)\nkept = libc.inotify_init()\nlibc.inotify_add_watch(kept, b'/proc/self', 2)",
        &["descriptor", "an inotify instance with 1 watches"],
    ),
    (
        "import socket\nkept = socket.socketpair()\nkept[0].send(b'before')\nsocket.send_fds(kept[0], [b'x'], [os.pidfd_open(os.getpid())])",
        &["descriptor", "a process descriptor", "that waits to be received from a unix socket (SCM_RIGHTS)"],
    ),
    (
        "import select, socket\nkept = socket.socketpair()\nwatching = select.epoll()\nwatching.register(kept[1], 1)\n\
         socket.send_fds(kept[0], [b'x'], [watching.fileno()])\nwatching.close()",
        &["descriptor", "an epoll instance that watches something that waits to be received"],
    ),
    (
        "import socket\nkept = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         for _ in range(3):\n    socket.send_fds(kept[0], [b'x'], [0] * 200)",
        &["descriptor", "more than 512 descriptors that wait in unix sockets"],
    ),
    ("import socket\nkept = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", &["descriptor", "a socket of packets"]),
    ("import socket\nkept = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", &["descriptor", "a raw socket"]),
    ("os.mkdir(STAGE + '/x'); kept = os.open(STAGE + '/x', 0); os.rmdir(STAGE + '/x')", &["a deleted directory"]),
    (
        "kept = open(STAGE + '/gone', 'w+'); os.link(STAGE + '/gone', STAGE + '/left'); os.unlink(STAGE + '/gone')",
        &["descriptor", "a file that lost this name"],
    ),
    ("os.mkdir(STAGE + '/y'); os.chdir(STAGE + '/y'); os.rmdir(STAGE + '/y')", &["its working directory was deleted"]),
    (
        "leader = os.fork()\nif leader == 0:\n    os.setpgid(0, 0)\n    while os.fork():\n        os._exit(0)\n    time.sleep(1000)\n\
         os.waitpid(leader, 0)",
        &["whose leader has ended"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nlibc.unshare(0x08000000)\nlibc.shmget(7, 4096, 0o1600)",
        &["shared memory in an ipc namespace of its own", "ipcrm"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nlibc.unshare(0x08000000)\nlibc.mq_open(b'/x', os.O_CREAT | os.O_RDWR, 0o600, None)",
        &["a message queue in an ipc namespace of its own"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nif os.fork() == 0:\n    libc.unshare(0x08000000)\n    libc.shmget(7, 4096, 0o1600)\n\
         \x20   open(STAGE + '/made', 'w')\n    lingers()\nwhile not os.path.exists(STAGE + '/made'):\n    time.sleep(0.01)",
        &["shared memory in an ipc namespace of its own"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nlibc.unshare(0x40000000)\nos.system('ip link add strange type veth peer name stranger')",
        &["a network device (strange", "in a net namespace of its own", "the loopback device comes along"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nlibc.unshare(0x40000000)\nos.system('ip addr add 10.9.8.7/24 dev lo')",
        &["an address (10.9.8.7/24) in a net namespace of its own"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nlibc.unshare(0x40000000)\nos.system('ip rule add from 10.0.0.1 lookup 7 prio 70')",
        &["a rule for routes (with priority 70) in a net namespace of its own"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nhome = os.open('/proc/self/ns/net', 0)\nlibc.unshare(0x40000000)\n\
         kept = __import__('socket').socket()\nlibc.setns(home, 0)",
        &["descriptor", "a socket of a net namespace that nobody is in"],
    ),
    (
        "libc = __import__('ctypes').CDLL(None)\nhome = os.open('/proc/self/ns/mnt', 0)\nlibc.unshare(0x20000)\n\
         kept = os.open('/proc/self/ns/mnt', 0)\nlibc.setns(home, 0)",
        &["descriptor", "a descriptor of a mnt namespace of which no process is"],
    ),
    ("__import__('ctypes').CDLL(None).unshare(0x02000000)", &["a cgroup namespace of its own", "come along"]),
    ("kept = os.openpty(); os.close(kept[0])", &["descriptor", "a terminal whose other end is outside"]),
    (
        "libc = __import__('ctypes').CDLL(None)\nkept = libc.mq_open(b'/gone', os.O_CREAT | os.O_RDWR, 0o600, None)\nlibc.mq_unlink(b'/gone')",
        &["descriptor", "a message queue that was unlinked"],
    ),
    (
        "import ctypes\nlibc = ctypes.CDLL(None)\nkept = libc.mq_open(b'/told', os.O_CREAT | os.O_RDWR, 0o600, None)\n\
         wish = (ctypes.c_int * 16)(0, 0, 10, 0)\nassert libc.mq_notify(kept, wish) == 0",
        &["the message queue /told, of which it wants to be told"],
    ),
    (
        "gone = os.fork() or os._exit(0)\nkept = os.pidfd_open(gone)\nos.waitpid(gone, 0)",
        &["descriptor", "a descriptor of a process that is gone"],
    ),
];

/// What has a mount namespace of its own, and something in it that a clone could not have.
const APART: &str = "\
import ctypes, threading
libc = ctypes.CDLL(None)
def mount(source, target, kind='', flags=0):
    assert libc.mount(source.encode(), target.encode(), kind.encode(), flags, b'') == 0
def apart():
    assert libc.unshare(0x20000) == 0
    mount('none', '/', flags=1 << 14 | 1 << 18)
def private():
    apart()
    mount('none', STAGE + '/a', 'tmpfs')
for name in ('a', 'b'):
    os.mkdir(STAGE + '/' + name)
";

const UNSUPPORTED_APART: [(&str, &[&str]); 10] = [
    (
        "apart(); mount('none', STAGE + '/a', 'sysfs')",
        &["a file system that only its mnt namespace has (sysfs on ", "unmount it"],
    ),
    (
        "private(); mount(STAGE + '/b', STAGE + '/a', flags=4096)",
        &["a file system of its mnt namespace that another covers (tmpfs on ", "unmount the upper one"],
    ),
    (
        "apart(); mount(STAGE + '/b', STAGE + '/a', flags=4096); os.rmdir(STAGE + '/b')",
        &["a mount of files of its mnt namespace that were deleted (on "],
    ),
    ("private(); mount('none', STAGE + '/b', 'ramfs')", &["a file system that only its mnt namespace has (ramfs on "]),
    (
        "private()\nimport socket\nkept = socket.socket(socket.AF_UNIX)\nos.chdir(STAGE + '/a')\nkept.bind(os.getcwd() + '/it')",
        &["descriptor", "a unix socket whose file only its mnt namespace has"],
    ),
    (
        "private()\nimport mmap\nkept = open(STAGE + '/a/x', 'w+')\nkept.truncate(4096)\n\
         kept = mmap.mmap(kept.fileno(), 4096, mmap.MAP_PRIVATE)",
        &["memory of a file that only its mnt namespace has"],
    ),
    (
        "private(); kept = open(STAGE + '/a/x', 'w'); libc.umount2((STAGE + '/a').encode(), 2)",
        &["descriptor", "a file that its mnt namespace has elsewhere or not any more"],
    ),
    (
        "private(); kept = os.open(STAGE + '/a', 0); apart(); libc.umount2((STAGE + '/a').encode(), 2); os.fchdir(kept)",
        &["its working directory is not of its own mnt namespace"],
    ),
    (
        "kept = threading.Thread(target=lambda: (apart(), time.sleep(1000)), daemon=True); kept.start(); time.sleep(0.2)",
        &["a thread with a mnt namespace of its own"],
    ),
    (
        "apart()\nfor number in range(1025):\n    mount(STAGE + '/b', STAGE + '/a', flags=4096)",
        &["a mnt namespace of its own with more than 1024 mounts"],
    ),
];

fn what_cannot_be_frozen_is_named(sandbox: &Sandbox) {
    let apart = UNSUPPORTED_APART.map(|(setup, words)| (format!("{APART}{setup}"), words));
    let all = UNSUPPORTED.map(|(setup, words)| (setup.to_owned(), words)).into_iter().chain(apart);
    for (number, (setup, words)) in all.enumerate() {
        let stage = stage(sandbox).join(number.to_string());
        std::fs::create_dir_all(&stage).expect("a directory");
        let source = Space::new();
        let _actor = source.play(&format!("{setup}\nstand(lambda: None)\n"), &stage);
        match frozen(&source) {
            Err(error @ FreezeError::Refused(_)) => {
                let said = error.to_string();
                assert!(said.contains("(python3)"), "{said}");
                assert!(words.iter().all(|word| said.contains(word)), "{setup}: {said}");
            }
            Err(error) => panic!("{setup}: {error}"),
            Ok(_) => panic!("{setup}: it was frozen"),
        }
        all_are_right(&stage, &[&source]);
    }
}

/// A clone whose files are missing is not made, whereupon the image still serves.
fn a_failed_clone_leaves_nothing(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../actors/files.py"), &stage);
    let frozen = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let barren = Space::new();
    let hide = barren.command(&["mount", "-t", "tmpfs", "none", &stage.to_string_lossy()]).status();
    assert!(hide.expect("mount runs").success());
    let target = Target { init: barren.init(), cgroup: None, groups: &[], supplied: &[], cradle: None };
    let said = frozen.clone_into(&target).map(drop).expect_err("its files are not there").to_string();
    assert!(said.contains("opening ") && said.contains("stage"), "{said}");
    let inside = || barren.command(&["sh", "-c", "! ps ax --no-headers | grep -q '[p]ython'"]).status();
    eventually("nothing of it is left", || inside().expect("sh runs").success());
    let clone = Space::new();
    // One that is made but never let go ends, too.
    let target = Target { init: clone.init(), cgroup: None, groups: &[], supplied: &[], cradle: None };
    drop(frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}")));
    let inside =
        || clone.command(&["sh", "-c", "! ps ax -o stat,args --no-headers | grep '[p]ython' | grep -qv ^Z"]).status();
    eventually("nothing of that is left either", || inside().expect("sh runs").success());
    let whole = Space::new();
    clone_into(&frozen, &whole);
    all_are_right(&stage, &[&source, &whole]);
}
