//! What others can do, and see, between the point from which on a transaction is committed and the end of its commit: a
//! moment as a rule, and as long as nobody recovers it where its process was killed in between.

use crate::case::Case;
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_after_point::no_content_is_there_before_its_rights", rights),
    Case::new("tx_after_point::no_content_of_others_gets_privileges", privileges).needs(&[
        Need::Root,
        Need::Program("setpriv", "util-linux"),
        Need::Program("setcap", "libcap2-bin"),
    ]),
    Case::new("tx_after_point::programs_that_are_gone_give_no_rights", disarmed),
    Case::new("tx_after_point::what_others_write_is_kept", writes),
    Case::new("tx_after_point::what_others_write_beside_a_commit_is_kept", writes_beside),
    Case::new("tx_after_point::rights_that_others_take_from_directories_stay_taken", rights_of_directories),
    Case::new("tx_after_point::leases_of_others_hold_nothing_up", leases)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx_after_point::files_that_others_remove_hold_nothing_up", removed),
    Case::new("tx_after_point::directories_that_others_move_hold_nothing_up", moved),
    Case::new("tx_after_point::programs_that_others_execute_hold_nothing_up", executed),
];

/// Whoever has a program open executes it after it was removed: what a command has taken from it before stays taken.
/// One that has a name still, by whatever command, is as it was.
fn disarmed(sandbox: &Sandbox) {
    let at = sandbox.scratch().join("live");
    std::fs::create_dir(&at).unwrap();
    let program = |name: &str| {
        let path = at.join(name);
        std::fs::copy("/bin/true", &path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o6755)).unwrap();
        File::open(&path).unwrap()
    };
    let mode = |file: &File| file.metadata().unwrap().mode() & 0o7777;
    let gone = ["removed", "replaced"].map(program);
    let kept = ["moved", "swapped", "other", "linked"].map(program);
    std::fs::hard_link(at.join("linked"), at.join("link")).unwrap();
    let command = "chmod 600 removed replaced; rm removed linked; echo new >n; mv n replaced; \
                   mv moved elsewhere; mv swapped t; mv other swapped; mv t other";
    sandbox.pando(["tx", "run", "--", "sh", "-ec", command]).directory(&at).ok();
    assert_eq!(gone.each_ref().map(mode), [0o755; 2], "what is gone");
    assert_eq!(kept.each_ref().map(mode), [0o6755; 4], "what has a name");
}

/// What a recovery says of a transaction that was committed.
const COMMITTED: &str = "in place now";

/// More steps than any of these commits has.
const MOST: u64 = 200;

/// Runs a command in a transaction that is killed at a step; whether it was.
fn killed(sandbox: &Sandbox, at: &Path, step: u64, command: &str) -> bool {
    let line = sandbox.pando(["tx", "run", "--retry", "0", "-q", "--", "sh", "-ec", command]).directory(at);
    line.env("PANDO_TX_CRASH_STEP", step.to_string()).run().code() == 137
}

/// Has what was there before made anew, kills the commit at each of its steps, looks at what it leaves, and at what a
/// recovery makes of that, if it was committed; how often it was killed.
fn at_each_step(
    sandbox: &Sandbox,
    [before, command]: [&str; 2],
    mut look: impl FnMut(&Path, u64),
    mut after: impl FnMut(&Path, u64),
) -> u64 {
    let at = sandbox.scratch().join("live");
    for step in 0..MOST {
        let anew = format!("rm -rf --one-file-system {0}; mkdir {0}; cd {0}; {before}", at.display());
        Line::new("sh").args(["-ec", &anew]).ok();
        if !killed(sandbox, &at, step, command) {
            return step;
        }
        look(&at, step);
        if sandbox.pando(["tx", "recover"]).ok().contains(COMMITTED) {
            after(&at, step);
        }
        sandbox.pando(["tx", "run", "-q", "--", "true"]).ok();
    }
    panic!("it has more steps than that");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o7777)
}

fn contains(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|content| content.windows(text.len()).any(|part| part == text.as_bytes()))
}

