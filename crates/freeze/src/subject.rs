//! What to freeze, as the caller describes it.

use crate::bpf::task_iterator::TaskIterator;
use crate::inspect::descriptors::Outside;
use crate::refusal::FreezeError;
use pando_kernel::process::{held::HeldProcess, pidfd};
use pando_kernel::{CallError, Context};
use std::net::IpAddr;

/// The processes to freeze, and what of them is outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// The first process of the pid namespace whose processes are frozen.
    pub init: i32,
    /// The same process, as its maker holds it: nobody is frozen whom its pid leads to once it has ended.
    pub held: Option<&'a HeldProcess>,
    /// Whether it is one of them, rather than somebody else's who waits for them.
    pub whole: bool,
    /// The number of a terminal whose other end is outside, and which each clone has already: its console.
    pub console: Option<u32>,
    /// Open files of the outside, which each clone gets in its own version.
    pub outside: &'a [Outside],
    /// Directories that are memory, which no copy of the files has: what is in them comes along.
    pub in_memory: &'a [&'a str],
    /// Files in those that each clone has already, of its own.
    pub own_files: &'a [&'a str],
    /// What each clone has mounted already. What the processes have mounted besides comes along. Where nothing is
    /// given, nobody asks what is mounted.
    pub given: &'a [Given],
    /// The devices that the host's file systems are on, as mountinfo(5) has them: what is on those was given.
    pub host_devices: &'a [String],
    /// What is given to each guest in its network namespace. None where that is not its own, or nobody is to ask.
    pub network: Option<&'a GivenNetwork>,
    /// What tells of processes while they stand still; without it each is asked, and they stand still for longer.
    pub task_iterator: Option<&'a TaskIterator>,
}

impl Subject<'_> {
    /// Its first process, held by another task, which has no descriptors of this one's.
    pub(crate) fn held_again(&self) -> Result<Option<HeldProcess>, CallError> {
        let hold = |held: &HeldProcess| pidfd::open(held.pid()).map(|process| HeldProcess::new(held.pid(), process));
        self.held.map(hold).transpose().context(|| "finding the first process".into())
    }

    /// Looks whether what was found by its first process's pid until now was found of that.
    pub(crate) fn is_there(&self) -> Result<(), FreezeError> {
        let has_ended = self.held.is_some_and(HeldProcess::has_ended);
        if has_ended { Err(FreezeError::Restless("their first process has ended".into())) } else { Ok(()) }
    }
}

/// A place where each guest of a kind has something mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its path, as it was asked for: links may be on it.
    pub path: String,
    /// The kind of file system; none for what is of the outside: directories and files of the host.
    pub kind: String,
    /// `MOUNT_ATTR_*` that it is given, where they are known.
    pub attributes: Option<u64>,
    /// Whether every guest has it. A kernel may lack the file that another is there to hide.
    pub always: bool,
}

impl Given {
    pub(crate) fn is_of_the_outside(&self) -> bool {
        self.kind.is_empty()
    }
}

/// What a guest is given in a network namespace of its own, besides the loopback device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenNetwork {
    /// The name of its device; none without one.
    pub device: Option<String>,
    /// What its device was given; none where it gets that itself, and what it has made of its device is its own.
    pub place: Option<GivenPlace>,
    /// What each guest's is set to.
    pub settings: Vec<(String, String)>,
}

