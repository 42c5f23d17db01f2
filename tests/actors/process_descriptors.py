import select, signal


def child(act=lingers):
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    return pid


def whose(number):
    lines = dict(line.split(":\t") for line in open(f"/proc/self/fdinfo/{number}") if ":\t" in line)
    return int(lines["Pid"])


watched, doomed, ended = child(), child(), child(lambda: os._exit(7))
own, first, of_watched, of_doomed, of_ended = [os.pidfd_open(pid) for pid in (os.getpid(), 1, watched, doomed, ended)]
waiting = os.pidfd_open(doomed, os.O_NONBLOCK)
again = os.dup(of_watched)
watching = select.epoll()
watching.register(of_watched, select.EPOLLIN)
while open(f"/proc/{ended}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
    time.sleep(0.01)
# One that was forked later has them all, and one of its elder.
eldest = os.getpid()
(reader, writer), (asked, asks) = os.pipe(), os.pipe()


def younger():
    of_eldest = os.pidfd_open(eldest)
    os.write(writer, b"x")
    os.read(asked, 1)
    found = [whose(number) for number in (of_eldest, of_watched, of_doomed)]
    os.write(writer, repr(found).encode())
    lingers()


child(younger)
os.read(reader, 1)


def check():
    numbers = (own, first, of_watched, again, of_doomed, waiting, of_ended)
    assert [whose(number) for number in numbers] == [eldest, 1, watched, watched, doomed, doomed, ended]
    assert os.waitid(os.P_PIDFD, of_ended, os.WEXITED).si_status == 7
    try:
        os.waitid(os.P_PIDFD, waiting, os.WEXITED)
        assert False, "it does not wait"
    except BlockingIOError:
        pass
    assert watching.poll(0) == []
    signal.pidfd_send_signal(of_watched, signal.SIGKILL)
    assert [number for number, _ in watching.poll(10)] == [of_watched]
    assert os.waitid(os.P_PIDFD, again, os.WEXITED).si_pid == watched
    os.write(asks, b"x")
    assert os.read(reader, 100) == repr([eldest, -1, doomed]).encode()


stand(check)
