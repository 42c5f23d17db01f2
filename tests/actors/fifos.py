import fcntl

own = STAGE + "/own" + "/fifo"
os.mkfifo(own, 0o600)
reader = os.open(own, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
os.set_blocking(reader, True)
writer = os.open(own, os.O_WRONLY)
fcntl.fcntl(writer, 1031, 1 << 17)  # F_SETPIPE_SZ
os.write(writer, b"kept")
os.mkfifo(own + ".gone")
both = os.open(own + ".gone", os.O_RDWR)
os.unlink(own + ".gone")
os.write(both, b"nameless")


def check():
    assert os.read(reader, 100) == b"kept" and fcntl.fcntl(reader, 1032) == 1 << 17
    assert os.readlink(f"/proc/self/fd/{reader}") == own
    new = os.open(own, os.O_WRONLY)
    os.write(new, b"by its name")
    os.close(new)
    assert os.read(reader, 100) == b"by its name"
    os.close(writer)
    assert os.read(reader, 100) == b"", "nobody writes any more"
    assert os.read(both, 100) == b"nameless"


stand(check)
