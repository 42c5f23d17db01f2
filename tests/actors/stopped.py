import signal, threading


def stopped(name, body, stop):
    """A child that waits in its body for a byte of a pipe, and is stopped there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        body()
        os._exit(0 if os.read(read, 1) == b"x" else 1)
    os.close(read)
    wait_for(f"{STAGE}/{name}")
    os.kill(pid, stop)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    return pid, write


def state(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]


def counts():
    """Its threads count; when they are stopped, they do not."""
    counted = [0, 0]

    def count(number):
        while True:
            counted[number] += 1
            if number == 0:
                say(f"count.{where()}", str(sum(counted)))
            time.sleep(0.01)

    for number in range(2):
        threading.Thread(target=count, args=(number,), daemon=True).start()
    time.sleep(0.1)
    say("threads", "")


def computes():
    say("computes", "")
    number = 0
    while not signal.sigpending() and number < 1 << 22:
        number += 1


kinds = [
    stopped("waits", lambda: say("waits", ""), signal.SIGSTOP),
    stopped("threads", counts, signal.SIGSTOP),
    stopped("computes", computes, signal.SIGSTOP),
]
assert [state(pid) for pid, _ in kinds] == ["T"] * 3


def check():
    time.sleep(0.2)
    assert [state(pid) for pid, _ in kinds] == ["T"] * 3, [state(pid) for pid, _ in kinds]
    counted = f"{STAGE}/count.{where()}"
    before = open(counted).read() if os.path.exists(counted) else "0"
    time.sleep(0.2)
    assert not os.path.exists(counted) or open(counted).read() == before, "it does not stand still"
    os.kill(kinds[1][0], signal.SIGCONT)
    while not os.path.exists(counted) or open(counted).read() in ("", before):
        time.sleep(0.01)
    for pid, write in kinds:
        os.kill(pid, signal.SIGCONT)
        os.write(write, b"x")
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
        assert status == 0, status


stand(check)
