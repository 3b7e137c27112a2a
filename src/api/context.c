/* context.c - the public interface's view of one context's state: its stored part, pins,
 * erasing.
 *
 * A truncated context is stored in stairs (store/truncation.h), each a chain of its own. A
 * look-up and a pin concern the tokens that the context's last token sees; erasing concerns all
 * stairs. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "api/hcache_impl.h"
#include "api/ticket.h"
#include "save/snapshots.h"
#include "store/chain.h"

/* The keys of a context, and the chunks that its last token sees. */
struct keys {
    struct truncation truncation;
    int64_t cut;
    struct sha256 *all; /* [n_all] keys of all chunks, and of an unfinished last one */
    /* [n_seen] keys of the full chunks that the context's last token sees */
    struct sha256 *seen;
    int n_all, n_seen;
};

/* Returns which chunk of the whole context is the i-th that the last token sees. */
static int chunk_seen(const struct keys *k, int i)
{
    int64_t position = (int64_t)i * STORE_CHUNK_TOKENS;
    return (int)(truncation_token(&k->truncation, k->cut, position) / STORE_CHUNK_TOKENS);
}

/* Makes the keys. Fails without a store, and for a bad truncation. The caller always frees *k. */
static int keys_make(const struct hcache *h, const struct hcache_context *c, struct keys *k,
                     struct hcache_err *err)
{
    struct err *inner = hcache_inner(err);
    *k = (struct keys){0};
    if (h->k.store == NULL)
        return err_set(inner, ERR_UNSUPPORTED, "no state is stored (--store)");
    int rc = hcache_make_truncation(h, &c->truncation, &k->truncation, inner);
    if (rc != 0)
        return rc;
    const struct truncation *t = &k->truncation;
    k->cut = c->n > 0 ? truncation_cut(t, c->n - 1) : 0;
    k->n_seen = (int)(c->n - k->cut) / STORE_CHUNK_TOKENS;
    k->all = xmalloc(((size_t)c->n / STORE_CHUNK_TOKENS + 2) * sizeof *k->all);
    k->seen = xmalloc(((size_t)k->n_seen + 1) * sizeof *k->seen);
    k->n_all = hcache_chunk_keys(h, t->context, t->step, t->keep, c->ids, c->n, c->salt,
                                 (void *)k->all);
    for (int i = 0; i < k->n_seen; i++)
        k->seen[i] = k->all[chunk_seen(k, i)];
    return 0;
}

static void keys_free(struct keys *k)
{
    free(k->all);
    free(k->seen);
}

/* --- looking up ------------------------------------------------------------------------------- */

/* Writes a letter for each layer: the kinds of records that all of its chunks have. A layer with a
 * window needs only the chunks that tokens behind n chunks see. */
static void describe_layers(const struct store_hit *hits, int n,
                            const struct model_config *c, char *out)
{
    for (int l = 0; n > 0 && l < config_n_keeping(c) && l < 256; l++) {
        bool hidden = true, kv = true;
        int w = config_window(c, l), i = w > 0 ? window_first_chunk(n * 64, w) : 0;
        for (; i < n; i++) {
            hidden = hidden && store_mask_has(&hits[i].mask, l, STORE_HIDDEN);
            kv = kv && store_mask_has(&hits[i].mask, l, STORE_KV);
        }
        out[l] = hidden && kv ? 'B' : hidden ? 'H' : kv ? 'K' : '-';
    }
}

/* Finds the first token at which the prompt differs from stored histories. Sets out->differs_at to
 * it and adds it to out->why. Does nothing if there is no stored history to compare, or for a
 * truncated context. */
static void tell_where(struct hcache *h, const struct keys *k, int n_hits,
                       const struct hcache_context *c, struct hcache_found *out)
{
    int first = n_hits * STORE_CHUNK_TOKENS;
    struct sha256 root = store_root_key(&h->k.fingerprint, c->salt);
    if (k->cut > 0)
        return;
    int same = store_differs_at(h->k.store, n_hits > 0 ? &k->seen[n_hits - 1] : &root,
                                c->ids + first, c->n - first);
    if (same < 0 || first + same == 0)
        return;
    out->differs_at = first + same;
    miss_text(h->tokenizer, c->ids, c->n, out->differs_at, out->why, sizeof out->why);
}

