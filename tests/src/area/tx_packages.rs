//! Debian's packages in transactions, on copies of a root: installed and purged they leave what they leave natively; a
//! package that fails leaves nothing, and nobody sees any of it.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::need::Need;
use crate::process;
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap"), Need::Program("dpkg-deb", "dpkg")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_packages::apt_installs_and_purges_servers", installs_and_purges).needs(NEEDS).tags(&[Tag::Slow]),
    Case::new("tx_packages::apt_installs_and_purges_servers_in_a_guest", in_a_guest).needs(NEEDS).tags(&[Tag::Slow]),
    Case::new("tx_packages::apt_installs_a_server_in_a_guest_that_has_booted", in_a_booted_guest)
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
    Case::new("tx_packages::a_package_that_fails_leaves_no_trace", package_that_fails).needs(NEEDS).tags(&[Tag::Slow]),
];

/// Seconds that a slow mirror, and a slow disk, may take.
const LIMIT: u64 = 900;

const SERVERS: &str = "openssh-server nginx postgresql";

/// A small Debian that has the packages with everything that they need, and none of it installed. Nothing starts in it
/// by itself.
fn debian(sandbox: &Sandbox) -> PathBuf {
    debian_with(sandbox, "", SERVERS)
}

/// The same with these packages installed, and those with all that they need beside it.
fn debian_with(sandbox: &Sandbox, installed: &str, fetched: &str) -> PathBuf {
    let root = sandbox.scratch().join("native");
    let policy = "customize-hook=printf '#!/bin/sh\\nexit 101\\n' >\"$1/usr/sbin/policy-rc.d\"; chmod 755 \"$1/usr/sbin/policy-rc.d\"";
    let fetch = format!("customize-hook=chroot \"$1\" apt-get -qq -y -d --no-install-recommends install {fetched}");
    // With no package at all it is no option.
    let include = (!installed.is_empty()).then(|| format!("--include={installed}"));
    let line = Line::new("mmdebstrap").args(["--quiet", "--variant=apt", "--skip=cleanup/apt"]).args(include);
    let line = line.args(["--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=Acquire::Check-Date \"false\""]);
    let line = line.args([format!("--{policy}"), format!("--{fetch}"), "bookworm".to_owned()]).args([&root]);
    let made = line.limit(LIMIT).run();
    if made.code() != 0 {
        skip(format!("no Debian can be installed here: {}", made.err()));
    }
    root
}

fn install() -> String {
    format!("apt-get -qq -y --no-download --no-install-recommends install {SERVERS}")
}

/// A shell in a root: as a transaction, or not.
fn within(sandbox: &Sandbox, root: &Path, transaction: bool, script: &str) -> Line {
    let script = format!("export DEBIAN_FRONTEND=noninteractive LC_ALL=C; {script}");
    let line = match transaction {
        true => sandbox.pando(["tx", "run", "--", "chroot"]),
        false => Line::new("chroot"),
    };
    line.args([root]).args(["sh", "-ec", &script]).limit(LIMIT)
}

/// What is installed, whether its files are what they were made as, and names, kinds, modes, owners and links of all
/// files but those whose names are made up, or of the host's name: that of a certificate's hash.
const STATE: &str = "dpkg --audit; dpkg --verify; dpkg -l; \
                     find / -xdev -path /var/lib/postgresql/15/main/base -prune -o -path /var/lib/postgresql/15/main/pg_wal -prune \
                     -o -path /var/lib/postgresql/15/main/pg_xact -prune \
                     -o -path '/etc/ssl/certs/????????.0' -prune -o -printf '%p %y %m %U:%G %l\\n' | sort";

fn state(sandbox: &Sandbox, root: &Path) -> String {
    within(sandbox, root, false, STATE).ok()
}

fn installs_and_purges(sandbox: &Sandbox) {
    let native = debian(sandbox);
    let inside = sandbox.scratch().join("inside");
    Line::new("cp").args(["-a"]).args([&native, &inside]).limit(LIMIT).ok();
    // A removal leaves what its packages' scripts leave; both have to come to the same.
    for script in [install(), format!("apt-get -qq -y purge {SERVERS}; apt-get -qq -y autoremove --purge")] {
        let before = exact(&inside);
        within(sandbox, &inside, true, &format!("{script}; exit 3")).run().ended_with(3);
        assert!(exact(&inside) == before, "an abort has left something");
        within(sandbox, &native, false, &script).ok();
        within(sandbox, &inside, true, &script).run().succeeded().complains_of(&["committed"]);
        compare(&state(sandbox, &native), &state(sandbox, &inside));
    }
}

