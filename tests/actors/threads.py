import threading

counts = [0] * 8
ids = {}
lock, event = threading.Lock(), threading.Event()


def work(number):
    ids[number] = threading.get_native_id()
    with open(f"/proc/self/task/{ids[number]}/comm", "w") as name:
        name.write(f"worker {number}")
    local = threading.local()
    local.mine = number
    while True:
        with lock:
            counts[number] += 1
        assert local.mine == number
        if number % 2:
            time.sleep(0.002)
        else:
            event.wait(0.003)


for number in range(8):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while len(ids) < 8:
    time.sleep(0.01)
waiting = threading.Event()
waiter = threading.Thread(target=lambda: waiting.wait())
waiter.start()


def check():
    before = list(counts)
    deadline = time.time() + 30
    while any(now <= then for now, then in zip(counts, before)):
        assert time.time() < deadline, (before, counts)
        time.sleep(0.01)
    for number, tid in ids.items():
        assert open(f"/proc/self/task/{tid}/comm").read() == f"worker {number}\n"
    assert len(os.listdir("/proc/self/task")) == 10
    # A thread that slept in futex(2) is woken and joined: its clear-tid address works.
    waiting.set()
    waiter.join(30)
    assert not waiter.is_alive()
    new = threading.Thread(target=lambda: None)
    new.start()
    new.join()


stand(check)
