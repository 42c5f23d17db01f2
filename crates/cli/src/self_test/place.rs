//! Where things are tried: a state root in a scratch directory, with a daemon that ends with it.

use crate::state_root::StateRoot;
use anyhow::{Context, bail, ensure};
use pando_kernel::file::tree_removal;
use pando_kernel::probe::Scratch;
use pando_kernel::process::pidfd;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The guest that is tried.
pub(super) const GUEST: &str = "trial";

/// How long a step may take: many times what it does on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);
/// How much of what a command says is kept.
const MOST: u64 = 16 * 1024;

/// A state root, and a directory that transactions write to.
pub(super) struct Place {
    scratch: Scratch,
    state: StateRoot,
    /// Not beside the state: that may lie on a file system of its own, which no transaction changes.
    files: Scratch,
}

impl Place {
    /// Makes it beside the state of `root`, on the file system that guests' files lie on.
    pub(super) fn make(root: &StateRoot) -> anyhow::Result<Self> {
        let scratch = |at: &Path| {
            Scratch::near(at).with_context(|| format!("cannot make a directory for trials in {}", at.display()))
        };
        let files = scratch(root.directory())?;
        let scratch = scratch(&root.directory().join("var/lib/pando"))?;
        let text = scratch.path().to_str().context("the path of Pando's state is not UTF-8: use another --root")?;
        let state = StateRoot::at(text)?;
        Ok(Self { state, files, scratch })
    }

    /// The path of a file that transactions write.
    pub(super) fn file(&self, name: &str) -> String {
        self.files.path().join(name).to_string_lossy().into_owned()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        Path::new(file).exists()
    }

    /// A tree for a guest: this program, which needs no other file.
    pub(super) fn tree(&self) -> anyhow::Result<String> {
        let tree = self.scratch.directory("tree")?;
        let program = tree.join("pando");
        if let Err(error) = std::fs::copy("/proc/self/exe", &program) {
            // Half of it would take the room of what is tried next.
            let _ = std::fs::remove_file(&program);
            return Err(error).context("cannot copy this program for a guest");
        }
        Ok(tree.to_string_lossy().into_owned())
    }

    /// Runs this program on the state root; what it printed.
    pub(super) fn pando(&self, words: &[&str]) -> anyhow::Result<String> {
        self.pando_ends_with(0, words)
    }

    /// The same, with another exit code expected.
    pub(super) fn pando_ends_with(&self, code: i32, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pando").arg("--root").arg(self.state.directory()).args(words).current_dir("/");
        // In a group of its own: who interrupts this program at a terminal does not mean the step.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start this program once more")?;
        let (said, complained) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let process = pidfd::open(child.id().cast_signed()).context("cannot watch it")?;
        if !pidfd::wait_for_end(&process, LIMIT) {
            end(&mut child);
            bail!("'pando {}' did not end within {} seconds", words.join(" "), LIMIT.as_secs());
        }
        let status = child.wait().context("cannot learn how it ended")?;
        let complaint = complained.join().unwrap_or_default();
        let complaint: Vec<&str> = complaint.lines().collect();
        ensure!(
            status.code() == Some(code),
            "'pando {}' ended with {status}: {}",
            words.join(" "),
            complaint.join("; ")
        );
        Ok(said.join().unwrap_or_default())
    }

    /// Takes everything away, however far the steps came.
    pub(super) fn clear(self) -> anyhow::Result<()> {
        if let Some(daemon) = self.daemon() {
            // Guests that are left after a step that failed.
            if let Ok(names) = self.pando(&["ls", "-q"])
                && !names.is_empty()
            {
                let names: Vec<&str> = names.lines().collect();
                self.pando(&[&["rm", "--force"], names.as_slice()].concat())?;
            }
            pidfd::send_signal(&daemon, Signal::TERM.as_raw()).context("cannot end the daemon of the trials")?;
            ensure!(pidfd::wait_for_end(&daemon, LIMIT), "the daemon of the trials does not end");
        }
        let path = self.scratch.path();
        tree_removal::remove_tree(path)
            .with_context(|| format!("cannot remove {}, which was for trials", path.display()))
    }

    /// The daemon of the state root, if one listens.
    fn daemon(&self) -> Option<OwnedFd> {
        let peer = socket_peercred(UnixStream::connect(self.state.socket()).ok()?).ok()?;
        pidfd::open(peer.pid.as_raw_nonzero().get()).ok()
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a pipe on a thread of its own, so that neither can block the other. What is too long is dropped, not left
/// unread.
fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(MOST).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
