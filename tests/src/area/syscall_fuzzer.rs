//! trinity(1) makes system calls with arguments that look right and are not, as root of a guest and as a user of it,
//! while the guest is frozen and cloned again and again. What must not change is looked at from the host and from a
//! neighbour.
//!
//! The kernel itself may fall over, so this runs inside the emulated machine alone.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("syscall_fuzzer::stays_inside_default", |sandbox| fuzz(sandbox, &["--profile", "default"]))
        .tags(TAGS)
        .needs(NEEDS),
    Case::new("syscall_fuzzer::stays_inside_strict", |sandbox| fuzz(sandbox, &["--profile", "strict"]))
        .tags(TAGS)
        .needs(NEEDS),
    Case::new("syscall_fuzzer::stays_inside_system", |sandbox| fuzz(sandbox, &["--profile", "system"]))
        .tags(TAGS)
        .needs(NEEDS),
    Case::new("syscall_fuzzer::sees_the_host_without_a_wall", unprotected).tags(TAGS).needs(NEEDS),
];

const TAGS: &[Tag] = &[Tag::Slow, Tag::Vm];
const NEEDS: &[Need] = &[Need::Root, Need::Emulated, Need::Program("trinity", "trinity")];

/// Calls that a run of trinity makes. It is started again with another seed each time, since it may well end itself.
const CALLS: u32 = 3000;
const RUNS: u32 = 6;

/// How often it is looked whether the fuzzer has ended, a second apart: longer than all its runs may take.
const MOST_LOOKS: u32 = 1500;

/// How often the guest is frozen while the calls are made.
const FREEZES: usize = 5;

/// A file of the host that every user of the host may read, and root may write.
struct Bait {
    path: PathBuf,
    inode: u64,
}

impl Bait {
    const TEXT: &str = "of the host";

    fn lay(sandbox: &Sandbox) -> Self {
        // A directory of its own: the fuzzer opens what it finds in one.
        let directory = sandbox.scratch().join("bait");
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("file");
        std::fs::write(&path, Self::TEXT).expect("a file");
        let inode = std::fs::metadata(&path).expect("it was written").ino();
        Self { path, inode }
    }

    fn is_untouched(&self) -> bool {
        let same = std::fs::metadata(&self.path).is_ok_and(|now| now.ino() == self.inode);
        same && std::fs::read_to_string(&self.path).is_ok_and(|text| text == Self::TEXT)
    }
}

/// The small tree with trinity and the libraries that it is linked to.
fn tree(sandbox: &Sandbox) -> String {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    let program = Line::new("sh").args(["-c", "command -v trinity"]).ok();
    let program = Path::new(program.trim());
    put(program, &tree.join("bin/trinity"));
    let linked = Line::new("ldd").args([program]).ok();
    for word in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        put(Path::new(word), &tree.join(word.trim_start_matches('/')));
    }
    std::fs::create_dir_all(tree.join("tmp")).expect("a directory");
    for (path, mode) in [(tree.clone(), 0o755), (tree.join("tmp"), 0o1777)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
    }
    tree.to_string_lossy().into_owned()
}

fn put(file: &Path, at: &Path) {
    std::fs::create_dir_all(at.parent().expect("it lies below the tree")).expect("a directory");
    std::fs::copy(file, at).expect("a copy of a file that is there");
}

/// Users of guests that the fuzzer runs as, each in a guest of its own. It is the guest's own command: what a visitor
/// is would not be frozen.
const USERS: [&str; 2] = ["0", "1000"];

/// Where the fuzzer says what it has done, and that it has ended.
const SAID: &str = "/tmp/own/said";
const ENDED: &str = "/tmp/own/ended";

fn guest(user: &str) -> String {
    format!("fuzzed-{user}")
}

/// What runs trinity in a guest. Calls that end the fuzzer instead of testing anything are left out, and so are kinds
/// of descriptors at which the program itself falls over or tries for ever.
fn trinity(user: &str, seed: u64) -> String {
    // Programs of 32 bits are killed in `strict`: the fuzzer would be.
    let dangerous = if user == "0" { "--dangerous" } else { "" };
    format!(
        "mkdir -p /tmp/own && cd /tmp/own && for run in $(seq {RUNS}); do \
         timeout -s KILL 200 trinity -q -a 64 -T DIE {dangerous} -s $(({seed} + run)) -C 2 -N {CALLS} -l off --disable-fds=sockets \
         --enable-fds=pipes,eventfd,testfile,timerfd,epoll,memfd -x kill -x tkill -x tgkill -x rt_sigqueueinfo -x rt_tgsigqueueinfo -x pidfd_send_signal -x pause -x reboot </dev/null 2>&1 | tail -n 3 >>{SAID}; done; >{ENDED}; \
         while :; do sleep 1000; done"
    )
}

/// Whether the fuzzer has ended in a guest. A guest that does not answer has not.
fn has_ended(sandbox: &Sandbox, name: &str) -> bool {
    sandbox.exec_sh(name, &format!("test -e {ENDED}")).limit(120).run().code() == 0
}

/// Calls that runs of trinity say that they made.
fn calls_made(said: &str) -> u32 {
    let numbers = said.lines().filter_map(|line| line.split_once(" Ran ")?.1.split(' ').next()?.parse::<u32>().ok());
    numbers.sum()
}

