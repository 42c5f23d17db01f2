import ctypes

libc = ctypes.CDLL(None, use_errno=True)
GETDENTS64 = 217


def listed(directory):
    room = ctypes.create_string_buffer(1024)
    length, at, names = libc.syscall(GETDENTS64, directory, room, 1024), 0, []
    while at < length:
        size = struct.unpack_from("H", room.raw, at + 16)[0]
        names.append(room.raw[at + 19 : at + size].split(b"\0")[0].decode())
        at += size
    return names


for number in range(200):
    open(f"/dev/shm/file-{number}", "w").close()
whole = os.open("/dev/shm", os.O_RDONLY)
while listed(whole):
    pass
half = os.open("/dev/shm", os.O_RDONLY)
seen = listed(half)


def answers():
    new = 0
    while names := listed(half):
        new += len(names)
        seen.extend(names)
    missing = set(os.listdir("/dev/shm")) - set(seen)
    return {"new": new, "twice": len(seen) - len(set(seen)), "missing": len(missing), "behind": len(listed(whole))}


answer(answers)
