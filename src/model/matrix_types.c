/* matrix_types.c - see matrix_types.h. */
#include "model/weights_slots.h"
#include "model/matrix_types.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/share.h"
#include "tensor/q4_blocks.h"

void matrix_types_init(struct matrix_types *out, enum dtype all, int n_layers)
{
    *out = (struct matrix_types){.all = all, .head = DTYPE_Q8, .n_layers = n_layers};
    if (all != DTYPE_Q4)
        return;
    size_t n = (size_t)n_layers * N_SLOTS;
    out->layers = xcalloc(n, sizeof *out->layers);
    for (size_t i = 0; i < n; i++)
        out->layers[i] = DTYPE_Q8;
}

void matrix_types_deinit(struct matrix_types *t)
{
    free(t->layers);
    *t = (struct matrix_types){0};
}

void matrix_types_free(struct matrix_types *t)
{
    if (t != NULL)
        matrix_types_deinit(t);
    free(t);
}

enum dtype *matrix_type_at(struct matrix_types *t, int layer, enum slot s)
{
    CHECK(t->all == DTYPE_Q4 && slot_is_matrix(s));
    if (!slot_is_in_layer(s))
        return &t->head;
    CHECK(layer >= 0 && layer < t->n_layers);
    return &t->layers[(size_t)layer * N_SLOTS + s];
}

bool matrix_types_any_q4(const struct tensor_set *set)
{
    for (size_t i = 0; i < set->list.n; i++)
        if (slot_is_matrix(set->list.items[i].parts[0].slot) &&
            tensor_src_q4_type(&set->src[i]) != DTYPE_F32)
            return true;
    return false;
}

/* Returns the type that a tensor would have as the only tensor of its matrix. */
static enum dtype wanted(const struct tensor_src *src, enum slot s, bool file_has_q4)
{
    enum dtype own = tensor_src_q4_type(src);
    if (own != DTYPE_F32)
        return own;
    return file_has_q4 || s == SLOT_HEAD ? DTYPE_Q8 : DTYPE_Q4_1;
}

/* Returns whether rows are whole blocks. */
static bool has_blocks(enum dtype t, const struct model_config *c, int l, enum slot s)
{
    return !dtype_has_blocks(t) || slot_cols(c, l, s) % q4_block_weights(t) == 0;
}

bool matrix_types_fit(const struct matrix_types *t, const struct model_config *c)
{
    if (t->all != DTYPE_Q4)
        return true;
    bool fits = has_blocks(t->head, c, 0, SLOT_HEAD);
    for (int l = 0; l < t->n_layers; l++)
        for (enum slot s = SLOT_WQ; s <= SLOT_LAST_IN_BLOCKS; s++)
            fits = fits && has_blocks(matrix_type(t, l, s), c, l, s);
    return fits;
}

bool matrix_types_differ_in_kv(const struct matrix_types *t, int layer)
{
    return matrix_type(t, layer, SLOT_WKV) != matrix_type(t, layer, SLOT_WV);
}

/* Returns the number of K rows in SLOT_WKV. */
static int64_t k_rows(const struct model_config *c, int l)
{
    return slot_rows(c, l, SLOT_WV);
}

enum slot matrix_of_part(const struct model_config *c, int l, const struct tensor_part *p)
{
    return p->slot == SLOT_WKV && p->dst_row >= k_rows(c, l) ? SLOT_WV : p->slot;
}

int64_t matrix_rows(const struct matrix_types *t, const struct model_config *c, int layer,
                    enum slot s, int n_ranks)
{
    if (s != SLOT_WKV && s != SLOT_WV)
        return share_rows(c, layer, s, n_ranks);
    int64_t of_v = share_rows(c, layer, SLOT_WV, n_ranks),
            of_kv = share_rows(c, layer, SLOT_WKV, n_ranks);
    if (matrix_types_differ_in_kv(t, layer))
        return s == SLOT_WV ? of_v : of_kv - of_v;
    return s == SLOT_WV ? 0 : of_kv;
}

/* Sets the type of a matrix for one more of its tensors.  The type becomes `want`. It becomes q8 if
 * an earlier tensor of the matrix wanted another type, or if `want` does not fit.  *seen tells
 * whether there was an earlier tensor, and becomes true. */
static void choose(enum dtype *at, enum dtype want, bool fits, bool *seen)
{
    bool agrees = !*seen || *at == want;
    *at = agrees && fits ? want : DTYPE_Q8;
    *seen = true;
}

void matrix_types_make(struct matrix_types *out, enum dtype all,
                       const struct tensor_set *set, const struct model_config *c)
{
    bool seen[N_SLOTS] = {false}, file_has_q4 = matrix_types_any_q4(set);
    int layer = -1;
    matrix_types_init(out, all, c->n_layers);
    for (size_t i = 0; all == DTYPE_Q4 && i < set->list.n; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        if (t->layer != layer)
            memset(seen, 0, sizeof seen);
        layer = t->layer;
        for (int k = 0; k < t->n_parts; k++) {
            const struct tensor_part *p = &t->parts[k];
            /* rows of a latent are those of K, and of V */
            bool both = p->slot == SLOT_WKV &&
                        (config_is_latent(c) ||
                         p->dst_row + p->n_groups * p->n_rows > k_rows(c, t->layer));
            enum slot first = matrix_of_part(c, t->layer, p), last = both ? SLOT_WV : first;
            for (enum slot s = first; slot_is_matrix(s) && s <= last; s++) {
                if (slot_is_f32(s))
                    continue;
                enum dtype want = wanted(&set->src[i], s, file_has_q4);
                choose(matrix_type_at(out, t->layer, s), want,
                       has_blocks(want, c, t->layer, s), &seen[s]);
            }
        }
    }
}

/* Returns whether a layer has a matrix of a kind that only some models have. */
static bool has_more(const struct layer_weights *l, enum slot s)
{
    const struct weight *const more[] = {&l->mix,         &l->mix_out,   &l->shared_up,
                                         &l->shared_down, &l->dense_up,  &l->dense_down,
                                         &l->layer_gate,  &l->layer_out, &l->w_qa,
                                         &l->w_uk,        &l->w_uv};
    return more[s - SLOT_MIX]->n > 0;
}

void weights_matrix_list(const struct weights *w, struct weights_matrix_list *out)
{
    const struct matrix_types *t = w->matrices;
    *out = (struct weights_matrix_list){
        .of = xcalloc((size_t)t->n_layers * N_SLOTS + 1, sizeof *out->of)};
    out->of[out->n++] = matrix_type(t, 0, SLOT_HEAD);
    for (int l = 0; l < t->n_layers; l++)
        for (enum slot s = SLOT_WQ; s <= SLOT_LAST_IN_BLOCKS; s++) {
            bool two = matrix_types_differ_in_kv(t, l);
            if (s == SLOT_WKV && two)
                out->of[out->n++] = DTYPE_Q4;
            bool has = s <= SLOT_DOWN || (w->layers != NULL && has_more(&w->layers[l], s));
            if (has && (s != SLOT_WV || two))
                out->of[out->n++] = matrix_type(t, l, s);
        }
}
