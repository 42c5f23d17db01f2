import signal

seen = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 3):
    signal.signal(number, lambda number, frame: seen.append(number))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.siginterrupt(signal.SIGUSR2, False)
blocked = {signal.SIGUSR2, signal.SIGRTMIN + 3, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
os.kill(os.getpid(), signal.SIGRTMIN + 3)
os.kill(os.getpid(), signal.SIGRTMIN + 3)
signal.pthread_kill(__import__("threading").get_ident(), signal.SIGUSR2)


def check():
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert signal.sigpending() == {signal.SIGUSR2, signal.SIGRTMIN + 3}
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [signal.SIGUSR1], seen
    queued = [signal.sigtimedwait({signal.SIGRTMIN + 3}, 0) for _ in range(3)]
    assert [info and (info.si_signo, info.si_pid) for info in queued] == [(signal.SIGRTMIN + 3, os.getpid())] * 2 + [None]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    time.sleep(0.01)
    assert seen == [signal.SIGUSR1, signal.SIGUSR2], seen
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    assert int(status["SigIgn"], 16) & 1


stand(check)
