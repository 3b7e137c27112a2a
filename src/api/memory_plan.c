/* memory_plan.c - see memory_plan.h. */
#include "api/memory_plan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "base/bytes.h"
#include "base/minmax.h"
#include "opt/opt.h"
#include "base/process.h"
#include "engine/step.h"
#include "engine/zigzag.h"
#include "save/fingerprint.h"
#include "restore/profile.h"
#include "restore/restore.h"
#include "tensor/group.h"

/* Upper bound of the device memory that the device's libraries and a stream for loading take beside
 * the plan. */
#define LIBRARY_BYTES ((size_t)256 << 20)
/* Bound on the rounding of parts of memory up to pages. Beside the weights there are some tens of
 * parts. */
#define PART_BYTES ((size_t)4096)

enum { N_OTHER_PARTS = 64 };

/* Memory that one rank of one stage needs. */
struct needs {
    size_t model;   /* weights and rotation tables */
    size_t work;    /* activations, logits, and memory of streams */
    size_t kv;      /* the KV cache */
    size_t restore; /* staging memory, scratch, and new tokens inside restores */
    size_t probes;  /* measurements at the start, before there is a KV cache */
};

/* Returns the bytes of all sequences' states, which are on the one stage of a model that has
 * them. */
static size_t state_bytes(const struct memory_ask *a)
{
    const struct model_config *c = &a->model->cfg;
    size_t n = 0;
    for (int l = 0; l < c->n_layers; l++)
        n += config_is_recurrent(c, l);
    return n * (size_t)a->max_seqs * model_state_room(c, a->most_guesses > 0);
}

static size_t kv_bytes(const struct model *m, int stage, int64_t tokens)
{
    size_t n_blocks = (size_t)(round_up((uint64_t)tokens, KV_BLOCK_TOKENS) /
                               KV_BLOCK_TOKENS);
    return n_blocks * KV_BLOCK_TOKENS * model_all_kv_bytes(m, stage) /
           (size_t)m->dev->n_ranks;
}

static struct needs needs_of(const struct memory_ask *a, int stage)
{
    const struct model *m = a->model;
    const struct zigzag_opts zo = {.model = m,
                                   .max_rows = a->step_rows,
                                   .piece_rows = a->max_rows,
                                   .by_sequence = a->by_sequence};
    struct needs n = {.kv = kv_bytes(m, stage, a->kv_tokens) + state_bytes(a)};
    n.model = a->need->bytes[stage] + (size_t)a->need->n_parts * PART_BYTES;
    n.work = model_work_bytes(m, a->max_rows) + zigzag_bytes(&zo) + m->dev->stream_bytes +
             next_token_bytes(m, next_token_rows(a->max_seqs, a->most_guesses)) +
             N_OTHER_PARTS * PART_BYTES;
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
    return n->model + n->work + MAX(later, n->probes);
}

/* Computes the need of each stage [n_stages]. Returns the parts of the stage that needs the most
 * memory. */
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
    int64_t token_bytes = 0;
    for (int k = 0; k < m->dev->n_stages; k++)
        token_bytes = MAX(token_bytes, (int64_t)model_all_kv_bytes(m, k));
    token_bytes /= m->dev->n_ranks;
    int64_t fits = budget / token_bytes / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    int64_t want = a->max_seqs * context;
    return want < fits ? want : MAX(fits, context);
}

/* --- a budget --------------------------------------------------------------------------------- */

/* Memory of a process outside the plan: program, libraries, stacks, scratch of operations. */
#define PROCESS_BYTES ((uint64_t)64 << 20)

/* Returns the memory of everything except weights and KV. */
static uint64_t other_bytes(const struct memory_ask *a, size_t save_bytes)
{
    const struct model *m = a->model;
    struct model_need need = {.n_parts = 1};
    struct memory_ask q = *a;
    size_t bytes[MAX_STAGES];
    need.bytes[0] = model_rope_bytes(m);
    q.need = &need;
    q.kv_tokens = 0;
    struct needs n = stages_need(&q, bytes);
    if (!m->dev->unified)
        return total_of(&n);
    uint64_t other = (uint64_t)total_of(&n) + PROCESS_BYTES;
    return a->has_store
               ? other + a->staging_bytes + save_bytes + a->store_bytes + a->dram_bytes
               : other;
}

