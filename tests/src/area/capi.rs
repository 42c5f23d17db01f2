//! Transactions inside programs: libpando, as programs in C use it.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::line::{Ended, Line, Started};
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::sandbox::Sandbox;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NEEDS: &[Need] = &[Need::Root, Need::Library, Need::Program("cc", "gcc")];

pub(crate) const CASES: &[Case] = &[
    Case::new("capi::files_that_a_program_changes_are_changed_as_a_whole_or_not_at_all", files).needs(NEEDS),
    Case::new("capi::descriptors_that_were_open_before_are_as_they_were_after_an_abort", descriptors).needs(NEEDS),
    Case::new("capi::what_is_opened_inside_leads_to_what_was_committed", opened).needs(NEEDS),
    Case::new("capi::directory_and_mask_are_as_they_were_after_an_abort", places).needs(NEEDS),
    Case::new("capi::users_groups_and_limits_are_as_they_were_after_an_abort", identity).needs(NEEDS),
    Case::new("capi::processes_that_are_made_inside_are_a_part_of_it", processes).needs(NEEDS),
    Case::new("capi::handlers_are_as_they_were_after_an_abort_and_locks_are_kept", signals).needs(NEEDS),
    Case::new("capi::what_is_wrong_or_cannot_be_is_said", misuse).needs(NEEDS),
    Case::new("capi::without_a_daemon_it_says_so", without_daemon).needs(NEEDS),
    Case::new("capi::programs_that_meet_begin_again_until_all_is_done", counted).needs(NEEDS),
    Case::new("capi::a_user_whose_sockets_come_and_go_keeps_no_program_waiting", crowded).needs(&[
        Need::Root,
        Need::Library,
        Need::Program("cc", "gcc"),
        Need::Program("python3", "python3"),
    ]),
    Case::new("capi::whoever_is_not_root_is_no_daemon", not_roots).needs(&[
        Need::Root,
        Need::Library,
        Need::Program("cc", "gcc"),
        Need::Program("python3", "python3"),
    ]),
    Case::new("capi::a_set_user_id_program_believes_no_environment", above_its_caller).needs(&[
        Need::Root,
        Need::Library,
        Need::Program("cc", "gcc"),
        Need::Program("python3", "python3"),
    ]),
    Case::new("capi::a_commit_of_a_program_can_be_undone", undone).needs(NEEDS),
    Case::new("capi::a_program_that_is_killed_has_done_all_or_nothing", killed).needs(NEEDS),
    Case::new("capi::a_daemon_that_is_killed_has_committed_all_or_nothing", daemon_killed).needs(NEEDS),
    Case::new("capi::programs_and_daemons_that_are_killed_again_and_again_leave_nothing", killed_often)
        .tags(&[Tag::Slow])
        .needs(NEEDS),
];

const HEADER: &str = include_str!("../../../crates/capi/include/pando.h");
const ROWS: &str = include_str!("../../capi/rows.c");
const MISUSE: &str = include_str!("../../capi/misuse.c");
const COUNTER: &str = include_str!("../../capi/counter.c");

/// Where the library lies that is tested: as the environment says, or beside this program.
pub(crate) fn library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PANDO_TEST_LIBRARY") {
        return Some(path.into());
    }
    let program = std::env::current_exe().ok()?;
    let profile = program.parent()?;
    let host = profile.parent()?;
    let found = host.parent()?.join("capi").join(host.file_name()?).join(profile.file_name()?).join("libpando.so");
    found.is_file().then_some(found)
}

/// Compiles a program against the library.
fn compiled(sandbox: &Sandbox, name: &str, text: &str) -> PathBuf {
    let (scratch, library) = (sandbox.scratch(), library().expect("it was found before"));
    let (source, program) = (scratch.join(format!("{name}.c")), scratch.join(name));
    std::fs::write(scratch.join("pando.h"), HEADER).and_then(|()| std::fs::write(&source, text)).unwrap();
    let directory = library.parent().unwrap().display().to_string();
    let options = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    let line = Line::new("cc").args(options).args([&program, &source]).args([format!("-I{}", scratch.display())]);
    line.args([format!("-L{directory}"), "-lpando".into(), format!("-Wl,-rpath,{directory}")]).ok();
    program
}

