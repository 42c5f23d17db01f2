//! Sockets that cannot be frozen.

use super::kinds::{Kind, kind, late};

/// Sockets, and what waits in them.
pub(super) const SOCKETS: &[Kind] = &[
    kind(
        "kept = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        &["descriptor", "a socket of packets (AF_PACKET)", "close it"],
    ),
    kind("kept = call(41, 40, 1, 0)", &["descriptor", "a socket of a virtual machine (AF_VSOCK)"]),
    kind("kept = call(41, 44, 3, 0)", &["descriptor", "a socket of AF_XDP"]),
    kind("kept = call(41, 38, 5, 0)", &["descriptor", "a socket of the kernel's ciphers (AF_ALG)"]),
    kind(
        "kept = socket.socket(socket.AF_UNIX)\nkept.connect(STAGE + '/outside')",
        &["descriptor", "a unix socket whose other end is outside", "start the other end inside"],
    ),
    kind(
        "kept = socket.socket(socket.AF_UNIX)\nos.chdir(STAGE)\nkept.bind('inside')\nkept.listen()",
        &["descriptor", "a unix socket to which somebody outside is connecting", "let the program accept it first"],
    ),
    kind(
        "kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nother = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         os.chdir(STAGE)\nother.bind('other')\nkept[1].connect('other')",
        &["descriptor", "a unix socket that sends to one without a name", "give that a name"],
    ),
    kind(
        "open(STAGE + '/wanted', 'w').write('pipe')\nkept = gift()",
        &["descriptor", "a pipe whose other end is outside", "end the program, or start it with /dev/null instead"],
    ),
    kind(
        "open(STAGE + '/wanted', 'w').write('process')\nkept = gift()",
        &["descriptor", "a descriptor of a process that does not come along", "close it"],
    ),
    kind(
        "open(STAGE + '/wanted', 'w').write('namespace')\nkept = gift()",
        &["descriptor", "a descriptor of a namespace of host names of the outside", "close it"],
    ),
    late(kind(
        "os.mkdir('nest')\nkept = socket.socket(socket.AF_UNIX)\nkept.bind(os.getcwd() + '/nest/it')\n\
         os.unlink('nest/it')\nos.rmdir('nest')",
        &["descriptor", "a unix socket whose directory is gone", "/nest/it", "in a directory that stays"],
    )),
    late(kind(
        "kept = socket.socketpair()\nkept[0].send(b'before')\nsocket.send_fds(kept[0], [b'x'], [os.pidfd_open(os.getpid())])",
        &["descriptor", "a process descriptor", "that waits to be received from a unix socket (SCM_RIGHTS)"],
    )),
    late(kind(
        "import select\nkept = socket.socketpair()\nwatching = select.epoll()\nwatching.register(kept[1], 1)\n\
         socket.send_fds(kept[0], [b'x'], [watching.fileno()])\nwatching.close()",
        &["descriptor", "an epoll instance that watches something that waits to be received"],
    )),
    kind(
        "kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nfor _ in range(3):\n    socket.send_fds(kept[0], [b'x'], [0] * 200)",
        &["descriptor", "more than 512 descriptors that wait in unix sockets", "receive them first"],
    ),
    kind(
        "home = os.open('/proc/self/ns/net', 0)\napart(0x40000000)\nkept = socket.socket()\nlibc.setns(home, 0)",
        &["descriptor", "a socket of a net namespace that nobody is in", "close it"],
    ),
];
