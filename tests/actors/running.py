"""What the kernel keeps of a thread while it runs, and how calls end in which it waits."""
import ctypes, select, signal, struct, threading

libc = ctypes.CDLL(None, use_errno=True)
BATCH, IDLE, ROBUST, OWNER_DIED = 3, 5, 1, 130
ONE = {min(os.sched_getaffinity(0))}
MUTEX_LENGTH = 40
memory = ctypes.create_string_buffer(2 * MUTEX_LENGTH)
mutex = ctypes.byref(memory)
attributes = ctypes.create_string_buffer(8)
assert libc.pthread_mutexattr_init(attributes) == 0
assert libc.pthread_mutexattr_setrobust(attributes, ROBUST) == 0
assert libc.pthread_mutex_init(mutex, attributes) == 0
libc.pthread_self.restype = ctypes.c_ulong
go, told = threading.Event(), {}


def restartable():
    """The number of the processor that restartable sequences are told."""
    offset = ctypes.c_long.in_dll(libc, "__rseq_offset").value
    return ctypes.c_int.from_address(libc.pthread_self() + offset + 4).value


def ready(name):
    told[name] = "ready"


def pinned():
    os.sched_setaffinity(0, ONE)
    os.sched_setscheduler(0, BATCH, os.sched_param(0))
    ready("pinned")
    go.wait()
    number = restartable()
    told["pinned"] = (os.sched_getaffinity(0), os.sched_getscheduler(0), {number})


def idle():
    os.sched_setscheduler(0, IDLE, os.sched_param(0))
    ready("idle")
    go.wait()
    told["idle"] = os.sched_getscheduler(0)


def owner():
    assert libc.pthread_mutex_lock(mutex) == 0
    ready("owner")
    go.wait()
    # It ends without giving it back, and only the kernel can tell.


def raw(name, make):
    """A call in which a thread waits, made without anybody who would make it again."""

    def body():
        wait = make()
        ready(name)
        ctypes.set_errno(0)
        told[name] = (wait(), ctypes.get_errno())

    threading.Thread(target=body, daemon=True).start()


pipe, socket_pair = os.pipe(), __import__("socket").socketpair()
word = ctypes.c_int(7)
file = open(f"{STAGE}/own/waited-for", "w+")
other = os.open(f"{STAGE}/own/waited-for", os.O_RDWR)
assert libc.flock(file.fileno(), 2) == 0
room = ctypes.create_string_buffer(8)
for body in (pinned, idle, owner):
    threading.Thread(target=body, name=body.__name__, daemon=True).start()
SLEEP = struct.pack("2q", 1, 500_000_000)
raw("nanosleep", lambda: lambda: libc.nanosleep(SLEEP, None))
raw("clock_nanosleep", lambda: lambda: libc.clock_nanosleep(1, 0, SLEEP, None))
raw("poll", lambda: lambda: libc.poll(None, 0, 1500))
raw("futex", lambda: lambda: libc.syscall(202, ctypes.byref(word), 128, 7, struct.pack("2q", 1, 500_000_000)))
raw("read", lambda: lambda: libc.read(pipe[0], room, 1))
raw("recv", lambda: lambda: libc.recv(socket_pair[0].fileno(), room, 1, 0))
raw("flock", lambda: lambda: libc.flock(other, 2))
child = os.fork()
if child == 0:
    signal.pause()
    os._exit(9)
raw("waitid", lambda: lambda: libc.waitid(1, child, ctypes.create_string_buffer(128), 4))
names = ["nanosleep", "clock_nanosleep", "poll", "futex", "read", "recv", "flock", "waitid"]
while any(name not in told for name in [*names, "pinned", "idle", "owner"]):
    time.sleep(0.01)
# They are in them by now.
time.sleep(0.1)


def check():
    assert not set(names[4:]) & {name for name in told if told[name] != "ready"}, told
    os.write(pipe[1], b"x")
    socket_pair[1].send(b"x")
    assert libc.flock(file.fileno(), 8) == 0
    os.kill(child, signal.SIGKILL)
    go.set()
    deadline = time.time() + 30
    while any(told[name] == "ready" for name in [*names, "pinned", "idle"]):
        assert time.time() < deadline, told
        time.sleep(0.01)
    assert told["pinned"] == (ONE, BATCH, ONE), told
    assert told["idle"] == IDLE, told
    assert os.sched_getscheduler(0) == 0 and os.sched_getaffinity(0) >= ONE
    # None of them ends because its process was frozen.
    wanted = dict.fromkeys(names, (0, 0)) | {"futex": (-1, 110), "read": (1, 0), "recv": (1, 0)}
    assert {name: told[name] for name in names} == wanted, told
    while any(thread.name == "owner" for thread in threading.enumerate()):
        assert time.time() < deadline
        time.sleep(0.01)
    assert libc.pthread_mutex_lock(mutex) == OWNER_DIED


stand(check)
