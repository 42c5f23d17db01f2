/*
 * What a freeze must leave as it is, held and watched by the frozen program itself.
 *   standing filter THREADS   calls keyctl(2), io_uring_setup(2) and userfaultfd(2) without a pause: each is refused by
 *                             the guest's filter. Says in /said how often one of them was not.
 *   standing trap             has a handler for SIGTRAP, a child that ignores it, and one that blocks it.
 *   standing section          is nearly always in a critical section of restartable sequences (rseq(2)). The kernel
 *                             forgets the section when the thread is made to do something else: one that reaches its
 *                             end and is forgotten was led on in the middle. Says in /said how often that was.
 *   standing raise            sends itself SIGTRAP and runs into breakpoints without a pause. Says in /said how often
 *                             its handler was not called for one.
 *   standing reaper           is a child subreaper (PR_SET_CHILD_SUBREAPER) that waits for no child but those that it
 *                             knows. Says in /said how many orphans of its children's there were, and how many of them
 *                             did not fall to it.
 *   standing vfork            waits in vfork(2) for some milliseconds, again and again.
 *   standing prefork MIB N    fills so much memory of small pages and then forks N who only read it, as servers do that
 *                             load first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *text) { ssize_t n = write(1, text, strlen(text)); (void)n; }

static volatile long tries, passed;

static void *call(void *which) {
    static char room[256];
    for (long kind = (long)which;; kind++) {
        long result;
        switch (kind % 3) {
        case 0: result = syscall(SYS_keyctl, 0, -3, 0, 0, 0); break;
        case 1: memset(room, 0, sizeof room); result = syscall(SYS_io_uring_setup, 4, room); break;
        default: result = syscall(SYS_userfaultfd, 1); break;
        }
        // A ring or a userfaultfd that stays open could not be frozen.
        if (kind % 3 && result >= 0) close(result);
        __atomic_add_fetch(&tries, 1, __ATOMIC_RELAXED);
        if (result >= 0 || (errno != EPERM && errno != ENOSYS)) __atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

static void say_in_file(const char *text) {
    FILE *file = fopen("/said.new", "w");
    if (!file) return;
    fputs(text, file);
    fclose(file);
    rename("/said.new", "/said");
}

static void filter(long threads) {
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, call, (void *)i);
    }
    char text[128];
    for (;;) {
        usleep(20000);
        snprintf(text, sizeof text, "%ld calls, %ld passed\n", tries, passed);
        say_in_file(text);
    }
}

static void handler(int signal) { (void)signal; }

static void trap(void) {
    if (fork() == 0) {
        signal(SIGTRAP, SIG_IGN);
        for (;;) pause();
    }
    signal(SIGTRAP, handler);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    if (fork() == 0) sigprocmask(SIG_BLOCK, &set, 0);
    say("ready\n");
    for (;;) pause();
}

static volatile unsigned long long last;

/* Goes through one section, of some tenths of a millisecond; whether the kernel had forgotten it at its end. */
static int through_section(volatile struct rseq *area) {
    __asm__ goto(
        ".pushsection __rseq_cs, \"aw\"\n .balign 32\n 3:\n .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
        ".pushsection __rseq_failure, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n 4: jmp %l[again]\n .popsection\n"
        "leaq 3b(%%rip), %%rax\n movq %%rax, 8(%0)\n"
        "1: movl $600000, %%ecx\n 5: decl %%ecx\n jnz 5b\n movq 8(%0), %%rax\n movq %%rax, %1\n 2:\n"
        : : "r"(area), "m"(last) : "rax", "rcx", "memory", "cc" : again);
    return last == 0;
again:
    return 0;
}

static void section(void) {
    volatile struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    char text[128];
    for (long all = 0, harmed = 0;; all++) {
        harmed += through_section(area);
        if (all % 64 == 63) {
            snprintf(text, sizeof text, "%ld sections, %ld harmed\n", all, harmed);
            say_in_file(text);
        }
    }
}

static volatile int taken;

static void take(int signal) { (void)signal; taken++; }

static void raise_all(void) {
    char text[128];
    signal(SIGTRAP, take);
    for (long all = 0, lost = 0;; all++) {
        int before = taken;
        if (all & 1) __asm__ volatile("int3");
        else raise(SIGTRAP);
        lost += taken != before + 1;
        if (all % 4096 == 0) {
            snprintf(text, sizeof text, "%ld traps, %ld lost\n", all, lost);
            say_in_file(text);
        }
    }
}

static void reaper(void) {
    char text[128];
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (long fallen = 0, rounds = 0;;) {
        int ends[2], orphan = 0;
        if (pipe(ends)) return;
        int child = fork();
        if (child == 0) {
            int parent = getpid();
            if ((orphan = fork()) == 0) {
                close(ends[0]);
                while (getppid() == parent) usleep(1000);
                _exit(0);
            }
            ssize_t n = write(ends[1], &orphan, sizeof orphan);
            (void)n;
            _exit(0);
        }
        ssize_t n = read(ends[0], &orphan, sizeof orphan);
        (void)n;
        close(ends[0]);
        close(ends[1]);
        waitpid(child, 0, 0);
        rounds++;
        // One that fell to another is not there to be waited for.
        fallen += waitpid(orphan, 0, 0) == orphan;
        snprintf(text, sizeof text, "%ld orphans, %ld elsewhere\n", rounds, rounds - fallen);
        say_in_file(text);
        usleep(20000);
    }
}

static void wait_in_vfork(void) {
    char text[128];
    // The child has this function's variables, too.
    static long rounds;
    for (rounds = 1;; rounds++) {
        int child = vfork();
        if (child == 0) {
            struct timespec moment = {0, 12000000};
            syscall(SYS_nanosleep, &moment, 0);
            _exit(0);
        }
        waitpid(child, 0, 0);
        snprintf(text, sizeof text, "%ld rounds, 0 harmed\n", rounds);
        say_in_file(text);
    }
}

static void prefork(long mebibytes, long workers) {
    size_t length = mebibytes << 20;
    // Huge pages are what a freeze may make of it later.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    char *memory = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < length; at += 4096) memory[at] = at >> 12 | 1;
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    while (workers-- > 0 && fork() != 0) {}
    say("ready\n");
    for (;;) pause();
}

int main(int count, char **words) {
    if (count > 2 && strcmp(words[1], "filter") == 0) filter(atol(words[2]));
    if (count > 1 && strcmp(words[1], "trap") == 0) trap();
    if (count > 1 && strcmp(words[1], "section") == 0) section();
    if (count > 1 && strcmp(words[1], "raise") == 0) raise_all();
    if (count > 1 && strcmp(words[1], "reaper") == 0) reaper();
    if (count > 1 && strcmp(words[1], "vfork") == 0) wait_in_vfork();
    if (count > 3 && strcmp(words[1], "prefork") == 0) prefork(atol(words[2]), atol(words[3]));
    return 2;
}
