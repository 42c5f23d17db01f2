/*
 * Kinds of kernel objects, held by a program that says what they are: in a clone they are what they were when it was
 * frozen.
 *   kept timer SECONDS   has a timerfd that runs out at a time of the wall clock, and says so should that be set. Says
 *                        in /asked when that is, and in /said with which flags and when it will, in milliseconds.
 *   kept linked DIR      maps a file by a name that goes while another comes, and has a child map it by that one: what
 *                        one writes the other reads. The child says in /said how often it has seen a change.
 *   kept memory DIR      puts files into a directory in memory: one with two names, one of long ago.
 *   kept dead            has children that were ended by signals and that ended by themselves, and asks for them once
 *                        there is /go. Says in /said what they ended of, in their order.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say_in(const char *path, const char *text) {
    char new[64];
    snprintf(new, sizeof new, "%s.new", path);
    FILE *file = fopen(new, "w");
    if (!file) return;
    fputs(text, file);
    fclose(file);
    rename(new, path);
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static void timer(long seconds) {
    char text[128], path[64];
    int timer = timerfd_create(CLOCK_REALTIME, 0);
    long long at = now() + seconds * 1000;
    struct itimerspec set = {.it_value = {at / 1000, at % 1000 * 1000000}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &set, 0)) return;
    snprintf(text, sizeof text, "%lld\n", at);
    say_in("/asked", text);
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", timer);
    for (;; usleep(20000)) {
        char line[128];
        unsigned flags = 0;
        FILE *info = fopen(path, "r");
        while (info && fgets(line, sizeof line, info)) sscanf(line, "settime flags: %o", &flags);
        if (info) fclose(info);
        struct itimerspec left;
        timerfd_gettime(timer, &left);
        snprintf(text, sizeof text, "%u %lld\n", flags, now() + left.it_value.tv_sec * 1000LL + left.it_value.tv_nsec / 1000000);
        say_in("/said", text);
    }
}

static void linked(const char *directory) {
    char lost[200], name[200], text[64];
    snprintf(lost, sizeof lost, "%s/temporary", directory);
    snprintf(name, sizeof name, "%s/published", directory);
    int file = open(lost, O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, 4096)) return;
    volatile long *mine = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (link(lost, name) || unlink(lost)) return;
    if (fork() == 0) {
        munmap((void *)mine, 4096);
        file = open(name, O_RDWR);
        volatile long *other = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        for (long seen = 0, last = 0;; usleep(10000)) {
            if (*other == last) continue;
            last = *other;
            snprintf(text, sizeof text, "%ld changes\n", ++seen);
            say_in("/said", text);
        }
    }
    for (;; usleep(10000)) ++*mine;
}

static void memory(const char *directory) {
    char one[200], two[200];
    snprintf(one, sizeof one, "%s/one", directory);
    snprintf(two, sizeof two, "%s/two", directory);
    int file = open(one, O_RDWR | O_CREAT, 0600);
    if (write(file, "one\n", 4) != 4 || link(one, two)) return;
    struct timespec times[2] = {{1000000000, 5}, {1000000007, 9}};
    futimens(file, times);
    close(file);
    mkdir(strcat(one, ".d"), 0700);
    utimensat(AT_FDCWD, one, times, 0);
    say_in("/said", "ready\n");
    for (;;) pause();
}

static void dead(void) {
    static const int ends[] = {SIGKILL, SIGSEGV, SIGTERM, SIGPIPE, 0};
    enum { COUNT = sizeof ends / sizeof *ends };
    int pids[COUNT], status;
    char text[128] = "";
    for (int i = 0; i < COUNT; i++) {
        if ((pids[i] = fork()) == 0) {
            if (ends[i]) raise(ends[i]);
            _exit(13);
        }
        siginfo_t info;
        waitid(P_PID, pids[i], &info, WEXITED | WNOWAIT);
    }
    say_in("/said", "ready\n");
    while (access("/go", F_OK)) usleep(10000);
    for (int i = 0; i < COUNT; i++) {
        waitpid(pids[i], &status, 0);
        // Whether there was a core dump is not of the end.
        sprintf(text + strlen(text), "%d ", status & ~0x80);
    }
    say_in("/said", strcat(text, "\n"));
    for (;;) pause();
}

int main(int count, char **words) {
    if (count > 2 && strcmp(words[1], "timer") == 0) timer(atol(words[2]));
    if (count > 2 && strcmp(words[1], "linked") == 0) linked(words[2]);
    if (count > 2 && strcmp(words[1], "memory") == 0) memory(words[2]);
    if (count > 1 && strcmp(words[1], "dead") == 0) dead();
    return 2;
}
