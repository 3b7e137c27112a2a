/* weights.c - loads a model's tensors: places and memory of the weights, and the order of loading.
 *
 * One way serves files and the generator.  Tensors are loaded in units of whole rows, and each unit
 * is read, hashed and packed by one thread (weights_rows.h).  So memory holds the weights once,
 * plus a unit or two for each thread.
 *
 * Invariants:
 *  1. weights.hash covers every byte that reaches a slot.  It is computed from these bytes, or
 *     remembered from an earlier loading of the same file (checkpoint_stamp).
 *  2. The hash depends only on names, types, shapes and bytes: not on sharding, order in a file,
 *     alignment, threads, or the slots that a tensor fills.  For a quantised tensor it counts the
 *     decoded values, as if a folder had held them. */
#include "model/weights.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/known.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/progress.h"
#include "model/matrix_types.h"
#include "model/numbers.h"
#include "model/pack_file.h"
#include "model/pack_image.h"
#include "model/share.h"
#include "model/weights_image.h"
#include "model/weights_names.h"
#include "model/weights_packed.h"
#include "model/weights_rows.h"
#include "model/weights_slots.h"
#include "model/weights_source.h"
#include "tensor/group.h"
#include "tensor/q4_blocks.h"
#include "tensor/q4_make.h"

/* Memory that the weights own. */
struct holdings {
    int n_layers;
    struct buf vectors[MAX_STAGES];
    struct buf tables[2];
};

/* --- slots ------------------------------------------------------------------------------------ */

struct weight *loader_matrix(const struct loader *ld, int layer, enum slot s)
{
    return slot_matrix(ld->w, &ld->w->layers[layer], s);
}

static const float **vector_of(const struct loader *ld, int layer, enum slot s)
{
    return slot_vector(ld->w, &ld->w->layers[layer], s);
}

int loader_stage(const struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    return share_stage(ld->c, s, t->layer, ld->n_stages);
}

float *loader_vector(const struct loader *ld, int layer, enum slot s, int stage, int rank)
{
    const struct holdings *h = ld->w->impl;
    const float *base = h->vectors[stage].ptr;
    return ld->vectors[stage] + (size_t)rank * ld->n_vector_floats[stage] +
           (*vector_of(ld, layer, s) - base);
}

/* --- what an earlier process found out -------------------------------------------------------- */

/* Smaller files are hashed each time, in some milliseconds. */
#define KNOWN_MIN_BYTES ((uint64_t)1 << 20)

static struct sha256 known_key(const struct sha256 *stamp)
{
    struct sha256_ctx *h = sha256_begin();
    sha256_field(h, "weights of a file", stamp->b, sizeof stamp->b);
    return sha256_end(h);
}

bool weights_known_hash(const struct weights_info *info, struct sha256 *hash)
{
    const struct tensor_set *set = info->impl;
    char text[KNOWN_TEXT_BYTES];
    struct sha256 stamp;
    bool settled = false;
    if (set->cp == NULL || checkpoint_stamp(set->cp, &stamp, &settled) != 0)
        return false;
    struct sha256 key = known_key(&stamp);
    return known_get(&key, text) && sha256_parse(text, hash);
}

/* Looks up the hash of a file that has not changed since an earlier process computed it, and the
 * warning that belongs to it. */
static void look_up(struct loader *ld)
{
    char text[KNOWN_TEXT_BYTES];
    uint64_t bytes = 0;
    for (size_t i = 0; i < ld->set.list.n; i++)
        bytes += (uint64_t)ld->set.list.items[i].rows * ld->set.src[i].file_row_bytes;
    if (ld->set.cp == NULL ||
        checkpoint_stamp(ld->set.cp, &ld->stamp, &ld->is_settled) != 0)
        return;
    ld->remembers = ld->o->remembers && ld->o->part == WEIGHTS_ALL &&
                    ld->o->digests == NULL && bytes >= KNOWN_MIN_BYTES;
    struct sha256 key = known_key(&ld->stamp);
    if (!ld->remembers || !known_get(&key, text) || !sha256_parse(text, &ld->w->hash))
        return;
    ld->is_known = true;
    snprintf(ld->bad, sizeof ld->bad, "%s", text + SHA256_HEX);
}

