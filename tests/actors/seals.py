import fcntl, mmap

SHRINK, GROW, WRITE, FUTURE_WRITE, EXEC, SEAL = 2, 4, 8, 0x10, 0x20, 1
NOEXEC_SEAL = 8
READ, WRITABLE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
PAGE = 4096


def reopened(file, flags=os.O_RDONLY):
    return os.open(f"/proc/self/fd/{file}", flags)


class Sealed:
    """A memory file that was written, mapped in every way there is, sealed, and mapped in every way that is left."""

    def __init__(self, seals, flags=os.MFD_ALLOW_SEALING, keep_writer=True, mode=None):
        self.name = f"{seals:#x} {flags:#x} {keep_writer} {mode}"
        self.file = os.memfd_create("seals " + self.name, flags)
        os.ftruncate(self.file, 2 * PAGE)
        os.write(self.file, b"before the seal")
        if mode is not None:
            os.fchmod(self.file, mode)
        self.mode = os.fstat(self.file).st_mode
        self.own = mmap.mmap(self.file, PAGE, mmap.MAP_PRIVATE, WRITABLE)
        self.own[20:23] = b"own"
        self.shared = [mmap.mmap(reopened(self.file), PAGE, mmap.MAP_SHARED, READ)]
        self.writer = None
        if keep_writer and not seals & WRITE:
            self.writer = mmap.mmap(self.file, PAGE, mmap.MAP_SHARED, WRITABLE)
            self.writer[20:23] = b"all"
            # For reading so far, and it could be made one for writing.
            self.shared.append(mmap.mmap(self.file, PAGE, mmap.MAP_SHARED, READ))
        if seals:
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, seals)
        self.seals = fcntl.fcntl(self.file, fcntl.F_GET_SEALS)
        self.shared.append(mmap.mmap(reopened(self.file), PAGE, mmap.MAP_SHARED, READ))
        try:
            self.shared.append(mmap.mmap(self.file, PAGE, mmap.MAP_SHARED, READ))
        except OSError:
            pass  # Before Linux 6.7 nobody mapped like this what is sealed against writing.
        self.private = mmap.mmap(self.file, PAGE, mmap.MAP_PRIVATE, READ)
        self.before = self.seen()

    def seen(self):
        """What can be done with it, each tried and undone."""
        lines = [f"{self.name} seals {fcntl.fcntl(self.file, fcntl.F_GET_SEALS):#x} mode {os.fstat(self.file).st_mode:o}"]
        size = os.fstat(self.file).st_size

        def tries(what, action):
            try:
                action()
                lines.append(f"{what}: yes")
            except OSError as error:
                lines.append(f"{what}: {error.errno}")

        tries("write", lambda: os.pwrite(self.file, b"b", 0))
        # What cannot be undone is not tried.
        if self.seals & (SHRINK | GROW) != GROW:
            tries("shrink", lambda: (os.ftruncate(self.file, size - PAGE), os.ftruncate(self.file, size)))
        if self.seals & (SHRINK | GROW) != SHRINK:
            tries("grow", lambda: (os.ftruncate(self.file, size + PAGE), os.ftruncate(self.file, size)))
        tries("map for writing", lambda: mmap.mmap(self.file, PAGE, mmap.MAP_SHARED, WRITABLE).close())
        tries("map for reading", lambda: mmap.mmap(self.file, PAGE, mmap.MAP_SHARED, READ).close())
        tries("map privately", lambda: mmap.mmap(self.file, PAGE, mmap.MAP_PRIVATE, WRITABLE).close())
        tries("be executed", lambda: (os.fchmod(self.file, self.mode ^ 0o111), os.fchmod(self.file, self.mode)))
        lines.append(str([one[0:23] for one in [self.own, self.private, *self.shared]]))
        if self.writer:
            self.writer[16:18] = b"on"
            lines.append(str([one[16:18] for one in [self.own, *self.shared]]))
            self.writer[16:18] = bytes(2)
        return lines



def protections():
    """What each shared mapping of a memory file may be used for, now and ever."""
    wanted = ("rd", "wr", "ex", "mr", "mw", "me", "ms")
    name, found = None, []
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            name = line.split(maxsplit=5)[5].strip() if "memfd:seals" in line else None
        elif name and line.startswith("VmFlags:"):
            found.append((name, [word for word in line.split() if word in wanted]))
    return sorted((name, words) for name, words in found if "ms" in words)


every = [Sealed(0), Sealed(SHRINK), Sealed(GROW), Sealed(SHRINK | GROW)]
every += [Sealed(WRITE), Sealed(WRITE | SEAL), Sealed(WRITE | SHRINK | GROW | SEAL), Sealed(SEAL), Sealed(0, 0)]
for keep in (True, False):
    every += [Sealed(FUTURE_WRITE, keep_writer=keep), Sealed(FUTURE_WRITE | SHRINK | GROW | SEAL, keep_writer=keep)]
every += [Sealed(FUTURE_WRITE | WRITE), Sealed(WRITE, mode=0o400), Sealed(FUTURE_WRITE, mode=0o444), Sealed(SHRINK | GROW, mode=0)]
# Since Linux 6.3.
every += [Sealed(EXEC, keep_writer=False), Sealed(EXEC, mode=0o644), Sealed(EXEC | SEAL, mode=0o600)]
every += [Sealed(0, NOEXEC_SEAL), Sealed(WRITE, NOEXEC_SEAL), Sealed(FUTURE_WRITE | SEAL, NOEXEC_SEAL)]


before = protections()
assert before


def check():
    now = protections()
    assert now == before, "\n".join(f"{here}: {there}" for here, there in zip(now, before) if here != there)
    for one in every:
        now = one.seen()
        assert now == one.before, f"\n{now}\n{one.before}"


if os.fork() == 0:
    # Who has the same mappings still.
    lingers()
stand(check)