/// A daemon that makes views ahead.
fn with_daemon(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
}

fn program(sandbox: &Sandbox, program: &Path, directory: &str) -> Line {
    let directory = sandbox.scratch().join(directory);
    std::fs::create_dir_all(&directory).unwrap();
    Line::new(program).directory(directory).env("PANDO_ROOT", sandbox.root())
}

fn row(sandbox: &Sandbox, name: &str) {
    with_daemon(sandbox);
    let rows = compiled(sandbox, "rows", ROWS);
    for how in ["commit", "abort", "conflict"] {
        let ended = program(sandbox, &rows, how).args([name, how]).run();
        assert_eq!((ended.code(), ended.err().as_str()), (0, ""), "{name} {how}");
    }
    leaves_nothing(sandbox);
}

fn files(sandbox: &Sandbox) {
    row(sandbox, "files");
}

fn descriptors(sandbox: &Sandbox) {
    row(sandbox, "descriptors");
}

fn opened(sandbox: &Sandbox) {
    row(sandbox, "opened");
}

fn places(sandbox: &Sandbox) {
    row(sandbox, "places");
}

fn identity(sandbox: &Sandbox) {
    row(sandbox, "identity");
}

fn processes(sandbox: &Sandbox) {
    row(sandbox, "processes");
}

fn signals(sandbox: &Sandbox) {
    row(sandbox, "signals");
}

fn misuse(sandbox: &Sandbox) {
    with_daemon(sandbox);
    let misuse = compiled(sandbox, "misuse", MISUSE);
    let ended = program(sandbox, &misuse, "wrong").run();
    assert_eq!((ended.code(), ended.err().as_str()), (0, ""));
    leaves_nothing(sandbox);
}

fn without_daemon(sandbox: &Sandbox) {
    let counter = compiled(sandbox, "counter", COUNTER);
    let ended = program(sandbox, &counter, "none").args(["1"]).run().ended_with(3);
    ended.complains_of(&["no daemon of Pando listens", "pando daemon"]);
}

/// The two numbers that are counted up together.
fn numbers(sandbox: &Sandbox) -> [u32; 2] {
    let number = |name: &str| std::fs::read_to_string(sandbox.scratch().join("count").join(name)).unwrap();
    ["left", "right"].map(|name| number(name).trim().parse().expect("it is a whole number"))
}

fn counting(sandbox: &Sandbox) -> PathBuf {
    let counter = compiled(sandbox, "counter", COUNTER);
    let directory = sandbox.scratch().join("count");
    std::fs::create_dir_all(&directory).unwrap();
    for name in ["left", "right"] {
        std::fs::write(directory.join(name), "0\n").unwrap();
    }
    counter
}

fn counted(sandbox: &Sandbox) {
    with_daemon(sandbox);
    let counter = counting(sandbox);
    let started: Vec<_> = (0..3).map(|_| program(sandbox, &counter, "count").args(["8"]).start()).collect();
    let ended: Vec<Ended> = started.into_iter().map(|one| one.wait().succeeded()).collect();
    assert!(ended.iter().all(|one| one.out() == "........"));
    assert_eq!(numbers(sandbox), [24, 24]);
    leaves_nothing(sandbox);
}

/// Makes and removes sockets that listen, as fast as it can, as any user may. There are others at each moment.
const CROWD: &str = "import itertools, os, socket, sys
former = None
for number in itertools.count():
    one = socket.socket(socket.AF_UNIX); path = f'{sys.argv[1]}{number}'; one.bind(path); one.listen(); os.unlink(path)
    former = one
";

