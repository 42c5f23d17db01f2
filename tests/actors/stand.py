"""What every actor has: it builds its state, says that it is ready, and checks itself when it is told to, wherever it then is."""
import os, sys, time, traceback

STAGE = sys.argv[1]


def say(what, text):
    path = f"{STAGE}/{what}"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def stand(check):
    say("ready", "")
    while not os.path.exists(STAGE + "/now"):
        time.sleep(0.01)
    try:
        check()
        said = "right"
    except BaseException:
        said = traceback.format_exc()
    say(str(os.stat("/proc/self/ns/pid").st_ino), said)
    while True:
        time.sleep(1)


def lingers():
    """For children: to be there for as long as the actor is."""
    while True:
        time.sleep(1)


