/* talk.h - a kept conversation in a program of its own: what `hcache run --conversation` does.
 *
 *     talk_open -> talk_say, talk_say ... -> talk_close
 *
 * The same turns as the server keeps (conversations.h), in the same file: what is said here goes on
 * there, and the other way round.  Needs no HTTP.  One thread. */
#ifndef SESSIONS_TALK_H
#define SESSIONS_TALK_H

#include "hcache.h"
#include "sessions/conversations.h"

struct talk;

struct talk_opts {
    struct hcache *h;
    struct conversations *conversations;
    const char *model_name; /* as responses show it */
    const char *salt;       /* whose conversations, and of their state; NULL: none */
    bool plain;             /* as prompt.h has it */
    const char *system; /* the system's message of a conversation that begins; NULL: none */
};

/* Opens the conversation of that id or title (the last used, of several), or begins one of that
 * title.  name NULL: begins one that is kept, and titled by its first words, when
 * it has an answer. */
int talk_open(const struct talk_opts *o, const char *name, struct talk **out,
              struct err *err);
void talk_close(struct talk *t); /* NULL is allowed */

int talk_n_turns(const struct talk *t);
/* The title, as long as t is in the conversation; NULL: none. */
const char *talk_title(const struct talk *t);
/* The last text of the assistant; NULL: none. The caller frees it. */
char *talk_last_answer(const struct talk *t);

/* Says something and keeps the answer: when it returns 0 the turn is durable, before it is not
 * there.  sampling: of its members, prompt and salt are set here, and the rest is as
 * hcache_generate takes it; at most what is left of the context is generated, and max_tokens -1
 * is all of that.  The caller frees *out.  An answer that was cut off (cancelled, timeout,
 * length) is kept with what there is of it, as incomplete: the next turn can go on from it, and
 * talk_retry can ask again. */
int talk_say(struct talk *t, const char *text, size_t n,
             const struct hcache_request *sampling, struct hcache_result *out,
             struct err *err);
/* Asks the last question again, on a branch: the conversation goes on without the answer it
 * had, which stays in the branch that it was given in.  ERR_NOT_FOUND: nothing was said yet. */
int talk_retry(struct talk *t, const struct hcache_request *sampling,
               struct hcache_result *out, struct err *err);
/* Goes on from `back` answers ago, on a branch.  ERR_NOT_FOUND: there are not so many. */
int talk_branch(struct talk *t, int back, struct err *err);

#endif
