//! A device of the host's that a guest is to use: found by its path once, looked at by what was found, and refused
//! where whoever uses it could reach the rest of the machine.

use crate::policy::devices::Rule;
use pando_api::Device;
use pando_kernel::file::operator_path::{Misled, OperatorPath, Shared};
use pando_kernel::mount::{self, Attributes, Tree};
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// How many devices a directory may have, and a guest be given.
const MOST: usize = 256;

/// A device as a guest's /dev has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its path below the guest's /dev.
    pub name: String,
    /// The kind of its node: a character or a block device.
    pub kind: FileType,
    /// The permissions that the host's node has.
    pub mode: u32,
    /// The major and the minor number.
    pub numbers: (u32, u32),
    /// Some of the letters `rwm`.
    pub access: String,
}

/// Why a guest is not given a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceRefusal {
    /// Its path leads nowhere, or where others say.
    #[error("device {0}: {1}")]
    Path(String, Misled),
    /// A call about it failed.
    #[error("device {0} cannot be looked at: {1}")]
    Call(String, io::Error),
    /// It is something else.
    #[error("{0} is no device; a file or directory of the host's is shown by -v {0}:/PATH")]
    NoDevice(String),
    /// A directory without any.
    #[error("no device lies in the directory {0}; name one")]
    Empty(String),
    /// More than a guest can have.
    #[error("a guest can be given {MOST} devices at most; name those that it needs")]
    TooMany,
    /// One that reaches beyond itself.
    #[error("{0} is not given to a guest: {1}")]
    Refused(String, &'static str),
    /// A disk in use.
    #[error(
        "{0} is not given to a guest: the host uses it (it is mounted, swapped to, or part of another device), and whoever writes to it changes the host's files beneath it; show what is mounted there by -v, or take it out of use first"
    )]
    InUse(String),
    /// Two for one place.
    #[error("two devices are to be at {0} of a guest; give each a place of its own")]
    SamePlace(String),
    /// Something of a guest's own.
    #[error("every guest has a {0} of its own; put the host's device at another path: --device HOST:GUEST")]
    Own(String),
}

/// Character devices that are refused: major number, first and last minor one, and why.
const REFUSED: &[(u32, u32, u32, &str)] = &[
    (1, 1, 2, "it is the memory of the whole machine"),
    (1, 4, 4, "it reaches every device of the machine by its ports"),
    (1, 11, 11, "it is the kernel's log, which tells of everything on this machine; `pando logs` is the guest's own"),
    (1, 12, 12, "it is the memory of the kernel before this one"),
    (4, 0, 63, "it is a console of the machine's own; -t gives a terminal, --init a console of the guest's"),
    (5, 1, 2, "it is for the machine's own terminals; -t gives a terminal, --init a console of the guest's"),
    (7, 0, 255, "it shows what is on the machine's own consoles"),
    (10, 130, 130, "it restarts the machine when nobody writes to it any more"),
    (10, 144, 144, "it is the memory of the machine's firmware"),
    (10, 203, 203, "it makes further devices on the host"),
    (10, 223, 223, "it types at the machine's own keyboard"),
    (10, 231, 231, "it is an image of the machine's memory"),
    (10, 239, 239, "it types at the machine's own keyboard"),
    (
        10,
        234,
        237,
        "it makes the host's file systems and disks; make what the guest needs on the host, and give it that",
    ),
    (21, 0, 255, COMMANDS),
    (90, 0, u32::MAX, FLASH),
    (136, 0, u32::MAX, "it is a terminal of somebody on the host; -t gives one of the guest's own"),
    (202, 0, u32::MAX, "it is the registers of the machine's processors, by which the kernel itself is changed"),
];

const COMMANDS: &str =
    "it sends commands to a disk beneath its file systems; give the disk itself, if the host does not use it";
const FLASH: &str = "it is flash memory beneath the machine's file systems and firmware";

/// The same by what the kernel calls them: their numbers are others on each machine.
const REFUSED_CLASSES: &[(&str, &str)] = &[
    ("bsg", COMMANDS),
    ("scsi_generic", COMMANDS),
    ("nvme", COMMANDS),
    ("nvme-generic", COMMANDS),
    ("mtd", FLASH),
    ("nd", "it sends commands to the machine's persistent memory"),
    ("mei", "it talks to the firmware that manages the whole machine"),
    ("watchdog", "it restarts the machine when nobody writes to it any more"),
    ("zram-control", "it makes further disks on the host"),
];

/// Major numbers that the kernel gives to drivers as they come (Documentation/admin-guide/devices.txt).
const GIVEN_AS_THEY_COME: [std::ops::RangeInclusive<u32>; 2] = [234..=254, 384..=511];

