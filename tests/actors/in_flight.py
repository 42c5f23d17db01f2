import array, fcntl, socket

own = STAGE + "/own"
KINDS = {"datagram": socket.SOCK_DGRAM, "stream": socket.SOCK_STREAM, "packet": socket.SOCK_SEQPACKET}


def pair(kind="stream"):
    return socket.socketpair(socket.AF_UNIX, KINDS[kind])


def send(one, data, *files, to=None):
    """Sends descriptors, and keeps none of them but those of sockets and files that the caller keeps."""
    numbers = [file if isinstance(file, int) else file.fileno() for file in files]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
    one.sendmsg([data], rights, 0, *([to] if to else []))


def gone(*numbers):
    for number in numbers:
        os.close(number)


def receive(one, room=100, flags=0):
    data, parts, _, _ = one.recvmsg(room, socket.CMSG_SPACE(4 * 253), flags | socket.MSG_DONTWAIT)
    numbers = array.array("i")
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(content)
    return data, list(numbers)


def opened(name, text):
    with open(f"{own}/{name}", "w") as file:
        file.write(text)
    return os.open(f"{own}/{name}", os.O_RDWR)


# Nobody holds what is sent here.
alone = pair("datagram")
file = opened("alone", "alone and read on")
os.lseek(file, 10, os.SEEK_SET)
fcntl.flock(file, fcntl.LOCK_EX)
reader, writer = os.pipe()
os.write(writer, b"in a pipe")
memory = os.memfd_create("flying")
os.write(memory, b"in memory")
event = os.eventfd(7)
deleted = opened("deleted", "deleted")
os.unlink(own + "/deleted")
listening = socket.socket()
listening.bind(("127.0.0.1", 7007))
listening.listen(3)
send(alone[0], b"all kinds", file, reader, writer, memory, event, deleted, listening, file)
gone(file, reader, writer, memory, event, deleted)
listening.close()

# A stream, with borders where descriptors belong.
stream = pair()
parts = [opened(f"part{number}", str(number)) for number in range(3)]
stream[0].sendall(b"before")
send(stream[0], b"two of them", parts[0], parts[1])
send(stream[0], b"x", parts[2])
stream[0].sendall(b"behind")
gone(*parts)

# One that is held, too, and its position is everybody's.
packets = pair("packet")
shared = opened("shared", "0123456789")
os.lseek(shared, 3, os.SEEK_SET)
send(packets[0], b"", shared)
send(packets[0], b"second", shared)

# A store as systemd has them: an empty datagram that was looked at before.
store = pair("datagram")
send(store[1], b"", opened("stored", "stored"))
data, numbers = receive(store[0], flags=socket.MSG_PEEK)
assert data == b"" and len(numbers) == 1
gone(*numbers)

# Sockets in flight that carry others, one of them itself.
outer, inner, circle = pair("datagram"), pair(), pair("datagram")
send(inner[0], b"innermost", opened("innermost", "innermost"))
send(outer[0], b"inner", inner[1])
inner[1].close()
send(circle[0], b"round", circle[1])

# A listener in flight, whose client waits.
letters = pair("packet")
server = socket.socket(socket.AF_UNIX)
server.bind("\0a flying listener")
server.listen(5)
client = socket.socket(socket.AF_UNIX)
client.connect("\0a flying listener")
send(letters[0], b"listener", server)
server.close()

# Whose senders are gone.
widow, sender = pair()
send(sender, b"last words", opened("last", "last"))
sender.sendall(b" and more")
sender.close()

# By a name, with credentials.
mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mailbox.bind(own + "/mailbox")
mailbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind(own + "/named")
send(named, b"by name", shared, to=own + "/mailbox")
nameless = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
send(nameless, b"nameless", opened("letter", "letter"), to=own + "/mailbox")
nameless.close()


def text(number):
    return os.pread(number, 100, 0).decode()


def check():
    data, numbers = receive(alone[1])
    assert (data, len(numbers)) == (b"all kinds", 8), (data, numbers)
    file, reader, writer, memory, event, deleted, listening, again = numbers
    assert os.read(file, 3) == b"rea" and os.read(again, 3) == b"d o", "one open file"
    assert os.readlink(f"/proc/self/fd/{file}") == own + "/alone"
    other = os.open(own + "/alone", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert False, "its lock is not held"
    except BlockingIOError:
        pass
    assert os.read(reader, 100) == b"in a pipe"
    os.write(writer, b"on")
    assert os.read(reader, 100) == b"on"
    os.close(writer)
    assert os.read(reader, 100) == b"", "nobody else has the other end"
    assert text(memory) == "in memory" and os.readlink(f"/proc/self/fd/{memory}") == "/memfd:flying (deleted)"
    assert os.eventfd_read(event) == 7
    assert text(deleted) == "deleted" and os.fstat(deleted).st_nlink == 0
    listening = socket.socket(fileno=listening)
    caller = socket.create_connection(("127.0.0.1", 7007))
    listening.accept()[0].sendall(b"hello")
    assert caller.recv(100) == b"hello"

    first = receive(stream[1], 6)
    assert first == (b"before", []), first
    data, numbers = receive(stream[1])
    assert (data, [text(one) for one in numbers]) == (b"two of them", ["0", "1"]), (data, numbers)
    data, numbers = receive(stream[1])
    assert (data, [text(one) for one in numbers]) == (b"x", ["2"]), (data, numbers)
    assert receive(stream[1]) == (b"behind", [])

    for wanted in (b"", b"second"):
        data, (number,) = receive(packets[1])
        assert data == wanted
        at = os.lseek(shared, 0, os.SEEK_CUR)
        os.read(number, 1)
        assert os.lseek(shared, 0, os.SEEK_CUR) == at + 1, "one position"
    assert at == 4

    for flags in (socket.MSG_PEEK, socket.MSG_PEEK, 0):
        data, (number,) = receive(store[0], flags=flags)
        assert (data, text(number)) == (b"", "stored")

    data, (number,) = receive(outer[1])
    through = socket.socket(fileno=number)
    data, (number,) = receive(through)
    assert (data, text(number)) == (b"innermost", "innermost")
    inner[0].sendall(b"connected")
    assert through.recv(100) == b"connected"
    data, (number,) = receive(circle[1])
    assert data == b"round" and os.path.sameopenfile(number, circle[1].fileno())

    data, (number,) = receive(letters[1])
    accepted, _ = socket.socket(fileno=number).accept()
    client.sendall(b"I waited")
    assert accepted.recv(100) == b"I waited"

    data, (number,) = receive(widow)
    assert (data, text(number)) == (b"last words", "last"), data
    assert widow.recv(100) == b" and more" and widow.recv(100) == b""

    data, parts, _, sender = mailbox.recvmsg(100, 1000)
    kinds = sorted(kind for _, kind, _ in parts)
    assert (data, sender, kinds) == (b"by name", own + "/named", [socket.SCM_RIGHTS, socket.SCM_CREDENTIALS]), parts
    (number,) = [array.array("i", content)[0] for _, kind, content in parts if kind == socket.SCM_RIGHTS]
    os.lseek(number, 9, os.SEEK_SET)
    assert os.read(shared, 1) == b"9", "one position"
    data, (number,) = receive(mailbox)
    assert (data, text(number)) == (b"nameless", "letter")


stand(check)
