//! Transactions of users who are not root: what each may do is what he may do himself, before, during and after.
//!
//! The users are numbers that nobody has here.

use crate::case::{Case, skip};
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::tree_state;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

pub(super) const NEEDS: &[Need] = &[Need::Root, Need::Program("setpriv", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_users::what_a_user_does_is_committed_whole_and_is_his", plain).needs(NEEDS),
    Case::new("tx_users::exit_codes_input_output_and_signals_are_the_commands", carried).needs(NEEDS),
    Case::new("tx_users::a_conflict_is_retried", conflict).needs(NEEDS),
    Case::new("tx_users::only_those_who_are_named_are_served", named).needs(NEEDS),
    Case::new("tx_users::options_of_roots_are_refused", options).needs(NEEDS),
    Case::new("tx_users::the_command_has_his_rights_and_no_others", rights).needs(NEEDS),
    Case::new("tx_users::nothing_in_a_view_gives_him_more", hostile_commands).needs(NEEDS),
    Case::new("tx_users::programs_with_others_rights_have_none", privileged_programs).needs(NEEDS),
    Case::new("tx_users::who_is_kept_from_something_is_not_served", restrained).needs(NEEDS),
    Case::new("tx_users::what_is_no_request_harms_nobody", nonsense).needs(&[
        Need::Root,
        Need::Program("setpriv", "util-linux"),
        Need::Program("python3", "python3"),
    ]),
    Case::new("tx_users::what_is_closed_meanwhile_is_not_written_to", closed_meanwhile).needs(NEEDS),
    Case::new("tx_users::directories_that_he_swaps_lead_nowhere_else", swapped).needs(NEEDS),
    Case::new("tx_users::users_do_not_see_each_others_files_in_progress", apart).needs(NEEDS),
    Case::new("tx_users::a_killed_client_has_aborted", killed_client).needs(NEEDS),
    Case::new("tx_users::a_killed_server_leaves_nothing_half_done", killed_server).needs(NEEDS),
    Case::new("tx_users::room_and_number_are_bounded", bounds).needs(NEEDS),
];

pub(super) const ALICE: u32 = 70_001;
pub(super) const BOB: u32 = 70_002;
const STRANGER: u32 = 70_003;
/// A group that alice is in.
pub(super) const TEAM: u32 = 70_010;

/// A server, a home for each user, and things of root's.
pub(super) struct Scene<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) server: Started,
}

impl<'a> Scene<'a> {
    pub(super) fn set(sandbox: &'a Sandbox) -> Self {
        Self::with(sandbox, &format!("users = [\"{ALICE}\", \"{BOB}\"]"), &[])
    }

    pub(super) fn with(sandbox: &'a Sandbox, settings: &str, environment: &[(&str, &str)]) -> Self {
        sandbox.settings(&format!("[transactions]\n{settings}\n"));
        let open = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is root's");
        open(sandbox.root());
        open(&sandbox.scratch());
        for (name, uid) in [("alice", ALICE), ("bob", BOB)] {
            let home = sandbox.scratch().join(name);
            fs::create_dir_all(&home).and_then(|()| chown(&home, Some(uid), Some(uid))).expect("a directory");
            open(&home);
        }
        Self { sandbox, server: serve(sandbox, environment) }
    }

    pub(super) fn home(&self, name: &str) -> PathBuf {
        self.sandbox.scratch().join(name)
    }

    /// A command line of a user's, in his home.
    pub(super) fn of<W: AsRef<OsStr>>(&self, uid: u32, words: impl IntoIterator<Item = W>) -> Line {
        let home = self.home(if uid == BOB { "bob" } else { "alice" });
        user(uid).args(words).directory(home)
    }

    /// `pando tx run OPTIONS -- sh -c SCRIPT` of a user's.
    pub(super) fn run(&self, uid: u32, options: &[&str], script: &str) -> Line {
        let pando = [self.sandbox.program().as_os_str(), "--root".as_ref(), self.sandbox.root().as_os_str()];
        self.of(uid, pando).args(["tx", "run"]).args(options).args(["--", "sh", "-c", script])
    }

    /// What transactions there are.
    pub(super) fn transactions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sandbox.root().join("var/lib/pando/tx")).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect()
    }
}

