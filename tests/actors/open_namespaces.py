import array, ctypes, socket

libc = ctypes.CDLL(None, use_errno=True)
FLAGS = {"uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000, "mnt": 0x20000}
KINDS = list(FLAGS) + ["pid", "user", "cgroup"]


def opened(kind, pid="self"):
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)


def inode(kind, pid="self"):
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def unshared(*kinds):
    assert libc.unshare(sum(FLAGS[kind] for kind in kinds)) == 0, ctypes.get_errno()


def helper(act, stays):
    """A child that does something, and stays or is gone when the descriptors of its namespaces are taken."""
    (reader, writer), (waits, ends) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        act()
        os.write(writer, b"x")
        os.close(ends)
        if stays:
            lingers()
        os.read(waits, 1)
        os._exit(0)
    os.read(reader, 1)
    taken = {kind: opened(kind, pid) for kind in FLAGS}
    for number in (reader, writer, waits, ends):
        os.close(number)
    if not stays:
        os.waitpid(pid, 0)
    return pid, taken


def send(one, number):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [number]))]
    one.sendmsg([], rights)


def seen(one):
    """The descriptor that waits, which goes on waiting."""
    _, parts, _, _ = one.recvmsg(1, 100, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return array.array("i", parts[0][2])[0]


def named(name):
    unshared("uts", "ipc", "net")
    socket.sethostname(name)


home = {kind: opened(kind) for kind in KINDS}
again = os.dup(home["uts"])
child, of_child = helper(lambda: (unshared("mnt"), named("child")), True)
_, of_gone = helper(lambda: named("gone"), False)
os.close(of_gone.pop("mnt"))
# As systemd keeps those of services, also of such that have ended.
stores = {kind: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for kind in ("ipc", "net", "mnt")}
for kind in ("ipc", "net"):
    send(stores[kind][1], of_gone[kind])
    os.close(of_gone.pop(kind))
send(stores["mnt"][1], of_child["mnt"])
assert list(of_gone) == ["uts"]
os.close(seen(stores["net"][0]))
joined, _ = helper(lambda: libc.setns(seen(stores["ipc"][0]), FLAGS["ipc"]), True)


def inside(*numbers):
    """What a process says there, and whether the loopback device is up."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        for number in numbers:
            assert libc.setns(number, 0) == 0, ctypes.get_errno()
        os.write(writer, f"{socket.gethostname()} {len(socket.if_nameindex())}".encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()


def check():
    for kind, number in home.items():
        assert os.fstat(number).st_ino == inode(kind) and libc.setns(number, 0) in (0, -1), kind
    assert os.path.sameopenfile(again, home["uts"])
    for kind, number in of_child.items():
        assert os.fstat(number).st_ino == inode(kind, child) != inode(kind), kind
    assert os.fstat(seen(stores["mnt"][0])).st_ino == inode("mnt", child)
    assert inside(of_child["uts"], of_child["net"]) == "child 1"
    kept = {kind: seen(stores[kind][0]) for kind in ("ipc", "net")}
    assert inside(of_gone["uts"], kept["net"]) == "gone 1"
    assert os.fstat(kept["ipc"]).st_ino == inode("ipc", joined)
    assert len({os.fstat(kept["ipc"]).st_ino, inode("ipc"), inode("ipc", child)}) == 3
    assert len({os.fstat(kept["net"]).st_ino, inode("net"), inode("net", child)}) == 3
    # Who comes later joins by what waits.
    later, _ = helper(lambda: (libc.setns(seen(stores["net"][0]), FLAGS["net"]), unshared("uts")), True)
    assert inode("net", later) == os.fstat(kept["net"]).st_ino


stand(check)
