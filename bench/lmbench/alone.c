/* What one process asks of the kernel. */
#include "lm.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int null, zero;

static void open_both(void) {
    null = open("/dev/null", O_WRONLY);
    zero = open("/dev/zero", O_RDONLY);
    need(null >= 0 && zero >= 0, "opening devices");
}
static void close_both(void) {
    close(null);
    close(zero);
}

/* So many of the quick calls are one turn. */
#define MANY 200
#define EACH for (int i = 0; i < MANY; i++)

static void null_call(void) { EACH syscall(SYS_getppid); }
static void read_zero(void) {
    char byte;
    EACH need(read(zero, &byte, 1) == 1, "reading");
}
static void write_null(void) { EACH need(write(null, "x", 1) == 1, "writing"); }
static void stat_file(void) {
    struct stat found;
    EACH need(!stat(FILE_OF_THE_SYSTEM, &found), "stat");
}
static void stat_on_a_volume(void) {
    struct stat found;
    EACH need(!stat(FILE_ON_A_VOLUME, &found), "stat");
}
static void open_close_on_a_volume(void) { EACH need(!close(open(FILE_ON_A_VOLUME, O_RDONLY)), "opening"); }
static void open_close(void) { EACH need(!close(open(FILE_OF_THE_SYSTEM, O_RDONLY)), "opening"); }

#define WATCHED 100
static int watched[WATCHED];
static void open_watched(void) {
    for (int i = 0; i < WATCHED; i++)
        need((watched[i] = open("/dev/zero", O_RDONLY)) >= 0, "opening");
}
static void close_watched(void) {
    for (int i = 0; i < WATCHED; i++)
        close(watched[i]);
}
static void select_watched(void) {
    struct timeval at_once = { 0, 0 };
    fd_set set;
    for (int turn = 0; turn < 10; turn++) {
        FD_ZERO(&set);
        for (int i = 0; i < WATCHED; i++)
            FD_SET(watched[i], &set);
        need(select(watched[WATCHED - 1] + 1, &set, NULL, NULL, &at_once) == WATCHED, "select");
    }
}

static void ignore(int signal) { (void)signal; }
static void install(void) {
    struct sigaction action = { .sa_handler = ignore };
    EACH need(!sigaction(SIGUSR1, &action, NULL), "sigaction");
}
static void handle(void) { EACH raise(SIGUSR1); }

static void *mapping;
static int file;
static void open_file(void) { need((file = open(FILE_OF_THE_SYSTEM, O_RDONLY)) >= 0, "opening"); }
static void close_file(void) { close(file); }
#define SIZE (FILE_PAGES * 4096L)

/* Maps it, touches a page of sixteen, and lets go. */
static void map(void) {
    char sum = 0;
    mapping = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
    need(mapping != MAP_FAILED, "mmap");
    for (long at = 0; at < SIZE; at += 16 * 4096)
        sum += ((volatile char *)mapping)[at];
    need(sum != 1 && !munmap(mapping, SIZE), "munmap");
}

/* Every page of a file that lies in memory, one fault each. */
static void fault(void) {
    char sum = 0;
    mapping = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
    need(mapping != MAP_FAILED && !madvise(mapping, SIZE, MADV_RANDOM), "mmap");
    for (long at = 0; at < SIZE; at += 4096)
        sum += ((volatile char *)mapping)[at];
    need(sum != 1 && !munmap(mapping, SIZE), "munmap");
}

/* Every page of new memory. */
static void fresh(void) {
    mapping = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(mapping != MAP_FAILED, "mmap");
    for (long at = 0; at < SIZE; at += 4096)
        ((volatile char *)mapping)[at] = 1;
    need(!munmap(mapping, SIZE), "munmap");
}

const struct test alone[] = {
    { "null call", NULL, null_call, NULL, MANY },
    { "read", open_both, read_zero, close_both, MANY },
    { "write", open_both, write_null, close_both, MANY },
    { "stat", NULL, stat_file, NULL, MANY },
    { "open and close", NULL, open_close, NULL, MANY },
    { "stat, on a volume", NULL, stat_on_a_volume, NULL, MANY },
    { "open and close, on a volume", NULL, open_close_on_a_volume, NULL, MANY },
    { "select of 100", open_watched, select_watched, close_watched, 10 },
    { "signal, installing", NULL, install, NULL, MANY },
    { "signal, handling", install, handle, NULL, MANY },
    { "mmap", open_file, map, close_file, 1 },
    { "page fault, file", open_file, fault, close_file, FILE_PAGES },
    { "page fault, memory", NULL, fresh, NULL, FILE_PAGES },
    { 0 },
};
