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
#include "model/weights_experts.h"
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
    /* One for each part that is no expert, then one for each layer with experts, which share it. */
    struct image *images;
    struct buf *mem; /* device memory; empty if a part is not held */
    size_t n_images;
    /* What may stay on the disk: layers, or in a model with experts these; and the largest. */
    int n_units;
    size_t unit_bytes;
    int n_resident;             /* number of units held; if all are, nothing is streamed */
    struct layer_source source; /* source of the units that do not stay in memory */
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

static size_t first_expert(const struct weights_packed *p)
{
    return pack_streamed_part(p->cfg.n_layers);
}

static enum image_kind kind_of_image(const struct weights_packed *p, size_t i)
{
    if (i < PACK_LAYERS)
        return i == PACK_TABLES ? IMAGE_TABLES : IMAGE_HEAD;
    if (i >= first_expert(p))
        return IMAGE_EXPERT;
    return (i - PACK_LAYERS) % 2 == 0 ? IMAGE_STREAMED : IMAGE_KEPT;
}

static int layer_of_image(const struct weights_packed *p, size_t i)
{
    if (i >= first_expert(p))
        return p->cfg.n_dense_layers + (int)(i - first_expert(p));
    return i < PACK_LAYERS ? 0 : (int)((i - PACK_LAYERS) / 2);
}

/* Returns the image of a part, and which of the experts that share it. */
static size_t image_of_part(const struct weights_packed *p, size_t part, size_t *expert)
{
    size_t first = first_expert(p), each = (size_t)MAX(p->cfg.n_experts, 1);
    *expert = part < first ? 0 : (part - first) % each;
    return part < first ? part : first + (part - first) / each;
}

/* Returns how many parts share an image. */
static size_t n_sharing(const struct weights_packed *p, size_t i)
{
    return i < first_expert(p) ? 1 : (size_t)p->cfg.n_experts;
}

/* Returns the stage that holds an image: all of its slots are on one stage. */
static int stage_of_image(const struct loader *ld, size_t i)
{
    const struct image *im = &ld->p->images[i];
    enum slot s = im->n > 0 ? im->items[0].slot : SLOT_EMBED;
    return share_stage(ld->p->shape.cfg, s, layer_of_image(ld->p, i), ld->o->dev->n_stages);
}

static bool streams(const struct weights_packed *p)
{
    return p->n_resident < p->n_units;
}

/* Returns whether an image stays in memory. */
static bool is_held(const struct weights_packed *p, size_t i)
{
    enum image_kind kind = kind_of_image(p, i);
    if (!streams(p) || kind != (p->cfg.n_experts > 0 ? IMAGE_EXPERT : IMAGE_STREAMED))
        return true;
    return kind == IMAGE_STREAMED &&
           weights_stays(layer_of_image(p, i), p->n_resident, p->n_units);
}

/* Returns the memory of a part, or NULL if it is not held. */
static void *memory_of_part(const struct weights_packed *p, size_t part)
{
    size_t e, i = image_of_part(p, part, &e);
    return is_held(p, i) ? (uint8_t *)p->mem[i].ptr + e * p->images[i].bytes : NULL;
}

/* Makes the images.  The types of matrices and of the embeddings come from the file and
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
    bool has_experts = p->cfg.n_experts > 0;
    size_t n_layers = (size_t)(p->cfg.n_layers - p->cfg.n_dense_layers);
    p->n_images = first_expert(p) + (has_experts ? n_layers : 0);
    p->n_units = has_experts ? (int)(pack_n_parts(&p->cfg) - first_expert(p))
                             : p->f.n_layers;
    p->images = xcalloc(p->n_images, sizeof *p->images);
    p->mem = xcalloc(p->n_images, sizeof *p->mem);
    for (size_t i = 0; i < p->n_images; i++) {
        enum image_kind kind = kind_of_image(p, i);
        image_make(&p->images[i], &p->shape, kind, layer_of_image(p, i));
        if (kind == (has_experts ? IMAGE_EXPERT : IMAGE_STREAMED))
            p->unit_bytes = MAX(p->unit_bytes, p->images[i].bytes);
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
    size_t e;
    bool fits = f->n_parts == pack_n_parts(&ld->p->cfg);
    for (size_t i = 0; fits && i < f->n_parts; i++)
        fits = f->parts[i].bytes == ld->p->images[image_of_part(ld->p, i, &e)].bytes *
                                        (size_t)ld->o->dev->n_ranks;
    return fits ? 0
                : err_set(
                      ld->err, ERR_MISMATCH,
                      "%s: its parts have other sizes than its configuration says: it was "
                      "packed by another version; pack the model again",
                      f->path);
}

/* Asks the caller how many layers, or experts, stay resident. */
static int share_memory(struct loader *ld)
{
    struct weights_packed *p = ld->p;
    bool has_experts = p->cfg.n_experts > 0;
    struct weights_sizes z = {.unit = p->unit_bytes,
                              .n_units = p->n_units,
                              .n_slots = has_experts ? p->cfg.n_experts_used + 1
                                                     : N_SLOTS_OF_RING,
                              .units = has_experts ? "experts" : "layers"};
    for (size_t i = 0; i < p->n_images; i++)
        if (kind_of_image(p, i) != (has_experts ? IMAGE_EXPERT : IMAGE_STREAMED))
            z.kept += p->images[i].bytes;
    p->n_resident = p->n_units;
    if (ld->o->share == NULL)
        return 0;
    int rc = ld->o->share(ld->o->share_arg, &z, &p->n_resident, ld->err);
    if (rc == 0 && streams(p) && p->dev->n_stages * p->dev->n_ranks > 1)
        rc = err_set(ld->err, ERR_UNSUPPORTED,
                     "streamed weights need one process: remove --weights-memory, or "
                     "--tensor-parallel and --pipeline-parallel");
    if (rc == 0 && streams(p) && !has_experts && config_is_hybrid(&p->cfg))
        rc = err_set(ld->err, ERR_UNSUPPORTED,
                     "models with recurrent layers are not streamed: remove "
                     "--weights-memory");
    return rc;
}

