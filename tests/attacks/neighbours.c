/*
 * Other guests and the host: their processes, their shared memory, their sockets. `stand KEY` is who is attacked; the
 * others look for it.
 */
#include "attack.h"
#include <dirent.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

/* The number in words that others know it by. */
static const char *named(char **a, const char *before) {
    static char name[100];
    snprintf(name, sizeof name, "%spando-attack-%s", before, needed(a, 0));
    return name;
}

static key_t key(char **a) { return (key_t)atol(needed(a, 0)); }

static socklen_t abstract(char **a, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path + 1, named(a, ""));
    return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address->sun_path + 1);
}

/* Has one of everything, and waits to be attacked. */
static long stand(char **a) {
    struct sockaddr_un address;
    socklen_t length = abstract(a, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (shmget(key(a), 4096, IPC_CREAT | 0666) < 0 || semget(key(a), 1, IPC_CREAT | 0666) < 0 || msgget(key(a), IPC_CREAT | 0666) < 0 ||
        mq_open(named(a, "/"), O_RDWR | O_CREAT, 0666, NULL) < 0 || shm_open(named(a, "/"), O_RDWR | O_CREAT, 0666) < 0 ||
        bind(fd, (struct sockaddr *)&address, length) || listen(fd, 8))
        return -1;
    puts("standing");
    fflush(stdout);
    for (;;)
        pause();
}

static long shared_memory(char **a) { return shmget(key(a), 0, 0); }
static long semaphores(char **a) { return semget(key(a), 0, 0); }
static long messages(char **a) { return msgget(key(a), 0); }
static long message_queue(char **a) { return mq_open(named(a, "/"), O_RDONLY); }
static long named_memory(char **a) { return shm_open(named(a, "/"), O_RDONLY, 0); }

/* By its id instead of its key: ids are small numbers that one can try. */
static long shared_memory_by_id(char **a) {
    struct shmid_ds found;
    (void)a;
    for (int id = 0; id < 40000; id++)
        if (!shmctl(id, IPC_STAT, &found))
            return 0;
    errno = EINVAL;
    return -1;
}

static long abstract_socket(char **a) {
    struct sockaddr_un address;
    socklen_t length = abstract(a, &address);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, length);
}

/* A process whose command line has the number in it, but not this one. */
static pid_t process(char **a) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        char path[300], line[4096];
        pid_t pid = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = pid > 0 && pid != getpid() && pid != getppid() ? open(path, O_RDONLY) : -1;
        if (fd < 0)
            continue;
        ssize_t length = read(fd, line, sizeof line);
        close(fd);
        /* Only whoever stands there: others that look for it have the number in theirs too. */
        if (length > 0 && memmem(line, length, needed(a, 0), strlen(needed(a, 0))) && memmem(line, length, "stand", 5))
            return pid;
    }
    errno = ESRCH;
    return -1;
}

static long see(char **a) { return process(a); }

static long send_signal(char **a) {
    pid_t pid = process(a);
    return pid < 0 ? -1 : kill(pid, 0);
}

/* Who stands there, by the number that the host calls it by: whatever that number means in here. */
static pid_t by_number(char **a) {
    char path[300], line[4096];
    pid_t host = atoi(needed(a, 1));
    if (kill(host, 0))
        return -1;
    snprintf(path, sizeof path, "/proc/%d/cmdline", host);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, line, sizeof line);
    errno = ESRCH;
    return length > 0 && memmem(line, length, needed(a, 0), strlen(needed(a, 0))) ? host : -1;
}

static long signal_by_number(char **a) { return by_number(a) < 0 ? -1 : 0; }

/* The processors that it may run on, which stay as they are. */
static long bind_to_processors(pid_t pid) {
    cpu_set_t set;
    return pid < 0 || sched_getaffinity(pid, sizeof set, &set) ? -1 : sched_setaffinity(pid, sizeof set, &set);
}

static long processors(char **a) { return bind_to_processors(process(a)); }
static long processors_by_number(char **a) { return bind_to_processors(by_number(a)); }

/* Which kind of scheduling it gets. */
static long idle_class(char **a) {
    pid_t pid = process(a);
    return pid < 0 ? -1 : sched_setscheduler(pid, SCHED_BATCH, &(struct sched_param){ 0 });
}

/*
 * A lock that says it belongs to another: who waits for it lends the owner his priority, and the kernel ties both
 * together.
 */
static long lock_of(pid_t owner) {
    unsigned *lock = mmap(NULL, sizeof *lock, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec++;
    if (owner < 0 || lock == MAP_FAILED)
        return -1;
    *lock = owner;
    long locked = syscall(SYS_futex, lock, FUTEX_LOCK_PI, 0, &soon, NULL, 0);
    /* It waited for the owner, in vain: so there is one. */
    return locked == 0 || errno == ETIMEDOUT ? 0 : -1;
}

static long lock(char **a) { return lock_of(process(a)); }

/* By the number alone: the kernel is asked for the owner, not /proc. */
static long lock_by_number(char **a) { return lock_of(atoi(needed(a, 1))); }

/* Where its locks lie in its memory. */
static long list_of_locks(char **a) {
    void *head;
    size_t length;
    pid_t pid = process(a);
    return pid < 0 ? -1 : syscall(SYS_get_robust_list, pid, &head, &length);
}

static long slow_down(char **a) {
    pid_t pid = process(a);
    return pid < 0 ? -1 : setpriority(PRIO_PROCESS, pid, 1);
}

static long trace_other(char **a) {
    pid_t pid = process(a);
    return pid < 0 ? -1 : ptrace(PTRACE_SEIZE, pid, NULL, NULL);
}

static long read_memory(char **a) {
    char path[300];
    pid_t pid = process(a);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    return pid < 0 ? -1 : open(path, O_RDONLY);
}

const struct attack neighbours[] = {
    { "stand", stand, 0 },
    { "shared-memory", shared_memory, 1 },
    { "shared-memory-by-id", shared_memory_by_id, 0 },
    { "semaphores", semaphores, 1 },
    { "messages", messages, 1 },
    { "message-queue", message_queue, 1 },
    { "named-memory", named_memory, 1 },
    { "abstract-socket", abstract_socket, 1 },
    { "see", see, 1 },
    { "signal", send_signal, 1 },
    { "signal-by-number", signal_by_number, 1 },
    { "slow-down", slow_down, 1 },
    { "processors", processors, 1 },
    { "processors-by-number", processors_by_number, 1 },
    { "idle-class", idle_class, 1 },
    { "lock", lock, 1 },
    { "lock-by-number", lock_by_number, 1 },
    { "list-of-locks", list_of_locks, 1 },
    { "trace-other", trace_other, 1 },
    { "read-memory", read_memory, 1 },
    { 0 },
};
