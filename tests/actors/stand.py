"""What every actor has: it builds its state, says that it is ready, and checks itself when it is told to, wherever it then is."""
import os, sys, time, traceback

STAGE = sys.argv[1]


def say(what, text):
    path = f"{STAGE}/{what}"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def where():
    """The pid namespace: what an actor says in a clone is told by it from what it says elsewhere."""
    return os.stat("/proc/self/ns/pid").st_ino


def judged(check):
    wait_for(f"{STAGE}/now")
    try:
        check()
        return "right"
    except BaseException:
        return traceback.format_exc()


def stand(check):
    say("ready", "")
    said = judged(check)
    say(str(where()), said)
    lingers()


def stand_beside(name, check):
    """The same for another process of the actor's, which is awaited by its name before, and heard after that."""
    say(name, "")
    said = judged(check)
    say(f"{name}.{where()}", said)
    lingers()


def hear(name):
    path = f"{STAGE}/{name}.{where()}"
    wait_for(path)
    said = open(path).read()
    assert said == "right", (name, said)


def fails(kind, call, *arguments):
    try:
        call(*arguments)
    except kind:
        return
    raise AssertionError(f"{call} has not failed as it must, by {kind.__name__}")


def lingers():
    """For children: to be there for as long as the actor is."""
    while True:
        time.sleep(1)


