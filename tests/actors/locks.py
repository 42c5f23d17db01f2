import fcntl, struct

own = STAGE + "/own"
names = ["flocked", "records", "description"]
for name in names:
    open(f"{own}/{name}", "w").write("0123456789")
flocked = os.open(own + "/flocked", os.O_RDWR)
fcntl.flock(flocked, fcntl.LOCK_EX)
records = os.open(own + "/records", os.O_RDWR)
fcntl.lockf(records, fcntl.LOCK_EX, 3, 2)
description = os.open(own + "/description", os.O_RDWR)
F_OFD_GETLK, F_OFD_SETLK = 36, 37


def range_of(kind, start, length):
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


fcntl.fcntl(description, F_OFD_SETLK, range_of(fcntl.F_RDLCK, 4, 3))
append = os.open(own + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(append, b"one\n")
for number in range(50):
    open(f"{own}/entry{number}", "w")
listing = os.open(own, os.O_RDONLY | os.O_DIRECTORY)


def check():
    for body, works in ((0, False), (1, True)):
        child = os.fork()
        if child == 0:
            os._exit(tries(body))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, body
    os.write(append, b"two\n")
    assert open(own + "/log").read() == "one\ntwo\n"
    assert len(os.listdir(listing)) == 54


def tries(free):
    """In a process that has none of the locks: what is locked, and what lies beside."""
    for name, kind, start in ((names[1], "lockf", 2 if not free else 5), (names[2], "ofd", 4 if not free else 7)):
        file = os.open(f"{own}/{name}", os.O_RDWR)
        try:
            if kind == "lockf":
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
            else:
                fcntl.fcntl(file, F_OFD_SETLK, range_of(fcntl.F_WRLCK, start, 1))
            if not free:
                return 1
        except OSError:
            if free:
                return 2
    file = os.open(f"{own}/{names[0]}", os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return 3
    except BlockingIOError:
        return 0


stand(check)
