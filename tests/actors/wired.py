# Connections of a guest with itself, by the address that is given: each kind says what it should be, and what it is, whenever /tmp/ask is there.
import ctypes, fcntl, os, socket, struct, sys, time

address, server_address = sys.argv[1], sys.argv[2]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server_family = socket.AF_INET6 if ":" in server_address else socket.AF_INET
if sys.argv[3:] == ["apart"]:
    # In a network namespace of its own, with nothing but the loopback device.
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sH22x", b"lo", 0x41))
LARGE = bytes(range(256)) * 600


def listener(backlog=8):
    found = socket.socket(server_family, socket.SOCK_STREAM)
    if server_family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    found.bind((server_address, 0))
    found.listen(backlog)
    return found


def connect(to):
    client = socket.socket(family, socket.SOCK_STREAM)
    client.connect((address, to.getsockname()[1]))
    client.settimeout(10)
    return client


def pair():
    near = connect(server)
    far, _ = server.accept()
    far.settimeout(10)
    return near, far


def all_of(end, length):
    data = b""
    while len(data) < length:
        piece = end.recv(length - len(data))
        if not piece:
            break
        data += piece
    return data


def names(end):
    return "%s %s" % (end.getsockname()[:2], end.getpeername()[:2])


def attempt(what):
    try:
        return str(what())
    except OSError as error:
        return error.strerror or str(error)


server = listener()
kinds = []


def kind(name, should, what):
    kinds.append((name, str(should), what))


# Nothing is on its way.
idle = pair()
idle[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
kind("names", names(idle[0]), lambda: names(idle[0]))
kind("names of the other end", names(idle[1]), lambda: names(idle[1]))
kind("an option", 1, lambda: idle[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
kind("the address of one cannot be bound again", 0, lambda: idle[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))


def talk():
    idle[0].sendall(b"there")
    idle[1].sendall(all_of(idle[1], 5)[::-1])
    return all_of(idle[0], 5)


kind("what is said is heard", b"ereht", talk)

# What was sent and not read, in both directions; more than one end takes.
unread = pair()
unread[0].sendall(b"short")
unread[1].sendall(b"and back")
kind("unread", (b"short", b"and back"), lambda: (all_of(unread[1], 5), all_of(unread[0], 8)))
full = pair()
full[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
full[0].settimeout(0.2)
full_length = 0
try:
    while full_length < 1 << 20:
        full_length += full[0].send(LARGE)
except OSError:
    pass
full_data = (LARGE * (full_length // len(LARGE) + 1))[:full_length]


def drain():
    read = all_of(full[1], full_length)
    full[0].sendall(b"more")
    return read == full_data and all_of(full[1], 4)


kind("more than the other end takes", b"more", drain)

# One direction has ended, or one end is closed.
half = pair()
half[0].sendall(b"bye")
half[0].shutdown(socket.SHUT_WR)


def answer():
    heard = all_of(half[1], 9)
    half[1].sendall(b"so long")
    return heard, all_of(half[0], 7)


kind("one that has said all", (b"bye", b"so long"), answer)
closed = pair()
closed[0].sendall(b"last words")
closed[0].close()
kind("one whose other end is closed", b"last words", lambda: all_of(closed[1], 99))

# Nobody has accepted it.
quiet_server, loud_server = listener(), listener()
quiet, loud = connect(quiet_server), connect(loud_server)
loud.sendall(b"early")
quiet_server.settimeout(10)
loud_server.settimeout(1)


def accept():
    quiet.sendall(b"now")
    accepted, _ = quiet_server.accept()
    return all_of(accepted, 3)


kind("one that waits to be accepted", b"now", accept)


def accept_loud():
    accepted, _ = loud_server.accept()
    return all_of(accepted, 5)


kind("one that waits to be accepted and has sent something", b"early", accept_loud)

# A pool: processes of which one asks and one answers all the time.
pool = pair()
if os.fork() == 0:
    pool[0].close()
    while True:
        question = pool[1].recv(8)
        if not question:
            os._exit(0)
        pool[1].sendall(question)
if os.fork() == 0:
    pool[1].close()
    turn = 0
    try:
        while True:
            turn += 1
            pool[0].sendall(b"%08d" % turn)
            heard = all_of(pool[0], 8)
            if heard != b"%08d" % turn:
                raise OSError(0, "heard %r" % heard)
            with open("/tmp/turn.new", "w") as file:
                file.write(str(turn))
            os.rename("/tmp/turn.new", "/tmp/turn")
            time.sleep(0.002)
    except OSError as error:
        with open("/tmp/pool", "w") as file:
            file.write("after %d turns: %s" % (turn, error))
        os._exit(1)


def goes_on():
    begun = int(open("/tmp/turn").read())
    while not os.path.exists("/tmp/pool"):
        if int(open("/tmp/turn").read()) > begun + 3:
            return "goes on"
        time.sleep(0.05)
    return open("/tmp/pool").read()


kind("a pool", "goes on", goes_on)

while not os.path.exists("/tmp/turn"):
    time.sleep(0.05)
open("/tmp/up", "w").write("up")
while not os.path.exists("/tmp/ask"):
    time.sleep(0.05)
with open("/tmp/said.new", "w") as file:
    for name, should, what in kinds:
        file.write("%s\t%s\t%s\n" % (name, should, attempt(what)))
os.rename("/tmp/said.new", "/tmp/said")
while True:
    time.sleep(1)
