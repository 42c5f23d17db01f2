# Tells when its memory is a copy: by a watch on the file, and by a look at a page of it. Says random numbers from several sources when asked.
import ctypes, mmap, os, secrets, select, ssl, time, uuid

PATH = "/dev/pando-generation"
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, PATH.encode(), 8) >= 0  # IN_CLOSE_WRITE
with open(PATH) as file:
    page = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
begun = page[:]
ssl.RAND_bytes(8)


def say(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


say("/tmp/up", begun.decode())
poll = select.poll()
poll.register(watch, select.POLLIN)
heard = 0
while True:
    if poll.poll(20):
        heard += len(os.read(watch, 4096)) // 16
    if os.path.exists("/tmp/ask"):
        alike = ssl.RAND_bytes(16).hex()
        if page[:] != begun:
            ssl.RAND_add(os.urandom(32), 32)
        seeded = ssl.RAND_bytes(16).hex()
        os.unlink("/tmp/ask")
        say("/tmp/said", " ".join([page[:32].decode(), str(heard), secrets.token_hex(), uuid.uuid4().hex, os.urandom(8).hex(), seeded, alike]))
