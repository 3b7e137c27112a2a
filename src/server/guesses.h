/* guesses.h - wrong API keys, by the address that sent them: how long each answer is held back.
 *
 * The first few wrong keys of an address within a minute are answered at once: people
 * mistype.  Each further one is answered after the one before it, and after a pause that
 * doubles.  A right key is never held back, so that nobody can lock others out who share an
 * address with him, behind a proxy say.
 *
 * Addresses share a fixed table by their hash, IPv6 ones by their first 64 bits, which one
 * customer has to himself.  Any thread. */
#ifndef SERVER_GUESSES_H
#define SERVER_GUESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct guesses;

enum {
    GUESSES_FREE = 5, /* within GUESSES_WINDOW_S of each other */
    GUESSES_WINDOW_S = 60,
    GUESSES_MAX_HOLD_S = 30,
};

struct guess {
    int64_t hold_ns;   /* hold the answer back for so long */
    bool tell;         /* say it in the log: at most one line a second */
    uint64_t n_untold; /* wrong keys since the last line, this one not counted */
    char address[64];  /* of the sender, for the log */
};

void guesses_create(struct guesses **out);
void guesses_destroy(struct guesses *g); /* NULL is allowed */

/* A wrong key has come from that address (NULL: unknown) at now_ns. */
void guesses_add(struct guesses *g, const struct sockaddr *from, int64_t now_ns,
                 struct guess *out);
uint64_t guesses_count(struct guesses *g); /* since the start */

#endif
