"""How the kernel treats a process, in ways that are inherited and that nobody tells it of."""
import ctypes, mmap, threading

libc = ctypes.CDLL(None, use_errno=True)
IOPRIO_SET, IOPRIO_GET, MEMBARRIER = 251, 252, 324
BEST_EFFORT, IDLE = 2 << 13 | 6, 3 << 13
PRIVATE, SYNC_CORE, REGISTRATIONS = 8, 32, 512
BATCH_HERE_ALONE = 3 | 0x40000000  # SCHED_BATCH, SCHED_RESET_ON_FORK
NO_RANDOM_PLACES, SHORT_INODES = 0x40000, 0x20000


def setting(name, value=None):
    if value is not None:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(value)
    return open(f"/proc/self/{name}").read().strip()


def call(*words):
    ctypes.set_errno(0)
    result = libc.syscall(*words)
    return result if result >= 0 else -ctypes.get_errno()


def prctl(*words):
    return call(157, *words, *[0] * (5 - len(words)))


def of_process():
    barriers = [call(MEMBARRIER, command, 0, 0) for command in (PRIVATE, SYNC_CORE, REGISTRATIONS)]
    return setting("oom_score_adj"), setting("coredump_filter"), barriers, prctl(66), prctl(68)


def of_thread():
    return libc.personality(0xFFFFFFFF), call(IOPRIO_GET, 1, 0), prctl(34), call(145, 0)


def gains_execution():
    try:
        mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
        return True
    except PermissionError:
        return False


def is_kept(process, thread, gains):
    assert of_process() == process, (of_process(), process)
    assert of_thread() == thread, (of_thread(), thread)
    assert gains_execution() == gains


own = str(int(setting("oom_score_adj")) // 2 + 300)
if os.fork() == 0:
    setting("oom_score_adj", str(int(own) + 111))
    setting("coredump_filter", "0x1")
    libc.personality(SHORT_INODES)
    prctl(33, 1, 0)  # PR_MCE_KILL, late
    # What is not usual and yet does not keep memory from being executed: nothing that has come so far.
    kept = of_process(), of_thread()
    assert kept[0][0] == str(int(own) + 111) and kept[1][0] == SHORT_INODES
    stand_beside("second", lambda: is_kept(*kept, True))
    lingers()
wait_for(f"{STAGE}/second")
assert setting("oom_score_adj", own) == own
setting("coredump_filter", "0x7f")
libc.personality(NO_RANDOM_PLACES)
assert call(IOPRIO_SET, 1, 0, BEST_EFFORT) == 0
assert prctl(33, 1, 1) == 0  # PR_MCE_KILL, early
assert call(144, 0, BATCH_HERE_ALONE, ctypes.byref(ctypes.c_int(0))) == 0
asked, answer, found = threading.Event(), threading.Event(), []


def third():
    call(IOPRIO_SET, 1, 0, IDLE)
    libc.personality(NO_RANDOM_PLACES | SHORT_INODES)
    asked.wait()
    found.append(of_thread()[:2])
    answer.set()


threading.Thread(target=third, daemon=True).start()
assert call(MEMBARRIER, PRIVATE, 0, 0) == -1
assert call(MEMBARRIER, 16, 0, 0) == 0 and call(MEMBARRIER, 64, 0, 0) == 0  # to be asked for before either is used
prctl(67, 1)  # PR_SET_MEMORY_MERGE, which takes CAP_SYS_RESOURCE
assert prctl(65, 1) == 0  # PR_SET_MDWE
kept = of_process(), of_thread()
assert kept[0][2][:2] == [0, 0] and kept[0][3] == 1, kept
assert kept[1] == (NO_RANDOM_PLACES, BEST_EFFORT, 1, BATCH_HERE_ALONE), kept


def check():
    is_kept(*kept, False)
    asked.set()
    answer.wait()
    assert found == [(NO_RANDOM_PLACES | SHORT_INODES, IDLE)], found
    hear("second")


stand(check)
