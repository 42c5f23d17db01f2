SO_PEERGROUPS = 59


def peer(one):
    _, user, group = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        further = one.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 64)
    except OSError:
        return [user, group, None]
    return [user, group, list(struct.unpack(f"{len(further) // 4}i", further))]


def listens(name, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(name)
    if name[0] != "\0":
        os.chmod(name, 0o777)
    one.listen(5)
    return one


def client(name, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    one.connect(name)
    return one


os.makedirs("/tmp/w")
os.chmod("/tmp/w", 0o777)
all = {}
roots = listens("/tmp/w/roots")
for user, group, further in ((1000, 1000, [7, 9]), (1001, 50, []), (0, 0, []), (0, 5, [6])):
    [all[f"client {user} {group}"]] = as_another(user, group, further, lambda: [client("/tmp/w/roots")])
    all[f"accepted {user} {group}"], _ = roots.accept()
[theirs] = as_another(1001, 1001, [3], lambda: [listens("\0theirs", socket.SOCK_SEQPACKET)])
all["their client"] = client("\0theirs", socket.SOCK_SEQPACKET)
all["their accepted"], _ = theirs.accept()
all["their listener"] = theirs
# Whoever takes over a listener.
taken = listens("/tmp/w/taken")
all["client before"] = client("/tmp/w/taken")
all["accepted before"], _ = taken.accept()
acting_as(33, 44, lambda: taken.listen(6))
all["client after"] = client("/tmp/w/taken")
all["accepted after"], _ = taken.accept()
all["listener after"] = taken
# Listeners that are gone: their names are there or not.
for name in ("/tmp/w/stays", "/tmp/w/goes", "\0gone"):
    gone = acting_as(1000, 50, lambda: listens(name))
    [all[f"client of {name[1:]}"]] = as_another(1001, 1001, [2], lambda: [client(name)])
    all[f"accepted by {name[1:]}"], _ = gone.accept()
    gone.close()
os.unlink("/tmp/w/goes")
all["one of a pair"], all["other of a pair"] = as_another(1000, 1000, [8], lambda: socket.socketpair())
kind = socket.SOCK_DGRAM
all["one for datagrams"], all["other for datagrams"] = as_another(1000, 1000, [8], lambda: socket.socketpair(type=kind))
all["alone"], gone = acting_as(1001, 0, lambda: socket.socketpair())
gone.close()
named = socket.socket(socket.AF_UNIX, kind)
named.bind("/tmp/w/datagrams")
all["by a name"] = socket.socket(socket.AF_UNIX, kind)
all["by a name"].connect("/tmp/w/datagrams")
# Some wait, and it is who accepts them that asks.
busy = listens("/tmp/w/busy")
waiting = as_another(1000, 1000, [7, 9], lambda: [client("/tmp/w/busy")])
waiting.append(client("/tmp/w/busy"))
# What let them in lets nobody in any more.
for name in ("roots", "taken", "stays", "busy", "."):
    os.chmod("/tmp/w/" + name, 0o700)


def answers():
    said = {name: peer(one) for name, one in all.items()}
    for number, one in enumerate(waiting):
        accepted, _ = busy.accept()
        said[f"accepted late {number}"], said[f"waited {number}"] = peer(accepted), peer(one)
    said["own"] = [os.getresuid(), os.getresgid(), os.getgroups()]
    said["files"] = [os.stat("/tmp/w/" + name).st_uid for name in ("roots", "stays")]
    return said


answer(answers)
