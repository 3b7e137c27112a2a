/* profile_scratch.c - see profile_scratch.h.
 *
 * It is a real store with records of this model's sizes, written and read by the same code, so
 * it shows the speeds that restores will see. It is removed when closed. The next profile
 * removes one that a crash has left. */
#include "sim/profile_scratch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "io/io.h"
#include "store/chain.h"
#include "save/saver.h"

/* Larger than a device's own cache can hide, small enough to be written in a second. */
#define SCRATCH_BYTES ((size_t)256 << 20)

enum { MIN_CHUNKS = 4, MAX_CHUNKS = 64 };
/* Writing ends after this time. A slow device also reads less in a sample. */
#define FILL_NS 10000000000

struct profile_scratch {
    struct io *io;
    char **dirs; /* our folders, inside the caller's */
    int n_dirs;
    struct store *store;
    struct chain chain;
    struct store_hit *hits;
    int n_hits;
};

/* Removes a folder of ours with the files in it. */
static void remove_dir(struct io *io, const char *dir)
{
    struct io_names names;
    if (io_list(io, dir, &names, NULL) != 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        char *path = xasprintf("%s/%s", dir, names.name[i]);
        (void)io_unlink(io, path, NULL);
        free(path);
    }
    io_names_free(&names);
    (void)io_unlink(io, dir, NULL);
}

static int open_store(struct profile_scratch *s, const char *const *dirs, struct err *err)
{
    s->dirs = xcalloc((size_t)(s->n_dirs > 0 ? s->n_dirs : 1), sizeof *s->dirs);
    for (int i = 0; i < s->n_dirs; i++) {
        s->dirs[i] = xasprintf("%s/profile-scratch", dirs[i]);
        remove_dir(s->io, s->dirs[i]);
    }
    struct store_opts o = {.io = s->io,
                           .dirs = (const char *const *)s->dirs,
                           .n_dirs = s->n_dirs,
                           .cap_bytes = 0};
    return store_open(&o, &s->store, err);
}

/* Returns how many layers with both kinds fit the size: the measurement needs records, not a
 * model. */
static int count_layers(const struct model *m, int n_dirs)
{
    size_t layer = record_bytes(m, 0, STORE_HIDDEN) + record_bytes(m, 0, STORE_KV);
    size_t n = SCRATCH_BYTES * (size_t)(n_dirs > 0 ? n_dirs : 1) / (MIN_CHUNKS * layer);
    int n_layers = MIN(config_n_keeping(&m->cfg), STORE_MAX_LAYERS);
    return (int)MIN(MAX(n, 1), (size_t)n_layers);
}

static int append(struct profile_scratch *s, const struct model *m, int n_layers, int c,
                  const int32_t *tokens, const uint8_t *bytes, struct err *err)
{
    struct store_record record[2 * STORE_MAX_LAYERS];
    int n = 0;
    for (int l = 0; l < n_layers; l++) {
        for (enum store_kind kind = 0; kind < STORE_KINDS; kind++)
            record[n++] = (struct store_record){
                .layer = l,
                .kind = kind,
                .bytes = bytes,
                .n_bytes = (uint32_t)record_bytes(m, l, kind)};
    }
    struct store_chunk chunk = {.key = s->chain.keys[c],
                                .parent = *chain_parent(&s->chain, c),
                                .chunk_idx = (uint32_t)c,
                                .records = record,
                                .n_records = n};
    memcpy(chunk.tokens, tokens, sizeof chunk.tokens);
    return store_append(s->store, &chunk, err);
}

/* Makes bytes that no device can compress, so that it moves all of them. */
static uint8_t *make_bytes(size_t n)
{
    struct rng r = {.s = 11};
    uint64_t *p = xmalloc(round_up(n, sizeof *p));
    for (size_t i = 0; i < (n + 7) / 8; i++)
        p[i] = rng_u64(&r);
    return (uint8_t *)p;
}

static int fill(struct profile_scratch *s, const struct model *m, struct err *err)
{
    size_t hidden = record_bytes(m, 0, STORE_HIDDEN), kv = record_bytes(m, 0, STORE_KV);
    int n_layers = count_layers(m, s->n_dirs), rc = 0;
    size_t chunk = (hidden + kv) * (size_t)n_layers;
    size_t n = SCRATCH_BYTES * (size_t)(s->n_dirs > 0 ? s->n_dirs : 1) / chunk;
    int n_chunks = (int)MIN(MAX(n, MIN_CHUNKS), MAX_CHUNKS);
    int32_t *tokens = xcalloc((size_t)n_chunks * STORE_CHUNK_TOKENS, sizeof *tokens);
    uint8_t *bytes = make_bytes(MAX(hidden, kv));
    chain_extend(&s->chain, tokens, (int64_t)n_chunks * STORE_CHUNK_TOKENS);
    int64_t t0 = clock_now_ns();
    int c = 0;
    for (; rc == 0 && c < n_chunks && (c < MIN_CHUNKS || clock_now_ns() - t0 < FILL_NS);
         c++)
        rc = append(s, m, n_layers, c, tokens + (size_t)c * STORE_CHUNK_TOKENS, bytes, err);
    n_chunks = c;
    if (rc == 0)
        rc = store_commit(s->store, err);
    s->hits = xcalloc((size_t)n_chunks, sizeof *s->hits);
    if (rc == 0)
        s->n_hits = store_lookup(s->store, NULL, s->chain.keys, n_chunks, s->hits, NULL, 0);
    if (rc == 0 && s->n_hits < n_chunks)
        rc = err_set(err, ERR_CORRUPT, "only %d of %d chunks came back", s->n_hits,
                     n_chunks);
    free(tokens);
    free(bytes);
    return rc;
}

int profile_scratch_open(const struct model *m, struct io *io, const char *const *dirs,
                         int n_dirs, struct profile_scratch **out, struct err *err)
{
    struct profile_scratch *s = xcalloc(1, sizeof *s);
    struct sha256 nobody = {{0}};
    s->io = io;
    s->n_dirs = io != NULL ? n_dirs : 0;
    chain_init(&s->chain, &nobody, "profile");
    int rc = open_store(s, dirs, err);
    if (rc == 0)
        rc = fill(s, m, err);
    if (rc != 0) {
        err_wrap(err, "a scratch store of %zu MiB in %s", SCRATCH_BYTES >> 20,
                 s->n_dirs > 0 ? dirs[0] : "memory");
        profile_scratch_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

struct profile_source profile_scratch_source(const struct profile_scratch *s)
{
    return (struct profile_source){.store = s->store, .hits = s->hits, .n_hits = s->n_hits};
}

void profile_scratch_close(struct profile_scratch *s)
{
    if (s == NULL)
        return;
    if (s->hits != NULL)
        store_release(s->store, s->hits, s->n_hits);
    store_close(s->store);
    for (int i = 0; i < s->n_dirs; i++) {
        remove_dir(s->io, s->dirs[i]);
        free(s->dirs[i]);
    }
    free(s->dirs);
    free(s->hits);
    chain_deinit(&s->chain);
    free(s);
}
