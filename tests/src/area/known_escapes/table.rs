//! The escapes, the walls, and where each escape must get through, as data.

use crate::area::attacks::table::Control;

/// What of a way in a hostile guest, or the maker of what it is made of, can arrange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bait {
    /// Nothing: it is tried by what has got in.
    Inside,
    /// The directory that a process begins in, or that something is copied to or from.
    Directory,
    /// The program that is executed.
    Program,
    /// Where terminals are made.
    Terminal,
    /// The user's number.
    User,
}

/// One published escape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escape {
    pub(super) name: &'static str,
    pub(super) bait: Bait,
    /// What the attacking program is told: see `attacks::table`.
    pub(super) words: &'static str,
    /// Where it must get through, or it proves nothing.
    pub(super) control: Control,
    /// A file of the host's without which there is nothing to attack.
    pub(super) on: Option<&'static str>,
}

/// The simplest runtime, which has a directory of the host's open, and takes every name as it is given: directory,
/// user, program.
const NAIVE_DIRECTORY: Control = Control::Host(
    "mkdir -p $TREE/proc; mount -t proc proc $TREE/proc; ln -sfn /proc/self/fd/7 $TREE/app; exec 7</; \
     exec $ATTACK enter $TREE /app 0 /bin/attack \"$@\"",
);
const NAIVE_PROGRAM: Control = Control::Host(
    "mkdir -p $TREE/proc; mount -t proc proc $TREE/proc; ln -sfn /proc/self/exe $TREE/tool; \
     exec $ATTACK enter $TREE / 0 /tool reads /bin/busybox",
);
const NAIVE_TERMINAL: Control = Control::Host(
    "mkdir -p $TREE/proc $TREE/dev; mount -t proc proc $TREE/proc; ln -sfn /proc/self/fd/7 $TREE/dev/ptmx; exec 7<$TREE/bin/busybox; \
     exec $ATTACK enter $TREE / 0 /bin/attack \"$@\"",
);
const NAIVE_USER: Control = Control::Host("exec $ATTACK enter $TREE / 4294967295 /bin/attack \"$@\"");
/// A process that is confined by chroot(2) alone, beside one of the host's, with the host's root left open.
const CHROOT: Control = Control::Host(
    "mkdir -p $TREE/proc; mount -t proc proc $TREE/proc; sleep 60 & exec chroot $TREE /bin/attack \"$@\" 3</",
);
const UNMASK: Control = Control::Host("mount --bind /dev/null /proc/$2; exec $ATTACK \"$@\"");
const SETTINGS: Control =
    Control::Host("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec $ATTACK settings");
const PLAIN: Control = Control::Host("exec $ATTACK \"$@\"");

const fn escape(name: &'static str, bait: Bait, words: &'static str, control: Control) -> Escape {
    Escape { name, bait, words, control, on: None }
}

const fn on(path: &'static str, escape: Escape) -> Escape {
    Escape { on: Some(path), ..escape }
}

pub(super) const ESCAPES: &[Escape] = &[
    escape("CVE-2024-21626 by its directory", Bait::Directory, "from-here {marker}", NAIVE_DIRECTORY),
    escape("CVE-2024-21626 by what was left open", Bait::Inside, "from-here {marker}", CHROOT),
    escape("CVE-2019-5736 by its program", Bait::Program, "reads /bin/busybox", NAIVE_PROGRAM),
    escape("CVE-2019-5736 from inside", Bait::Inside, "program-of-the-runtime", CHROOT),
    escape("CVE-2025-52565", Bait::Terminal, "reads /dev/ptmx", NAIVE_TERMINAL),
    escape("CVE-2024-40635", Bait::User, "root-by-number", NAIVE_USER),
    on("/proc/kcore", escape("CVE-2025-31133 a mask", Bait::Inside, "unmask kcore", UNMASK)),
    escape("CVE-2025-31133 core_pattern", Bait::Inside, "settings", SETTINGS),
    on("/proc/sysrq-trigger", escape("CVE-2025-52881 sysrq", Bait::Inside, "system-requests", PLAIN)),
    on("/proc/kcore", escape("CVE-2019-19921 another /proc", Bait::Inside, "new-proc kcore", PLAIN)),
    escape("CVE-2022-0492", Bait::Inside, "release-agent", PLAIN),
    escape("CVE-2014-3519 by a handle", Bait::Inside, "by-handle", PLAIN),
    escape("CVE-2021-30465 roots of others", Bait::Inside, "roots-of-processes {marker}", CHROOT),
    escape("CVE-2016-9962 climbing", Bait::Inside, "climb {marker}", CHROOT),
];

/// What holds a guest: a profile, in a user namespace of its own or with the host's ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wall {
    pub(super) name: &'static str,
    pub(super) profile: &'static str,
    pub(super) hosts_ids: bool,
}

impl Wall {
    pub(super) fn options(self) -> [&'static str; 4] {
        ["--profile", self.profile, "--userns", if self.hosts_ids { "host" } else { "auto" }]
    }
}

const fn wall(name: &'static str, profile: &'static str, hosts_ids: bool) -> Wall {
    Wall { name, profile, hosts_ids }
}

/// Those that are tried in every run come first.
pub(super) const WALLS: [Wall; 6] = [
    wall("default", "default", false),
    wall("default-hosts-ids", "default", true),
    wall("strict", "strict", false),
    wall("strict-hosts-ids", "strict", true),
    wall("system", "system", false),
    wall("system-hosts-ids", "system", true),
];
