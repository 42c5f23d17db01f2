"""Contexts of asynchronous input and output: what waits in them, what is asked of them while the processes are being stopped, and what is asked of them after."""
import ctypes, mmap, struct, threading

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mremap.restype = ctypes.c_void_p
SETUP, DESTROY, GETEVENTS, SUBMIT = 206, 207, 208, 209
READ, WRITE, SYNC, POLL = 0, 1, 2, 5
PAGE, EVENT, MAGIC = 4096, 32, 0xA10A10A1
TEXT = bytes(range(256)) * 16


def call(number, *arguments):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Context:
    def __init__(self, requests):
        number = ctypes.c_ulong()
        call(SETUP, requests, ctypes.byref(number))
        self.number = number.value

    def head(self):
        """Number, room, head, tail, magic, and what is the same in all."""
        return (ctypes.c_uint32 * 8).from_address(self.number)

    def ask(self, word, operation, file, at=0, length=0, offset=0, event=None):
        flags, event = (0, 0) if event is None else (1, event)
        request = struct.pack("QIIHhIQQqQII", word, 0, 0, operation, 0, file, at, length, offset, 0, flags, event)
        request = ctypes.create_string_buffer(request, 64)
        return call(SUBMIT, self.number, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(request))))

    def take(self, least, most):
        """The words and results of events."""
        room = ctypes.create_string_buffer(most * EVENT)
        while True:
            try:
                count = call(GETEVENTS, self.number, least, most, room, None)
                return [(word, result) for word, _, result, _ in struct.iter_unpack("QQqq", room.raw[: count * EVENT])]
            except InterruptedError:
                pass

    def take_itself(self):
        """The same without a call, by one who reads the ring."""
        head, events = self.head(), []
        while head[2] != head[3]:
            event = ctypes.string_at(self.number + EVENT + head[2] * EVENT, EVENT)
            events.append(struct.unpack("QQqq", event)[::2])
            head[2] = (head[2] + 1) % head[1]
        return events

    def turn(self, words):
        """Has requests done and taken one after the other."""
        for word in words:
            self.ask(word, READ, file, at(reading), 16, word % 256 * 16)
            assert self.take(1, 1) == [(word, 16)], word
            assert reading[:16] == TEXT[word % 256 * 16 :][:16], word

    def is_as(self, room, head, tail):
        seen = self.head()
        assert list(seen[1:5]) == [room, head, tail, MAGIC], ((room, head, tail), list(seen))


