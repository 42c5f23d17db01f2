import ctypes

libc = ctypes.CDLL(None, use_errno=True)
CREATE, EXCLUSIVE, NONBLOCK = os.O_CREAT, os.O_EXCL, os.O_NONBLOCK


class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("flags", "capacity", "longest", "waiting", "a", "b", "c", "d")]


def opened(name, flags, mode=0o600, capacity=8, longest=100):
    about = Attributes(0, capacity, longest)
    queue = libc.mq_open(name.encode(), flags, mode, ctypes.byref(about))
    return queue if queue >= 0 else -ctypes.get_errno()


def about(queue):
    found = Attributes()
    assert libc.mq_getattr(queue, ctypes.byref(found)) == 0
    return found.flags, found.capacity, found.longest, found.waiting


def put(queue, message, priority):
    assert libc.mq_send(queue, message, len(message), priority) == 0, ctypes.get_errno()


def taken(queue):
    room, priority = ctypes.create_string_buffer(8192), ctypes.c_uint()
    length = libc.mq_receive(queue, room, 8192, ctypes.byref(priority))
    return (room.raw[:length], priority.value) if length >= 0 else None


os.umask(0)
jobs = opened("/jobs", CREATE | EXCLUSIVE | os.O_RDWR | NONBLOCK, 0o640)
reader = opened("/jobs", os.O_RDONLY | NONBLOCK)
for message, priority in [(b"later", 1), (b"first", 9), (b"last", 1), (b"", 5)]:
    put(jobs, message, priority)
shut = opened("/shut", CREATE | os.O_RDWR, 0o606, 3, 8192)
put(shut, b"x" * 8192, 0)
os.close(shut)
assert min(jobs, reader) > 0


def check():
    assert about(jobs) == (NONBLOCK, 8, 100, 4), about(jobs)
    mine = os.readlink("/proc/self/ns/ipc").encode()
    put(jobs, mine, 3)
    found = [taken(reader) for _ in range(6)]
    assert found == [(b"first", 9), (b"", 5), (mine, 3), (b"later", 1), (b"last", 1), None], found
    assert libc.mq_send(reader, b"x", 1, 0) != 0, "it is for reading"
    assert os.fstat(jobs).st_mode & 0o777 == 0o640
    again = opened("/shut", os.O_RDONLY | NONBLOCK)
    assert about(again)[1:] == (3, 8192, 1) and taken(again) == (b"x" * 8192, 0)
    assert os.fstat(again).st_mode & 0o777 == 0o606
    assert opened("/other", os.O_RDONLY) == -2
    put(jobs, b"new", 0)
    time.sleep(0.1)
    assert taken(reader) == (b"new", 0) and taken(reader) is None, "nobody else puts or takes any"


stand(check)
