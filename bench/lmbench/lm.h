/* What lmbench's OS subset measures, written anew: see lm.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* One turn of what is measured. */
struct test {
    const char *name;
    /* Before and after the turns; may be absent. */
    void (*begin)(void);
    void (*turn)(void);
    void (*end)(void);
    /* How many operations a turn is. */
    long operations;
};

extern const struct test alone[], processes[];

/* The program itself and a file of the system, by paths that are the same wherever it runs. */
#define SELF "/bin/lm"
#define SHELL "/bin/sh"
#define FILE_OF_THE_SYSTEM "/etc/lm-file"
#define FILE_ON_A_VOLUME "/data/lm-file"
#define FILE_PAGES 256

static inline void need(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "lm: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}
