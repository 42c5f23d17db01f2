"""Holds many kinds of kernel objects and attributes, and says of each what it should be and what it is: `NAME<tab>SHOULD<tab>IS`, whenever /tmp/ask is there.

What a kind should be is what it was when all of them were made. A kind that this machine does not have is left out. Called as `kinds.py SEED` it has all that a clone keeps, as
`kinds.py SEED some` a few of those, and perhaps some that cannot be frozen."""
import array, ctypes, fcntl, hashlib, mmap, os, random, resource, select, signal, socket, struct, sys, termios, threading, time, tty

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
dice = random.Random(SEED)
SOME = sys.argv[2:] == ["some"]
looks, lacking, kept = {}, [], []


def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(one) if isinstance(one, int) else one for one in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(*arguments):
    return call(157, *arguments, *[0] * (5 - len(arguments)))


def kind(name, make):
    """`make` makes it and gives what looks at it."""
    if SOME and dice.random() > 0.15:
        return
    try:
        look = make()
        look()
        looks[name] = look
    except (OSError, AttributeError, ValueError) as error:
        lacking.append(f"{name}: {error}")


def text(path):
    with open(path) as file:
        return file.read()


def field(key, pid="self"):
    return lambda: next((line.split(":", 1)[1].strip() for line in text(f"/proc/{pid}/status").splitlines() if line.startswith(key + ":")), "")


def stat(pid, *numbers):
    words = lambda: text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return lambda: [words()[number - 3] for number in numbers]


def of_itself():
    for key in ("Name", "Umask", "Uid", "Gid", "Groups", "NSpgid", "NSsid", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd",
                "CapAmb", "SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Threads", "THP_enabled", "Speculation_Store_Bypass"):
        kind(f"status {key}", lambda key=key: field(key))
    for number in range(16):
        kind(f"limit {number}", lambda number=number: lambda: resource.getrlimit(number))
    for name in ("cwd", "exe", "root"):
        kind(name, lambda name=name: lambda: os.readlink(f"/proc/self/{name}"))
    for name in ("cmdline", "environ", "oom_score_adj", "coredump_filter", "personality", "timerslack_ns", "loginuid", "timers"):
        kind(name, lambda name=name: lambda: text(f"/proc/self/{name}"))
    kind("auxiliary vector", lambda: lambda: hashlib.md5(open("/proc/self/auxv", "rb").read()).hexdigest())
    kind("layout", lambda: stat("self", 26, 27, 28, 45, 46, 47, 48, 49, 50, 51))
    kind("pid", lambda: os.getpid)
    kind("parent", lambda: os.getppid)
    kind("group", lambda: os.getpgrp)
    kind("session", lambda: lambda: os.getsid(0))
    kind("niceness", lambda: lambda: os.getpriority(os.PRIO_PROCESS, 0))
    kind("policy", lambda: lambda: os.sched_getscheduler(0))
    kind("processors", lambda: lambda: sorted(os.sched_getaffinity(0)))
    kind("disk priority", lambda: lambda: call(252, 1, 0))
    def heap():
        first = call(12, 0)
        # What this program allocates meanwhile moves it on; back it does not go.
        return lambda: first if first <= call(12, 0) < first + (16 << 20) else call(12, 0)

    kind("heap's end", heap)
    for name, number in (("dumpable", 3), ("keepcaps", 7), ("timing", 13), ("secure bits", 27), ("slack", 30), ("no new privileges", 39), ("memory failure", 34)):
        kind(f"prctl {name}", lambda number=number: lambda: prctl(number))

    def word(number):
        def look():
            got = ctypes.c_int()
            prctl(number, ctypes.byref(got))
            return got.value
        return look

    kind("prctl parent's death", lambda: (prctl(1, signal.SIGUSR2), word(2))[1])
    kind("prctl subreaper", lambda: (prctl(36, 1), word(37))[1])
    kind("prctl time stamps", lambda: word(25))

    def robust():
        head, length = ctypes.c_void_p(), ctypes.c_size_t()
        call(274, 0, ctypes.byref(head), ctypes.byref(length))
        return head.value, length.value

    kind("robust futexes", lambda: robust)
    kind("barriers", lambda: (call(324, 1 << 4, 0, 0), lambda: call(324, 1 << 9, 0, 0))[1])


