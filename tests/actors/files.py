import fcntl

path = STAGE + "/%s" % os.getpid()
shared = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.write(shared, b"0123456789")
os.lseek(shared, 3, os.SEEK_SET)
copy = os.dup2(shared, 77, inheritable=False)
second = os.open(path, os.O_RDONLY)
os.lseek(second, 8, os.SEEK_SET)
append = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
try:
    unnamed = os.open(STAGE, os.O_RDWR | os.O_TMPFILE, 0o600)
except OSError:
    # Not every file system has such.
    unnamed = os.memfd_create("unnamed")
os.write(unnamed, b"without a name")
null = os.open("/dev/null", os.O_RDWR | os.O_NONBLOCK)
random = open("/dev/urandom", "rb", buffering=0)
there, back = os.pipe(), os.pipe()
if os.fork() == 0:
    # Shares its parent's descriptions: on demand it moves the position.
    while os.read(there[0], 1):
        os.lseek(shared, 5, os.SEEK_SET)
        os.write(back[1], b"!")
# They tell of the process that has them, which is there only once it is made.
status, numbers = os.open("/proc/self/status", os.O_RDONLY), os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
again = os.dup(status)
os.read(status, 5)
open_then = os.listdir("/proc/self/fd")


def check():
    assert os.lseek(shared, 0, os.SEEK_CUR) == 3 == os.lseek(copy, 0, os.SEEK_CUR)
    assert os.read(second, 9) == b"89"
    os.write(there[1], b"?")
    assert os.read(back[0], 1) == b"!"
    assert os.lseek(copy, 0, os.SEEK_CUR) == 5, "the child's descriptor is the same description"
    assert not os.get_inheritable(copy) and fcntl.fcntl(copy, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    assert fcntl.fcntl(append, fcntl.F_GETFL) & os.O_APPEND
    assert fcntl.fcntl(null, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(shared, fcntl.F_GETFL) & os.O_NONBLOCK == 0
    assert os.fstat(directory).st_ino == os.stat("/").st_ino
    assert os.pread(unnamed, 99, 0) == b"without a name" and os.lseek(unnamed, 0, os.SEEK_CUR) == 14
    assert len(random.read(16)) == 16
    assert os.listdir("/proc/self/fd") == open_then
    assert f"\nPid:\t{os.getpid()}\n" in os.pread(status, 10_000, 0).decode()
    assert os.lseek(status, 0, os.SEEK_CUR) == 5 == os.lseek(again, 0, os.SEEK_CUR)
    assert str(numbers) in os.listdir(numbers)


stand(check)
