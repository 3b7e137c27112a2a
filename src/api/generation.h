/* generation.h - one completion request at work: its tickets, and the answer made from them.
 *
 * A request for n answers to m prompts is m*n tickets ("choices"), which the engine runs like
 * any others. The texts of a request for embeddings are submitted one after another, as others of
 * them end. APIs differ in the form of the answer and in what they keep (struct dialect). Any
 * thread may start it; then one thread at a time may use it. generation_cancel may run on any
 * thread. */
#ifndef API_GENERATION_H
#define API_GENERATION_H

#include "api/client.h"
#include "api/request.h"
#include "api/sse.h"
#include "api/prompt.h"

struct choice;
struct generation;

/* The form of a generation in one API. A stream is begin, then pieces and end of every choice,
 * then close. Functions that are NULL write nothing. */
struct dialect {
    /* Makes the answer; every choice has its result. */
    struct json *(*answer)(struct generation *g);
    /* Begins a stream; called when the generation starts. */
    void (*begin)(struct generation *g, struct textbuf *out);
    /* Writes more of the part i of an answer: the next bytes of a thought or a text, or a whole
     * call. The parts come in order. */
    void (*piece)(struct generation *g, struct choice *ch, int i,
                  const struct hcache_part *p, struct textbuf *out);
    void (*end)(struct generation *g, struct choice *ch, struct textbuf *out);
    /* Writes how much of the prompt is done (choice.n_progress). */
    void (*progress)(struct generation *g, struct choice *ch, struct textbuf *out);
    void (*close)(struct generation *g, struct textbuf *out);
    /* Writes a fault; NULL: as an event in the form of OpenAI's APIs. */
    void (*fault)(struct generation *g, const struct fault *f, struct textbuf *out);
    bool lines; /* a stream is lines of JSON; false: server-sent events */
    /* Makes the answer durable. Called when every choice has ended well, and before the client
     * receives the end. Returns 0, or -1 with *f. */
    int (*keep)(struct generation *g, struct fault *f);
    /* Keep is also called for an answer whose client has gone, with the part that exists. */
    bool keeps_unfinished;
    /* Returns the id that the answer shows; NULL: the generation's own. */
    const char *(*id)(const struct generation *g);
    void (*drop)(void *own); /* frees the data that the route gave to generation_start */
};

/* Starts a generation. Returns 0; or -1 with *f, *out NULL and nothing submitted. In both cases it
 * takes over prompts, text and own (the dialect's data). `text` is the text of the only prompt: its
 * answers are remembered by it. With NULL they are not remembered. `what` is a miss reason that
 * tokenizing found, or "". */
int generation_start(const struct client *c, const struct dialect *dialect, void *own,
                     const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                     struct prompt_text *text, const char *what, struct generation **out,
                     struct fault *f);

const struct client *generation_client(const struct generation *g);

bool generation_is_stream(const struct generation *g);
/* Returns whether a stream is lines of JSON. */
bool generation_has_lines(const struct generation *g);
/* Returns whether all choices have ended, so an answer can be made. */
bool generation_has_ended(struct generation *g);
/* Returns whether all of a stream has been written. */
bool generation_is_over(const struct generation *g);
/* Writes new content as events. */
void generation_stream(struct generation *g, struct textbuf *out);
/* Returns 0 with the answer, which the caller owns; or -1 with *f. All choices must have ended. */
int generation_answer(struct generation *g, struct json **answer, struct fault *f);
/* Cancels running choices. Any thread. NULL is allowed here and in generation_free. */
void generation_cancel(struct generation *g);
/* Ends running choices. If the dialect keeps unfinished answers, and the client has not received
 * the end of an answer, the dialect keeps the part that exists. That waits for one step of the
 * engine, and for the disk. */
void generation_free(struct generation *g);

#endif