pub(super) fn user(uid: u32) -> Line {
    let (uid, team) = (uid.to_string(), TEAM.to_string());
    let groups = if uid == ALICE.to_string() { vec!["--groups", &team] } else { vec!["--clear-groups"] };
    let line = Line::new("setpriv").args(["--reuid", &uid, "--regid", &uid]).args(groups).args(["--"]);
    // Root's own may lead to where no user may look.
    line.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
}

pub(super) fn serve(sandbox: &Sandbox, environment: &[(&str, &str)]) -> Started {
    let socket = sandbox.root().join("run/pando/tx-users.sock");
    let _ = fs::remove_file(&socket);
    let line = environment.iter().fold(sandbox.pando(["tx", "serve"]), |line, (name, value)| line.env(name, value));
    let server = line.limit(600).start();
    eventually("users' transactions are served", || {
        fs::metadata(&socket).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o666)
    });
    server
}

/// Processes whose command line has a word in it.
pub(super) fn processes_with(word: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
    };
    pids.filter(has).collect()
}

pub(super) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn plain(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let home = scene.home("alice");
    let before = "umask 022; echo one >f; echo two >g; mkdir d; echo in >d/in; ln -s f link; chmod 751 d; echo k >kept";
    scene.of(ALICE, ["sh", "-ec", before]).ok();
    let script = "umask 027; echo more >>f; mv g moved; rm kept; mkdir -p new/deep; echo new >new/deep/file; mv d e;
        chgrp 70010 new; ln f f2; rm link; ls";
    let ended = scene.run(ALICE, &[], script).run().succeeded().says("e\nf\nf2\nmoved\nnew\n");
    ended.complains_of(&["committed: ", "0 retries"]);
    let found = ["f", "f2", "moved", "new/deep/file", "e/in"].map(|name| read(home.join(name)));
    assert_eq!(found, ["one\nmore\n", "one\nmore\n", "two\n", "new\n", "in\n"]);
    let gone = ["g", "kept", "d", "link"].map(|name| fs::symlink_metadata(home.join(name)).is_ok());
    assert_eq!(gone, [false; 4]);
    let about = |name: &str| {
        let found = fs::metadata(home.join(name)).expect("it is there");
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(about("new"), (ALICE, TEAM, 0o750));
    assert_eq!((about("new/deep/file"), about("e")), ((ALICE, ALICE, 0o640), (ALICE, ALICE, 0o751)));
    assert_eq!(about("f").2, 0o644);
    let state = tree_state::lines(&home);
    scene.run(ALICE, &[], "rm -r new; echo x >f; exit 7").run().ended_with(7).complains_of(&["aborted: exit code 7"]);
    assert_eq!(tree_state::lines(&home), state);
    scene.run(ALICE, &[], "rm -r e new moved f f2; rmdir /nonexistent 2>/dev/null; true").run().succeeded();
    assert_eq!(fs::read_dir(&home).expect("it is there").count(), 0);
    eventually("nothing of the transactions is left", || scene.transactions().is_empty());
}

fn carried(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let line = scene.run(ALICE, &["-q"], "cat; echo wrong >&2; pwd; echo $VALUE").input("said\n").env("VALUE", "kept");
    let ended = line.run().succeeded();
    assert_eq!(ended.out(), format!("said\n{}\nkept\n", scene.home("alice").display()));
    assert_eq!(ended.err(), "wrong\n");
    scene.run(ALICE, &["-q"], "exec no-such-program").run().ended_with(127);
    let pando = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()];
    let direct = |words: &[&str]| scene.of(ALICE, pando).args(["tx", "run", "--"]).args(words);
    direct(&["no-such-program"]).run().ended_with(127);
    direct(&["/etc/hostname"]).run().ended_with(126);
    scene.run(ALICE, &[], "kill -TERM $$").run().ended_with(143).complains_of(&["SIGTERM"]);
    scene.run(ALICE, &["--timeout", "0.5"], "echo x >f; sleep 100").run().ended_with(125).complains_of(&["too long"]);
    let script = "trap 'echo caught; exit 9' TERM; echo x >f; sleep 3171 & wait";
    let started = scene.run(ALICE, &[], script).start();
    eventually("the command runs", || !processes_with("3171").is_empty());
    started.signal(Signal::TERM);
    let ended = started.wait().ended_with(9).says("caught\n");
    ended.complains_of(&["exit code 9"]);
    assert!(!scene.home("alice").join("f").exists());
    eventually("what it had started is gone", || processes_with("3171").is_empty());
}

