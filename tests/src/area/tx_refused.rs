//! Each call that cannot be a part of a transaction: refused, it ends that and is named with who made it and what it
//! was about; let, it does what it does natively.
//!
//! All are made so that the kernel itself refuses them: where Pando did not, no harm were done.

use crate::case::{Case, skip};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

const NEEDS: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_refused::each_call_that_cannot_be_undone_is_named", each_call).needs(NEEDS),
    Case::new("tx_refused::objects_of_system_v_that_others_have_are_not_reached", objects).needs(NEEDS),
    Case::new("tx_refused::standard_descriptors_lead_past_nothing", standard_descriptors),
    Case::new("tx_refused::namespaces_outside_are_not_entered", namespaces)
        .needs(&[Need::Root, Need::Program("nsenter", "util-linux")]),
];

/// A call of x86-64: its name and number, its arguments as Python has them, its object, and the capability without
/// which the kernel refuses it.
struct Refused(&'static str, u32, &'static str, &'static str, Option<u32>);

const MODULE: Option<u32> = Some(16);
const ACCOUNTS: Option<u32> = Some(20);
const ADMIN: Option<u32> = Some(21);
const BOOT: Option<u32> = Some(22);
const TIME: Option<u32> = Some(25);

const CALLS: [Refused; 23] = [
    Refused("mount", 165, "b'none', b'/nowhere/m', b'nothing', 0, 0", "/nowhere/m", ADMIN),
    Refused("umount2", 166, "b'/nowhere/m', 0", "/nowhere/m", ADMIN),
    Refused("move_mount", 429, "-1, b'', -1, b'/nowhere/m', 0", "/nowhere/m", ADMIN),
    Refused("mount_setattr", 442, "-1, b'/nowhere/m', 0, 0, 0", "/nowhere/m", ADMIN),
    Refused("pivot_root", 155, "b'/nowhere/m', b'/nowhere/m'", "/nowhere/m", ADMIN),
    Refused("mq_open", 240, "b'pando-nowhere', 0, 0, 0", "pando-nowhere", None),
    Refused("mq_unlink", 241, "b'pando-nowhere'", "pando-nowhere", None),
    Refused("reboot", 169, "0, 0, 0, 0", "", BOOT),
    Refused("kexec_load", 246, "0, 0, 0, 0xffff", "", BOOT),
    Refused("kexec_file_load", 320, "-1, -1, 0, 0, 0xffff", "", BOOT),
    Refused("init_module", 175, "0, 0, 0", "", MODULE),
    Refused("finit_module", 313, "-1, 0, 0", "", MODULE),
    Refused("delete_module", 176, "b'pando_nowhere', 0x800", "", MODULE),
    Refused("settimeofday", 164, "(5).to_bytes(8, 'little') + (9_000_000).to_bytes(8, 'little'), 0", "", TIME),
    Refused("clock_settime", 227, "999, b'x' * 16", "", TIME),
    Refused("sethostname", 170, "b'nowhere', -1", "nowhere", ADMIN),
    Refused("setdomainname", 171, "b'nowhere', -1", "nowhere", ADMIN),
    Refused("swapon", 167, "b'/nowhere/s', 0", "/nowhere/s", ADMIN),
    Refused("swapoff", 168, "b'/nowhere/s'", "/nowhere/s", ADMIN),
    Refused("acct", 163, "b'/nowhere/a'", "/nowhere/a", ACCOUNTS),
    Refused("quotactl", 179, "-1, b'/nowhere/q', 0, 0", "/nowhere/q", None),
    Refused("semget", 64, "KEY, 1, 0o1600", "key ", None),
    Refused("msgget", 68, "KEY, 0o1600", "key ", None),
];

/// Makes it, and says how it went.
fn making(call: &Refused, key: i32) -> String {
    let Refused(_, number, arguments, ..) = call;
    let arguments = arguments.replace("KEY", &key.to_string());
    format!(
        "import ctypes, os; open('made', 'w').close(); call = ctypes.CDLL(None, use_errno=True).syscall\n\
         found = call({number}, {arguments}); print(found < 0 and ctypes.get_errno())"
    )
}

fn python(sandbox: &Sandbox, options: &[&str], script: &str) -> Ended {
    let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "python3", "-c", script]);
    line.directory(sandbox.scratch()).run()
}

fn holds(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(held.trim(), 16).is_ok_and(|held| held & 1 << capability != 0)
}

fn each_call(sandbox: &Sandbox) {
    if !cfg!(target_arch = "x86_64") {
        skip("other architectures have other numbers");
    }
    let made = sandbox.scratch().join("made");
    // Objects that others have under the key, of either kind.
    let key = (std::process::id() << 8 | 0x71).cast_signed();
    let outside = |call: &str| {
        format!(
            "import ctypes; assert ctypes.CDLL(None).{call}({key}, {}) >= 0",
            if call == "msgget" { "0o1600" } else { "1, 0o1600" }
        )
    };
    for call in ["semget", "msgget"] {
        Line::new("python3").args(["-c", &outside(call)]).ok();
    }
    let removed = Removed(key);
    for call in &CALLS {
        let Refused(name, _, _, object, capability) = call;
        let script = making(call, key);
        let native = Line::new("python3").args(["-c", &script]).directory(sandbox.scratch()).ok();
        std::fs::remove_file(&made).expect("it was made");
        let ended = python(sandbox, &[], &script);
        if capability.is_some_and(|capability| !holds(capability)) {
            // The kernel says that it may not.
            assert_eq!(ended.succeeded().out(), native, "{name}");
        } else {
            let said = [
                format!("{name} by process "),
                object.to_string(),
                "python3 -c".to_owned(),
                "nothing was changed".to_owned(),
            ];
            ended.ended_with(125).complains_of(&said.each_ref().map(String::as_str));
            assert!(!made.exists(), "{name}");
        }
        let warned = python(sandbox, &["--unsupported=warn"], &script).succeeded();
        // What one object of its own finds is not what the others' has: the numbers of objects that were found do not
        // matter.
        assert_eq!(warned.out(), native, "{name}");
        assert!(warned.err().contains("committed"), "{name}: {}", warned.err());
        std::fs::remove_file(&made).expect("it was committed");
    }
    drop(removed);
}

