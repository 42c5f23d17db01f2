//! Where the daemon of this state listens and writes its log.

use anyhow::{Context, ensure};
use pando_kernel::file::trusted_directory::{Distrust, TrustedDirectory};
use rustix::fs::Mode;
use std::path::{Path, PathBuf};

/// What a daemon that was started by a command says, in the directory of run-time state.
pub(crate) const LOG: &str = "daemon.log";

/// The longest name of a socket: `sun_path` without the zero at its end (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// The directory under which `/run/pando`, `/var/lib/pando` and `/etc/pando` lie: `/`, unless `--root` or `PANDO_ROOT`
/// says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateRoot(PathBuf);

impl StateRoot {
    /// Relative to the current directory; the daemon gets it absolute, since it starts elsewhere.
    pub(crate) fn at(directory: &str) -> anyhow::Result<Self> {
        let absolute = std::path::absolute(directory)
            .with_context(|| format!("cannot use '{directory}' as the root of Pando's state"))?;
        let root = Self(absolute);
        let length = root.socket().as_os_str().len();
        ensure!(
            length <= LONGEST_SOCKET,
            "cannot use '{directory}' as the root of Pando's state: the daemon's socket below it would have a name of {length} bytes, and the kernel takes {LONGEST_SOCKET} at most; choose a shorter path"
        );
        Ok(root)
    }

    /// The directory itself.
    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// Run-time state: gone after a reboot.
    pub(crate) fn run(&self) -> PathBuf {
        self.0.join("run/pando")
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run().join("pando.sock")
    }

    /// What a daemon that was started by this command says.
    pub(crate) fn daemon_log(&self) -> PathBuf {
        self.run().join(LOG)
    }

    /// Makes the directory of run-time state, where it is missing; an error where others could put something else in
    /// the place of what is in it.
    pub(crate) fn make_run(&self) -> Result<TrustedDirectory, Distrust> {
        TrustedDirectory::make(&self.run(), Mode::from_raw_mode(0o755))
    }

    /// Refuses a root whose lasting state others could have put there, or could put something else in the place of.
    /// Where there is none yet, that is seen when it is made; the directory of run-time state is looked at by the
    /// daemon, and by who starts it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match TrustedDirectory::open(&self.0.join("var/lib/pando")) {
            Err(Distrust::Call { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            opened => opened.map(drop).with_context(|| format!("cannot use the state below {}", self.0.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_whose_socket_cannot_be_named_is_refused() {
        let long = |length: usize| format!("/{}", "a".repeat(length - 1));
        let fitting = LONGEST_SOCKET - "/run/pando/pando.sock".len();
        assert!(StateRoot::at(&long(fitting)).is_ok());
        let error = StateRoot::at(&long(fitting + 1)).unwrap_err().to_string();
        assert!(error.contains("108 bytes") && error.contains("a shorter path"), "{error}");
    }

    #[test]
    fn paths_lie_under_the_root() {
        assert_eq!(StateRoot::at("/").unwrap().socket(), Path::new("/run/pando/pando.sock"));
        assert_eq!(StateRoot::at("/t").unwrap().daemon_log(), Path::new("/t/run/pando/daemon.log"));
        assert!(StateRoot::at("t").unwrap().directory().is_absolute());
    }
}
