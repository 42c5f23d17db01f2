import signal

heard = []
signal.signal(signal.SIGCHLD, lambda *_: heard.append(signal.SIGCHLD))


def member(name):
    pid = os.fork()
    if pid == 0:
        heard.clear()
        signal.signal(signal.SIGUSR1, lambda *_: say(f"{name}.hit.{where()}", ""))
        say(name, str(os.getpgid(0)))
        stand_beside_group(name)
    return pid


def stand_beside_group(name):
    def right():
        assert os.getpgid(0) == group and os.getsid(0) == session, (os.getpgid(0), group)
        assert not heard and not signal.sigpending(), (heard, signal.sigpending())

    stand_beside(f"{name}.beside", right)


os.setsid()
session = os.getpid()
# A leader that forks two members, one of which forks a third, and ends; as the first program of a pipeline does.
leader = os.fork()
if leader == 0:
    os.setpgid(0, 0)
    group = os.getpid()
    member("one")
    if os.fork() == 0:
        member("two")
        heard.clear()
        say("three", "")
        stand_beside_group("three")
    for name in ("one", "two", "three"):
        wait_for(f"{STAGE}/{name}.beside")
    os._exit(0)
group = leader
os.waitpid(leader, 0)
zombie = None
heard.clear()


def check():
    for name in ("one", "two", "three"):
        hear(f"{name}.beside")
    assert not heard and not signal.sigpending(), heard
    # The group is a group: what is sent to it comes to its members.
    os.killpg(group, signal.SIGUSR1)
    for name in ("one", "two"):
        wait_for(f"{STAGE}/{name}.hit.{where()}")


stand(check)