/* Fills *out: how much of the context is stored and could be restored, where, and why no more. */
static void look_up(struct hcache *h, const struct keys *k, const struct hcache_context *c,
                    struct hcache_found *out)
{
    /* The prompt's last token is always computed, for its logits, so it is never looked up. */
    int want = c->n > 0 ? (int)(c->n - k->cut - 1) / STORE_CHUNK_TOKENS : 0;
    struct store_hit *hits = xcalloc((size_t)want + 1, sizeof *hits);
    const struct model_config *cfg = &h->k.model->cfg;
    const struct layer_set apart = save_apart(cfg);
    struct store_stats st;
    out->truncated_tokens = (int)k->cut;
    out->wanted_tokens = want * STORE_CHUNK_TOKENS;
    int n_hits = store_lookup(h->k.store, NULL, k->seen, want, hits, out->why,
                              sizeof out->why);
    if (n_hits < want && strcmp(out->why, STORE_WHY_ABSENT) == 0)
        tell_where(h, k, n_hits, c, out);
    store_stats(h->k.store, &st);
    int m = save_resumable(cfg, &apart, hits, n_hits, 0, n_hits * STORE_CHUNK_TOKENS);
    if (m < n_hits)
        snprintf(out->why, sizeof out->why, SAVE_WHY_WINDOWS, n_hits * STORE_CHUNK_TOKENS,
                 (int)cfg->sliding_window, m * STORE_CHUNK_TOKENS);
    out->stored_tokens = m * STORE_CHUNK_TOKENS;
    out->tier = st.tier;
    describe_layers(hits, m, cfg, out->layers);
    store_release(h->k.store, hits, n_hits);
    free(hits);
}

int hcache_cache_lookup(struct hcache *h, const struct hcache_context *c,
                        struct hcache_found *out, struct hcache_err *err)
{
    struct keys k;
    *out = (struct hcache_found){0};
    int rc = keys_make(h, c, &k, err);
    if (rc == 0)
        look_up(h, &k, c, out);
    keys_free(&k);
    return rc;
}

/* --- pins and erasing ------------------------------------------------------------------------- */

/* Collects the keys to pin in `out`, and returns their number. A chunk is evicted after all that
 * continue it, so a pin on the last chunk of a stair pins the stair. The chunks that truncation
 * keeps at the beginning need a pin on their own last chunk, since the pinned stair may not
 * continue them. */
static int collect_pins(const struct keys *k, uint8_t (*out)[32])
{
    const struct truncation *t = &k->truncation;
    int n = 0;
    for (int i = 0; i < k->n_seen; i++) {
        int64_t behind = (int64_t)(chunk_seen(k, i) + 1) * STORE_CHUNK_TOKENS;
        bool ends_kept = k->cut > 0 && behind == t->keep;
        bool ends_stair = t->context > 0 && truncation_begins(t, behind);
        if (i + 1 == k->n_seen || ends_kept || ends_stair)
            memcpy(out[n++], k->seen[i].b, sizeof out[0]);
    }
    return n;
}

int hcache_cache_pin_context(struct hcache *h, const struct hcache_context *c,
                             int64_t until_wall_s, int *n_tokens, struct hcache_err *err)
{
    struct keys k;
    int rc = keys_make(h, c, &k, err);
    *n_tokens = k.n_seen * STORE_CHUNK_TOKENS;
    if (rc == 0 && k.n_seen > 0) {
        uint8_t(*pins)[32] = xmalloc((size_t)k.n_seen * sizeof *pins);
        rc = hcache_cache_pin(h, pins, collect_pins(&k, pins), until_wall_s, err);
        free(pins);
    }
    keys_free(&k);
    return rc;
}

int hcache_cache_guarantee(struct hcache *h, const struct hcache_context *c,
                           int64_t until_wall_s, struct hcache_guarantee *out,
                           struct hcache_err *err)
{
    struct keys k;
    struct store_guaranteed g = {0};
    *out = (struct hcache_guarantee){0};
    int rc = keys_make(h, c, &k, err);
    out->n_tokens = k.n_seen * STORE_CHUNK_TOKENS;
    if (rc == 0)
        rc = store_guarantee(h->k.store, k.seen, k.n_seen, until_wall_s, &g,
                             hcache_inner(err));
    out->n_bytes = g.n_bytes;
    out->all_bytes = g.all_bytes;
    out->limit_bytes = g.limit_bytes;
    out->salt_bytes = g.owner_bytes;
    out->salt_limit_bytes = g.owner_limit_bytes;
    keys_free(&k);
    return rc;
}

int hcache_cache_erase_context(struct hcache *h, const struct hcache_context *c,
                               struct hcache_erased *out, struct hcache_err *err)
{
    struct keys k;
    *out = (struct hcache_erased){0};
    int rc = keys_make(h, c, &k, err);
    if (rc == 0)
        rc = hcache_cache_erase(h, (void *)k.all, k.n_all, out, err);
    keys_free(&k);
    return rc;
}
