# The machine outside: tells whoever connects what it sees of them, and knocks at their doors.
# One line in, one line out: "who", "tcp IP PORT" and "udp IP PORT SIZE" (knocks, and tells what answered).
import socket, sys, threading

def name(address):
    return address[0].removeprefix("::ffff:")

def family(ip):
    return socket.AF_INET6 if ":" in ip else socket.AF_INET

def knock(words):
    ip, port = words[1], int(words[2])
    kind = socket.SOCK_STREAM if words[0] == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family(ip), kind) as door:
        door.settimeout(10)
        if words[0] == "tcp":
            door.connect((ip, port))
            return door.recv(100).decode() or "closed"
        # Without it nothing tells that nobody is there.
        level, option = (socket.IPPROTO_IPV6, 25) if ":" in ip else (socket.IPPROTO_IP, 11)
        door.setsockopt(level, option, 1)
        door.sendto(b"x" * int(words[3]), (ip, port))
        answer, sender = door.recvfrom(65536)
        return f"{len(answer)} bytes from {name(sender)}"

def serve(client, peer):
    with client, client.makefile("rw") as line:
        for request in line:
            words = request.split()
            try:
                answer = name(peer) if words[0] == "who" else knock(words)
            except OSError as error:
                answer = "timed out" if isinstance(error, TimeoutError) else error.strerror
            line.write(answer + "\n")
            line.flush()

def datagrams(box):
    while True:
        _, sender = box.recvfrom(65536)
        box.sendto(name(sender).encode(), sender)

listener = socket.create_server(("::", 7), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
box = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
box.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
box.bind(("::", 7))
threading.Thread(target=datagrams, args=(box,), daemon=True).start()
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept(), daemon=True).start()
