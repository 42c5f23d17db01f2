import mmap

pattern = bytes(range(256)) * 16
private = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, 8 << 20, 4096):
    private[page : page + 4096] = pattern[page // 4096 % 256 :] + pattern[: page // 4096 % 256]
sparse = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sparse[40 << 20] = 7
wiped = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
wiped.madvise(18)  # MADV_WIPEONFORK
wiped[0] = 9
home = os.readlink("/proc/self/ns/mnt")
apart = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
apart.madvise(10)  # MADV_DONTFORK
apart[0] = 11
file = open(STAGE + "/mapped", "w+b")
file.write(b"file" * 2048)
file.flush()
of_file = mmap.mmap(file.fileno(), 8192, flags=mmap.MAP_PRIVATE)
of_file[0:4] = b"mine"
heap = [bytes([number % 256]) * 1000 for number in range(2000)]


def check():
    for page in range(0, 8 << 20, 4096):
        want = pattern[page // 4096 % 256 :] + pattern[: page // 4096 % 256]
        assert private[page : page + 4096] == want, page
    assert sparse[40 << 20] == 7 and sparse[1] == 0 and sparse[60 << 20] == 0
    # A clone begins without what a fork begins without.
    cloned = os.readlink("/proc/self/ns/mnt") != home
    assert wiped[0] == (0 if cloned else 9) and apart[0] == 11
    assert of_file[0:8] == b"minefile"
    assert all(one == bytes([number % 256]) * 1000 for number, one in enumerate(heap))
    # It is ordinary memory: what is given back reads as zeros, and it grows.
    private.madvise(mmap.MADV_DONTNEED, 0, 4096)
    assert private[0:4096] == bytes(4096) and private[4096 + 1] == pattern[2]
    sparse.resize(128 << 20)
    assert sparse[40 << 20] == 7 and sparse[127 << 20] == 0
    more = bytearray(32 << 20)
    more[::4096] = b"x" * 8192
    if os.fork() == 0:
        os._exit(0 if wiped[0] == 0 else 1)
    assert os.wait()[1] == 0


stand(check)
