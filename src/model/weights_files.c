/* weights_files.c - a checkpoint's files: mapped, parsed, and matched with the model's tensors.
 *
 * Invariants:
 *  1. Nothing outside a mapping is read: the parser has checked every range against the file's
 *     size.
 *  2. A tensor is accepted only if the model's description asks for exactly this tensor.  Leftover
 *     tensors are refused too, because an unused bias or layer would change results. */
#include "model/weights_source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"

#define SINGLE_FILE     "model.safetensors"
#define INDEX_FILE      "model.safetensors.index.json"
#define INDEX_MAX_BYTES ((size_t)64 << 20)

struct mapped_file {
    char *path;
    uint8_t *bytes; /* NULL after it was unmapped */
    size_t n_bytes;
    struct safetensors tensors;
};

struct checkpoint {
    char *dir;
    struct gguf_files gguf; /* n 0: the files are safetensors */
    size_t n_files;
    struct mapped_file *files;
};

/* One tensor in the merged directory of all files. */
struct found {
    const struct mapped_file *file;
    const struct safetensors_tensor *tensor;
};

/* --- opening ---------------------------------------------------------------------------------- */

static int map_bytes(struct mapped_file *f, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_FORMAT, "%s: not a regular file", f->path);
    if (st.st_size < 8)
        return err_set(
            err, ERR_FORMAT,
            "%s: truncated: %lld bytes, a safetensors file begins with 8; download "
            "it again",
            f->path, (long long)st.st_size);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_set(err, -errno, "%s: cannot map %lld bytes: %s", f->path,
                       (long long)st.st_size, strerror(errno));
    f->bytes = p;
    f->n_bytes = (size_t)st.st_size;
    return 0;
}

static int map_file(struct mapped_file *f, const char *dir, const char *name,
                    struct err *err)
{
    f->path = xasprintf("%s/%s", dir, name);
    /* O_NONBLOCK: opening a pipe does not wait */
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, -errno, "%s: %s", f->path, strerror(errno));
    int rc = map_bytes(f, fd, err);
    close(fd);
    if (rc != 0)
        return rc;
    return safetensors_parse(&f->tensors, f->bytes, f->n_bytes, f->n_bytes, f->path, err);
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
        const struct mapped_file *f = &cp->files[x->entries[i].file_idx];
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
            rc = map_file(&cp->files[cp->n_files - 1], cp->dir, name, err);
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
        return map_file(&cp->files[0], cp->dir, SINGLE_FILE, err);
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

static void unmap_file(struct mapped_file *f)
{
    if (f->bytes != NULL)
        munmap(f->bytes, f->n_bytes);
    f->bytes = NULL;
}

