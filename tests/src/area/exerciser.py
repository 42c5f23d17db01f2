"""exerciser.py SEED COUNT FILE: the idea of fsx. Random operations on one file, each compared with what memory says the file must have; prints its digest."""
import ctypes
import hashlib
import mmap
import os
import random
import sys

LONGEST = 256 << 10
PAGE = 4096
KEEP_SIZE, PUNCH_HOLE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, start, length):
    return libc.fallocate(fd, mode, ctypes.c_long(start), ctypes.c_long(length)) == 0


class Exerciser:
    def __init__(self, path, dice):
        self.path, self.dice, self.model = path, dice, bytearray()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def span(self, most):
        start = self.dice.randrange(most)
        return start, self.dice.randrange(1, min(most - start, 16 << 10) + 1)

    def put(self, start, data):
        if len(self.model) < start + len(data):
            self.model.extend(bytes(start + len(data) - len(self.model)))
        self.model[start : start + len(data)] = data

    def write(self):
        start, length = self.span(LONGEST)
        data = self.dice.randbytes(length)
        os.pwrite(self.fd, data, start)
        self.put(start, data)

    def read(self):
        start, length = self.span(LONGEST)
        assert os.pread(self.fd, length, start) == self.model[start : start + length], "read"

    def truncate(self):
        size = self.dice.randrange(LONGEST)
        os.ftruncate(self.fd, size)
        self.model = self.model[:size] + bytes(max(0, size - len(self.model)))

    def map_write(self):
        if not self.model:
            return
        start, length = self.span(len(self.model))
        data = self.dice.randbytes(length)
        with mmap.mmap(self.fd, len(self.model)) as mapped:
            mapped[start : start + length] = data
            if self.dice.random() < 0.5:
                mapped.flush()
        self.put(start, data)

    def map_read(self):
        if self.model:
            start, length = self.span(len(self.model))
            with mmap.mmap(self.fd, len(self.model), prot=mmap.PROT_READ) as mapped:
                assert mapped[start : start + length] == self.model[start : start + length], "map read"

    def punch(self):
        if self.model:
            start, length = self.span(len(self.model))
            if fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE, start, length):
                self.put(start, bytes(length))

    def allocate(self):
        start, length = self.span(LONGEST)
        if fallocate(self.fd, 0, start, length):
            self.put(start + length, b"")

    def copy(self):
        if len(self.model) < 2 * PAGE:
            return
        half = len(self.model) // 2
        length = self.dice.randrange(1, min(half, 16 << 10))
        count = os.copy_file_range(self.fd, self.fd, length, offset_src=0, offset_dst=half)
        self.put(half, bytes(self.model[:count]))

    def sync(self):
        self.dice.choice([os.fsync, os.fdatasync])(self.fd)

    def reopen(self):
        os.close(self.fd)
        self.fd = os.open(self.path, os.O_RDWR)

    def append(self):
        if len(self.model) < LONGEST:
            data = self.dice.randbytes(self.dice.randrange(1, 4000))
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            os.write(fd, data)
            os.close(fd)
            self.put(len(self.model), data)

    def replace(self):
        with open(self.path + ".new", "wb") as new:
            new.write(self.model)
        os.rename(self.path + ".new", self.path)
        self.reopen()

    def check(self):
        assert os.fstat(self.fd).st_size == len(self.model), "size"
        assert os.pread(self.fd, len(self.model), 0) == self.model, "content"


def main():
    seed, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    one = Exerciser(path, random.Random(seed))
    one.reopen()
    one.model = bytearray(os.pread(one.fd, LONGEST * 2, 0))
    often = [one.write, one.read, one.map_write, one.map_read, one.append]
    all_ = often * 2 + [one.truncate, one.punch, one.allocate, one.copy, one.sync, one.reopen, one.replace]
    for number in range(count):
        one.dice.choice(all_)()
        if number % 50 == 0:
            one.check()
    one.check()
    print(hashlib.sha256(one.model).hexdigest())


main()
