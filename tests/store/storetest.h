/* storetest.h - shared by the store's tests: contexts whose tokens and bytes follow from numbers,
 * so that a test knows what must be readable without keeping a copy. */
#ifndef TESTS_STORE_STORETEST_H
#define TESTS_STORE_STORETEST_H

#include "io/io.h"
#include "store/store.h"
#include "tests/base/tempdir.h"

#define ST_MAX_CHUNKS 64

/* A context. Contexts with the same `base` share chunks [0, branch). The later chunks belong to the
 * context alone. */
struct st_ctx {
    uint64_t base, own;
    int branch;
    uint64_t model;   /* determines the fingerprint */
    const char *salt; /* determines root and owner */
};

/* The value of store_chunk.may_be_refused in appends; false unless a test sets it. */
extern bool st_may_be_refused;
/* The value of store_chunk.epoch in appends; 0 unless a test sets it. */
extern uint64_t st_epoch;
/* Called once in the next append, while it writes; NULL: not called. */
extern void (*st_while_written)(struct store *s);

struct st_shape {
    int n_layers;
    uint32_t n_bytes[STORE_KINDS]; /* bytes of a record of each kind */
    bool is_plain;                 /* no record is packed */
};
extern const uint8_t st_key[]; /* a secret for store_opts.key */
/* The key of places that are opened from now on; NULL unless a test sets it. */
extern const uint8_t *st_place_key;
extern const struct st_shape st_small; /* 3 layers, with records that do not fill blocks */

struct sha256 st_fingerprint(uint64_t model);
void st_tokens(const struct st_ctx *c, int chunk, int32_t out[STORE_CHUNK_TOKENS]);
/* Whether the tests say of a layer's records that they are packed, which only changes their places.
 * The store does not look into packed bytes. */
static inline bool st_is_packed(const struct st_shape *shape, int layer)
{
    return !shape->is_plain && layer % 2 != 0;
}

/* Asserts that opening fails with the code and a message that has the text. */
void st_refused(const struct store_opts *opts, int code, const char *text);
/* Fills in keys[0..n). */
void st_keys(const struct st_ctx *c, int n, struct sha256 *keys);
/* Fills out with the bytes that record (layer, kind) of a chunk must have. */
void st_fill(const struct sha256 *key, int layer, enum store_kind kind, uint8_t *out,
             size_t n);

enum { ST_H = 1 << STORE_HIDDEN, ST_KV = 1 << STORE_KV, ST_BOTH = ST_H | ST_KV };
/* Appends the records of these kinds for layers [from, to). */
int st_append_layers(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                     int chunk, int kinds, int from, int to, struct err *err);
int st_append(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
              int chunk, int kinds, struct err *err);
/* Appends chunks [0, n) and commits. */
int st_save(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            int kinds, struct err *err);

struct st_result {
    int n_found;   /* chunks of the chain that the lookup found */
    int n_records; /* records that were read and right */
    int n_wrong;   /* records that passed the check with wrong bytes; must be 0 */
    int n_corrupt; /* records that the check refused; their chunk was condemned */
    int n_unread;  /* records that gave another error */
    int n_dram;    /* records that were served from copies in DRAM */
    struct store_mask mask[ST_MAX_CHUNKS];
    char why[128];
};
/* Looks up chunks [0, n), reads every record of the hits through a new reader, and compares the
 * bytes. */
int st_read(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            struct st_result *out, struct err *err);

/* Like st_read, through a reader that uses copies in DRAM if there are any. */
int st_read_dram(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                 int n, struct st_result *out, struct err *err);

/* --- places ----------------------------------------------------------------------------------- */

/* One place for a store: "dram", "pread", "uring" or "sim", with n_dirs fresh directories. */
struct st_place {
    struct io *io;
    char root[TEMPDIR_BYTES];
    char dir[STORE_MAX_DEVICES][300];
    const char *dirs[STORE_MAX_DEVICES];
    struct store_opts opts; /* ready for store_open */
};
/* Makes the place. Returns false if this machine lacks the kind (no io_uring). */
bool st_place_open(struct st_place *p, const char *kind, int n_dirs);
void st_place_close(struct st_place *p);            /* removes all files of the place */
void st_close(struct store *s, struct st_place *p); /* audits the store, and closes both */

/* --- for cmocka: an error fails the test with its message ------------------------------------- */

/* Opens a store with p->opts. */
struct store *st_open(const struct st_place *p);
/* Makes the place, and opens a store there. */
struct store *st_begin(struct st_place *p, const char *kind, int n_dirs);
/* Power fails now, unless it has failed already, and *s is opened again. Returns whether it had. */
bool st_power_fails(const struct st_place *p, struct store **s);
/* Saves the first n chunks with both kinds of records, in the shape st_small. */
void st_must_save(struct store *s, const struct st_ctx *c, int n);
/* Returns how many of the first n chunks a lookup finds.  Reads no record. */
int st_n_found(struct store *s, const struct st_ctx *c, int n);
/* Like st_n_found, and checks that every record of the chunks is right. */
int st_n_right(struct store *s, const struct st_ctx *c, int n);
/* Returns the bytes that n chunks saved by st_must_save take. */
uint64_t st_context_bytes(int n);
struct store_stats st_stats(struct store *s);

#endif