def of_signals():
    def action(number):
        def look():
            got = ctypes.create_string_buffer(32)
            call(13, number, None, got, 8)
            return got.raw.hex()
        return look

    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGWINCH, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 5, signal.SIGUSR2])
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    for number in (1, 2, 3, 5, 10, 13, 15, 17, 28, 32, 33, 40, 64):
        kind(f"signal {number}", lambda number=number: action(number))

    def stack():
        room = kept.append(ctypes.create_string_buffer(65536)) or kept[-1]
        call(131, struct.pack("QiiQ", ctypes.addressof(room), 0, 0, 65536), None)

        def look():
            got = ctypes.create_string_buffer(24)
            call(131, None, got)
            return got.raw.hex()
        return look

    kind("signal stack", stack)
    for which, name in enumerate(("real", "virtual", "profiling")):
        def interval(which=which):
            signal.setitimer(which, 5000, 7000)
            return lambda: (lambda left, again: (left > 0, again))(*signal.getitimer(which))
        kind(f"interval timer {name}", interval)


def of_children():
    def child(act, look):
        def make():
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    act()
                    os.write(writer, b"1")
                    while True:
                        time.sleep(1000)
                finally:
                    os._exit(1)
            os.close(writer)
            if not os.read(reader, 1):
                raise OSError("a child cannot")
            os.close(reader)
            return look(pid)
        return make

    drop = lambda *arguments: lambda: prctl(*arguments)
    kind("child session", child(os.setsid, lambda pid: field("NSsid", pid)))
    kind("child group", child(lambda: os.setpgid(0, 0), lambda pid: field("NSpgid", pid)))
    kind("child umask", child(lambda: os.umask(0o71), lambda pid: field("Umask", pid)))
    kind("child niceness", child(lambda: os.nice(7), lambda pid: stat(pid, 19)))
    kind("child policy", child(lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), lambda pid: stat(pid, 41)))
    kind("child limit", child(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1000, 2000)), lambda pid: lambda: [line for line in text(f"/proc/{pid}/limits").splitlines() if "core" in line]))
    kind("child directory", child(lambda: os.chdir("/etc"), lambda pid: lambda: os.readlink(f"/proc/{pid}/cwd")))
    kind("child deleted directory", child(lambda: (os.mkdir("/root/cwd"), os.chdir("/root/cwd"), os.chmod("/root/cwd", 0o710), os.rmdir("/root/cwd")), lambda pid: lambda: (lambda at: (at.st_nlink, at.st_mode, os.listdir(f"/proc/{pid}/cwd")))(os.stat(f"/proc/{pid}/cwd"))))
    kind("child name", child(lambda: prctl(15, b"another\0"), lambda pid: field("Name", pid)))
    kind("child shortage", child(lambda: open("/proc/self/oom_score_adj", "w").write("700"), lambda pid: lambda: text(f"/proc/{pid}/oom_score_adj")))
    kind("child no new privileges", child(drop(38, 1), lambda pid: field("NoNewPrivs", pid)))
    kind("child bounding set", child(drop(24, 8), lambda pid: field("CapBnd", pid)))
    kind("child groups", child(lambda: os.setgroups([5, 7, 50]), lambda pid: field("Groups", pid)))
    kind("child saved user", child(lambda: os.setresuid(0, 0, 1000), lambda pid: field("Uid", pid)))
    kind("child group ids", child(lambda: os.setresgid(3, 4, 5), lambda pid: field("Gid", pid)))
    kind("child user", child(lambda: os.setresuid(1000, 1000, 1000), lambda pid: lambda: [field(key, pid)() for key in ("Uid", "CapPrm", "CapEff")]))
    kind("child blocked signals", child(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 40]), lambda pid: field("SigBlk", pid)))
    kind("child waiting signal", child(lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, [44]), os.kill(os.getpid(), 44)), lambda pid: field("ShdPnd", pid)))
    kind("child ignored signal", child(lambda: signal.signal(45, signal.SIG_IGN), lambda pid: field("SigIgn", pid)))
    filters = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    room = ctypes.create_string_buffer(filters)
    kind("child filter", child(lambda: (prctl(38, 1), prctl(22, 2, struct.pack("HxxxxxxQ", 1, ctypes.addressof(room)))), lambda pid: lambda: [field(key, pid)() for key in ("Seccomp", "Seccomp_filters")]))

    def dead(act):
        def make():
            pid = os.fork()
            if pid == 0:
                act()
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return lambda: [stat(pid, 3)(), (lambda got: (got.si_code, got.si_status))(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT))]
        return make

    kind("child that has ended", dead(lambda: os._exit(7)))
    kind("child that was killed", dead(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    kind("descriptor of a process", lambda: opened(os.pidfd_open(os.getpid())))

    def thread():
        ready, tids = threading.Event(), []

        def run():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 9])
            prctl(15, b"second\0")
            tids.append(threading.get_native_id())
            ready.set()
            time.sleep(1e6)
        threading.Thread(target=run, daemon=True).start()
        ready.wait()
        below = f"self/task/{tids[0]}"
        return lambda: [tids, field("Name", below)(), field("SigBlk", below)(), text(f"/proc/{below}/stat").split()[0]]

    kind("second thread", thread)


