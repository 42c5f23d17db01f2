import ctypes, threading

libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, KEEPCAPS, NET_BIND = 0x10000000, 8, 10


def call(result):
    assert result == 0, os.strerror(ctypes.get_errno())


def status(*keys):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [lines[key].split() for key in keys]


def maps():
    read = lambda name: open(f"/proc/self/{name}").read().split()
    return read("uid_map"), read("gid_map"), read("setgroups")


def self_portrait():
    who = status("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "NSpid")
    return who, maps(), sorted(os.listdir("/proc/self/task"), key=int)


def link(pid="self"):
    return os.stat(f"/proc/{pid}/ns/user").st_ino


def stands(name, more):
    before = self_portrait()

    def is_the_same():
        assert self_portrait() == before, (self_portrait(), before)
        more()

    stand_beside(name, is_the_same)


def inside(users, groups, deny, prepare, body):
    """Forks a process into a user namespace whose maps its parent writes, as systemd does."""
    made, mapped = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        prepare()
        call(libc.unshare(NEWUSER))
        os.write(made[1], b"x")
        os.read(mapped[0], 1)
        body()
    os.read(made[0], 1)
    if deny:
        open(f"/proc/{pid}/setgroups", "w").write("deny")
    for name, text in (("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)
    os.write(mapped[1], b"x")
    return pid


def becomes(user, group, kept):
    os.setresgid(group, group, group)
    call(libc.prctl(KEEPCAPS, 1, 0, 0, 0))
    os.setresuid(user, user, user)
    header, sets = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(kept, kept, 0, 0, 0, 0)
    call(libc.capset(header, sets))


counts = [0] * 3


def works(number):
    while True:
        counts[number] += 1
        time.sleep(0.01)


def count_on():
    then, deadline = list(counts), time.time() + 30
    while any(now <= before for now, before in zip(counts, then)):
        assert time.time() < deadline
        time.sleep(0.01)


def is_confined():
    count_on()
    # All but root and its own are nobody, and root of the outside has no more power here than anybody.
    assert os.stat(f"{STAGE}/of-another").st_uid == 65534
    fails(PermissionError, open, f"{STAGE}/secret")
    fails(PermissionError, os.setgroups, [5])
    new = threading.Thread(target=lambda: None)
    new.start()
    new.join()


def service():
    """As a service of systemd's, with threads."""
    becomes(107, 107, 1 << NET_BIND)
    call(libc.prctl(38, 1, 0, 0, 0))
    if os.fork() == 0:
        stands("child", lambda: None)
    for number in range(3):
        threading.Thread(target=works, args=(number,), daemon=True).start()
    stands("service", is_confined)


def powerful():
    """As unshare -r: somebody becomes root of a namespace, and of nothing else."""
    os.setgid(0)
    os.setuid(0)

    def has_power_here():
        if os.fork() == 0:
            try:
                call(libc.unshare(0x04000000))
                call(libc.sethostname(b"own", 3))
                os._exit(0)
            except AssertionError:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert libc.sethostname(b"own", 3) == -1

    stands("powerful", has_power_here)


open(f"{STAGE}/of-another", "w").close()
os.chown(f"{STAGE}/of-another", 5, 5)
with open(f"{STAGE}/secret", "w") as file:
    os.fchmod(file.fileno(), 0o600)
os.chown(f"{STAGE}/secret", 5, 5)
first = inside("0 0 1\n107 107 1", "0 0 1\n107 107 1", True, lambda: os.setgroups([7, 70]), service)


def nobody_special():
    os.setgroups([])
    os.setresgid(1000, 1000, 1000)
    os.setresuid(1000, 1000, 1000)
    # Its maps are for it to be seen as long as it can be looked at.
    call(libc.prctl(4, 1, 0, 0, 0))


second = inside("0 1000 1", "0 1000 1", True, nobody_special, powerful)
for name in ("service", "child", "powerful"):
    wait_for(f"{STAGE}/{name}")
kept = os.open(f"/proc/{first}/ns/user", os.O_RDONLY)


def check():
    spaces = [link(), link(first), link(second)]
    assert len(set(spaces)) == 3, spaces
    assert os.fstat(kept).st_ino == link(first)
    for name in ("service", "child", "powerful"):
        hear(name)
    children = open(f"/proc/{first}/task/{first}/children").read().split()
    assert [link(child) for child in children] == [link(first)]
    # Root of the guest has power over them, and their user has the namespace.
    os.kill(first, 0)


stand(check)
