import ctypes, socket

libc = ctypes.CDLL(None, use_errno=True)
NEW = 0x20000 | 0x08000000 | 0x40000000
own = STAGE + "/own"
PLACES = {"sysfs": own + "/sys", "mqueue": own + "/queues"}


def mount(source, target, kind, flags=0):
    assert libc.mount(source.encode(), target.encode(), kind.encode(), flags, b"") == 0, ctypes.get_errno()


def apart():
    """As services are of which systemd keeps the network, queues and mounts apart."""
    assert libc.unshare(NEW) == 0
    mount("none", "/", "", 1 << 14 | 1 << 18)
    for kind, place in PLACES.items():
        mount("none", place, kind, 2 | 4 | 8)


for place in (*PLACES.values(), own + "/again"):
    os.mkdir(place)
mine, its = socket.socketpair()
if os.fork() == 0:
    apart()
    assert os.path.exists(PLACES["sysfs"] + "/class/net/lo")
    its.sendall(b"ready")
    its.recv(10)
    try:
        for kind, place in PLACES.items():
            assert "nosuid" in [line for line in open("/proc/self/mounts") if f" {place} " in line][0]
            # Mounted once more, it is the same where it is of the namespaces that the process is in.
            mount("none", own + "/again", kind)
            assert os.stat(own + "/again").st_dev == os.stat(place).st_dev, kind
            libc.umount2((own + "/again").encode(), 2)
        assert os.listdir(PLACES["sysfs"] + "/class/net") == ["lo"] and os.listdir(PLACES["mqueue"]) == []
        said = b"right"
    except BaseException:
        said = traceback.format_exc().encode()
    its.sendall(said)
    lingers()
assert mine.recv(10) == b"ready"


def check():
    mine.sendall(b"now")
    said = mine.recv(10_000)
    assert said == b"right", said.decode()
    assert not any(os.listdir(place) for place in PLACES.values()), "they are seen there alone"


stand(check)
