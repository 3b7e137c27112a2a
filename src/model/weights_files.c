/* weights_files.c - a checkpoint's files: opened, parsed, and matched with the model's tensors.
 *
 * Invariants:
 *  1. Nothing outside a file is read: the parser has checked every range against the file's size.
 *  2. A tensor is accepted only if the model's description asks for exactly this tensor.  Leftover
 *     tensors are refused too, because an unused bias or layer would change results. */
#include "model/weights_source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "checkpoint/safetensors.h"

#define SINGLE_FILE     "model.safetensors"
#define INDEX_FILE      "model.safetensors.index.json"
#define INDEX_MAX_BYTES ((size_t)64 << 20)
/* Bytes of two tensors that are compared at a time. */
#define PIECE_BYTES ((uint64_t)1 << 20)

struct tensor_file {
    char *path;
    int fd;
    struct safetensors tensors;
};

struct checkpoint {
    char *dir;
    struct gguf_files gguf; /* n 0: the files are safetensors */
    /* The last n_behind files have the linear layers behind the pooling, one each. */
    size_t n_files, n_behind;
    struct tensor_file *files;
};

/* One tensor in the merged directory of all files. */
struct found {
    const struct tensor_file *file;
    const struct safetensors_tensor *tensor;
};

/* --- opening ---------------------------------------------------------------------------------- */