/* Checks that no file has changed since it was opened, and remembers the hash. */
static int look_again(struct loader *ld)
{
    char text[KNOWN_TEXT_BYTES], hex[SHA256_HEX + 1];
    struct sha256 now;
    bool settled = false;
    if (ld->set.cp == NULL)
        return 0;
    int rc = checkpoint_stamp(ld->set.cp, &now, &settled);
    if (rc != 0 || memcmp(&now, &ld->stamp, sizeof now) != 0)
        return err_set(ld->err, ERR_MISMATCH,
                       "%s: the file changed while it was read: start again",
                       ld->set.src[0].file);
    if (!ld->remembers || ld->is_known || !settled)
        return 0;
    struct sha256 key = known_key(&now);
    sha256_hex(&ld->w->hash, hex);
    snprintf(text, sizeof text, "%s%s", hex, ld->bad);
    known_put(&key, text);
    return 0;
}

/* Maps the image of the weights if there is one; else says whether one is to be made. rc: 0 if
 * there is room for the weights. */
static void find_image(struct loader *ld, int rc)
{
    char layout[PACK_LAYOUT_BYTES];
    struct sha256 pieces = sha256_end(ld->image_key);
    if (rc != 0 || !ld->o->images || ld->image_bytes < IMAGE_MIN_BYTES || !ld->remembers ||
        !ld->is_settled || !ld->dev->unified || ld->n_ranks * ld->n_stages > 1)
        return;
    image_layout_name(ld->s, layout, sizeof layout);
    struct sha256_ctx *h = sha256_begin();
    sha256_field(h, "image of a file", ld->stamp.b, sizeof ld->stamp.b);
    sha256_field(h, "layout", layout, strlen(layout));
    sha256_field(h, "pieces", pieces.b, sizeof pieces.b);
    ld->image = sha256_end(h);
    if (ld->is_known)
        ld->w->image = weights_image_map(&ld->image, ld->image_bytes, ld->dev->pool);
    ld->w->is_mapped = ld->w->image != NULL;
    ld->makes_image = !ld->w->is_mapped;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns the floats of a vector, rounded up so that the next one begins at a cache line. */
static size_t vector_floats(const struct loader *ld, int layer, enum slot s)
{
    return (size_t)round_up((uint64_t)share_rows(ld->c, layer, s, ld->n_ranks), 16);
}

static size_t matrix_bytes(const struct loader *ld, const struct weight *m)
{
    return ld->dev->ops->weight_bytes(m->dtype, m->n, m->k);
}

/* Counts a piece of memory on a stage, and enters it in the key of the image. */
static void count(struct loader *ld, int stage, enum dtype type, size_t bytes)
{
    uint8_t le[8];
    ld->stage_bytes[stage] += bytes;
    ld->image_bytes += (size_t)round_up(bytes, IMAGE_LINE);
    put_u64(le, bytes);
    sha256_field(ld->image_key, dtype_name(type), le, sizeof le);
}

/* Sets *out to the next piece of the image, or to memory of its own. */
static int take(struct loader *ld, int stage, size_t bytes, struct buf *out)
{
    size_t at = ld->image_at;
    ld->image_at += (size_t)round_up(bytes, IMAGE_LINE);
    if (ld->w->is_mapped) {
        *out = (struct buf){weights_image_memory(ld->w->image) + at, bytes, MEM_DEVICE};
        return 0;
    }
    int rc = stage_alloc(ld->dev, stage, bytes, out, ld->err);
    if (rc == 0) {
        ld->pieces = xrealloc(ld->pieces, (ld->n_pieces + 1) * sizeof *ld->pieces);
        ld->pieces[ld->n_pieces++] = (struct image_piece){out->ptr, bytes};
    }
    return rc;
}

static void measure_matrix(struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    struct weight *m = loader_matrix(ld, t->layer, s);
    if (m->n != 0)
        return;
    *m = (struct weight){.dtype = matrix_type(ld->w->matrices, t->layer, s),
                         .n = matrix_rows(ld->w->matrices, ld->c, t->layer, s, ld->n_ranks),
                         .k = slot_cols(ld->c, t->layer, s)};
    count(ld, loader_stage(ld, t, s), m->dtype, matrix_bytes(ld, m));
}

/* Sets the shape of the slot that a part of a tensor fills, and counts its bytes. */
static void measure_part(struct loader *ld, const struct tensor_spec *t,
                         const struct tensor_src *src, enum slot s)
{
    int stage = loader_stage(ld, t, s);
    if (slot_is_vector(s)) { /* an upper bound: K and V biases share a slot */
        ld->n_vector_floats[stage] += vector_floats(ld, t->layer, s);
    } else if (slot_is_matrix(s)) {
        measure_matrix(ld, t, s);
        if (s == SLOT_WKV)
            measure_matrix(ld, t, SLOT_WV);
    } else {
        enum dtype dtype = tensor_table_dtype(src, s, ld->w->dtype);
        count(ld, stage, dtype, (size_t)t->rows * tensor_row_bytes(dtype, t->cols));
    }
}

/* Checks the memory of the stage with the most weights. */
static int check_room(const struct loader *ld)
{
    size_t unused, total;
    uint64_t bytes = 0;
    device_memory(ld->dev, &unused, &total);
    for (int k = 0; k < ld->n_stages; k++)
        bytes = MAX(ld->stage_bytes[k], bytes);
    if (ld->dev->unified || bytes <= unused)
        return 0;
    return err_set(ld->err, -ENOMEM,
                   "weights: %.2f GB are needed on device %s, %.2f of %.2f GB are free: "
                   "choose a smaller model, or end other programs that use the device",
                   (double)bytes / 1e9, ld->dev->name, (double)unused / 1e9,
                   (double)total / 1e9);
}

static int allocate_matrix(struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    struct weight *m = loader_matrix(ld, t->layer, s);
    if (m->mem.ptr != NULL || m->n == 0)
        return 0;
    size_t bytes = matrix_bytes(ld, m);
    if (take(ld, loader_stage(ld, t, s), bytes, &m->mem) != 0)
        return err_wrap(ld->err, "weights: tensor '%s'", t->name);
    return 0;
}

static int allocate_table(struct loader *ld, const struct tensor_spec *t,
                          const struct tensor_src *src, enum slot s)
{
    struct holdings *h = ld->w->impl;
    enum dtype dtype = tensor_table_dtype(src, s, ld->w->dtype);
    size_t bytes = (size_t)t->rows * tensor_row_bytes(dtype, t->cols);
    struct buf *b = &h->tables[s == SLOT_EMBED ? 0 : 1];
    if (take(ld, loader_stage(ld, t, s), bytes, b) != 0)
        return err_wrap(ld->err, "weights: tensor '%s'", t->name);
    *slot_table(ld->w, s) = mat_of(b->ptr, dtype, t->rows, t->cols);
    return 0;
}

/* Allocates one block per stage for its vectors, which lie there in the order of the tensor
 * list. */
static int allocate_vectors(struct loader *ld)
{
    struct holdings *h = ld->w->impl;
    size_t at[MAX_STAGES] = {0};
    for (int k = 0; k < ld->n_stages; k++) {
        size_t n = ld->n_vector_floats[k];
        if (take(ld, k, n * sizeof(float), &h->vectors[k]) != 0)
            return err_wrap(ld->err, "weights: norms and biases");
        ld->vectors[k] = xcalloc(n * (size_t)ld->n_ranks, sizeof(float));
    }
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; k < t->n_parts; k++) {
            enum slot s = t->parts[k].slot;
            const float **v = slot_is_vector(s) ? vector_of(ld, t->layer, s) : NULL;
            if (v == NULL || *v != NULL)
                continue;
            int stage = loader_stage(ld, t, s);
            *v = (const float *)h->vectors[stage].ptr + at[stage];
            at[stage] += vector_floats(ld, t->layer, s);
            CHECK(at[stage] <= ld->n_vector_floats[stage]);
        }
    }
    return 0;
}

