"""Who stands by, and who does what cannot be frozen; what that is comes behind this, as DOES and CLEARS."""
import ctypes, errno, mmap, signal, socket, struct, threading

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MISSING = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENODEV, errno.ENXIO)
PAGE, SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE, HUGE = 4096, 1, 2, 0x10, 0x20, 0x4000, 0x40000


class Lacks(Exception):
    """Something that this machine does not have."""


def call(number, *arguments):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        error = ctypes.get_errno()
        raise (Lacks if error in MISSING else OSError)(error, os.strerror(error))
    return result


def memory(length, flags=PRIVATE | ANONYMOUS, descriptor=-1, at=0, offset=0, rights=3):
    start = libc.mmap(at, length, rights, flags, descriptor, offset)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return start


def child(act):
    """A child that acts and stays; when this returns it has acted."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os.write(writer, b"done")
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        os.close(reader)
        os.close(writer)
        lingers()
    os.close(writer)
    said = os.read(reader, 10000)
    os.close(reader)
    assert said == b"done", said.decode()
    return pid


def status(pid, key):
    return next(line.split(":", 1)[1].strip() for line in open(f"/proc/{pid}/status") if line.startswith(key + ":"))


def run(code):
    """Executes instructions."""
    at = memory(PAGE, rights=7)
    ctypes.memmove(at, code, len(code))
    ctypes.CFUNCTYPE(ctypes.c_int)(at)()


def apart(kinds):
    if libc.unshare(kinds) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def gift():
    """What somebody outside gives away."""
    with socket.socket(socket.AF_UNIX) as giver:
        giver.connect(STAGE + "/outside")
        return socket.recv_fds(giver, 1, 1)[1][0]


def user_namespace():
    apart(0x10000000)
    for file, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        with open(f"/proc/self/{file}", "w") as into:
            into.write(text)


def offend(does):
    try:
        exec(does, globals())
        said = ""
    except Lacks as why:
        said = f"lacks {why}"
    except BaseException:
        said = traceback.format_exc()
    say("offends", said)
    lingers()


def has_ended(pid):
    return status(pid, "State")[0] in "ZX" and status(pid, "Threads") == "1"


def others():
    """All that are there and have not ended, but the first process."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) not in (1, os.getpid()) and not has_ended(name):
                yield int(name)
        except (FileNotFoundError, ProcessLookupError):
            pass


def stands_by(offender):
    """Lets it offend for as long as is wished for, ends it and all that it has made, and clears up behind it."""
    wait_for(STAGE + "/offends")
    say("ready", "")
    wait_for(STAGE + "/enough")
    while left := list(others()):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    os.waitpid(offender, 0)
    exec(CLEARS, globals())
    say("clear", "")
    lingers()


offender = os.fork()
if offender == 0:
    offend(DOES)
stands_by(offender)
