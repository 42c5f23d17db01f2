/* What a program may do wrong, or cannot have: each is an answer that says so. A word a line: what went otherwise. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pando.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void refused(int result, const char *words, int line)
{
    if (result == PANDO_TX_ERROR && strstr(pando_tx_reason(), words))
        return;
    failures++;
    fprintf(stderr, "line %d: %d, %s\n", line, result, pando_tx_reason());
}

#define REFUSED(result, words) refused(result, words, __LINE__)
#define FINE(what) (void)((what) || (failures++, fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, pando_tx_reason())))

static void *end_it(void *unused)
{
    REFUSED(pando_tx_end(), "belongs to thread");
    REFUSED(pando_tx_abort(1), "belongs to thread");
    FINE(pando_tx_status() == PANDO_TX_OTHER_THREAD);
    return unused;
}

static void *wait_long(void *unused)
{
    pause();
    return unused;
}

int main(void)
{
    pthread_t thread;
    REFUSED(pando_tx_end(), "no transaction to end");
    REFUSED(pando_tx_abort(0), "no transaction to end");
    REFUSED(pando_tx_begin(1 << 20), "no flag");
    REFUSED(pando_tx_begin(PANDO_TX_MEMORY), "PANDO_TX_MEMORY");
    FINE(pando_tx_status() == PANDO_TX_NONE);

    FINE(pando_tx_begin(0) == 0 && *pando_tx_reason() == 0);
    REFUSED(pando_tx_begin(0), "do not nest");
    FINE(pando_tx_status() == PANDO_TX_ACTIVE);
    /* A thread that was started inside is not the one that began it. */
    pthread_create(&thread, NULL, end_it, NULL), pthread_join(thread, NULL);
    FINE(pando_tx_end() == PANDO_TX_COMMITTED);

    /* What still runs is named, and the transaction goes on. */
    FINE(pando_tx_begin(0) == 0);
    pid_t child = fork();
    if (child == 0)
        pause(), _exit(0);
    REFUSED(pando_tx_end(), "still runs");
    FINE(pando_tx_status() == PANDO_TX_ACTIVE);
    kill(child, 9), waitpid(child, NULL, 0);
    FINE(pando_tx_end() == PANDO_TX_COMMITTED);

    /* An abort ends it, its orphans too. */
    FINE(pando_tx_begin(0) == 0);
    int ends[2], alive;
    FINE(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        if (fork() == 0)
            pause();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    close(ends[1]);
    REFUSED(pando_tx_end(), "still runs");
    FINE(pando_tx_abort(1) == 0);
    FINE(read(ends[0], &alive, 1) == 0);
    while (waitpid(-1, NULL, 0) > 0)
        ;

    /* Files that have no name, locks that would be lost, memory that is a file's. */
    int file = open("f", O_RDWR | O_CREAT, 0644);
    FINE(write(file, "x", 1) == 1);
    struct flock lock = {.l_type = F_WRLCK};
    FINE(fcntl(file, F_SETLK, &lock) == 0);
    REFUSED(pando_tx_begin(0), "holds a lock");
    FINE(strstr(pando_tx_object(), "/f") != NULL);
    lock.l_type = F_UNLCK;
    FINE(fcntl(file, F_SETLK, &lock) == 0);
    void *memory = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REFUSED(pando_tx_begin(0), "is mapped");
    FINE(munmap(memory, 1) == 0 && unlink("f") == 0);
    REFUSED(pando_tx_begin(0), "was removed");
    FINE(pando_tx_begin(PANDO_TX_WARN) == 0 && pando_tx_end() == PANDO_TX_COMMITTED);
    close(file);

    /* Threads share what is open. */
    pthread_create(&thread, NULL, wait_long, NULL);
    REFUSED(pando_tx_begin(0), "threads");
    FINE(pando_tx_begin(PANDO_TX_THREAD) == 0);
    FINE(close(open("alone", O_WRONLY | O_CREAT, 0644)) == 0 && pando_tx_end() == PANDO_TX_COMMITTED && access("alone", F_OK) == 0);
    FINE(pando_tx_begin(PANDO_TX_THREAD) == 0 && unlink("alone") == 0 && pando_tx_abort(1) == 0 && access("alone", F_OK) == 0);
    return failures ? 1 : 0;
}
