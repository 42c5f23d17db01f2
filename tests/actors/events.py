import ctypes, select, signal, struct

libc = ctypes.CDLL(None, use_errno=True)
counter = libc.eventfd(0, os.O_NONBLOCK)
os.write(counter, struct.pack("Q", (1 << 40) + 5))
semaphore = libc.eventfd(3, 1)
timer = libc.timerfd_create(1, os.O_NONBLOCK)
setting = struct.pack("4q", 0, 50_000_000, 0, 50_000_000)
assert libc.timerfd_settime(timer, 0, setting, None) == 0
off = libc.timerfd_create(0, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
mask = struct.pack("Q", 1 << signal.SIGUSR1 - 1)
signals = libc.syscall(289, -1, mask, 8, os.O_NONBLOCK)
pipe = os.pipe()
poll = select.epoll()
poll.register(pipe[0], select.EPOLLIN | select.EPOLLET)
poll.register(counter, select.EPOLLIN | select.EPOLLONESHOT)
poll.register(timer, select.EPOLLIN)
poll.register(signals, select.EPOLLIN)
poll.register(pipe[1], 0)


def check():
    assert struct.unpack("Q", os.read(counter, 8)) == ((1 << 40) + 5,)
    try:
        os.read(counter, 8)
        assert False
    except BlockingIOError:
        pass
    assert [struct.unpack("Q", os.read(semaphore, 8))[0] for _ in range(3)] == [1, 1, 1]
    deadline, happened = time.time() + 30, set()
    os.write(pipe[1], b"x")
    os.write(counter, struct.pack("Q", 1))
    os.kill(os.getpid(), signal.SIGUSR1)
    while happened != {pipe[0], counter, timer, signals}:
        assert time.time() < deadline, happened
        happened |= {fd for fd, _ in poll.poll(0.05)}
    assert struct.unpack("I", os.read(signals, 128)[:4]) == (signal.SIGUSR1,)
    left = ctypes.create_string_buffer(32)
    libc.timerfd_gettime(timer, left)
    assert struct.unpack("4q", left)[1] == 50_000_000
    libc.timerfd_gettime(off, left)
    assert struct.unpack("4q", left) == (0, 0, 0, 0)


stand(check)
