import ctypes, mmap

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
PAGE, GUARD_INSTALL, MSEAL, SIGSEGV = 4096, 102, 462, 11


def memory(pages, descriptor=-1):
    flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if descriptor < 0 else 0)
    at = libc.mmap(None, pages * PAGE, 3, flags, descriptor, 0)
    assert at not in (None, ctypes.c_void_p(-1).value)
    return at


def guard(at, pages):
    assert libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(pages * PAGE), GUARD_INSTALL) == 0


def touched(at):
    """What becomes of who touches it."""
    pid = os.fork()
    if pid == 0:
        ctypes.c_char.from_address(at).value
        os._exit(0)
    return os.waitpid(pid, 0)[1]


file = open(f"{STAGE}/mapped", "w+")
file.truncate(4 * PAGE)
plain, of_file, locked = memory(4), memory(4, file.fileno()), memory(4)
for at in (plain, of_file, locked):
    ctypes.memset(at, 65, 4 * PAGE)
    guard(at + PAGE, 2)
libc.mlock(ctypes.c_void_p(locked), ctypes.c_size_t(4 * PAGE))
sealed = memory(2)
ctypes.memset(sealed, 66, 2 * PAGE)
assert libc.syscall(MSEAL, ctypes.c_void_p(sealed), ctypes.c_size_t(PAGE), ctypes.c_ulong(0)) == 0


def check():
    for at in (plain, of_file, locked):
        outcome = [touched(at + number * PAGE) for number in range(4)]
        assert outcome == [0, SIGSEGV, SIGSEGV, 0], outcome
        assert ctypes.string_at(at, PAGE) == ctypes.string_at(at + 3 * PAGE, PAGE) == b"A" * PAGE
    assert libc.munmap(ctypes.c_void_p(sealed), ctypes.c_size_t(PAGE)) != 0, "it was sealed"
    assert ctypes.string_at(sealed, 2 * PAGE) == b"B" * 2 * PAGE
    assert libc.munmap(ctypes.c_void_p(sealed + PAGE), ctypes.c_size_t(PAGE)) == 0, "it was not sealed"


stand(check)
