/* share.c - see share.h. */
#include "model/share.h"

#include "base/minmax.h"
#include "tensor/group.h"

bool share_cuts_head(const struct model_config *c, int n_ranks)
{
    return n_ranks > 1 && !c->tie_word_embeddings && c->vocab_size % n_ranks == 0;
}

/* Returns the number of runs of rows that are cut separately; 0: the rows are not cut. */
static int n_sections(const struct model_config *c, enum slot s, int n_ranks)
{
    switch (s) {
    case SLOT_WQ:
    case SLOT_BQ:
    case SLOT_WV:
    case SLOT_WO:
    case SLOT_BO:
    case SLOT_DOWN:
    case SLOT_B_DOWN:
        return 1;
    case SLOT_WKV:
    case SLOT_BKV:
        return 2;
    case SLOT_UP:
    case SLOT_B_UP:
        return c->mlp_gated ? 2 : 1;
    case SLOT_HEAD:
    case SLOT_HEAD_BIAS:
        return share_cuts_head(c, n_ranks) ? 1 : 0;
    default:
        return 0;
    }
}

static int check_division(const char *what, int64_t n, int n_ranks, struct err *err)
{
    if (n % n_ranks == 0)
        return 0;
    return err_set(
        err, ERR_UNSUPPORTED,
        "tensor parallelism over %d ranks: the model has %lld %s, which cannot be "
        "divided by %d: choose a divisor",
        n_ranks, (long long)n, what, n_ranks);
}

int share_check(const struct model_config *c, int n_ranks, int n_stages, struct err *err)
{
    if (n_stages > c->n_layers)
        return err_set(err, ERR_UNSUPPORTED,
                       "pipeline parallelism over %d stages: the model has %d layers, and "
                       "each stage needs one: choose fewer stages",
                       n_stages, c->n_layers);
    if (n_ranks * n_stages > 1 && config_is_hybrid(c))
        return err_set(
            err, ERR_UNSUPPORTED,
            "models with recurrent layers run on one device: choose one rank and "
            "one stage");
    if (n_ranks > 1 && (c->n_experts > 0 || c->qk_norm == QK_NORM_ALL))
        return err_set(
            err, ERR_UNSUPPORTED,
            "tensor parallelism over %d ranks: %s cannot be cut: choose one rank", n_ranks,
            c->n_experts > 0 ? "models with experts" : "norms over all heads");
    int rc = check_division("attention heads", c->n_heads, n_ranks, err);
    if (rc == 0)
        rc = check_division("key/value heads", c->n_kv_heads, n_ranks, err);
    if (rc == 0)
        rc = check_division("columns in its MLP", c->n_ffn, n_ranks, err);
    if (rc == 0)
        rc = check_division("elements in its hidden states", c->n_embd, n_ranks, err);
    return rc;
}

int share_stage(const struct model_config *c, enum slot s, int layer, int n_stages)
{
    switch (s) {
    case SLOT_EMBED:
    case SLOT_POSITIONS:
        return c->tie_word_embeddings ? n_stages - 1 : 0;
    case SLOT_HEAD:
    case SLOT_DENSE_1:
    case SLOT_DENSE_2:
    case SLOT_HEAD_BIAS:
    case SLOT_FINAL_NORM_W:
    case SLOT_FINAL_NORM_B:
    case SLOT_LAYER_IN:
    case SLOT_LAYER_IN_NORM:
        return n_stages - 1;
    default:
        return stage_of(layer, c->n_layers, n_stages);
    }
}

int64_t share_rows(const struct model_config *c, int layer, enum slot s, int n_ranks)
{
    int64_t n = slot_rows(c, layer, s);
    return n_sections(c, s, n_ranks) > 0 ? n / n_ranks : n;
}

bool share_next(const struct model_config *c, int layer, enum slot s, int rank, int n_ranks,
                int64_t *row, int64_t end, int64_t *own_row, int64_t *n)
{
    int sections = n_sections(c, s, n_ranks);
    if (sections == 0 || n_ranks == 1) {
        *own_row = *row;
        *n = end - *row;
        return *n > 0;
    }
    int64_t section = slot_rows(c, layer, s) / sections, share = section / n_ranks;
    for (int i = 0; i < sections; i++) {
        int64_t from = i * section + rank * share, to = from + share;
        int64_t lo = MAX(from, *row), hi = MIN(to, end);
        if (lo >= hi)
            continue;
        *row = lo;
        *own_row = i * share + (lo - from);
        *n = hi - lo;
        return true;
    }
    return false;
}
