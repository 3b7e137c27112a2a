/* terminal_chat.h - a conversation in the terminal: `hcache run -i`.
 *
 * This process or a server keeps the conversation (terminal_talk.h). Ctrl-C stops the answer, or
 * the reading of the prompt before it, but not the program. An error prints its message and returns
 * to the prompt. */
#ifndef APPS_TERMINAL_CHAT_H
#define APPS_TERMINAL_CHAT_H

#include "apps/terminal_talk.h"
#include "base/err.h"
#include "hcache.h"

struct terminal_chat_opts {
    const char *name;    /* id or title of the conversation to continue; NULL: a new one */
    const char *first;   /* message that is sent before any is read; NULL: none */
    size_t n_first;      /* bytes of first */
    bool is_kept;        /* the conversation outlives the program */
    const char *history; /* file of the lines typed earlier; NULL: none */
    /* Called after each answer that this process has generated. */
    void (*told)(void *arg, const struct hcache_result *r);
    void *arg;
};

/* Returns 0 at the end of input or after /exit.  talk is borrowed. */
int terminal_chat(struct terminal_talk *talk, const struct terminal_chat_opts *o,
                  struct err *err);

/* From now on SIGINT (Ctrl-C) only stops the answer that is being generated. */
void terminal_catch_interrupt(void);
/* Returns whether Ctrl-C was typed since the last call of this function. */
bool terminal_interrupted(void);

#endif
