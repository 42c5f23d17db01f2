import signal

record = {}


def note(name):
    say(f"tree.{name}", f"{os.getpid()} {os.getppid()} {os.getpgid(0)} {os.getsid(0)}")


def read(name):
    while not os.path.exists(f"{STAGE}/tree.{name}"):
        time.sleep(0.01)
    return [int(word) for word in open(f"{STAGE}/tree.{name}").read().split()]


def child(name, body):
    pid = os.fork()
    if pid == 0:
        body()
        note(name)
        lingers()
    return pid


def leads():
    child("early", lambda: None)
    os.setsid()
    # The group is there before its member joins.
    child("late", lambda: (os.setpgid(0, 0), child("member", lambda: os.setpgid(0, os.getppid()))))


def orphan():
    if os.fork() == 0:
        time.sleep(0.1)
        note("orphan")
        lingers()
    os._exit(0)


os.setsid()
child("group", lambda: os.setpgid(0, 0))
child("leads", leads)
dead = os.fork()
if dead == 0:
    orphan()
os.waitpid(dead, 0)
zombie = os.fork()
if zombie == 0:
    os._exit(42)
killed = os.fork()
if killed == 0:
    os.kill(os.getpid(), signal.SIGKILL)
names = ["group", "leads", "early", "late", "member", "orphan"]
before = {name: read(name) for name in names}
time.sleep(0.2)


def check():
    for name, (pid, parent, group, session) in before.items():
        stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        found = [pid] + [int(word) for word in stat[1:4]]
        if name == "orphan":
            assert found[1] == 1, found
            parent = 1
        assert found == [pid, parent, group, session], (name, found, before[name])
    assert os.waitstatus_to_exitcode(os.waitpid(zombie, 0)[1]) == 42
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -9
    try:
        os.waitpid(before["early"][0], os.WNOHANG)
        assert False, "it is another's child"
    except ChildProcessError:
        pass
    # Pids are counted on: one that has ended is not somebody else's at once.
    new = os.fork()
    if new == 0:
        os._exit(0)
    os.waitpid(new, 0)
    assert new > max(pid for pid, *_ in before.values()), (new, before)
    os.kill(before["group"][0], signal.SIGTERM)
    assert os.waitpid(before["group"][0], 0)[1] == signal.SIGTERM


stand(check)
