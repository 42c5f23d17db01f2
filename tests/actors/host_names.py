import ctypes, socket

libc = ctypes.CDLL(None, use_errno=True)
NEW = 0x04000000
there, back = os.pipe(), os.pipe()


def name():
    return os.uname().nodename


if os.fork() == 0:
    assert libc.unshare(NEW) == 0
    socket.sethostname("inner")
    assert libc.setdomainname(b"a domain", 8) == 0
    if os.fork() == 0:
        # A child in the father's, and one in a third.
        assert libc.unshare(NEW) == 0
        socket.sethostname("innermost")
        assert libc.setdomainname(b"", 0) == 0
        os.write(back[1], b"1")
        lingers()
    if os.fork() == 0:
        lingers()
    os.write(back[1], b"2")
    while True:
        os.read(there[0], 4)
        before = name()
        socket.sethostname("changed")
        os.write(back[1], f"{before} {open('/proc/sys/kernel/domainname').read().strip()}".encode())
ready = b""
while len(ready) < 2:
    ready += os.read(back[0], 1)


def seen(pid):
    """The host name that another process has."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        namespace = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY)
        libc.setns(namespace, NEW)
        os.write(writer, name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 100).decode()


def of_all():
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return sorted(seen(pid) for pid in pids if b"actor" in open(f"/proc/{pid}/cmdline", "rb").read())


def check():
    assert of_all() == sorted([name(), "inner", "inner", "innermost"]), of_all()
    os.write(there[1], b"word")
    assert os.read(back[0], 100) == b"inner a domain"
    assert of_all() == sorted([name(), "changed", "changed", "innermost"]), of_all()


stand(check)
