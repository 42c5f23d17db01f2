/*
 * burglar OWN...: over and over, tries all that reaches into another process on every process that it sees, and writes
 * what it got to /taken, once each, as "PID WAY". Of those in OWN, which are the guest's and which it may have, it
 * looks only for descriptors that victims do not have themselves.
 *
 * burglar killer OWN...: sends them signals instead.
 * burglar victim: has memory that nobody else may have changed, and says so in /spoilt if somebody has.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where nobody has memory: who gets so far as to look for it is told EFAULT. */
#define NOWHERE ((void *)8)
#define MOST_DESCRIPTORS 1100

static void note(int pid, const char *way) {
    static char known[1000][80];
    static int count;
    static ino_t home;
    struct stat here = { 0 };
    char line[80];
    /* In a clone all is new. */
    stat("/proc/self/ns/pid", &here);
    if (here.st_ino != home)
        count = 0;
    home = here.st_ino;
    snprintf(line, sizeof line, "%d %.60s\n", pid, way);
    for (int i = 0; i < count; i++)
        if (!strcmp(known[i], line))
            return;
    if (count == 1000)
        return;
    strcpy(known[count++], line);
    int fd = open("/taken", O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, line, strlen(line)) < 0)
        perror("/taken");
    close(fd);
}

/* Whether there is anything to be had of a process: one that ends has no memory any more, and may be looked at. */
static int lives(int pid) {
    char path[100], line[1000], state = 'Z';
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    close(fd);
    line[length > 0 ? length : 0] = 0;
    char *rest = strrchr(line, ')');
    if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
        return 0;
    return state != 'Z' && state != 'X' && !(flags & 4 /* PF_EXITING */);
}

/* Whether a file of a process can be opened, and has something to read. */
static int reads(int pid, const char *name) {
    char path[100], byte;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY);
    int got = fd >= 0 && read(fd, &byte, 1) > 0;
    close(fd);
    return got;
}

static int opens(int pid, const char *name, int flags) {
    char path[100];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, flags);
    close(fd);
    return fd >= 0;
}

static int leads(int pid, const char *name) {
    char path[100], target[400];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return readlink(path, target, sizeof target) > 0;
}

static void files(int pid) {
    if (opens(pid, "mem", O_RDWR))
        note(pid, "mem");
    if (opens(pid, "fd", O_RDONLY | O_DIRECTORY))
        note(pid, "fd");
    if (opens(pid, "map_files", O_RDONLY | O_DIRECTORY))
        note(pid, "map_files");
    for (const char *const *name = (const char *const[]){ "maps", "environ", "auxv", NULL }; *name; name++)
        if (reads(pid, *name))
            note(pid, *name);
    for (const char *const *name = (const char *const[]){ "exe", "cwd", "root", "ns/mnt", NULL }; *name; name++)
        if (leads(pid, *name))
            note(pid, *name);
}

static void memory(int pid) {
    char byte = 0;
    struct iovec own = { &byte, 1 }, other = { NOWHERE, 1 };
    if (process_vm_readv(pid, &own, 1, &other, 1, 0) >= 0 || errno == EFAULT)
        note(pid, "readv");
    if (process_vm_writev(pid, &own, 1, &other, 1, 0) >= 0 || errno == EFAULT)
        note(pid, "writev");
    if (syscall(SYS_kcmp, getpid(), pid, KCMP_VM, 0, 0) >= 0 && lives(pid))
        note(pid, "kcmp");
}

static void trace(int pid) {
    if (!ptrace(PTRACE_SEIZE, pid, 0, 0)) {
        if (lives(pid))
            note(pid, "seize");
        ptrace(PTRACE_INTERRUPT, pid, 0, 0);
        waitpid(pid, NULL, __WALL);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
    if (!ptrace(PTRACE_ATTACH, pid, 0, 0)) {
        if (lives(pid))
            note(pid, "attach");
        waitpid(pid, NULL, __WALL);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
}

static void handle(int pid) {
    int process = syscall(SYS_pidfd_open, pid, 0);
    if (process < 0)
        return;
    for (int number = 0; number < 8; number++) {
        int got = syscall(SYS_pidfd_getfd, process, number, 0);
        if (got >= 0)
            note(pid, "getfd");
        close(got);
    }
    struct iovec all = { (void *)0x400000, 4096 };
    if (syscall(SYS_process_madvise, process, &all, 1, 20 /* MADV_COLD */, 0) >= 0)
        note(pid, "madvise");
    if (!setns(process, CLONE_NEWUTS | CLONE_NEWIPC))
        note(pid, "setns");
    close(process);
}

/* What a victim, which opens nothing, has besides the standard descriptors was left to it by who made it. */
static void leftovers(int pid) {
    char path[100], target[60], way[80], name[20] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? 0 : read(fd, name, sizeof name - 1);
    close(fd);
    if (length <= 0 || strcmp(name, "burglar\n"))
        return;
    for (int number = 3; number < MOST_DESCRIPTORS; number++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
        length = readlink(path, target, sizeof target - 1);
        if (length > 0) {
            target[length] = 0;
            snprintf(way, sizeof way, "leftover %d %s", number, target);
            note(pid, way);
        }
    }
}

/* One after the other, by signals of which some would have a program's memory dumped. */
static void kill_it(int pid) {
    static const int signals[] = { SIGKILL, SIGSEGV, SIGQUIT, SIGTERM };
    static unsigned turn;
    kill(pid, signals[turn++ % 4]);
    if (turn % 64 == 0)
        kill(pid, SIGKILL);
}

static void all(int is_killer, char **own) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        int pid = atoi(entry->d_name), mine = 0;
        for (char **one = own; *one; one++)
            mine |= atoi(*one) == pid;
        if (pid <= 0 || pid == getpid())
            continue;
        if (mine) {
            if (!is_killer)
                leftovers(pid);
            continue;
        }
        if (is_killer) {
            kill_it(pid);
            continue;
        }
        files(pid);
        memory(pid);
        trace(pid);
        handle(pid);
    }
    if (proc)
        closedir(proc);
}

static void stand(void) {
    enum { WORDS = 1 << 19 };
    volatile unsigned *words = malloc(WORDS * sizeof *words);
    for (unsigned i = 0; i < WORDS; i++)
        words[i] = i * 2654435761u;
    for (;;) {
        for (unsigned i = 0; i < WORDS; i++)
            if (words[i] != i * 2654435761u)
                mknod("/spoilt", S_IFREG | 0666, 0);
        mknod("/intact", S_IFREG | 0666, 0);
        utimensat(AT_FDCWD, "/intact", NULL, 0);
        usleep(20000);
    }
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "victim"))
        stand();
    int is_killer = count > 1 && !strcmp(words[1], "killer");
    signal(SIGTERM, SIG_IGN);
    for (;;)
        all(is_killer, words + 1 + is_killer);
}
