//! What commands that were entered have reached outside, written down for whoever ends their transaction.

use super::bystanders::note_places;
use super::supervisor::Passed;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::record::Record;
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What has passed, and is not undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Other machines that were connected to.
    pub connections: BTreeSet<SocketAddr>,
    /// Sockets of this machine that were.
    pub sockets: BTreeSet<String>,
    /// Files of the kernel's that were written to.
    #[serde(default)]
    pub written: BTreeSet<String>,
}

fn file_in(directory: &Path) -> PathBuf {
    directory.join("reached")
}

impl Reached {
    /// What the commands of a transaction have reached so far.
    pub fn of(home: &StateDirectory, name: &TxName) -> Self {
        let mut all = Self::default();
        let text = std::fs::read_to_string(file_in(&home.of(name))).unwrap_or_default();
        for one in text.lines().filter_map(|line| serde_json::from_str::<Self>(line).ok()) {
            all.add(one);
        }
        all
    }

    /// Adds what was reached by another command.
    pub fn add(&mut self, more: Self) {
        self.connections.extend(more.connections);
        self.sockets.extend(more.sockets);
        self.written.extend(more.written);
    }

    fn note(&self, directory: &Path) -> io::Result<()> {
        let mut line = serde_json::to_string(self).map_err(io::Error::other)?;
        line.push('\n');
        // A line is written at once, so that those of several commands do not mix.
        File::options().append(true).create(true).open(file_in(directory))?.write_all(line.as_bytes())
    }
}

/// Notes in a transaction that another process holds what a command of it has reached, and what Pando itself looked up
/// in its view.
pub fn note(home: &StateDirectory, record: &Record, passed: &Passed) -> Result<(), CallError> {
    note_places(home, record, &passed.places)?;
    let reached = &passed.reached;
    if *reached == Reached::default() {
        return Ok(());
    }
    let directory = home.of(&record.name);
    reached.note(&directory).context(|| format!("noting in {} what was reached", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_commands_have_reached_adds_up() {
        let root = tempfile::tempdir().unwrap();
        let (home, name) = (StateDirectory::new(root.path()), "t".parse().unwrap());
        std::fs::create_dir_all(home.of(&name)).unwrap();
        assert_eq!(Reached::of(&home, &name), Reached::default());
        let reached = |port: u16, socket: &str| Reached {
            connections: BTreeSet::from([([10, 0, 0, 1], port).into()]),
            sockets: BTreeSet::from([socket.to_owned()]),
            written: BTreeSet::new(),
        };
        for one in [reached(80, "/dev/log"), reached(443, "/dev/log"), reached(80, "/run/x")] {
            one.note(&home.of(&name)).unwrap();
        }
        let all = Reached::of(&home, &name);
        assert_eq!((all.connections.len(), all.sockets.len()), (2, 2));
    }
}
