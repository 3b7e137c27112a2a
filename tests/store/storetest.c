#include "storetest.h"

#include "seal/seal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/io_sim.h"

bool st_may_be_refused;
uint64_t st_epoch;
void (*st_while_written)(struct store *s);
const uint8_t *st_place_key;
const uint8_t st_key[SEAL_KEY_BYTES] = "a secret of 31 letters for tests";
const struct st_shape st_small = {.n_layers = 3, .n_bytes = {5000, 9001}};

struct sha256 st_fingerprint(uint64_t model)
{
    struct sha256 f = {{0}};
    put_u64(f.b, rng_mix(model + 1));
    return f;
}

void st_tokens(const struct st_ctx *c, int chunk, int32_t out[STORE_CHUNK_TOKENS])
{
    uint64_t seed = chunk < c->branch ? c->base : rng_mix(c->own) ^ c->base;
    for (int i = 0; i < STORE_CHUNK_TOKENS; i++)
        out[i] = (int32_t)(rng_mix(seed * 1000003 + (uint64_t)(chunk * 64 + i)) % 32000);
}

void st_refused(const struct store_opts *opts, int code, const char *text)
{
    struct store *s = NULL;
    struct err err = {0};
    int rc = store_open(opts, &s, &err);
    if (rc != code || strstr(err.msg, text) == NULL)
        fail_msg("wanted %s with \"%s\", got %d: %s", err_name(code), text, rc, err.msg);
}

void st_keys(const struct st_ctx *c, int n, struct sha256 *keys)
{
    struct sha256 fingerprint = st_fingerprint(c->model);
    struct sha256 parent = store_root_key(&fingerprint, c->salt);
    for (int i = 0; i < n; i++) {
        int32_t tokens[STORE_CHUNK_TOKENS];
        st_tokens(c, i, tokens);
        parent = keys[i] = store_chunk_key(&parent, tokens);
    }
}

void st_fill(const struct sha256 *key, int layer, enum store_kind kind, uint8_t *out,
             size_t n)
{
    struct rng r = {get_u64(key->b) + (uint64_t)layer * 2 + kind};
    for (size_t i = 0; i < n; i += 8) {
        uint8_t word[8];
        put_u64(word, rng_u64(&r));
        memcpy(out + i, word, n - i < 8 ? n - i : 8);
    }
}

/* A record whose bytes are made when they are written. */
struct hooked {
    struct store *s;
    const void *bytes;
};

static const void *hooked_make(void *arg, const struct store_record *r)
{
    const struct hooked *h = arg;
    void (*fn)(struct store *) = st_while_written;
    (void)r;
    st_while_written = NULL;
    if (fn != NULL)
        fn(h->s);
    return h->bytes;
}

int st_append_layers(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                     int chunk, int kinds, int from, int to, struct err *err)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_record records[STORE_KINDS * STORE_MAX_LAYERS];
    struct store_chunk sc = {.fingerprint = st_fingerprint(c->model),
                             .owner = store_owner(c->salt),
                             .chunk_idx = (uint32_t)chunk,
                             .may_be_refused = st_may_be_refused,
                             .epoch = st_epoch,
                             .records = records};
    CHECK(chunk < ST_MAX_CHUNKS);
    st_keys(c, chunk + 1, keys);
    sc.key = keys[chunk];
    sc.parent = chunk > 0 ? keys[chunk - 1] : store_root_key(&sc.fingerprint, c->salt);
    st_tokens(c, chunk, sc.tokens);
    for (int l = from; l < to; l++) {
        for (int k = 0; k < STORE_KINDS; k++) {
            if ((kinds >> k & 1) == 0)
                continue;
            uint8_t *bytes = xmalloc(shape->n_bytes[k]);
            st_fill(&sc.key, l, (enum store_kind)k, bytes, shape->n_bytes[k]);
            records[sc.n_records++] = (struct store_record){
                .layer = l,
                .kind = (enum store_kind)k,
                .bytes = bytes,
                .n_bytes = shape->n_bytes[k],
                .is_packed = st_is_packed(shape, l)};
        }
    }
    struct hooked first = {s, sc.n_records > 0 ? records[0].bytes : NULL};
    if (st_while_written != NULL && sc.n_records > 0) {
        records[0].bytes = NULL;
        records[0].make = hooked_make;
        records[0].make_arg = &first;
    }
    int rc = store_append(s, &sc, err);
    if (sc.n_records > 0)
        records[0].bytes = first.bytes;
    for (int i = 0; i < sc.n_records; i++)
        free((void *)records[i].bytes);
    return rc;
}

