//! The programs that tag and police a group's packets, and what they count.

use crate::shared::{Pins, SharedError};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use pando_kernel::Context;
use pando_kernel::bpf::{self, Hook};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// As compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bandwidth.bpf.o"));

const TAG: &str = "pando_tag";
const POLICE: &str = "pando_police";
const GRANTS: &str = "grants";

/// `struct grant` of bpf/bandwidth.bpf.c: six numbers of 64 bits.
const WORDS: usize = 6;

/// What passed by a group's own devices, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes that the group has sent.
    pub sent: u64,
    /// Bytes that came to the group.
    pub received: u64,
    /// What would have come to it, but for its limit.
    pub dropped: u64,
}

/// The programs. Attached, they stay with their groups; their names are for the next process that changes a grant.
#[derive(Debug)]
pub struct Tags {
    pins: Pins,
    tag: OwnedFd,
    police: OwnedFd,
    grants: MapHandle,
}

impl Tags {
    /// Opens what an earlier process left, or loads the programs.
    ///
    /// # Errors
    ///
    /// The kernel lacks something (programs of groups on packets, Linux 5.9), or this process the privilege.
    pub fn open(pins: &Pins) -> Result<Self, SharedError> {
        if !pins.hold(TAG) {
            pins.mount()?;
            let fault = |error: libbpf_rs::Error| SharedError::Bpf {
                what: "loading the programs for bandwidth ('pando doctor' shows what this kernel grants)".into(),
                reason: format!("{error:#}"),
            };
            let object =
                ObjectBuilder::default().open_memory(OBJECT).and_then(libbpf_rs::OpenObject::load).map_err(fault)?;
            for map in object.maps().filter(|map| map.name() == GRANTS) {
                pins.keep(map.as_fd(), &pins.map(GRANTS))?;
            }
            for program in object.progs() {
                pins.keep(program.as_fd(), &pins.program(&program.name().to_string_lossy()))?;
            }
        }
        let grants = MapHandle::from_pinned_path(pins.map(GRANTS)).map_err(|error| SharedError::Bpf {
            what: "opening the map of grants".into(),
            reason: format!("{error:#}"),
        })?;
        Ok(Self { tag: pins.open_program(TAG)?, police: pins.open_program(POLICE)?, grants, pins: pins.clone() })
    }

    /// Attaches the programs to a group of version 2, until it is removed.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn attach(&self, cgroup: &Path) -> Result<(), SharedError> {
        let group = File::open(cgroup).context(|| format!("opening {}", cgroup.display()))?;
        for (program, hook) in [(&self.tag, Hook::CgroupInetEgress), (&self.police, Hook::CgroupInetIngress)] {
            bpf::attach_to_cgroup(program.as_fd(), group.as_fd(), hook)
                .context(|| format!("attaching {hook:?} to {}", cgroup.display()))?;
        }
        Ok(())
    }

    /// Sets the class of what a group sends (0: none) and the most bits a second that come to it (0: as many as come).
    ///
    /// # Errors
    ///
    /// The programs are not attached there.
    pub fn grant(&self, cgroup: &Path, class: u32, bits_in: u64) -> Result<(), SharedError> {
        let key = key(cgroup)?;
        let mut words = self.words(&key).unwrap_or_default();
        (words[0], words[1]) = (u64::from(class), bits_in);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.grants.update(&key, &bytes, MapFlags::ANY).map_err(|error| SharedError::Bpf {
            what: format!("granting bandwidth to {}", cgroup.display()),
            reason: format!("{error:#}"),
        })
    }

    /// What a group has sent and received since its programs were attached.
    pub fn counted(&self, cgroup: &Path) -> Option<Counted> {
        let words = self.words(&key(cgroup).ok()?)?;
        Some(Counted { sent: words[3], received: words[4], dropped: words[5] })
    }

    fn words(&self, key: &[u8]) -> Option<[u64; WORDS]> {
        let bytes = self.grants.lookup(key, MapFlags::ANY).ok()??;
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().ok()?);
        }
        Some(words)
    }

    /// Forgets the names. What is attached stays with its groups.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn remove(self) -> Result<(), SharedError> {
        self.pins.remove()
    }
}

fn key(cgroup: &Path) -> Result<[u8; 8], SharedError> {
    let number = cgroup.metadata().context(|| format!("looking at {}", cgroup.display()))?.ino();
    Ok(number.to_ne_bytes())
}
