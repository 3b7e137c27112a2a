/* pack_write.c - see pack_write.h.
 *
 * Each part is loaded as for use, read back from the device, and written in pieces of one MiB, each
 * with its checksum.  The head of the file, which describes all parts, is written last.  The bytes
 * leave the page cache once they are durable, so that packing does not displace other programs'
 * pages. */
#include "apps/pack_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "apps/pack_head.h"
#include "base/check.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/progress.h"
#include "checkpoint/gguf_files.h"
#include "model/pack_file.h"
#include "model/pack_image.h"
#include "model/share.h"
#include "model/weights_slots.h"

/* The files of a folder that a tokenizer reads. */
static const char *const folder_members[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
};
enum { N_FOLDER_MEMBERS = sizeof folder_members / sizeof folder_members[0] };
enum { MAX_MEMBERS = N_FOLDER_MEMBERS + 1 };
#define MEMBER_MAX_BYTES ((size_t)256 << 20)

struct packer {
    const struct model *m; /* opened without weights */
    struct weights_opts wo;
    struct image_shape shape;
    struct pack_file f;
    struct pack_member members[MAX_MEMBERS];
    char *member_bytes[MAX_MEMBERS];
    char *temp;
    int fd;
    struct buf piece; /* pinned: one MiB that is being filled */
    size_t fill;
    uint64_t at;
    size_t sum; /* index of the piece's checksum */
    struct weights_digests digests;
    struct weights_errors errors; /* errors of the matrices converted to 4 bits */
    struct progress progress;
    uint64_t bytes_done;
    struct err *err;
};

static int fault(struct packer *p, int rc)
{
    return err_set(p->err, rc, "%s: %s", p->temp, strerror(-rc));
}

/* --- bytes to the file ------------------------------------------------------------------------ */

static int write_at(struct packer *p, const void *bytes, size_t n, uint64_t at)
{
    int rc = file_write_all(p->fd, bytes, n, (off_t)at);
    return rc == 0 ? 0 : fault(p, rc);
}

static int flush(struct packer *p)
{
    if (p->fill == 0)
        return 0;
    p->f.sums[p->sum++] = checksum64(p->piece.ptr, p->fill);
    int rc = write_at(p, p->piece.ptr, p->fill, p->at);
    p->at += p->fill;
    p->bytes_done += p->fill;
    progress_at(&p->progress, p->bytes_done);
    p->fill = 0;
    return rc;
}

/* Appends n bytes of device memory; src NULL: zeros. */
static int put(struct packer *p, struct stream *s, const void *src, size_t n)
{
    for (size_t done = 0; done < n;) {
        size_t k = MIN(PACK_SUM_BYTES - p->fill, n - done);
        uint8_t *to = (uint8_t *)p->piece.ptr + p->fill;
        int rc = 0;
        if (src == NULL)
            memset(to, 0, k);
        else if ((rc = stream_copy(s, to, (const uint8_t *)src + done, k)) == 0)
            rc = stream_sync(s);
        if (rc != 0)
            return err_set(p->err, rc, "reading packed weights back: %s", err_name(rc));
        p->fill += k;
        done += k;
        if (p->fill == PACK_SUM_BYTES && (rc = flush(p)) != 0)
            return rc;
    }
    return 0;
}

/* Writes a stage's image, rank by rank, from loaded weights. expert: for IMAGE_EXPERT, whose
 * matrices lie behind those of the expert before; else 0. */
static int put_image(struct packer *p, size_t part, enum image_kind kind, struct weights *w,
                     int layer, int expert)
{
    struct image im;
    struct device *d = p->shape.dev;
    image_make(&im, &p->shape, kind, layer);
    CHECK(p->f.parts[part].bytes == im.bytes * (size_t)d->n_ranks);
    CHECK(p->fill == 0);
    p->sum = p->f.parts[part].first_sum;
    p->at = p->f.parts[part].at;
    int rc = 0;
    for (int rank = 0; rank < d->n_ranks; rank++) {
        size_t at = 0;
        for (int i = 0; rc == 0 && i < im.n; i++) {
            const struct image_item *it = &im.items[i];
            const void *src = image_source(it->slot, w, &w->layers[layer]);
            int stage = share_stage(p->shape.cfg, it->slot, layer, d->n_stages);
            size_t own = it->bytes;
            rc = put(p, NULL, NULL, it->offset - at);
            if (rc == 0)
                rc = put(p, rank_stream(p->wo.s, stage, rank),
                         (const uint8_t *)rank_address(d, src, rank) + (size_t)expert * own,
                         own);
            at = it->offset + own;
        }
        if (rc == 0)
            rc = put(p, NULL, NULL, im.bytes - at);
    }
    return rc == 0 ? flush(p) : rc;
}

