def tcp(inline):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    one = socket.create_connection(listener.getsockname())
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other, _ = listener.accept()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
    return one, other


pairs = [[tcp(0)], [tcp(1)], [socket.socketpair()]]
for [(one, _)] in pairs:
    one.send(b"abc")
    try:
        one.send(b"!", socket.MSG_OOB)
    except OSError:
        # The kernel was built without it for unix sockets.
        pass
    one.send(b"def")
time.sleep(0.3)


def drained(other):
    said = b""
    while True:
        try:
            said += other.recv(20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return said.decode()


def answers():
    """Receives what waits in one of them, if anything still does."""
    if pairs:
        [(one, other)] = pairs.pop()
        kept.append((one, other))
        return {"said": drained(other)}
    for one, other in kept:
        one.send(b"more")
    time.sleep(0.3)
    return {"said": "".join(drained(other) for _, other in kept)}


kept = []
answer(answers)
