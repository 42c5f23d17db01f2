box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
box.bind("/tmp/box")
os.chmod("/tmp/box", 0o777)
late = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
late.sendto(b"by nobody", "/tmp/box")
box.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
late.sendto(b"by root", "/tmp/box")


def another(words):
    """Sends as another user, and says which process that is."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for word in words:
        one.sendto(word, "/tmp/box")
    one.sendto(str(os.getpid()).encode(), "/tmp/box")
    return [one]


as_another(1000, 50, [], lambda: another([b"one", b"two"]))
child = os.fork()
if child == 0:
    late.sendto(b"by who is gone", "/tmp/box")
    os._exit(0)
os.waitpid(child, 0)
stream, other = socket.socketpair()
stream.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
other.send(b"first")
as_another(1001, 7, [], lambda: [other][: other.send(b"second")])


def next_of(one):
    message, ancillary, _, _ = one.recvmsg(100, 100, socket.MSG_DONTWAIT)
    [(_, kind, data)] = ancillary
    return message.decode(), struct.unpack("3i", data)


def answers():
    said = [next_of(box) for _ in range(6)]
    number = int(said[4][0])
    known = {number: "theirs", os.getpid(): "own", 0: "nobody's"}
    told = lambda word, who: [word if word != str(number) else "number", known.get(who[0], "gone"), *who[1:]]
    return {"box": [told(*one) for one in said], "stream": [told(*next_of(stream)) for _ in range(2)]}


answer(answers)