fn crowded(sandbox: &Sandbox) {
    with_daemon(sandbox);
    let counter = counting(sandbox);
    let crowding = Line::new("python3").args(["-c", CROWD]).args([sandbox.scratch().join("socket")]).start();
    program(sandbox, &counter, "count").args(["6"]).run().succeeded();
    assert_eq!(numbers(sandbox), [6, 6]);
    crowding.signal(Signal::KILL);
    crowding.wait();
    leaves_nothing(sandbox);
}

/// Listens as nobody where a daemon would, and answers what it is asked for with a namespace of its own.
const FALSE_DAEMON: &str = "import array, os, socket, sys
one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777)
os.setgid(65534); os.setuid(65534); one.listen(); print('listens', flush=True)
while True:
    peer, _ = one.accept()
    view = array.array('i', [os.open('/proc/self/ns/mnt', os.O_RDONLY)])
    peer.recv(4096) and peer.sendmsg([b'{\"parameters\":{}}\\0'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, view)])
";

/// A state root where somebody else than root listens; and who.
fn false_daemon(sandbox: &Sandbox) -> (PathBuf, Started) {
    let root = sandbox.scratch().join("false");
    std::fs::create_dir_all(root.join("run/pando")).unwrap();
    let socket = root.join("run/pando/pando.sock");
    let listening = Line::new("python3").args(["-c", FALSE_DAEMON]).args([&socket]).start();
    eventually("it listens", || socket.exists() && std::os::unix::net::UnixStream::connect(&socket).is_ok());
    (root, listening)
}

fn not_roots(sandbox: &Sandbox) {
    let (counter, (root, listening)) = (counting(sandbox), false_daemon(sandbox));
    let ended = program(sandbox, &counter, "count").args(["1"]).env("PANDO_ROOT", &root).run().ended_with(3);
    ended.complains_of(&["user 65534 listens", "PANDO_ROOT"]);
    listening.signal(Signal::KILL);
    listening.wait();
}

/// Executes a program that it may not reach by name, as nobody.
const AS_NOBODY: &str = "import os, sys
program = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC); os.chdir('/')
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execve(program, sys.argv[1:], dict(os.environ))
";

fn above_its_caller(sandbox: &Sandbox) {
    let (counter, (root, listening)) = (counting(sandbox), false_daemon(sandbox));
    // Without a shared library, which its loader might not reach.
    let (archive, scratch) = (library().expect("it was found before").with_extension("a"), sandbox.scratch());
    let line = Line::new("cc").args(["-o"]).args([&counter, &scratch.join("counter.c"), &archive]);
    line.args([format!("-I{}", scratch.display())]).args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]).ok();
    std::fs::set_permissions(&counter, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let ended =
        Line::new("python3").args(["-c", AS_NOBODY]).args([&counter]).args(["1"]).env("PANDO_ROOT", &root).run();
    // Where the machine has a Pando of its own, it is that which is asked.
    assert!(!ended.err().contains(&*root.to_string_lossy()), "{}", ended.err());
    assert!(ended.err().contains("/run/pando/pando.sock") || ended.err().contains("reading left"), "{}", ended.err());
    listening.signal(Signal::KILL);
    listening.wait();
}

fn undone(sandbox: &Sandbox) {
    sandbox.settings("[transactions]\nkeep = '1G, 1d'\n");
    with_daemon(sandbox);
    let counter = counting(sandbox);
    program(sandbox, &counter, "count").args(["2"]).run().succeeded();
    let log = sandbox.pando(["tx", "log"]).ok();
    assert!(log.contains("counter 2"), "{log}");
    sandbox.pando(["tx", "undo", "2"]).ok();
    assert_eq!(numbers(sandbox), [1, 1]);
}

/// What a program says that it has done is done, and no more than the one that it was about.
fn is_whole(sandbox: &Sandbox, before: u32, said: usize) {
    let [left, right] = numbers(sandbox);
    let said = before + u32::try_from(said).unwrap();
    assert!(left == right && (said..=said + 1).contains(&left), "{left}, {right}, and {said} were said");
}