int st_append(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
              int chunk, int kinds, struct err *err)
{
    return st_append_layers(s, shape, c, chunk, kinds, 0, shape->n_layers, err);
}

int st_save(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            int kinds, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = st_append(s, shape, c, i, kinds, err);
    return rc == 0 ? store_commit(s, err) : rc;
}

/* --- reading ---------------------------------------------------------------------------------- */

static void result_take(struct store *s, const struct st_shape *shape,
                        struct store_read *read, struct st_result *out)
{
    struct err why = {0};
    out->n_dram += read->copy != NULL;
    if (store_read_check(read, &why) == 0) {
        uint32_t n = shape->n_bytes[read->kind];
        uint8_t *want = xmalloc(n);
        st_fill(&read->hit->key, read->layer, read->kind, want, n);
        if (read->n_bytes == n && memcmp(read->bytes, want, n) == 0 &&
            read->is_packed == st_is_packed(shape, read->layer))
            out->n_records++;
        else
            out->n_wrong++;
        free(want);
    } else if (why.code == ERR_CORRUPT) {
        out->n_corrupt++;
        store_condemn(s, read->hit, "bad checksum");
    } else {
        out->n_unread++;
    }
}

static int chunk_read(struct store *s, struct store_reader *r, const struct st_shape *shape,
                      const struct store_hit *hit, uint8_t *memory, size_t room,
                      struct st_result *out, struct err *err)
{
    struct store_read reads[STORE_KINDS * STORE_MAX_LAYERS],
        *batch[STORE_KINDS * STORE_MAX_LAYERS];
    int n = 0;
    for (int l = 0; l < STORE_MAX_LAYERS; l++)
        for (int k = 0; k < STORE_KINDS; k++)
            if (store_mask_has(&hit->mask, l, (enum store_kind)k)) {
                CHECK((size_t)(n + 1) * room > 0);
                reads[n] = (struct store_read){.hit = hit,
                                               .layer = l,
                                               .kind = (enum store_kind)k,
                                               .dst = memory + (size_t)n * room,
                                               .dst_bytes = room};
                batch[n] = &reads[n];
                n++;
            }
    int rc = 0;
    store_reader_submit(r, batch, n);
    for (int n_left = n; n_left > 0 && rc == 0;) {
        struct store_read *done[7];
        int n_done = 0;
        rc = store_reader_wait(r, done, 7, &n_done, err);
        for (int i = 0; i < n_done; i++) {
            result_take(s, shape, done[i], out);
            store_read_release(done[i]);
        }
        n_left -= n_done;
    }
    return rc;
}

static int read_all(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                    int n, bool uses_dram, struct st_result *out, struct err *err)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_hit hits[ST_MAX_CHUNKS];
    struct store_reader *r = NULL;
    /* the tests' packed records are as long as plain ones, and may begin inside a block */
    size_t room = round_up(MAX(shape->n_bytes[0], shape->n_bytes[1]), STORE_ALIGN) +
                  STORE_ALIGN;
    size_t n_bytes = room * STORE_KINDS * (size_t)shape->n_layers;
    uint8_t *memory = mem_map(n_bytes);
    *out = (struct st_result){0};
    if (memory == NULL)
        return err_set(err, -ENOMEM, "the test has no memory");
    st_keys(c, n, keys);
    out->n_found = store_lookup(s, NULL, keys, n, hits, out->why, sizeof out->why);
    int rc = store_reader_open(s, 4, memory, n_bytes, &r, err);
    if (rc == 0 && uses_dram)
        store_reader_use_dram(r);
    for (int i = 0; rc == 0 && i < out->n_found; i++) {
        out->mask[i] = hits[i].mask;
        rc = chunk_read(s, r, shape, &hits[i], memory, room, out, err);
    }
    store_reader_close(r);
    store_release(s, hits, out->n_found);
    mem_unmap(memory, n_bytes);
    return rc;
}

