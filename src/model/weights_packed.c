/* weights_packed.c - see weights_packed.h. */
#include "model/weights_packed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/progress.h"
#include "model/pack_image.h"
#include "model/pack_read.h"
#include "model/share.h"
#include "model/weights_pinned.h"
#include "model/weights_stream.h"

/* Slots of the ring: one layer computes while another arrives. */
enum { N_SLOTS_OF_RING = 2 };
#define STUCK_NS ((int64_t)30 * 1000000000)

struct weights_packed {
    struct pack_file f;
    struct device *dev;
    struct model_config cfg;
    struct image_shape shape;
    struct image *images;  /* [f.n_parts] */
    size_t streamed_bytes; /* size of the largest IMAGE_STREAMED */
    int n_resident;  /* number of layers held whole; if all are, nothing is streamed */
    struct buf *mem; /* [f.n_parts] device memory; empty if a part is not held */
    struct layer_source source; /* source of the layers that do not stay in memory */
};

struct loader {
    struct weights *w;
    struct weights_packed *p;
    const struct weights_opts *o;
    struct pack_reader reader;
    struct buf staging; /* pinned; for devices whose memory cannot be read into directly */
    struct progress progress;
    uint64_t bytes_done;
    int64_t load_ns;
    struct err *err;
};

static enum image_kind kind_of_part(size_t part)
{
    if (part < PACK_LAYERS)
        return part == PACK_TABLES ? IMAGE_TABLES : IMAGE_HEAD;
    return (part - PACK_LAYERS) % 2 == 0 ? IMAGE_STREAMED : IMAGE_KEPT;
}

static int layer_of_part(size_t part)
{
    return part < PACK_LAYERS ? 0 : (int)((part - PACK_LAYERS) / 2);
}

/* Returns the stage that holds a part: all slots of the part are on one stage. */
static int stage_of_part(const struct loader *ld, size_t part)
{
    const struct image *im = &ld->p->images[part];
    enum slot s = im->n > 0 ? im->items[0].slot : SLOT_EMBED;
    return share_stage(ld->p->shape.cfg, s, layer_of_part(part), ld->o->dev->n_stages);
}

static bool streams(const struct weights_packed *p)
{
    return p->n_resident < p->f.n_layers;
}

/* Returns whether a part stays in memory. */
static bool is_held(const struct weights_packed *p, size_t part)
{
    return kind_of_part(part) != IMAGE_STREAMED || !streams(p) ||
           weights_stays(layer_of_part(part), p->n_resident, p->f.n_layers);
}

/* Makes the image of each part.  The types of matrices and of the embeddings come from the file and
 * must fit its configuration. */
static int make_images(struct loader *ld)
{
    struct weights_packed *p = ld->p;
    enum dtype table = p->f.table_dtype[0];
    bool whole = !dtype_has_blocks(table) || p->cfg.n_embd % q4_block_weights(table) == 0;
    if (p->f.n_layers != p->cfg.n_layers || !whole ||
        !matrix_types_fit(&p->f.matrices, &p->cfg))
        return err_set(ld->err, ERR_MISMATCH,
                       "%s: the types of its matrices do not fit its configuration: pack "
                       "the model again",
                       p->f.path);
    p->images = xcalloc(p->f.n_parts, sizeof *p->images);
    for (size_t i = 0; i < p->f.n_parts; i++) {
        int l = layer_of_part(i);
        image_make(&p->images[i], &p->shape, kind_of_part(i), l);
        if (kind_of_part(i) == IMAGE_STREAMED && p->images[i].bytes > p->streamed_bytes)
            p->streamed_bytes = p->images[i].bytes;
    }
    return 0;
}

/* Checks that the file suits this device, and has the sizes that this program computes from its
 * configuration. */
static int check_fit(struct loader *ld)
{
    const struct pack_file *f = &ld->p->f;
    char layout[PACK_LAYOUT_BYTES];
    image_layout_name(ld->o->s, layout, sizeof layout);
    if (strcmp(layout, f->layout) != 0)
        return err_set(ld->err, ERR_MISMATCH,
                       "%s: is packed for '%s', and this device needs '%s': pack the model "
                       "again, for this device",
                       f->path, f->layout, layout);
    bool fits = f->n_layers == ld->p->shape.cfg->n_layers;
    for (size_t i = 0; fits && i < f->n_parts; i++)
        fits = f->parts[i].bytes == ld->p->images[i].bytes * (size_t)ld->o->dev->n_ranks;
    return fits ? 0
                : err_set(
                      ld->err, ERR_MISMATCH,
                      "%s: its parts have other sizes than its configuration says: it was "
                      "packed by another version; pack the model again",
                      f->path);
}

