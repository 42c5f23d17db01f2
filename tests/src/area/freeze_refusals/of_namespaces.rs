//! Namespaces of processes' own that cannot be frozen, and what is in them.

use super::kinds::{Kind, kind, late};

/// Of mounts they are in a table of their own.
pub(super) const NAMESPACES: &[Kind] = &[
    kind("apart(0x20000000)", &["a pid namespace of its own", "stop what made it"]),
    kind("apart(0x20000000)\nif os.fork() == 0:\n    lingers()", &["a pid namespace of its own"]),
    kind("apart(0x80)", &["a time namespace of its own", "stop what made it"]),
    kind("apart(0x80)\nif os.fork() == 0:\n    lingers()", &["a time namespace of its own"]),
    kind("apart(0x02000000)", &["a cgroup namespace of its own", "come along"]),
    kind(
        "apart(0x08000000)\nlibc.shmget(7, 4096, 0o1600)",
        &["shared memory in an ipc namespace of its own", "remove it (ipcrm, mq_unlink)"],
    ),
    kind("apart(0x08000000)\nlibc.semget(7, 1, 0o1600)", &["semaphores in an ipc namespace of its own"]),
    kind(
        "apart(0x08000000)\nlibc.mq_open(b'/x', os.O_CREAT | os.O_RDWR, 0o600, None)",
        &["a message queue in an ipc namespace of its own"],
    ),
    kind(
        "def holds():\n    apart(0x08000000)\n    libc.shmget(7, 4096, 0o1600)\nchild(holds)",
        &["shared memory in an ipc namespace of its own"],
    ),
    kind(
        "libc.shmat.restype = ctypes.c_void_p\nid = libc.shmget(0, 4096, 0o1600)\nkept = libc.shmat(id, None, 0)\n\
         libc.shmctl(id, 0, None)\napart(0x08000000)",
        &["System V shared memory of another ipc namespace than its own"],
    ),
    kind(
        "apart(0x40000000)\nos.system('ip link add strange type veth peer name stranger')",
        &["a network device (strange", "in a net namespace of its own", "the loopback device comes along"],
    ),
    kind(
        "apart(0x40000000)\nos.system('ip addr add 10.9.8.7/24 dev lo')",
        &["an address (10.9.8.7/24) in a net namespace of its own"],
    ),
    kind(
        "apart(0x40000000)\nos.system('ip rule add from 10.0.0.1 lookup 7 prio 70')",
        &["a rule for routes (with priority 70) in a net namespace of its own"],
    ),
    kind(
        "apart(0x40000000)\nos.system('ip link set lo up mtu 1500')",
        &["a loopback device that was changed in a net namespace of its own"],
    ),
    kind(
        "home = os.open('/proc/self/ns/mnt', 0)\napart(0x20000)\nkept = os.open('/proc/self/ns/mnt', 0)\nlibc.setns(home, 0)",
        &["descriptor", "a descriptor of a mnt namespace of which no process is"],
    ),
    kind(
        "home = os.open('/proc/self/ns/time_for_children', 0)\napart(0x80)\nkept = os.open('/proc/self/ns/time_for_children', 0)\n\
         assert libc.setns(home, 0) == 0\nos.close(home)",
        &["descriptor", "a descriptor of a time namespace", "that is of a kind that does not come along", "close it"],
    ),
    kind(
        "user_namespace()\nif os.fork() == 0:\n    user_namespace()\n    say('nested', '')\n    lingers()\nwait_for(STAGE + '/nested')",
        &["a user namespace in another than the guest's own", "stop what made it"],
    ),
    kind(
        "apart(0x10000000)",
        &["its user or group is nobody in the user namespace that it is in", "give it ids there"],
    ),
    kind("apart(0x10000000 | 0x40000000)", &["a net namespace that belongs to a user namespace of its own"]),
    kind("apart(0x10000000 | 0x20000)", &["a mnt namespace that belongs to a user namespace of its own"]),
    kind(
        "kept = threading.Thread(target=lambda: (apart(0x04000000), say('apart', ''), lingers()), daemon=True)\nkept.start()\n\
         wait_for(STAGE + '/apart')",
        &["a thread with a namespace of host names of its own", "stop what made it"],
    ),
    kind(
        "kept = threading.Thread(target=lambda: (apart(0x40000000), say('apart', ''), lingers()), daemon=True)\nkept.start()\n\
         wait_for(STAGE + '/apart')",
        &["a thread with a net namespace of its own"],
    ),
];

/// What the rows about mounts begin with.
pub(super) const WITH_MOUNTS: &str = "\
def mount(source, target, kind='', flags=0):
    assert libc.mount(source.encode(), target.encode(), kind.encode(), flags, b'') == 0
def alone():
    apart(0x20000)
    mount('none', '/', flags=1 << 14 | 1 << 18)
def private():
    alone()
    mount('none', STAGE + '/a', 'tmpfs')
for name in ('a', 'b'):
    os.mkdir(STAGE + '/' + name)
";

pub(super) const MOUNTS: &[Kind] = &[
    kind(
        "alone(); mount('none', STAGE + '/a', 'sysfs')",
        &["a file system that only its mnt namespace has (sysfs on ", "unmount it"],
    ),
    kind(
        "private(); mount(STAGE + '/b', STAGE + '/a', flags=4096)",
        &["a file system of its mnt namespace that another covers (tmpfs on ", "unmount the upper one"],
    ),
    kind(
        "alone(); mount(STAGE + '/b', STAGE + '/a', flags=4096); os.rmdir(STAGE + '/b')",
        &["a mount of files of its mnt namespace that were deleted (on "],
    ),
    kind(
        "private(); mount('none', STAGE + '/b', 'devpts')",
        &["a file system that only its mnt namespace has (devpts on "],
    ),
    late(kind(
        "private()\nkept = socket.socket(socket.AF_UNIX)\nos.chdir(STAGE + '/a')\nkept.bind(os.getcwd() + '/it')",
        &["descriptor", "a unix socket whose file only its mnt namespace has", "have it bind to a path"],
    )),
    kind(
        "private()\nkept = open(STAGE + '/a/x', 'w+')\nkept.truncate(4096)\nkept = mmap.mmap(kept.fileno(), 4096, mmap.MAP_PRIVATE)",
        &["memory of a file that only its mnt namespace has", "start it from files that"],
    ),
    kind(
        "private(); kept = open(STAGE + '/a/x', 'w'); libc.umount2((STAGE + '/a').encode(), 2)",
        &["descriptor", "a file of the outside, or of what is not mounted any more", "files of the guest's"],
    ),
    kind(
        "private(); kept = os.open(STAGE + '/a', 0); alone(); libc.umount2((STAGE + '/a').encode(), 2); os.fchdir(kept)",
        &["its working directory is not of its own mnt namespace", "start it in another directory"],
    ),
    kind(
        "kept = threading.Thread(target=lambda: (alone(), say('apart', ''), lingers()), daemon=True); kept.start(); wait_for(STAGE + '/apart')",
        &["a thread with a mnt namespace of its own", "stop what made it"],
    ),
    kind(
        "alone()\nfor number in range(1025):\n    mount(STAGE + '/b', STAGE + '/a', flags=4096)",
        &["a mnt namespace of its own with more than 1024 mounts"],
    ),
];