/// A file that is closed and then written to, a directory that is closed before something comes into it, a set-user-id
/// program that becomes another, and one that changes hands: no state that the command made gave others more.
fn rights(sandbox: &Sandbox) {
    let before = "echo public >f; chmod 644 f; mkdir -m 755 d; echo tool >tool; chmod 4755 tool
        echo theirs >given; chmod 664 given; chown 65534:65534 given; mkdir -m 777 open";
    let command = "chmod 600 f; echo secret >f; chmod 700 d; echo secret >d/key; chmod 755 tool; echo other >tool
        chown 0:0 given; chmod 644 given; echo secret >given; chmod 755 open; echo program >open/program";
    let mut seen = 0;
    let look = |at: &Path, step| {
        let is_new = |name: &str, text: &str| contains(&at.join(name), text);
        let uid = |name: &str| fs::metadata(at.join(name)).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
        assert!(!is_new("f", "secret") || mode(&at.join("f")) & 0o077 == 0, "step {step}: f can be read");
        assert!(!at.join("d/key").exists() || mode(&at.join("d")) & 0o077 == 0, "step {step}: d can be entered");
        assert!(!is_new("tool", "other") || mode(&at.join("tool")) & 0o6000 == 0, "step {step}: tool is root's still");
        assert!(!is_new("given", "secret") || uid("given").is_ok_and(|uid| uid == 0), "step {step}: given is theirs");
        assert!(!at.join("open/program").exists() || mode(&at.join("open")) & 0o022 == 0, "step {step}: open is open");
        seen += usize::from(is_new("f", "secret") || is_new("tool", "other"));
    };
    let mut whole = 0;
    let killed = at_each_step(sandbox, [before, command], look, |at, step| {
        let modes = ["f", "d", "tool", "given", "open"].map(|name| mode(&at.join(name)));
        assert_eq!(modes, [0o600, 0o700, 0o755, 0o644, 0o755], "step {step}");
        whole += 1;
    });
    assert!(seen > 0 && whole > 0, "killed {killed} times, {seen} times with new content in place");
}

/// A program of a user's is looked at, and becomes root's, set-user-id or with capabilities. What he writes to it after
/// that look has none of that, whenever he does.
fn privileges(sandbox: &Sandbox) {
    let before = "for one in suid sgid caps; do echo good >$one; chmod 755 $one; chown 65534:65534 $one; done";
    let command = "for one in suid sgid caps; do grep -qx good $one; chown 0:0 $one; grep -qx good $one; done
        chmod 4755 suid; chmod 2755 sgid; setcap cap_net_raw+ep caps; echo new >other";
    let look = |at: &Path, _| {
        // He may do so until it is root's.
        let write = "for one in suid sgid caps; do echo theirs >$one; done 2>/dev/null; true";
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", write];
        Line::new("setpriv").args(user).directory(at).ok();
    };
    let (mut theirs, mut good) = (0, 0);
    at_each_step(sandbox, [before, command], look, |at, step| {
        for (name, set_id) in [("suid", 0o4000), ("sgid", 0o2000), ("caps", 0)] {
            let path = at.join(name);
            let mut value = [0; 64];
            let is_capable = rustix::fs::getxattr(&path, "security.capability", &mut value).is_ok();
            let found = (mode(&path), is_capable);
            match contains(&path, "theirs") {
                true => assert_eq!(found, (0o755, false), "step {step}: {name}"),
                false => assert_eq!(found, (0o755 | set_id, set_id == 0), "step {step}: {name}"),
            }
            *(if contains(&path, "theirs") { &mut theirs } else { &mut good }) += 1;
        }
    });
    assert!(theirs > 0 && good > 0, "{theirs} times theirs, {good} times as it was");
}

/// Whatever others write after the commit point, before somebody recovers the commit, is to be found.
fn writes(sandbox: &Sandbox) {
    let before = "mkdir -p gone/in; echo old >log; echo o >gone/f; echo o >over; echo o >removed";
    let command = "echo tx >>log; chmod 640 log; rm -r gone; rm removed; echo n >over.n; mv over.n over";
    let at_once = "echo operator >>log; test ! -d gone || echo operator >gone/in/precious
        echo operator >>over; test ! -e removed || echo operator >>removed";
    let at = sandbox.scratch().join("live");
    let found = |name: &str| {
        let script = format!("grep -rl operator . | grep -c '^./{name}' || true");
        Line::new("sh").args(["-c", &script]).directory(&at).ok().trim().parse::<u32>().expect("a number")
    };
    for step in 0..MOST {
        let anew = format!("rm -rf --one-file-system {0}; mkdir {0}; cd {0}; {before}", at.display());
        Line::new("sh").args(["-ec", &anew]).ok();
        if !killed(sandbox, &at, step, command) {
            assert!(step > 10, "it was killed {step} times only");
            return;
        }
        let had = [("gone", at.join("gone").is_dir()), ("removed", at.join("removed").exists())];
        Line::new("sh").args(["-ec", at_once]).directory(&at).ok();
        let is_committed = sandbox.pando(["tx", "recover"]).ok().contains(COMMITTED);
        for name in ["log", "over"].into_iter().chain(had.into_iter().filter(|(_, had)| *had).map(|(name, _)| name)) {
            assert!(found(name) > 0, "step {step}: what was written to {name} is lost");
        }
        let has_changed = contains(&at.join("log"), "tx") && contains(&at.join("over"), "n");
        assert_eq!(has_changed, is_committed, "step {step}");
    }
    panic!("it has more steps than that");
}

