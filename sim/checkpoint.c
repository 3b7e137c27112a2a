/* checkpoint.c - see checkpoint.h.
 *
 * Every file is written under a temporary name, made durable, and renamed at the end.  config.json
 * comes last, so that a folder with a config.json holds a complete model.  After a failure no file
 * is left. */
#include "sim/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/cpus.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/json.h"
#include "model/weights_names.h"
#include "model/weights_source.h"

/* Shard size that hubs and older file systems accept. */
#define SHARD_BYTES ((uint64_t)4 << 30)
#define BATCH_BYTES ((size_t)16 << 20)
/* Room for headers, config.json and the file system's own overhead. */
#define SPARE_BYTES ((uint64_t)4 << 20)

struct out_file {
    char *name;
    char *temp_path, *path;
    size_t first, n; /* first tensor of the file, and number of its tensors */
};

struct writer {
    const char *dir;
    const struct model_config *c;
    enum dtype dtype;
    struct err *err;
    struct tensor_list list;
    size_t n_files;
    struct out_file *files;
    struct pool *pool;
    uint8_t *batch;
    struct progress progress;
    uint64_t bytes_done, bytes_all;
};

void safetensors_write_header(struct safetensors_tensor *t, size_t n, uint8_t **out,
                              size_t *n_out)
{
    static const uint8_t element_bytes[] = {
        [SAFETENSORS_BOOL] = 1,    [SAFETENSORS_U8] = 1,      [SAFETENSORS_I8] = 1,
        [SAFETENSORS_F8_E5M2] = 1, [SAFETENSORS_F8_E4M3] = 1, [SAFETENSORS_I16] = 2,
        [SAFETENSORS_U16] = 2,     [SAFETENSORS_F16] = 2,     [SAFETENSORS_BF16] = 2,
        [SAFETENSORS_I32] = 4,     [SAFETENSORS_U32] = 4,     [SAFETENSORS_F32] = 4,
        [SAFETENSORS_F64] = 8,     [SAFETENSORS_I64] = 8,     [SAFETENSORS_U64] = 8};
    struct json *root = json_new_object();
    struct json *meta = json_new_object();
    json_put_string(meta, "format", "pt"); /* other readers require this field */
    json_put(root, "__metadata__", meta);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct json *v = json_new_object(), *shape = json_new_array(),
                    *pair = json_new_array();
        uint64_t bytes = element_bytes[t[i].dtype];
        for (int k = 0; k < t[i].n_dims; k++)
            CHECK(mul_fits(bytes, t[i].shape[k], &bytes));
        CHECK(json_member(root, t[i].name) == NULL);
        json_put_string(v, "dtype", safetensors_dtype_name(t[i].dtype));
        for (int k = 0; k < t[i].n_dims; k++)
            json_push_int(shape, (int64_t)t[i].shape[k]);
        json_put(v, "shape", shape);
        json_push_int(pair, (int64_t)at);
        json_push_int(pair, (int64_t)(at + bytes));
        json_put(v, "data_offsets", pair);
        json_put(root, t[i].name, v);
        t[i].begin = at;
        t[i].end = at += bytes;
    }
    char *text = json_text(root, 0);
    json_free(root);

    size_t len = strlen(text), total = round_up(8 + len, 64);
    uint8_t *p = xmalloc(total);
    put_u64(p, total - 8);
    memcpy(p + 8, text, len);
    memset(p + 8 + len, ' ', total - 8 - len);
    free(text);
    for (size_t i = 0; i < n; i++) {
        t[i].begin += total;
        t[i].end += total;
    }
    *out = p;
    *n_out = total;
}

static uint64_t tensor_bytes(const struct tensor_spec *t, enum dtype dtype)
{
    return (uint64_t)t->rows * (uint64_t)t->cols * dtype_bytes(dtype);
}

/* --- one file --------------------------------------------------------------------------------- */

struct fill_job {
    const struct tensor_spec *t;
    enum dtype dtype;
    bool norm_plus_one;
    int64_t row, n_rows;
    uint8_t *out;
};

