import ctypes, mmap

PAGE, PAGES, WORKERS = 4096, 1024, 4
libc = ctypes.CDLL(None, use_errno=True)


def loaded(page):
    return bytes([page % 251 + 1]) * PAGE


memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(PAGES):
    memory[page * PAGE : (page + 1) * PAGE] = loaded(page)
here = ctypes.addressof(ctypes.c_char.from_buffer(memory))


def mine(number):
    """Which pages a process writes to: a stretch, and some that lie apart."""
    return [*range(200 * number, 200 * number + 30), 900 + number, 910 + 7 * number]


def write(pages, word):
    for page in pages:
        memory[page * PAGE : page * PAGE + 8] = word


def has(number, extra=()):
    word = b"%08d" % number
    for page in range(PAGES):
        of_it = memory[page * PAGE : (page + 1) * PAGE]
        want = loaded(page)
        if page in mine(number) or page in extra:
            want = word + want[8:]
        assert of_it == want, (number, page, of_it[:16])


def check_of(number):
    has(number)
    # What one writes nobody else has.
    late = range(600 + 20 * number, 610 + 20 * number)
    write(late, b"%08d" % number)
    time.sleep(0.2)
    has(number, late)
    # It is ordinary memory: what is given back reads as zeros, on both sides of a border and in what is shared.
    for page in (0, 29, 30, 31, 229, 230, 500, 640):
        assert libc.madvise(ctypes.c_void_p(here + page * PAGE), PAGE, mmap.MADV_DONTNEED) == 0
        assert memory[page * PAGE : (page + 1) * PAGE] == bytes(PAGE), page
    memory[500 * PAGE] = 5
    # One call may change the rights of all of it, and give it back.
    for rights in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
        assert libc.mprotect(ctypes.c_void_p(here), PAGES * PAGE, rights) == 0, ctypes.get_errno()
    assert libc.madvise(ctypes.c_void_p(here), PAGES * PAGE, mmap.MADV_DONTNEED) == 0, ctypes.get_errno()
    assert not any(memory[page * PAGE] for page in range(PAGES))
    if os.fork() == 0:
        os._exit(0)
    assert os.wait()[1] == 0


for number in range(1, WORKERS + 1):
    if os.fork() == 0:
        # The last one changes the rights of a part, so that it is none of those that are alike.
        if number == WORKERS:
            assert libc.mprotect(ctypes.c_void_p(here + 700 * PAGE), 50 * PAGE, mmap.PROT_READ) == 0
        write(mine(number), b"%08d" % number)
        stand_beside(f"worker-{number}", lambda: check_of(number))
write(mine(0), b"%08d" % 0)


def check():
    check_of_first()
    for number in range(1, WORKERS + 1):
        hear(f"worker-{number}")


def check_of_first():
    has(0)
    write(range(600, 610), b"%08d" % 0)
    time.sleep(0.2)
    has(0, range(600, 610))


for number in range(1, WORKERS + 1):
    wait_for(f"{STAGE}/worker-{number}")
stand(check)
