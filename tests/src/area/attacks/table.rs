//! The attacks, as data: what is tried, where it must get through, and which profiles claim to deny it.

use Control::{Guest, Host, Near, Open};

/// Where the same program must get through, or the attack counts as failed: what it tries would prove nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    /// In a guest with that protection off.
    Guest(&'static [&'static str]),
    /// As root of the host, in private namespaces: a shell's script, in a directory of its own, with `$ATTACK` for the
    /// program and `$1`, `$2`, … for the attack's own words.
    Host(&'static str),
    /// As root of the host, in no namespaces of its own.
    Open,
    /// In the guest that is attacked.
    Near,
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    /// What the program calls it, and its arguments: `{marker}` a file of the host, `{key}` the neighbour's number,
    /// `{pid}` its first process on the host, `{group}` a control group's directory, `{disk}` the host's disk as `b
    /// MAJOR MINOR`.
    pub(crate) words: &'static str,
    pub(crate) control: Control,
    /// The profiles that deny it.
    pub(crate) denied_in: &'static [&'static str],
    /// What runs it inside, if it is not root: `ada`.
    pub(crate) user: Option<&'static str>,
    /// A file of the host's without which there is nothing to attack.
    pub(crate) on: Option<&'static str>,
}

const ALL: &[&str] = &["default", "strict", "system"];
/// Those in which root has not all capabilities over the guest's own objects.
const SERVERS: &[&str] = &["default", "strict"];
const STRICT: &[&str] = &["strict"];

const UNFILTERED: Control = Guest(&["--seccomp", "off"]);
const TRUSTED: Control = Guest(&[]);
const PLAIN: Control = Host("exec $ATTACK \"$@\"");

const fn attack(words: &'static str, control: Control, denied_in: &'static [&'static str]) -> Attack {
    Attack { words, control, denied_in, user: None, on: None }
}

const fn on(path: &'static str, attack: Attack) -> Attack {
    Attack { on: Some(path), ..attack }
}

/// The machine: its kernel, its clock, its disks.
pub(crate) const MACHINE: &[Attack] = &[
    attack("modules", PLAIN, ALL),
    attack("modules-by-file", PLAIN, ALL),
    attack("kexec", PLAIN, ALL),
    attack("swap", PLAIN, ALL),
    attack("accounting", PLAIN, ALL),
    attack("quota", UNFILTERED, ALL),
    attack("kernel-log", PLAIN, ALL),
    attack("ports", PLAIN, ALL),
    attack("clock-day", UNFILTERED, ALL),
    attack("clock-time", UNFILTERED, ALL),
    attack("clock-tick", PLAIN, ALL),
    attack("clock-day-32", UNFILTERED, ALL),
    attack("bpf", PLAIN, ALL),
    attack("perf", PLAIN, ALL),
    attack("io-uring", UNFILTERED, ALL),
    attack("user-faults", UNFILTERED, ALL),
    attack("keyring", UNFILTERED, ALL),
    attack("keyring-of-a-session", UNFILTERED, ALL),
    attack("priority", PLAIN, ALL),
    attack("real-time", PLAIN, ALL),
    attack("disk-priority", PLAIN, ALL),
];

/// The kernel's larger doors, which `strict` closes.
pub(crate) const DOORS: &[Attack] = &[
    attack("mount", Guest(&["--cap-add", "SYS_ADMIN"]), SERVERS),
    attack("change-links", Guest(&["--cap-add", "NET_ADMIN"]), SERVERS),
    attack("user-namespace", TRUSTED, STRICT),
    attack("user-namespace-by-clone", TRUSTED, STRICT),
    attack("trace", TRUSTED, STRICT),
    attack("raw-socket", TRUSTED, STRICT),
    attack("packet-socket", TRUSTED, STRICT),
    attack("list-sockets", TRUSTED, STRICT),
    attack("asynchronous-requests", TRUSTED, STRICT),
    // SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF.
    attack("socket-filter 26", TRUSTED, STRICT),
    attack("socket-filter 51", TRUSTED, STRICT),
    attack("type-into-a-terminal", TRUSTED, STRICT),
    attack("fork-bomb 1100", TRUSTED, STRICT),
    Attack { user: Some("ada"), ..attack("set-user-id", TRUSTED, STRICT) },
];

/// A process that is confined by chroot(2) alone, with /proc, a process of the host beside it, and a descriptor of the
/// host's root.
const CHROOT: Control = Host("mount -t proc proc $TREE/proc; sleep 60 & exec chroot $TREE /bin/attack \"$@\" 3</");

/// What was hidden is hidden from the host's root no better.
const UNMASK: Control = Host("mount --bind /dev/null /proc/$2; exec $ATTACK \"$@\"");
const REMOUNT: Control = Host("mkdir v; mount --bind v v; mount -o remount,bind,ro v; exec $ATTACK remount v");
const SETTINGS: Control =
    Host("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec $ATTACK settings");

/// Stands for the host's disk: whether that can be opened at all.
pub(crate) const DISK: &str = "{disk}";

/// The host's files, mounts, devices and groups.
pub(crate) const FILES: &[Attack] = &[
    attack("climb {marker}", CHROOT, ALL),
    attack("descriptors {marker}", CHROOT, ALL),
    attack("roots-of-processes {marker}", CHROOT, ALL),
    attack("remount /ro", REMOUNT, ALL),
    on("/proc/kcore", attack("unmask kcore", UNMASK, ALL)),
    on("/proc/timer_list", attack("unmask timer_list", UNMASK, ALL)),
    on("/proc/kcore", attack("new-proc kcore", PLAIN, ALL)),
    on("/proc/timer_list", attack("new-proc timer_list", PLAIN, ALL)),
    attack("settings", SETTINGS, ALL),
    on("/proc/sysrq-trigger", attack("system-requests", PLAIN, ALL)),
    attack("kernel-objects", PLAIN, ALL),
    on(DISK, attack("device {disk}", PLAIN, ALL)),
    on("/dev/mem", attack("device c 1 1", PLAIN, ALL)),
    // /dev/kmsg; a node of it came with the guest's files, too.
    on("/dev/kmsg", attack("device c 1 11 /srv/node", PLAIN, ALL)),
    attack("own-limits {group}", PLAIN, ALL),
    attack("release-agent", PLAIN, ALL),
    attack("by-handle", PLAIN, ALL),
];

/// A neighbour's processes, memory and sockets.
pub(crate) const NEIGHBOURS: &[Attack] = &[
    attack("shared-memory {key}", Near, ALL),
    attack("shared-memory-by-id", Near, ALL),
    attack("semaphores {key}", Near, ALL),
    attack("messages {key}", Near, ALL),
    attack("message-queue {key}", Near, ALL),
    attack("named-memory {key}", Near, ALL),
    attack("abstract-socket {key}", Near, ALL),
    attack("see {key}", Near, ALL),
    attack("signal {key}", Near, ALL),
    attack("signal-by-number {key} {pid}", Open, ALL),
    attack("slow-down {key}", Near, ALL),
    attack("processors {key}", Near, ALL),
    attack("processors-by-number {key} {pid}", Open, ALL),
    attack("idle-class {key}", Near, ALL),
    attack("lock {key}", Near, ALL),
    attack("lock-by-number {key} {pid}", Open, ALL),
    attack("list-of-locks {key}", Near, ALL),
    attack("trace-other {key}", Near, ALL),
    attack("read-memory {key}", Near, ALL),
];
