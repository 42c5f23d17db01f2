//! What the daemon tells of the store.

use serde::{Deserialize, Serialize};

/// What the store costs, in bytes of disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUsage {
    /// How layers are mounted here: `image` or `farm`.
    pub backend: String,
    /// Objects, the images of layers among them.
    pub objects: i64,
    /// Bytes of disk that these objects take.
    pub bytes: i64,
    /// What the files of all guests' layers would take if each guest had its own.
    pub apart: i64,
    /// The number of layers in the store.
    pub layers: i64,
    /// What each guest takes of the disk.
    pub guests: Vec<GuestUsage>,
}

/// What a guest takes, in bytes of disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUsage {
    /// The guest's name, unique on this state root.
    pub name: String,
    /// What would be free without it: its own files, and what of its layers no other guest has.
    pub own: i64,
    /// What it shares with others.
    pub shared: i64,
}

/// An image of a registry that is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledImage {
    /// Its name in full: `docker.io/library/nginx:1.27`.
    pub reference: String,
    /// What the registry named it by when it was pulled.
    pub digest: String,
    /// How many layers it has.
    pub layers: i64,
    /// Bytes of it as they are stored; some of them other images may have too.
    pub size: i64,
    /// When it was pulled, in seconds since 1970.
    pub pulled: i64,
    /// When a guest was last made of it, in seconds since 1970.
    pub used: i64,
    /// The guests that stand on it.
    pub guests: Vec<String>,
}

/// What reading everything again found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// The number of objects that were read.
    pub objects: i64,
    /// The number of layers that were read.
    pub layers: i64,
    /// What is not as it has to be.
    pub damages: Vec<StoreDamage>,
}

/// An object that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreDamage {
    /// Its name: the digest of what it has to contain.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// Which files of which guests it is. A file of a layer that no guest stands on has no guest.
    pub files: Vec<DamagedFile>,
    /// Where a copy was found from which it was put right.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repaired_from: Option<String>,
}

/// A file that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// The guest whose file it is; empty if it is no guest's.
    pub guest: String,
    /// Where; empty for all of a layer.
    pub path: String,
}

/// What a collection removed from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collection {
    /// The number of layers that were removed.
    pub layers: i64,
    /// The number of objects that were removed.
    pub objects: i64,
    /// Bytes of disk that the removed objects took.
    pub bytes: i64,
}

/// What a unification did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unification {
    /// Files of guests that were looked at.
    pub files: i64,
    /// How many of them had to be read: the others are known from the last time.
    pub read: i64,
    /// What it means for each guest that has files of its own.
    pub guests: Vec<GuestUnification>,
}

/// What a unification means for one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUnification {
    /// The guest's name, unique on this state root.
    pub name: String,
    /// Its own files whose content others have too.
    pub files: i64,
    /// Bytes of disk that sharing them saves.
    pub saves: i64,
    /// Bytes of its files that share blocks of the disk since this run, while they are used on; only btrfs and xfs do
    /// that.
    pub live: i64,
    /// `shared`, `at next start` (it runs), or `left`: it is not worth an image of its own, or the guest could not be
    /// read.
    pub outcome: String,
}

/// A directory of the host's that guests can write to as root. A link that lies below it may be one of theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenDirectory {
    /// Who can, in words: `guest 'web'`.
    pub by: String,
    /// Where it lies on the host.
    pub path: String,
}

/// A volume of Pando's: a directory that is known by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// The volume's name, unique on this state root.
    pub name: String,
    /// Where it lies on the host.
    pub directory: String,
    /// Seconds since the epoch when it was made.
    pub created: i64,
    /// The guests and images that show it.
    pub guests: Vec<String>,
}
