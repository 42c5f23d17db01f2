/* A program that tries one thing a hostile guest would try: see main.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct attack {
    const char *name;
    /* Returns 0 or more where it got through, else -1 with errno. */
    long (*try)(char **arguments);
    /* Whether root of a user namespace of its own, made inside the guest, shall try it as well. */
    int nested;
};

/* One list a file, each ended by an entry without a name. */
extern const struct attack calls[], files[], neighbours[], published[];

/*
 * For calls with arguments that can do no harm: the call got through to the kernel if it was not refused for want of a
 * right.
 */
static inline long reached(long result) {
    return result >= 0 || (errno != EPERM && errno != EACCES) ? 0 : -1;
}

/* An argument that the attack needs. */
static inline char *needed(char **arguments, int number) {
    for (int i = 0; i <= number; i++)
        if (!arguments[i]) {
            fprintf(stderr, "attack: argument %d is missing\n", number);
            exit(2);
        }
    return arguments[number];
}
