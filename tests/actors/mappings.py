# Mappings of many kinds, and what the kernel tells of each (VmFlags of /proc/PID/smaps), whenever /tmp/ask is there.
import ctypes, os, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PRIVATE, SHARED, ANONYMOUS, NORESERVE, FIXED = 2, 1, 0x20, 0x4000, 0x10
GROWSDOWN, LENGTH = 0x100, 1 << 16
READ, READ_WRITE, NONE = 1, 3, 0
file = os.open("/tmp/file", os.O_RDWR | os.O_CREAT)
os.write(file, b"x" * LENGTH)
reading = os.open("/tmp/file", os.O_RDONLY)
memory = os.memfd_create("memory")
os.ftruncate(memory, LENGTH)
at = 0x7B0000000000
kinds = {}


def map(name, protection, flags, descriptor=-1, advice=None, lock=None, touched=True):
    global at
    at += 1 << 24
    assert libc.mmap(at, LENGTH, protection, flags | FIXED, descriptor, 0) == at, name
    if touched and protection & 2:
        ctypes.memset(at, 7, 4096)
    if advice is not None and libc.madvise(at, LENGTH, advice) != 0:
        return
    if lock is not None and libc.mlock2(at, LENGTH, lock) != 0:
        return
    kinds[at] = name


SOURCES = [
    ("anonymous", PRIVATE | ANONYMOUS, -1),
    ("of a file, private", PRIVATE, file),
    ("of a file, shared", SHARED, file),
    ("anonymous, shared", SHARED | ANONYMOUS, -1),
    ("of a memory file, private", PRIVATE, memory),
    ("of a memory file, shared", SHARED, memory),
]
ADVICE = {"random": 1, "sequential": 2, "not for forks": 10, "not for cores": 16, "no huge pages": 15, "huge pages": 14}
for name, flags, descriptor in SOURCES:
    for rights, protection in {"to read and write": READ_WRITE, "to read": READ, "for nobody": NONE}.items():
        map(f"{name}, {rights}", protection, flags, descriptor)
        map(f"{name}, {rights}, not reserved", protection, flags | NORESERVE, descriptor)
    map(f"{name}, not touched", READ_WRITE, flags, descriptor, touched=False)
    for word, advice in ADVICE.items():
        map(f"{name}, advice: {word}", READ_WRITE, flags, descriptor, advice)
    map(f"{name}, locked", READ_WRITE, flags, descriptor, lock=0)
    map(f"{name}, locked when touched", READ_WRITE, flags, descriptor, lock=1)
map("of a file that is open to read, shared", READ, SHARED, reading)
map("that grows", READ_WRITE, PRIVATE | ANONYMOUS | GROWSDOWN)
map("wiped in forks", READ_WRITE, PRIVATE | ANONYMOUS, advice=18)
map("merged where equal", READ_WRITE, PRIVATE | ANONYMOUS, advice=12)


def said():
    name, lines = None, []
    for line in open("/proc/self/smaps"):
        words = line.split()
        if "-" in words[0]:
            name = kinds.get(int(words[0].split("-")[0], 16))
            rights = words[1]
        elif words[0] == "VmFlags:" and name:
            lines.append(f"{name}: {rights} {' '.join(sorted(words[1:]))}\n")
    return "".join(lines)


open("/tmp/up", "w").write("up")
while True:
    if os.path.exists("/tmp/ask"):
        open("/tmp/said.new", "w").write(said())
        os.unlink("/tmp/ask")
        os.rename("/tmp/said.new", "/tmp/said")
    time.sleep(0.02)
