/* memory.h - which tokens our own answers consisted of.
 *
 * Clients send a conversation back as text, and tokenizing the text of an answer often gives other
 * tokens than those that were generated: saved state, which is found by tokens, would be missed from
 * there on.  So every answer is remembered: (the conversation's text up to its end) -> its tokens.
 * When a conversation begins with a text that is remembered, its tokens are taken from here.
 *
 * Texts are compared whole: a hash only finds the candidates.  Conversations of different salts never
 * meet.  Bounded in entries and bytes, the least recently used go first.  Any thread. */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory;

void memory_create(int max_entries, size_t max_bytes, struct memory **out);
void memory_destroy(struct memory *m); /* NULL is allowed */

/* Copies all of it.  A text that is there already gets the new tokens. salt NULL: none. */
void memory_put(struct memory *m, const char *salt, const char *text, size_t n_text,
                const int32_t *ids, int n_ids);

/* The longest remembered beginning of the text: *n_found bytes of it are *ids (the caller frees them).
 * False where there is none. */
bool memory_find(struct memory *m, const char *salt, const char *text, size_t n_text,
                 size_t *n_found, int32_t **ids, int *n_ids);

#endif