def flags(descriptor):
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~0o100000, fcntl.fcntl(descriptor, fcntl.F_GETFD)


def opened(descriptor, more=lambda: None):
    kept.append(descriptor)
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    # The name that a deleted file had is not kept.
    target = lambda: (lambda path: path.endswith(" (deleted)") or path.split(":[")[0])(os.readlink(f"/proc/self/fd/{number}"))
    return lambda: (target(), flags(number), more())


where = "/root/held"
os.makedirs(where, exist_ok=True)


def of_files():
    def file(name, how, act=lambda descriptor: None, look=lambda descriptor: lambda: os.lseek(descriptor, 0, os.SEEK_CUR)):
        def make():
            path = f"{where}/{name.replace(' ', '-')}"
            with open(path, "wb") as new:
                new.write(bytes(range(200)))
            descriptor = os.open(path, how)
            act(descriptor)
            return opened(descriptor, look(descriptor))
        kind(f"file {name}", make)

    at = dice.randrange(1, 200)
    seek = lambda descriptor: os.lseek(descriptor, at, 0)
    locks = lambda descriptor: lambda: [line.split()[2:5] for line in text(f"/proc/self/fdinfo/{descriptor}").splitlines() if line.startswith("lock:")]
    file("read", os.O_RDONLY, seek)
    file("written", os.O_WRONLY, seek)
    file("both ways", os.O_RDWR, seek)
    file("appended", os.O_WRONLY | os.O_APPEND)
    file("synchronous", os.O_RDWR | os.O_SYNC)
    file("nonblocking", os.O_RDWR | os.O_NONBLOCK)
    file("inherited", os.O_RDONLY, lambda descriptor: os.set_inheritable(descriptor, True))
    file("flocked", os.O_RDWR, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX), locks)
    file("flocked shared", os.O_RDWR, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_SH), locks)
    file("locked", os.O_RDWR, lambda descriptor: fcntl.lockf(descriptor, fcntl.LOCK_EX, 10, 20), locks)
    file("locked by itself", os.O_RDWR, lambda descriptor: fcntl.fcntl(descriptor, 37, struct.pack("hhqqixxxx", 1, 0, 5, 9, 0)), locks)
    file("deleted", os.O_RDWR, lambda descriptor: os.unlink(os.readlink(f"/proc/self/fd/{descriptor}")), lambda descriptor: lambda: (os.pread(descriptor, 300, 0).hex(), os.fstat(descriptor).st_nlink))
    file("mode and owner", os.O_RDWR, lambda descriptor: (os.fchmod(descriptor, 0o4751), os.fchown(descriptor, 3, 4), os.utime(descriptor, (1000, 2000))), lambda descriptor: lambda: (lambda at: (at.st_mode, at.st_uid, at.st_gid, at.st_mtime))(os.fstat(descriptor)))

    for name, how, number in (("read", os.O_RDONLY, fcntl.F_RDLCK), ("write", os.O_RDWR, fcntl.F_WRLCK)):
        def leased(name=name, how=how, number=number):
            path = f"{where}/leased-{name}"
            with open(path, "w"):
                pass
            os.chown(path, 0, 0)
            descriptor = os.open(path, how)
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGWINCH)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, number)
            return opened(descriptor, lambda: (fcntl.fcntl(descriptor, fcntl.F_GETLEASE), fcntl.fcntl(descriptor, fcntl.F_GETSIG)))
        kind(f"lease to {name}", leased)

    def deleted_directory():
        os.makedirs(f"{where}/gone/deep")
        outer, inner = os.open(f"{where}/gone", os.O_RDONLY), os.open(f"{where}/gone/deep", os.O_RDONLY)
        os.fchmod(inner, 0o711)
        os.rmdir(f"{where}/gone/deep")
        os.rmdir(f"{where}/gone")
        kept.append(outer)
        return opened(inner, lambda: [(lambda at: (at.st_nlink, at.st_mode, os.listdir(one)))(os.fstat(one)) for one in (outer, inner)])

    kind("deleted directory", deleted_directory)

    def shared():
        one = os.open("/etc/passwd", os.O_RDONLY)
        two = os.dup(one)
        os.lseek(one, 5, 0)

        def look():
            os.lseek(one, 9, 0)
            moved = os.lseek(two, 0, os.SEEK_CUR)
            os.lseek(one, 5, 0)
            return moved
        return opened(one, look)

    kind("descriptors of one file", shared)
    kind("high descriptor", lambda: (os.dup2(0, 900), lambda: os.fstat(900).st_rdev)[1])
    kind("directory", lambda: opened(os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)))
    kind("path alone", lambda: opened(os.open("/etc", os.O_PATH)))
    for device in ("null", "zero", "full", "urandom"):
        kind(f"device {device}", lambda device=device: opened(os.open(f"/dev/{device}", os.O_RDWR)))
    for name in ("uts", "ipc", "net", "mnt", "pid", "user"):
        kind(f"namespace {name}", lambda name=name: (lambda descriptor: opened(descriptor, lambda: os.fstat(descriptor).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino))(os.open(f"/proc/self/ns/{name}", os.O_RDONLY)))

    def memory_file():
        descriptor = os.memfd_create("held", os.MFD_ALLOW_SEALING)
        os.write(descriptor, b"what is in it")
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        return opened(descriptor, lambda: (os.pread(descriptor, 99, 0), fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.lseek(descriptor, 0, 1)))

    kind("memory file", memory_file)
    info = lambda descriptor, *keys: lambda: sorted(" ".join(line.split()[:6]) for line in text(f"/proc/self/fdinfo/{descriptor}").splitlines() if line.startswith(keys))
    for name, how in (("counter", 0), ("semaphore", os.EFD_SEMAPHORE), ("nonblocking counter", os.EFD_NONBLOCK)):
        def event(how=how):
            descriptor = os.eventfd(dice.randrange(1, 1000), how)
            return opened(descriptor, info(descriptor, "eventfd-count", "eventfd-semaphore"))
        kind(name, event)
    for clock in (0, 1, 7):
        def clocked(clock=clock):
            descriptor = call(283, clock, 0)
            call(286, descriptor, 0, struct.pack("qqqq", 5000, 0, 6000, 0), None)
            return opened(descriptor, lambda: (info(descriptor, "clockid")(), [line for line in text(f"/proc/self/fdinfo/{descriptor}").splitlines() if "interval" in line]))
        kind(f"clock {clock}", clocked)
    kind("signals by descriptor", lambda: (lambda descriptor: opened(descriptor, info(descriptor, "sigmask")))(call(289, -1, struct.pack("Q", 1 << 40), 8, 0)))

    def poll():
        watched, instance = os.eventfd(0), select.epoll()
        other = os.dup(watched)
        instance.register(watched, select.EPOLLIN | select.EPOLLET)
        instance.register(other, select.EPOLLOUT | select.EPOLLONESHOT)
        kept.extend((watched, other))
        return opened(instance, info(instance.fileno(), "tfd"))

    kind("watches of epoll", poll)

    def poll_of_lost_numbers(reused):
        """What is watched has another number now, or only a child has it; the number is closed, or leads to something else that is watched too."""
        instance = select.epoll()

        def make():
            (reading, writing), (other, _) = os.pipe(), os.pipe()
            instance.register(reading, select.EPOLLIN)
            again = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 200)
            os.close(reading)
            if reused:
                os.dup2(other, reading)
                instance.register(reading, select.EPOLLIN)
            counter = os.eventfd(0)
            instance.register(counter, select.EPOLLIN | select.EPOLLONESHOT)
            copy = fcntl.fcntl(counter, fcntl.F_DUPFD, 200)
            os.close(counter)
            kept.extend((again, copy))

            def look():
                os.write(writing, b"x")
                heard = sorted(number == reading for number, _ in instance.poll(0.05))
                os.read(again, 1)
                return heard, info(instance.fileno(), "tfd")()

            return look

        return opened(instance, make())

    kind("watches of epoll of numbers that were closed", lambda: poll_of_lost_numbers(False))
    kind("watches of epoll of numbers that lead elsewhere", lambda: poll_of_lost_numbers(True))

    def files_watched():
        descriptor = libc.inotify_init1(0)
        for path in (b"/etc", b"/root", b"/etc/passwd"):
            libc.inotify_add_watch(descriptor, path, 0x306)
        return opened(descriptor, lambda: sorted(line.split()[1] for line in text(f"/proc/self/fdinfo/{descriptor}").splitlines() if line.startswith("inotify")))

    kind("watches of files", files_watched)