static enum dtype held_dtype(const struct loader *ld)
{
    switch (ld->held) {
    case WEIGHTS_F32:
        return DTYPE_F32;
    case WEIGHTS_BF16:
        return DTYPE_BF16;
    case WEIGHTS_Q8:
        return DTYPE_Q8;
    case WEIGHTS_Q4:
        return DTYPE_Q4;
    case WEIGHTS_BF16R:
        return DTYPE_BF16R;
    default:
        return ld->set.dtype;
    }
}

static int allocate(struct loader *ld)
{
    ld->w->file_dtype = ld->set.quantised ? DTYPE_BF16 : ld->set.dtype;
    if (ld->set.mixed && !ld->set.quantised && ld->held == WEIGHTS_AS_STORED)
        log_warn("the checkpoint's matrices have several types; all are held as %s",
                 dtype_name(ld->w->dtype));
    ld->image_key = sha256_begin();
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; k < t->n_parts; k++)
            measure_part(ld, t, &ld->set.src[i], t->parts[k].slot);
    }
    for (int k = 0; k < ld->n_stages; k++) {
        count(ld, k, DTYPE_F32, ld->n_vector_floats[k] * sizeof(float));
        ld->w->bytes += ld->stage_bytes[k];
    }
    int n_parts = (int)ld->set.list.n + 1;
    int rc = ld->o->reserve != NULL
                 ? ld->o->reserve(ld->o->reserve_arg, ld->stage_bytes, n_parts, ld->err)
                 : check_room(ld);
    find_image(ld, rc);
    for (size_t i = 0; rc == 0 && i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; rc == 0 && k < t->n_parts; k++) {
            enum slot s = t->parts[k].slot;
            if (slot_is_matrix(s))
                rc = allocate_matrix(ld, t, s);
            else if (slot_is_table(s))
                rc = allocate_table(ld, t, &ld->set.src[i], s);
            if (rc == 0 && s == SLOT_WKV)
                rc = allocate_matrix(ld, t, SLOT_WV);
        }
    }
    return rc == 0 ? allocate_vectors(ld) : rc;
}