/// Kills a program that counts, somewhere in the midst of it.
fn kill_one(sandbox: &Sandbox, counter: &Path, dice: &mut Dice) {
    let [before, _] = numbers(sandbox);
    let counting = program(sandbox, counter, "count").args(["1000"]).start();
    std::thread::sleep(Duration::from_micros(1000 + dice.throw(120_000)));
    counting.signal(Signal::KILL);
    let said = counting.wait().out().len();
    // A commit that was underway comes to its end, or is in conflict with this one.
    program(sandbox, counter, "count").args(["1"]).run().succeeded();
    is_whole(sandbox, before, said + 1);
}

fn killed(sandbox: &Sandbox) {
    with_daemon(sandbox);
    let (counter, mut dice) = (counting(sandbox), Dice::of_this_run().0);
    for _ in 0..12 {
        kill_one(sandbox, &counter, &mut dice);
    }
    leaves_nothing(sandbox);
}

/// Kills the daemon in the midst of transactions; the program learns so, and a recovery brings all to its end. How many
/// were committed before.
fn kill_daemon(sandbox: &Sandbox, counter: &Path, dice: &mut Dice) -> usize {
    with_daemon(sandbox);
    // The first finds no view that was made ahead, and waits for one longer than the others take.
    program(sandbox, counter, "count").args(["2"]).run().succeeded();
    let [before, _] = numbers(sandbox);
    let counting = program(sandbox, counter, "count").args(["1000"]).start();
    std::thread::sleep(Duration::from_micros(1000 + dice.throw(200_000)));
    let daemon = sandbox.daemon().expect("it was started");
    rustix::process::kill_process(rustix::process::Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    let ended = counting.wait().ended_with(3);
    assert!(ended.err().contains("daemon"), "{}", ended.err());
    // What it had is free once it is gone, which is a little later than its connections.
    assert!(comes_true(|| sandbox.daemon() != Some(daemon)), "the killed daemon is still there");
    sandbox.pando(["tx", "recover"]).ok();
    is_whole(sandbox, before, ended.out().len());
    ended.out().len()
}

fn daemon_killed(sandbox: &Sandbox) {
    let (counter, mut dice) = (counting(sandbox), Dice::of_this_run().0);
    let committed: usize = (0..6).map(|_| kill_daemon(sandbox, &counter, &mut dice)).sum();
    assert!(committed > 0, "every daemon was killed before it had committed anything");
    leaves_nothing(sandbox);
}

fn killed_often(sandbox: &Sandbox) {
    with_daemon(sandbox);
    let (counter, mut dice) = (counting(sandbox), Dice::of_this_run().0);
    for _ in 0..250 {
        kill_one(sandbox, &counter, &mut dice);
    }
    for _ in 0..60 {
        kill_daemon(sandbox, &counter, &mut dice);
    }
    leaves_nothing(sandbox);
}

/// Wants nothing to be left of transactions once the daemon has ended: files, mounts, groups.
fn leaves_nothing(sandbox: &Sandbox) {
    sandbox.end_daemon();
    let home = sandbox.root().join("var/lib/pando/tx");
    let left = || -> Vec<String> {
        let names = |path: &Path| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
        };
        let is_kept = |path: &String| [".lock", ".read-set", ".trash", "log"].iter().any(|name| path.ends_with(name));
        names(&home).into_iter().filter(|path| !is_kept(path)).chain(names(&home.join(".trash"))).collect()
    };
    // What a killed daemon had begun to make is claimed by a process that outlives it a little: recoveries leave it.
    let recovered = || {
        sandbox.pando(["tx", "recover"]).ok();
        left().is_empty()
    };
    assert!(comes_true(recovered), "left of transactions: {:?}", left());
    let root = sandbox.root().display().to_string();
    let mounted = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        mounts.lines().any(|line| line.contains("pando-tx") && line.contains(&root))
    });
    assert_eq!(mounted.count(), 0, "processes are left in views");
}