/* Returns the budget for "auto": nearly all free memory. */
static uint64_t budget_left(const struct memory_ask *a)
{
    size_t unused, total;
    device_memory(a->model->dev, &unused, &total);
    if (!a->model->dev->unified)
        return unused - MIN(unused, LIBRARY_BYTES);
    uint64_t left = process_memory_left();
    return (left > 0 ? left : total) / 10 * 9;
}

/* Parses a percentage of the layers. A text that is a percentage sets no budget for KV. */
static bool parse_percent(const char *text, int *percent)
{
    int n = 0;
    return sscanf(text, "%d%%%n", percent, &n) == 1 && n > 0 && text[n] == 0 &&
           *percent >= 0 && *percent <= 100;
}

/* The memory that KV and weights share. */
struct budget {
    uint64_t all, other, kept, unit, context, kv;
    int64_t context_tokens, kv_tokens;
    int n_slots;
    const char *units, *others; /* what may stay on the disk; what is kept */
};

static int refuse_budget(const struct budget *b, uint64_t need, struct err *err)
{
    return err_set(
        err, ERR_LIMIT,
        "--weights-memory %.2f GB is less than the minimum of %.2f GB: %s %.2f; %d %s "
        "%.2f; KV of %lld tokens %.2f; activations and buffers %.2f: give more, or a "
        "shorter --max-context",
        (double)b->all / 1e9, (double)need / 1e9, b->others, (double)b->kept / 1e9,
        b->n_slots, b->units, (double)b->unit * b->n_slots / 1e9,
        (long long)(b->kv > 0 ? b->kv_tokens : b->context_tokens),
        (double)(b->kv > 0 ? b->kv : b->context) / 1e9, (double)b->other / 1e9);
}

static bool is_of_experts(const struct weights_sizes *z)
{
    return strcmp(z->units, "experts") == 0;
}

/* A pass reads all layers that do not stay, and of experts those that it uses. */
static const char *up_to(const struct weights_sizes *z)
{
    return is_of_experts(z) ? "up to " : "";
}

static int share_budget(const struct memory_ask *a, const struct weights_sizes *z,
                        struct budget *b, struct memory_share *out, struct err *err)
{
    const struct model *m = a->model;
    b->kept = z->kept;
    b->unit = z->unit;
    b->units = z->units;
    b->others = is_of_experts(z) ? "all but experts" : "embeddings, head, W_k and W_v";
    b->n_slots = z->n_slots;
    b->context_tokens = (int64_t)round_up((uint64_t)m->max_ctx, KV_BLOCK_TOKENS);
    b->context = kv_bytes(m, 0, b->context_tokens);
    b->kv_tokens = a->kv_tokens;
    b->kv = a->kv_tokens > 0 ? kv_bytes(m, 0, a->kv_tokens) : 0;
    uint64_t units_least = (uint64_t)b->n_slots * b->unit;
    uint64_t least = b->other + b->kept + units_least + (b->kv > 0 ? b->kv : b->context);
    if (least > b->all)
        return refuse_budget(b, least, err);
    if (b->kv == 0) {
        uint64_t half = (b->all - b->other - b->kept - units_least) / 2;
        uint64_t block = kv_bytes(m, 0, KV_BLOCK_TOKENS);
        int64_t fits = (int64_t)(half / block) * KV_BLOCK_TOKENS;
        int64_t want = a->max_seqs * b->context_tokens;
        b->kv_tokens = MAX(MIN(want, fits), b->context_tokens);
        b->kv = kv_bytes(m, 0, b->kv_tokens);
    }
    uint64_t rest = b->all - b->other - b->kept - b->kv;
    out->kv_tokens = b->kv_tokens;
    out->n_resident = rest >= (uint64_t)z->n_units * b->unit
                          ? z->n_units
                          : (int)((rest - units_least) / b->unit);
    return 0;
}

