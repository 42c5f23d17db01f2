import fcntl

plain = os.pipe()
os.write(plain[1], b"kept")
big = os.pipe()
fcntl.fcntl(big[1], 1031, 1 << 18)  # F_SETPIPE_SZ
os.write(big[1], b"z" * 200_000)
waits = os.pipe()
os.set_blocking(waits[0], False)
orphan = os.pipe()
os.write(orphan[1], b"last words")
os.close(orphan[1])
answers = os.pipe()
if os.fork() == 0:
    os.close(waits[1])
    while True:
        # Most of the time it is inside this call, which must be made again.
        word = os.read(plain[0], 100)
        os.write(answers[1], b"<" + word + b">")


def check():
    assert os.read(big[0], 300_000) == b"z" * 200_000
    assert fcntl.fcntl(big[0], 1032) == 1 << 18
    try:
        os.read(waits[0], 1)
        assert False
    except BlockingIOError:
        pass
    assert os.read(orphan[0], 100) == b"last words" and os.read(orphan[0], 1) == b""
    os.write(plain[1], b"ping")
    said = b""
    while not said.endswith(b"<ping>"):
        said += os.read(answers[0], 100)
    assert said == b"<kept><ping>", said


stand(check)
