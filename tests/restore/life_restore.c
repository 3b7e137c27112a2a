/* life_restore.c - the restores of a seeded life: see life_impl.h. */
#include "tests/restore/life_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/restore/turns.h"

/* Fills blocks [first, end) of a slot with bits that no state has. */
static void spoil(struct slot *s, int first, int end)
{
    for (int l = 0; l < s->w->m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(s->w->pool, l);
        for (int b = first; b < end; b++)
            memset(kv.blocks + (size_t)s->table->blocks[b] * kv.block_stride, 0xa5,
                   kv.block_stride);
    }
}

/* Writes positions [0, n) into the cache. */
static void fill(struct slot *s, int n)
{
    struct err err = {0};
    struct world_rows b;
    const struct model *m = s->w->m;
    for (int l = 0; n > 0 && l < m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(s->w->pool, l);
        struct mat rows = mat_of(s->t->rows[l][STORE_KV], m->dtype, n,
                                 2 * model_kv_dim(m, 0));
        life_must(model_kv_fill(m, s->w->stream, l, &kv, rows,
                                world_rows(s->w, &b, s->table, 0, n)),
                  &err, "filling blocks");
    }
}

/* Compares positions [from, end) of layer l with the forward pass. */
static void compare(const struct slot *s, int l, int from, int end, const char *what)
{
    struct err err = {0};
    struct world_rows b;
    const struct model *m = s->w->m;
    size_t row = model_kv_bytes(m, 0);
    struct kv_layer kv = kv_pool_layer(s->w->pool, l);
    if (from >= end)
        return;
    struct mat out = mat_of(s->w->got, m->dtype, end - from, 2 * model_kv_dim(m, 0));
    life_must(m->dev->ops->kv_read(s->w->stream, out, &kv,
                                   world_rows(s->w, &b, s->table, from, end - from)),
              &err, "reading K and V");
    for (int i = from; i < end; i++)
        if (memcmp(s->w->got + (size_t)(i - from) * row, s->t->want[l] + (size_t)i * row,
                   row) != 0)
            turns_fail("%s: layer %d differs at position %d of [%d, %d)", what, l, i, from,
                       end);
}

/* Returns the first position that layer l sees from position n on. */
static int first_seen(const struct model *m, int l, int n)
{
    int window = config_window(&m->cfg, l);
    return window > 0 && n + 1 > window ? n + 1 - window : 0;
}

static void make_plan(struct life *f, struct slot *s)
{
    int n = s->w->m->cfg.n_layers, n_r = (int)life_below(f, (uint64_t)n + 1);
    s->plan = (struct plan){.n_layers = n, .mode = PLAN_FORCED_LAYERS};
    if (life_below(f, 2) == 0)
        n_r = 0;
    for (int l = 0; l < n; l++)
        s->plan.method[l] = l < n_r ? 'R' : life_below(f, 2) == 0 ? 'H' : 'K';
    /* a run of layers that ends at the last layer */
    for (int l = n - 1; l >= n_r && life_below(f, 2) == 0; l--)
        s->plan.io_order[s->plan.n_io++] = (int16_t)l;
}

/* Fills the blocks with the prefix that is on the device already, and the rest with bits that no
 * state has. */
static void take_blocks(struct slot *s)
{
    spoil(s, 0, s->asked);
    fill(s, s->first * 64);
}

void life_restore_begin(struct life *f, struct slot *s, int n_tokens)
{
    /* The look-up must keep its own copy of the tokens: the caller's array is freed at once. */
    size_t bytes = (size_t)n_tokens * sizeof(int32_t);
    int32_t *tokens = xmalloc(bytes);
    memcpy(tokens, s->t->tokens, bytes);
    struct restore_want want = {.root = &s->t->chain.root,
                                .keys = s->t->chain.keys,
                                .tokens = tokens,
                                .n_tokens = n_tokens};
    s->is_started = false;
    s->t_begun = clock_now_ns();
    s->r = restore_find(f->pipeline, &want);
    memset(tokens, 0, bytes);
    free(tokens);
}

int life_tokens_of(const struct restore_found *found, int n)
{
    return n == 0 ? 0 : (n - 1) * 64 + found->hits[n - 1].n_tokens;
}

