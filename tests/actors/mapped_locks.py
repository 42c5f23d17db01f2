import fcntl, mmap

names = ["/tmp/ranges", "/tmp/other"]
files = [os.open(name, os.O_RDWR | os.O_CREAT) for name in names]
maps = []
for file in files:
    os.ftruncate(file, 4096)
    maps.append(mmap.mmap(file, 4096))
fcntl.lockf(files[0], fcntl.LOCK_SH, 1, 128)
fcntl.lockf(files[0], fcntl.LOCK_EX, 10, 200)
fcntl.lockf(files[1], fcntl.LOCK_EX)


def holder(name, start):
    """Which process keeps another from a byte of a file."""
    child, parent = os.pipe()
    number = os.fork()
    if number == 0:
        file = os.open(name, os.O_RDWR)
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
        kind, _, _, _, process = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
        os.write(parent, struct.pack("2i", kind, process))
        os._exit(0)
    os.waitpid(number, 0)
    kind, process = struct.unpack("2i", os.read(child, 8))
    return [kind, process == os.getpid()]


def answers():
    return {f"{name} {start}": holder(name, start) for name in names for start in (0, 128, 205)}


answer(answers)
