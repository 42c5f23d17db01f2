import ctypes, struct

libc = ctypes.CDLL(None, use_errno=True)
MODIFY, CREATE, DELETE_SELF, ONESHOT = 2, 0x100, 0x400, 0x80000000
watched = os.path.join(STAGE, "own")
file = os.path.join(watched, "file")
open(file, "w").close()
os.mkdir(os.path.join(watched, "inner"))
instance = libc.inotify_init1(os.O_NONBLOCK)


def watch(path, events):
    number = libc.inotify_add_watch(instance, path.encode(), events)
    assert number > 0, path
    return number


# Numbers that need more than a digit.
for _ in range(20):
    passing = watch(os.path.join(watched, "inner"), CREATE)
    assert libc.inotify_rm_watch(instance, passing) == 0
passing = watch(os.path.join(watched, "inner"), CREATE)
of_directory = watch(watched, CREATE)
of_file = watch(file, MODIFY | ONESHOT)
assert libc.inotify_rm_watch(instance, passing) == 0
os.read(instance, 65536)
again = os.dup(instance)


def events():
    found, data = [], b""
    try:
        data = os.read(again, 65536)
    except BlockingIOError:
        pass
    while data:
        number, mask, _, length = struct.unpack("iIII", data[:16])
        found.append((number, mask, data[16:16 + length].rstrip(b"\0")))
        data = data[16 + length:]
    return found


def check():
    assert events() == []
    open(os.path.join(watched, "new"), "w").close()
    assert events() == [(of_directory, CREATE, b"new")]
    for _ in range(2):
        with open(file, "w") as opened:
            opened.write("x")
    # The watch of the file was for one event.
    said = events()
    assert (of_file, MODIFY, b"") == said[0], said
    assert all(number != of_file or mask & 0x8000 for number, mask, _ in said[1:]), said
    # The next number follows the last.
    assert watch(os.path.join(watched, "inner"), CREATE) == of_file + 1
    assert libc.inotify_rm_watch(instance, passing) != 0


stand(check)