int memory_plan_share(const struct memory_ask *a, const struct weights_sizes *z,
                      const char *budget, size_t save_bytes, struct memory_share *out,
                      struct err *err)
{
    struct budget b = {.other = other_bytes(a, save_bytes)};
    int percent;
    *out = (struct memory_share){.n_resident = z->n_units};
    if (parse_percent(budget, &percent)) {
        out->n_resident = (z->n_units * percent + 50) / 100;
        if (out->n_resident < z->n_units)
            snprintf(
                out->table, sizeof out->table,
                "weights: %d of %d %s stay in memory, %s%.2f GB are read for each pass",
                out->n_resident, z->n_units, z->units, up_to(z),
                (double)z->unit * (z->n_units - out->n_resident) / 1e9);
        return 0;
    }
    if (strcmp(budget, "auto") == 0)
        b.all = budget_left(a);
    else if (!opt_size_parse(budget, &b.all))
        return err_set(err, ERR_USAGE,
                       "--weights-memory '%s': must be a size such as 6G, auto, or a "
                       "percentage of the %s such as 50%%",
                       budget, z->units);
    int rc = share_budget(a, z, &b, out, err);
    if (rc != 0 || out->n_resident == z->n_units)
        return rc;
    snprintf(
        out->table, sizeof out->table,
        "memory, GB: %.2f in all; %s %.2f; %d of %d %s stay %.2f; %d pass through "
        "%.2f; KV of %lld tokens %.2f; activations and buffers %.2f; %s%.2f GB are read "
        "for each pass",
        (double)b.all / 1e9, b.others, (double)b.kept / 1e9, out->n_resident, z->n_units,
        b.units, (double)b.unit * out->n_resident / 1e9, b.n_slots,
        (double)b.unit * b.n_slots / 1e9, (long long)b.kv_tokens, (double)b.kv / 1e9,
        (double)b.other / 1e9, up_to(z),
        (double)b.unit * (z->n_units - out->n_resident) / 1e9);
    return 0;
}

/* Refuses a model whose memory fits the machine, but not what other programs have left of it. */
static int host_has_left(const struct memory_ask *a, uint64_t swap, struct err *err)
{
    uint64_t weights = a->model->w.bytes, work = model_work_bytes(a->model, a->max_rows);
    uint64_t left = process_memory_left(), need = weights + work + a->store_bytes;
    if (left == 0 || need <= left + swap)
        return 0;
    return err_set(
        err, -ENOMEM,
        "weights %.2f GB, activations %.2f and the store in memory %.2f make "
        "%.2f GB, and %.2f GB of memory and swap are free: end other programs, or "
        "pack the model and give --weights-memory (hcache model pack)",
        (double)weights / 1e9, (double)work / 1e9, (double)a->store_bytes / 1e9,
        (double)need / 1e9, (double)(left + swap) / 1e9);
}

/* If all memory is the host's, the kernel grants weights that do not fit and ends the process
 * minutes later, when they are touched. So weights that do not fit are refused now. */
static int host_can_hold(const struct memory_ask *a, struct err *err)
{
    struct sysinfo s;
    uint64_t weights = a->model->w.bytes;
    if (sysinfo(&s) != 0)
        return 0; /* the sizes of memory and swap are unknown */
    uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
    if (weights + a->store_bytes <= all)
        return host_has_left(a, (uint64_t)s.freeswap * s.mem_unit, err);
    if (weights <= all)
        return err_set(
            err, -ENOMEM,
            "truncated contexts need a store in memory of %.2f GB beside weights of "
            "%.2f GB, and this machine has %.2f GB of memory and swap: give a store "
            "on disk (--store)",
            (double)a->store_bytes / 1e9, (double)weights / 1e9, (double)all / 1e9);
    return err_set(
        err, -ENOMEM,
        "the weights take %.2f GB, and this machine has %.2f GB of memory and "
        "swap: choose a smaller model%s",
        (double)weights / 1e9, (double)all / 1e9,
        a->model->w.dtype == DTYPE_Q8 || a->model->w.dtype == DTYPE_Q4
            ? ", or pack it and read layers as they are needed (hcache model pack, "
              "--weights-memory)"
            : ", hold its matrices in 8 bits (--weights q8), or pack it and read "
              "layers as they are needed (hcache model pack, --weights-memory)");
}

