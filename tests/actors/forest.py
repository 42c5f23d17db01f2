import threading

PROCESSES, CHILDREN, THREADS = 60, 3, 200
DEPTH = 5


def depth(number):
    return 1 if number == 0 else 1 + depth((number - 1) // CHILDREN)


assert max(map(depth, range(PROCESSES))) == DEPTH
place, below = 0, {}


def grow():
    """Each process forks those below it before it has threads."""
    global place, below
    mine = place
    first = mine * CHILDREN + 1
    for number in range(first, min(first + CHILDREN, PROCESSES)):
        pid = os.fork()
        if pid == 0:
            place, below = number, {}
            grow()
            return
        below[number] = pid


grow()
further = THREADS // PROCESSES - 1 + (place < THREADS % PROCESSES)
counts = [0] * further
secret = os.urandom(1 << 16)
kept = hash(secret)


def work(number):
    while True:
        counts[number] += 1
        time.sleep(0.1)


for number in range(further):
    threading.Thread(target=work, args=(number,), daemon=True).start()


def self_portrait():
    tasks = sorted(int(tid) for tid in os.listdir("/proc/self/task"))
    children = sorted(int(pid) for tid in tasks for pid in open(f"/proc/self/task/{tid}/children").read().split())
    # The first one's parent is outside, or the first process of a clone.
    parent = os.getppid() if place else None
    return os.getpid(), parent, os.getsid(0), tasks, children


while not all(counts):
    time.sleep(0.01)
before = self_portrait()
assert len(before[3]) == 1 + further and before[4] == sorted(below.values()), before


def is_right():
    then = list(counts)
    assert self_portrait() == before, (place, self_portrait(), before)
    assert hash(secret) == kept
    deadline = time.time() + 30
    while any(now <= earlier for now, earlier in zip(counts, then)):
        assert time.time() < deadline, (place, counts, then)
        time.sleep(0.01)


if place:
    stand_beside(f"forest-{place}", is_right)


def check():
    is_right()
    for number in range(1, PROCESSES):
        hear(f"forest-{number}")


for number in range(1, PROCESSES):
    wait_for(f"{STAGE}/forest-{number}")
stand(check)