fn conflict(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let home = scene.home("alice");
    scene.of(ALICE, ["sh", "-c", "echo old >f; echo go >wait"]).ok();
    let script = "cat f >g; cat; if grep -q go wait; then sleep 3172; fi; true";
    let started = scene.run(ALICE, &["--retry", "2"], script).input("said again\n").start();
    eventually("it has read", || !processes_with("3172").is_empty());
    scene.of(ALICE, ["sh", "-c", "echo new >f; echo on >wait"]).ok();
    for pid in processes_with("3172") {
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
    }
    let ended = started.wait().succeeded().says("said again\nsaid again\n");
    ended.complains_of(&["running it again (1 of 2)", "committed", "1 retry"]);
    assert_eq!(read(home.join("g")), "new\n");
}

fn named(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    scene.run(STRANGER, &[], "true").run().ended_with(125).complains_of(&["70003", "[transactions] users"]);
    // By a group, and from the next one on.
    sandbox.settings(&format!("[transactions]\nusers = [\"@{TEAM}\"]\n"));
    scene.run(ALICE, &[], "true").run().succeeded();
    scene.run(BOB, &[], "true").run().ended_with(125).complains_of(&["may not have transactions"]);
    drop(scene);
    sandbox.settings("");
    sandbox.pando(["tx", "serve"]).run().ended_with(125).complains_of(&["nobody but root", "pando.toml"]);
    let line = user(ALICE).args([sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()]);
    line.args(["tx", "run", "--", "true"])
        .directory("/")
        .run()
        .ended_with(125)
        .complains_of(&["not root", "pando tx serve"]);
}

fn options(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    for option in [
        "--guest=web",
        "--name=x",
        "--ignore=/",
        "--strict",
        "--gate=none",
        "--dry-run",
        "--output=commit",
        "--unsupported=warn",
        "--in-memory",
    ] {
        let ended = scene.run(ALICE, &[option], "echo x >f").run().ended_with(125);
        ended.complains_of(&[option.split('=').next().expect("a word"), "for root alone"]);
    }
    assert!(!scene.home("alice").join("f").exists());
    let pando = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()];
    for words in [["tx", "recover"], ["tx", "ls"], ["tx", "serve"], ["tx", "work"]] {
        assert_ne!(scene.of(ALICE, pando).args(words).run().code(), 0, "{words:?}");
    }
}

fn rights(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let script = "id -u; id -g; id -G; umask; grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status; \
                  ls /proc/self/fd | wc -l; ulimit -Hn; nice; ls /proc/$$/task | wc -l";
    let line = |uid: u32, inside: bool| match inside {
        true => scene.run(uid, &["-q"], script),
        false => scene.of(uid, ["sh", "-c", script]),
    };
    for uid in [ALICE, BOB] {
        let (outside, inside) = (line(uid, false).ok(), line(uid, true).ok());
        assert_eq!(inside, outside.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1"));
        assert!(inside.contains(&format!("{uid}\t{uid}\t{uid}\t{uid}")), "{inside}");
    }
    // What he has is what he had when he asked, limits among them.
    let limited = scene.of(ALICE, ["sh", "-c", "ulimit -n 77; umask 077; exec \"$@\"", "sh"]);
    let pando = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()];
    let inside = limited.args(pando).args(["tx", "run", "-q", "--", "sh", "-c", "ulimit -Hn; umask; ulimit -n 78"]);
    let ended = inside.run();
    assert!(ended.code() != 0 && ended.out().starts_with("77\n0077\n"), "{}", ended.out());
}

/// What is root's, and bob's, beside alice's.
fn victims(sandbox: &Sandbox) -> PathBuf {
    let at = sandbox.scratch().join("victims");
    fs::create_dir_all(at.join("sticky")).expect("a directory");
    let made = "echo plain >file; echo 'top secret' >secret; chmod 600 secret; mkdir dir; echo in >dir/in; chmod 1777 sticky; \
        echo bobs >sticky/bobs; chown 70002 sticky/bobs; mknod null c 1 3; chmod 666 null; mkfifo fifo; chmod 600 fifo; \
        cp /bin/sh suid; chmod 4755 suid; mkdir shared; chmod 2775 shared; chgrp 70010 shared; echo s >shared/roots; \
        echo w >shared/written; chgrp 70010 shared/written; chmod 664 shared/written; mkdir shared/full; echo f >shared/full/f";
    Line::new("sh").args(["-ec", made]).directory(&at).ok();
    at
}

