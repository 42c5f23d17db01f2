//! The runtimes that Pando is compared with, each told to isolate as much as Pando does.

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::start::bundle::{self, Cgroup};
use crate::start::contender::{Contender, timed};
use crate::start::{BWRAP, CRUN, RUNC};
use anyhow::{Context, anyhow};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pando_guest::policy::seccomp;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Where a hybrid host mounts the second version of cgroups; older crun releases refuse to run beside it.
const HYBRID: &str = "/sys/fs/cgroup/unified";

type Answer = anyhow::Result<f64>;

/// Runs the peers, on a thread of their own whose mounts are its own.
#[derive(Debug)]
pub(crate) struct Peers {
    directory: PathBuf,
    root: PathBuf,
    commands: Sender<Command>,
    answers: Receiver<Answer>,
    count: Cell<u64>,
    /// Whether the hybrid hierarchy was hidden.
    hidden: bool,
}

impl Peers {
    /// Writes the bundles and the filter, and starts the thread.
    pub(crate) fn new(pando: &OwnPando, root: &Path) -> anyhow::Result<Self> {
        let directory = pando.directory().join("peers");
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("filter"), seccomp::program(pando_api::Profile::Default, true))?;
        for (name, cgroup) in [("full", Cgroup::Own(group_prefix())), ("bare", Cgroup::None)] {
            bundle::write(&directory.join(name), root, &cgroup).context("cannot write an OCI bundle")?;
        }
        let hidden = Path::new(HYBRID).is_dir();
        let (commands, received) = channel::<Command>();
        let (answer, answers) = channel();
        std::thread::Builder::new().name("peers".to_owned()).spawn(move || {
            let mut apart = if hidden { hide_hybrid() } else { Ok(()) };
            for mut command in received {
                let outcome = std::mem::replace(&mut apart, Ok(())).and_then(|()| timed(&mut command));
                if answer.send(outcome).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { directory, root: root.to_owned(), commands, answers, count: Cell::new(0), hidden })
    }

    /// Their rows; what they cannot do is noted.
    pub(crate) fn contenders<'a>(&'a self, report: &mut Report) -> Vec<Contender<'a>> {
        if self.hidden {
            report.note(format!("{HYBRID} is hidden from the peers: some releases of crun refuse a hybrid host"));
        }
        report.note(
            "crun and runc make no overlay over the root, and no uid-mapped one: they start on the files as they lie",
        );
        report.note("bwrap puts its guest into no cgroup, has one id in its user namespace, and mounts no /sys");
        vec![
            Contender::new(CRUN, || self.oci("crun", "full", &[])),
            Contender::new("crun run, no cgroup", || self.oci("crun", "bare", &["--cgroup-manager=disabled"])),
            Contender::new(RUNC, || self.oci("runc", "full", &[])),
            Contender::new(BWRAP, || self.bwrap()),
        ]
    }

    fn oci(&self, program: &str, bundle: &str, options: &[&str]) -> Answer {
        self.count.set(self.count.get() + 1);
        let mut command = Command::new(program);
        command.arg("--root").arg(self.directory.join(program)).args(options).args(["run", "--bundle"]);
        command.arg(self.directory.join(bundle)).arg(format!("{}-{}", group_prefix(), self.count.get()));
        // Not the null device: runc gives its standard descriptors to the container's root, and would change the owner
        // of the machine's.
        command.stdin(Stdio::piped());
        self.run(command)
    }

    fn bwrap(&self) -> Answer {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--uid", "0", "--gid", "0", "--cap-drop", "ALL", "--hostname", "bench"]);
        // The filter comes as standard input: any other descriptor would have to be inherited past close-on-exec.
        command.args(["--seccomp", "0", "--bind"]).arg(&self.root);
        command.args(["/", "--dev", "/dev", "--proc", "/proc", "--", "/bin/true"]);
        command.stdin(File::open(self.directory.join("filter"))?);
        self.run(command)
    }

    fn run(&self, command: Command) -> Answer {
        let gone = || anyhow!("the thread that runs the peers has gone");
        self.commands.send(command).map_err(|_| gone())?;
        self.answers.recv().map_err(|_| gone())?
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // A runtime that failed may have left its groups.
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for group in hierarchies.map(|hierarchy| hierarchy.path().join(group_prefix())) {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// The name of the peers' guests and their cgroup, which nothing else on the machine has.
fn group_prefix() -> String {
    format!("pando-bench-peer-{}", std::process::id())
}

/// Gives the calling thread mounts of its own, in which the unified hierarchy of a hybrid host is an empty directory.
fn hide_hybrid() -> anyhow::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).context("cannot make a mount namespace for the peers")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("none"), HYBRID, Some("tmpfs"), MsFlags::empty(), none).context("cannot hide the hybrid hierarchy")
}
