/* storetest.h - what the store's tests share: contexts whose tokens and bytes follow from numbers,
 * so that what must be readable can be said without keeping a copy. */
#ifndef TESTS_STORE_STORETEST_H
#define TESTS_STORE_STORETEST_H

#include "io/io.h"
#include "store/store.h"
#include "tests/base/tempdir.h"

#define ST_MAX_CHUNKS 64

/* Chunks [0, branch) are shared by all contexts with the same `base`; the rest is its own. */
struct st_ctx {
    uint64_t base, own;
    int branch;
    uint64_t model;   /* gives the fingerprint */
    const char *salt; /* gives root and owner */
};

/* Whether appends may be refused (store_chunk.may_be_refused); false unless a test sets it. */
extern bool st_may_be_refused;

struct st_shape {
    int n_layers;
    uint32_t n_bytes[STORE_KINDS]; /* of a record */
};
extern const struct st_shape st_small; /* 3 layers; records that do not fill blocks */

struct sha256 st_fingerprint(uint64_t model);
void st_tokens(const struct st_ctx *c, int chunk, int32_t out[STORE_CHUNK_TOKENS]);
/* keys[0..n); *root may be NULL. */
void st_keys(const struct st_ctx *c, int n, struct sha256 *keys);
/* The bytes that record (layer, kind) of a chunk must have. */
void st_fill(const struct sha256 *key, int layer, enum store_kind kind, uint8_t *out,
             size_t n);

enum { ST_H = 1 << STORE_HIDDEN, ST_KV = 1 << STORE_KV, ST_BOTH = ST_H | ST_KV };
/* Appends the records of these kinds of layers [from, to). */
int st_append_layers(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                     int chunk, int kinds, int from, int to, struct err *err);
int st_append(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
              int chunk, int kinds, struct err *err);
/* Appends chunks [0, n) and commits. */
int st_save(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            int kinds, struct err *err);

struct st_result {
    int n_found;   /* chunks of the chain that lookup found */
    int n_records; /* read and right */
    int n_wrong;   /* passed the check, but not the bytes that were appended: never */
    int n_corrupt; /* the check refused them (and the chunk was condemned) */
    int n_unread;  /* another error */
    int n_dram;    /* of all: served from copies in DRAM */
    struct store_mask mask[ST_MAX_CHUNKS];
    char why[128];
};
/* Looks up chunks [0, n), reads every record that the hits have through a new
 * reader, and compares. */
int st_read(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            struct st_result *out, struct err *err);

/* The same through a reader that takes copies in DRAM where there are any. */
int st_read_dram(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                 int n, struct st_result *out, struct err *err);

/* --- places ----------------------------------------------------------------------------------- */

/* One way to have a store: "dram", "pread", "uring", "sim"; n_dirs fresh directories. */
struct st_place {
    struct io *io;
    char root[TEMPDIR_BYTES];
    char dir[STORE_MAX_DEVICES][300];
    const char *dirs[STORE_MAX_DEVICES];
    struct store_opts opts; /* ready for store_open */
};
/* False where this machine lacks it (no io_uring). */
bool st_place_open(struct st_place *p, const char *kind, int n_dirs);
void st_place_close(struct st_place *p); /* removes everything */

/* --- for cmocka: a fault fails the test with its message -------------------------------------- */

/* Opens with p->opts. */
struct store *st_open(const struct st_place *p);
/* Saves the first n chunks, both kinds of records, in st_small's shape. */
void st_must_save(struct store *s, const struct st_ctx *c, int n);
/* Returns how many of the first n chunks a look-up finds; nothing is read. */
int st_n_found(struct store *s, const struct st_ctx *c, int n);
/* The same, and every record that they have is read and right. */
int st_n_right(struct store *s, const struct st_ctx *c, int n);
/* Returns the bytes that n chunks take which st_must_save has saved. */
uint64_t st_context_bytes(int n);
struct store_stats st_stats(struct store *s);

#endif
