/* cpu_delta.c - the recurrent layers' states: one item of work for each sequence and head of Q. An
 * item reads and keeps the inputs of its own heads alone. */
#include "tensor/cpu/cpu.h"

#include "base/pool.h"

struct delta_job {
    const struct cpu_kernels *k;
    struct mat out, in;
    const struct delta_rule *d;
    const struct kv_layer *states;
    const struct ragged *r;
    struct items items;
};

static void run_items(void *arg, int thread_idx, int n_threads)
{
    struct delta_job *j = arg;
    (void)thread_idx;
    (void)n_threads;
    for (long item; item_take(&j->items, &item);) {
        int seq = (int)(item / j->d->n_k), first = j->r->seq_row[seq];
        struct delta_run u = {.d = j->d,
                              .head = (int)(item % j->d->n_k),
                              .n = j->r->seq_row[seq + 1] - first,
                              .in = row_ptr(j->in, first),
                              .ld_in = j->in.ld,
                              .ld_out = j->out.ld,
                              .state = delta_state(j->states, j->r, seq)};
        if (u.n == 0)
            continue;
        struct delta_run counting = u;
        counting.n = delta_n_counting(j->states, j->r, seq);
        counting.in = delta_kept(j->d, u.state);
        counting.ld_in = delta_in_cols(j->d);
        if (counting.n > 0)
            j->k->delta(&counting);
        u.out = j->out.data != NULL ? row_ptr(j->out, first) : NULL;
        u.is_first = j->r->pos[first] == 0;
        u.n_ahead = delta_n_ahead(j->r, seq);
        u.kept = delta_kept(j->d, u.state);
        j->k->delta(&u);
    }
}

int cpu_delta_net(struct stream *s, struct mat out, struct mat in,
                  const struct delta_rule *d, const struct kv_layer *states,
                  const struct ragged *r)
{
    check_delta(out, in, d, states, r);
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct delta_job job = {.k = cpu_kernels_of(s),
                            .out = out,
                            .in = in,
                            .d = d,
                            .states = states,
                            .r = r,
                            .items = {.n = (long)r->n_seqs * d->n_k}};
    if ((int64_t)r->n_rows * d->n_v * MAX(d->d_k, 1) * d->d_v < MIN_PARALLEL_ELEMENTS)
        run_items(&job, 0, 1);
    else
        pool_run(s->pool, run_items, &job);
    delta_advance(states, r);
    return rc;
}