static void fill_share(void *arg, int thread_idx, int n_threads)
{
    const struct fill_job *j = arg;
    long begin, end;
    pool_share(j->n_rows, 1, thread_idx, n_threads, &begin, &end);
    size_t row_bytes = (size_t)j->t->cols * dtype_bytes(j->dtype);
    synth_fill(j->t, j->dtype, j->norm_plus_one, j->row + begin, end - begin,
               j->out + (size_t)begin * row_bytes);
}

static int write_tensor(struct writer *w, int fd, const struct tensor_spec *t)
{
    size_t row_bytes = (size_t)t->cols * dtype_bytes(w->dtype);
    int64_t per_batch = (int64_t)(BATCH_BYTES / row_bytes); /* rows are far below 16 MiB */
    struct fill_job j = {t, w->dtype, w->c->norm == NORM_RMS_PLUS_ONE, 0, 0, w->batch};
    for (; j.row < t->rows; j.row += j.n_rows) {
        j.n_rows = MIN(t->rows - j.row, per_batch);
        pool_run(w->pool, fill_share, &j);
        int rc = file_write_all(fd, w->batch, (size_t)j.n_rows * row_bytes, -1);
        if (rc != 0)
            return rc;
        w->bytes_done += (uint64_t)j.n_rows * row_bytes;
        progress_at(&w->progress, w->bytes_done);
    }
    return 0;
}

static enum safetensors_dtype file_dtype(enum dtype t)
{
    if (t == DTYPE_F32)
        return SAFETENSORS_F32;
    return t == DTYPE_F16 ? SAFETENSORS_F16 : SAFETENSORS_BF16;
}

static int write_header(struct writer *w, int fd, const struct out_file *f)
{
    struct safetensors_tensor *t = xcalloc(f->n, sizeof *t);
    for (size_t i = 0; i < f->n; i++) {
        const struct tensor_spec *s = &w->list.items[f->first + i];
        t[i] = (struct safetensors_tensor){.name = s->name,
                                           .dtype = file_dtype(w->dtype),
                                           .n_dims = s->n_dims,
                                           .shape = {(uint64_t)s->rows, (uint64_t)s->cols}};
    }
    uint8_t *head = NULL;
    size_t n = 0;
    safetensors_write_header(t, f->n, &head, &n);
    int rc = file_write_all(fd, head, n, -1);
    free(head);
    free(t);
    return rc;
}

static int write_shard(struct writer *w, const struct out_file *f)
{
    int fd = open(f->temp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -errno : write_header(w, fd, f);
    for (size_t i = 0; i < f->n && rc == 0; i++)
        rc = write_tensor(w, fd, &w->list.items[f->first + i]);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc == 0 ? 0 : err_set(w->err, rc, "%s: %s", f->temp_path, strerror(-rc));
}

static int write_text(struct writer *w, const char *name, const char *text)
{
    char *temp = xasprintf("%s/.%s.tmp", w->dir, name),
         *path = xasprintf("%s/%s", w->dir, name);
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -errno : file_write_all(fd, text, strlen(text), -1);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(temp, path) != 0)
        rc = -errno;
    if (rc != 0) {
        unlink(temp);
        err_set(w->err, rc, "%s: %s", path, strerror(-rc));
    }
    free(temp);
    free(path);
    return rc;
}

/* --- the folder ------------------------------------------------------------------------------- */

static void add_file(struct writer *w, size_t first, size_t n)
{
    w->files = xrealloc(w->files, (w->n_files + 1) * sizeof *w->files);
    w->files[w->n_files++] = (struct out_file){.first = first, .n = n};
}

static void plan_files(struct writer *w)
{
    size_t first = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->list.n; i++) {
        uint64_t n = tensor_bytes(&w->list.items[i], w->dtype);
        if (i > first && bytes + n > SHARD_BYTES) {
            add_file(w, first, i - first);
            first = i;
            bytes = 0;
        }
        bytes += n;
    }
    add_file(w, first, w->list.n - first);
    for (size_t i = 0; i < w->n_files; i++) {
        struct out_file *f = &w->files[i];
        f->name = w->n_files == 1
                      ? xstrdup("model.safetensors")
                      : xasprintf("model-%05zu-of-%05zu.safetensors", i + 1, w->n_files);
        f->path = xasprintf("%s/%s", w->dir, f->name);
        f->temp_path = xasprintf("%s/.%s.tmp", w->dir, f->name);
    }
}

