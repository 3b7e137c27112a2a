/* ticket.h - one submitted request, from its queue to its result; private to src/api.
 *
 *     WAITING -> RUNNING -> ENDED
 *
 * Which thread may use which fields:
 *   fixed      set at creation, read by any thread
 *   engine     only the thread that steps the engine
 *   shared     under service.lock; the engine's thread, their only writer while the ticket runs, may
 *              read them without it
 *   reader     the one thread that calls hcache_ticket_read
 *
 * All memory that grows with the tokens is reserved at creation, except the text, which doubles. */
#ifndef API_TICKET_H
#define API_TICKET_H

#include "base/err.h"
#include "engine/engine.h"
#include "hcache.h"
#include "text/tokenizer.h"

struct service;

enum ticket_state {
    TICKET_WAITING,
    TICKET_RUNNING,
    /* the sequence has finished and waits for the disk; it holds no place */
    TICKET_SETTLING,
    TICKET_ENDED,
};

struct hcache_ticket {
    struct service *service;
    /* shared: next ticket in the queue, or among the running tickets */
    struct hcache_ticket *next;

    /* The next fields are fixed. */
    struct request *req; /* the ticket's own */
    int64_t t_submit;

    /* The next fields belong to the engine's thread. */
    const struct tokenizer *tokenizer;
    struct tokenizer_stream *stream; /* NULL: the model has no tokenizer */
    struct seq *seq;
    int n_vocab;
    int64_t t_admit, t_last;
    /* the saver's mark for its saved state, set when the sequence has finished */
    uint64_t mark;

    /* The next fields are shared. */
    enum ticket_state state;
    bool cancel, stopped, given_up;
    const int32_t *ids; /* generated tokens: memory of req */
    int n_ids, n_cached;
    int n_prompt_done;
    struct hcache_logprob *logprobs; /* [max_tokens][1 + n_top] */
    char *text;
    size_t n_text, text_cap;
    size_t n_visible; /* bytes that can no longer become part of a stop string */
    struct hcache_special *special; /* special tokens, by their places in the text */
    int n_special, special_cap;
    struct hcache_result result;
    struct err err;

    /* The next fields belong to the reader. */
    int n_ids_read, n_prompt_read;
    size_t n_text_read;
    int n_special_read;
    char *piece;
    struct hcache_special *piece_special;
    size_t piece_cap;
};

/* Finds the visible part of a text. It ends before the first stop string, and before an end of the
 * text that may become a stop string. The first n_old bytes were there at the last call. Returns
 * whether a stop string was found; *n_text is then cut before it. Pure. */
bool ticket_scan_stop(const char *text, size_t n_old, size_t *n_text,
                      const char *const *stop, const size_t *stop_bytes, int n_stop,
                      size_t *n_visible);

/* Appends text to the ticket, under the service's lock. */
void ticket_append(struct hcache_ticket *t, const char *text, size_t n);

/* Notes a special token at the end of the text, under the service's lock. */
void ticket_special(struct hcache_ticket *t, int32_t id);

/* Fills t->result for a request that has ended. tier: name of the store's own tier, from which
 * restores read; NULL: there is no store. */
void ticket_describe(struct hcache_ticket *t, const char *tier, double load_ms);

void ticket_destroy(struct hcache_ticket *t);

/* --- where the prompt differs ----------------------------------------------------------------- */

/* Appends to the reason in out[n_out]: ": the prompt differs at token 812: \"2026-11-22
 * 14:03\"", with the prompt's own text from there on. t NULL: without text. */
void miss_text(const struct tokenizer *t, const int32_t *prompt, int n_prompt, int at,
               char *out, size_t n_out);

#endif