/// What every guest's /dev has by itself, and what lies below directories of its own.
const OWN: [&str; 16] = [
    "null", "zero", "full", "random", "urandom", "tty", "ptmx", "fd", "stdin", "stdout", "stderr", "core", "console",
    "pts", "shm", "mqueue",
];

/// Finds all devices of a spec.
///
/// # Errors
///
/// [`DeviceRefusal`], of the first that is refused.
pub fn find(devices: &[Device], shared: &[Shared]) -> Result<Vec<HostDevice>, DeviceRefusal> {
    let mut found: Vec<HostDevice> = Vec::new();
    for device in devices {
        let path = |error| DeviceRefusal::Path(device.source.clone(), error);
        let place = OperatorPath::open(Path::new(&device.source), shared).map_err(path)?;
        let call = |error: io::Error| DeviceRefusal::Call(device.source.clone(), error);
        let target = device.target.trim_start_matches("/dev/");
        let more = match place.is_directory().map_err(call)? {
            true => below(&place, device, target)?,
            false => vec![examine(&place, device, target)?],
        };
        for one in more {
            if found.iter().any(|known| known.name == one.name) {
                return Err(DeviceRefusal::SamePlace(format!("/dev/{}", one.name)));
            }
            found.push(one);
        }
        if found.len() > MOST {
            return Err(DeviceRefusal::TooMany);
        }
    }
    Ok(found)
}

/// The devices that lie in a directory. Links, and what is no device, are left out.
fn below(place: &OperatorPath, device: &Device, target: &str) -> Result<Vec<HostDevice>, DeviceRefusal> {
    let call = |error: io::Error| DeviceRefusal::Call(device.source.clone(), error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(place, ".", flags, Mode::empty()).map_err(|error| call(error.into()))?;
    let mut found = Vec::new();
    for entry in Dir::read_from(&directory).map_err(|error| call(error.into()))?.take(MOST * 4) {
        let entry = entry.map_err(|error| call(error.into()))?;
        let Some(name) = entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")) else { continue };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(one) = rustix::fs::openat(&directory, name, flags, Mode::empty()) else { continue };
        match examine(&one, device, &format!("{target}/{name}")) {
            Err(DeviceRefusal::NoDevice(_)) => {}
            one => found.push(one?),
        }
    }
    if found.is_empty() { Err(DeviceRefusal::Empty(device.source.clone())) } else { Ok(found) }
}

/// Looks at what was found.
fn examine(place: impl AsFd, device: &Device, target: &str) -> Result<HostDevice, DeviceRefusal> {
    let about = fstat(&place).map_err(|error| DeviceRefusal::Call(device.source.clone(), error.into()))?;
    let kind = FileType::from_raw_mode(about.st_mode);
    let numbers = (major(about.st_rdev), minor(about.st_rdev));
    let first = target.split('/').next().unwrap_or_default();
    if OWN.contains(&first) || target == crate::devices::GENERATION {
        return Err(DeviceRefusal::Own(format!("/dev/{first}")));
    }
    match kind {
        FileType::CharacterDevice => {
            if let Some(why) = refused(numbers).or_else(|| refused_by_class(numbers, Path::new("/sys/dev/char"))) {
                return Err(DeviceRefusal::Refused(device.source.clone(), why));
            }
        }
        FileType::BlockDevice if is_in_use(numbers) => return Err(DeviceRefusal::InUse(device.source.clone())),
        FileType::BlockDevice => {}
        _ => return Err(DeviceRefusal::NoDevice(device.source.clone())),
    }
    let mode = about.st_mode & 0o666;
    Ok(HostDevice { name: target.to_owned(), kind, mode, numbers, access: device.access.clone() })
}

fn refused((major, minor): (u32, u32)) -> Option<&'static str> {
    // Terminals of the host have eight numbers.
    let major = if (136..=143).contains(&major) { 136 } else { major };
    let one = REFUSED.iter().find(|(known, first, last, _)| *known == major && (*first..=*last).contains(&minor));
    one.map(|(.., why)| *why)
}

/// `devices` is where the kernel tells of each character device.
fn refused_by_class((major, minor): (u32, u32), devices: &Path) -> Option<&'static str> {
    let told = std::fs::read_link(devices.join(format!("{major}:{minor}")).join("subsystem"));
    let Ok(class) = told else {
        let unknown = GIVEN_AS_THEY_COME.iter().any(|majors| majors.contains(&major));
        return unknown.then_some("the kernel does not tell what it is (/sys/dev/char); is its driver loaded?");
    };
    let one = REFUSED_CLASSES.iter().find(|(name, _)| class.file_name().is_some_and(|class| class == *name));
    one.map(|(_, why)| *why)
}