/// A shell in a guest: as a transaction, or not.
fn in_guest(sandbox: &Sandbox, name: &str, transaction: bool, script: &str) -> Line {
    let script = format!("export DEBIAN_FRONTEND=noninteractive LC_ALL=C; {script}");
    let line = match transaction {
        true => sandbox.pando(["tx", "run", "--guest", name]),
        false => sandbox.pando(["exec", name]),
    };
    line.args(["--", "sh", "-ec", &script]).limit(LIMIT)
}

/// The same in two guests of that Debian.
fn in_a_guest(sandbox: &Sandbox) {
    let root = debian(sandbox);
    for name in ["native", "inside"] {
        let line = sandbox.pando(["create", name, "--from"]).args([&root]);
        line.args(["--start", "--", "sleep", "1000000"]).limit(LIMIT).ok();
    }
    let all = "find / -xdev -printf '%p %y %m %U:%G %s %T@ %l\\n' | sort";
    let exact = |name: &str| in_guest(sandbox, name, false, all).ok();
    let state = |name: &str| in_guest(sandbox, name, false, STATE).ok();
    for script in [install(), format!("apt-get -qq -y purge {SERVERS}; apt-get -qq -y autoremove --purge")] {
        let before = exact("inside");
        in_guest(sandbox, "inside", true, &format!("{script}; exit 3")).run().ended_with(3);
        compare(&before, &exact("inside"));
        in_guest(sandbox, "native", false, &script).ok();
        in_guest(sandbox, "inside", true, &script).run().succeeded().complains_of(&["committed", "gate freeze"]);
        compare(&state("native"), &state("inside"));
    }
}

/// All that can be seen of what such a guest has in memory, but for what its own services write.
const IN_MEMORY: &str = "find /run /run/lock /tmp -xdev '(' -path /run/log -o -path /run/systemd -o -path /run/agetty.reload ')' -prune \
                         -o -type d -printf '%p %m %U:%G %i\\n' -o -printf '%p %y %m %U:%G %i %s %T@ %l\\n' | sort";

/// A Debian that systemd has booted, whose /run and /tmp are in memory. What the packages' scripts have systemd do is
/// done once it can see what was committed.
fn in_a_booted_guest(sandbox: &Sandbox) {
    let root = debian_with(sandbox, "dbus,systemd-sysv", "openssh-server");
    broken_package(sandbox, &root);
    super::systemd::booted(sandbox, &root.to_string_lossy(), &[]);
    let install = |packages: &str| {
        let script = "export SYSTEMD_OFFLINE=1; echo it >/run/installing; echo it >/tmp/installing";
        let apt = "apt-get -qq -y -o DPkg::Inhibit-Shutdown=0 --no-download --no-install-recommends install";
        in_guest(sandbox, "sd", true, &format!("{script}; {apt} {packages}"))
    };
    let look = |script: &str| in_guest(sandbox, "sd", false, script).ok();
    let exact = format!("{STATE}; {IN_MEMORY}");
    let before = look(&exact);
    let failed = install("openssh-server /broken.deb").run().ended_with(100);
    failed.complains_of(&["aborted: exit code 100", "nothing was changed"]);
    compare(&before, &look(&exact));
    assert_eq!(look("pgrep -x 'sshd|sleep' || true; ls /run/sshd /run/adduser 2>/dev/null || true"), "");
    let ended = install("openssh-server").run().succeeded().complains_of(&["committed", "gate freeze"]);
    assert!(!ended.err().contains("read-only inside"), "{}", ended.err());
    assert_eq!(look("cat /run/installing /tmp/installing; dpkg --audit; dpkg --verify"), "it\nit\n");
    let banner = "exec 3<>/dev/tcp/127.0.0.1/22; head -c 7 <&3";
    look("systemctl daemon-reload; systemctl start ssh; systemctl is-active ssh");
    assert_eq!(look(&format!("timeout 20 bash -c '{banner}'")), "SSH-2.0");
    // A server of its own in /run is asked as before.
    look("systemd-run --wait --quiet true; busctl call org.freedesktop.systemd1 / org.freedesktop.DBus.Peer Ping");
    let asks = "systemctl is-active ssh; systemd-run --wait --quiet touch /run/asked";
    let asks =
        sandbox.pando(["tx", "run", "--guest", "sd", "--unsupported=warn", "--", "sh", "-ec", asks]).limit(LIMIT);
    asks.run().succeeded().complains_of(&["connect by process", "/run/", "it was done", "committed"]);
    look("test -e /run/asked");
    sandbox.pando(["stop", "sd"]).limit(LIMIT).ok();
}

