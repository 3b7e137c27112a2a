/* terminal_chat.h - a conversation in the terminal: `hcache run -i`.
 *
 * Over kept conversations (sessions/talk.h): in the store's file, or in memory where none is named.  Ctrl-C stops
 * the answer, not the program.  An error prints its message and returns to the prompt. */
#ifndef APPS_TERMINAL_CHAT_H
#define APPS_TERMINAL_CHAT_H

#include "base/err.h"
#include "hcache.h"
#include "sessions/talk.h"

struct terminal_chat_opts {
    struct talk_opts talk;          /* conversations: of `path`, set here */
    const char *path;               /* the file of conversations; NULL: in memory */
    const char *name;               /* the conversation to go on with; NULL: a new one */
    const char *first;              /* said before anything is read; NULL: nothing */
    struct hcache_request sampling; /* max_tokens -1: what is left of the context */
    void (*told)(void *arg, const struct hcache_result *r); /* after each answer */
    void *arg;
};

/* Returns 0 at the end of input or after /exit. */
int terminal_chat(const struct terminal_chat_opts *o, struct err *err);

/* Stops the answer that is being generated when Ctrl-C is typed: from now on SIGINT does nothing else. */
void terminal_catch_interrupt(void);
/* Whether Ctrl-C was typed since the last call of this function. */
bool terminal_interrupted(void);

#endif
