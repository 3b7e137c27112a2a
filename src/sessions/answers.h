/* answers.h - remembers the tokens of this server's own answers.
 *
 * Clients send a conversation back as text. Tokenizing the text of an answer often gives other
 * tokens than those that were generated; saved state, which is found by tokens, would be missed
 * from there on. So every answer is remembered: (the conversation's text up to its end) -> its
 * tokens. When a conversation begins with a remembered text, its tokens are taken from here.
 *
 * With a file, the answers outlive the process. A record in the file is a name and sealed tokens.
 * Both are made from the whole text (and salt): only a process that has the text can find and read
 * the record, and no other process learns more than lengths. A truncated or damaged record counts
 * as a text that is not remembered.
 *
 * Conversations of different salts never meet. Entries and bytes are bounded; the least recently
 * used are dropped first. Any thread. */
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
    /* path of the file, which has mode 0600; NULL: answers are kept in memory only */
    const char *path;
    /* Identifies the meaning of token ids. A file of another vocabulary is replaced. */
    struct sha256 vocabulary;
};

/* Opens the memory of answers. Returns an error if the file cannot be read or written. A file of
 * another format is replaced. */
int answers_open(const struct answers_opts *o, struct answers **out, struct err *err);
/* Closes the file, in which all entries are durable. NULL is allowed. */
void answers_close(struct answers *m);

/* A text in two parts: a prompt, and the answer behind it. */
struct answers_text {
    const char *text, *more;
    size_t n_text, n_more;
};
/* The tokens of the text, in two parts. */
struct answers_ids {
    const int32_t *prompt, *answer;
    int n_prompt, n_answer;
};
/* Remembers a copy of the tokens. If the text is known already, the new tokens replace the old
 * ones. salt NULL: the empty salt. Without memory nothing is remembered. */
void answers_put(struct answers *m, const char *salt, const struct answers_text *text,
                 const struct answers_ids *ids);

/* Finds the longest remembered beginning of the text. *n_found is its number of bytes, and *ids its
 * tokens, which the caller frees. Returns false if there is none. */
bool answers_find(struct answers *m, const char *salt, const char *text, size_t n_text,
                  size_t *n_found, int32_t **ids, int *n_ids);

/* Counts the outcome for a text that begins with a remembered one: whether the remembered tokens
 * were used, or could not be. */
void answers_count(struct answers *m, bool used);

struct answers_stats {
    int n_entries;
    uint64_t n_used, n_unusable;
};
void answers_stats(struct answers *m, struct answers_stats *out);

#endif