def of_pipes():
    waits = lambda descriptor: lambda: array.array("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]

    def pipe():
        reader, writer = os.pipe()
        fcntl.fcntl(writer, 1031, 16384)
        os.write(writer, b"x" * dice.randrange(1, 4000))
        kept.append(writer)
        return opened(reader, lambda: (waits(reader)(), fcntl.fcntl(reader, 1032)))

    def named():
        os.mkfifo("/root/held/named")
        descriptor = os.open("/root/held/named", os.O_RDWR | os.O_NONBLOCK)
        os.write(descriptor, b"it waits")
        return opened(descriptor, waits(descriptor))

    def closed():
        reader, writer = os.pipe()
        os.close(writer)
        return opened(reader, lambda: select.select([reader], [], [], 0)[0] == [reader])

    kind("pipe", pipe)
    kind("named pipe", named)
    kind("pipe that nobody writes to", closed)
    for name, how in (("stream", socket.SOCK_STREAM), ("datagrams", socket.SOCK_DGRAM), ("packets", socket.SOCK_SEQPACKET)):
        def pair(how=how):
            one, two = socket.socketpair(type=how)
            one.send(b"first")
            one.send(b"second")
            kept.append(one)
            return opened(two, lambda: two.recv(99, socket.MSG_PEEK))
        kind(f"pair of {name}", pair)

    def half():
        one, two = socket.socketpair()
        one.shutdown(socket.SHUT_WR)
        kept.append(one)
        return opened(two, lambda: two.recv(9))

    def sent():
        one, two = socket.socketpair()
        socket.send_fds(one, [b"with one"], [0])
        kept.append(one)
        return opened(two, waits(two))

    kind("half of a pair", half)
    kind("descriptor in flight", sent)
    for name, path in (("by path", "/root/held/socket"), ("abstract", "\0held")):
        def listener(path=path):
            one = socket.socket(socket.AF_UNIX)
            one.bind(path)
            one.listen(7)
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            kept.append(client)
            return opened(one, lambda: (one.getsockname(), one.getsockopt(1, socket.SO_ACCEPTCONN), select.select([one], [], [], 0)[0] == [one]))
        kind(f"listener {name}", listener)

    def terminal():
        master, slave = os.openpty()
        tty.setraw(slave)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        kept.append(master)
        return opened(slave, lambda: (fcntl.ioctl(slave, termios.TIOCGWINSZ, b"\0" * 8), termios.tcgetattr(slave), os.ttyname(slave)))

    kind("terminal", terminal)


def of_sockets():
    def option(name, family, how, level, number, value):
        def make():
            one = socket.socket(family, how)
            one.setsockopt(level, number, value)
            size = len(value) if isinstance(value, bytes) else 4
            return opened(one, lambda: one.getsockopt(level, number, size))
        kind(f"option {name}", make)

    stream, datagram, inet = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.AF_INET
    second = struct.pack("ll", 3, 0)
    for name, number, value in (("reuse", 2, 1), ("broadcast", 6, 1), ("send buffer", 7, 30000), ("receive buffer", 8, 40000), ("keep alive", 9, 1), ("out of band", 10, 1), ("priority", 12, 5),
                                ("linger", 13, struct.pack("ii", 1, 9)), ("reuse port", 15, 1), ("least", 18, 9), ("receive time", 20, second), ("send time", 21, second), ("time stamps", 29, 1),
                                ("busy polling", 46, 0), ("no checks", 11, 1), ("not routed", 5, 1)):
        option(name, inet, datagram if name in ("no checks", "broadcast") else stream, socket.SOL_SOCKET, number, value)
    for name, number, value in (("no delay", 1, 1), ("corked", 3, 1), ("idle", 4, 77), ("interval", 5, 7), ("count", 6, 4), ("tries", 7, 3), ("defer", 9, 3), ("user time", 18, 9000), ("fast open", 23, 5), ("congestion", 13, b"reno\0")):
        option(f"tcp {name}", inet, stream, socket.IPPROTO_TCP, number, value)
    for name, number, value in (("service", 1, 16), ("life", 2, 33), ("packet info", 8, 1), ("errors", 11, 1), ("discovery", 10, 2), ("free bind", 15, 1), ("transparent ports", 24, 1)):
        option(f"ip {name}", inet, datagram, socket.IPPROTO_IP, number, value)
    for name, number, value in (("only", 26, 1), ("hops", 16, 9), ("packet info", 49, 1), ("class", 67, 8)):
        option(f"ipv6 {name}", socket.AF_INET6, datagram, 41, number, value)
    for name, number in (("credentials", 16), ("security", 34)):
        option(f"unix {name}", socket.AF_UNIX, stream, socket.SOL_SOCKET, number, 1)

    def bound(family, how, address, act=lambda one: None):
        def make():
            one = socket.socket(family, how)
            one.bind(address)
            act(one)
            return opened(one, lambda: (one.getsockname(), one.getsockopt(1, socket.SO_ACCEPTCONN)))
        return make

    kind("tcp listener", bound(inet, stream, ("127.0.0.1", 7001), lambda one: one.listen(9)))
    kind("tcp listener of ipv6", bound(socket.AF_INET6, stream, ("::1", 7002), lambda one: one.listen(9)))
    kind("tcp bound", bound(inet, stream, ("127.0.0.1", 7003)))
    kind("udp bound", bound(inet, datagram, ("127.0.0.1", 7004)))

    def sends():
        one = socket.socket(inet, datagram)
        one.bind(("127.0.0.1", 7005))
        one.connect(("127.0.0.1", 7004))
        return opened(one, lambda: (one.getsockname(), one.getpeername()))

    kind("udp with a peer", sends)

    kind("ping", lambda: opened(socket.socket(inet, datagram, 1)))

    def raw(family, protocol, act=lambda one: None):
        def make():
            one = socket.socket(family, socket.SOCK_RAW, protocol)
            act(one)
            told = lambda level, number, length: (lambda: one.getsockopt(level, number, length))
            looks = [told(0, 3, 4)] + [told(255, 1, 4)] * (protocol == 1) if family == inet else [told(58, 1, 32)]
            return opened(one, lambda: (one.getsockname(), [look() for look in looks], one.getsockopt(1, 38)))
        return make

    kind("raw", raw(inet, 1, lambda one: one.setsockopt(255, 1, struct.pack("I", 0x55))))
    kind("raw with headers", raw(inet, 47, lambda one: one.setsockopt(0, 3, 1)))
    kind("raw bound", raw(inet, 1, lambda one: one.bind(("127.0.0.1", 0))))
    kind("raw of ipv6", raw(socket.AF_INET6, 58, lambda one: one.setsockopt(58, 1, b"\x0f" * 32)))

    def filtered():
        one = socket.socket(inet, datagram)
        program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 7) + struct.pack("HBBI", 6, 0, 0, 0), 16)
        one.setsockopt(1, 26, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))

        def look():
            got, count = ctypes.create_string_buffer(8), ctypes.c_uint32(1)
            call(55, one.fileno(), 1, 26, got, ctypes.byref(count))
            return count.value, got.raw[:8].hex()
        return opened(one, look)

    kind("packet filter", filtered)

    def setting():
        path = "/proc/sys/net/ipv4/ip_default_ttl"
        with open(path, "w") as file:
            file.write("99")
        return lambda: text(path)

    kind("setting of the network", setting)
    kind("netlink", lambda: opened(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)))


