/* draft.h - a turn that is being made: what it continues, its prompt in exact tokens, its end.
 *
 *     draft_continue -> draft_render -> ... the model answers ... -> draft_finish -> turn_add
 *
 * Of everything that was said before, the tokens are those that the model saw and made, not those
 * that its text would be tokenized to.  Where the conversation's text is another one now (other
 * instructions, a template that leaves thoughts out), the longest beginning that is the same keeps
 * its tokens, and `what` says where the others begin.  Knows no HTTP. */
#ifndef SESSIONS_DRAFT_H
#define SESSIONS_DRAFT_H

#include "hcache.h"
#include "sessions/conversations.h"
#include "sessions/prompt.h"

struct draft {
    int64_t conversation, parent; /* rows; 0: none */
    struct turn **path;           /* the turns before it, the first one first */
    int n_path;
    struct json *input; /* a list of items; the draft's */

    /* after draft_render: */
    struct prompt_text text; /* the prompt */
    int32_t *ids;
    int n_ids;
    bool
        is_lent; /* text and ids are somebody else's, who keeps them longer than the draft */
    int n_system; /* first tokens, at most, of the system's messages; 0 unless it truncates */
    char what[200]; /* why saved state of earlier turns may not fit; "": it does */
};

void draft_deinit(struct draft *d);

/* Reads the turns up to `parent`. ERR_NOT_FOUND: they were deleted. */
int draft_continue(struct draft *d, struct conversations *c, int64_t parent,
                   struct err *err);

struct draft_opts {
    const struct json *instructions; /* a string, the system's message; NULL: none */
    const struct json *tools, *kwargs;
    bool plain, parse_special, truncates; /* as prompt.h has them */
    const char *param;                    /* what a fault is about */
};
/* Makes text and tokens of all turns and d->input, once.  The turns of d->path have no input
 * and output then. 0, or -1 with *f. */
int draft_render(struct draft *d, const struct hcache *h, const struct draft_opts *o,
                 struct fault *f);

/* Everything said before and now, as items; the caller's. */
struct json *draft_items(struct turn *const *path, int n);

/* Fills the turn with everything but name, answer, output and restoration.  salt: of its state. */
void draft_finish(const struct draft *d, const struct hcache *h,
                  const struct hcache_result *r, const char *salt, struct turn *t);

#endif