/* Asks the caller how many layers stay resident. */
static int share_memory(struct loader *ld)
{
    struct weights_packed *p = ld->p;
    struct weights_sizes z = {
        .layer = p->streamed_bytes, .n_layers = p->f.n_layers, .n_slots = N_SLOTS_OF_RING};
    for (size_t i = 0; i < p->f.n_parts; i++)
        if (kind_of_part(i) != IMAGE_STREAMED)
            z.kept += p->images[i].bytes;
    p->n_resident = p->f.n_layers;
    if (ld->o->share == NULL)
        return 0;
    int rc = ld->o->share(ld->o->share_arg, &z, &p->n_resident, ld->err);
    if (rc == 0 && streams(p) && p->dev->n_stages * p->dev->n_ranks > 1)
        rc = err_set(ld->err, ERR_UNSUPPORTED,
                     "streamed weights need one process: remove --weights-memory, or "
                     "--tensor-parallel and --pipeline-parallel");
    if (rc == 0 && streams(p) && config_is_hybrid(&p->cfg))
        rc = err_set(ld->err, ERR_UNSUPPORTED,
                     "models with recurrent layers are not streamed: remove "
                     "--weights-memory");
    return rc;
}

static int allocate(struct loader *ld)
{
    size_t stage_bytes[MAX_STAGES] = {0};
    struct weights_packed *p = ld->p;
    int n_stages = ld->o->dev->n_stages, rc = 0;
    for (size_t i = 0; i < p->f.n_parts; i++)
        if (is_held(p, i))
            stage_bytes[stage_of_part(ld, i)] += p->images[i].bytes;
    if (streams(p))
        stage_bytes[0] += N_SLOTS_OF_RING * p->streamed_bytes;
    for (int k = 0; k < n_stages; k++)
        ld->w->bytes += stage_bytes[k];
    if (ld->o->reserve != NULL)
        rc = ld->o->reserve(ld->o->reserve_arg, stage_bytes, (int)p->f.n_parts + 1,
                            ld->err);
    for (size_t i = 0; rc == 0 && i < p->f.n_parts; i++) {
        const struct image *im = &p->images[i];
        if (im->bytes == 0 || !is_held(p, i))
            continue;
        rc = stage_alloc(ld->o->dev, stage_of_part(ld, i), im->bytes, &p->mem[i], ld->err);
        if (rc == 0)
            image_bind(im, &p->shape, &p->mem[i], ld->w, &ld->w->layers[layer_of_part(i)]);
    }
    return rc == 0 ? 0 : err_wrap(ld->err, "weights of %s", p->f.path);
}

/* Copies a part from pinned memory to the device, each rank's image to its rank. */
static int upload(struct loader *ld, size_t part)
{
    const struct image *im = &ld->p->images[part];
    int rc = 0, stage = stage_of_part(ld, part);
    for (int rank = 0; rc == 0 && rank < ld->o->dev->n_ranks; rank++)
        rc = stream_copy(rank_stream(ld->o->s, stage, rank),
                         rank_address(ld->o->dev, ld->p->mem[part].ptr, rank),
                         (uint8_t *)ld->staging.ptr + (size_t)rank * im->bytes, im->bytes);
    if (rc == 0)
        rc = stream_sync(ld->o->s);
    return rc == 0 ? 0 : err_set(ld->err, rc, "weights: copying up: %s", err_name(rc));
}

static int make_staging(struct loader *ld)
{
    uint64_t most = 0;
    for (size_t i = 0; i < ld->p->f.n_parts; i++)
        most = MAX(ld->p->f.parts[i].bytes, most);
    return buf_alloc(ld->o->dev, MEM_PINNED, (size_t)most, &ld->staging, ld->err);
}

static int take(struct loader *ld, const struct pack_job *j)
{
    ld->bytes_done += ld->p->f.parts[j->part].bytes;
    progress_at(&ld->progress, ld->bytes_done);
    if (j->rc != 0 && ld->err != NULL)
        *ld->err = j->err;
    return j->rc;
}

/* Keeps two parts in flight, so that the disk never waits for this thread. */
static int read_direct(struct loader *ld)
{
    const struct pack_file *f = &ld->p->f;
    struct pack_job jobs[2] = {{0}, {0}}, *done;
    size_t next = 0;
    int n_busy = 0, rc = 0;
    bool busy[2] = {false, false};
    unsigned n;
    while (rc == 0 && (next < f->n_parts || n_busy > 0)) {
        for (int i = 0; i < 2 && next < f->n_parts; i++) {
            if (busy[i])
                continue;
            if (!is_held(ld->p, next)) {
                next++;
                continue;
            }
            busy[i] = pack_reader_begin(&ld->reader, &jobs[i], next, ld->p->mem[next].ptr);
            n_busy += busy[i];
            next++;
        }
        if (n_busy == 0)
            continue;
        rc = pack_reader_step(&ld->reader, -1, &n, &done, ld->err);
        if (rc == 0 && done != NULL) {
            busy[done - jobs] = false;
            n_busy--;
            rc = take(ld, done);
        }
    }
    pack_reader_close(&ld->reader); /* closed before the memory into which it reads */
    pack_job_deinit(&jobs[0]);
    pack_job_deinit(&jobs[1]);
    return rc;
}

