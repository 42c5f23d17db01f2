//! Open files that cannot be frozen.

use super::kinds::{Kind, cleared, kind};

/// Open files.
pub(super) const FILES: &[Kind] = &[
    kind("kept = os.pipe2(os.O_DIRECT)", &["descriptor", "a pipe of packets (pipe:", "use an ordinary pipe"]),
    kind(
        "bound = socket.socket(socket.AF_UNIX)\nos.chdir(STAGE)\nbound.bind('bound')\nkept = os.open('bound', os.O_PATH)",
        &["descriptor", "a name of what cannot be opened (O_PATH)", "close it"],
    ),
    kind(
        "kept = open(STAGE + '/gone', 'w+'); os.mkdir(STAGE + '/moved'); os.link(STAGE + '/gone', STAGE + '/moved/left'); os.unlink(STAGE + '/gone')",
        &["descriptor", "a file that lost this name and has others elsewhere"],
    ),
    kind(
        "kept = open(STAGE + '/gone', 'w+'); os.posix_fallocate(kept.fileno(), 0, (1 << 30) + 4096); os.unlink(STAGE + '/gone')",
        &["descriptor", "a deleted file of more than 1 GiB", "close it"],
    ),
    kind(
        "found = [path for path in ('/dev/fuse', '/dev/net/tun', '/dev/loop-control', '/dev/kmsg') if os.path.exists(path)]\n\
         if not found:\n    raise Lacks('a device that has a state')\nkept = os.open(found[0], os.O_RDONLY)",
        &["descriptor", "a device (/dev/", "start the program without it"],
    ),
    kind(
        "kept = call(300, 0x200, 0)",
        &["descriptor", "a fanotify group (anon_inode:[fanotify])", "use inotify, or close it"],
    ),
    kind(
        "kept = call(444, struct.pack('QQQ', 1 << 11, 0, 0), 24, 0)",
        &["descriptor", "a kernel object (anon_inode:[landlock-ruleset])"],
    ),
    kind(
        "allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
         kept = call(317, 1, 8, struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))",
        &["descriptor", "a kernel object (anon_inode:seccomp notify"],
    ),
    kind(
        "kept = call(321, 0, struct.pack('IIII', 2, 4, 4, 1).ljust(64, b'\\0'), 64)",
        &["descriptor", "a kernel object (anon_inode:bpf-map)"],
    ),
    kind("kept = call(430, b'tmpfs', 0)", &["descriptor", "a kernel object (anon_inode:[fscontext])"]),
    kind(
        "kept = open('gone', 'w')\nlibc.inotify_add_watch(libc.inotify_init(), b'gone', 2)\nos.unlink('gone')",
        &["descriptor", "an inotify instance with 1 watches that no path leads to"],
    ),
    kind(
        "libc.inotify_add_watch(libc.inotify_init(), b'/proc/self', 2)",
        &["descriptor", "an inotify instance with 1 watches"],
    ),
    kind(
        "kept = open('/proc/%d/stat' % os.getppid())",
        &[
            "descriptor",
            "a file of /proc that it could not open in a clone (/proc/",
            "open it each time that it is read",
        ],
    ),
    kind(
        "kept = open('/proc/self/environ')",
        &["descriptor", "a file of /proc that it could not open in a clone (/proc/"],
    ),
    kind("kept = os.openpty(); os.close(kept[0])", &["descriptor", "a terminal whose other end is outside"]),
    cleared(
        kind(
            "kept = libc.mq_open(b'/gone', os.O_CREAT | os.O_RDWR, 0o600, None)\nlibc.mq_unlink(b'/gone')",
            &["descriptor", "a message queue that was unlinked (", "close it"],
        ),
        "",
    ),
    cleared(
        kind(
            "kept = libc.mq_open(b'/told', os.O_CREAT | os.O_RDWR, 0o600, None)\nrequest = (ctypes.c_int * 16)(0, 0, 10, 0)\n\
             signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nassert libc.mq_notify(kept, request) == 0",
            &["the message queue /told, of which it wants to be told (mq_notify)", "have it wait instead"],
        ),
        "libc.mq_unlink(b'/told')",
    ),
    cleared(
        kind(
            "open('/proc/sys/fs/mqueue/msg_max', 'w').write('20')\n\
             kept = libc.mq_open(b'/long', os.O_CREAT | os.O_RDWR, 0o600, (ctypes.c_long * 8)(0, 20, 8))\nassert kept >= 0",
            &[
                "the message queue /long, which takes more than a new system lets it",
                "at most 10 messages of 8192 bytes",
            ],
        ),
        "libc.mq_unlink(b'/long')",
    ),
    cleared(
        kind(
            "open('/proc/sys/fs/mqueue/queues_max', 'w').write('300')\nfor number in range(257):\n\
             \x20   os.close(libc.mq_open(b'/%d' % number, os.O_CREAT | os.O_RDWR, 0o600, (ctypes.c_long * 8)(0, 1, 8)))",
            &["257 message queues, more than a new system takes", "unlink some"],
        ),
        "for number in range(257):\n    libc.mq_unlink(b'/%d' % number)",
    ),
];
