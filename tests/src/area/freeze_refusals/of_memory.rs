//! What in a process's memory cannot be frozen.

use super::kinds::{Kind, cleared, kind, told};

/// What is in a process's memory.
pub(super) const MEMORY: &[Kind] = &[
    kind("kept = call(425, 4, ctypes.create_string_buffer(120))", &["descriptor", "an io_uring instance", "use epoll"]),
    kind(
        "ring = call(425, 4, ctypes.create_string_buffer(120))\nmemory(PAGE, SHARED, ring)\nos.close(ring)",
        &["memory of [io_uring]", "do without it"],
    ),
    kind("kept = call(323, 0)", &["descriptor", "a userfaultfd", "do without it"]),
    kind(
        "from fcntl import ioctl\nkept, at = call(323, 0), memory(PAGE)\nioctl(kept, 0xc018aa3f, struct.pack('QQQ', 0xaa, 0, 0))\n\
         ioctl(kept, 0xc020aa00, struct.pack('QQQQ', at, PAGE, 1, 0))",
        &["memory watched by userfaultfd at", "do without it"],
    ),
    kind(
        "kept = call(298, struct.pack('IIQQQQQ', 1, 112, 9, 0, 0, 0, 0).ljust(112, b'\\0'), 0, -1, -1, 0)",
        &["descriptor", "a performance counter", "stop profiling"],
    ),
    kind(
        "counter = call(298, struct.pack('IIQQQQQ', 1, 112, 9, 0, 0, 0, 0).ljust(112, b'\\0'), 0, -1, -1, 0)\n\
         memory(PAGE, SHARED, counter)\nos.close(counter)",
        &["memory of [perf_event]"],
    ),
    kind("kept = call(447, 0)", &["descriptor", "secret memory"]),
    kind(
        "secret = call(447, 0)\nos.ftruncate(secret, PAGE)\nmemory(PAGE, SHARED, secret)\nos.close(secret)",
        &["secret memory", "do without it"],
    ),
    kind(
        "memory(2 << 20, PRIVATE | ANONYMOUS | NORESERVE | HUGE)",
        &["huge pages of hugetlbfs at", "use transparent huge pages"],
    ),
    // As programs do that are built with a sanitizer.
    kind(
        "memory(21 << 40, PRIVATE | ANONYMOUS | NORESERVE, rights=0)",
        &[
            "it reserves 21 TiB of addresses",
            "more than the 19 TiB that an image can have",
            "start fewer such programs",
        ],
    ),
    kind("kept = call(319, b'x', 4)", &["descriptor", "huge pages of hugetlbfs (/memfd:x"]),
    // IOCB_CMD_POLL, on a pipe that nobody writes to.
    told(kind(
        "context, pipe = ctypes.c_ulong(), os.pipe()\ncall(206, 4, ctypes.byref(context))\n\
         request = ctypes.create_string_buffer(struct.pack('QIIHhIQQqQII', 7, 0, 0, 5, 0, pipe[0], 1, 0, 0, 0, 0, 0))\n\
         call(209, context.value, 1, ctypes.byref(ctypes.c_void_p(ctypes.addressof(request))))",
        &["a request of asynchronous input and output that waits for a file (IOCB_CMD_POLL)", "use epoll"],
    )),
    told(kind(
        "context = ctypes.c_ulong()\ncall(206, 4, ctypes.byref(context))\nchild(lambda: None)",
        &["memory of a context of asynchronous input and output that it does not have", "after it forks"],
    )),
    told(kind(
        "context = ctypes.c_ulong()\ncall(206, 4, ctypes.byref(context))\n\
         assert libc.munmap(context, ctypes.c_size_t(PAGE)) == 0",
        &["a context of asynchronous input and output (io_setup) without its memory", "leave its memory alone"],
    )),
    kind(
        "memory(PAGE, PRIVATE | ANONYMOUS | FIXED, at=0x400000000000)",
        &["memory at 0x400000000000, where the restorer works", "start the program again"],
    ),
    kind(
        "kept = call(319, b'x', 0)\nos.ftruncate(kept, PAGE)\nat = memory(PAGE, SHARED, kept)\n\
         libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), 102) == 0 or exec(\"raise Lacks('guards in shared memory')\")",
        &["guards in shared memory at"],
    ),
    cleared(
        kind(
            "libc.shmat.restype = ctypes.c_void_p\nat = libc.shmat(libc.shmget(7, 2 * PAGE, 0o1600), None, 0)\n\
             assert libc.munmap(ctypes.c_void_p(at + PAGE), ctypes.c_size_t(PAGE)) == 0",
            &["a part of the System V shared memory", "attach all of it"],
        ),
        "libc.shmctl(libc.shmget(7, 0, 0), 0, None)",
    ),
    cleared(
        kind(
            "assert libc.shmget(8, 257 << 20, 0o1600) >= 0",
            &["System V shared memory", "of more than 256 MiB", "use mmap"],
        ),
        "libc.shmctl(libc.shmget(8, 0, 0), 0, None)",
    ),
    cleared(
        kind(
            "for _ in range(4200):\n    libc.msgctl(libc.msgget(0, 0o600), 0, None)\nassert libc.msgget(9, 0o1600) >= 0",
            &["a message queue with the high number", "restart the programs"],
        ),
        "libc.msgctl(libc.msgget(9, 0), 0, None)",
    ),
];