bool life_restore_start(struct life *f, struct slot *s, const struct restore_found *found,
                        bool all)
{
    if (found->err.code != 0 && (life_is_calm(f) || found->err.msg[0] == 0))
        turns_fail("a look-up fails: %s", found->err.msg);
    if (found->n_hits == 0)
        return false;
    s->asked = all || life_below(f, 3) != 0
                   ? found->n_hits
                   : 1 + (int)life_below(f, (uint64_t)found->n_hits);
    s->first = all || life_below(f, 3) != 0 ? 0 : (int)life_below(f, (uint64_t)s->asked);
    make_plan(f, s);
    struct restore_job job = {.n_chunks = s->asked,
                              .first_chunk = s->first,
                              .tokens = s->t->tokens,
                              .table = s->table,
                              .plan = &s->plan};
    /* old findings (test_lives.c) are repeated by seeds that drew four more numbers a layer here */
    for (int i = 0; i < 4 * f->w->m->cfg.n_layers; i++)
        (void)life_below(f, 100);
    s->is_left = false;
    s->least = 0;
    s->is_started = true;
    take_blocks(s);
    restore_start(s->r, &job);
    return true;
}

void life_stall(struct life *f, struct slot *s)
{
    struct restore_result r;
    struct restore_reads reads;
    struct err err = {0};
    restore_reads_of(s->r, &reads);
    if (reads.silent_ns > 0 && reads.n_left == 0)
        turns_fail("a restore without reads is silent");
    bool often = life_has(f, LIFE_HANG) || life_has(f, LIFE_READ_FAIL) ||
                 life_has(f, LIFE_FLIP) || life_has(f, LIFE_LOSSY);
    if (life_below(f, often ? 2 : 12) == 0 && restore_race(s->r)) {
        (void)restore_result_of(s->r, &r, &err);
        s->least = r.n_chunks;
    }
    if (life_below(f, life_has(f, LIFE_HANG) ? 20 : 100) == 0) {
        restore_stop(s->r, "left");
        s->is_left = true;
    }
}

void life_check_ready(struct life *f, const struct slot *s)
{
    int n = restore_layers_ready(s->r);
    const struct restore_found *found = restore_found(s->r);
    int end = life_tokens_of(found, s->asked);
    if (n > 0 && life_below(f, 4) == 0)
        compare(s, n - 1, first_seen(s->w->m, n - 1, end), end, "a layer that is ready");
}

int life_check_restored(struct life *f, struct slot *s)
{
    struct restore_result r;
    struct err err = {0};
    if (restore_result_of(s->r, &r, &err) != 0)
        turns_fail("a restore fails: %s", err.msg);
    if (r.n_chunks < s->first || r.n_chunks > s->asked)
        turns_fail("%d chunks of [%d, %d) are back", r.n_chunks, s->first, s->asked);
    bool is_short = r.n_chunks < s->asked;
    if (!s->is_left && r.n_chunks < s->least)
        turns_fail("%d chunks are back of %d that were raced", r.n_chunks, s->least);
    if (is_short && ((life_is_calm(f) && !s->is_left) || r.fault[0] == 0))
        turns_fail("%d of %d chunks are back: %s", r.n_chunks, s->asked, r.fault);
    int end = life_tokens_of(restore_found(s->r), r.n_chunks);
    if (r.n_tokens != end)
        turns_fail("%d tokens are back instead of %d", r.n_tokens, end);
    for (int l = 0; l < s->w->m->cfg.n_layers; l++)
        compare(s, l,
                first_seen(s->w->m, l, end) > r.first_token ? first_seen(s->w->m, l, end)
                                                            : r.first_token,
                end, "a restore");
    int64_t taken_ns = clock_now_ns() - s->t_begun;
    if (r.compute_ns > taken_ns || r.io_ns > taken_ns)
        turns_fail("a restore of %lld ns computed for %lld and read for %lld",
                   (long long)taken_ns, (long long)r.compute_ns, (long long)r.io_ns);
    struct restore_reads reads;
    restore_reads_of(s->r, &reads);
    f->counts->n_restored++;
    f->counts->n_direct += r.direct_bytes > 0;
    f->counts->n_short += is_short;
    f->counts->n_left += s->is_left;
    f->counts->n_read += r.raced_layers > 0 && !r.won && !s->is_left;
    f->counts->n_recomputed += r.won;
    f->counts->n_late += r.won && reads.n_left > 0;
    f->counts->n_rewound += is_short && s->w->m->cfg.sliding_window > 0 &&
                            r.n_chunks > s->first;
    return end;
}