fn fuzz(sandbox: &Sandbox, profile: &[&str]) {
    let (_, seed) = Dice::of_this_run();
    let tree = tree(sandbox);
    let bait = Bait::lay(sandbox);
    let volume = format!("{}:/bait:ro", bait.path.parent().expect("it has one").display());
    sandbox.guest("neighbour", &["--", "sleep", "100000"]);
    let neighbour = sandbox.first_process("neighbour");
    let complaints = complaints();
    let made_for = |user: &&'static str| {
        let limits = ["--pids", "200", "--memory", "400M", "-v", &volume, "--user", user, "--start", "--", "sh", "-c"];
        let line = sandbox.pando(["create", &guest(user), "--from", &tree]).args(profile).args(limits);
        line.args([trinity(user, seed % 1_000_000 + 1)]).ok();
        (guest(user), own_groups(sandbox, &guest(user)))
    };
    let guests: Vec<(String, Vec<String>)> = USERS.iter().map(made_for).collect();
    let cloned: usize = guests.iter().map(|(name, groups)| cloned_while_it_runs(sandbox, (name, groups), &bait)).sum();
    let mut looks = MOST_LOOKS;
    while !guests.iter().all(|(name, _)| has_ended(sandbox, name)) {
        assert!(bait.is_untouched(), "a file of the host was changed");
        looks = looks.checked_sub(1).expect("each run of the fuzzer is ended after 200 seconds");
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let said = |(name, _): &(String, Vec<String>)| sandbox.exec_sh(name, &format!("cat {SAID}")).limit(120).ok();
    let said: Vec<String> = guests.iter().map(said).collect();
    let made: Vec<u32> = said.iter().map(|said| calls_made(said)).collect();
    println!("     calls made as root and as a user: {made:?}; clones made meanwhile: {cloned}");
    assert!(made.iter().all(|calls| *calls >= CALLS), "the fuzzer hardly ran: {said:#?}");
    assert!(cloned > 0, "no guest was frozen and cloned while the fuzzer ran in it");
    assert_eq!(self::complaints(), complaints, "the kernel has complained");
    assert_eq!(sandbox.first_process("neighbour"), neighbour, "the neighbour was ended");
    assert_eq!(sandbox.exec_sh("neighbour", "echo here").limit(60).ok().trim(), "here");
    for (name, groups) in &guests {
        assert_eq!(own_groups(sandbox, name), *groups, "the limits of {name} were changed");
    }
    assert!(bait.is_untouched(), "a file of the host was changed");
    sandbox.pando(["rm", "-f", "fuzzed-0", "fuzzed-1000", "neighbour"]).limit(120).ok();
}

/// Freezes a guest again and again while the fuzzer runs in it, and makes a clone each time: how many there were. What
/// cannot be frozen is refused by name; either way the guest goes on.
fn cloned_while_it_runs(sandbox: &Sandbox, (name, groups): (&str, &[String]), bait: &Bait) -> usize {
    let mut cloned = 0;
    for _ in 0..FREEZES {
        if has_ended(sandbox, name) {
            break;
        }
        if sandbox.pando(["freeze", name, "image"]).limit(300).run().code() == 0 {
            cloned += usize::from(clone_runs(sandbox, groups));
            sandbox.pando(["image", "rm", "image"]).limit(60).ok();
        }
        assert!(bait.is_untouched(), "a file of the host was changed");
    }
    cloned
}

/// Makes a clone, in which the fuzzer's processes go on from where they were, and lets it run for a moment within the
/// same limits. Whether there was one.
fn clone_runs(sandbox: &Sandbox, groups: &[String]) -> bool {
    if sandbox.pando(["clone", "image", "copy"]).limit(300).run().code() != 0 {
        return false;
    }
    assert_eq!(own_groups(sandbox, "copy"), groups, "the clone has other limits");
    std::thread::sleep(std::time::Duration::from_secs(2));
    sandbox.pando(["rm", "-f", "copy"]).limit(120).ok();
    true
}

/// Whether the kernel has complained: bits for a bad page, an oops, a warning, a lock-up
/// (Documentation/admin-guide/tainted-kernels.rst).
fn complaints() -> u64 {
    const BAD: u64 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 14;
    let text = std::fs::read_to_string("/proc/sys/kernel/tainted").expect("every kernel has it");
    text.trim().parse::<u64>().expect("a number") & BAD
}

/// What the guest's control groups bound, as their files say.
fn own_groups(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let first = sandbox.first_process(name);
    let path = std::fs::read_to_string(format!("/proc/{first}/cgroup")).expect("it runs");
    let path = path.lines().find_map(|line| line.strip_prefix("0::")).expect("it has a group of version 2").to_owned();
    let read = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup{path}/../{file}")).unwrap_or_default();
    ["memory.max", "pids.max"].map(read).to_vec()
}

/// The same program on the host itself: it makes its calls there, and leaves a trace of what it was let to do.
fn unprotected(sandbox: &Sandbox) {
    let place = sandbox.scratch().join("unprotected");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).expect("it is ours");
    std::fs::set_permissions(sandbox.root(), PermissionsExt::from_mode(0o711)).expect("it is ours");
    let calls = "-c open -c openat -c creat -c mkdir -c mkdirat -N 20000 -C 1 -q -l off -s 1 --enable-fds=testfile";
    let script = format!("cd {} && timeout -s KILL 300 trinity --dangerous {calls}", place.display());
    // In namespaces of its own, so that the machine stays of use to the other tests.
    let mut one = Line::new("unshare").args(["-mpf", "--mount-proc", "sh", "-c", &script]).limit(600).start();
    eventually("the fuzzer makes files where nothing holds it", || {
        std::fs::read_dir(&place).is_ok_and(|mut names| names.next().is_some()) || one.has_ended()
    });
    let made = std::fs::read_dir(&place).expect("it is there").count();
    assert!(made > 0, "the fuzzer made no call that left a trace: it proves nothing");
    one.signal(rustix::process::Signal::KILL);
}
