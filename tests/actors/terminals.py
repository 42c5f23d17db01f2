import fcntl, pty, select, signal, struct, termios

# Numbers that are not the first ones: one in between is closed.
spare, spare_slave = os.openpty()
shell, slave = os.openpty()
os.close(spare)
os.close(spare_slave)
settings = termios.tcgetattr(slave)
settings[3] &= ~termios.ECHO
settings[6][termios.VINTR] = b"\x07"
termios.tcsetattr(slave, termios.TCSANOW, settings)
fcntl.ioctl(shell, termios.TIOCSWINSZ, struct.pack("4H", 33, 111, 5, 6))
name = os.ttyname(slave)

SCRIPT = """
trap 'echo interrupted' INT
while :; do
    if read line; then echo "got $line on $(tty) of $(stty size </dev/tty)"; fi
done
"""
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.closerange(3, 100)
    os.execlp("bash", "bash", "-c", SCRIPT)
os.close(slave)
# A child in a group of its own, behind the shell's.
raw, end = os.openpty()
import tty
tty.setraw(end)


def expect(words, again=b""):
    seen, deadline = b"", time.time() + 60
    while words not in seen:
        assert time.time() < deadline, seen
        if select.select([shell], [], [], 1)[0]:
            seen += os.read(shell, 1000)
        else:
            os.write(shell, again)


os.write(shell, b"first\n")
expect(b"got first on " + name.encode() + b" of 33 111")


def check():
    assert os.path.exists(name)
    os.write(shell, b"word\n")
    expect(b"got word on " + name.encode() + b" of 33 111")
    # It reaches whoever reads from the terminal, by the character that was chosen.
    # One that comes just before a shell begins to read is noticed only once it has read something.
    os.write(shell, b"\x07")
    expect(b"interrupted", again=b"\x07")
    os.write(shell, b"again\n")
    # Nor is a line read that comes before a second interruption is noticed.
    expect(b"got again on " + name.encode() + b" of 33 111", again=b"again\n")
    assert not termios.tcgetattr(shell)[3] & termios.ECHO
    assert not termios.tcgetattr(end)[3] & termios.ICANON
    os.write(end, b"out\n")
    assert os.read(raw, 10) == b"out\n"
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    assert fields[4] != "0" and fields[5] == str(pid), fields


stand(check)
