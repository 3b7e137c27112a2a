/* answers.h - which tokens our own answers consisted of.
 *
 * Clients send a conversation back as text, and tokenizing the text of an answer often gives other
 * tokens than those that were generated: saved state, which is found by tokens, would be
 * missed from there on.  So every answer is remembered: (the conversation's text up to
 * its end) -> its tokens.  When a conversation begins with a text that is remembered,
 * its tokens are taken from here.
 *
 * It outlives the process where it has a file.  A record there is a name and sealed
 * tokens: both are made from the whole text (and salt), so whoever has the text finds and
 * reads it, and nobody else learns more than lengths.  A record that was cut off or
 * damaged is a text that is not remembered.
 *
 * Conversations of different salts never meet.  Bounded in entries and bytes, the least
 * recently used go first.  Any thread. */
#ifndef SESSIONS_ANSWERS_H
#define SESSIONS_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

struct answers;

struct answers_opts {
    int max_entries;
    size_t max_bytes;
    const char *path; /* of its file, 0600; NULL: it ends with the process */
    struct sha256
        vocabulary; /* what token ids mean; a file for another one is begun anew */
};

/* A file that cannot be read or written is an error; one that is no such file is replaced. */
int answers_open(const struct answers_opts *o, struct answers **out, struct err *err);
/* What was put is in the file, and durable. NULL is allowed. */
void answers_close(struct answers *m);

/* A text in two parts: a prompt, and the answer behind it. */
struct answers_text {
    const char *text, *more;
    size_t n_text, n_more;
};
/* Its tokens, in two parts. */
struct answers_ids {
    const int32_t *prompt, *answer;
    int n_prompt, n_answer;
};
/* Copies the tokens.  A text that is there already gets the new ones. salt NULL: none.  Without
 * memory nothing is remembered. */
void answers_put(struct answers *m, const char *salt, const struct answers_text *text,
                 const struct answers_ids *ids);

/* The longest remembered beginning of the text: *n_found bytes of it are *ids (the caller frees
 * them). False where there is none. */
bool answers_find(struct answers *m, const char *salt, const char *text, size_t n_text,
                  size_t *n_found, int32_t **ids, int *n_ids);

/* What became of a text that begins with a remembered one: its tokens were used, or
 * could not be. */
void answers_count(struct answers *m, bool used);

struct answers_stats {
    int n_entries;
    uint64_t n_used, n_unusable;
};
void answers_stats(struct answers *m, struct answers_stats *out);

#endif