int st_read(struct store *s, const struct st_shape *shape, const struct st_ctx *c, int n,
            struct st_result *out, struct err *err)
{
    return read_all(s, shape, c, n, false, out, err);
}

int st_read_dram(struct store *s, const struct st_shape *shape, const struct st_ctx *c,
                 int n, struct st_result *out, struct err *err)
{
    return read_all(s, shape, c, n, true, out, err);
}

/* --- places ----------------------------------------------------------------------------------- */

static bool io_of(const char *kind, struct io **io)
{
    struct err err = {0};
    int rc = 0;
    *io = NULL;
    if (strcmp(kind, "sim") == 0)
        rc = io_sim_open(&(struct io_sim_opts){.seed = 1, .keeps_freed = true}, io, &err);
    else if (strcmp(kind, "uring") == 0)
        rc = io_uring_open(io, &err);
    else if (strcmp(kind, "pread") == 0)
        *io = io_pread_open();
    if (rc != 0)
        print_message("SKIP: %s\n", err.msg);
    return rc == 0;
}

bool st_place_open(struct st_place *p, const char *kind, int n_dirs)
{
    memset(p, 0, sizeof *p);
    if (!io_of(kind, &p->io))
        return false;
    if (strcmp(kind, "sim") == 0) {
        strcpy(p->root, "/st");
    } else if (p->io != NULL) {
        tempdir_make_on_disk(p->root, "store");
    }
    for (int i = 0; i < n_dirs; i++) {
        snprintf(p->dir[i], sizeof p->dir[i], "%s/d%d", p->root, i);
        p->dirs[i] = p->dir[i];
    }
    p->opts = (struct store_opts){.io = p->io,
                                  .dirs = p->dirs,
                                  .n_dirs = n_dirs,
                                  .segment_bytes = 1 << 20,
                                  .key = st_place_key};
    return true;
}

void st_place_close(struct st_place *p)
{
    if (p->io != NULL && strcmp(io_name(p->io), "sim") != 0)
        tempdir_remove(p->root);
    io_close(p->io);
}

void st_close(struct store *s, struct st_place *p)
{
    assert_true(store_audit(s));
    store_close(s);
    st_place_close(p);
}

struct store *st_open(const struct st_place *p)
{
    struct store *s = NULL;
    struct err err = {0};
    int rc = store_open(&p->opts, &s, &err);
    if (rc != 0)
        fail_msg("store_open: %s", err.msg);
    return s;
}

struct store *st_begin(struct st_place *p, const char *kind, int n_dirs)
{
    assert_true(st_place_open(p, kind, n_dirs));
    return st_open(p);
}

bool st_power_fails(const struct st_place *p, struct store **s)
{
    bool had = io_sim_crashed(p->io);
    if (!had)
        io_sim_crash(p->io);
    store_close(*s);
    io_sim_restart(p->io);
    *s = st_open(p);
    return had;
}

void st_must_save(struct store *s, const struct st_ctx *c, int n)
{
    struct err err = {0};
    if (st_save(s, &st_small, c, n, ST_BOTH, &err) != 0)
        fail_msg("%s", err.msg);
}

int st_n_found(struct store *s, const struct st_ctx *c, int n)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    struct store_hit hits[ST_MAX_CHUNKS];
    st_keys(c, n, keys);
    int n_found = store_lookup(s, NULL, keys, n, hits, NULL, 0);
    store_release(s, hits, n_found);
    return n_found;
}

int st_n_right(struct store *s, const struct st_ctx *c, int n)
{
    struct st_result r;
    assert_int_equal(st_read(s, &st_small, c, n, &r, NULL), 0);
    assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
    return r.n_found;
}

uint64_t st_context_bytes(int n)
{
    struct st_place p;
    assert_true(st_place_open(&p, "dram", 1));
    struct store *s = st_open(&p);
    st_must_save(s, &(struct st_ctx){.base = 1, .own = 1}, n);
    uint64_t bytes = st_stats(s).used_bytes;
    store_close(s);
    st_place_close(&p);
    return bytes;
}

struct store_stats st_stats(struct store *s)
{
    struct store_stats st;
    store_stats(s, &st);
    return st;
}