static int read_header(struct tensor_file *f, struct err *err)
{
    struct stat st;
    uint8_t first[8], *header = NULL;
    uint64_t end;
    if (fstat(f->fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_FORMAT, "%s: not a regular file", f->path);
    if (st.st_size < 8)
        return err_set(
            err, ERR_FORMAT,
            "%s: truncated: %lld bytes, a safetensors file begins with 8; download "
            "it again",
            f->path, (long long)st.st_size);
    int rc = file_read_at(f->fd, first, sizeof first, 0);
    if (rc != 0)
        return err_set(err, rc, "%s: %s", f->path, strerror(-rc));
    rc = safetensors_header_end(first, sizeof first, (uint64_t)st.st_size, f->path, &end,
                                err);
    if (rc != 0)
        return rc;
    header = xmalloc((size_t)end);
    rc = file_read_at(f->fd, header, (size_t)end, 0);
    rc = rc != 0 ? err_set(err, rc, "%s: %s", f->path, strerror(-rc))
                 : safetensors_parse(&f->tensors, header, (size_t)end, (uint64_t)st.st_size,
                                     f->path, err);
    free(header);
    return rc;
}

static int open_file(struct tensor_file *f, const char *dir, const char *name,
                     struct err *err)
{
    f->path = xasprintf("%s/%s", dir, name);
    /* O_NONBLOCK: opening a pipe does not wait */
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return err_set(err, -errno, "%s: %s", f->path, strerror(errno));
    return read_header(f, err);
}

static bool exists(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

/* Checks that every tensor of the index is in the file that the index names. */
static int check_index(const struct checkpoint *cp, const struct safetensors_index *x,
                       struct err *err)
{
    for (size_t i = 0; i < x->n_entries; i++) {
        const struct tensor_file *f = &cp->files[x->entries[i].file_idx];
        if (safetensors_find(&f->tensors, x->entries[i].name) == NULL)
            return err_set(
                err, ERR_FORMAT,
                "%s: tensor '%s' is missing, but %s lists it; download the file again",
                f->path, x->entries[i].name, INDEX_FILE);
    }
    return 0;
}

static int open_sharded(struct checkpoint *cp, struct err *err)
{
    char *text = NULL, *path = xasprintf("%s/%s", cp->dir, INDEX_FILE);
    size_t n = 0;
    struct safetensors_index x = {0};
    int rc = file_read_regular(path, INDEX_MAX_BYTES, &text, &n, err);
    if (rc == 0) {
        rc = safetensors_index_parse(&x, text, n, path, err);
        cp->files = xcalloc(x.n_files + 1, sizeof *cp->files);
        while (rc == 0 && cp->n_files < x.n_files) {
            const char *name = x.files[cp->n_files++];
            rc = open_file(&cp->files[cp->n_files - 1], cp->dir, name, err);
            if (rc == -ENOENT)
                err_wrap(err, "incomplete download: a file that %s names is missing",
                         INDEX_FILE);
        }
        if (rc == 0)
            rc = check_index(cp, &x, err);
        safetensors_index_deinit(&x);
    }
    free(text);
    free(path);
    return rc;
}

static int open_files(struct checkpoint *cp, struct err *err)
{
    if (exists(cp->dir, SINGLE_FILE)) {
        cp->files = xcalloc(1, sizeof *cp->files);
        cp->n_files = 1;
        return open_file(&cp->files[0], cp->dir, SINGLE_FILE, err);
    }
    if (exists(cp->dir, INDEX_FILE))
        return open_sharded(cp, err);
    return err_set(
        err, -ENOENT,
        "%s: holds neither %s nor %s; a GGUF file is given by its own path; other formats "
        "(.bin, .pth) must be converted first",
        cp->dir, SINGLE_FILE, INDEX_FILE);
}

int checkpoint_open(const char *dir, struct checkpoint **out, struct err *err)
{
    struct checkpoint *cp = xcalloc(1, sizeof *cp);
    cp->dir = xstrdup(dir);
    int rc = gguf_files_is(dir) ? gguf_files_open(&cp->gguf, dir, true, err)
                                : open_files(cp, err);
    if (rc != 0) {
        checkpoint_close(cp);
        return rc;
    }
    *out = cp;
    return 0;
}

void checkpoint_close(struct checkpoint *cp)
{
    if (cp == NULL)
        return;
    for (size_t i = 0; i < cp->n_files; i++) {
        if (cp->files[i].path != NULL && cp->files[i].fd >= 0)
            close(cp->files[i].fd);
        safetensors_deinit(&cp->files[i].tensors);
        free(cp->files[i].path);
    }
    free(cp->files);
    gguf_files_close(&cp->gguf);
    free(cp->dir);
    free(cp);
}

/* --- matching --------------------------------------------------------------------------------- */

struct directory {
    size_t n;
    struct found *items; /* sorted by name */
    bool *used;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->tensor->name,
                  ((const struct found *)b)->tensor->name);
}

static int directory_make(struct directory *d, const struct checkpoint *cp, struct err *err)
{
    size_t n = 0, n_files = cp->n_files - cp->n_behind;
    for (size_t i = 0; i < n_files; i++)
        n += cp->files[i].tensors.n_tensors;
    d->items = xcalloc(n + 1, sizeof *d->items);
    d->used = xcalloc(n + 1, sizeof *d->used);
    for (size_t i = 0; i < n_files; i++)
        for (size_t k = 0; k < cp->files[i].tensors.n_tensors; k++)
            d->items[d->n++] = (struct found){&cp->files[i],
                                              &cp->files[i].tensors.tensors[k]};
    qsort(d->items, n, sizeof *d->items, by_name);
    for (size_t i = 1; i < n; i++)
        if (by_name(&d->items[i - 1], &d->items[i]) == 0)
            return err_set(err, ERR_FORMAT, "%s: tensor '%s' is also in %s",
                           d->items[i].file->path, d->items[i].tensor->name,
                           d->items[i - 1].file->path);
    return 0;
}

static struct found *directory_find(const struct directory *d, const char *name)
{
    struct safetensors_tensor t = {.name = name};
    struct found key = {.tensor = &t};
    return d->n == 0 ? NULL : bsearch(&key, d->items, d->n, sizeof *d->items, by_name);
}

static void shape_text(char *out, size_t n, const uint64_t *shape, int n_dims)
{
    size_t at = (size_t)snprintf(out, n, "[");
    for (int i = 0; i < n_dims && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    if (at < n)
        snprintf(out + at, n - at, "]");
}

static int check_shape(const struct found *f, const struct tensor_spec *t, struct err *err)
{
    uint64_t want[3] = {(uint64_t)t->rows, (uint64_t)t->cols};
    const struct safetensors_tensor *have = f->tensor;
    if (t->n_dims == 3) {
        want[0] /= (uint64_t)t->n_conv;
        want[2] = (uint64_t)t->n_conv;
    }
    bool fits = have->n_dims == t->n_dims;
    for (int i = 0; fits && i < t->n_dims; i++)
        fits = have->shape[i] == want[i];
    if (fits)
        return 0;
    char has[192], wants[64];
    shape_text(has, sizeof has, have->shape, have->n_dims);
    shape_text(wants, sizeof wants, want, t->n_dims);
    return err_set(
        err, ERR_MISMATCH,
        "%s: tensor '%s' has shape %s, config.json asks for %s; config and weights "
        "must be of the same model",
        f->file->path, have->name, has, wants);
}

static int check_dtype(const struct found *f, enum dtype *out, struct err *err)
{
    switch (f->tensor->dtype) {
    case SAFETENSORS_F32:
        *out = DTYPE_F32;
        return 0;
    case SAFETENSORS_F16:
        *out = DTYPE_F16;
        return 0;
    case SAFETENSORS_BF16:
        *out = DTYPE_BF16;
        return 0;
    default:
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tensor '%s' has type %s; F32, F16 and BF16 are supported, "
                       "quantized checkpoints are not",
                       f->file->path, f->tensor->name,
                       safetensors_dtype_name(f->tensor->dtype));
    }
}

/* How a checkpoint's names differ from the list's: without the list's prefix where it has that, and
 * with another one instead. */
struct naming {
    const char *without, *with;
};

/* Returns the tensor of a name of the list, or NULL. */
static struct found *find_named(const struct directory *d, const struct naming *n,
                                const char *name)
{
    char own[2 * TENSOR_NAME_BYTES];
    size_t skip = strlen(n->without);
    if (strncmp(name, n->without, skip) != 0)
        skip = 0;
    snprintf(own, sizeof own, "%s%s", n->with, name + skip);
    struct found *f = directory_find(d, own);
    return f != NULL ? f : directory_find(d, name);
}

/* Finds out how the checkpoint names its tensors by the name of the embedding table: as the list
 * does, without the prefix (the bare base model), or as the text part of a model that also sees. */
static struct naming naming_of(const struct directory *d, const struct tensor_list *want)
{
    const struct naming known[] = {{"", ""},
                                   {want->prefix, ""},
                                   {"", "language_model."},
                                   {want->prefix, "model.language_model."}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (find_named(d, &known[i], want->items[0].name) != NULL)
            return known[i];
    return known[0];
}

/* The tensor of all experts that has one expert's rows, and their place there.  Gate and up of an
 * expert are one matrix, whose rows alternate. */
struct fused {
    char stem[TENSOR_NAME_BYTES]; /* "model.layers.0.mlp.experts.down_proj" */
    int64_t expert, n_rows;       /* rows of each expert in the tensor */
    int32_t step, first;          /* every step-th of them, from `first` on */
};

static struct fused fused_of(const struct model_config *c, const struct tensor_spec *t)
{
    const struct tensor_part *p = &t->parts[0];
    bool down = p->slot == SLOT_DOWN || p->slot == SLOT_B_DOWN;
    int64_t n_rows = slot_rows(c, t->layer, p->slot) / c->n_experts;
    struct fused x = {
        .expert = p->dst_row / n_rows, .n_rows = n_rows, .step = down ? 1 : 2};
    x.first = p->dst_row % n_rows != 0;
    const char *end = strstr(t->name, ".experts.");
    bool granite = c->family == FAMILY_GRANITE_HYBRID;
    snprintf(x.stem, sizeof x.stem, "%.*s%s%s", (int)(end - t->name), t->name,
             granite ? "." : ".experts.",
             granite ? (down ? "output_linear.weight" : "input_linear.weight")
             : down  ? "down_proj"
                     : "gate_up_proj");
    return x;
}

/* Finds a part of a fused tensor and checks its shape, which is [n_experts] and then `shape`. */
static struct found *fused_part(const struct directory *d, const struct naming *n,
                                const struct model_config *c, const char *stem,
                                const char *suffix, int n_dims, const uint64_t *shape,
                                struct err *err)
{
    char name[TENSOR_NAME_BYTES + 8], has[192], wants[64];
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    struct found *f = find_named(d, n, name);
    if (f == NULL)
        return NULL;
    const struct safetensors_tensor *have = f->tensor;
    d->used[f - d->items] = true;
    bool fits = have->n_dims == n_dims + 1 && have->shape[0] == (uint64_t)c->n_experts;
    for (int i = 0; fits && i < n_dims; i++)
        fits = have->shape[1 + i] == shape[i];
    if (fits)
        return f;
    shape_text(has, sizeof has, have->shape, have->n_dims);
    shape_text(wants, sizeof wants, shape, n_dims);
    err_set(err, ERR_MISMATCH,
            "%s: tensor '%s' has shape %s, config.json asks for %d experts of %s",
            f->file->path, have->name, has, c->n_experts, wants);
    return NULL;
}

static void take_from(const struct found *f, struct tensor_src *out)
{
    out->in_file = true;
    out->fd = f->file->fd;
    out->at = f->tensor->begin;
    out->file = f->file->path;
}

/* Takes the MXFP4 blocks of an expert: [n_experts][rows][blocks][16], and exponents
 * [n_experts][rows][blocks]. Returns whether the checkpoint has them. */
static bool match_blocks(const struct directory *d, const struct naming *n,
                         const struct model_config *c, const struct tensor_spec *t,
                         const struct fused *x, struct tensor_src *out, struct err *err)
{
    const struct gguf_type *type = gguf_type(GGUF_TYPE_MXFP4);
    const uint64_t blocks = (uint64_t)t->cols / 32,
                   shape[] = {(uint64_t)x->n_rows, blocks, 16};
    struct found *f = fused_part(d, n, c, x->stem, "_blocks", 3, shape, err);
    if (f == NULL)
        return false;
    struct found *scales = fused_part(d, n, c, x->stem, "_scales", 2, shape, err);
    if (scales == NULL || t->cols % 32 != 0 || f->file != scales->file ||
        f->tensor->dtype != SAFETENSORS_U8 || scales->tensor->dtype != SAFETENSORS_U8) {
        if (err->code == 0)
            err_set(err, ERR_MISMATCH,
                    "%s: tensor '%s' needs exponents '%s_scales' beside it, both U8",
                    f->file->path, f->tensor->name, x->stem);
        return false;
    }
    uint64_t first = (uint64_t)(x->expert * x->n_rows + x->first) * blocks;
    take_from(f, out);
    out->dtype = DTYPE_F32;
    out->type = type;
    out->at += first * 16;
    out->scales_at = scales->tensor->begin + first;
    out->file_row_bytes = (size_t)blocks * type->bytes;
    out->rows = (struct row_map){.order = ROWS_STEPS, .step = x->step};
    return true;
}

/* Finds an expert's rows in the tensor of all experts: a bias [n_experts][rows], a matrix
 * [n_experts][cols][rows], or blocks. Returns whether the checkpoint has them. */
static bool match_fused(const struct directory *d, const struct naming *n,
                        const struct model_config *c, const struct tensor_spec *t,
                        struct tensor_src *out, struct err *err)
{
    const struct fused x = fused_of(c, t);
    bool bias = t->n_dims == 1;
    const uint64_t of_bias[] = {(uint64_t)x.n_rows},
                   of_matrix[] = {(uint64_t)t->cols, (uint64_t)x.n_rows};
    struct found *f = fused_part(d, n, c, x.stem, bias ? "_bias" : "", bias ? 1 : 2,
                                 bias ? of_bias : of_matrix, err);
    if (f == NULL)
        return !bias && match_blocks(d, n, c, t, &x, out, err);
    if (check_dtype(f, &out->dtype, err) != 0)
        return false;
    size_t bytes = dtype_bytes(out->dtype);
    take_from(f, out);
    out->file_row_bytes = (size_t)t->cols * bytes;
    out->at += (uint64_t)(x.expert * x.n_rows * t->cols + x.first) * bytes;
    out->rows = (struct row_map){.order = bias ? ROWS_STEPS : ROWS_COLUMNS,
                                 .step = x.step,
                                 .line_bytes = (size_t)x.n_rows * bytes};
    return true;
}

/* Finds an expert's rows in the tensor of all experts, [n_experts][rows][cols], in which those of
 * the gate stand before those of up. Returns whether the checkpoint has them. */
static bool match_stacked(const struct directory *d, const struct naming *n,
                          const struct model_config *c, const struct tensor_spec *t,
                          struct tensor_src *out, struct err *err)
{
    const struct fused x = fused_of(c, t);
    const uint64_t shape[] = {(uint64_t)x.n_rows, (uint64_t)t->cols};
    struct found *f = fused_part(d, n, c, x.stem, "", 2, shape, err);
    if (f == NULL || check_dtype(f, &out->dtype, err) != 0)
        return false;
    take_from(f, out);
    out->file_row_bytes = (size_t)t->cols * dtype_bytes(out->dtype);
    out->at += (uint64_t)t->parts[0].dst_row * out->file_row_bytes;
    out->rows = rows_of_folder(c, t);
    return true;
}

/* Finds a matrix of the MLP that every token of granitemoehybrid uses. Gate and up are one tensor,
 * in which the rows of the gate come first: *first is set to the matrix's row there. */
static struct found *find_shared(const struct directory *d, const struct naming *n,
                                 const struct tensor_spec *t, struct tensor_spec *whole,
                                 int64_t *first)
{
    const char *stem = strstr(t->name, ".shared_mlp.");
    if (stem == NULL)
        return NULL;
    bool down = strstr(stem, "down_proj") != NULL;
    *whole = *t;
    snprintf(whole->name, sizeof whole->name, "%.*s.shared_mlp.%s_linear.weight",
             (int)(stem - t->name), t->name, down ? "output" : "input");
    whole->rows = down ? t->rows : 2 * t->rows;
    *first = t->parts[0].dst_row;
    return find_named(d, n, whole->name);
}

/* Takes a tensor as it is in the file, if its shape and type suit. */
static int take_whole(const struct found *f, const struct tensor_spec *t,
                      struct tensor_src *out, struct err *err)
{
    int rc = check_shape(f, t, err);
    if (rc == 0)
        rc = check_dtype(f, &out->dtype, err);
    take_from(f, out);
    out->file_row_bytes = (size_t)t->cols * dtype_bytes(out->dtype);
    return rc;
}

/* Takes W_k of all heads, transposed, or W_v, from the tensor that has both for each head:
 * [n_heads * (d_nope + d_v)][rank]. Returns whether the checkpoint has it. */
static bool match_latent(const struct directory *d, const struct naming *n,
                         const struct model_config *c, const struct tensor_spec *t,
                         struct tensor_src *out, struct err *err)
{
    char name[TENSOR_NAME_BYTES];
    int64_t each = c->latent.d_nope + c->latent.d_v, rank = config_kv_rank(c);
    bool of_k = t->parts[0].slot == SLOT_UK;
    struct tensor_spec both = {.n_dims = 2, .rows = c->n_heads * each, .cols = rank};
    snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj.weight", t->layer);
    struct found *f = find_named(d, n, name);
    if (f == NULL)
        return false;
    d->used[f - d->items] = true;
    if (take_whole(f, &both, out, err) != 0)
        return false;
    out->rows = (struct row_map){.order = of_k ? ROWS_COLUMN_RUNS : ROWS_RUNS,
                                 .d_head = of_k ? (int32_t)rank : c->latent.d_v,
                                 .step = (int32_t)each,
                                 .line_bytes = out->file_row_bytes};
    if (of_k)
        out->file_row_bytes = (size_t)t->cols * dtype_bytes(out->dtype);
    else
        out->at += (uint64_t)c->latent.d_nope * out->file_row_bytes;
    return true;
}

static int match_one(const struct checkpoint *cp, const struct directory *d,
                     const struct model_config *c, const struct tensor_spec *t,
                     const struct naming *n, struct tensor_src *out, struct err *err)
{
    struct err of_fused = {0};
    struct tensor_spec whole = *t;
    int64_t first = 0;
    struct found *f = find_named(d, n, t->name);
    if (f == NULL && c->family == FAMILY_GRANITE_HYBRID)
        f = find_shared(d, n, t, &whole, &first);
    if (f == NULL && c->n_experts > 0 && slot_is_of_experts(t->parts[0].slot)) {
        if (c->family == FAMILY_GPT_OSS ? match_fused(d, n, c, t, out, &of_fused)
                                        : match_stacked(d, n, c, t, out, &of_fused))
            return 0;
        if (of_fused.code != 0)
            return err_set(err, of_fused.code, "%s", of_fused.msg);
    }
    if (f == NULL && config_is_latent(c) &&
        (t->parts[0].slot == SLOT_UK || t->parts[0].slot == SLOT_UV)) {
        if (match_latent(d, n, c, t, out, &of_fused))
            return 0;
        if (of_fused.code != 0)
            return err_set(err, of_fused.code, "%s", of_fused.msg);
    }
    if (f == NULL)
        return err_set(err, ERR_MISMATCH,
                       "%s: tensor '%s' is missing, but config.json requires it; the "
                       "download is incomplete, or config.json belongs to another model",
                       cp->n_files - cp->n_behind == 1 ? cp->files[0].path : cp->dir,
                       t->name);
    d->used[f - d->items] = true;
    out->rows = rows_of_folder(c, t);
    int rc = take_whole(f, &whole, out, err);
    out->at += (uint64_t)first * out->file_row_bytes;
    return rc;
}

/* Opens the files of the linear layers behind the pooling. */
static int open_dense(struct checkpoint *cp, const struct model_config *c, struct err *err)
{
    int rc = 0;
    cp->files = xrealloc(cp->files, (cp->n_files + CONFIG_MAX_DENSE) * sizeof *cp->files);
    for (int i = 0; rc == 0 && i < c->n_behind; i++) {
        char *name = config_dense_path(cp->dir, i);
        struct tensor_file *f = &cp->files[cp->n_files++];
        *f = (struct tensor_file){.fd = -1};
        cp->n_behind++;
        rc = name != NULL
                 ? open_file(f, cp->dir, name, err)
                 : err_set(err, ERR_MISMATCH,
                           "%s: modules.json names no file of linear layer %d", cp->dir, i);
        free(name);
    }
    return rc;
}

/* Takes the weight of a linear layer behind the pooling, which is all that its file has. */
static int match_dense(const struct checkpoint *cp, const struct tensor_spec *t,
                       struct tensor_src *out, struct err *err)
{
    size_t i = cp->n_files - cp->n_behind + (t->parts[0].slot == SLOT_DENSE_2);
    const struct found f = {&cp->files[i],
                            safetensors_find(&cp->files[i].tensors, "linear.weight")};
    if (f.tensor == NULL || f.file->tensors.n_tensors != 1)
        return err_set(err, ERR_MISMATCH,
                       "%s: must have one tensor, 'linear.weight', as its config.json says",
                       f.file->path);
    return take_whole(&f, t, out, err);
}

/* Sets *equal to whether two tensors have the same bytes. Returns 0 or -errno. */
static int same_bytes(const struct found *a, const struct found *b, bool *equal)
{
    uint64_t n = a->tensor->end - a->tensor->begin;
    uint8_t *piece = xmalloc((size_t)2 * PIECE_BYTES);
    int rc = 0;
    *equal = n == b->tensor->end - b->tensor->begin;
    for (uint64_t at = 0, k; rc == 0 && *equal && at < n; at += k) {
        k = MIN(n - at, PIECE_BYTES);
        rc = file_read_at(a->file->fd, piece, (size_t)k, a->tensor->begin + at);
        if (rc == 0)
            rc = file_read_at(b->file->fd, piece + PIECE_BYTES, (size_t)k,
                              b->tensor->begin + at);
        *equal = rc == 0 && memcmp(piece, piece + PIECE_BYTES, (size_t)k) == 0;
    }
    free(piece);
    return rc;
}

/* Checks a repeated output head. A checkpoint with tied embeddings may repeat the table as the
 * head, if the two are equal. */
static int match_repeated_head(const struct directory *d, const struct naming *n,
                               const struct found *embed, struct err *err)
{
    struct found *head = find_named(d, n, tensor_head_name());
    if (head == NULL)
        return 0;
    d->used[head - d->items] = true;
    bool equal = false;
    int rc = same_bytes(head, embed, &equal);
    if (rc != 0)
        return err_set(err, rc, "%s: %s", head->file->path, strerror(-rc));
    if (equal && head->tensor->dtype == embed->tensor->dtype)
        return 0;
    return err_set(
        err, ERR_MISMATCH,
        "%s: '%s' differs from '%s', but config.json says that they are tied; set "
        "\"tie_word_embeddings\": false",
        head->file->path, head->tensor->name, embed->tensor->name);
}

/* Returns whether a tensor belongs to a part of the model that texts do not need: one that sees
 * pictures, or layers that guess the tokens behind the next one. */
static bool is_unused(const struct model_config *c, const char *name)
{
    static const struct {
        bool of_hybrids;
        const char *prefix;
    } parts[] = {{false, "vision_tower."},
                 {false, "embed_vision."},
                 {false, "audio_tower."},
                 {false, "embed_audio."},
                 {false, "multi_modal_projector."},
                 {true, "visual."},
                 {true, "mtp."}};
    bool sees = c->family == FAMILY_GEMMA3 || c->family == FAMILY_MISTRAL ||
                c->family == FAMILY_MINISTRAL3 || c->family == FAMILY_GEMMA4;
    int l, n = 0;
    if (strncmp(name, "model.", 6) == 0)
        name += 6;
    /* Published folders have K and V of layers that read those of another one. */
    const char *own = strncmp(name, "language_model.", 15) == 0 ? name + 15 : name;
    if (sscanf(own, "layers.%d.self_attn.%n", &l, &n) == 1 && n > 0 &&
        l >= config_n_keeping(c) && l < c->n_layers && (own[n] == 'k' || own[n] == 'v') &&
        own[n + 1] == '_')
        return true;
    if (sscanf(name, "layers.%d.", &l) == 1 && l >= c->n_layers &&
        l < c->n_layers + c->n_guessing)
        return true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if ((parts[i].of_hybrids ? config_is_hybrid(c) : sees) &&
            strncmp(name, parts[i].prefix, strlen(parts[i].prefix)) == 0)
            return true;
    return false;
}

static int refuse_unexpected(const struct directory *d, const struct model_config *c,
                             struct err *err)
{
    for (size_t i = 0; i < d->n; i++) {
        const char *name = d->items[i].tensor->name;
        if (d->used[i] || tensor_is_ignored(name) || is_unused(c, name))
            continue;
        return err_set(err, ERR_MISMATCH,
                       "%s: tensor '%s' is not part of the %s model of %d layers that "
                       "config.json describes; ignoring it would change results",
                       d->items[i].file->path, name, family_name(c->family), c->n_layers);
    }
    return 0;
}

/* Refuses quantized checkpoints.  config.json should say so (quantization_config), but some files
 * lack that key, so the names of the tensors decide. */
static int refuse_quantized(const struct directory *d, struct err *err)
{
    static const struct {
        const char *suffix, *kind;
    } marks[] = {
        {".g_idx", "GPTQ"},
        {".qweight", "GPTQ or AWQ"},
        {".qzeros", "GPTQ or AWQ"},
        {".weight_packed", "compressed-tensors"},
        {".weight_scale", "compressed-tensors or FP8"},
        {".weight_scale_inv", "FP8"},
        {".SCB", "bitsandbytes"},
        {".weight.absmax", "bitsandbytes"},
        {".scales", "quantized"},
    };
    for (size_t k = 0; k < sizeof marks / sizeof marks[0]; k++)
        for (size_t i = 0; i < d->n; i++) {
            const char *name = d->items[i].tensor->name;
            size_t n = strlen(name), n_suffix = strlen(marks[k].suffix);
            if (n > n_suffix && strcmp(name + n - n_suffix, marks[k].suffix) == 0)
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: tensor '%s' belongs to a quantized checkpoint (%s), "
                               "which is not supported; use the original one, and hold it "
                               "in 8 bits with --weights q8",
                               d->items[i].file->path, name, marks[k].kind);
        }
    return 0;
}

static int match_all(struct checkpoint *cp, const struct directory *d,
                     const struct model_config *c, const struct tensor_list *want,
                     struct tensor_src *src, struct err *err)
{
    struct naming n = naming_of(d, want);
    for (size_t i = 0; i < want->n; i++) {
        enum slot s = want->items[i].parts[0].slot;
        int rc = s == SLOT_DENSE_1 || s == SLOT_DENSE_2
                     ? match_dense(cp, &want->items[i], &src[i], err)
                     : match_one(cp, d, c, &want->items[i], &n, &src[i], err);
        if (rc != 0)
            return rc;
    }
    const struct found *embed = find_named(d, &n, want->items[0].name);
    int rc = c->tie_word_embeddings ? match_repeated_head(d, &n, embed, err) : 0;
    return rc != 0 ? rc : refuse_unexpected(d, c, err);
}

int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err)
{
    struct directory d = {0};
    if (cp->gguf.n > 0)
        return gguf_match(&cp->gguf, c, want, src, err);
    int rc = c->n_behind > 0 && cp->n_behind == 0 ? open_dense(cp, c, err) : 0;
    if (rc == 0)
        rc = directory_make(&d, cp, err);
    if (rc == 0)
        rc = refuse_quantized(&d, err);
    if (rc == 0)
        rc = match_all(cp, &d, c, want, src, err);
    free(d.items);
    free(d.used);
    return rc;
}

