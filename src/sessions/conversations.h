/* conversations.h - conversations and their turns on disk: one SQLite file.
 *
 *     conversation  "conv_.." --head--+
 *                                     v
 *     turn <--parent-- turn <--parent-- turn      what was said, and in which tokens
 *                        ^------------- turn      a branch
 *
 * A turn is what went in and what came out of one answer (or items that were put in by
 * hand).  It is immutable and names its parent, so continuing one turn twice makes two
 * branches, and a retry does no harm.  A conversation is a name for a path through this tree:
 * its head moves from turn to turn.
 *
 * Tokens.  A turn keeps the ids that the model saw and made, from where they differ from its
 * parent's on, and marks that say which beginning of the conversation's text they are: whoever
 * renders the text anew and finds it to begin so takes the ids from here instead of tokenizing.
 *
 * Chunks.  A turn names the store's chunks that its tokens fill.  They are counted over all turns;
 * those of erased turns that no other turn names are `doomed` in the same transaction, until
 * somebody has taken them out of the store (conversations_doomed).
 *
 * Durability.  Every function that changes something is one transaction, durable when it returns: a
 * process that is killed leaves each conversation at its old or its new turn.  What is erased is
 * overwritten in the file.
 *
 * Whose.  `tenant` is a text of the caller's ("" without keys).  A name of another tenant is not
 * found.  Texts are JSON that this module does not look into.  Any thread; calls wait
 * for each other and for the disk. */
#ifndef SESSIONS_CONVERSATIONS_H
#define SESSIONS_CONVERSATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define CONVERSATIONS_FILE "conversations.db" /* in the store's first directory */

struct conversations;

struct conversations_opts {
    const char *path;   /* made with mode 0600; NULL: in memory, ends with the process */
    int64_t max_turns;  /* 0: no bound, here and below */
    uint64_t max_bytes; /* of the file's content */
    int64_t ttl_s;      /* what was not used for so long is erased */
    /* Where this one, in memory, stands in for a file that cannot be opened: why it
     * cannot; else NULL.  Copied.  A name that is not known here may be in that file, so
     * it is -EAGAIN, not ERR_NOT_FOUND. */
    const char *stands_in_because;
    /* This server among others; NULL: there are none.  It becomes a part of new names, so
     * that another server can say where something is kept: -EAGAIN.  Copied. */
    const char *server;
};

/* Whether a text can name a server: 1 to 16 of a-z, 0-9 and -. */
bool conversations_server_ok(const char *text);

/* ERR_BUSY: another process has it; ERR_UNSUPPORTED: a format from the future. */
int conversations_open(const struct conversations_opts *o, struct conversations **out,
                       struct err *err);
void conversations_close(struct conversations *c); /* NULL is allowed */

/* Returns where conversations are kept: "file", "memory" (they end with the
 * process), or, for NULL, "none". */
const char *conversations_kept_in(const struct conversations *c);

enum { NAME_BYTES = 64 };

/* PREFIX_ and 128 random bits: names cannot be guessed. */
void conversations_name(const char *prefix, char out[NAME_BYTES]);
/* The same for something that c keeps: PREFIX_SERVER-... where c has a server's name. */
void conversations_name_kept(const struct conversations *c, const char *prefix,
                             char out[NAME_BYTES]);

/* --- turns ------------------------------------------------------------------------------------ */

/* The first n_bytes of the conversation's text, of this digest, are its first n_tokens tokens. */
struct turn_mark {
    uint32_t n_bytes, n_tokens;
    struct sha256 digest;
};
enum { TURN_MAX_MARKS = 3 };

struct turn {
    int64_t row, parent;   /* 0: none */
    int64_t conversation;  /* which it was made in; 0: none */
    char name[NAME_BYTES]; /* "resp_.." */
    int64_t created_s;
    int depth;            /* turns before it */
    bool is_visible;      /* its name can be asked for */
    char *answer;         /* JSON object; NULL: no answer, items that were put in */
    char *input, *output; /* JSON arrays of items, never NULL */
    char *restoration;    /* JSON object: how its state came back; NULL: not known */
    char fingerprint[65]; /* of the state that its tokens belong to */
    int n_kept, n_tokens; /* its first n_kept tokens are its parent's */
    int32_t *tokens;      /* [n_tokens - n_kept] */
    struct turn_mark mark[TURN_MAX_MARKS];
    int n_marks;
    struct sha256
        *keys; /* [n_keys]: its chunks from n_kept / 64 on, and of its unfinished end */
    int n_keys;
};

