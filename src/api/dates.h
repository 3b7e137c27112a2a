/* dates.h - the date that a chat template prints.
 *
 * Many templates print today's date near the beginning of the prompt.  At midnight such a prompt
 * becomes another one, and state that was saved for it is of no use any more.  So a kept
 * conversation keeps the moment at which it began (draft.h), and an ingested document keeps the
 * date with which it was ingested, for all chats that begin with it.  Other requests see the
 * present moment, unless the user fixes a date, or asks for the date of the longest stored match
 * (sticky).
 *
 * A moment is local time as text, "2026-11-28 22:05:00"; a date is its first ten characters.
 *
 * Two files lie in the store's first folder.  `template-dates` has the dates of prompts that were
 * computed, for sticky.  `ingested` has a line for each ingested document: a digest of 64 bits over
 * salt, role and text, and the date.  Which date a chat sees depends on the documents that the user
 * ingested, and never on the state that is stored.  Any thread may call any function. */
#ifndef API_DATES_H
#define API_DATES_H

#include "base/err.h"
#include "api/prompt.h"

struct dates;
struct seal;

/* Opens the dates of a program. `how` is "YYYY-MM-DD", "sticky", or NULL for the present moment.
 * `dir` is the store's first folder; with NULL, dates are remembered in memory. With a seal, which
 * must outlive the dates, the digests in `ingested` are keyed. */
int dates_open(const char *how, const char *dir, const struct seal *seal,
               struct dates **out, struct err *err);
void dates_close(struct dates *d); /* NULL is allowed */
/* Checks the text of the option --template-date. NULL is allowed. */
int dates_check(const char *how, struct err *err);

/* Renders a prompt like prompt_render.  If s->date is NULL, d decides on the moment; d NULL: the
 * present one.  salt: the salt of the chat's state.  Sticky has no effect if s->now is given, since
 * the answer would depend on the state that is stored. */
int dates_render(struct dates *d, struct hcache *h, const char *salt,
                 const struct chat_source *s, struct prompt_text *out, struct fault *f);

/* Remembers durably that a chat whose first message has this role and text was ingested with the
 * date of that moment.  Call it from one thread. */
int dates_ingested(struct dates *d, const char *salt, const char *role, const char *text,
                   size_t n, const char *moment, struct err *err);

/* Finds the tokens of the date in a prompt. */
void date_locate(const struct hcache *h, const struct prompt_text *text,
                 const struct prompt_ids *p, struct prompt_date *out);
/* Names the date in `why` if a prompt misses stored state because of it. differs_at is the first
 * token that differs from the stored ones. */
void date_explain(const struct prompt_date *d, int differs_at, char *why, size_t n);

#endif