fn hostile_commands(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let at = victims(sandbox);
    let root = sandbox.root().display().to_string();
    let server = scene.server.pid();
    let mut bobs = scene.of(BOB, ["sleep", "3173"]).start();
    let attempts = [
        ("write a file of root's", "echo x >$V/file"),
        ("append to it", "echo x >>$V/file"),
        ("truncate it", ": >$V/file"),
        ("read a secret", "cat $V/secret"),
        ("change a mode", "chmod 666 $V/secret"),
        ("give away", "echo x >m; chown 0 m"),
        ("take over", "chown $(id -u) $V/file"),
        ("give to a group", "echo x >m; chgrp 0 m"),
        ("rename a file of root's", "mv $V/file $V/other"),
        ("make a file there", "echo x >$V/dir/new"),
        ("remove from a sticky directory", "rm -f $V/sticky/bobs"),
        ("replace in a sticky directory", "echo x >m; mv -f m $V/sticky/bobs"),
        ("rename in a sticky directory", "mv $V/sticky/bobs $V/sticky/mine"),
        ("write through a link", "ln -s $V/file l; echo x >l"),
        ("read through a link", "ln -s $V/secret l; cat l"),
        ("link a secret", "ln $V/secret h"),
        ("link a program with root's rights", "ln $V/suid h"),
        ("make a block device", "mknod d b 254 0"),
        ("make a character device", "mknod d c 1 1"),
        ("make a whiteout", "mknod d c 0 0"),
        ("move a device", "mv $V/null n"),
        ("open a disk", "d=$(ls /dev/vda /dev/sda 2>/dev/null | head -1); head -c1 ${d:-/none} | wc -c | grep -qx 1"),
        ("set capabilities", "cp /bin/cat c; setcap cap_dac_override+ep c"),
        ("make a user namespace", "unshare -U true"),
        ("mount in a user namespace", "unshare -Urm mount -t tmpfs none $V"),
        ("enter root's namespaces", "nsenter -t 1 -m true"),
        ("change the root", "chroot / true"),
        ("mount", "mount -t tmpfs none $V/dir"),
        ("unmount", "umount /proc"),
        ("look into process 1", "cat /proc/1/environ >/dev/null; ls /proc/1/root/"),
        ("reach out by process 1", "echo x >/proc/1/root$V/file"),
        ("look into the worker", "tr '\\0' '\\n' </proc/$PPID/environ; ls /proc/$PPID/fd/"),
        ("write into the worker", "echo x >/proc/$PPID/mem"),
        ("the worker's root", "ls /proc/$PPID/root/"),
        ("end the server", "kill -KILL $SERVER"),
        ("stop the worker", "kill -STOP $PPID"),
        ("end another's process", "kill -KILL $BOBS"),
        ("write to the kernel", "echo x >/proc/sys/kernel/hostname"),
        ("leave its group", "echo $$ >/sys/fs/cgroup/unified/cgroup.procs || echo $$ >/sys/fs/cgroup/cgroup.procs"),
        ("see transactions", "ls $R/var/lib/pando/tx/*"),
        ("look behind the hidden", "cat /.pando-tx/*/upper/* /tmp/.pando-tx/*/upper/*"),
        ("become root", "setpriv --reuid 0 true"),
        ("become bob", "setpriv --reuid 70002 --clear-groups true"),
        ("protect", "echo x >m; chattr +i m"),
        ("raise a limit", "ulimit -Hn 99999999"),
        ("be dearer", "test $(nice -n -5 nice) -lt $(nice)"),
        ("replace a directory of root's that is not empty", "rm -rf $V/shared/full"),
        ("change a mode in a shared directory", "chmod 777 $V/shared/roots"),
        ("begin another transaction", "$P --root $R tx run -- true"),
    ];
    let (before, bob) = (tree_state::exact(&at), bobs.pid().to_string());
    let inside = |script: &str| {
        let line = scene.run(ALICE, &["--retry", "0"], script).env("V", &at).env("R", &root);
        line.env("P", sandbox.program()).env("SERVER", server.to_string()).env("BOBS", &bob).run()
    };
    for (what, script) in attempts {
        let ended = inside(&format!("echo inside; {script}"));
        assert!(ended.out().starts_with("inside\n"), "to {what}: {}", ended.err());
        assert_ne!(ended.code(), 0, "to {what}: {}{}", ended.out(), ended.err());
        assert!(!ended.out().contains("secret") && !ended.err().contains("committed"), "to {what}: {}", ended.out());
        assert_eq!(tree_state::exact(&at), before, "to {what}");
    }
    assert!(!bobs.has_ended(), "bob's process was ended");
    assert_eq!(fs::read_dir(scene.home("alice")).expect("it is there").count(), 0, "nothing of all that was committed");
    // What she may do there is done.
    inside("echo mine >$V/sticky/mine; echo more >>$V/shared/written; echo new >$V/shared/new").succeeded();
    let new = fs::metadata(at.join("shared/new")).expect("it was made");
    assert_eq!((new.uid(), new.gid(), new.mode() & 0o7000), (ALICE, TEAM, 0));
    let written = fs::metadata(at.join("shared/written")).expect("it is there");
    assert_eq!((written.uid(), written.gid(), read(at.join("shared/written"))), (0, TEAM, "w\nmore\n".to_owned()));
}

