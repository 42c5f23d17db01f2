"""Calls that the kernel goes on with where they were interrupted, over and over."""
import ctypes, struct, threading

RAW = True  # Calls by syscall(3), whose instructions do not tell which it is.
libc = ctypes.CDLL(None, use_errno=True)
LONG = struct.pack("2q", 1000, 0)
WAIT, WAKE = 128, 129
pipe, word, told = os.pipe(), ctypes.c_int(7), {}


class Polled(ctypes.Structure):
    _fields_ = [("file", ctypes.c_int), ("events", ctypes.c_short), ("found", ctypes.c_short)]


def waits(name, wait):
    def body():
        told[name] = "ready"
        ctypes.set_errno(0)
        told[name] = (wait(), ctypes.get_errno())

    threading.Thread(target=body, daemon=True).start()


rest = ctypes.create_string_buffer(16)
polled = Polled(pipe[0], 1, 0)
if RAW:
    waits("nanosleep", lambda: libc.syscall(35, LONG, None))
    waits("nanosleep that tells", lambda: libc.syscall(35, LONG, rest))
    waits("futex", lambda: libc.syscall(202, ctypes.byref(word), WAIT, 7, LONG))
waits("clock_nanosleep", lambda: libc.clock_nanosleep(1, 0, LONG, None))
waits("clock_nanosleep of days", lambda: libc.clock_nanosleep(0, 0, LONG, None))
waits("poll", lambda: libc.poll(ctypes.byref(polled), 1, 1_000_000))
while len(told) < (6 if RAW else 3):
    time.sleep(0.01)
# They are in them by now.
time.sleep(0.1)


def check():
    # Who was told of an interruption says so within moments.
    time.sleep(0.3)
    assert set(told.values()) == {"ready"}, told
    os.write(pipe[1], b"x")
    while told["poll"] == "ready":
        time.sleep(0.01)
    assert told.pop("poll") == (1, 0) and polled.found == 1, told
    if RAW:
        while libc.syscall(202, ctypes.byref(word), WAKE, 1) != 1:
            time.sleep(0.01)
        while told["futex"] == "ready":
            time.sleep(0.01)
        assert told.pop("futex") == (0, 0), told
    assert set(told.values()) == {"ready"}, told


stand(check)
