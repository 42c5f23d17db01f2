# What a program sees of the network, in many small named checks: one line each, "NAME: RESULT".
# Usage: conformance.py A1 A2 B1 B2 OUT4 OUT6: two addresses of each family, and those of the machine outside, where mirror.py runs.
# It is run on a machine that has just these addresses, and in guests that own them. Addresses are printed by these names.
import errno, itertools, os, select, socket, struct, sys

A1, A2, B1, B2, OUT4, OUT6 = sys.argv[1:7]
NAMES = {A1: "A1", A2: "A2", B1: "B1", B2: "B2", OUT4: "OUT", OUT6: "OUT", "0.0.0.0": "ANY", "::": "ANY"}
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
ports = itertools.count(2000)

def named(address):
    ip = address[0].removeprefix("::ffff:")
    return NAMES.get(ip, ip)

def check(name, show):
    try:
        result = show()
    except OSError as error:
        result = "timed out" if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno, str(error))
    print(f"{name}: {result}", flush=True)
    return result

def make(kind, ip, timeout=10.0):
    made = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, kind)
    made.settimeout(timeout)
    return made

# Where a server may be bound: name, address, whether it takes IPv4 too.
PLACES = [("any4", "0.0.0.0", False), ("dual", "::", True), ("only6", "::", False), ("lo4", "127.0.0.1", False), ("lo4b", "127.0.0.2", False),
          ("lo6", "::1", False), ("A1", A1, False), ("A2", A2, False), ("B1", B1, False), ("B2", B2, False), ("mapped", "::ffff:" + A2, True)]
TARGETS = [("lo4", "127.0.0.1"), ("lo4b", "127.0.0.2"), ("zero", "0.0.0.0"), ("lo6", "::1"), ("A1", A1), ("A2", A2), ("B1", B1), ("B2", B2)]

def bound(kind, place, port, *options):
    _, ip, dual = place
    made = make(kind, ip)
    if ":" in ip:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
    for option in options:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    made.bind((ip, port))
    if kind == TCP:
        made.listen(64)
    return made

def mirror(out=OUT4):
    line = socket.create_connection((out, 7), timeout=10).makefile("rw")
    def ask(request):
        line.write(request + "\n")
        line.flush()
        return line.readline().strip()
    return ask

def tcp_inside(server, ip, port):
    with make(TCP, ip) as client:
        client.connect((ip, port))
        accepted, peer = server.accept()
        with accepted:
            return f"{named(client.getsockname())} to {named(client.getpeername())}, seen as {named(peer)} to {named(accepted.getsockname())}"

def taken(server, client):
    """Waits for a datagram's arrival or for its failure, whichever is seen first."""
    if server not in select.select([server, client], [], [], 10)[0]:
        client.recv(10)
    return server.recvfrom(10)[1]

def udp_inside(server, ip, port):
    with make(UDP, ip) as client:
        client.connect((ip, port))
        client.send(b"x")
        peer = taken(server, client)
        server.sendto(b"y", peer)
        answer = "answered" if select.select([client], [], [], 0.3)[0] else "answered by another"
        return f"{named(client.getsockname())} to {named(client.getpeername())}, seen as {named(peer)}, {answer}"

def udp_unconnected(server, ip, port):
    with make(UDP, ip) as client:
        client.sendto(b"x", (ip, port))
        _, peer = server.recvfrom(10)
        server.sendto(b"y", peer)
        _, answered = client.recvfrom(10)
        return f"seen as {named(peer)}, answered by {named(answered)}"

def reaching():
    for kind, kind_name in ((TCP, "tcp"), (UDP, "udp")):
        for place in PLACES:
            port = next(ports)
            with bound(kind, place, port) as server:
                check(f"{kind_name} at {place[0]} calls itself", lambda: named(server.getsockname()))
                for target, ip in TARGETS:
                    inside = tcp_inside if kind == TCP else udp_inside
                    result = check(f"{kind_name} at {place[0]} reached at {target}", lambda: inside(server, ip, port))
                    if kind == UDP and "seen as" in result:
                        check(f"udp at {place[0]} reached unconnected at {target}", lambda: udp_unconnected(server, ip, port))

def from_outside():
    ask = mirror()
    for place in PLACES:
        for target, ip in TARGETS[4:]:
            port = next(ports)
            with bound(TCP, place, port) as server:
                check(f"tcp at {place[0]} reached from outside at {target}", lambda: knocked_tcp(ask, server, ip, port))
            with bound(UDP, place, port) as server:
                check(f"udp at {place[0]} reached from outside at {target}", lambda: knocked_udp(ask, server, ip, port, 10))