static char *index_text(const struct writer *w)
{
    struct json *root = json_new_object(), *meta = json_new_object(),
                *map = json_new_object();
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_files; i++)
        for (size_t k = 0; k < w->files[i].n; k++) {
            const struct tensor_spec *t = &w->list.items[w->files[i].first + k];
            json_put_string(map, t->name, w->files[i].name);
            total += tensor_bytes(t, w->dtype);
        }
    json_put_int(meta, "total_size", (int64_t)total);
    json_put(root, "metadata", meta);
    json_put(root, "weight_map", map);
    char *text = json_text(root, 2);
    json_free(root);
    return text;
}

static int make_room(struct writer *w)
{
    struct statvfs st;
    if (mkdir(w->dir, 0777) != 0 && errno != EEXIST)
        return err_set(w->err, -errno, "%s: cannot make the folder: %s", w->dir,
                       strerror(errno));
    char *config = xasprintf("%s/config.json", w->dir);
    bool taken = access(config, F_OK) == 0;
    free(config);
    if (taken)
        return err_set(w->err, -EEXIST, "%s: already holds a model; choose another folder",
                       w->dir);
    if (statvfs(w->dir, &st) != 0)
        return err_set(w->err, -errno, "%s: %s", w->dir, strerror(errno));
    uint64_t need = w->bytes_all + SPARE_BYTES;
    uint64_t have = (uint64_t)st.f_bavail * st.f_frsize;
    if (have < need)
        return err_set(w->err, -ENOSPC,
                       "%s: the model needs %" PRIu64 " MB, %" PRIu64 " MB are free",
                       w->dir, need / 1000000, have / 1000000);
    return 0;
}

static int sync_dir(struct writer *w)
{
    int fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc == 0 ? 0 : err_set(w->err, rc, "%s: %s", w->dir, strerror(-rc));
}

static int publish(struct writer *w)
{
    for (size_t i = 0; i < w->n_files; i++)
        if (rename(w->files[i].temp_path, w->files[i].path) != 0)
            return err_set(w->err, -errno, "%s: %s", w->files[i].path, strerror(errno));
    int rc = 0;
    if (w->n_files > 1) {
        char *text = index_text(w);
        rc = write_text(w, "model.safetensors.index.json", text);
        free(text);
    }
    if (rc == 0)
        rc = sync_dir(w);
    if (rc != 0)
        return rc;
    struct model_config c = *w->c;
    c.weight_type = w->dtype == DTYPE_F32   ? WEIGHT_F32
                    : w->dtype == DTYPE_F16 ? WEIGHT_F16
                                            : WEIGHT_BF16;
    char *text = config_write(&c);
    rc = write_text(w, "config.json", text);
    free(text);
    return rc != 0 ? rc : sync_dir(w);
}

static int compute_threads(void)
{
    int n = cpus_usable();
    return n > 64 ? 64 : n;
}

static void writer_deinit(struct writer *w, bool failed)
{
    for (size_t i = 0; i < w->n_files; i++) {
        if (failed)
            unlink(w->files[i].temp_path);
        free(w->files[i].name);
        free(w->files[i].path);
        free(w->files[i].temp_path);
    }
    free(w->files);
    free(w->batch);
    pool_destroy(w->pool);
    tensor_list_free(&w->list);
}

int checkpoint_write(const char *dir, const struct model_config *cfg, enum dtype dtype,
                     struct err *err)
{
    struct err local;
    struct writer w = {
        .dir = dir, .c = cfg, .dtype = dtype, .err = err != NULL ? err : &local};
    tensor_list_make(&w.list, cfg);
    plan_files(&w);
    for (size_t i = 0; i < w.list.n; i++)
        w.bytes_all += tensor_bytes(&w.list.items[i], dtype);
    w.batch = xmalloc(BATCH_BYTES);
    int rc = pool_create(compute_threads(), &w.pool, w.err);
    if (rc == 0)
        rc = make_room(&w);
    progress_begin(&w.progress, "writing weights", PROGRESS_BYTES, w.bytes_all);
    for (size_t i = 0; i < w.n_files && rc == 0; i++)
        rc = write_shard(&w, &w.files[i]);
    progress_end(&w.progress);
    if (rc == 0)
        rc = publish(&w);
    writer_deinit(&w, rc != 0);
    return rc;
}