fn privileged_programs(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let at = victims(sandbox);
    let line = |script: &str| scene.run(ALICE, &["-q", "--retry", "0"], script).env("V", &at);
    // Outside it is root, which shows that inside it could be.
    assert_eq!(
        scene.of(ALICE, [at.join("suid").as_os_str(), "-p".as_ref(), "-c".as_ref(), "id -u".as_ref()]).ok(),
        "0\n"
    );
    assert_eq!(line("$V/suid -p -c 'id -u'").ok(), format!("{ALICE}\n"));
    assert_ne!(line("$V/suid -p -c 'cat $V/secret'").run().code(), 0);
    if Line::new("setcap").args(["cap_dac_override=ep"]).args([at.join("suid")]).run().code() == 0 {
        fs::set_permissions(at.join("suid"), PermissionsExt::from_mode(0o755)).expect("it is root's");
        let ended = line("$V/suid -c 'while read line; do echo \"$line\"; done <$V/secret'").run();
        assert!(!ended.out().contains("secret"), "{}", ended.out());
    }
    // A program of her own that others run with her rights is hers to make; of root's she makes none.
    line("cp /bin/true mine; chmod 6755 mine").run().succeeded();
    let mine = fs::metadata(scene.home("alice").join("mine")).expect("it was committed");
    assert_eq!((mine.uid(), mine.mode() & 0o7777), (ALICE, 0o6755));
    // What steers root's code in the environment does nothing to it.
    let evil = scene.home("alice").join("evil");
    fs::create_dir(&evil).expect("a directory");
    fs::write(evil.join("id"), "#!/bin/sh\necho hers\n").expect("a file");
    fs::set_permissions(evil.join("id"), PermissionsExt::from_mode(0o755)).expect("a file");
    let ended = line("id; /usr/bin/id -u").env("PATH", format!("{}:/usr/bin:/bin", evil.display()));
    let ended = ended.env("LD_PRELOAD", "/nonexistent.so").env("PANDO_TX_PLANT", "by-name").env("TMPDIR", &evil).run();
    assert_eq!(ended.out(), format!("hers\n{ALICE}\n"));
}

fn restrained(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let pando = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()];
    let words = ["tx", "run", "--", "sh", "-c", "echo x >f"];
    let (alice, home) = (ALICE.to_string(), scene.home("alice"));
    let as_alice = ["--reuid", &alice, "--regid", &alice, "--clear-groups"];
    let line = Line::new("setpriv").args(as_alice).args(["--no-new-privs", "--"]).args(pando).args(words);
    line.directory(&home).run().ended_with(125).complains_of(&["no_new_privs"]);
    for (kind, option) in [("net", "-n"), ("mnt", "-m"), ("uts", "-u")] {
        let line = Line::new("unshare").args([option, "setpriv"]).args(as_alice).args(["--"]).args(pando).args(words);
        line.directory(&home).run().ended_with(125).complains_of(&["namespace of its own", kind]);
    }
    assert!(!home.join("f").exists());
}

