import ctypes, threading

libc = ctypes.CDLL(None, use_errno=True)
STACK = ctypes.create_string_buffer(64 << 10)
NOCLDWAIT, NO_SETUID_FIXUP, MEMBARRIER = 2, 1 << 2, 324


class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


def action():
    told = Action()
    assert libc.sigaction(17, None, ctypes.byref(told)) == 0
    return told.handler, told.flags & NOCLDWAIT


def stack():
    told = Stack()
    assert libc.sigaltstack(None, ctypes.byref(told)) == 0
    return told.start, told.flags, told.size


def death():
    told = ctypes.c_int()
    libc.prctl(2, ctypes.byref(told), 0, 0, 0)  # PR_GET_PDEATHSIG
    return told.value


# What is done by default, but for this.
assert libc.sigaction(17, ctypes.byref(Action(None, (ctypes.c_ulong * 16)(), NOCLDWAIT, None)), None) == 0
assert libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(STACK), 0, len(STACK))), None) == 0
libc.prctl(1, 10, 0, 0, 0)  # PR_SET_PDEATHSIG
assert libc.prctl(28, NO_SETUID_FIXUP, 0, 0, 0) == 0  # PR_SET_SECUREBITS
libc.prctl(29, 80_000, 0, 0, 0)  # PR_SET_TIMERSLACK
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
assert libc.syscall(MEMBARRIER, 1 << 4, 0, 0) == 0  # MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
heap = libc.sbrk(0)
asked, answer, found = threading.Event(), threading.Event(), []


def second():
    libc.prctl(29, 90_000, 0, 0, 0)
    asked.wait()
    found.append((libc.prctl(30, 0, 0, 0, 0), stack()[1], death()))
    answer.set()


threading.Thread(target=second, daemon=True).start()


def check():
    assert action() == (None, NOCLDWAIT), action()
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        os.waitpid(child, 0)
        raise AssertionError("nobody waits for what ends unseen")
    except ChildProcessError:
        pass
    assert stack() == (ctypes.addressof(STACK), 0, len(STACK)), stack()
    assert death() == 10 and libc.prctl(27, 0, 0, 0, 0) == NO_SETUID_FIXUP
    assert libc.prctl(30, 0, 0, 0, 0) == 80_000 and libc.prctl(3, 0, 0, 0, 0) == 0
    assert libc.syscall(MEMBARRIER, 1 << 3, 0, 0) == 0, "it has registered for that"
    assert libc.syscall(MEMBARRIER, 1 << 5, 0, 0) != 0, "it has not registered for that"
    asked.set()
    answer.wait()
    assert found == [(90_000, 2, 0)], found


stand(check)