/* Returns the buffers of the units that do not stay: of two layers, or a cache of experts. */
static int n_slots(const struct weights_packed *p)
{
    return p->cfg.n_experts > 0 ? p->n_resident + p->cfg.n_experts_used + 1
                                : N_SLOTS_OF_RING;
}

static int allocate(struct loader *ld)
{
    size_t stage_bytes[MAX_STAGES] = {0};
    struct weights_packed *p = ld->p;
    int n_stages = ld->o->dev->n_stages, rc = 0;
    for (size_t i = 0; i < p->n_images; i++)
        if (is_held(p, i))
            stage_bytes[stage_of_image(ld, i)] += p->images[i].bytes * n_sharing(p, i);
    if (streams(p))
        stage_bytes[0] += (size_t)n_slots(p) * p->unit_bytes;
    for (int k = 0; k < n_stages; k++)
        ld->w->bytes += stage_bytes[k];
    if (ld->o->reserve != NULL)
        rc = ld->o->reserve(ld->o->reserve_arg, stage_bytes, (int)p->n_images + 1, ld->err);
    for (size_t i = 0; rc == 0 && i < p->n_images; i++) {
        const struct image *im = &p->images[i];
        struct layer_weights *lw = &ld->w->layers[layer_of_image(p, i)];
        if (im->bytes == 0 || !is_held(p, i))
            continue;
        rc = stage_alloc(ld->o->dev, stage_of_image(ld, i), im->bytes * n_sharing(p, i),
                         &p->mem[i], ld->err);
        if (rc == 0)
            image_bind(im, &p->shape, &p->mem[i], ld->w, lw);
        if (rc == 0 && kind_of_image(p, i) == IMAGE_EXPERT)
            lw->expert_step = im->bytes;
    }
    return rc == 0 ? 0 : err_wrap(ld->err, "weights of %s", p->f.path);
}

/* Copies a part from pinned memory to the device, each rank's image to its rank. */
static int upload(struct loader *ld, size_t part)
{
    const struct image *im = &ld->p->images[part]; /* no such device has experts */
    int rc = 0, stage = stage_of_image(ld, part);
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

/* Counts the part that a job has read. Returns the job's code, with its message in ld->err. */
static int end_job(struct loader *ld, const struct pack_job *j)
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
            void *dst = memory_of_part(ld->p, next);
            if (dst != NULL) {
                busy[i] = pack_reader_begin(&ld->reader, &jobs[i], next, dst);
                n_busy += busy[i];
            }
            next++;
        }
        if (n_busy == 0)
            continue;
        rc = pack_reader_step(&ld->reader, -1, &n, &done, ld->err);
        if (rc == 0 && done != NULL) {
            busy[done - jobs] = false;
            n_busy--;
            rc = end_job(ld, done);
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

/* Starts the source of the units that do not stay. */
static int start_source(struct loader *ld)
{
    struct weights_packed *p = ld->p;
    bool has_experts = p->cfg.n_experts > 0;
    const struct weights_stream_opts o = {
        .f = &p->f,
        .shape = &p->shape,
        .images = has_experts ? p->images + first_expert(p) : p->images,
        .slot_bytes = p->unit_bytes,
        .w = ld->w,
        .io = ld->o->io,
        .n_resident = p->n_resident,
        .n_slots = n_slots(p),
        .stuck_ns = ld->o->stuck_ns > 0 ? ld->o->stuck_ns : STUCK_NS,
        .load_bytes = ld->bytes_done,
        .load_ns = ld->load_ns};
    int rc = has_experts       ? weights_experts_open(&o, &p->source, ld->err)
             : p->dev->unified ? weights_stream_open(&o, &p->source, ld->err)
                               : weights_pinned_open(&o, &p->source, ld->err);
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
    for (size_t i = 0; i < p->n_images; i++)
        buf_free(p->dev, &p->mem[i]);
    free(p->mem);
    free(p->images);
    pack_file_close(&p->f);
    free(p);
    free(w->layers);
    *w = (struct weights){0};
}
