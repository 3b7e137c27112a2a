/* draft.h - a turn in the making: the turns before it, its prompt in exact tokens, its end.
 *
 *     draft_continue -> draft_render -> ... the model answers ... -> draft_finish -> turn_add
 *
 * The tokens of all earlier texts are those that the model saw and generated, not those that
 * tokenizing the text would give. If the conversation's text has changed (other instructions, a
 * template that leaves thoughts out), the longest equal beginning keeps its tokens, and `what`
 * tells where other tokens begin.
 *
 * The template sees the moment at which the conversation began (dates.h), in all its turns: else
 * the prompt's beginning, and with it all saved state, would change at midnight.  Knows no HTTP. */
#ifndef API_DRAFT_H
#define API_DRAFT_H

#include "hcache.h"
#include "api/conversations.h"
#include "api/prompt.h"

struct draft {
    int64_t conversation, parent; /* rows in the database; 0: none */
    struct turn **path;           /* the turns before the new one, the first one first */
    int n_path;
    struct json *input; /* a list of items, owned by the draft */

    /* draft_render sets the following fields. */
    struct prompt_text text; /* the rendered prompt */
    int32_t *ids;
    int n_ids;
    /* Another object owns text and ids, and keeps them longer than the draft. */
    bool is_lent;
    struct prompt_date date; /* the date in the prompt */
    /* Bound on the tokens of the system's messages; 0 unless the request truncates. */
    int n_system;
    char what[200]; /* reason why saved state of earlier turns may not fit; "": it fits */
};

void draft_deinit(struct draft *d);

/* Reads the turns up to `parent`. Returns ERR_NOT_FOUND if they were deleted. */
int draft_continue(struct draft *d, struct conversations *c, int64_t parent,
                   struct err *err);

struct draft_opts {
    /* a string, which becomes the system's message; NULL: none */
    const struct json *instructions;
    const struct json *tools, *kwargs;
    const char *effort; /* as in chat_source (prompt.h) */
    int thinking;
    bool plain, parse_special, truncates; /* as in chat_source (prompt.h) */
    const char *param;                    /* name of the field that a fault is about */
    struct dates *dates; /* dates of new conversations; NULL: the present one */
    const char *salt;    /* salt of the turn's state */
};
/* Makes the text and the tokens of all turns and of d->input. Call it once. Afterwards the turns of
 * d->path have no input and output. Returns 0, or -1 with *f. */
int draft_render(struct draft *d, struct hcache *h, const struct draft_opts *o,
                 struct fault *f);

/* Returns the items of all turns of a path, inputs and outputs. The caller owns the result. */
struct json *draft_items(struct turn *const *path, int n);

/* Finds the moment at which the conversation of a path began.  Returns false, with "", if the model
 * has seen none of its turns. */
bool draft_moment(struct turn *const *path, int n, char out[PROMPT_DATE_BYTES]);

/* Fills in the turn, except name, answer, output and restoration. salt: the salt of its state. */
void draft_finish(const struct draft *d, const struct hcache *h,
                  const struct hcache_result *r, const char *salt, struct turn *t);

#endif
