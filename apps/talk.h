/* talk.h - a kept conversation in a program of its own, for `hcache run --conversation`.
 *
 *     talk_open -> talk_say, talk_say ... -> talk_close
 *
 * It keeps the same turns as the server (conversations.h), in the same file. So either program can
 * continue the other's conversations. Needs no HTTP. One thread. */
#ifndef APPS_TALK_H
#define APPS_TALK_H

#include "hcache.h"
#include "api/conversations.h"

struct talk;

struct talk_opts {
    struct hcache *h;
    struct conversations *conversations;
    const char *model_name; /* name of the model in responses */
    const char *salt;       /* salt of the conversations and of their state; NULL: none */
    bool plain;             /* as in chat_source (prompt.h) */
    const char *system;     /* system message of a new conversation; NULL: none */
    struct dates *dates;    /* date of a new conversation; NULL: the present one */
};

/* Opens the conversation that has this id or title (the last used one, if several have the title).
 * If there is none, begins one with this title. name NULL: begins a conversation that is kept once
 * it has an answer; its first words become the title. */
int talk_open(const struct talk_opts *o, const char *name, struct talk **out,
              struct err *err);
void talk_close(struct talk *t); /* NULL is allowed */

int talk_n_turns(const struct talk *t);
/* Returns the title, valid as long as t is in the conversation; NULL: it has none. */
const char *talk_title(const struct talk *t);
/* Returns the last text of the assistant, which the caller frees; NULL: there is none. */
char *talk_last_answer(const struct talk *t);

/* Says something and keeps the answer. The turn is durable when the function returns 0. Before that
 * the turn does not exist. sampling: prompt and salt are set here, and the other fields are as for
 * hcache_generate. At most the rest of the context is generated; max_tokens -1 means all of it. The
 * caller frees *out. An answer that was cut off (cancelled, timeout, length) is kept as incomplete:
 * the next turn can continue it, and talk_retry can ask again. */
int talk_say(struct talk *t, const char *text, size_t n,
             const struct hcache_request *sampling, struct hcache_result *out,
             struct err *err);
/* Asks the last question again, on a branch. The conversation goes on without the previous answer,
 * which stays in its own branch. Returns ERR_NOT_FOUND if there is no question yet. */
int talk_retry(struct talk *t, const struct hcache_request *sampling,
               struct hcache_result *out, struct err *err);
/* Makes a branch that ends `back` answers ago, and continues it. Returns ERR_NOT_FOUND if there are
 * fewer answers. */
int talk_branch(struct talk *t, int back, struct err *err);

#endif
