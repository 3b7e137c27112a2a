/* cpu_delta.c - the recurrent layers' states: an item of work for each sequence and head of Q, then
 * one for each sequence and head of V.  An item reads and keeps the inputs of its own head. */
#include "tensor/cpu/cpu.h"

#include "base/minmax.h"
#include "base/pool.h"

struct delta_job {
    void (*run)(const struct delta_run *run);
    struct mat out, in;
    const struct delta_rule *d;
    const struct kv_layer *states;
    const struct ragged *r;
    bool counting; /* the rows are the kept ones that count */
    int n_heads;
    struct items items;
};

/* Runs j->run for one head of one sequence after another: over its rows, or, if j->counting, over
 * the kept rows that count. */
static void run_items(void *arg, int thread_idx, int n_threads)
{
    struct delta_job *j = arg;
    (void)thread_idx;
    (void)n_threads;
    for (long item; item_take(&j->items, &item);) {
        int seq = (int)(item / j->n_heads), first = j->r->seq_row[seq];
        struct delta_run u = {.d = j->d,
                              .head = (int)(item % j->n_heads),
                              .n = j->r->seq_row[seq + 1] - first,
                              .in = row_ptr(j->in, first),
                              .ld_in = j->in.ld,
                              .ld_out = j->out.ld,
                              .state = delta_state(j->states, j->r, seq)};
        if (u.n == 0)
            continue;
        u.kept = delta_kept(j->d, u.state);
        if (j->counting) {
            u.n = delta_n_counting(j->states, j->r, seq);
            u.in = u.kept;
            u.ld_in = delta_in_cols(j->d);
        } else {
            u.out = j->out.data != NULL ? row_ptr(j->out, first) : NULL;
            u.is_first = j->r->pos[first] == 0;
            u.n_ahead = delta_n_ahead(j->r, seq);
        }
        if (u.n > 0)
            j->run(&u);
    }
}

/* Runs the items of all sequences' heads; `cost` is that of a row and head, in elements. */
static void run_heads(struct stream *s, struct delta_job *j,
                      void (*run)(const struct delta_run *run), int n_heads, int64_t cost)
{
    j->run = run;
    j->n_heads = n_heads;
    j->items.n = (long)j->r->n_seqs * n_heads;
    atomic_store(&j->items.next, 0);
    if ((int64_t)j->r->n_rows * n_heads * cost < MIN_PARALLEL_ELEMENTS)
        run_items(j, 0, 1);
    else
        pool_run(s->pool, run_items, j);
}

int cpu_delta_net(struct stream *s, struct mat out, struct mat in,
                  const struct delta_rule *d, const struct kv_layer *states,
                  const struct ragged *r)
{
    const struct cpu_kernels *k = cpu_kernels_of(s);
    int n_counting = 0;
    check_delta(out, in, d, states, r);
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct delta_job job = {.out = out, .in = in, .d = d, .states = states, .r = r};
    for (int i = 0; i < r->n_seqs; i++)
        if (r->seq_row[i + 1] > r->seq_row[i])
            n_counting += delta_n_counting(states, r, i);
    /* The kept inputs that count go first: the rows' own may take their place. */
    for (int pass = n_counting > 0 ? 0 : 1; pass < 2; pass++) {
        job.counting = pass == 0;
        if (d->d_k > 0)
            run_heads(s, &job, k->delta_keys, d->n_k, 2 * d->d_k);
        run_heads(s, &job, k->delta, d->n_v, (int64_t)MAX(d->d_k, 1) * d->d_v);
    }
    delta_advance(states, r);
    return rc;
}