/* --- one tensor ------------------------------------------------------------------------------- */

static void hash_tensor(struct sha256_ctx *hash, const struct tensor_spec *t,
                        const struct tensor_src *src, const uint64_t *sums, int64_t n_sums)
{
    uint8_t le[8];
    enum dtype dtype = src->dtype;
    sha256_field(hash, "name", t->name, strlen(t->name));
    sha256_field(hash, "dtype", dtype_name(dtype), strlen(dtype_name(dtype)));
    put_u64(le, (uint64_t)t->rows);
    sha256_field(hash, "rows", le, sizeof le);
    put_u64(le, t->n_dims == 1 ? 0 : (uint64_t)t->cols);
    sha256_field(hash, "cols", le, sizeof le);
    /* This source has already added gemma's 1 to its norms. In a source that has not, equal bytes
     * are other weights, so the hashes must differ. */
    if (src->norm_has_one && t->kind == TENSOR_NORM)
        sha256_field(hash, "norm", "one is added", 12);
    if (src->is_decay)
        sha256_field(hash, "rate", "-exp", 4);
    for (int64_t i = 0; i < n_sums; i++) {
        put_u64(le, sums[i]);
        sha256_field(hash, "sum", le, sizeof le);
    }
}

/* Logs the error of a tensor that was converted to 4 bits, and adds it to the caller's list. */
static void note_error(struct loader *ld, const struct load *l)
{
    struct weights_errors *all = ld->o->errors;
    struct q4_error sum = {0};
    for (int64_t i = 0; l->errors != NULL && i < l->n_units; i++) {
        sum.of_error += l->errors[i].of_error;
        sum.of_weights += l->errors[i].of_weights;
    }
    if (sum.of_weights <= 0)
        return;
    double relative = sqrt(sum.of_error / sum.of_weights);
    if (all != NULL) {
        all->of = xrealloc(all->of, (all->n + 1) * sizeof *all->of);
        struct weights_error *e = &all->of[all->n++];
        snprintf(e->name, sizeof e->name, "%s", l->t->name);
        e->relative = relative;
    }
    if (ld->o->part == WEIGHTS_ALL)
        log_info("weights: tensor '%s': converted to q4_1 with an error of %.2f %%",
                 l->t->name, 100 * relative);
}

/* Sets the error of the tensor that could not be loaded. */
static int load_failed(struct loader *ld, const struct load *l, int rc)
{
    const char *name = l->t->name;
    if (rc == -ENODATA)
        return err_set(ld->err, ERR_MISMATCH,
                       "%s: the file was cut while tensor '%s' was read: start again",
                       l->src->file, name);
    if (rc != -ERANGE)
        return err_set(ld->err, rc, "weights: tensor '%s': %s", name, err_name(rc));
    return err_set(
        ld->err, ERR_UNSUPPORTED,
        "weights: tensor '%s': %s cannot hold an infinity, a NaN or a number above "
        "%s; use the checkpoint's own type, or --weights f32",
        name, ld->w->dtype == DTYPE_Q4 ? "4 bits" : "q8",
        ld->w->dtype == DTYPE_Q4 ? "65504" : "8.3e6");
}

