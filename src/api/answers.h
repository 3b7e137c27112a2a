/* answers.h - remembers the tokens of this server's own answers.
 *
 * Clients send a conversation back as text. Tokenizing the text of an answer often gives other
 * tokens than those that were generated; saved state, which is found by tokens, would be missed
 * from there on. So every answer is remembered: (the conversation's text up to its end) -> its
 * tokens. When a conversation begins with a remembered text, its tokens are taken from here.
 *
 * With a file, the answers outlive the process. A record in the file is a name and sealed tokens.
 * Both are made from the whole text, the salt and the secret of the server (PATH.key): only a
 * process that has all of them can find and read the record, and no other process learns more than
 * lengths. A truncated or damaged record counts as a text that is not remembered.
 *
 * Every erasure of state reaches the answers. An answer knows the salt of its state and the keys of
 * the chunks in which its prompt and its end lie. What is forgotten is overwritten in the file, in
 * place, and durable when the function returns.
 *
 * Conversations of different salts never meet. Entries and bytes are bounded. Where room is
 * missing, the salt that has the most loses the entry that it used least recently. Any thread. */
#ifndef API_ANSWERS_H
#define API_ANSWERS_H

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
    /* The answers are those of several models. Then `vocabulary` is all zero, and the salt of
     * answers_put and answers_find names the model, too (retoken.c). */
    bool of_models;
    int64_t ttl_s; /* an answer is forgotten this time after it was given; 0: never */
    /* Encrypts the files; NULL: they are plain. Files of another seal are replaced. */
    const struct seal *seal;
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
/* Which erasures concern an answer. */
struct answers_of {
    const char
        *state_salt;   /* salt of the state, with the request's own; NULL: the empty salt */
    struct sha256 end; /* key of the chunk in which prompt and answer end */
    struct sha256 asked; /* key of the chunk in which the prompt ends */
    int64_t ttl_s;       /* time to live of the state; 0: none */
};
/* Returns answers_opts.of_models. */
bool answers_are_of_models(const struct answers *m);
/* Remembers a copy of the tokens. If the text is known already, the new tokens replace the old
 * ones. salt NULL: the empty salt. Without memory nothing is remembered. */
void answers_put(struct answers *m, const char *salt, const struct answers_text *text,
                 const struct answers_ids *ids, const struct answers_of *of);

/* Finds the longest remembered beginning of the text. *n_found is its number of bytes, and *ids its
 * tokens, which the caller frees. Returns false if there is none. */
bool answers_find(struct answers *m, const char *salt, const char *text, size_t n_text,
                  size_t *n_found, int32_t **ids, int *n_ids);

/* The functions that forget return 0 when the answers are gone from memory and from the disk. After
 * an error they are gone from memory, and the next call tries the disk again. Without a memory of
 * answers (m NULL) they do nothing and return 0.
 *
 * Forgets all answers whose state has this salt (NULL: the empty salt). */
int answers_forget_owner(struct answers *m, const char *state_salt, struct err *err);
/* Forgets the answers whose end or prompt lies in one of the chunks. */
int answers_forget_keys(struct answers *m, const struct sha256 *keys, int n,
                        struct err *err);
/* Forgets answers whose time is over. */
int answers_expire(struct answers *m, struct err *err);
/* Lists how many tokens the answers have whose state has this salt: each number once, no number
 * above `most`. Returns how many numbers there are; the caller frees *out. */
int answers_lengths(struct answers *m, const char *state_salt, int most, int **out);
/* Forgets answers in a file that no process has open: those whose end is in no stored chunk, and
 * those whose time is over. is_stored gets the first ANSWERS_KEY_BYTES bytes of a chunk's key. A
 * missing file is no error. */
enum { ANSWERS_KEY_BYTES = 8 };
int answers_keep_stored(const char *path, const struct seal *seal,
                        bool (*is_stored)(void *arg, const uint8_t *key), void *arg,
                        int *n_forgotten, struct err *err);

/* Counts the outcome for a text that begins with a remembered one: whether the remembered tokens
 * were used, or could not be. */
void answers_count(struct answers *m, bool used);

struct answers_stats {
    int n_entries;
    uint64_t n_used, n_unusable;
};
void answers_stats(struct answers *m, struct answers_stats *out);

#endif
