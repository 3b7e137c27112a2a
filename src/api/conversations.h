/* conversations.h - conversations and their turns on disk: one SQLite file.
 *
 *     conversation  "conv_.." --head--+
 *                                     v
 *     turn <--parent-- turn <--parent-- turn      texts, and their tokens
 *                        ^------------- turn      a branch
 *
 * A turn is the input and output of one answer (or items that were inserted by hand). It is
 * immutable and names its parent, so continuing one turn twice makes two branches, and a retry
 * does no harm. A conversation is a name for a path through this tree: its head moves from turn
 * to turn.
 *
 * Tokens. A turn keeps the token ids that the model saw and generated, from the first id on that
 * differs from its parent's. Its marks say which beginnings of the conversation's text these ids
 * stand for. If a text that is rendered later has such a beginning, the beginning is not tokenized
 * again: its ids are taken from here.
 *
 * Chunks. A turn names the store's chunks that its tokens fill. They are counted over all turns.
 * When turns are erased, the chunks that no other turn names are `doomed` in the same
 * transaction, until the caller has erased them from the store (conversations_doomed).
 *
 * Durability. Every function that changes something is one transaction, durable when it returns.
 * A killed process leaves each conversation at its old or its new turn. Erased content is
 * overwritten in the file.
 *
 * Tenants. `tenant` is a text of the caller's ("" without keys). A name of another tenant is not
 * found. Texts are JSON that this module does not parse. Any thread; calls wait for each other
 * and for the disk. */
#ifndef API_CONVERSATIONS_H
#define API_CONVERSATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

/* name of the file in the store's first directory */
#define CONVERSATIONS_FILE "conversations.db"

struct conversations;
struct seal;

struct conversations_opts {
    /* path of the file, which is created with mode 0600; NULL: conversations are in memory and end
     * with the process */
    const char *path;
    /* bound on the number of turns; 0 in this and the next two fields: no bound */
    int64_t max_turns;
    uint64_t max_bytes; /* bound on the bytes of the file's content */
    /* Number of tenants that share the bounds: each may take an n-th part. 0 and 1: a tenant may
     * take all. */
    int n_tenants;
    int64_t ttl_s; /* content that was not used for this time is erased */
    /* Set if this database is in memory because a file cannot be opened: the reason; else NULL.
     * Copied. A name that is unknown here may be in that file, so looking it up returns -EAGAIN
     * instead of ERR_NOT_FOUND. */
    const char *stands_in_because;
    /* Name of this server among others; NULL: there are no others. New names contain it. A server
     * that does not keep a conversation sees by its name that another one does, and returns
     * -EAGAIN. Copied. */
    const char *server;
    /* Encrypts the file; NULL: it is not encrypted. A file that was made otherwise is refused. */
    const struct seal *seal;
};

/* Returns whether a text can name a server: 1 to 16 characters of a-z, 0-9 and "-". */
bool conversations_server_ok(const char *text);

/* Opens or creates the file. Returns ERR_BUSY if another process has it open, and ERR_UNSUPPORTED
 * for a later format version. */
int conversations_open(const struct conversations_opts *o, struct conversations **out,
                       struct err *err);
void conversations_close(struct conversations *c); /* NULL is allowed */

/* Returns where conversations are kept: "file", "memory" (they end with the process), or, for
 * NULL, "none". */
const char *conversations_kept_in(const struct conversations *c);

enum { NAME_BYTES = 64 };

/* Makes a name: PREFIX_ and 128 random bits, so names cannot be guessed. */
void conversations_name(const char *prefix, char out[NAME_BYTES]);
/* Makes a name for an object that c keeps: PREFIX_SERVER-... if conversations_opts.server is set,
 * else like conversations_name. */
void conversations_name_kept(const struct conversations *c, const char *prefix,
                             char out[NAME_BYTES]);

/* --- turns ------------------------------------------------------------------------------------ */

/* A beginning of the conversation's text, n_bytes long and with this digest, whose tokens are the
 * conversation's first n_tokens tokens. */
struct turn_mark {
    uint32_t n_bytes, n_tokens;
    struct sha256 digest;
};
enum { TURN_MAX_MARKS = 3 };

struct turn {
    int64_t row, parent;   /* 0: none */
    int64_t conversation;  /* the conversation in which the turn was made; 0: none */
    char name[NAME_BYTES]; /* name such as "resp_.." */
    int64_t created_s;
    int depth;            /* number of turns before this one */
    bool is_visible;      /* requests can find the turn by its name */
    char *answer;         /* JSON object; NULL: there is no answer, only inserted items */
    char *input, *output; /* JSON arrays of items, never NULL */
    /* JSON object that says how the turn's state came back; NULL: unknown */
    char *restoration;
    char fingerprint[65]; /* fingerprint of the state of the turn's tokens */
    /* the moment that the chat template saw (dates.h); "": the template asked for none, or an
     * earlier version of this program made the turn */
    char moment[20];
    /* n_kept: the turn's first tokens, which are its parent's; n_tokens: all its tokens */
    int n_kept, n_tokens;
    int32_t *tokens; /* [n_tokens - n_kept] the other tokens */
    struct turn_mark mark[TURN_MAX_MARKS];
    int n_marks;
    /* [n_keys] keys of the turn's chunks from chunk n_kept / 64 on, and of its unfinished end. */
    struct sha256 *keys;
    int n_keys;
};

void turn_free(struct turn *t); /* NULL is allowed */

