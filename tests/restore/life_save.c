/* life_save.c - the saving of a seeded life: see life_impl.h. */
#include "tests/restore/life_impl.h"

#include <string.h>

#include "tests/restore/turns.h"

void life_note_committed(struct life *f, struct slot *s)
{
    int64_t n = save_committed_tokens(s->q);
    int64_t *all = &f->committed[s->t - s->w->text];
    if (s->q == NULL)
        return;
    if (n < s->committed || n > s->n)
        turns_fail("%lld tokens are committed, of %lld, after %lld", (long long)n,
                   (long long)s->n, (long long)s->committed);
    s->committed = n;
    *all = n > *all ? n : *all;
}

/* Chooses the kinds of records for each layer.  Chunks that other sequences saved may lack some. */
static struct save_policy draw_policy(struct life *f)
{
    struct save_policy p = {0};
    for (int l = 0; l < f->w->m->cfg.n_layers; l++)
        p.kinds[l] = life_below(f, 5) == 0   ? SAVE_HIDDEN | SAVE_KV
                     : life_below(f, 2) == 0 ? SAVE_HIDDEN
                                             : SAVE_KV;
    return p;
}

/* Returns whether a stored tail has every record that policy p wants of the full chunk. */
static bool can_continue(const struct slot *s, const struct save_policy *p,
                         const struct store_hit *tail)
{
    uint8_t stored[STORE_MAX_LAYERS];
    int n = s->w->m->cfg.n_layers, l = 0;
    save_stored_kinds(&tail->mask, n, stored);
    while (l < n && (p->kinds[l] & ~stored[l]) == 0)
        l++;
    return l == n;
}

void life_save_open(struct life *f, struct slot *s, int64_t from,
                    const struct store_hit *last)
{
    struct save_policy policy = draw_policy(f);
    if (from % 64 != 0 && !can_continue(s, &policy, last)) {
        from -= from % 64;
        last = from > 0 ? last - 1 : NULL;
    }
    if (last != NULL)
        s->hold = store_hold(f->store, last);
    struct save_begin b = {.first_token = from,
                           .parent = chain_parent(&s->t->chain, (int)(from / 64)),
                           .tail = from % 64 != 0 ? &s->hold : NULL,
                           .policy = &policy,
                           .epoch = s->epoch,
                           .is_document = life_below(f, 4) == 0};
    s->q = save_open(f->saver, &b);
    s->n = s->committed = from;
    s->until = s->t->n;
    if (life_below(f, 3) == 0)
        s->until = from + (int64_t)life_below(f, (uint64_t)(s->t->n - from) + 1);
}

/* Returns n rows of one kind from token s->n on. They are valid until two layers later. */
static struct mat rows_of(const struct slot *s, int l, enum store_kind kind, int n)
{
    const struct model *m = s->w->m;
    size_t bytes = kind == STORE_HIDDEN ? model_hidden_bytes(m) : model_kv_bytes(m, 0);
    uint8_t *to = s->w->batch[l % 2][kind];
    memcpy(to, s->t->rows[l][kind] + (size_t)s->n * bytes, (size_t)n * bytes);
    return mat_of(to, m->dtype, n,
                  kind == STORE_HIDDEN ? m->cfg.n_embd : 2 * model_kv_dim(m, 0));
}

bool life_save_some(struct life *f, struct slot *s)
{
    static const enum save_wait hows[] = {SAVE_TRY, SAVE_SHED, SAVE_WAIT};
    const struct model *m = s->w->m;
    int64_t left = s->until - s->n;
    if (left == 0 || save_ended(s->q) != SAVE_GOES_ON)
        return false;
    int n = 1 + (int)life_below(f, MAX_ROWS);
    n = n < left ? n : (int)left;
    enum save_wait how = life_is_calm(f) ? hows[2 * life_below(f, 2)]
                                         : hows[life_below(f, 3)];
    if (!save_reserve(s->q, s->n, n, how)) {
        (void)restore_pipeline_wait(f->pipeline, 100000);
        return true;
    }
    struct save_part part = {s->q, s->n, 0, n};
    for (int l = 0; l < m->cfg.n_layers; l++) {
        save_layer(&part, 1, l, rows_of(s, l, STORE_HIDDEN, n), rows_of(s, l, STORE_KV, n),
                   s->w->stream);
    }
    save_layers_end(f->saver, s->w->stream);
    s->n += n;
    life_erase_note(f, s);
    save_advance(s->q, s->t->tokens, s->n);
    return true;
}

void life_save_end(struct life *f, struct slot *s)
{
    struct err err = {0};
    if (life_below(f, 8) == 0)
        save_stop(s->q);
    else
        save_idle(s->q, s->t->tokens, s->n, NULL);
    if (life_below(f, 2) == 0) {
        int rc = saver_flush(f->saver, &err);
        if (rc != 0 && (life_is_calm(f) || err.msg[0] == 0))
            turns_fail("a flush fails: %s", err.msg);
        if (save_ended(s->q) == SAVE_GOES_ON && !save_is_settled(s->q))
            turns_fail("a sequence is not settled behind a flush");
    }
    life_note_committed(f, s);
    enum save_end end = save_ended(s->q);
    bool is_right = !life_is_calm(f) || (end == SAVE_END_MEMORY && f->is_tight);
    if (end != SAVE_GOES_ON && (!is_right || save_end_text(end)[0] == 0))
        turns_fail("saving ends: %s", save_end_text(end));
    f->counts->n_save_ended += end != SAVE_GOES_ON;
    f->counts->n_too_late += end == SAVE_END_ERASED;
    save_close(s->q);
    store_release(f->store, &s->hold, 1);
    s->q = NULL;
    s->t = NULL;
}