#[track_caller]
fn compare(native: &str, inside: &str) {
    let beyond = |one: &str, other: &str| -> Vec<String> {
        let others: std::collections::HashSet<&str> = other.lines().collect();
        one.lines().filter(|line| !others.contains(line)).take(10).map(str::to_owned).collect()
    };
    let (lost, gained) = (beyond(native, inside), beyond(inside, native));
    assert!(lost.is_empty() && gained.is_empty(), "natively {lost:#?}, in a transaction {gained:#?}");
}

/// Everything that can be seen of a tree, and of each file its inode and when anything of it last changed.
fn exact(root: &Path) -> Vec<String> {
    let mut lines = tree_state::lines(root);
    let list = Line::new("find").args([root]).args(["-xdev", "-printf", "%p %i %T@ %C@\\n"]).limit(LIMIT).ok();
    lines.extend(list.lines().map(str::to_owned));
    lines
}

/// A package whose script starts a daemon, and then fails.
fn broken_package(sandbox: &Sandbox, root: &Path) {
    let at = sandbox.scratch().join("broken");
    fs::create_dir_all(at.join("DEBIAN")).expect("a directory can be made");
    fs::create_dir_all(at.join("opt/broken")).expect("a directory can be made");
    fs::write(at.join("opt/broken/file"), "new").expect("a file can be written");
    let control =
        "Package: broken\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: fails\n";
    fs::write(at.join("DEBIAN/control"), control).expect("a file can be written");
    let script = "#!/bin/sh\nset -e\nsetsid sleep 1000 </dev/null >/dev/null 2>&1 &\necho \"daemon $!\"\ntouch /etc/broken\nsleep 1\nexit 1\n";
    fs::write(at.join("DEBIAN/postinst"), script).expect("a file can be written");
    fs::set_permissions(at.join("DEBIAN/postinst"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a mode can be set");
    Line::new("dpkg-deb").args(["--root-owner-group", "-b"]).args([&at, &root.join("broken.deb")]).ok();
}

fn package_that_fails(sandbox: &Sandbox) {
    let root = debian(sandbox);
    broken_package(sandbox, &root);
    let paths = [
        "opt/broken",
        "opt/broken/file",
        "opt/broken/file.dpkg-new",
        "etc/broken",
        "var/lib/dpkg/info/broken.list",
        "var/lib/dpkg/info/broken.md5sums",
        "var/lib/dpkg/info/broken.postinst",
        "var/lib/dpkg/status-new",
        "var/lib/dpkg/tmp.ci/control",
    ];
    let over = Arc::new(AtomicBool::new(false));
    let (told, watched) = (Arc::clone(&over), paths.map(|path| root.join(path)));
    let reader = std::thread::spawn(move || {
        let (mut seen, mut looks) = (0_u64, 0_u64);
        while !told.load(Ordering::Relaxed) {
            seen += watched.iter().filter(|path| path.symlink_metadata().is_ok()).count() as u64;
            looks += 1;
        }
        (seen, looks)
    });
    let status = || fs::metadata(root.join("var/lib/dpkg/status")).map(|found| (found.ino(), found.ctime_nsec())).ok();
    let (before, known) = (exact(&root), status());
    let ended = within(sandbox, &root, true, "dpkg -i /broken.deb").run();
    over.store(true, Ordering::Relaxed);
    let (seen, looks) = reader.join().expect("it does not panic");
    let ended = ended.ended_with(1).complains_of(&["nothing was changed"]);
    assert!(seen == 0 && looks > 1000, "{seen} of {looks}");
    assert!(exact(&root) == before && status() == known);
    let daemon = ended.out().lines().find_map(|line| line.strip_prefix("daemon ")?.trim().parse().ok());
    assert!(!process::is_alive(daemon.expect("the script has said its daemon's pid")));
    // Natively it leaves all of that.
    within(sandbox, &root, false, "dpkg -i /broken.deb; true").run();
    assert!(root.join("etc/broken").exists());
    let left = Line::new("pgrep").args(["-xf", "sleep 1000"]).run().out();
    let here = |pid: &str| fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|found| found == root);
    left.lines().filter(|pid| here(pid)).for_each(|pid| process::kill(pid.parse().expect("it is a pid")));
}