def of_ipc():
    def segment():
        number = call(29, 77, 8192, 0o1600)
        address = call(30, number, 0, 0)
        ctypes.memmove(address, b"shared", 6)
        return lambda: (number, ctypes.string_at(address, 6))

    def semaphores():
        number = call(64, 78, 3, 0o1600)
        call(66, number, 1, 16, 5)
        return lambda: (number, [call(66, number, which, 12, 0) for which in range(3)])

    def messages():
        number = call(68, 79, 0o1600)
        call(69, number, struct.pack("q", 3) + b"message", 7, 0)

        def look():
            about = ctypes.create_string_buffer(120)
            call(71, number, 2, about)
            return number, struct.unpack_from("Q", about.raw, 80)[0]
        return look

    def queue():
        descriptor = call(240, b"held", os.O_RDWR | os.O_CREAT, 0o600, struct.pack("qqqq32x", 0, 4, 64, 0))
        call(242, descriptor, b"one", 3, 5, None)
        kept.append(descriptor)

        def look():
            about = ctypes.create_string_buffer(64)
            call(245, descriptor, None, about)
            return struct.unpack_from("qqqq", about.raw)
        return look

    def kept_in_memory():
        with open("/dev/shm/held", "w") as file:
            file.write("shared")
        os.chmod("/dev/shm/held", 0o640)
        return lambda: (text("/dev/shm/held"), os.stat("/dev/shm/held").st_mode)

    kind("shared memory of System V", segment)
    kind("semaphores of System V", semaphores)
    kind("messages of System V", messages)
    kind("message queue", queue)
    kind("file in memory", kept_in_memory)


