import ctypes, resource

libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/usr/share")
os.umask(0o027)
resource.setrlimit(resource.RLIMIT_NOFILE, (321, 654))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(3)
libc.prctl(15, b"a (name) x", 0, 0, 0)
libc.prctl(29, 70_000, 0, 0, 0)  # PR_SET_TIMERSLACK
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
os.setgroups([7, 70])
libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
os.setresgid(11, 12, 13)
os.setresuid(21, 22, 23)
header, sets = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(1 << 10, 1 << 10 | 1 << 6, 1 << 10, 0, 0, 0)
assert libc.capset(header, sets) == 0
libc.prctl(47, 2, 10, 0, 0)  # PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE


def status():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    keys = ["Name", "Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"]
    return [lines[key] for key in keys]


before, environment, line = status(), open("/proc/self/environ").read(), open("/proc/self/cmdline").read()
executable = os.readlink("/proc/self/exe")


def check():
    assert status() == before, (status(), before)
    assert os.getcwd() == "/usr/share"
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (321, 654)
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
    assert os.nice(0) == 3 and libc.prctl(30, 0, 0, 0, 0) == 70_000
    flag = ctypes.c_int()
    libc.prctl(37, ctypes.byref(flag), 0, 0, 0)
    assert flag.value == 1
    assert libc.prctl(3, 0, 0, 0, 0) == 1
    assert open("/proc/self/environ").read() == environment and open("/proc/self/cmdline").read() == line
    assert os.readlink("/proc/self/exe") == executable
    maps = open("/proc/self/maps").read()
    assert all(word in maps for word in ("[heap]", "[stack]", "[vdso]"))


stand(check)