static int read_staged(struct loader *ld)
{
    int rc = make_staging(ld);
    for (size_t i = 0; rc == 0 && i < ld->p->f.n_parts; i++) {
        if (ld->p->f.parts[i].bytes == 0 || !is_held(ld->p, i))
            continue;
        rc = pack_reader_read(&ld->reader, i, ld->staging.ptr, ld->err);
        if (rc == 0)
            rc = upload(ld, i);
        ld->bytes_done += ld->p->f.parts[i].bytes;
        progress_at(&ld->progress, ld->bytes_done);
    }
    pack_reader_close(&ld->reader);
    buf_free(ld->o->dev, &ld->staging);
    return rc;
}

static int read_all(struct loader *ld)
{
    int64_t t0 = clock_now_ns();
    progress_begin(&ld->progress, "loading weights", PROGRESS_BYTES, ld->p->f.file_bytes);
    int rc = pack_reader_open(&ld->reader, &ld->p->f, ld->o->io, ld->err);
    if (rc != 0)
        pack_reader_close(&ld->reader);
    else
        rc = ld->o->dev->unified ? read_direct(ld) : read_staged(ld);
    progress_end(&ld->progress);
    ld->load_ns = clock_now_ns() - t0;
    return rc;
}

/* Starts the source of the layers that do not stay. */
static int start_source(struct loader *ld)
{
    struct weights_packed *p = ld->p;
    int64_t stuck_ns = ld->o->stuck_ns > 0 ? ld->o->stuck_ns : STUCK_NS;
    int rc;
    if (p->dev->unified)
        rc = weights_stream_open(
            &(struct weights_stream_opts){.f = &p->f,
                                          .shape = &p->shape,
                                          .images = p->images,
                                          .slot_bytes = p->streamed_bytes,
                                          .w = ld->w,
                                          .io = ld->o->io,
                                          .n_resident = p->n_resident,
                                          .n_slots = N_SLOTS_OF_RING,
                                          .stuck_ns = stuck_ns,
                                          .load_bytes = ld->bytes_done,
                                          .load_ns = ld->load_ns},
            &p->source, ld->err);
    else
        rc = weights_pinned_open(
            &(struct weights_pinned_opts){.f = &p->f,
                                          .shape = &p->shape,
                                          .images = p->images,
                                          .slot_bytes = p->streamed_bytes,
                                          .w = ld->w,
                                          .io = ld->o->io,
                                          .n_resident = p->n_resident,
                                          .n_slots = N_SLOTS_OF_RING},
            &p->source, ld->err);
    if (rc == 0)
        ld->w->source = &p->source;
    return rc;
}

int weights_packed_load(struct weights *out, const char *source,
                        const struct model_config *cfg, const struct weights_opts *o,
                        struct err *err)
{
    struct err local;
    struct weights_packed *p = xcalloc(1, sizeof *p);
    struct loader ld = {.w = out, .p = p, .o = o, .err = err != NULL ? err : &local};
    CHECK(o->part == WEIGHTS_ALL);
    *out = (struct weights){.packed = p,
                            .layers = xcalloc((size_t)cfg->n_layers, sizeof *out->layers)};
    p->dev = o->dev;
    p->cfg = *cfg; /* the source needs it until it is closed */
    int rc = pack_file_open(&p->f, source, ld.err);
    if (rc == 0) {
        p->mem = xcalloc(p->f.n_parts, sizeof *p->mem);
        out->dtype = p->f.dtype;
        out->matrices = &p->f.matrices;
        out->file_dtype = p->f.file_dtype;
        out->types = p->f.types;
        out->hash = p->f.hash;
        p->shape = (struct image_shape){
            .cfg = &p->cfg,
            .dev = o->dev,
            .types = &p->f.matrices,
            .table_dtype = {p->f.table_dtype[0], p->f.table_dtype[1]}};
        rc = share_check(cfg, o->dev->n_ranks, o->dev->n_stages, ld.err);
    }
    if (rc == 0)
        rc = make_images(&ld);
    if (rc == 0)
        rc = check_fit(&ld);
    if (rc == 0)
        rc = share_memory(&ld);
    if (rc == 0)
        rc = allocate(&ld);
    if (rc == 0)
        rc = read_all(&ld);
    if (rc == 0 && streams(p))
        rc = start_source(&ld);
    if (rc != 0)
        weights_unload(out, o->dev);
    return rc;
}

void weights_packed_unload(struct weights *w)
{
    struct weights_packed *p = w->packed;
    if (w->source != NULL)
        w->source->close(w->source->arg);
    for (size_t i = 0; p->mem != NULL && i < p->f.n_parts; i++)
        buf_free(p->dev, &p->mem[i]);
    free(p->mem);
    free(p->images);
    pack_file_close(&p->f);
    free(p);
    free(w->layers);
    *w = (struct weights){0};
}