/* Adds a turn and sets t's row and depth. If t->conversation is not 0, that conversation's head
 * moves from the turn's parent to the turn. If the head was no longer the parent, *has_branched is
 * set, the head stays, and the turn belongs to no conversation. A conversation without a title gets
 * `title`, unless that is NULL. Returns ERR_LIMIT at a bound, and ERR_NOT_FOUND if parent or
 * conversation were deleted. */
int turn_add(struct conversations *c, const char *tenant, struct turn *t, const char *title,
             bool *has_branched, struct err *err);
/* Returns ERR_LIMIT if turn_add would find no room now. */
int turn_has_room(struct conversations *c, const char *tenant, struct err *err);
/* Finds a turn by its name. Returns ERR_NOT_FOUND if no visible turn has it. */
int turn_find(struct conversations *c, const char *tenant, const char *name,
              struct turn **out, struct err *err);
/* Reads all turns from the first one to `row`, without answer and restoration, to (*out)[0..*n).
 * The caller frees each turn, and *out. */
int turn_path(struct conversations *c, int64_t row, struct turn ***out, int *n,
              struct err *err);
void turn_path_free(struct turn **path, int n);

/* Returns all tokens of a path's last turn: [path[n-1]->n_tokens]. The caller frees them. */
int32_t *turn_path_tokens(struct turn *const *path, int n);

/* --- conversations ---------------------------------------------------------------------------- */

struct conversation {
    int64_t row, head; /* head 0: the conversation has no turn yet */
    char name[NAME_BYTES];
    int64_t created_s, updated_s;
    int n_turns;
    char *title, *metadata; /* title; metadata, a JSON object; NULL: there is none */
};

void conversation_deinit(struct conversation *v);

/* Adds a conversation. `head` is a turn that it branches from; with 0 the conversation is empty.
 * Returns ERR_LIMIT at the bound on bytes. The caller deinits *out. */
int conversation_add(struct conversations *c, const char *tenant, const char *name,
                     const char *title, const char *metadata, int64_t head,
                     struct conversation *out, struct err *err);
int conversation_find(struct conversations *c, const char *tenant, const char *name,
                      struct conversation *out, struct err *err);
/* Finds the conversation with that title that was used last. */
int conversation_find_title(struct conversations *c, const char *tenant, const char *title,
                            struct conversation *out, struct err *err);
/* Sets title and metadata of the tenant's conversation. NULL leaves title or metadata unchanged.
 * Returns ERR_LIMIT at the bound on bytes. */
int conversation_set(struct conversations *c, const char *tenant, int64_t row,
                     const char *title, const char *metadata, struct err *err);
/* Lists conversations by last use, newest first, or oldest first if `oldest_first`. Begins after
 * the conversation `after`; NULL: with the first. Fills at most `limit` of out[]. *more says
 * whether others follow the last one. */
int conversation_list(struct conversations *c, const char *tenant, const char *after,
                      bool oldest_first, int limit, struct conversation *out, int *n,
                      bool *more, struct err *err);

/* One of several turns that continue the same turn. */
struct fork {
    int64_t parent;        /* row of the turn that they continue */
    char turn[NAME_BYTES]; /* name of this one */
    char conversation
        [NAME_BYTES]; /* of those that it leads to, the one that was used last */
    bool is_on_path;  /* it is one of the path's turns */
};
enum { FORKS_MAX = 1000 };

/* Lists the branches of the path to `head`: for each earlier turn that several turns continue,
 * those continuations that lead to a conversation of the tenant, also the one on the path. Earlier
 * parents come first, and turns of one parent in the order in which they were made. Fills at most
 * FORKS_MAX of out[]. */
int conversation_forks(struct conversations *c, const char *tenant, int64_t head,
                       struct fork *out, int *n, struct err *err);

/* --- erasing ---------------------------------------------------------------------------------- */

struct erased {
    int n_turns;  /* number of turns whose texts were erased */
    int n_shared; /* turns that stay because other turns continue them */
};

/* Deletes a turn's name at once. A turn's content stays as long as a visible turn continues it. */
int turn_delete(struct conversations *c, const char *tenant, const char *name,
                struct erased *out, struct err *err);
/* Deletes a conversation with the turns that were made in it. */
int conversation_delete(struct conversations *c, const char *tenant, const char *name,
                        struct erased *out, struct err *err);
/* Replaces all turns of t->conversation by the turn t, which has no parent. `head` is the head that
 * the caller knows: if the conversation's head is another by now, returns ERR_MISMATCH. Turns made
 * in the conversation are erased as in conversation_delete. `title` replaces the conversation's
 * title: "" removes it, and NULL leaves it. */
int conversation_rewrite(struct conversations *c, const char *tenant, int64_t head,
                         struct turn *t, const char *title, struct erased *out,
                         struct err *err);
/* Erases content older than the TTL, at most `most` turns and conversations per call. */
int conversations_expire(struct conversations *c, int64_t now_s, int most,
                         struct erased *out, struct err *err);

/* Lists up to `max` doomed chunks, which no turn names any more. Children precede their parents. */
int conversations_doomed(struct conversations *c, struct sha256 *keys, int max, int *n,
                         struct err *err);
/* Removes chunks from the list of doomed ones. Call it when they are erased from the store, or need
 * not be erased any more. */
int conversations_buried(struct conversations *c, const struct sha256 *keys, int n,
                         struct err *err);

struct conversations_stats {
    int64_t n_conversations, n_turns, n_doomed;
    uint64_t used_bytes;
};
int conversations_stats(struct conversations *c, struct conversations_stats *out,
                        struct err *err);
/* Counts the conversations of one tenant and the turns on their paths. The other fields are 0. */
int conversations_stats_of(struct conversations *c, const char *tenant,
                           struct conversations_stats *out, struct err *err);

#endif
