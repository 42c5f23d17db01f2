import fcntl, mmap, signal

own = STAGE + "/own"
anonymous = mmap.mmap(-1, 1 << 20)
anonymous[0:5] = b"early"
anonymous[900_000:900_004] = b"late"
memory = os.memfd_create("a name", os.MFD_ALLOW_SEALING)
os.write(memory, b"0123456789")
mapped = mmap.mmap(memory, 4096 * 3 if os.ftruncate(memory, 4096 * 3) is None else 0)
mapped[8192:8196] = b"deep"
sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.write(sealed, b"for good")
fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
FUTURE_WRITE = 0x10
ring = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
os.ftruncate(ring, 4096)
producer = mmap.mmap(ring, 4096)
producer[0:5] = b"early"
fcntl.fcntl(ring, fcntl.F_ADD_SEALS, FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
consumer = mmap.mmap(ring, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
still = mmap.mmap(os.open(f"/proc/self/fd/{sealed}", os.O_RDONLY), 8, mmap.MAP_SHARED, mmap.PROT_READ)
os.lseek(memory, 5, os.SEEK_SET)
reader = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
private = mmap.mmap(memory, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[2:4] = b"xx"
with open(own + "/segment", "wb") as file:
    file.truncate(1 << 16)
named = mmap.mmap(os.open(own + "/segment", os.O_RDWR), 1 << 16)
named[100:105] = b"named"
gone = os.open(own + "/gone", os.O_RDWR | os.O_CREAT, 0o640)
os.write(gone, b"deleted and kept")
deleted = mmap.mmap(gone, 16)
os.unlink(own + "/gone")
os.lseek(gone, 3, os.SEEK_SET)
log = os.open(own + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"line\n")
os.unlink(own + "/log")
there, back = os.pipe(), os.pipe()
if os.fork() == 0:
    # Adds to the shared memory what it is asked to.
    while True:
        word = os.read(there[0], 100)
        anonymous[10 : 10 + len(word)] = word
        mapped[10 : 10 + len(word)] = word
        private[0:1] = b"c"
        os.write(gone, b"!")
        os.write(back[1], b"done")


def refused(what):
    try:
        what()
    except OSError as error:
        return error.errno == 1
    return False


def sealed_memory():
    """What was mapped for writing before the seal is written to on, and nobody else can."""
    assert fcntl.fcntl(ring, fcntl.F_GET_SEALS) == FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    producer[0:5] = b"later"
    assert consumer[0:5] == b"later", "one memory"
    assert refused(lambda: os.pwrite(ring, b"x", 0)), "it is sealed"
    assert refused(lambda: mmap.mmap(ring, 4096)), "it is sealed"
    flags = [line for line in open("/proc/self/smaps") if "memfd:ring" in line or line.startswith("VmFlags")]
    flags = [flags[place + 1].split() for place, line in enumerate(flags) if "memfd:ring" in line]
    assert sorted("mw" in words for words in flags) == [False, True], flags
    assert still[0:8] == b"for good"


def check():
    assert anonymous[0:5] == b"early" and anonymous[900_000:900_004] == b"late" and anonymous[500_000] == 0
    mine = os.readlink("/proc/self/ns/pid").encode()
    os.write(there[1], mine)
    assert os.read(back[0], 10) == b"done"
    assert anonymous[10 : 10 + len(mine)] == mine, "parent and child share it"
    assert mapped[8192:8196] == b"deep" and mapped[10 : 10 + len(mine)] == mine
    assert os.read(memory, 5) == b"56789" and os.pread(reader, 5, 0) == b"01234", "one position for each description"
    assert os.readlink(f"/proc/self/fd/{memory}") == "/memfd:a name (deleted)"
    try:
        os.write(reader, b"x")
        assert False, "it is for reading"
    except OSError:
        pass
    assert os.pread(sealed, 100, 0) == b"for good"
    assert fcntl.fcntl(sealed, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    sealed_memory()
    assert private[0:10] == b"01xx456789", "the child's page is the child's"
    time.sleep(0.2)
    assert anonymous[10 : 10 + len(mine)] == mine, "nobody else writes to it"
    assert named[100:105] == b"named"
    named[100:105] = b"newer"
    assert open(own + "/segment", "rb").read()[100:105] == b"newer", "it is the file"
    assert os.lseek(gone, 0, os.SEEK_CUR) == 4 and os.pread(gone, 100, 0) == b"del!ted and kept"
    assert deleted[:4] == b"del!" and os.fstat(gone).st_nlink == 0
    os.write(log, b"more\n")
    found = os.fstat(log)
    assert found.st_size == 10 and found.st_nlink == 0
    assert not os.path.exists(own + "/gone") and os.listdir(own) == ["segment"]


stand(check)
