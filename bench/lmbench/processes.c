/* What takes more than one process. */
#include "lm.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void reap(pid_t child) {
    int status;
    need(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child");
}

static void fork_exit(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    reap(child);
}

static void fork_exec(void) {
    pid_t child = fork();
    if (child == 0) {
        execl(SELF, "lm", "nothing", NULL);
        _exit(1);
    }
    reap(child);
}

static void fork_sh(void) {
    pid_t child = fork();
    if (child == 0) {
        execl(SHELL, "sh", "-c", SELF " nothing", NULL);
        _exit(1);
    }
    reap(child);
}

/* A ring of processes that hand a byte on, each touching memory of its own before. */
#define MOST 16
static int ring[MOST + 1][2], members;
static long bytes;
static char memory[64 * 1024];
static pid_t others[MOST];
static int by_socket;

static void touch(void) {
    static volatile long sum;
    for (long at = 0; at < bytes; at += 64)
        sum += memory[at];
}

static void hand_on(int from, int to) {
    char byte;
    while (read(from, &byte, 1) == 1) {
        touch();
        if (write(to, &byte, 1) != 1)
            break;
    }
    _exit(0);
}

static void begin(int count, long size) {
    members = count;
    bytes = size;
    memset(memory, 1, sizeof memory);
    for (int i = 0; i < members; i++)
        need(!(by_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ring[i]) : pipe(ring[i])), "a pipe");
    /* This process is the first: it writes to 0 and reads from the last. */
    for (int i = 1; i < members; i++) {
        others[i] = fork();
        need(others[i] >= 0, "fork");
        if (others[i] == 0) {
            for (int k = 0; k < members; k++) {
                if (k != i - 1)
                    close(ring[k][0]);
                if (k != i)
                    close(ring[k][1]);
            }
            memset(memory, i, sizeof memory);
            hand_on(ring[i - 1][0], ring[i][1]);
        }
    }
}

static void around(void) {
    char byte = 'x';
    for (int i = 0; i < 8; i++) {
        need(write(ring[0][1], &byte, 1) == 1 && read(ring[members - 1][0], &byte, 1) == 1, "handing on");
        touch();
    }
}

static void end(void) {
    for (int i = 0; i < members; i++) {
        close(ring[i][0]);
        close(ring[i][1]);
    }
    for (int i = 1; i < members; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    by_socket = 0;
}

static void two(void) { begin(2, 0); }
static void two_by_socket(void) {
    by_socket = 1;
    begin(2, 0);
}
static void sixteen(void) { begin(16, 16 * 1024); }
static void sixteen_larger(void) { begin(16, 64 * 1024); }

const struct test processes[] = {
    { "fork process", NULL, fork_exit, NULL, 1 },
    { "exec process", NULL, fork_exec, NULL, 1 },
    { "sh process", NULL, fork_sh, NULL, 1 },
    { "ctx (2p/0K), by pipes", two, around, end, 16 },
    { "unix socket", two_by_socket, around, end, 16 },
    { "ctx (16p/16K), by pipes", sixteen, around, end, 128 },
    { "ctx (16p/64K), by pipes", sixteen_larger, around, end, 128 },
    { 0 },
};
