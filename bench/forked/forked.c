/*
 * What the guest that is cloned costs when its processes are forked plainly, with nothing of Pando's: three processes
 * with five threads, which have the memory of the first in common with whoever forked it, in namespaces of their own,
 * with a root of their own.
 *
 *   forked MIB DIRECTORY
 *
 * Says "filled", and then for each line of its input the pid of a process that waits for another line, to be put into
 * control groups before, and goes on as such a guest; "ready" once all of that runs. They end with its input. DIRECTORY
 * has a "lower", and for each a directory NUMBER with "upper", "work" and "root".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HUGE (2UL << 20)
#define MOST 1000
#define STACK (256UL << 10)

static char *memory;
static size_t length;
static const char *directory;

static void need(int is_so, const char *what) {
    if (!is_so) {
        perror(what);
        exit(1);
    }
}

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    need(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(file);
}

static void *room(size_t bytes, int how) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
    need(at != MAP_FAILED, "mmap");
    return at;
}

/* No two of its pages are alike. */
static void fill(void) {
    uintptr_t at = (uintptr_t)room(length + HUGE, MAP_PRIVATE);
    memory = (char *)((at + HUGE - 1) & ~(HUGE - 1));
    madvise(memory, length, MADV_HUGEPAGE);
    for (size_t word = 0; word < length / 8; word++)
        ((uint64_t *)memory)[word] = word * 0x9e3779b97f4a7c15ULL;
}

static int idle(void *nothing) {
    (void)nothing;
    for (;;) {
        struct timespec hour = {3600, 0};
        nanosleep(&hour, NULL);
    }
    return 0;
}

static void thread(void) {
    int kind = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    need(clone(idle, (char *)room(STACK, MAP_PRIVATE) + STACK, kind, NULL) > 0, "a thread");
}

static void set_apart(void) {
    need(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0, "unshare");
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    need(any >= 0 && ioctl(any, SIOCSIFFLAGS, &loopback) == 0, "lo");
    close(any);
    need(unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWCGROUP) == 0, "unshare");
}

static void mount_root(int number) {
    char root[4096], at[4200], options[13000];
    snprintf(root, sizeof root, "%s/%d/root", directory, number);
    snprintf(options, sizeof options, "userxattr,lowerdir=%s/lower,upperdir=%s/%d/upper,workdir=%s/%d/work", directory, directory, number,
             directory, number);
    need(mount("overlay", root, "overlay", 0, options) == 0, "overlay");
    static const char *const others[][3] = {
        {"dev", "tmpfs", "size=1m"}, {"dev/pts", "devpts", "newinstance,ptmxmode=0666"}, {"proc", "proc", NULL}, {"sys", "sysfs", NULL}};
    for (size_t one = 0; one < sizeof others / sizeof *others; one++) {
        snprintf(at, sizeof at, "%s/%s", root, others[one][0]);
        mkdir(at, 0755);
        need(mount(others[one][1], at, others[one][1], 0, others[one][2]) == 0, at);
    }
    need(chroot(root) == 0 && chdir("/") == 0, "chroot");
}

/* The first process: it and two others, one of which has two more threads. */
static void guest(int number, int ready) {
    mount_root(number);
    /* The others are programs of their own. */
    need(madvise(memory, length, MADV_DONTFORK) == 0, "madvise");
    for (int threads = 0; threads < 3; threads += 2) {
        pid_t other = fork();
        need(other >= 0, "fork");
        if (other == 0) {
            for (int more = 0; more < threads; more++)
                thread();
            need(write(ready, "", 1) == 1, "write");
            idle(NULL);
        }
    }
    need(write(ready, "", 1) == 1, "write");
    idle(NULL);
}

static void leave(int number, int go, int ready, pid_t *first) {
    char byte;
    need(read(go, &byte, 1) == 1, "go");
    set_apart();
    pid_t inside = fork();
    need(inside >= 0, "fork");
    if (inside == 0)
        guest(number, ready);
    *first = inside;
    _exit(0);
}

static int heard(void) {
    char line[16];
    return fgets(line, sizeof line, stdin) != NULL;
}

static void begin(int number, pid_t *first) {
    int go[2], ready[2], status;
    char byte;
    need(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0, "pipe");
    pid_t leaver = fork();
    need(leaver >= 0, "fork");
    if (leaver == 0)
        leave(number, go[0], ready[1], first);
    printf("%d\n", leaver);
    fflush(stdout);
    need(heard() && write(go[1], "", 1) == 1, "go");
    need(waitpid(leaver, &status, 0) == leaver && status == 0, "a guest");
    close(ready[1]);
    for (int process = 0; process < 3; process++)
        need(read(ready[0], &byte, 1) == 1, "ready");
    close(go[0]), close(go[1]), close(ready[0]);
    puts("ready");
    fflush(stdout);
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    length = strtoul(words[1], NULL, 10) << 20;
    directory = words[2];
    fill();
    /* Their pids, noted by whoever forks them. */
    pid_t *firsts = room(MOST * sizeof *firsts, MAP_SHARED);
    need(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl");
    puts("filled");
    fflush(stdout);
    int number = 0;
    while (number < MOST && heard()) {
        begin(number, &firsts[number]);
        number++;
    }
    /* The rest of each ends with its first process. */
    for (int one = 0; one < number; one++)
        kill(firsts[one], SIGKILL);
    while (wait(NULL) > 0)
        ;
    return 0;
}
