import ctypes, mmap

WORDS = 4096
MS_BIND = 4096
libc = ctypes.CDLL(None, use_errno=True)
for name in ("/data", "/other"):
    os.makedirs(name)
with open("/data/file", "wb") as file:
    file.write(bytes(8 * WORDS))
assert libc.mount(b"/data", b"/other", None, MS_BIND, None) == 0, ctypes.get_errno()
words = memoryview(mmap.mmap(os.open("/other/file", os.O_RDWR), 8 * WORDS)).cast("Q")
generation = mmap.mmap(os.open("/dev/pando-generation", os.O_RDONLY), 32, prot=mmap.PROT_READ)
own = generation[:]
last = 0


def lost():
    """Words that are not what was written last. Whoever was stopped may have had one yet to write."""
    return sum(words[number % WORDS] != number for number in range(max(last - WORDS + 1, 1), last))


def answers():
    return {"lost": found}


open("/tmp/up", "w").write("up")
while generation[:] == own:
    last += 1
    words[last % WORDS] = last
found = lost()
answer(answers)