/// What a guest's network device is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenPlace {
    /// The addresses, each with how many bits of it are the network's.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The routers by which everything else is reached.
    pub gateways: Vec<IpAddr>,
    /// The hardware address of the device.
    pub hardware: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::given::at_the_start;
    use crate::capture::mount_difference::Difference;
    use crate::image::MountChange;
    use crate::image::mount::path;
    use crate::inspect::mount_tree::MountTree;

    const TEXT: &str = "\
58 46 0:47 / / rw,nodev,relatime - overlay deb rw
60 58 0:50 / /dev rw,nosuid,noexec,relatime - tmpfs none rw
61 60 0:51 / /dev/pts rw,nosuid,noexec,relatime - devpts none rw
62 58 0:44 / /proc rw,nosuid,nodev,noexec,relatime - proc none rw
63 62 0:50 /null /proc/keys ro,relatime - tmpfs none rw
64 62 8:1 /views/uptime /proc/uptime ro,relatime - ext4 x rw
65 58 8:2 /srv /data rw,nodev,relatime - ext4 x rw
66 65 8:3 / /data/deep rw,nodev,relatime - ext4 x rw
";

    fn given() -> Vec<Given> {
        let one = |path: &str, kind: &str, attributes, always| Given {
            path: path.into(),
            kind: kind.into(),
            attributes,
            always,
        };
        vec![
            one("/", "overlay", Some(4), true),
            one("/dev", "tmpfs", Some(2 | 8), true),
            one("/dev/pts", "devpts", Some(2 | 8), true),
            one("/proc", "proc", Some(2 | 4 | 8), true),
            one("/proc/keys", "tmpfs", None, false),
            one("/proc/uptime", "", None, false),
            one("/data", "", None, true),
        ]
    }

    fn changed(text: &str) -> Vec<String> {
        let tree = MountTree::parse(text).unwrap();
        let devices = ["8:1", "8:2", "8:3"].map(str::to_owned);
        let start = at_the_start(i32::MAX, &tree, &given(), &devices);
        let found = Difference::since(&start, &tree);
        let word = |change: &MountChange| format!("{change:?}").split(' ').next().unwrap_or_default().to_owned();
        let changes = found.changes.iter().map(|one| format!("{} {}", word(one), path(one)));
        changes.chain(found.objections.into_iter().map(|(kind, _)| kind)).collect()
    }

    #[test]
    fn a_guest_that_has_changed_nothing_differs_in_nothing() {
        assert_eq!(changed(TEXT), Vec::<String>::new());
    }

    #[test]
    fn what_it_has_mounted_over_what_it_was_given_is_told_apart() {
        let of = |more: &str| changed(&format!("{TEXT}{more}\n"));
        assert_eq!(of("70 58 0:47 /root /mnt rw,nodev,relatime - overlay deb rw"), ["Bind /mnt"]);
        assert_eq!(of("70 60 0:47 /root /dev/shm rw,relatime - overlay deb rw"), ["Bind /dev/shm"]);
        assert_eq!(of("70 61 0:47 /root /dev/pts rw,relatime - overlay deb rw"), ["Bind /dev/pts"]);
        assert_eq!(of("70 62 0:47 /etc /proc/stat rw,relatime - overlay deb rw"), ["Bind /proc/stat"]);
        assert_eq!(
            of("70 58 8:2 /srv/x /mnt rw,relatime - ext4 x rw"),
            ["Bind /mnt"],
            "out of a directory of the host"
        );
        assert_eq!(of("70 58 8:3 /x /mnt rw,relatime - ext4 x rw"), ["Bind /mnt"], "and out of what came with it");
        assert_eq!(of("70 65 0:90 / /data/x rw,relatime - tmpfs x rw"), ["Memory /data/x"]);
        assert_eq!(of("70 58 0:90 / /mnt rw,relatime - fuse x rw"), ["a file system of its own (fuse on /mnt)"]);
        assert_eq!(of("70 58 0:90 / / rw,relatime - tmpfs x rw").len(), 2);
    }

    #[test]
    fn what_it_has_unmounted_and_remounted_is_told() {
        let without = |path: &str| {
            let lines = TEXT.lines().filter(|line| !line.split(' ').nth(4).is_some_and(|at| at.starts_with(path)));
            changed(&lines.map(|line| format!("{line}\n")).collect::<String>())
        };
        assert_eq!(without("/dev/pts"), ["Gone /dev/pts"]);
        assert_eq!(without("/proc"), ["Gone /proc"], "and with it what lay on it");
        assert_eq!(without("/data"), ["Gone /data"]);
        assert!(without("/proc/").is_empty(), "some kernels have no such file");
        assert_eq!(changed(&TEXT.replace("/ / rw,nodev", "/ / ro,nodev")), ["Set /"]);
        assert_eq!(changed(&TEXT.replace("/dev/pts rw,nosuid", "/dev/pts rw")), ["Set /dev/pts"]);
    }

    #[test]
    fn two_in_a_place_may_both_be_given() {
        let text = "70 58 0:60 / /c rw - cgroup2 x rw\n71 70 0:61 / /c rw - tmpfs x rw\n72 71 0:62 / /c/pids rw - cgroup x rw\n";
        let one =
            |path: &str, kind: &str| Given { path: path.into(), kind: kind.into(), attributes: None, always: false };
        let tree = MountTree::parse(&format!("{TEXT}{text}")).unwrap();
        let among = |more: &[Given]| {
            let all = [given(), more.to_vec()].concat();
            let start = at_the_start(1, &tree, &all, &["8:1".to_owned(), "8:2".to_owned(), "8:3".to_owned()]);
            start.all().iter().filter(|mount| mount.path.starts_with("/c")).count()
        };
        let all = [one("/c", "cgroup2"), one("/c", "tmpfs"), one("/c/pids", "cgroup")];
        assert_eq!((among(&all), among(&all[..1]), among(&[])), (3, 1, 0));
    }

    #[test]
    fn who_hears_of_what_is_mounted_is_told() {
        let shared = |line: &str| line.replace(" - ", &format!(" shared:{} - ", &line[..2]));
        let all: String = TEXT.lines().map(|line| shared(line) + "\n").collect();
        assert!(changed(&all).is_empty(), "of the whole it is said otherwise");
        assert_eq!(changed(&TEXT.replace("relatime - devpts", "relatime shared:7 - devpts")), ["Propagate /dev/pts"]);
        assert_eq!(changed(&all.replace(" shared:61", " unbindable")), ["Propagate /dev/pts"]);
        assert!(
            changed(&all.replace(" shared:61", " shared:60")).is_empty(),
            "as the console's and the terminals' are"
        );
        let joined = format!("{all}70 58 0:50 / /mnt rw,relatime shared:60 - tmpfs none rw\n");
        let said = changed(&joined).into_iter().next_back().unwrap_or_default();
        assert!(said.starts_with("a mount that hears of what is mounted on another"), "{said}");
    }
}
