/* terminal_chat.h - a conversation in the terminal: `hcache run -i`.
 *
 * Over a conversation of this process or of a server (terminal_talk.h).  Ctrl-C stops the
 * answer, or the reading of the prompt before it, not the program.  An error prints its
 * message and returns to the prompt. */
#ifndef APPS_TERMINAL_CHAT_H
#define APPS_TERMINAL_CHAT_H

#include "apps/terminal_talk.h"
#include "base/err.h"
#include "hcache.h"

struct terminal_chat_opts {
    const char *name;    /* the conversation to go on with; NULL: a new one */
    const char *first;   /* said before anything is read; NULL: nothing */
    size_t n_first;      /* bytes of it */
    bool is_kept;        /* the conversation outlives the program */
    const char *history; /* the file of the lines that were typed before; NULL: none */
    void (*told)(void *arg,
                 const struct hcache_result *r); /* after each answer of this process */
    void *arg;
};

/* Returns 0 at the end of input or after /exit.  talk is borrowed. */
int terminal_chat(struct terminal_talk *talk, const struct terminal_chat_opts *o,
                  struct err *err);

/* Stops the answer that is being generated when Ctrl-C is typed: from now on SIGINT
 * does nothing else. */
void terminal_catch_interrupt(void);
/* Whether Ctrl-C was typed since the last call of this function. */
bool terminal_interrupted(void);

#endif