/// A user moves a directory of his, removes it, or puts something else in its place.
fn moved(sandbox: &Sandbox) {
    let before = "mkdir -p sub/d1 sub/d2; echo old >sub/d1/old; echo 1 >other";
    let command = "echo new >sub/d1/f; mkdir sub/d2/n; echo new >sub/d2/n/f; mv other sub/d2/other; rm sub/d1/old";
    for change in
        ["mv sub else", "rm -rf sub", "mv sub else; ln -s /nowhere sub", "mv sub else; echo file >sub", "mv sub/d1 d1"]
    {
        let mut committed = 0;
        let meddle = |at: &Path, _| drop(Line::new("sh").args(["-ec", change]).directory(at).ok());
        at_each_step(sandbox, [before, command], meddle, |at, step| {
            let found = Line::new("sh").args(["-c", "grep -rlx new . | wc -l"]).directory(at).ok();
            // What had its place already went with the directory.
            assert!(change.starts_with("rm") || found.trim() == "2", "{change}, step {step}: {found}");
            committed += 1;
        });
        assert!(committed > 0, "{change}");
    }
}

/// Files that a command gives other names, and changes by one of several, and that others remove right after the commit
/// point, and have open still every other time: what is gone stays gone, and all else is in place.
fn removed(sandbox: &Sandbox) {
    let before = "echo 1 >f; echo 2 >g; ln g g2; echo 3 >k; ln k k2; echo old >last";
    let command = "mv f moved; echo more >>g; mv g h; ln k k3; chmod 600 k; echo new >last";
    let (mut gone, mut committed) = (false, 0);
    let mut held = Vec::new();
    let remove = |at: &Path, step| {
        gone |= at.join("f").exists();
        held.clear();
        if step % 2 == 0 {
            held.extend(["f", "g", "k"].into_iter().filter_map(|name| File::open(at.join(name)).ok()));
        }
        drop(Line::new("sh").args(["-ec", "rm -f f moved g g2 h k k2 k3"]).directory(at).ok());
    };
    at_each_step(sandbox, [before, command], remove, |at, step| {
        assert!(contains(&at.join("last"), "new"), "step {step}");
        committed += 1;
    });
    assert!(gone && committed > 0);
}