/// What asks with bytes of its own making.
const ASKER: &str = r#"
import array, json, os, socket, struct, sys
def ask(head, pieces=(), fds=(0, 1, 2)):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(20)
    s.connect(sys.argv[1])
    try:
        s.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else [])
        for piece in pieces:
            s.send(piece)
        return s.recv(65536).decode(errors='replace')
    except OSError as error:
        return 'closed: %s' % error
def head(length):
    return b'PandoTxU' + struct.pack('<I', length)
def request(fds=(0, 1, 2), **more):
    text = lambda word: list(word.encode())
    body = dict(command=[text('sh'), text('-c'), text('id -u >made')], environment=[text('PATH=/usr/bin:/bin')], directory=text(os.getcwd()),
                timeout=None, refuses_network=False, durable=False, retries=0)
    body.update(more)
    body = json.dumps(body).encode()
    return ask(head(len(body)), [body[i:i + 30000] for i in range(0, len(body), 30000)], fds)
null = os.open('/dev/null', os.O_RDWR)
here = os.open('.', os.O_RDONLY)
path = os.open('/etc', os.O_PATH)
answers = [
    ask(b''), ask(b'x' * 60000), ask(head(2 ** 32 - 1)), ask(head(10), [b'x' * 100]), ask(head(4), [b'null']), ask(head(2), [b'{}']),
    ask(head(3), [b'\xff\xfe\xfd']), ask(head(1000), [b'[' * 1000]), ask(head(5), fds=()), ask(head(5), fds=(0,)), ask(head(5), fds=[null] * 60),
    request(fds=(here, 1, 2)), request(fds=(null, path, 2)), request(command=[]), request(command=[[0]]), request(environment=[[65, 61, 0]]),
    request(directory=[46, 0]), request(directory=list(b'/root')), request(timeout=-1), request(retries=-1), request(command='sh'),
    request(uid=0, gid=0, user='root', umask=0), request(directory=list(b'/proc/1/cwd')),
]
assert not os.path.exists('made') or open('made').read() == '%d\n' % os.getuid(), 'another has made it'
for number, answer in enumerate(answers):
    print(number, answer.replace('\n', ' '))
"#;

fn nonsense(sandbox: &Sandbox) {
    let mut scene = Scene::set(sandbox);
    let socket = sandbox.root().join("run/pando/tx-users.sock");
    let said = scene.of(ALICE, ["/usr/bin/python3", "-c", ASKER]).args([socket.as_os_str()]).limit(300).ok();
    // One of them is a request, with more in it than is asked for.
    let done = |line: &&str| line.contains("\"code\":0");
    let committed: Vec<_> = said.lines().filter(done).map(|line| line.split(' ').next()).collect();
    assert_eq!(committed, [Some("21")], "{said}");
    assert!(!scene.server.has_ended(), "the server was ended");
    scene.run(BOB, &[], "echo fine >f").run().succeeded();
    eventually("nothing of the transactions is left", || scene.transactions().is_empty());
}

fn closed_meanwhile(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let at = sandbox.scratch().join("open");
    // What she does while it is open, and what is done to it before she commits.
    let cases = [
        ("echo new >open/new", "chmod 755 open"),
        ("echo new >>open/f", "chmod 644 open/f"),
        ("rm open/f", "chmod 755 open"),
        ("mv open/f open/g", "chmod 755 open"),
        ("rm open/f", "chmod 1777 open"),
        ("echo new >open/d/new", "chmod 700 open/d"),
        ("echo new >open/d/new", "mv open/d open/e; mkdir open/d"),
        ("echo new >open/d/new", "mv open/d away; ln -s ../away open/d; chmod 755 away"),
        ("echo new >open/mine", "chattr +i open"),
        ("chmod 600 open/hers", "chown 0 open/hers"),
        ("mkdir -p open/n/m; echo x >open/n/m/f; mv open/d open/n/d", "chmod 755 open/d open"),
    ];
    for (number, (does, change)) in cases.iter().enumerate() {
        let set = "chattr -i open 2>/dev/null; rm -rf --one-file-system open away; mkdir -m 777 open; cd open; echo old >f; \
            chmod 666 f; mkdir -m 777 d; echo hers >hers; chown 70001 hers";
        Line::new("sh").args(["-c", set]).directory(sandbox.scratch()).ok();
        let word = format!("417{number}");
        let script = format!("cd ..; {does}; sleep {word}; true");
        let started = scene.run(ALICE, &["--retry", "0"], &script).start();
        eventually("she has done it", || !processes_with(&word).is_empty());
        if Line::new("sh").args(["-ec", change]).directory(sandbox.scratch()).run().code() != 0 {
            skip(format!("{change} cannot be done here"));
        }
        let before = tree_state::exact(&at);
        for pid in processes_with(&word) {
            let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
        }
        let ended = started.wait().ended_with(125);
        assert_eq!(tree_state::exact(&at), before, "{does}, {change}: {}", ended.err());
        let _ = Line::new("chattr").args(["-i"]).args([&at]).run();
    }
}