def of_memory():
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    told = ("rd", "wr", "ex", "sh", "mr", "mw", "me", "gd", "lo", "dc", "wf", "dd", "hg", "nh", "mg", "sr", "rr", "sl")

    def flags_at(address):
        inside = False
        for line in text("/proc/self/smaps").splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                inside = start <= address < end
            elif inside and words[0] == "VmFlags:":
                return [word for word in words[1:] if word in told]
        return None

    def area(name, rights=3, how=0x22, descriptor=-1, length=1 << 16, act=lambda address: None, content=True):
        def make():
            address = libc.mmap(None, length, rights, how, descriptor, 0)
            if address in (None, ctypes.c_void_p(-1).value):
                raise OSError("mmap")
            if content and rights & 2:
                ctypes.memmove(address + 5, b"content", 7)
            act(address)
            return lambda: (flags_at(address), ctypes.string_at(address + 5, 7) if content and rights & 1 else None)
        kind(f"memory {name}", make)

    advise = lambda advice: lambda address: call(28, address, 1 << 16, advice)
    file = os.open("/root/mapped", os.O_RDWR | os.O_CREAT)
    os.write(file, b"a file's content" * 4096)
    kept.append(file)
    area("of its own")
    area("shared", how=0x21)
    area("of a file", how=2, descriptor=file)
    area("of a file, shared", how=1, descriptor=file)
    area("of a file, read", rights=1, how=2, descriptor=file)
    area("read", rights=1)
    area("executable", rights=5)
    area("of nobody", rights=0)
    area("not reserved", how=0x4022)
    area("locked", act=lambda address: call(149, address, 1 << 16))
    area("made read", act=lambda address: call(10, address, 1 << 16, 1))
    area("with a hole", act=lambda address: call(11, address + 8192, 4096))
    for name, advice in (("random", 1), ("in order", 2), ("not forked", 10), ("merged", 12), ("huge", 14), ("not huge", 15), ("not dumped", 16)):
        area(f"advised {name}", act=advise(advice))
    area("wiped on fork", act=advise(18), content=False)
    area("growing down", how=0x122, content=False)