bool checkpoint_lacks_head(const char *dir)
{
    struct checkpoint *cp = NULL;
    struct directory d = {0};
    const char *head = tensor_head_name();
    bool lacks = checkpoint_open(dir, &cp, NULL) == 0 && directory_make(&d, cp, NULL) == 0;
    for (size_t i = 0; lacks && i < d.n; i++) {
        size_t n = strlen(d.items[i].tensor->name), n_head = strlen(head);
        lacks = n < n_head || strcmp(d.items[i].tensor->name + n - n_head, head) != 0;
    }
    free(d.items);
    free(d.used);
    checkpoint_close(cp);
    return lacks;
}

/* --- the stamp -------------------------------------------------------------------------------- */

static int add_stamp(struct sha256_ctx *h, int fd, int64_t *newest_ns)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    const struct timespec *t[2] = {&st.st_mtim, &st.st_ctim};
    uint64_t of[7] = {st.st_dev, st.st_ino, (uint64_t)st.st_size};
    uint8_t le[sizeof of];
    for (int i = 0; i < 2; i++) {
        of[3 + 2 * i] = (uint64_t)t[i]->tv_sec;
        of[4 + 2 * i] = (uint64_t)t[i]->tv_nsec;
    }
    for (int i = 0; i < 7; i++)
        put_u64(le + 8 * i, of[i]);
    sha256_field(h, "file", le, sizeof le);
    *newest_ns = MAX(*newest_ns,
                     st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec);
    return 0;
}

int checkpoint_stamp(const struct checkpoint *cp, struct sha256 *out, bool *settled)
{
    const int64_t two_seconds = 2000000000;
    struct timespec now;
    struct sha256_ctx *h = sha256_begin();
    int64_t newest_ns = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < cp->n_files; i++)
        rc = add_stamp(h, cp->files[i].fd, &newest_ns);
    for (size_t i = 0; rc == 0 && i < cp->gguf.n; i++)
        rc = add_stamp(h, cp->gguf.files[i].fd, &newest_ns);
    *out = sha256_end(h);
    clock_gettime(CLOCK_REALTIME, &now);
    *settled = newest_ns + two_seconds <= now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    return rc;
}