/// Removes what the test has made on the host.
struct Removed(i32);

impl Drop for Removed {
    fn drop(&mut self) {
        let key = self.0.to_string();
        let _ = Line::new("ipcrm").args(["-S", &key, "-Q", &key]).run();
    }
}

/// What others have under a key is untouched also where the calls that name it are let.
fn objects(sandbox: &Sandbox) {
    let key = (std::process::id() << 8 | 0x72).cast_signed();
    let send = |flags: &str, end: &str| {
        format!(
            "import ctypes; libc = ctypes.CDLL(None); queue = libc.msgget({key}, {flags}); assert queue >= 0\n\
             assert libc.msgsnd(queue, b'\\1\\0\\0\\0\\0\\0\\0\\0word', 4, 0) == 0{end}"
        )
    };
    let removed = Removed(key);
    // Its own, since nobody has one yet; and gone with it.
    python(sandbox, &[], &send("0o1600", "")).succeeded();
    let waiting = || {
        let text = std::fs::read_to_string("/proc/sysvipc/msg").unwrap_or_default();
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{key} "))).map(str::to_owned);
        line.and_then(|line| line.split_ascii_whitespace().nth(4).map(str::to_owned))
    };
    assert_eq!(waiting(), None);
    Line::new("python3").args(["-c", &send("0o1600", "")]).ok();
    assert_eq!(waiting().as_deref(), Some("1"));
    python(sandbox, &[], &send("0", "")).ended_with(125).complains_of(&["msgget by process", &format!("key {key:#x}")]);
    assert_eq!(waiting().as_deref(), Some("1"));
    drop(removed);
}

/// A namespace of mounts outside has the live tree in it. Those that the transaction makes are its own.
fn namespaces(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let outside = Line::new("sleep").args(["1000"]).directory(&directory).start();
    let pid = outside.pid().to_string();
    eventually("it sleeps", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    let run = |script: &str| sandbox.pando(["tx", "run", "--", "bash", "-c", script]).directory(&directory).run();
    let way = directory.join("way").display().to_string();
    for enter in
        [format!("nsenter -t {pid} -m"), format!("nsenter --mount=/proc/{pid}/ns/mnt"), format!("nsenter -t {pid} -i")]
    {
        let ended = run(&format!("echo >made; {enter} touch {way}")).ended_with(125);
        let ended = ended.complains_of(&["setns by process", "(nsenter -", "nothing was changed"]);
        let named = [format!("of process {pid},"), "of namespace mnt:[".to_owned(), "of namespace ipc:[".to_owned()];
        assert!(named.iter().any(|name| ended.err().contains(name)), "{enter}: {}", ended.err());
        assert!(!directory.join("way").exists() && !directory.join("made").exists(), "{enter}");
    }
    let own = "exec 3</proc/self/ns/mnt; unshare -m sleep 1000 & sleep 0.3; nsenter -t $! -m -i touch $PWD/inside && nsenter --mount=/proc/self/fd/3 touch $PWD/back
               nsenter -t $$ -n true; kill $!; wait; ls inside back";
    assert_eq!(run(own).succeeded().out(), "back\ninside\n");
    drop(outside);
    assert!(directory.join("inside").exists() && directory.join("back").exists());
}

fn standard_descriptors(sandbox: &Sandbox) {
    let live = sandbox.scratch().join("live");
    std::fs::create_dir_all(&live).expect("a directory");
    let pando = format!("{} --root {}", sandbox.program().display(), sandbox.root().display());
    let sh = |script: String| Line::new("sh").args(["-c", &script]).directory(&live).run();
    for (fd, name, redirected) in [(0, "input", "<."), (1, "output", "1<."), (2, "error", "2<.")] {
        let planted = format!("echo x >/proc/self/fd/{fd}/planted; exit 3");
        let ended = sh(format!("{pando} tx run -- sh -c '{planted}' {redirected}"));
        assert_eq!(ended.code(), 125, "standard {name}: {}", ended.err());
        if fd != 2 {
            assert!(ended.err().contains(&format!("standard {name} is a directory")), "{}", ended.err());
        }
        let names = std::fs::read_dir(&live).expect("it is there").count();
        assert_eq!(names, 0, "through standard {name} the live tree was changed, by what was aborted");
    }
    // In one that is open too.
    sandbox.pando(["tx", "begin", "t"]).ok();
    let entered = sh(format!("{pando} tx enter t -- sh -c 'echo x >/proc/self/fd/0/planted' <."));
    entered.ended_with(125).complains_of(&["standard input is a directory"]);
    sandbox.pando(["tx", "abort", "t"]).ok();
    // The control: what leads nowhere is passed.
    let read = sh(format!("echo read >../file; {pando} tx run -- cat <../file"));
    read.succeeded().says("read\n");
}
