/* generation.h - one completion request at work: its tickets, and the answer made of them.
 *
 * A request for n answers to m prompts is m*n tickets ("choices"), which the engine runs like any
 * others.  APIs differ in the form of the answer and in what they keep (struct
 * dialect).  Any thread may start it; then one thread at a time may use it.
 * generation_cancel may run on any thread. */
#ifndef REQUESTS_GENERATION_H
#define REQUESTS_GENERATION_H

#include "requests/client.h"
#include "requests/request.h"
#include "requests/sse.h"
#include "sessions/prompt.h"

struct choice;
struct generation;

/* How one API tells of a generation.  A stream is begin, then piece and end of every choice, close;
 * functions that are NULL say nothing. */
struct dialect {
    struct json *(*answer)(struct generation *g); /* every choice has its result */
    void (*begin)(struct generation *g, struct textbuf *out); /* at once */
    void (*piece)(struct generation *g, struct choice *ch, const char *text, size_t n,
                  struct textbuf *out);
    void (*end)(struct generation *g, struct choice *ch, struct textbuf *out);
    void (*close)(struct generation *g, struct textbuf *out);
    void (*fault)(struct generation *g, const struct fault *f, struct textbuf *out);
    /* Every choice has ended well, and nobody was told: makes it durable. 0, or -1 with *f. */
    int (*keep)(struct generation *g, struct fault *f);
    /* keep is called, too, for an answer whose client has gone, with what there is of it. */
    bool keeps_unfinished;
    void (*drop)(void *own); /* frees what the route gave to generation_start */
};

/* 0; or -1 with *f, *out NULL and nothing submitted.  Takes the prompts and own, which is the
 * dialect's, in both cases.  text: of the only prompt, also taken, where its answers are to be
 * remembered; NULL: not.  what: a miss reason that tokenizing found, or "". */
int generation_start(const struct client *c, const struct dialect *dialect, void *own,
                     const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                     struct prompt_text *text, const char *what, struct generation **out,
                     struct fault *f);

const struct client *generation_client(const struct generation *g);

bool generation_is_stream(const struct generation *g);
bool generation_has_ended(struct generation *g); /* all choices: an answer can be made */
bool generation_is_over(
    const struct generation *g); /* a stream: all of it has been written */
void generation_stream(struct generation *g,
                       struct textbuf *out); /* what is new, as events */
/* All choices have ended: 0 with the answer, which is the caller's; or -1 with *f. */
int generation_answer(struct generation *g, struct json **answer, struct fault *f);
/* Any thread.  NULL is allowed, here and below. */
void generation_cancel(struct generation *g);
/* Ends what still runs.  An answer that nobody was told of is kept as far as it is there, where
 * its dialect keeps unfinished ones: that waits for one step of the engine, and for the disk. */
void generation_free(struct generation *g);

#endif
