/* A program that installs filters of system calls, gives up privileges, and counts in /count for as long as it runs.
 *   filtered WORD...       each of which, in this order, has it
 *     CALL=lie             install a filter that answers a call with success
 *     CALL=kill            install one that ends who makes it
 *     CALL=EPERM           install one that refuses it
 *     list                 install one that lets pass what a simple server needs, and ends who calls anything else
 *     nnp                  gain no privileges any more
 *     uid, gid, groups     be 1000, in all of them
 *     fsuid                open files as 1000
 *     bound                lose the capability to reboot for good
 *     thread               have another thread, which sleeps. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOAD BPF_STMT(BPF_LD + BPF_W + BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(what) BPF_STMT(BPF_RET + BPF_K, what)

static const struct {
    const char *name;
    unsigned number;
} CALLS[] = {
    {"setresuid", SYS_setresuid}, {"setresgid", SYS_setresgid}, {"setgroups", SYS_setgroups},
    {"setfsuid", SYS_setfsuid},   {"capset", SYS_capset},       {"prctl", SYS_prctl},
    {"seccomp", SYS_seccomp},     {"mount", SYS_mount},         {"rt_sigreturn", SYS_rt_sigreturn},
};

static const unsigned LIST[] = {
    SYS_read,  SYS_write,           SYS_pwrite64, SYS_close,  SYS_munmap,     SYS_rt_sigreturn,
    SYS_futex, SYS_clock_nanosleep, SYS_getpid,   SYS_getuid, SYS_exit_group, SYS_restart_syscall,
};

static int install(struct sock_filter *filter, size_t length) {
    struct sock_fprog program = {length, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int list(void) {
    enum { COUNT = sizeof LIST / sizeof *LIST };
    struct sock_filter filter[COUNT + 3] = {LOAD};
    for (int i = 0; i < COUNT; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP + BPF_JEQ + BPF_K, LIST[i], COUNT - i, 0);
    filter[COUNT + 1] = (struct sock_filter)ANSWER(SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)ANSWER(SECCOMP_RET_ALLOW);
    return install(filter, COUNT + 3);
}

static int one(const char *word) {
    const char *action = strchr(word, '=');
    for (size_t i = 0; action && i < sizeof CALLS / sizeof *CALLS; i++) {
        if (strncmp(word, CALLS[i].name, action - word) || CALLS[i].name[action - word]) continue;
        unsigned answer = strcmp(action, "=lie") == 0    ? SECCOMP_RET_ERRNO
                          : strcmp(action, "=kill") == 0 ? SECCOMP_RET_KILL_PROCESS
                                                         : SECCOMP_RET_ERRNO | 1;
        struct sock_filter filter[] = {LOAD, BPF_JUMP(BPF_JMP + BPF_JEQ + BPF_K, CALLS[i].number, 0, 1),
                                       ANSWER(answer), ANSWER(SECCOMP_RET_ALLOW)};
        return install(filter, 4);
    }
    return -1;
}

static void *sleeper(void *nothing) {
    for (;;) nanosleep(&(struct timespec){3600, 0}, 0);
    return nothing;
}

static int do_it(const char *word) {
    pthread_t thread;
    gid_t group = 1000;
    if (!strcmp(word, "nnp")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(word, "uid")) return setuid(1000);
    if (!strcmp(word, "gid")) return setgid(1000);
    if (!strcmp(word, "groups")) return setgroups(1, &group);
    if (!strcmp(word, "fsuid")) return setfsuid(1000) < 0;
    if (!strcmp(word, "bound")) return prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT, 0, 0, 0);
    if (!strcmp(word, "thread")) return pthread_create(&thread, 0, sleeper, 0);
    if (!strcmp(word, "list")) return list();
    return one(word);
}

int main(int count, char **words) {
    int file = open("/count", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    for (int i = 1; i < count; i++)
        if (do_it(words[i])) {
            perror(words[i]);
            return 1;
        }
    for (unsigned long counted = 1;; counted++) {
        char text[32];
        int length = snprintf(text, sizeof text, "%lu\n", counted);
        if (pwrite(file, text, length, 0) < 0) return 1;
        nanosleep(&(struct timespec){0, 20000000}, 0);
    }
}