void checkpoint_close(struct checkpoint *cp)
{
    if (cp == NULL)
        return;
    for (size_t i = 0; i < cp->n_files; i++) {
        unmap_file(&cp->files[i]);
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
    size_t n = 0;
    for (size_t i = 0; i < cp->n_files; i++)
        n += cp->files[i].tensors.n_tensors;
    d->items = xcalloc(n + 1, sizeof *d->items);
    d->used = xcalloc(n + 1, sizeof *d->used);
    for (size_t i = 0; i < cp->n_files; i++)
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
    const uint64_t want[2] = {(uint64_t)t->rows, (uint64_t)t->cols};
    const struct safetensors_tensor *have = f->tensor;
    if (have->n_dims == t->n_dims && have->shape[0] == want[0] &&
        (t->n_dims == 1 || have->shape[1] == want[1]))
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

static const uint8_t *bytes_of(const struct found *f)
{
    return f->file->bytes + f->tensor->begin;
}

static int match_one(const struct checkpoint *cp, const struct directory *d,
                     const struct tensor_spec *t, size_t skip, struct tensor_src *out,
                     struct err *err)
{
    struct found *f = directory_find(d, t->name);
    /* skip: length of the prefix that a checkpoint of the bare base model leaves out */
    if (f == NULL)
        f = directory_find(d, t->name + (strlen(t->name) > skip ? skip : 0));
    if (f == NULL)
        return err_set(err, ERR_MISMATCH,
                       "%s: tensor '%s' is missing, but config.json requires it; the "
                       "download is incomplete, or config.json belongs to another model",
                       cp->n_files == 1 ? cp->files[0].path : cp->dir, t->name);
    int rc = check_shape(f, t, err);
    if (rc == 0)
        rc = check_dtype(f, &out->dtype, err);
    out->mapped = bytes_of(f);
    out->file = f->file->path;
    d->used[f - d->items] = true;
    return rc;
}

/* Checks a repeated output head. A checkpoint with tied embeddings may repeat the table as the
 * head, if the two are equal.
 */
static int match_repeated_head(const struct directory *d, const struct found *embed,
                               struct err *err)
{
    struct found *head = directory_find(d, tensor_head_name());
    if (head == NULL)
        return 0;
    size_t n = head->tensor->end - head->tensor->begin;
    d->used[head - d->items] = true;
    if (head->tensor->dtype == embed->tensor->dtype &&
        n == embed->tensor->end - embed->tensor->begin &&
        memcmp(bytes_of(head), bytes_of(embed), n) == 0)
        return 0;
    return err_set(
        err, ERR_MISMATCH,
        "%s: '%s' differs from '%s', but config.json says that they are tied; set "
        "\"tie_word_embeddings\": false",
        head->file->path, head->tensor->name, embed->tensor->name);
}

static int refuse_unexpected(const struct directory *d, const struct model_config *c,
                             struct err *err)
{
    for (size_t i = 0; i < d->n; i++) {
        const char *name = d->items[i].tensor->name;
        if (d->used[i] || tensor_is_ignored(name))
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
    const struct tensor_spec *first = &want->items[0]; /* the embedding table */
    bool bare = directory_find(d, first->name) == NULL;
    size_t prefix = strlen(want->prefix);
    for (size_t i = 0; i < want->n; i++) {
        bool prefixed = strncmp(want->items[i].name, want->prefix, prefix) == 0;
        int rc = match_one(cp, d, &want->items[i], bare && prefixed ? prefix : 0, &src[i],
                           err);
        if (rc != 0)
            return rc;
    }
    const struct found *embed = directory_find(d, first->name + (bare ? prefix : 0));
    int rc = c->tie_word_embeddings ? match_repeated_head(d, embed, err) : 0;
    return rc != 0 ? rc : refuse_unexpected(d, c, err);
}

int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err)
{
    struct directory d = {0};
    if (cp->gguf.n > 0)
        return gguf_match(&cp->gguf, c, want, src, err);
    int rc = directory_make(&d, cp, err);
    if (rc == 0)
        rc = refuse_quantized(&d, err);
    if (rc == 0)
        rc = match_all(cp, &d, c, want, src, err);
    free(d.items);
    free(d.used);
    return rc;
}

/* --- pages ------------------------------------------------------------------------------------ */

#define PAGE ((uintptr_t)4096)

void checkpoint_want(const void *p, size_t n)
{
    uintptr_t begin = (uintptr_t)p & ~(PAGE - 1);
    madvise((void *)begin, (uintptr_t)p + n - begin, MADV_WILLNEED);
}

/* Keeps the last page, which may hold the first bytes of the next rows.  The first page is dropped
 * even if it holds the end of earlier rows, which were used before.  A dropped page that is used
 * again is read from the file again. */
void checkpoint_drop(const void *p, size_t n)
{
    uintptr_t begin = (uintptr_t)p & ~(PAGE - 1);
    uintptr_t end = ((uintptr_t)p + n) & ~(PAGE - 1);
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static bool holds_any(const uint8_t *bytes, size_t n_bytes, const void *const *used,
                      size_t n)
{
    for (size_t i = 0; i < n && bytes != NULL; i++) {
        const uint8_t *p = used[i];
        if (p >= bytes && p < bytes + n_bytes)
            return true;
    }
    return false;
}

void checkpoint_keep_only(struct checkpoint *cp, const void *const *used, size_t n)
{
    for (size_t i = 0; i < cp->n_files; i++)
        if (!holds_any(cp->files[i].bytes, cp->files[i].n_bytes, used, n))
            unmap_file(&cp->files[i]);
    for (size_t i = 0; i < cp->gguf.n; i++)
        if (!holds_any(cp->gguf.files[i].bytes, cp->gguf.files[i].n_bytes, used, n))
            gguf_files_unmap(&cp->gguf.files[i]);
}