/* Host memory in use beside copies in DRAM. */
struct host_needs {
    uint64_t weights, kv, buffers;
};

static struct host_needs host_needs_of(const struct memory_ask *a)
{
    const struct model *m = a->model;
    struct host_needs n = {.buffers = a->staging_bytes + a->save_bytes + a->store_bytes};
    if (m->dev->unified) {
        n.weights = m->w.bytes;
        n.kv = (uint64_t)a->kv_tokens * model_all_kv_bytes(m, -1);
        if (config_is_hybrid(&m->cfg)) /* on one stage */
            n.kv = kv_bytes(m, 0, a->kv_tokens) + state_bytes(a);
    }
    return n;
}

uint64_t memory_plan_dram_bytes(const struct memory_ask *a)
{
    const uint64_t least = (uint64_t)64 << 20;
    struct sysinfo s;
    const struct model *m = a->model;
    if ((m->dev->unified && model_most_kv_bytes(m) <= model_hidden_bytes(m)) ||
        sysinfo(&s) != 0)
        return 0;
    struct host_needs n = host_needs_of(a);
    uint64_t rest = n.weights + n.kv + n.buffers, left = process_memory_left();
    uint64_t half = left > rest ? (left - rest) / 2 : 0;
    uint64_t eighth = (uint64_t)s.totalram * s.mem_unit / 8;
    uint64_t bytes = MIN(eighth, half) >> 20 << 20;
    return bytes >= least ? bytes : 0;
}

/* The arena of copies in DRAM is filled while the server runs. So an arena that does not fit
 * beside the rest is refused at the start, with the sums. */
static int host_can_hold_copies(const struct memory_ask *a, struct err *err)
{
    struct sysinfo s;
    if (a->dram_bytes == 0 || sysinfo(&s) != 0)
        return 0;
    struct host_needs n = host_needs_of(a);
    uint64_t all = (uint64_t)s.totalram * s.mem_unit, weights = n.weights, kv = n.kv;
    uint64_t buffers = n.buffers;
    if (a->dram_bytes <= all && weights + kv + buffers <= all - a->dram_bytes)
        return 0;
    return err_set(
        err, -ENOMEM,
        "--dram %.2f GB does not fit: weights %.2f, KV cache of %lld tokens %.2f, "
        "saving and restoring %.2f and copies in DRAM %.2f make %.2f GB, and this "
        "machine has %.2f: give less --dram, or fewer --kv-tokens",
        (double)a->dram_bytes / 1e9, (double)weights / 1e9, (long long)a->kv_tokens,
        (double)kv / 1e9, (double)buffers / 1e9, (double)a->dram_bytes / 1e9,
        (double)(weights + kv + buffers + a->dram_bytes) / 1e9, (double)all / 1e9);
}

uint64_t memory_plan_bytes(const struct memory_ask *a)
{
    size_t bytes[MAX_STAGES];
    struct memory_ask q = *a;
    q.dram_bytes = 0;
    struct needs most = stages_need(&q, bytes);
    if (!a->model->dev->unified)
        return total_of(&most);
    struct host_needs n = host_needs_of(&q);
    return n.weights + n.kv + n.buffers + most.work + most.restore;
}

int memory_plan_reserve(const struct memory_ask *a, struct err *err)
{
    struct device *d = a->model->dev;
    size_t bytes[MAX_STAGES] = {0}, unused, total;
    int rc = host_can_hold_copies(a, err);
    if (rc != 0)
        return rc;
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
        "smaller model, fewer --kv-tokens or a shorter --max-context, or end other "
        "programs that use the device",
        (double)total_of(&most) / 1e9, d->name, (double)unused / 1e9, (double)total / 1e9,
        (double)most.model / 1e9, (long long)a->kv_tokens, (double)most.kv / 1e9,
        (double)most.work / 1e9, (double)most.restore / 1e9);
}
