import ctypes, select, signal, struct

ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append("real"))
signal.signal(signal.SIGVTALRM, lambda *_: ticks.append("virtual"))
signal.signal(signal.SIGRTMIN + 1, lambda *_: ticks.append("posix"))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 500)
libc = ctypes.CDLL(None, use_errno=True)
far, near = ctypes.c_void_p(), ctypes.c_void_p()


def create(signal_number, into):
    event = struct.pack("qii48x", 4711, signal_number, 0)
    assert libc.timer_create(1, event, ctypes.byref(into)) == 0


def arm(timer, interval, value):
    setting = struct.pack("4q", int(interval), int(interval % 1 * 1e9), int(value), int(value % 1 * 1e9))
    assert libc.timer_settime(timer, 0, setting, None) == 0


create(signal.SIGRTMIN + 1, near)
create(signal.SIGUSR1, far)
arm(near, 0.05, 0.05)
arm(far, 7, 5000)


def rest(timer):
    setting = ctypes.create_string_buffer(32)
    assert libc.timer_gettime(timer, setting) == 0
    return struct.unpack("4q", setting)


def check():
    del ticks[:]
    deadline = time.time() + 30
    while not {"real", "posix"} <= set(ticks):
        assert time.time() < deadline, ticks
        time.sleep(0.01)
    value, interval = signal.getitimer(signal.ITIMER_VIRTUAL)
    assert 900 < value <= 1001 and interval == 500, (value, interval)
    interval, _, value, _ = rest(far)
    assert interval == 7 and 4000 < value < 5000, (interval, value)
    third = ctypes.c_void_p()
    create(signal.SIGUSR1, third)
    assert rest(third) == (0, 0, 0, 0)


stand(check)
