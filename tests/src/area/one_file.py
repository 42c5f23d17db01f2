# Thousands of random operations on one file, each compared with a model in memory: what fsx of the xfstests does, in our own words.
#   one_file.py FILE SEED COUNT
# The model begins as the file is. What the file has to contain at the end is printed as its digest.
import ctypes, errno, hashlib, mmap, os, random, sys

path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
MOST = 256 << 10
BLOCK = 4096
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32

with open(path, "rb") as file:
    model = bytearray(file.read())
descriptor = os.open(path, os.O_RDWR)
log = []


def fail(what):
    print(f"{path}, seed {seed}: {what}; the last operations:", *log[-20:], sep="\n  ", file=sys.stderr)
    sys.exit(1)


def grow(size):
    if len(model) < size:
        model.extend(bytes(size - len(model)))


def some_range(within=MOST):
    at = dice.randrange(within)
    return at, dice.randrange(1, min(64 << 10, within - at + 1) + 1)


def filling(length):
    return bytes([dice.randrange(256)]) * length if dice.random() < 0.5 else dice.randbytes(length)


def compare(found, at, how):
    if found != bytes(model[at : at + len(found)]):
        wrong = next(i for i in range(len(found)) if found[i] != model[at + i])
        fail(f"{how} at {at} found {found[wrong]:#x} at {at + wrong} in the place of {model[at + wrong]:#x}")


def read():
    at, length = some_range()
    found = os.pread(descriptor, length, at)
    if len(found) != max(0, min(length, len(model) - at)):
        fail(f"a read of {length} at {at} found {len(found)} bytes of {len(model)}")
    compare(found, at, "a read")


def write():
    at, length = some_range()
    data = filling(length)
    os.pwrite(descriptor, data, at)
    grow(at + length)
    model[at : at + length] = data


def append():
    data = filling(dice.randrange(1, 5000))
    if len(model) + len(data) > MOST:
        return
    other = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(other, data)
    os.close(other)
    model.extend(data)


def truncate():
    size = dice.randrange(MOST)
    os.ftruncate(descriptor, size) if dice.random() < 0.5 else os.truncate(path, size)
    del model[size:]
    grow(size)


def mapped_read():
    if not model:
        return
    at, length = some_range(len(model))
    with mmap.mmap(descriptor, len(model), prot=mmap.PROT_READ) as area:
        compare(area[at : min(at + length, len(model))], at, "a mapped read")


def mapped_write():
    if not model:
        return
    at, length = some_range(len(model))
    length = min(length, len(model) - at)
    data = filling(length)
    with mmap.mmap(descriptor, len(model)) as area:
        area[at : at + length] = data
        if dice.random() < 0.5:
            area.flush()
    model[at : at + length] = data


def allocate(mode, at, length):
    # A file system that cannot do it leaves the file as it is.
    if libc.fallocate(descriptor, mode, ctypes.c_long(at), ctypes.c_long(length)) == 0:
        return True
    if ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.EINVAL):
        fail(f"fallocate {mode} of {length} at {at}: {os.strerror(ctypes.get_errno())}")
    return False


def preallocate():
    at, length = some_range()
    keep = dice.random() < 0.5
    if allocate(KEEP_SIZE if keep else 0, at, length) and not keep:
        grow(at + length)


def punch():
    at, length = some_range()
    if allocate(KEEP_SIZE | PUNCH_HOLE, at, length):
        end = min(at + length, len(model))
        model[at:end] = bytes(max(0, end - at))


def zero():
    at, length = some_range()
    if allocate(ZERO_RANGE, at, length):
        grow(at + length)
        model[at : at + length] = bytes(length)


def collapse():
    blocks = len(model) // BLOCK
    if blocks < 3:
        return
    at, length = dice.randrange(blocks - 2) * BLOCK, BLOCK
    if allocate(COLLAPSE_RANGE, at, length):
        del model[at : at + length]


def insert():
    blocks = len(model) // BLOCK
    if blocks < 1 or len(model) + 4 * BLOCK > MOST:
        return
    at, length = dice.randrange(blocks) * BLOCK, dice.randrange(1, 4) * BLOCK
    if at < len(model) and allocate(INSERT_RANGE, at, length):
        model[at:at] = bytes(length)


def copy():
    if len(model) < 2:
        return
    at, length = some_range(len(model))
    length, to = min(length, len(model) - at), dice.randrange(MOST)
    if abs(at - to) < length or to + length > MOST:
        return
    copied = os.copy_file_range(descriptor, descriptor, length, at, to)
    grow(to + copied)
    model[to : to + copied] = model[at : at + copied]


def open_again():
    global descriptor
    if dice.random() < 0.5:
        os.fsync(descriptor)
    os.close(descriptor)
    descriptor = os.open(path, os.O_RDWR)


OPERATIONS = [read] * 4 + [write] * 4 + [mapped_read] * 2 + [mapped_write] * 2
OPERATIONS += [append, truncate, preallocate, punch, zero, collapse, insert, copy, open_again]

for number in range(count):
    operation = dice.choice(OPERATIONS)
    log.append(f"{number}: {operation.__name__}, {len(model)} bytes")
    operation()
    size = os.fstat(descriptor).st_size
    if size != len(model):
        fail(f"the file has {size} bytes in the place of {len(model)}")
    if number % 250 == 0:
        compare(os.pread(descriptor, len(model), 0), 0, "a read of all")
compare(os.pread(descriptor, len(model), 0), 0, "a read of all")
print(hashlib.sha256(model).hexdigest())
