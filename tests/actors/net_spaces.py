import array, ctypes, fcntl, socket, struct

libc = ctypes.CDLL(None, use_errno=True)
NEW = 0x40000000
own = STAGE + "/own"


def flags(up=None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        if up:
            fcntl.ioctl(one, 0x8914, struct.pack("16sH22x", b"lo", 0x41))
        return struct.unpack("16xH22x", fcntl.ioctl(one, 0x8913, struct.pack("16s24x", b"lo")))[0] & 1


def space(pid="self"):
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def of_socket(one):
    """The network namespace that a socket belongs to."""
    number = fcntl.ioctl(one, 0x894C)
    found = os.fstat(number).st_ino
    os.close(number)
    return found


def unix(name=None, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    if name:
        one.bind(name)
        if kind == socket.SOCK_STREAM:
            one.listen()
    return one


def child(act):
    """A child that says when it has done something, and does more when it is asked."""
    mine, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        asked = act(its)
        its.sendall(b"ready")
        while True:
            its.recv(100)
            try:
                asked()
                said = b"right"
            except BaseException:
                said = traceback.format_exc().encode()
            its.sendall(said)
    its.close()
    return pid, mine


def lonely(_):
    assert libc.unshare(NEW) == 0
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    one.bind((0, 0))

    def asked():
        assert flags() == 0 and [name for _, name in socket.if_nameindex()] == ["lo"]
        assert of_socket(one) == space()

    return asked


def serving(its):
    before = unix("\0made before")
    assert libc.unshare(NEW) == 0
    flags(up=True)
    server, name, path = socket.create_server(("127.0.0.1", 7000)), unix("\0same name"), unix(own + "/path")
    packets = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    packets.bind(("::1", 7001))
    client = unix()
    client.connect("\0same name")
    served, _ = name.accept()
    client.sendall(b"queued")
    # For one outside of this namespace.
    given = unix("\0given", socket.SOCK_DGRAM)
    socket.send_fds(its, [b"x"], [given.fileno()])

    def asked():
        assert flags() == 1
        assert of_socket(before) != space()
        assert {of_socket(one) for one in (server, name, path, packets, client, served)} == {space()}
        assert served.recv(100) == b"queued" and served.getsockname() == b"\0same name"
        with socket.create_connection(("127.0.0.1", 7000)) as caller:
            server.accept()[0].sendall(b"hello")
            assert caller.recv(100) == b"hello"
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"packet", ("::1", 7001))
        assert packets.recv(100) == b"packet"
        caller = unix()
        caller.connect("\0same name")
        name.accept()[0].sendall(b"inner")
        assert caller.recv(100) == b"inner"
        unix(kind=socket.SOCK_DGRAM).sendto(b"to another", "\0given")
        through, _ = path.accept()
        through.sendall(b"across")

    return asked


outer = unix("\0same name")
first, ask_first = child(lonely)
assert ask_first.recv(100) == b"ready"
second, ask_second = child(serving)
_, (given,), _, _ = socket.recv_fds(ask_second, 1, 1)
given = socket.socket(fileno=given)
assert ask_second.recv(100) == b"ready"
waiting = unix()
waiting.connect(own + "/path")


def check():
    assert len({space(), space(first), space(second)}) == 3
    assert flags() == 1 and of_socket(outer) == of_socket(waiting) == space()
    assert of_socket(given) == space(second)
    for ask in (ask_first, ask_second):
        ask.sendall(b"now")
        said = ask.recv(10_000)
        assert said == b"right", said.decode()
    assert waiting.recv(100) == b"across"
    assert given.recv(100) == b"to another"
    caller = unix()
    caller.connect("\0same name")
    outer.accept()[0].sendall(b"outer")
    assert caller.recv(100) == b"outer"


stand(check)