/* --- all tensors ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct weights_digest *)a)->name,
                  ((const struct weights_digest *)b)->name);
}

static void digests_add(struct weights_digests *d, const char *name,
                        const struct sha256 *digest)
{
    d->of = xrealloc(d->of, (d->n + 1) * sizeof *d->of);
    struct weights_digest *to = &d->of[d->n++];
    *to = (struct weights_digest){.digest = *digest};
    snprintf(to->name, sizeof to->name, "%s", name);
}

struct sha256 weights_digests_hash(struct weights_digests *d)
{
    qsort(d->of, d->n, sizeof *d->of, by_name);
    struct sha256_ctx *hash = sha256_begin();
    for (size_t i = 0; i < d->n; i++)
        sha256_field(hash, "tensor", d->of[i].digest.b, sizeof d->of[i].digest.b);
    return sha256_end(hash);
}

void weights_digests_deinit(struct weights_digests *d)
{
    free(d->of);
    *d = (struct weights_digests){0};
}

/* Copies each rank's vectors to the rank. */
static int load_vectors(struct loader *ld)
{
    const struct holdings *h = ld->w->impl;
    int rc = 0;
    for (int k = 0; k < ld->n_stages; k++)
        for (int rank = 0; rank < ld->n_ranks && rc == 0; rank++)
            rc = stream_copy(rank_stream(ld->s, k, rank),
                             rank_address(ld->dev, h->vectors[k].ptr, rank),
                             ld->vectors[k] + (size_t)rank * ld->n_vector_floats[k],
                             h->vectors[k].bytes);
    if (rc == 0)
        rc = stream_sync(ld->s);
    return rc == 0 ? 0
                   : err_set(ld->err, rc, "weights: norms and biases: %s", err_name(rc));
}

/* Describes the tensors with a NaN or an infinity, which usually mean damage that a format without
 * checksums does not show.  A token whose row of the output head holds a NaN is never chosen; a
 * hidden state that is computed with a NaN is lost.  A NaN is no error: rows that are never used
 * (padding of a vocabulary) do no harm, and a request whose logits are all NaN fails by itself.
 * out is empty if there are none. */
static void describe_bad(const struct loader *ld, char *out, size_t n)
{
    const struct load *first = NULL;
    int n_bad = 0;
    char more[40] = "";
    for (size_t i = 0; i < ld->set.list.n; i++)
        if (atomic_load(&ld->loads[i].bad_row) != LOAD_NO_ROW && n_bad++ == 0)
            first = &ld->loads[i];
    out[0] = 0;
    if (n_bad > 1)
        snprintf(more, sizeof more, " and %d others hold", n_bad - 1);
    if (n_bad > 0)
        snprintf(out, n,
                 "weights: tensor '%s'%s values that are no numbers (NaN or infinite; row "
                 "%lld): the file is damaged, or was written so; answers may be wrong. "
                 "Download it again",
                 first->t->name, n_bad > 1 ? more : " holds",
                 (long long)atomic_load(&first->bad_row));
}

/* Computes the hash from the checksums of all rows. */
static void hash_all(struct loader *ld)
{
    struct weights_digests own = {0};
    struct weights_digests *all = ld->o->digests != NULL ? ld->o->digests : &own;
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct load *l = &ld->loads[i];
        struct sha256_ctx *hash = sha256_begin();
        hash_tensor(hash, l->t, l->src, l->sums, l->cut.n_blocks);
        struct sha256 digest = sha256_end(hash);
        digests_add(all, l->t->name, &digest);
    }
    ld->w->hash = weights_digests_hash(all);
    weights_digests_deinit(&own);
}

static int load_all(struct loader *ld)
{
    bool all_parts = ld->o->part == WEIGHTS_ALL;
    const struct load *failed = NULL;
    if (ld->w->is_mapped) {
        if (ld->bad[0] != 0)
            log_warn("%s", ld->bad);
        return look_again(ld);
    }
    if (ld->is_known && ld->n_ranks * ld->n_stages > 1)
        ld->ranks_read = ranks_have_file(ld->dev, ld->source, (int)ld->set.list.n,
                                         &ld->w->hash);
    loads_make(ld);
    if (all_parts)
        progress_begin(&ld->progress, "loading weights", PROGRESS_BYTES, ld->bytes_all);
    int rc = loads_run(ld, &failed);
    if (all_parts)
        progress_end(&ld->progress);
    if (failed != NULL)
        rc = load_failed(ld, failed, rc);
    for (size_t i = 0; rc == 0 && i < ld->set.list.n; i++)
        note_error(ld, &ld->loads[i]);
    if (rc == 0 && !ld->is_known) {
        describe_bad(ld, ld->bad, sizeof ld->bad);
        hash_all(ld);
        ld->w->hashed_bytes = ld->bytes_all;
    }
    if (rc == 0 && all_parts && ld->bad[0] != 0)
        log_warn("%s", ld->bad);
    if (rc == 0)
        rc = look_again(ld);
    loads_free(ld);
    return rc == 0 ? load_vectors(ld) : rc;
}

