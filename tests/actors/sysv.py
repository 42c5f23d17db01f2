import ctypes, struct

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
IPC_RMID, IPC_CREAT, GETVAL, SETVAL = 0, 0o1000, 12, 16


def made(number):
    assert number >= 0, os.strerror(ctypes.get_errno())
    return number


for _ in range(3):
    libc.shmctl(made(libc.shmget(0, 4096, 0o600)), IPC_RMID, None)
segment = made(libc.shmget(4711, 100_000, IPC_CREAT | 0o640))
at = libc.shmat(segment, None, 0)
seen = libc.shmat(segment, None, 0o10000)
ctypes.memmove(at + 50_000, b"within", 6)
nobodys = made(libc.shmget(4712, 4096, IPC_CREAT | 0o600))
passing = libc.shmat(nobodys, None, 0)
ctypes.memmove(passing, b"left here", 9)
assert libc.shmdt(ctypes.c_void_p(passing)) == 0
going = made(libc.shmget(0, 4096, 0o600))
last = libc.shmat(going, None, 0)
ctypes.memmove(last, b"until the end", 13)
assert libc.shmctl(going, IPC_RMID, None) == 0
semaphores = made(libc.semget(4713, 3, IPC_CREAT | 0o600))
for number in range(3):
    assert libc.semctl(semaphores, number, SETVAL, number * 7) == 0
queue = made(libc.msgget(4714, IPC_CREAT | 0o600))
for kind, text in ((3, b"three"), (1, b"one"), (3, b"another")):
    assert libc.msgsnd(queue, struct.pack("q", kind) + text, len(text), 0) == 0
there, back = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(there[0], 1):
        ctypes.memmove(at + 60_000, b"from the child", 14)
        os.write(back[1], b"!")


def receive(kind):
    buffer = ctypes.create_string_buffer(200)
    length = made(libc.msgrcv(queue, buffer, 100, kind, 0))
    return buffer.raw[8 : 8 + length]


def check():
    assert libc.shmget(4711, 100_000, 0) == segment and segment == 3, segment
    assert ctypes.string_at(at + 50_000, 6) == b"within" == ctypes.string_at(seen + 50_000, 6)
    os.write(there[1], b"?")
    os.read(back[0], 1)
    assert ctypes.string_at(seen + 60_000, 14) == b"from the child"
    assert libc.shmget(4712, 4096, 0) == nobodys
    new = libc.shmat(nobodys, None, 0)
    assert ctypes.string_at(new, 9) == b"left here"
    assert ctypes.string_at(last, 13) == b"until the end"
    rows = [line.split() for line in open("/proc/sysvipc/shm").read().splitlines()[1:]]
    modes = {int(row[1]): int(row[2], 8) for row in rows}
    assert modes[segment] == 0o640 and modes[going] == 0o1600, modes
    assert [libc.semctl(semaphores, number, GETVAL) for number in range(3)] == [0, 7, 14]
    assert libc.semget(4713, 3, 0) == semaphores
    assert (receive(3), receive(0), receive(0)) == (b"three", b"one", b"another")


stand(check)