void turn_free(struct turn *t); /* NULL is allowed */

/* Adds a turn: t's row and depth are set.  Where t->conversation is not 0, that conversation's
 * head moves from the turn's parent to the turn; where the head is no longer there
 * *has_branched is set, the head stays, and the turn belongs to no conversation.  title: names
 * the conversation where nothing has yet; NULL: not.  ERR_LIMIT: a bound; ERR_NOT_FOUND: parent
 * or conversation were deleted. */
int turn_add(struct conversations *c, const char *tenant, struct turn *t, const char *title,
             bool *has_branched, struct err *err);
/* ERR_LIMIT where turn_add would find no room now. */
int turn_has_room(struct conversations *c, struct err *err);
/* ERR_NOT_FOUND, also for what is no longer visible. */
int turn_find(struct conversations *c, const char *tenant, const char *name,
              struct turn **out, struct err *err);
/* The turns from the first to `row`, without answer and restoration: (*out)[0..*n),
 * the caller frees each, and *out. */
int turn_path(struct conversations *c, int64_t row, struct turn ***out, int *n,
              struct err *err);
void turn_path_free(struct turn **path, int n);

/* All tokens of the last turn of a path: ids [path[n-1]->n_tokens], the caller frees them. */
int32_t *turn_path_tokens(struct turn *const *path, int n);

/* --- conversations ---------------------------------------------------------------------------- */

struct conversation {
    int64_t row, head; /* head 0: nothing was said yet */
    char name[NAME_BYTES];
    int64_t created_s, updated_s;
    int n_turns;
    char *title, *metadata; /* NULL: none; metadata is a JSON object */
};

void conversation_deinit(struct conversation *v);

/* head: a turn to begin from (a branch); 0: none. *out is the caller's to deinit. */
int conversation_add(struct conversations *c, const char *tenant, const char *name,
                     const char *title, const char *metadata, int64_t head,
                     struct conversation *out, struct err *err);
int conversation_find(struct conversations *c, const char *tenant, const char *name,
                      struct conversation *out, struct err *err);
/* The last used one of that title. */
int conversation_find_title(struct conversations *c, const char *tenant, const char *title,
                            struct conversation *out, struct err *err);
/* NULL leaves title or metadata as they are. */
int conversation_set(struct conversations *c, int64_t row, const char *title,
                     const char *metadata, struct err *err);
/* By last use, newest first (or oldest), behind the conversation `after` (NULL: from the
 * beginning). At most `limit` are filled; *more: there are others. */
int conversation_list(struct conversations *c, const char *tenant, const char *after,
                      bool oldest_first, int limit, struct conversation *out, int *n,
                      bool *more, struct err *err);

/* --- erasing ---------------------------------------------------------------------------------- */

struct erased {
    int n_turns;  /* whose transcript is gone */
    int n_shared; /* turns that stay because others continue them */
};

/* The name is gone at once; turns stay as long as something visible continues them. */
int turn_delete(struct conversations *c, const char *tenant, const char *name,
                struct erased *out, struct err *err);
/* With the turns that were made in it. */
int conversation_delete(struct conversations *c, const char *tenant, const char *name,
                        struct erased *out, struct err *err);
/* In place of all that was said, which ends at `head`, there is now the turn t, which has no
 * parent; what was made in the conversation is erased as above. */
int conversation_rewrite(struct conversations *c, const char *tenant, int64_t head,
                         struct turn *t, struct erased *out, struct err *err);
/* What is older than the TTL, at most `most` turns and conversations a call. */
int conversations_expire(struct conversations *c, int64_t now_s, int most,
                         struct erased *out, struct err *err);

/* Chunks whose last turn was erased, at most max; a chain's children before their parents. */
int conversations_doomed(struct conversations *c, struct sha256 *keys, int max, int *n,
                         struct err *err);
/* They are out of the store, or are not to be taken out any more. */
int conversations_buried(struct conversations *c, const struct sha256 *keys, int n,
                         struct err *err);

struct conversations_stats {
    int64_t n_conversations, n_turns, n_doomed;
    uint64_t used_bytes;
};
int conversations_stats(struct conversations *c, struct conversations_stats *out,
                        struct err *err);
/* Fills in the conversations of one tenant and the turns on their paths; other fields are 0. */
int conversations_stats_of(struct conversations *c, const char *tenant,
                           struct conversations_stats *out, struct err *err);

#endif
