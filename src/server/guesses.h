/* guesses.h - wrong API keys, by the address that sent them: how long each answer is delayed.
 *
 * The first few wrong keys of an address within a minute are answered at once, because people
 * mistype. The answer to each further one waits for the previous answer, and then for a pause that
 * doubles. A right key is never delayed. So a client cannot lock out others that share its address,
 * for example behind a proxy.
 *
 * Addresses share a fixed table by their hash, IPv6 addresses by their first 64 bits, which one
 * customer has. Any thread. */
#ifndef SERVER_GUESSES_H
#define SERVER_GUESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct guesses;

enum {
    /* The first GUESSES_FREE wrong keys of an address, each within GUESSES_WINDOW_S after the
     * previous one, are not delayed. */
    GUESSES_FREE = 5,
    GUESSES_WINDOW_S = 60,
    GUESSES_MAX_HOLD_S = 30,
};

struct guess {
    int64_t hold_ns;   /* delay of the answer */
    bool tell;         /* the caller logs this wrong key: at most one line a second */
    uint64_t n_untold; /* wrong keys since the last log line, without this one */
    char address[64];  /* address of the sender, for the log */
};

void guesses_create(struct guesses **out);
void guesses_destroy(struct guesses *g); /* NULL is allowed */

/* Notes a wrong key from the address `from` (NULL: unknown) at now_ns. */
void guesses_add(struct guesses *g, const struct sockaddr *from, int64_t now_ns,
                 struct guess *out);
/* Returns the number of wrong keys since the start. */
uint64_t guesses_count(struct guesses *g);

#endif
