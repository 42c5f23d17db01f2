/* Other guests and the host: their processes, their shared memory, their sockets. `stand KEY` is who is attacked; the others look for it. */
#include "attack.h"
#include <dirent.h>
#include <mqueue.h>
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

/* Whatever it is called in here: every number there is, but its own people. */
static long signal_by_number(char **a) {
    char path[300], line[4096];
    pid_t host = atoi(needed(a, 1));
    if (kill(host, 0))
        return -1;
    snprintf(path, sizeof path, "/proc/%d/cmdline", host);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, line, sizeof line);
    errno = ESRCH;
    return length > 0 && memmem(line, length, needed(a, 0), strlen(needed(a, 0))) ? 0 : -1;
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
    { "trace-other", trace_other, 1 },
    { "read-memory", read_memory, 1 },
    { 0 },
};