/// A program that is changed in place, and that somebody begins to run.
fn executed(sandbox: &Sandbox) {
    let busybox = Path::new(sandbox.busybox()).join("bin/busybox");
    let before = format!("cp {} program; chmod 755 program; echo old >last", busybox.display());
    let command = "cat /etc/hostname >program; chmod 750 program; echo new >last";
    let mut running = Vec::new();
    let run = |at: &Path, _| {
        if fs::metadata(at.join("program")).is_ok_and(|found| found.len() > 100_000) {
            let script = format!("exec {} sleep 1000", at.join("program").display());
            running.push(Line::new("sh").args(["-c", &script]).directory(at).start());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let mut committed = 0;
    at_each_step(sandbox, [&before, command], run, |at, step| {
        let is_new = fs::metadata(at.join("program")).is_ok_and(|found| found.len() < 1000);
        let found = (is_new, mode(&at.join("program")), contains(&at.join("last"), "new"));
        assert_eq!(found, (true, 0o750, true), "step {step}");
        committed += 1;
    });
    assert!(!running.is_empty() && committed > 0, "it was never run");
}

/// Has what was there before made anew, and begins a transaction that stands still at a step; nothing where it has no
/// such step.
fn standing_at(sandbox: &Sandbox, at: &Path, step: u64, [before, command]: [&str; 2]) -> Option<Started> {
    let anew = format!("rm -rf --one-file-system {0}; mkdir {0}; cd {0}; {before}", at.display());
    Line::new("sh").args(["-ec", &anew]).ok();
    let line = sandbox.pando(["tx", "run", "--retry", "0", "-q", "--gate", "none", "--", "sh", "-ec", command]);
    let mut started = line.directory(at).env("PANDO_TX_STOP_STEP", step.to_string()).start();
    let mut stopped = false;
    eventually("it has ended or stands still", || {
        stopped = process::state(started.pid()) == Some('T');
        stopped || started.has_ended()
    });
    stopped.then_some(started)
}

/// Names come and go in directories that a commit uses, and it has no word in whose they are otherwise: what others
/// take away at any of its steps does not come back.
fn rights_of_directories(sandbox: &Sandbox) {
    let at = sandbox.scratch().join("live");
    let before = "mkdir -m 755 d; echo old >d/gone; mkdir -m 755 d/other moved; echo one >d/other/changed";
    let command = "echo new >d/f; rm d/gone; echo two >d/other/changed; echo new >d/other/f; mv moved d/there";
    let mut ended = [0, 0];
    for step in 0..MOST {
        let Some(started) = standing_at(sandbox, &at, step, [before, command]) else {
            assert!(ended.iter().all(|count| *count > 0), "committed and in conflict: {ended:?}");
            return;
        };
        let directories = || ["d", "d/other", "moved", "d/there"].map(|name| at.join(name)).into_iter();
        // One that stands aside for a moment can nobody reach.
        let taken = directories().filter(|path| fs::set_permissions(path, PermissionsExt::from_mode(0o700)).is_ok());
        let taken = taken.count();
        started.signal(rustix::process::Signal::CONT);
        let code = started.wait().code();
        let kept = directories().filter(|path| mode(path) == 0o700).count();
        assert_eq!(kept, taken, "step {step}, which ended with {code}");
        ended[usize::from(code != 0)] += 1;
    }
    panic!("it has more steps than that");
}

/// A commit that stands still at each of its steps in turn, while others add a line to what it replaces, writes to and
/// removes: where they could, that is to be found.
fn writes_beside(sandbox: &Sandbox) {
    let at = sandbox.scratch().join("live");
    let names = ["replaced", "written", "removed", "moved", "d/within"];
    let before = "for one in replaced written removed moved; do echo one >$one; done; mkdir d; echo one >d/within";
    let command = "sed -i s/one/two/ replaced; echo more >>written; rm removed; mv moved over; rm -r d";
    let (mut kept, mut lost) = (0, Vec::new());
    for step in 0..MOST {
        let Some(started) = standing_at(sandbox, &at, step, [before, command]) else {
            // Between the last look at a file and the writing to it, a moment, lie two steps.
            let only_there = lost.len() <= 2 && lost.iter().all(|one: &String| one.starts_with("written "));
            assert!(kept > 50 && only_there, "of {step} steps, {kept} lines kept and lost {lost:?}");
            return;
        };
        let written = names.map(|name| {
            let file = fs::OpenOptions::new().append(true).open(at.join(name));
            file.and_then(|mut file| std::io::Write::write_all(&mut file, b"theirs\n")).is_ok()
        });
        started.signal(rustix::process::Signal::CONT);
        let ended = started.wait();
        let found = Line::new("grep").args(["-rlx", "theirs", "."]).directory(&at).run().out();
        for (name, _) in names.iter().zip(written).filter(|(_, written)| *written) {
            let is_there = |path: &str| path.contains(name) || path.contains("over") && *name == "moved";
            match found.lines().any(|path| is_there(path) || path.contains("d.pando-kept") && *name == "d/within") {
                true => kept += 1,
                false => lost.push(format!("{name} at step {step} ({})", ended.code())),
            }
        }
    }
    panic!("it has more steps than that");
}

/// A user of the host has leases on files of his that root's commit writes to, and does not give them up.
fn leases(sandbox: &Sandbox) {
    let at = sandbox.scratch().join("live");
    fs::create_dir(&at).expect("a directory");
    let holder = "import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = []
for number in range(5):
    open(f'f{number}', 'w').write('old\\n')
    held.append(os.open(f'f{number}', os.O_RDONLY))
os.link('f0', 'f0-other')
for one in held:
    fcntl.fcntl(one, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print('held', flush=True)
sys.stdin.read()";
    let holder = Line::new("python3").args(["-c", holder]).directory(&at).start_with_open_input();
    eventually("leases are held", || {
        let locks = fs::read_to_string("/proc/locks").expect("it is there");
        locks.lines().filter(|line| line.contains("LEASE") && line.contains(&format!(" {} ", holder.pid()))).count()
            == 5
    });
    let begun = std::time::Instant::now();
    let command = "for one in f1 f2 f3 f4; do echo new >>$one; done";
    sandbox.pando(["tx", "run", "--retry", "0", "--", "sh", "-ec", command]).directory(&at).limit(200).ok();
    // The kernel takes a lease away after this time, as a rule 45 s.
    let limit = fs::read_to_string("/proc/sys/fs/lease-break-time").expect("it is there");
    let limit: u64 = limit.trim().parse().expect("seconds");
    assert!(limit < 20 || begun.elapsed().as_secs() < limit, "a user's lease was waited for");
    for number in 1..5 {
        assert_eq!(fs::read_to_string(at.join(format!("f{number}"))).expect("it is there"), "old\nnew\n");
    }
    holder.close_input().wait().succeeded();
}
