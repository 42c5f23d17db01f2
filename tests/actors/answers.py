# What stands before a program that is asked in a guest, and again in its clones, what the kernel answers it.
import json, os, socket, struct, time

asked = set()


def answer(answers):
    """Says what it was answered, each time that it is asked: by a file that is named for the guest."""
    open("/tmp/up", "w").write("up")
    while True:
        for name in os.listdir("/tmp"):
            if name.startswith("ask.") and name not in asked:
                asked.add(name)
                open("/tmp/writing", "w").write(json.dumps(answers(), sort_keys=True))
                os.rename("/tmp/writing", "/tmp/said." + name[4:])
        time.sleep(0.01)


def as_another(user, group, further, act):
    """Does something as a process of somebody else's, which stays. What sockets it makes this process has too."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        os.setgroups(further)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        kept = act()
        socket.send_fds(other, [b"x"], [each.fileno() for each in kept])
        while True:
            time.sleep(1000)
    _, numbers, _, _ = socket.recv_fds(one, 1, 16)
    return [socket.socket(fileno=number) for number in numbers]


def acting_as(user, group, act):
    """Does something with somebody else's effective ids."""
    os.setresgid(-1, group, -1)
    os.setresuid(-1, user, -1)
    acted = act()
    os.setresuid(-1, 0, -1)
    os.setresgid(-1, 0, -1)
    return acted