/// The worker stands still at each step of its commit in turn, while alice puts a directory of root's in the place of
/// her own: nothing comes into it, and nothing goes from it.
fn swapped(sandbox: &Sandbox) {
    const MOST: u32 = 80;
    let scene = Scene::set(sandbox);
    drop(scene.server);
    let home = sandbox.scratch().join("alice");
    let set = "rm -rf --one-file-system d d0 r n; mkdir d r; echo old >d/old; echo old >d/gone; echo old >r/old; echo old >r/gone; echo f >r/f; \
        echo f >d/f; chown -R 70001:70001 d; chmod 755 r";
    let mut stopped = 0;
    for step in 0..MOST {
        Line::new("sh").args(["-ec", set]).directory(&home).ok();
        let roots = fs::metadata(home.join("r")).expect("it is there").ino();
        let before = tree_state::lines(&home.join("r"));
        let server = serve(sandbox, &[("PANDO_TX_STOP_STEP", &step.to_string())]);
        let scene = Scene { sandbox, server };
        let script = "echo new >d/new; echo new >>d/old; rm d/gone; mkdir d/sub; echo x >d/sub/x; mv d/f d/g; mkdir n; echo n >n/n";
        let mut started = scene.run(ALICE, &["--retry", "0"], script).start();
        let is_stopped =
            |pid: &i32| read(format!("/proc/{pid}/stat")).rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
        let workers = || {
            processes_with("work")
                .into_iter()
                .filter(|pid| read(format!("/proc/{pid}/cmdline")).contains(&*sandbox.root().to_string_lossy()))
        };
        let worker = || workers().find(is_stopped);
        eventually("it stands still or has ended", || worker().is_some() || started.has_ended());
        let Some(pid) = worker() else { break };
        stopped += 1;
        scene.of(ALICE, ["sh", "-c", "mv d d0 && mv r d"]).run();
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::CONT);
        let ended = started.wait();
        let found = fs::read_dir(&home).expect("it is there").flatten().map(|entry| entry.path());
        let found = found.into_iter().find(|path| fs::metadata(path).is_ok_and(|one| one.ino() == roots));
        let found = found.unwrap_or_else(|| panic!("step {step}: the directory of root's is gone"));
        assert_eq!(tree_state::lines(&found), before, "step {step}: {}", ended.err());
    }
    assert!(stopped > 5, "it stood still {stopped} times");
}

fn apart(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    fs::create_dir(sandbox.scratch().join("both")).expect("a directory");
    let both = sandbox.scratch().join("both");
    fs::set_permissions(&both, PermissionsExt::from_mode(0o1777)).expect("it is root's");
    let script =
        |who: &str, word: &str| format!("cd ../both; echo in progress of {who} >{who}; ls; sleep {word}; true");
    let alice = scene.run(ALICE, &["-q", "--retry", "0"], &script("alice", "3174")).start();
    eventually("alice is in it", || !processes_with("3174").is_empty());
    let bob = scene.run(BOB, &["-q", "--retry", "0"], &script("bob", "3175")).start();
    eventually("bob is in it", || !processes_with("3175").is_empty());
    assert_eq!(fs::read_dir(&both).expect("it is there").count(), 0, "nothing is to be seen outside");
    let inside = processes_with("3174")[0];
    for script in [
        format!("ls /proc/{inside}/root/"),
        format!("cat /proc/{inside}/root{}/alice", both.display()),
        format!("ls /proc/{inside}/cwd/"),
        format!("kill -0 {inside}"),
        format!("cat {}/var/lib/pando/tx/user*/part-0/upper/tmp", sandbox.root().display()),
    ] {
        assert_ne!(scene.of(BOB, ["sh", "-c", &script]).run().code(), 0, "outside: {script}");
        let ended = scene.run(BOB, &["-q", "--retry", "0"], &script).run();
        assert!(ended.code() != 0 && !ended.out().contains("in progress"), "inside: {script}: {}", ended.out());
    }
    for word in ["3174", "3175"] {
        for pid in processes_with(word) {
            let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
        }
    }
    // Each listed a directory that the other has changed: one of them would have to do it again.
    alice.wait();
    bob.wait();
    let (hers, his) = (read(both.join("alice")), read(both.join("bob")));
    assert!(hers.contains("of alice") || his.contains("of bob"));
}

