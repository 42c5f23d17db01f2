/*
 * lm: reads names of tests, a line each, and answers each with nanoseconds an operation. `lm nothing` ends at once: it
 * is what exec and sh start.
 */
#include "lm.h"
#include <sched.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static const struct test *find(const char *name) {
    const struct test *lists[] = { alone, processes };
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct test *one = lists[i]; one->name; one++)
            if (!strcmp(one->name, name))
                return one;
    return NULL;
}

/* Everything on one processor: where the scheduler puts two processes is not what is measured. */
static void stay(void) {
    cpu_set_t all, last;
    CPU_ZERO(&last);
    need(!sched_getaffinity(0, sizeof all, &all), "asking for processors");
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &last);
            break;
        }
    need(!sched_setaffinity(0, sizeof last, &last), "staying on a processor");
}

/* Turns for some 25 ms, after a few that do not count. */
static double measure(const struct test *test) {
    const double enough = 25e6;
    long turns = 0;
    if (test->begin)
        test->begin();
    double warm = now();
    do
        test->turn();
    while (now() - warm < enough / 10);
    double begun = now(), passed;
    do {
        for (int i = 0; i < 4; i++)
            test->turn();
        turns += 4;
        passed = now() - begun;
    } while (passed < enough);
    if (test->end)
        test->end();
    return passed / turns / test->operations;
}

int main(int count, char **words) {
    char line[100];
    if (count > 1)
        return strcmp(words[1], "nothing") != 0;
    stay();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        const struct test *test = find(line);
        need(test != NULL, "finding the test");
        printf("%.3f\n", measure(test));
        fflush(stdout);
    }
    return 0;
}
