//! Where things lie.

use crate::GuestName;
use std::path::{Path, PathBuf};

/// The directories of one Pando: the machine's own, or one moved under a root of its own for tests and trials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    root: PathBuf,
}

impl Places {
    /// Those under `root`; `/` for the machine's own.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory that everything lies below: `/`, or a root of its own.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of what survives a boot.
    pub fn state(&self) -> PathBuf {
        self.root.join("var/lib/pando")
    }

    /// The directory of what a boot removes: sockets, locks, records of what runs.
    pub fn run(&self) -> PathBuf {
        self.root.join("run/pando")
    }

    /// The file of settings, pando.toml.
    pub fn settings(&self) -> PathBuf {
        self.root.join("etc/pando/pando.toml")
    }

    /// The file with the signers of images that are believed, if the settings name no other.
    pub fn allowed_signers(&self) -> PathBuf {
        self.root.join("etc/pando/allowed_signers")
    }

    /// The programs that are run when something happens to guests.
    pub fn hooks(&self) -> PathBuf {
        self.root.join("etc/pando/hooks.d")
    }

    /// The socket on which the daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.run().join("pando.sock")
    }

    /// The sockets of the shims, by slot.
    pub fn shims(&self) -> PathBuf {
        self.run().join("seeds")
    }

    /// The socket of one shim.
    pub fn shim(&self, slot: u32) -> PathBuf {
        self.shims().join(slot.to_string())
    }

    /// What is known of running guests.
    pub fn running(&self) -> PathBuf {
        self.run().join("guests")
    }

    /// An empty directory that nobody can write to: what hidden directories show.
    pub fn empty(&self) -> PathBuf {
        self.run().join("empty")
    }

    /// A directory with nothing but empty ones, on which a guest's first process mounts what it needs before its root
    /// file system is known.
    pub fn stage(&self) -> PathBuf {
        self.run().join("stage")
    }

    /// The directory of the guests that last.
    pub fn guests(&self) -> PathBuf {
        self.state().join("guests")
    }

    /// The directory of one guest that lasts.
    pub fn guest(&self, name: &GuestName) -> PathBuf {
        self.guests().join(name.as_ref())
    }

    /// Read-only trees that guests stand on.
    pub fn layers(&self) -> PathBuf {
        self.state().join("layers")
    }

    /// Layers and what they are made of, by content.
    pub fn store(&self) -> PathBuf {
        self.state().join("store")
    }

    /// The directory of the images of frozen guests.
    pub fn images(&self) -> PathBuf {
        self.state().join("images")
    }

    /// The directory of the images that were pulled from registries.
    pub fn pulled(&self) -> PathBuf {
        self.state().join("pulled")
    }

    /// The directory of parts of images that arrived whole before their pull broke off.
    pub fn arrived(&self) -> PathBuf {
        self.state().join("arrived")
    }

    /// The files of guests that go away with their command.
    pub fn ephemeral(&self) -> PathBuf {
        self.state().join("ephemeral")
    }

    /// The volumes that are known by their names.
    pub fn volumes(&self) -> PathBuf {
        self.state().join("volumes")
    }

    /// The networks of guests that are known by their names.
    pub fn networks(&self) -> PathBuf {
        self.state().join("networks")
    }

    /// What is being deleted. Nothing in it is needed.
    pub fn trash(&self) -> PathBuf {
        self.state().join("trash")
    }

    /// The name of this Pando's cgroups: one for the machine's own, and one that no other root shares for each other.
    pub fn field(&self) -> String {
        if self.root == Path::new("/") {
            return "pando".to_owned();
        }
        // FNV-1a: the name must be the same from one daemon to the next, whatever they were built with.
        let bytes = self.root.as_os_str().as_encoded_bytes();
        let hash = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        format!("pando-{hash:016x}")
    }
}