def pages(length=PAGE):
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def at(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def nameless(name):
    """A file that each clone has for itself."""
    path = f"{STAGE}/{name}.{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, TEXT)
    os.unlink(path)
    return file


file, memory = nameless("file"), os.memfd_create("synced")
reading, writing = pages(), pages()
writing[:] = TEXT[::-1]
unread, hole, rest, around, full, own, moved, large = (Context(n) for n in (10, 1, 3, 1, 1, 1, 4, 1000))
room = rest.head()[1]
assert room >= 127
call(DESTROY, hole.number)

# Five were asked for, and two taken.
for word in range(5):
    unread.ask(word, READ, file, at(reading), 100 * word)
assert unread.take(2, 2) == [(0, 0), (1, 100)]
unread.is_as(room, 2, 5)

# What waits lies around the ring's end.
around.turn(range(room - 2))
for word in range(5):
    around.ask(word, READ, file, at(reading), word)
around.is_as(room, room - 2, 3)

# As many wait as there is room for.
held = 0
try:
    while True:
        full.ask(held, READ, file, at(reading), held)
        held += 1
except BlockingIOError:
    pass
assert held > room // 4

# A ring that the program has moved.
place = pages(2 * PAGE)
target = at(place) + PAGE
moved.turn(range(7))
moved.ask(7, READ, file, at(reading), 77)
assert libc.mremap(*map(ctypes.c_void_p, (moved.number, PAGE, PAGE, 3, target))) == target
moved.number = target
moved.is_as(room, 7, 8)

assert large.head()[1] > 2000
large.turn(range(300))
counter = os.eventfd(3)
large.ask(5, READ, file, at(reading), 5, event=counter)
own.turn(range(3))


# One that waits for a timer now and then: when it is stopped meanwhile, what it has asked for ends all the same. It pauses for longer than anybody looks away who wants to
# know whether there is something that does not end.
class Poller(threading.Thread):
    WAIT, PAUSE = 0.003, 0.02

    def __init__(self):
        super().__init__(daemon=True)
        self.context, self.timer, self.asked, self.done, self.enough = Context(1), libc.timerfd_create(1, 0), 0, [], False
        self.start()

    def run(self):
        while not self.enough:
            assert libc.timerfd_settime(self.timer, 0, struct.pack("4q", 0, 0, 0, int(self.WAIT * 1e9)), None) == 0
            self.context.ask(self.asked, POLL, self.timer, 1)
            self.asked += 1
            self.done += self.context.take(1, 1)
            os.read(self.timer, 8)
            time.sleep(self.PAUSE)

    def stop(self):
        self.enough = True
        self.join(60)
        assert not self.is_alive(), (self.asked, len(self.done))
        assert self.done == [(word, 1) for word in range(self.asked)], "each is done once"


# A process of its own, with one of its own.
def is_second(second):
    assert second.take(0, 9) == [(9, 9)]
    second.turn(range(2 * room))


if os.fork() == 0:
    for context in (unread, rest, around, full, own, moved, large):
        libc.munmap(ctypes.c_void_p(context.number), ctypes.c_size_t((context.head()[1] + 1) * EVENT))
    second = Context(2)
    second.ask(9, READ, file, at(reading), 9)
    stand_beside("second", lambda: is_second(second))
wait_for(f"{STAGE}/second")


# Threads that wait for what is asked for when they are told to check themselves.
class Waiter(threading.Thread):
    def __init__(self, number):
        super().__init__(daemon=True)
        self.context, self.events, self.number = Context(1 + number), [], number
        self.start()

    def run(self):
        self.events = self.context.take(2, 2)


# One that has something done all the time.
class Worker(threading.Thread):
    def __init__(self, context):
        super().__init__(daemon=True)
        self.context, self.asked, self.left, self.enough, self.wrong = context, 0, set(), threading.Event(), None
        self.start()

    def run(self):
        try:
            while not self.enough.is_set():
                for offset in range(4):
                    self.ask(WRITE, memory, at(writing), PAGE, offset * PAGE)
                    self.ask(SYNC, memory)
                self.take()
                time.sleep(0.001)
            while self.left:
                self.take()
        except BaseException:
            self.wrong = traceback.format_exc()

    def ask(self, *request):
        while True:
            try:
                self.context.ask(self.asked, *request)
                self.left.add(self.asked)
                self.asked += 1
                return
            except BlockingIOError:
                self.take()

    def take(self):
        for word, result in self.context.take(1, 16):
            # Each is done once.
            self.left.remove(word)
            assert result == (0 if word % 2 else PAGE), (word, result)

    def stop(self):
        self.enough.set()
        self.join(60)
        assert not self.is_alive() and not self.wrong, self.wrong or (self.asked, self.left)
        self.context.ask(7, READ, memory, at(reading), PAGE, 3 * PAGE)
        assert self.context.take(1, 1) == [(7, PAGE)] and reading[:] == writing[:]


waiters = [Waiter(number) for number in range(3)]
workers = [Worker(Context(32)), Worker(Context(200)), Poller()]


def check():
    unread.is_as(room, 2, 5)
    assert unread.take(0, 9) == [(2, 200), (3, 300), (4, 400)]
    unread.turn(range(3 * room))
    rest.is_as(room, 0, 0)
    rest.turn(range(3 * room))
    around.is_as(room, room - 2, 3)
    assert around.take_itself() == [(word, word) for word in range(5)]
    around.turn(range(3 * room))
    assert full.take(0, held) == [(word, word) for word in range(held)]
    full.turn(range(3 * room))
    moved.is_as(room, 7, 8)
    assert moved.take(0, 9) == [(7, 77)]
    moved.turn(range(2 * room))
    assert large.take(0, 9) == [(5, 5)]
    large.turn(range(300))
    assert struct.unpack("Q", os.read(counter, 8)) == (4,)
    large.ask(6, READ, file, at(reading), 6, event=counter)
    assert struct.unpack("Q", os.read(counter, 8)) == (1,)
    own.is_as(room, 3, 3)
    for waiter in waiters:
        assert waiter.is_alive() and not waiter.events
        waiter.context.ask(waiter.number, READ, file, at(reading), waiter.number)
        waiter.context.ask(10, READ, file, at(reading), 10)
        waiter.join(60)
        assert waiter.events == [(waiter.number, waiter.number), (10, 10)], waiter.events
    for worker in workers:
        worker.stop()
    for context in (unread, full, moved, large):
        call(DESTROY, context.number)
        fails(OSError, context.take, 0, 1)
    new = Context(5)
    new.turn(range(2 * room))
    hear("second")


stand(check)