/* Makes the written bytes durable and drops them from the page cache. */
static int settle(struct packer *p)
{
    if (fdatasync(p->fd) != 0)
        return fault(p, -errno);
    (void)posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

static int put_outside(struct packer *p)
{
    struct weights w;
    struct weights_opts o = p->wo;
    o.part = WEIGHTS_OUTSIDE;
    o.digests = &p->digests;
    o.errors = &p->errors;
    int rc = weights_load(&w, p->m->source, &p->m->cfg, &o, p->err);
    if (rc != 0)
        return rc;
    rc = put_image(p, PACK_TABLES, IMAGE_TABLES, &w, 0, 0);
    if (rc == 0)
        rc = put_image(p, PACK_HEAD, IMAGE_HEAD, &w, 0, 0);
    weights_unload(&w, p->wo.dev);
    return rc == 0 ? settle(p) : rc;
}

static int put_layer(struct packer *p, int l)
{
    struct weights w;
    struct weights_opts o = p->wo;
    o.part = WEIGHTS_OF_LAYER;
    o.layer = l;
    o.digests = &p->digests;
    o.errors = &p->errors;
    int rc = weights_load(&w, p->m->source, &p->m->cfg, &o, p->err);
    if (rc != 0)
        return rc;
    rc = put_image(p, pack_streamed_part(l), IMAGE_STREAMED, &w, l, 0);
    if (rc == 0)
        rc = put_image(p, pack_kept_part(l), IMAGE_KEPT, &w, l, 0);
    int n_experts = config_has_experts(&p->m->cfg, l) ? p->m->cfg.n_experts : 0;
    for (int e = 0; rc == 0 && e < n_experts; e++)
        rc = put_image(p, pack_expert_part(&p->m->cfg, l, e), IMAGE_EXPERT, &w, l, e);
    weights_unload(&w, p->wo.dev);
    return rc == 0 ? settle(p) : rc;
}

/* --- small files beside the weights --------------------------------------------------------------
 */

static void add_member(struct packer *p, const char *name, char *bytes, size_t n,
                       uint64_t file_bytes)
{
    CHECK(p->f.n_members < MAX_MEMBERS);
    p->member_bytes[p->f.n_members] = bytes;
    p->members[p->f.n_members++] = (struct pack_member){
        .name = name, .bytes = n, .sum = checksum64(bytes, n), .file_bytes = file_bytes};
}

/* Adds the configuration, and checks that reading it back gives an equal one. */
static int add_config(struct packer *p)
{
    struct model_config again;
    char *text = config_write(&p->m->cfg);
    add_member(p, "config.json", text, strlen(text), 0);
    int rc = config_parse(&again, text, strlen(text), "config.json", p->err);
    if (rc != 0)
        return err_wrap(p->err, "%s: its configuration cannot be packed", p->m->source);
    char *a = config_state_text(&p->m->cfg), *b = config_state_text(&again);
    bool same = strcmp(a, b) == 0;
    free(a);
    free(b);
    return same ? 0
                : err_set(
                      p->err, ERR_UNSUPPORTED,
                      "%s: its configuration cannot be packed: it reads back differently",
                      p->m->source);
}

/* Adds the beginning of a GGUF file: its metadata, with the tokenizer, lies before the tensors. */
static int add_gguf(struct packer *p)
{
    struct gguf_files files;
    int rc = gguf_files_open(&files, p->m->source, false, p->err);
    if (rc == 0) {
        const struct gguf_file *g = &files.files[0];
        size_t n = (size_t)MIN(g->g.data_begin, g->n_bytes);
        char *bytes = xmalloc(n);
        rc = file_read_at(g->fd, bytes, n, 0);
        if (rc == 0)
            add_member(p, "tokenizer.gguf", bytes, n, g->n_bytes);
        else
            free(bytes);
        if (rc != 0)
            err_set(p->err, rc, "%s: %s", g->path, strerror(-rc));
    }
    gguf_files_close(&files);
    return rc;
}

static int add_members(struct packer *p)
{
    int rc = add_config(p);
    if (rc != 0 || strncmp(p->m->source, "synth:", 6) == 0)
        return rc;
    if (gguf_files_is(p->m->source))
        return add_gguf(p);
    for (int i = 0; rc == 0 && i < N_FOLDER_MEMBERS; i++) {
        char *bytes;
        size_t n;
        struct err why = {0};
        rc = model_file_read(p->m->source, folder_members[i], MEMBER_MAX_BYTES, &bytes, &n,
                             &why);
        if (rc == 0)
            add_member(p, folder_members[i], bytes, n, 0);
        else if (rc != -ENOENT)
            return err_set(p->err, rc, "%s", why.msg);
        rc = 0;
    }
    return rc;
}

/* --- the file --------------------------------------------------------------------------------- */

/* Fills in types and sizes, which are known without the weights. */
static int describe(struct packer *p)
{
    struct weights_info info = {0};
    const struct model *m = p->m;
    int rc = weights_describe(&info, m->source, &m->cfg, m->dtype, p->err);
    if (rc == 0) {
        enum weights_held h = p->wo.held;
        p->f.dtype = h == WEIGHTS_F32     ? DTYPE_F32
                     : h == WEIGHTS_BF16  ? DTYPE_BF16
                     : h == WEIGHTS_Q8    ? DTYPE_Q8
                     : h == WEIGHTS_Q4    ? DTYPE_Q4
                     : h == WEIGHTS_BF16R ? DTYPE_BF16R
                                          : info.dtype;
        p->f.file_dtype = info.quantised ? DTYPE_BF16 : info.dtype;
        p->f.types = info.types;
        weights_table_types(&info, p->f.dtype, p->f.table_dtype);
        matrix_types_make(&p->f.matrices, p->f.dtype, info.impl, &m->cfg);
    }
    weights_info_deinit(&info);
    p->f.source = m->source;
    p->f.note = m->note;
    p->f.n_layers = m->cfg.n_layers;
    p->f.any_context = strncmp(m->source, "synth:", 6) == 0;
    image_layout_name(p->wo.s, p->f.layout, sizeof p->f.layout);
    p->shape = (struct image_shape){
        .cfg = &m->cfg,
        .dev = p->wo.dev,
        .types = &p->f.matrices,
        .table_dtype = {p->f.table_dtype[0], p->f.table_dtype[1]}};
    return rc;
}

static void lay_out(struct packer *p)
{
    struct image im[N_IMAGE_KINDS];
    size_t n_ranks = (size_t)p->wo.dev->n_ranks;
    for (int k = 0; k < N_IMAGE_KINDS; k++)
        image_make(&im[k], &p->shape, (enum image_kind)k, 0);
    p->f.members = p->members;
    p->f.n_parts = pack_n_parts(&p->m->cfg);
    p->f.parts = xcalloc(p->f.n_parts, sizeof *p->f.parts);
    p->f.parts[PACK_TABLES].bytes = n_ranks * im[IMAGE_TABLES].bytes;
    p->f.parts[PACK_HEAD].bytes = n_ranks * im[IMAGE_HEAD].bytes;
    for (int l = 0; l < p->f.n_layers; l++) {
        image_make(&im[IMAGE_STREAMED], &p->shape, IMAGE_STREAMED, l);
        image_make(&im[IMAGE_KEPT], &p->shape, IMAGE_KEPT, l);
        p->f.parts[pack_streamed_part(l)].bytes = n_ranks * im[IMAGE_STREAMED].bytes;
        p->f.parts[pack_kept_part(l)].bytes = n_ranks * im[IMAGE_KEPT].bytes;
        if (!config_has_experts(&p->m->cfg, l))
            continue;
        image_make(&im[IMAGE_EXPERT], &p->shape, IMAGE_EXPERT, l);
        for (int e = 0; e < p->m->cfg.n_experts; e++)
            p->f.parts[pack_expert_part(&p->m->cfg, l, e)].bytes = im[IMAGE_EXPERT].bytes;
    }
    pack_head_lay_out(&p->f);
    p->f.sums = xcalloc(p->f.n_sums + 1, sizeof *p->f.sums);
}

static int make_room(struct packer *p, const char *path)
{
    struct statvfs st;
    if (access(path, F_OK) == 0)
        return err_set(p->err, -EEXIST, "%s: already exists; choose another name", path);
    p->fd = open(p->temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (p->fd < 0 || fstatvfs(p->fd, &st) != 0)
        return fault(p, -errno);
    uint64_t have = (uint64_t)st.f_bavail * st.f_frsize;
    if (have >= p->f.file_bytes)
        return 0;
    return err_set(p->err, -ENOSPC,
                   "%s: the packed model has %" PRIu64 " MB, %" PRIu64 " MB are free", path,
                   p->f.file_bytes / 1000000, have / 1000000);
}

/* Writes the head, then renames the file to its final name. */
static int publish(struct packer *p, const char *path)
{
    uint8_t *head;
    size_t n;
    p->f.hash = weights_digests_hash(&p->digests);
    pack_head_encode(&p->f, (const char *const *)p->member_bytes, &head, &n);
    CHECK(n == p->f.parts[0].at);
    int rc = write_at(p, head, n, 0);
    free(head);
    if (rc == 0 && ftruncate(p->fd, (off_t)p->f.file_bytes) != 0)
        rc = fault(p, -errno);
    if (rc == 0 && fsync(p->fd) != 0)
        rc = fault(p, -errno);
    if (rc == 0 && rename(p->temp, path) != 0)
        rc = err_set(p->err, -errno, "%s: %s", path, strerror(errno));
    if (rc != 0)
        return rc;
    char *dir = xstrdup(path), *slash = strrchr(dir, '/');
    if (slash != NULL)
        slash[slash == dir] = 0;
    int fd = open(slash != NULL ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        rc = err_set(p->err, -errno, "%s: %s", dir, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(dir);
    return rc;
}

static int write_all(struct packer *p, const char *path)
{
    int rc = add_members(p);
    if (rc == 0)
        rc = describe(p);
    if (rc == 0) {
        lay_out(p);
        rc = make_room(p, path);
    }
    if (rc == 0)
        rc = buf_alloc(p->wo.dev, MEM_PINNED, PACK_SUM_BYTES, &p->piece, p->err);
    progress_begin(&p->progress, "packing weights", PROGRESS_BYTES, p->f.file_bytes);
    if (rc == 0)
        rc = put_outside(p);
    for (int l = 0; rc == 0 && l < p->f.n_layers; l++)
        rc = put_layer(p, l);
    progress_end(&p->progress);
    return rc == 0 ? publish(p, path) : rc;
}

static void packer_deinit(struct packer *p, bool failed)
{
    if (p->fd >= 0) {
        close(p->fd);
        if (failed)
            unlink(p->temp);
    }
    buf_free(p->wo.dev, &p->piece);
    for (size_t i = 0; i < p->f.n_members; i++)
        free(p->member_bytes[i]);
    free(p->f.parts);
    free(p->f.sums);
    weights_digests_deinit(&p->digests);
    matrix_types_deinit(&p->f.matrices);
    free(p->errors.of);
    free(p->temp);
}

int pack_write(const char *source, const char *path, struct device *dev,
               const char *weights, struct pack_result *out, struct err *err)
{
    struct err local;
    struct model *m = NULL;
    struct packer p = {.fd = -1, .err = err != NULL ? err : &local};
    struct stream *s = NULL;
    p.temp = xasprintf("%s.tmp", path);
    if (pack_file_is(source)) {
        free(p.temp);
        return err_set(err, ERR_USAGE, "%s: is already packed", source);
    }
    int rc = stream_create(dev, STREAM_COMPUTE, &s, p.err);
    if (rc == 0)
        rc = model_describe(source, &(struct model_opts){.dev = dev, .weights = weights},
                            &m, &p.wo.held, p.err);
    if (rc == 0) {
        p.m = m;
        p.wo.dev = dev;
        p.wo.s = s;
        p.wo.synth_dtype = m->dtype;
        rc = share_check(&m->cfg, dev->n_ranks, dev->n_stages, p.err);
    }
    if (rc == 0)
        rc = write_all(&p, path);
    if (rc == 0) {
        *out = (struct pack_result){.bytes = p.f.file_bytes,
                                    .n_layers = p.f.n_layers,
                                    .dtype = p.f.dtype,
                                    .errors = p.errors,
                                    .hash = p.f.hash};
        p.errors = (struct weights_errors){0};
        snprintf(out->note, sizeof out->note, "%s", m->note);
        memcpy(out->layout, p.f.layout, sizeof out->layout);
    }
    packer_deinit(&p, rc != 0);
    stream_destroy(s);
    model_close(m);
    return rc;
}
