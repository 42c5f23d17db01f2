/* Adds one to two numbers in files, as a transaction each time, and begins again where others were in the way.
 *   counter TIMES [FLAGS] */
#include <err.h>
#include <pando.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int number(const char *path)
{
    int number = 0;
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &number) != 1)
        err(2, "reading %s", path);
    fclose(file);
    return number;
}

static void set(const char *path, int number)
{
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d\n", number) < 0 || fclose(file))
        err(2, "writing %s", path);
}

int main(int argc, char **argv)
{
    unsigned flags = argc > 2 ? (unsigned)atoi(argv[2]) : PANDO_TX_RETRY;
    for (volatile int time = 0; time < atoi(argv[1]); time++) {
        int tries = pando_tx_begin(flags);
        if (tries < 0)
            errx(3, "begin: %s", pando_tx_reason());
        int left = number("left"), right = number("right");
        /* On the host others can be seen to be half done; whoever has seen that is in conflict, and begins again. */
        if (left != right) {
            int seen = pando_tx_end();
            errx(4, "half done: %d, %d, and the end said %d", left, right, seen);
        }
        set("left", left + 1);
        set("right", right + 1);
        int result = pando_tx_end();
        if (result != PANDO_TX_COMMITTED)
            errx(3, "end: %d, %s", result, pando_tx_reason());
        if (write(1, ".", 1) != 1)
            return 1;
    }
    return 0;
}
