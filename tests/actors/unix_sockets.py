import socket, stat, struct

own = STAGE + "/own"
at = own + "/server"


def pair(kind=socket.SOCK_STREAM):
    return socket.socketpair(socket.AF_UNIX, kind)


streams = pair()
streams[0].sendall(b"first ")
streams[0].sendall(b"and second")
streams[1].sendall(b"z" * 150_000)
packets = pair(socket.SOCK_SEQPACKET)
for message in (b"one", b"two"):
    packets[0].send(message)
widow, gone = pair()
gone.sendall(b"last words")
gone.close()
half = pair()
half[0].sendall(b"the end")
half[0].shutdown(socket.SHUT_WR)
shared = pair()
listener = socket.socket(socket.AF_UNIX)
listener.bind(at)
os.chmod(at, 0o640)
os.chown(at, 7, 8)
listener.listen(5)
client = socket.socket(socket.AF_UNIX)
client.bind(own + "/client")
client.connect(at)
accepted, _ = listener.accept()
client.sendall(b"to the server")
# What it has sent waits where nobody can look before it is accepted.
eager = socket.socket(socket.AF_UNIX)
eager.connect(at)
eager.sendall(b"unheard")
pending = socket.socket(socket.AF_UNIX)
pending.connect(at)
# And it does not wait for an answer, as some do.
bearer = socket.socket(socket.AF_UNIX)
bearer.connect(at)
socket.send_fds(bearer, [b"x"], [0])
bearer.shutdown(socket.SHUT_WR)
here = os.stat("/proc/self/ns/pid").st_ino
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0an abstract name")
abstract.listen()
caller = socket.socket(socket.AF_UNIX)
caller.connect("\0an abstract name")
answered, _ = abstract.accept()
os.chdir(own)
relative = socket.socket(socket.AF_UNIX)
relative.bind("beside")
relative.listen()
lost = socket.socket(socket.AF_UNIX)
lost.bind(own + "/lost")
lost.listen()
os.unlink(own + "/lost")
open(own + "/lost", "w").write("another's file")
mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mailbox.bind(own + "/mailbox")
mailbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.bind(own + "/sender")
sender.sendto(b"signed", own + "/mailbox")
nameless = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
nameless.connect(own + "/mailbox")
nameless.send(b"unsigned")
nameless.send(b"")
dead_letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other.bind(own + "/other")
dead_letters.connect(own + "/other")
other.close()
streams[0].setblocking(False)
streams[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("2q", 7, 0))
if os.fork() == 0:
    shared[0].close()
    while True:
        # Most of the time it is inside this call.
        shared[1].sendall(b"<" + shared[1].recv(100) + b">")


def everything(one, length):
    said = b""
    while len(said) < length:
        said += one.recv(length)
    return said


def check():
    assert streams[1].recv(100) == b"first and second"
    assert everything(streams[0], 150_000) == b"z" * 150_000
    try:
        streams[0].recv(1)
        assert False, "it does not wait"
    except BlockingIOError:
        pass
    assert struct.unpack("2q", streams[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)) == (7, 0)
    assert [packets[1].recv(100) for _ in range(2)] == [b"one", b"two"]
    assert widow.recv(100) == b"last words" and widow.recv(100) == b""
    try:
        widow.send(b"x", socket.MSG_NOSIGNAL)
        assert False, "nobody is there"
    except BrokenPipeError:
        pass
    assert half[1].recv(100) == b"the end" and half[1].recv(100) == b""
    half[1].sendall(b"still")
    assert half[0].recv(100) == b"still"
    shared[0].sendall(b"ping")
    assert everything(shared[0], 6) == b"<ping>"
    # Listeners and what they have accepted.
    found = os.stat(at)
    assert stat.S_ISSOCK(found.st_mode) and (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o640, 7, 8), found
    assert accepted.recv(100) == b"to the server"
    accepted.sendall(b"to the client")
    assert client.recv(100) == b"to the client"
    assert (accepted.getsockname(), accepted.getpeername()) == (at, own + "/client")
    assert client.getpeername() == at and listener.getsockname() == at
    if os.stat("/proc/self/ns/pid").st_ino == here:
        heard, _ = listener.accept()
        assert heard.recv(100) == b"unheard"
        heard.sendall(b"heard")
        assert eager.recv(100) == b"heard"
    else:
        for one in (eager, bearer):
            fails(ConnectionResetError, one.recv, 100)
            assert one.recv(100) == b""
    first, _ = listener.accept()
    pending.sendall(b"I waited")
    assert first.recv(100) == b"I waited"
    if os.stat("/proc/self/ns/pid").st_ino == here:
        last, _ = listener.accept()
        assert socket.recv_fds(last, 100, 5)[0] == b"x"
    for name, server in ((at, listener), ("\0an abstract name", abstract), ("beside", relative)):
        new = socket.socket(socket.AF_UNIX)
        new.connect(name)
        served, _ = server.accept()
        served.sendall(b"hello")
        assert new.recv(100) == b"hello", name
    caller.sendall(b"abstract")
    assert answered.recv(100) == b"abstract" and answered.getsockname() == b"\0an abstract name"
    assert relative.getsockname() == "beside"
    assert lost.getsockname() == own + "/lost" and open(own + "/lost").read() == "another's file"
    # Datagrams.
    assert mailbox.recvfrom(100) == (b"signed", own + "/sender")
    assert mailbox.recv(100) == b"unsigned" and mailbox.recv(100) == b""
    nameless.send(b"more")
    message, ancillary, _, _ = mailbox.recvmsg(100, 100)
    assert message == b"more" and struct.unpack("3i", ancillary[0][2])[0] == os.getpid(), ancillary
    try:
        dead_letters.send(b"x")
        assert False, "nobody is there"
    except ConnectionRefusedError:
        pass


stand(check)