int weights_hash(struct tensor_set *set, const struct model_config *cfg, struct device *dev,
                 struct sha256 *hash, struct err *err)
{
    struct weights w = {0};
    const struct weights_opts o = {.remembers = true, .part = WEIGHTS_ALL};
    struct loader ld = {.w = &w,
                        .o = &o,
                        .c = cfg,
                        .dev = dev,
                        .set = *set,
                        .n_ranks = 1,
                        .n_stages = 1,
                        .err = err};
    int rc = 0;
    look_up(&ld);
    if (!ld.is_known) {
        const struct load *failed = NULL;
        for (size_t i = 0; i < set->list.n; i++)
            set->list.items[i].n_parts = 0; /* nothing is delivered */
        loads_make(&ld);
        rc = loads_run(&ld, &failed);
        if (failed != NULL)
            rc = load_failed(&ld, failed, rc);
        if (rc == 0) {
            describe_bad(&ld, ld.bad, sizeof ld.bad);
            hash_all(&ld);
            rc = look_again(&ld);
        }
        loads_free(&ld);
    }
    *hash = w.hash;
    return rc;
}

int weights_load(struct weights *out, const char *source, const struct model_config *cfg,
                 const struct weights_opts *o, struct err *err)
{
    if (pack_file_is(source))
        return weights_packed_load(out, source, cfg, o, err);
    *out = (struct weights){.impl = xcalloc(1, sizeof(struct holdings)),
                            .layers = xcalloc((size_t)cfg->n_layers, sizeof *out->layers)};
    struct err local;
    struct loader ld = {.w = out,
                        .o = o,
                        .c = cfg,
                        .dev = o->dev,
                        .s = o->s,
                        .n_ranks = o->dev->n_ranks,
                        .n_stages = o->dev->n_stages,
                        .held = o->held,
                        .source = source,
                        .err = err != NULL ? err : &local};
    struct holdings *h = out->impl;
    h->n_layers = cfg->n_layers;
    int rc = share_check(cfg, ld.n_ranks, ld.n_stages, ld.err);
    if (rc == 0)
        rc = tensor_set_open(&ld.set, source, cfg, o->synth_dtype, ld.err);
    out->dtype = held_dtype(&ld);
    out->matrices = xcalloc(1, sizeof *out->matrices);
    matrix_types_make(out->matrices, out->dtype, &ld.set, cfg);
    tensor_set_keep(&ld.set, o->part, o->layer);
    out->types = ld.set.types;
    if (rc == 0) {
        look_up(&ld);
        rc = allocate(&ld);
    }
    if (rc == 0)
        rc = load_all(&ld);
    if (rc == 0 && ld.makes_image)
        out->image = weights_image_make(&ld.image, ld.image_bytes, ld.pieces, ld.n_pieces);
    free(ld.pieces);
    for (int k = 0; k < ld.n_stages; k++)
        free(ld.vectors[k]);
    tensor_set_close(&ld.set);
    if (rc != 0)
        weights_unload(out, o->dev);
    return rc;
}

static void free_memory(struct weights *w, struct device *dev)
{
    struct holdings *h = w->impl;
    for (int i = 0; i < h->n_layers; i++)
        for (enum slot s = SLOT_WQ; s < SLOT_DENSE_1; s++)
            if (slot_is_in_layer(s))
                buf_free(dev, &slot_matrix(w, &w->layers[i], s)->mem);
    buf_free(dev, &w->head.mem);
    buf_free(dev, &w->layer_in.mem);
    for (int i = 0; i < CONFIG_MAX_DENSE; i++)
        buf_free(dev, &w->dense[i].mem);
    buf_free(dev, &h->tables[0]);
    buf_free(dev, &h->tables[1]);
    stages_free(dev, h->vectors);
}

void weights_unload(struct weights *w, struct device *dev)
{
    struct holdings *h = w->impl;
    if (w->packed != NULL)
        weights_packed_unload(w);
    if (h == NULL)
        return;
    weights_image_close(w->image);
    if (!w->is_mapped)
        free_memory(w, dev);
    free(h);
    free(w->layers);
    matrix_types_free(w->matrices);
    *w = (struct weights){0};
}
