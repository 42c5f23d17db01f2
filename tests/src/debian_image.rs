//! Debian systems, such as one with servers and an init that is not systemd, each as a tarball that is made once.
//!
//! Installing it takes minutes and the network; so it is kept beside this program, under a name that stands for its
//! packages.

use crate::sandbox::Sandbox;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Mutex;

const SUITE: &str = "bookworm";

/// The one after it.
pub(crate) const NEXT_SUITE: &str = "trixie";

/// Which packages a system has besides the essential ones.
pub(crate) type Packages = &'static [&'static str];

/// Servers, and their init. rsyslog brings no script for this init any more: those of such packages are in one of their
/// own.
const SERVERS: Packages = &[
    "cron",
    "dnsmasq-base",
    "nginx",
    "openssh-server",
    "orphan-sysvinit-scripts",
    "postgresql",
    "procps",
    "psmisc",
    "python3",
    "redis-server",
    "rsyslog",
    "sysvinit-core",
];

/// Seconds that a slow mirror may take.
const LIMIT: u64 = 900;

/// One test makes it, the others wait for it.
static MAKING: Mutex<()> = Mutex::new(());

/// Where the tarball of a system with servers is; it is made first if it is not there yet.
#[track_caller]
pub(crate) fn tarball(sandbox: &Sandbox) -> String {
    tarball_with(sandbox, SERVERS)
}

/// The same for a system with other packages.
#[track_caller]
pub(crate) fn tarball_with(sandbox: &Sandbox, packages: Packages) -> String {
    tarball_of(sandbox, SUITE, packages)
}

/// The same for a system of another suite.
#[track_caller]
pub(crate) fn tarball_of(sandbox: &Sandbox, suite: &str, packages: Packages) -> String {
    let _turn = MAKING.lock().unwrap_or_else(|failed| failed.into_inner());
    let path = place(suite, packages);
    if !path.is_file() {
        make(sandbox, (suite, packages), &path);
    }
    path.to_string_lossy().into_owned()
}

fn place(suite: &str, packages: Packages) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (suite, packages).hash(&mut hasher);
    let program = std::env::current_exe().expect("this program has a path");
    program.with_file_name(format!("debian-{suite}-{:016x}.tar", hasher.finish()))
}

#[track_caller]
fn make(sandbox: &Sandbox, (suite, packages): (&str, Packages), path: &std::path::Path) {
    const NAME: &str = "debian-to-keep";
    let source = format!("debian:{suite}+{}", packages.join(","));
    sandbox.pando(["create", NAME, "--from", &source]).limit(LIMIT).ok();
    sandbox.pando(["start", NAME]).ok();
    // Named at the end, since another program may look for it at the same time.
    let unfinished = path.with_extension(format!("tar.{}", std::process::id()));
    // By the guest's own program: what its layers look like on the host is the store's affair. 1 says that something
    // has changed meanwhile, as /sys does when others make devices; what is read is a guest at rest.
    let script = format!(
        r#""$0" --root "$1" exec {NAME} -- \
            tar --numeric-owner --xattrs --acls --one-file-system --warning=no-file-ignored -C / -cf - . >"$2" || [ $? = 1 ]"#
    );
    let words = [sandbox.program().as_os_str(), sandbox.root().as_os_str(), unfinished.as_os_str()];
    crate::line::Line::new("sh").args(["-c", &script]).args(words).limit(LIMIT).ok();
    std::fs::rename(&unfinished, path).expect("a file can be renamed in its directory");
    sandbox.pando(["rm", "--force", NAME]).ok();
}