def knocked_tcp(ask, server, ip, port):
    child = os.fork()
    if not child:
        try:
            accepted, peer = server.accept()
            accepted.send(f"{named(peer)} to {named(accepted.getsockname())}".encode())
            accepted.close()
        finally:
            os._exit(0)
    answer = ask(f"tcp {ip} {port}")
    os.kill(child, 9)
    os.waitpid(child, 0)
    return answer

def knocked_udp(ask, server, ip, port, size):
    child = os.fork()
    if not child:
        try:
            # Ends with its parent's patience: where nobody is reached, nothing comes.
            data, peer = server.recvfrom(65536)
            server.sendto(data[:size // 2], peer)
        finally:
            os._exit(0)
    answer = ask(f"udp {ip} {port} {size}")
    os.kill(child, 9)
    os.waitpid(child, 0)
    *rest, sender = answer.split(" from ")
    return f"{rest[0]} from {NAMES.get(sender, sender)}" if rest else answer

def fragments():
    ask = mirror()
    for place, target in itertools.product(PLACES[:3] + PLACES[6:10], TARGETS[4:]):
        port = next(ports)
        with bound(UDP, place, port) as server:
            check(f"20,000 bytes to udp at {place[0]} at {target[0]}", lambda: knocked_udp(ask, server, target[1], port, 20000))

def to_outside():
    def source(kind, out, bind=None, only6=False):
        with make(kind, out) as client:
            if only6:
                client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if bind is not None:
                client.bind((bind, 0))
            client.connect((out, 7))
            client.send(b"who\n")
            return f"seen as {NAMES.get(client.recv(100).decode().strip())}, calls itself {named(client.getsockname())}"
    def unconnected(out, bind=None, cmsg=()):
        with make(UDP, out) as client:
            if bind is not None:
                client.bind((bind, 0))
            client.sendmsg([b"x"], cmsg, 0, (out, 7))
            return f"seen as {NAMES.get(client.recv(100).decode())}"
    info4 = lambda ip: [(socket.IPPROTO_IP, 8, struct.pack("=I4s4s", 0, socket.inet_aton(ip), b"\0" * 4))]
    info6 = lambda ip: [(socket.IPPROTO_IPV6, 50, struct.pack("=16sI", socket.inet_pton(socket.AF_INET6, ip), 0))]
    for out, version, any_, second, info in ((OUT4, 4, "0.0.0.0", A2, info4), (OUT6, 6, "::", B2, info6)):
        for kind, kind_name in ((TCP, "tcp"), (UDP, "udp")):
            check(f"{kind_name}{version} to outside", lambda: source(kind, out))
            check(f"{kind_name}{version} to outside from ANY", lambda: source(kind, out, any_))
            check(f"{kind_name}{version} to outside from the second address", lambda: source(kind, out, second))
        if version == 6:
            check("tcp6 to outside from ANY of IPv6 alone", lambda: source(TCP, out, any_, True))
            check("udp6 to outside from ANY of IPv6 alone", lambda: source(UDP, out, any_, True))
        check(f"udp{version} to outside unconnected", lambda: unconnected(out))
        check(f"udp{version} to outside unconnected from ANY", lambda: unconnected(out, any_))
        check(f"udp{version} to outside unconnected from the second address", lambda: unconnected(out, second))
        check(f"udp{version} to outside by packet information", lambda: unconnected(out, None, info(second)))
        check(f"udp{version} to outside from ANY by packet information", lambda: unconnected(out, any_, info(second)))
        check(f"udp{version} to outside by packet information of another machine", lambda: unconnected(out, None, info(out)))
        check(f"udp{version} bind to another machine's address", lambda: make(UDP, out).bind((out, 0)))
        check(f"tcp{version} bind to another machine's address", lambda: make(TCP, out).bind((out, 0)))

def conflicts():
    for kind, kind_name in ((TCP, "tcp"), (UDP, "udp")):
        for first, second in itertools.product(PLACES, PLACES):
            port = next(ports)
            with bound(kind, first, port):
                check(f"{kind_name} at {first[0]} and then {second[0]}", lambda: bound(kind, second, port).close())

def same_port():
    for place in PLACES[:3]:
        port = next(ports)
        ip = "::1" if place[0] == "only6" else "127.0.0.1"
        with bound(TCP, place, port, socket.SO_REUSEPORT) as one, bound(TCP, place, port, socket.SO_REUSEPORT) as other:
            def spread():
                clients = [socket.create_connection((ip, port), timeout=2) for _ in range(60)]
                got = [0, 0]
                for number, server in enumerate((one, other)):
                    server.settimeout(0.3)
                    try:
                        while True:
                            server.accept()
                            got[number] += 1
                    except TimeoutError:
                        pass
                return f"{sum(got)} of {len(clients)}, both served: {all(got)}"
            check(f"two servers at {place[0]} by SO_REUSEPORT", spread)

def time_wait():
    for place, (target, ip) in itertools.product(PLACES[:3] + PLACES[6:7], (TARGETS[0], TARGETS[3], TARGETS[4], TARGETS[5], TARGETS[7])):
        port, source = next(ports), next(ports)
        with bound(TCP, place, port) as server:
            def twice():
                for _ in range(2):
                    with make(TCP, ip) as client:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        if ":" in ip:
                            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                        client.bind(("::" if ":" in ip else "0.0.0.0", source))
                        client.connect((ip, port))
                        accepted, _ = server.accept()
                        # The server closes first: its side is the one that waits.
                        accepted.close()
                        client.recv(1)
                return "twice"
            check(f"tcp at {place[0]} again from the same port to {target}", twice)

def oddities():
    def unbound_listener(ip):
        with make(TCP, ip) as server:
            server.listen()
            return tcp_inside(server, ip, server.getsockname()[1])
    for target, ip in TARGETS:
        if ip != "0.0.0.0":
            check(f"listen without bind, reached at {target}", lambda: unbound_listener(ip))
    def asked_back():
        with make(UDP, A1) as server, make(UDP, A1) as client:
            server.bind((A1, 0))
            client.sendto(b"x", server.getsockname())
            return f"{named(client.getsockname())}, seen as {named(server.recvfrom(10)[1])}"
    check("udp that sent before it bound calls itself", asked_back)
    def reused():
        with make(UDP, A1) as server, make(UDP, A1) as client:
            server.bind((A1, 0))
            client.sendto(b"x", server.getsockname())
            client.connect(server.getsockname())
            return named(client.getsockname())
    check("udp that sent and then connects", reused)
    def released():
        with make(UDP, A1) as server, make(UDP, A1) as client:
            server.bind((A1, 0))
            client.connect(server.getsockname())
            libc_connect_unspec(client)
            return named(client.getsockname())
    check("udp that let its peer go calls itself", released)
    def told(connected):
        with make(UDP, A1, 1) as client:
            client.setsockopt(socket.IPPROTO_IP, 11, 1)
            client.connect((A1, next(ports))) if connected else None
            client.send(b"x") if connected else client.sendto(b"x", (A1, next(ports)))
            return client.recv(10)
    check("udp with a peer is told that nobody is there", lambda: told(True))
    check("udp without a peer is told that nobody is there", lambda: told(False))
    def low(user):
        child = os.fork()
        if not child:
            code = 0
            try:
                if user:
                    os.setuid(user)
                make(TCP, A1).bind((A1, 81))
            except OSError as error:
                code = error.errno
            os._exit(code)
        return errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "bound")
    check("root binds port 81", lambda: low(0))
    check("a user binds port 81", lambda: low(1))
    def seen_destination(ip):
        with make(UDP, ip) as server, make(UDP, ip) as client:
            server.setsockopt(socket.IPPROTO_IP, 8, 1)
            server.bind(("0.0.0.0", 0))
            client.sendto(b"x", (ip, server.getsockname()[1]))
            _, more, _, _ = server.recvmsg(10, 100)
            return named((socket.inet_ntoa(more[0][2][8:12]),))
    check("packet information of a datagram to A2", lambda: seen_destination(A2))
    check("packet information of a datagram to 127.0.0.1", lambda: seen_destination("127.0.0.1"))

def libc_connect_unspec(sock):
    import ctypes
    ctypes.CDLL(None, use_errno=True).connect(sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16)

PARTS = [reaching, from_outside, fragments, to_outside, conflicts, same_port, time_wait, oddities]
chosen = sys.argv[7:] or [part.__name__ for part in PARTS]
for part in PARTS:
    if part.__name__ in chosen:
        part()
