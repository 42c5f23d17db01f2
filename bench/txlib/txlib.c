/* Small transactions inside a program, and the same done without any, in turn.
 *   txlib DIRECTORY SAMPLES REST
 * Says for each what it was and how many microseconds it took, a line each. REST are the microseconds before each
 * sample. */
#include <err.h>
#include <fcntl.h>
#include <pando.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void nothing(void) {}

static void ten_reads(void)
{
    char name[16], content[128];
    for (int number = 0; number < 10; number++) {
        snprintf(name, sizeof name, "read-%d", number);
        int file = open(name, O_RDONLY);
        if (file < 0 || read(file, content, sizeof content) != 100)
            err(2, "reading %s", name);
        close(file);
    }
}

static int flushes;

static void one_file(void)
{
    char content[100];
    memset(content, 'a' + rand() % 26, sizeof content);
    int file = open("written", O_WRONLY);
    if (file < 0 || write(file, content, sizeof content) != sizeof content)
        err(2, "writing");
    if (flushes && fdatasync(file))
        err(2, "flushing");
    close(file);
}

static const struct {
    const char *name;
    void (*work)(void);
    unsigned flags;
} shapes[] = {
    {"empty", nothing, 0},
    {"ten reads", ten_reads, 0},
    {"one small file", one_file, 0},
    {"one small file, durable", one_file, PANDO_TX_DURABLE},
};

int main(int argc, char **argv)
{
    if (argc != 4 || chdir(argv[1]))
        errx(2, "txlib DIRECTORY SAMPLES REST");
    int samples = atoi(argv[2]), rest = atoi(argv[3]);
    char content[100] = {0};
    for (int number = 0; number < 11; number++) {
        char name[16];
        snprintf(name, sizeof name, number < 10 ? "read-%d" : "written", number);
        int file = open(name, O_WRONLY | O_CREAT, 0644);
        if (file < 0 || write(file, content, sizeof content) != sizeof content)
            err(2, "making %s", name);
        close(file);
    }
    for (int sample = -3; sample < samples; sample++)
        for (size_t at = 0; at < sizeof shapes / sizeof *shapes; at++) {
            double begun = now();
            flushes = shapes[at].flags & PANDO_TX_DURABLE;
            shapes[at].work();
            double native = now() - begun;
            flushes = 0;
            usleep(rest);
            begun = now();
            if (pando_tx_begin(shapes[at].flags) < 0)
                errx(2, "begin: %s", pando_tx_reason());
            double entered = now();
            shapes[at].work();
            double worked = now();
            if (pando_tx_end() != PANDO_TX_COMMITTED)
                errx(2, "end: %s", pando_tx_reason());
            double ended = now();
            /* The first warm up. */
            if (sample >= 0)
                printf("%s\t%.2f\t%.2f\t%.2f\t%.2f\n", shapes[at].name, native, entered - begun, worked - entered, ended - worked);
        }
    return 0;
}