fn killed_client(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let home = scene.home("alice");
    let script = "trap '' TERM HUP INT; echo x >f; (trap '' HUP TERM; setsid sleep 3176) & sleep 3176";
    let started = scene.run(ALICE, &[], script).start();
    eventually("it runs", || processes_with("3176").len() >= 2);
    for pid in processes_with(&sandbox.root().to_string_lossy()) {
        // The client alone: the server and the worker are root's.
        if fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == ALICE) {
            let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
        }
    }
    assert_ne!(started.wait().code(), 0);
    eventually("all of it is gone", || processes_with("3176").is_empty() && scene.transactions().is_empty());
    assert!(!home.join("f").exists());
    scene.run(ALICE, &[], "echo y >f").run().succeeded();
}

fn killed_server(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let home = scene.home("alice");
    let started = scene.run(ALICE, &[], "echo x >f; exec sleep 3177").start();
    eventually("it runs", || !processes_with("3177").is_empty());
    scene.server.signal(Signal::KILL);
    started.wait().ended_with(125).complains_of(&["as a whole, or not at all"]);
    eventually("the command is gone", || processes_with("3177").is_empty());
    assert!(!home.join("f").exists());
    drop(scene);
    // In the midst of a commit: a worker that is killed at any of its steps.
    let mut seen = [false; 2];
    for step in 0..60 {
        Line::new("sh").args(["-ec", "rm -rf --one-file-system f d; echo old >f; chown 70001 f"]).directory(&home).ok();
        let server = serve(sandbox, &[("PANDO_TX_CRASH_STEP", &step.to_string())]);
        let scene = Scene { sandbox, server };
        let ended = scene.run(ALICE, &["--retry", "0"], "echo new >f; mkdir d; echo new >d/in").run();
        let is_done = ended.code() == 0;
        drop(scene);
        sandbox.pando(["tx", "recover"]).ok();
        let found = (read(home.join("f")), read(home.join("d/in")));
        let is_new = found == ("new\n".to_owned(), "new\n".to_owned());
        assert!(
            is_new || found == ("old\n".to_owned(), String::new()) && !home.join("d").exists(),
            "step {step}: {found:?}"
        );
        if is_new {
            assert_eq!(fs::metadata(home.join("d/in")).expect("it is there").uid(), ALICE);
        }
        seen[usize::from(is_new)] = true;
        if is_done {
            break;
        }
    }
    assert_eq!(seen, [true; 2], "it was never killed before and after its commit point");
}

fn bounds(sandbox: &Sandbox) {
    let settings = format!("users = [\"{ALICE}\", \"{BOB}\"]\nusers_at_once = 1\nusers_room = \"4M\"");
    let scene = Scene::with(sandbox, &settings, &[]);
    let started = scene.run(ALICE, &[], "sleep 3178").start();
    eventually("it runs", || !processes_with("3178").is_empty());
    scene.run(ALICE, &[], "true").run().ended_with(125).complains_of(&["users_at_once"]);
    scene.run(BOB, &[], "true").run().succeeded();
    drop(started);
    for pid in processes_with("3178") {
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
    }
    eventually("her turn comes", || scene.run(ALICE, &[], "true").run().code() == 0);
    let ended = scene.run(ALICE, &[], "head -c 6000000 /dev/zero >big").run();
    assert_ne!(ended.code(), 0);
    let many = "n=0; while [ $n -lt 2000 ]; do : >many$n || exit 3; n=$((n + 1)); done";
    assert_ne!(scene.run(ALICE, &[], many).run().code(), 0);
    assert_eq!(fs::read_dir(scene.home("alice")).expect("it is there").count(), 0);
    scene.run(ALICE, &[], "head -c 1000000 /dev/zero >fits").run().succeeded();
}
