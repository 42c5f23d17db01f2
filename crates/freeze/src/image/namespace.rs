//! Namespaces of an image beside those of the first process.

use crate::image::mount::{Link, MountChange};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The most ipc namespaces of an image beside the first process's.
pub(crate) const MOST_IPC_SPACES: usize = 256;

/// What such a namespace holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNames {
    /// Host name, as gethostname(2) has it.
    pub host: Vec<u8>,
    /// NIS domain, as getdomainname(2) has it.
    pub domain: Vec<u8>,
}

/// The longest of either (`__NEW_UTS_LEN`).
pub(crate) const LONGEST_HOST_NAME: usize = 64;

/// A network namespace beside the first process's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSpace {
    /// Whether its loopback device is up, with the addresses that it has then.
    pub up: bool,
    /// What is set of it, see [`Image::net_settings`](super::Image::net_settings).
    pub settings: Vec<(String, String)>,
}

/// What was chosen of the device that connects the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// The device's name in the guest's network namespace.
    pub name: String,
    /// The largest packet that it takes, in bytes, where that is not what each such device takes.
    pub longest: u32,
}

/// What such a device can be told to take (`ETH_MIN_MTU`, `ETH_MAX_MTU`).
pub(crate) const PACKETS: RangeInclusive<u32> = 68..=65_535;

/// The longest name of a device (`IFNAMSIZ`, without the end of it).
pub(crate) const LONGEST_DEVICE_NAME: usize = 15;

/// The most network namespaces of an image beside the first process's.
pub(crate) const MOST_NET_SPACES: usize = 256;

pub(crate) const LOOPBACK: &str = "lo";

/// The most settings that come along.
pub(crate) const MOST_NET_SETTINGS: usize = 512;

/// A user namespace below the first process's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSpace {
    /// Its users: the first there, the same in the first process's namespace, how many.
    pub users: Vec<[u32; 3]>,
    /// Ranges of groups, likewise: inside, outside, length.
    pub groups: Vec<[u32; 3]>,
    /// Whether nobody in it may change which further groups he is in.
    pub denies_groups: bool,
    /// The user who has made the namespace.
    pub maker: u32,
}

/// The most user namespaces of an image beside the first process's.
pub(crate) const MOST_USER_SPACES: usize = 64;

/// As many lines as the kernel takes (`UID_GID_MAP_MAX_EXTENTS`).
pub(crate) const MOST_RANGES: usize = 340;

/// Such a namespace: a copy of the first process's, and changes to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpace {
    /// What it hears of what is mounted in the first process's.
    pub link: Link,
    /// Whether others can hear of what is mounted in it.
    pub shared: bool,
    /// What differs, in the order in which it is made.
    pub changes: Vec<MountChange>,
}

/// The most mount namespaces of an image beside the first process's.
pub(crate) const MOST_MOUNT_SPACES: usize = 256;
