/*
 * attack NAME [ARGUMENT…]: tries one thing. Exit code 0: it got through; 1: it was denied; 2: there is no such attack.
 *
 * As a guest's first process without words: an init that only waits, and ends when it is asked to.
 */
#include "attack.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static const struct attack *find(const char *name) {
    const struct attack *lists[] = { calls, files, neighbours, published };
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct attack *one = lists[i]; one->name; one++)
            if (!strcmp(one->name, name))
                return one;
    return NULL;
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd >= 0) {
        if (write(fd, text, strlen(text)) < 0)
            perror(path);
        close(fd);
    }
}

/* Tries again as root of a user namespace of its own, in which every capability is had again. */
static int nested(const struct attack *attack, char **arguments) {
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP))
            _exit(1);
        put("/proc/self/setgroups", "deny");
        put("/proc/self/uid_map", "0 0 1");
        put("/proc/self/gid_map", "0 0 1");
        _exit(attack->try(arguments) < 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void stand_as_init(void) {
    sigset_t all;
    int which = 0;
    sigemptyset(&all);
    sigaddset(&all, SIGTERM);
    sigaddset(&all, SIGCHLD);
    sigprocmask(SIG_BLOCK, &all, NULL);
    while (which != SIGTERM) {
        sigwait(&all, &which);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

int main(int count, char **words) {
    if (count == 1 && getpid() == 1) {
        stand_as_init();
        return 0;
    }
    const struct attack *attack = count > 1 ? find(words[1]) : NULL;
    if (!attack) {
        fprintf(stderr, "usage: attack NAME [ARGUMENT...]\n");
        return 2;
    }
    if (attack->try(words + 2) >= 0) {
        printf("%s: got through\n", attack->name);
        return 0;
    }
    printf("%s: denied: %s\n", attack->name, strerror(errno));
    if (attack->nested && !nested(attack, words + 2)) {
        printf("%s: got through, in a user namespace of its own\n", attack->name);
        return 0;
    }
    return 1;
}
