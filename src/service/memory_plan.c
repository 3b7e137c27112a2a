/* memory_plan.c - see memory_plan.h. */
#include "service/memory_plan.h"

#include <errno.h>
#include <sys/sysinfo.h>

#include "base/bytes.h"
#include "engine/next_token.h"
#include "state/fingerprint.h"
#include "state/profile.h"
#include "state/restore.h"
#include "tensor/group.h"

/* What the device's libraries and a stream for loading take beside the plan, at most. */
#define LIBRARY_BYTES ((size_t)256 << 20)
/* Parts of memory are rounded up to pages; there are some tens beside the weights. */
#define PART_BYTES ((size_t)4096)

enum { N_OTHER_PARTS = 64 };

/* Of one rank of one stage. */
struct needs {
    size_t model;   /* weights, rotation tables */
    size_t work;    /* activations, logits, what streams have */
    size_t kv;      /* the KV cache */
    size_t restore; /* staging, scratch, new tokens inside restores */
    size_t probes;  /* of the start, when there is no KV cache yet */
};

static int layers_of(const struct model *m, int stage)
{
    int n = 0;
    for (int l = 0; l < m->cfg.n_layers; l++)
        n += model_stage(m, l) == stage;
    return n;
}

static size_t kv_bytes(const struct model *m, int stage, int64_t tokens)
{
    size_t n_blocks = (size_t)(round_up((uint64_t)tokens, KV_BLOCK_TOKENS) /
                               KV_BLOCK_TOKENS);
    return n_blocks * (size_t)layers_of(m, stage) *
           kv_block_bytes(model_rank_kv_heads(m), m->cfg.d_head, m->dtype);
}

static struct needs needs_of(const struct memory_ask *a, int stage)
{
    const struct model *m = a->model;
    struct needs n = {.kv = kv_bytes(m, stage, a->kv_tokens)};
    n.model = a->need->bytes[stage] + (size_t)a->need->n_parts * PART_BYTES;
    n.work = model_work_bytes(m, a->max_rows) + m->dev->stream_bytes +
             next_token_bytes(m, a->max_seqs) + N_OTHER_PARTS * PART_BYTES;
    if (a->has_store) {
        n.restore = restore_pipeline_device_bytes(m, a->max_rows, a->staging_bytes) +
                    2 * (size_t)a->max_rows * model_hidden_bytes(m) + PROFILE_COPY_BYTES;
        n.probes = fingerprint_device_bytes(m);
        if (profile_device_bytes(m, a->max_rows) > n.probes)
            n.probes = profile_device_bytes(m, a->max_rows);
    }
    return n;
}

static size_t total_of(const struct needs *n)
{
    size_t later = n->kv + n->restore;
    return n->model + n->work + (later > n->probes ? later : n->probes);
}

/* What each stage takes [n_stages], and the parts of the one that takes the most. */
static struct needs stages_need(const struct memory_ask *a, size_t *bytes)
{
    struct needs most = {0};
    for (int k = 0; k < a->model->dev->n_stages; k++) {
        struct needs n = needs_of(a, k);
        bytes[k] = total_of(&n);
        if (bytes[k] > total_of(&most))
            most = n;
    }
    return most;
}

int64_t memory_plan_kv_tokens(const struct memory_ask *a)
{
    const struct model *m = a->model;
    struct memory_ask none = *a;
    size_t bytes[MAX_STAGES], unused, total;
    int64_t context = (int64_t)round_up((uint64_t)m->max_ctx, KV_BLOCK_TOKENS);
    none.kv_tokens = 0;
    device_memory(m->dev, &unused, &total);
    int64_t budget = (int64_t)(total / 4);
    if (!m->dev->unified) {
        struct needs most = stages_need(&none, bytes);
        size_t rest = total_of(&most) + LIBRARY_BYTES;
        budget = unused > rest ? (int64_t)((unused - rest) / 10 * 9) : 0;
    }
    int64_t most_layers = (m->cfg.n_layers + m->dev->n_stages - 1) / m->dev->n_stages;
    int64_t token_bytes = (int64_t)model_kv_bytes(m) / m->dev->n_ranks * most_layers;
    int64_t fits = budget / token_bytes / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    int64_t want = a->max_seqs * context;
    return want < fits ? want : fits > context ? fits : context;
}

/* Where all of it is the host's, the kernel grants weights that do not fit and ends a process when they are
 * touched, minutes later; with memory and swap too small for them alone, nothing can come of it. */
static int host_can_hold(const struct memory_ask *a, struct err *err)
{
    struct sysinfo s;
    uint64_t weights = a->model->w.bytes * (uint64_t)a->model->dev->n_ranks;
    if (sysinfo(&s) != 0)
        return 0; /* not to be known */
    uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
    if (weights <= all)
        return 0;
    return err_set(err, -ENOMEM,
                   "the weights take %.2f GB, and this machine has %.2f GB of memory and "
                   "swap: choose a smaller model%s",
                   (double)weights / 1e9, (double)all / 1e9,
                   a->model->w.dtype == DTYPE_Q8
                       ? ""
                       : ", or hold its matrices in 8 bits (--weights q8)");
}

int memory_plan_reserve(const struct memory_ask *a, struct err *err)
{
    struct device *d = a->model->dev;
    size_t bytes[MAX_STAGES] = {0}, unused, total;
    if (d->unified)
        return host_can_hold(a, err);
    struct needs most = stages_need(a, bytes);
    device_memory(d, &unused, &total);
    if (total_of(&most) <= unused)
        return stages_reserve(d, bytes, err);
    return err_set(
        err, -ENOMEM,
        "%.2f GB are needed on device %s, %.2f of %.2f GB are free: weights %.2f, "
        "KV cache of %lld tokens %.2f, activations %.2f, restoring %.2f: choose a "
        "smaller model, fewer --kv-tokens or a shorter --max-context, or end what "
        "else uses the device",
        (double)total_of(&most) / 1e9, d->name, (double)unused / 1e9, (double)total / 1e9,
        (double)most.model / 1e9, (long long)a->kv_tokens, (double)most.kv / 1e9,
        (double)most.work / 1e9, (double)most.restore / 1e9);
}
