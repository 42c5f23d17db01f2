import select, socket, struct

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
listener.bind(("127.0.0.1", 0))
listener.listen(7)
six = socket.socket(socket.AF_INET6)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
six.bind(("::", 0))
six.listen()
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.sendall(b"unread")
waits = socket.create_connection(listener.getsockname())
waited, _ = listener.accept()
bound = socket.socket()
bound.bind(("127.0.0.1", 0))
fresh = socket.socket()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 0))
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect(("127.0.0.1", udp.getsockname()[1]))
udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
events.bind((0, 1))
poll = select.epoll()
poll.register(listener, select.EPOLLIN)
poll.register(udp, select.EPOLLIN)
names = [one.getsockname() for one in (listener, six, bound, udp, peer)]
here = os.stat("/proc/self/ns/pid").st_ino
child = os.fork()
if child == 0:
    # Waits inside the call for what never comes in a clone.
    try:
        waited.recv(1)
    except ConnectionResetError:
        os._exit(7)
    os._exit(8)


def check():
    assert [one.getsockname() for one in (listener, six, bound, udp, peer)] == names
    new = socket.create_connection(names[0])
    assert poll.poll(5) == [(listener.fileno(), select.EPOLLIN)]
    got, _ = listener.accept()
    new.sendall(b"hello")
    assert got.recv(10) == b"hello"
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 200_000
    other = socket.create_connection(("::1", names[1][1]))
    six.accept()
    try:
        socket.create_connection(("127.0.0.1", names[1][1]))
        assert False, "it is for IPv6 only"
    except ConnectionRefusedError:
        pass
    bound.listen()
    socket.create_connection(bound.getsockname())
    fresh.connect(names[0])
    peer.send(b"datagram")
    assert udp.recvfrom(100) == (b"datagram", ("127.0.0.1", names[4][1]))
    assert udp.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1
    assert events.getsockname()[1] == 1
    if os.stat("/proc/self/ns/pid").st_ino == here:
        assert server.recv(10) == b"unread"
        waits.sendall(b"x")
    else:
        for one in (client, server):
            fails(ConnectionResetError, one.recv, 10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (8 if os.stat("/proc/self/ns/pid").st_ino == here else 7)


stand(check)
