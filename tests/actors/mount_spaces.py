import ctypes, mmap

libc = ctypes.CDLL(None, use_errno=True)
NEW, RDONLY, NOSUID, REMOUNT, BIND, REC, PRIVATE = 0x20000, 1, 2, 32, 4096, 1 << 14, 1 << 18
HERE = STAGE + "/mounts"


def done(result):
    assert result == 0, os.strerror(ctypes.get_errno())


def mount(source, target, kind="", flags=0, options=""):
    done(libc.mount(*(word.encode() for word in (source, target, kind)), flags, options.encode()))


def apart():
    done(libc.unshare(NEW))
    mount("none", "/", flags=REC | PRIVATE)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def space(pid="self"):
    return os.readlink(f"/proc/{pid}/ns/mnt")


def entry(path):
    """What mountinfo says of the uppermost mount at a path."""
    lines = [line.split() for line in open("/proc/self/mountinfo")]
    return [line for line in lines if line[4] == path][-1]


for name in ("private", "protected", "source", "target", "other", "bare", "apart", "proc"):
    os.makedirs(f"{HERE}/{name}", exist_ok=True)
write(HERE + "/source/which", "source")
write(HERE + "/target/which", "target")
write(HERE + "/file", "file")
write(HERE + "/bare/file", "bare")
places = os.open(HERE, os.O_DIRECTORY)
children = {}


class Child:
    """Does what it is told, in whatever namespace it is."""

    def __init__(self, name, prepare):
        self.to, self.back = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            assert os.read(self.back[0], 10_000) == b"ready"
            children[name] = self
            return
        try:
            checks = prepare()
            os.write(self.back[1], b"ready")
            while os.read(self.to[0], 1):
                checks()
                os.write(self.back[1], b"right")
        except BaseException:
            os.write(self.back[1], traceback.format_exc().encode())
        os._exit(0)

    def check(self):
        os.write(self.to[1], b"x")
        said = os.read(self.back[0], 10_000).decode()
        assert said == "right", said


def service():
    """A file system in memory, a place that cannot be written to, one over another, a file over a file, one that is gone, one with other attributes."""
    apart()
    mount("none", HERE + "/private", "tmpfs", NOSUID, "size=1m,mode=0751")
    os.makedirs(HERE + "/private/deep/er")
    os.symlink("deep", HERE + "/private/link")
    write(HERE + "/private/deep/file", "0123456789")
    os.chmod(HERE + "/private/deep/file", 0o640)
    write(HERE + "/private/point", "")
    write(HERE + "/private/tty", "")
    mount("/dev/tty", HERE + "/private/tty", flags=BIND)
    mount("none", HERE + "/private/deep/er", "tmpfs")
    write(HERE + "/private/deep/er/inner", "inner")
    mount(HERE + "/file", HERE + "/private/point", flags=BIND)
    mount(HERE + "/protected", HERE + "/protected", flags=BIND)
    mount("none", HERE + "/protected", flags=BIND | REMOUNT | RDONLY)
    mount(HERE + "/source", HERE + "/target", flags=BIND)
    mount(HERE + "/private/deep", HERE + "/apart", flags=BIND)
    mount("proc", HERE + "/proc", "proc", options="hidepid=invisible")
    mount(HERE + "/proc/sys", HERE + "/proc/sys", flags=BIND)
    mount("none", HERE + "/proc/sys", flags=BIND | REMOUNT | RDONLY)
    done(libc.umount2(b"/mnt", 0))
    mount("none", "/media", flags=BIND | REMOUNT | RDONLY | NOSUID)
    opened = open(HERE + "/private/deep/file", "r+")
    opened.seek(3)
    opened.flush()
    directory = os.open(HERE + "/private", os.O_DIRECTORY)
    over = os.open(HERE + "/target/which", os.O_RDONLY)
    mapped = mmap.mmap(opened.fileno(), 10)
    os.mkfifo(HERE + "/private/fifo")
    fifo = os.open(HERE + "/private/fifo", os.O_RDWR)
    os.write(fifo, b"waits")
    os.chdir(HERE + "/private/deep")
    # It shares all that, and was never told.
    Child("same", lambda: check_service)
    Child("deeper", deeper)
    before = entry(HERE + "/private")[5]

    def checks():
        assert space() == space(children["same"].pid) != space(children["deeper"].pid)
        check_service()
        assert os.getcwd() == HERE + "/private/deep" and read("file")[3:] == "3456789"
        assert opened.read(2) == "34" and os.read(over, 10) == b"source"
        opened.seek(3)
        assert os.read(fifo, 10) == b"waits"
        os.write(fifo, b"waits")
        assert os.stat("deep/er/inner", dir_fd=directory).st_size == 5
        assert entry(HERE + "/private")[5] == before, entry(HERE + "/private")
        assert "size=1024k" in entry(HERE + "/private")[-1]
        mapped[0:1] = b"M"
        assert read("file")[0] == "M"
        # Each clone has its own, and the namespaces in one that had the same have it still.
        assert not os.path.exists("seen"), "somebody else's"
        write("seen", "seen")
        children["same"].check()
        children["deeper"].check()
        os.unlink("seen")
        mapped[0:1] = b"0"
        # What nobody made can be made still, and undone.
        mount("none", HERE + "/other", "tmpfs")
        done(libc.umount2((HERE + "/other").encode(), 0))

    return checks


def check_service():
    assert read(HERE + "/private/deep/file")[1:] == "123456789"
    assert os.stat(HERE + "/private/deep/file").st_mode & 0o7777 == 0o640
    assert os.stat(HERE + "/private").st_mode & 0o7777 == 0o751
    assert os.readlink(HERE + "/private/link") == "deep"
    assert read(HERE + "/private/deep/er/inner") == "inner"
    assert read(HERE + "/private/point") == "file"
    assert os.stat(HERE + "/private/tty").st_rdev == os.makedev(5, 0)
    assert read(HERE + "/target/which") == "source"
    assert os.stat(HERE + "/apart/file").st_ino == os.stat(HERE + "/private/deep/file").st_ino
    assert os.readlink(HERE + "/proc/self") == str(os.getpid()) and "hidepid=invisible" in entry(HERE + "/proc")[-1]
    assert entry(HERE + "/proc/sys")[3] == "/sys" and entry(HERE + "/proc/sys")[5].startswith("ro")
    try:
        write(HERE + "/protected/x", "x")
        raise AssertionError("it can be written to")
    except OSError as error:
        assert error.errno == 30, error
    assert not os.path.ismount("/mnt")
    assert entry("/media")[5].split(",")[:2] == ["ro", "nosuid"], entry("/media")


def deeper():
    """Made in the service's namespace, and has what that has."""
    apart()
    mount(HERE + "/bare", HERE + "/other", flags=BIND)

    def checks():
        check_service()
        assert read(HERE + "/private/deep/seen") == "seen", "it is the same file system"
        assert read(HERE + "/other/file") == "bare"

    return checks


def bare():
    """One like the first."""
    apart()

    def checks():
        assert read(HERE + "/target/which") == "target" and os.path.ismount("/mnt")
        assert space() != space(os.getppid())

    return checks


Child("service", service)
Child("bare", bare)


def check():
    assert len({space(), space(children["service"].pid), space(children["bare"].pid)}) == 3
    assert os.listdir(HERE + "/private") == [], "it has no such mounts"
    assert read(HERE + "/target/which") == "target" and os.path.ismount("/mnt")
    for child in ("service", "bare"):
        children[child].check()
    assert sorted(os.listdir(places)) == sorted(os.listdir(HERE))


stand(check)