/// Whether the host has a file system, swap or another device on a disk, on a part of it, or on the whole of which it
/// is a part.
fn is_in_use(numbers: (u32, u32)) -> bool {
    let mounted: Vec<String> = mount::mounts().unwrap_or_default().into_iter().map(|mount| mount.device).collect();
    let uses = |device: &Path| {
        let number = std::fs::read_to_string(device.join("dev")).unwrap_or_default();
        let holders = std::fs::read_dir(device.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
        holders || mounted.iter().any(|mount| mount == number.trim())
    };
    let own = format!("{}:{}", numbers.0, numbers.1);
    let device = Path::new("/sys/dev/block").join(&own);
    let parts = std::fs::read_dir(&device).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut parts = parts.filter(|path| path.join("partition").exists());
    let is_part = device.join("partition").exists();
    mounted.contains(&own)
        || uses(&device)
        || parts.any(|part| uses(&part))
        || is_part && uses(&device.join(".."))
        || is_claimed(numbers)
}

/// Whether somebody has a disk for himself, as file systems of several disks and swap do: the kernel gives it to nobody
/// else then. A node of our own is opened, since that of the host may lie where none works. Where that cannot be told
/// the disk counts as used.
fn is_claimed((major, minor): (u32, u32)) -> bool {
    const NODE: &str = "disk";
    let Ok(tree) = Tree::new("tmpfs", &[("mode", "0700"), ("size", "4k")], Attributes::empty()) else { return true };
    if tree.make_device(NODE, FileType::BlockDevice, 0o600, (major, minor)).is_err() {
        return true;
    }
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(&tree, NODE, flags, Mode::empty()) {
        // There is nothing behind that number, or no disk in the drive.
        Ok(_) | Err(Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM) => false,
        Err(_) => true,
    }
}

impl HostDevice {
    /// The rule by which a guest may use it.
    pub fn rule(&self) -> Rule {
        let kind = if self.kind == FileType::BlockDevice { 'b' } else { 'c' };
        let text = format!("{kind} {}:{} {}", self.numbers.0, self.numbers.1, self.access);
        text.parse().expect("a device has numbers, and its access was read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_the_rest_of_the_machine_is_refused() {
        for numbers in [(1, 1), (1, 11), (4, 0), (5, 1), (7, 3), (10, 237), (136, 0), (143, 9), (202, 1)] {
            assert!(refused(numbers).is_some(), "{numbers:?}");
        }
        // fuse, tun, kvm, a card, a serial line, a loop's partition as a character device.
        for numbers in [(10, 229), (10, 200), (10, 232), (226, 128), (4, 64), (188, 0)] {
            assert_eq!(refused(numbers), None, "{numbers:?}");
        }
    }

    #[test]
    fn what_has_other_numbers_on_each_machine_is_known_by_its_class() {
        let devices = tempfile::tempdir().unwrap();
        let of_class = |class: &str| {
            let one = devices.path().join("248:0");
            std::fs::create_dir_all(&one).unwrap();
            let _ = std::fs::remove_file(one.join("subsystem"));
            std::os::unix::fs::symlink(format!("../../class/{class}"), one.join("subsystem")).unwrap();
            refused_by_class((248, 0), devices.path())
        };
        for class in ["bsg", "watchdog", "nvme-generic", "mtd"] {
            assert!(of_class(class).is_some(), "{class}");
        }
        for class in ["hidraw", "drm", "tty"] {
            assert_eq!(of_class(class), None, "{class}");
        }
        assert!(refused_by_class((249, 0), devices.path()).is_some(), "nobody tells what it is");
        assert_eq!(refused_by_class((226, 128), devices.path()), None);
    }

    #[test]
    fn a_device_is_found_by_its_path_and_nothing_else_is_one() {
        let one = |text: &str| find(&[text.parse().unwrap()], &[]);
        let urandom = one("/dev/urandom:/dev/dice/one:r").unwrap();
        assert_eq!((urandom[0].name.as_str(), urandom[0].rule().to_string()), ("dice/one", "c 1:9 r".to_owned()));
        assert!(matches!(one("/dev/urandom"), Err(DeviceRefusal::Own(_))));
        assert!(matches!(one("/etc/passwd:/dev/x"), Err(DeviceRefusal::NoDevice(_))));
        assert!(matches!(one("/etc:/dev/x"), Err(DeviceRefusal::Empty(_))));
        assert!(matches!(one("/no/such:/dev/x"), Err(DeviceRefusal::Path(..))));
        let twice = ["/dev/urandom:/dev/x", "/dev/zero:/dev/x"].map(|text| text.parse().unwrap());
        assert!(matches!(find(&twice, &[]), Err(DeviceRefusal::SamePlace(_))));
    }
}
