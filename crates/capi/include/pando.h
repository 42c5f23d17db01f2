/* System transactions inside a program: what is done to files between a beginning and an end is done as a whole, or not
 * at all, and nobody else sees any of it before. See pando_tx(3).
 *
 *   do {
 *       if (pando_tx_begin(PANDO_TX_DURABLE) < 0) errx(1, "%s", pando_tx_reason());
 *       ... read and write files ...
 *   } while ((ended = pando_tx_end()) == PANDO_TX_CONFLICT);
 */
#ifndef PANDO_H
#define PANDO_H

#include <setjmp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Wishes of pando_tx_begin(). */
enum pando_tx_flag {
    PANDO_TX_DURABLE = 1, /* its commit survives a loss of power */
    PANDO_TX_RETRY = 2,   /* after a conflict, go on behind pando_tx_begin() again, as longjmp(3) does */
    PANDO_TX_MEMORY = 4,  /* an abort restores the program's memory: not supported yet, and refused */
    PANDO_TX_WARN = 8,    /* pass over what cannot be covered, instead of refusing to begin */
    PANDO_TX_THREAD = 16  /* it is the calling thread's alone; descriptors that are open already lead outside */
};

/* What pando_tx_end() and pando_tx_abort() return. */
enum pando_tx_result {
    PANDO_TX_ERROR = -1,    /* pando_tx_reason() says why */
    PANDO_TX_COMMITTED = 0, /* everything is done; of an abort: nothing is */
    PANDO_TX_CONFLICT = 1,  /* others were in its way, nothing is done; pando_tx_object() is what they changed */
    PANDO_TX_AGAIN = 2      /* the same, and it is to be begun again: seen only where the macros below are not used */
};

/* What pando_tx_status() returns. */
enum pando_tx_state {
    PANDO_TX_NONE = 0,           /* there is no transaction */
    PANDO_TX_ACTIVE = 1,         /* this thread is in one */
    PANDO_TX_OTHER_THREAD = 2,   /* another thread of this program is in one */
    PANDO_TX_PART = 3            /* this process was forked inside one, and is a part of it */
};

/* Begins a transaction: how often the same was tried before, or PANDO_TX_ERROR. */
int pando_tx_begin(unsigned flags);

/* Ends it: an enum pando_tx_result. */
int pando_tx_end(void);

/* Aborts it, which is done however it was begun; with PANDO_TX_RETRY it is begun again, unless no_restart. */
int pando_tx_abort(int no_restart);

/* Whether there is one: an enum pando_tx_state. */
int pando_tx_status(void);

/* Why the last call failed, or the last transaction was not committed, in a sentence, and what that is about: a path, a
 * descriptor, a flag. Empty where there is nothing to say. Each lives until this thread asks again. */
const char *pando_tx_reason(void);
const char *pando_tx_object(void);

#ifndef PANDO_TX_NO_RESTART
/* Where PANDO_TX_RETRY goes on. The function that has called pando_tx_begin() must not have returned. */
__attribute__((weak)) __thread jmp_buf pando_tx_restart_point;

static inline int pando_tx_restart(int result)
{
    if (result == PANDO_TX_AGAIN)
        longjmp(pando_tx_restart_point, 1);
    return result;
}

#define pando_tx_begin(flags) ((void)setjmp(pando_tx_restart_point), pando_tx_begin(flags))
#define pando_tx_end() pando_tx_restart(pando_tx_end())
#define pando_tx_abort(no_restart) pando_tx_restart(pando_tx_abort(no_restart))
#endif

#ifdef __cplusplus
}
#endif

#endif