def of_what_is_refused():
    """One of them is one too many for a freeze."""
    def odd(name, make):
        if SOME and dice.random() < 0.04:
            try:
                kept.append(make())
            except (OSError, AttributeError) as error:
                lacking.append(f"{name}: {error}")

    def homeless():
        os.mkdir("/root/nest")
        one = socket.socket(socket.AF_UNIX)
        one.bind("/root/nest/socket")
        os.unlink("/root/nest/socket")
        os.rmdir("/root/nest")
        return one

    def child(act):
        def make():
            pid = os.fork()
            if pid == 0:
                act()
                time.sleep(1e6)
            time.sleep(0.1)
            return pid
        return make

    odd("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    odd("socket whose directory is gone", homeless)
    odd("name of a link", lambda: (os.symlink("/etc", "/root/link"), os.open("/root/link", os.O_PATH | os.O_NOFOLLOW))[1])
    odd("pipe of packets", lambda: os.pipe2(os.O_DIRECT))
    odd("other root", child(lambda: os.chroot("/root")))
    odd("stopped child", child(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    odd("group without its leader", child(lambda: (os.setpgid(0, 0), os.fork() and os._exit(0))))
    odd("reservation", lambda: mmap.mmap(-1, 21 << 40, flags=0x4022))
    odd("io_uring", lambda: call(425, 4, ctypes.create_string_buffer(120)))


for make in (of_itself, of_children, of_files, of_pipes, of_sockets, of_ipc, of_memory, of_signals, of_what_is_refused):
    make()
# All of them are there: a kind may change another, as what one more child does to what waits.
should = {name: repr(look()) for name, look in looks.items()}


def said(name, look):
    try:
        return repr(look())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


with open("/tmp/lacking", "w") as file:
    file.write("\n".join(lacking) + "\n")
with open("/tmp/up", "w") as file:
    file.write(f"{len(should)}\n")
while True:
    time.sleep(0.05)
    if os.path.exists("/tmp/ask"):
        os.unlink("/tmp/ask")
        with open("/tmp/said.new", "w") as file:
            for name, look in looks.items():
                file.write(f"{name}\t{should[name]}\t{said(name, look)}\n".replace("\n", "\\n").removesuffix("\\n") + "\n")
        os.rename("/tmp/said.new", "/tmp/said")
