/* profile_io.c - measures reads of stored records, and checks a profile.
 *
 * Records are read as restores read them: layer by layer over all chunks, a bounded number in
 * flight, a new read for every one that is done. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "restore/correction.h"
#include "restore/regress.h"
#include "save/saver.h"
#include "restore/profile.h"
#include "restore/profile_reads.h"
#include "restore/restore.h"

_Static_assert(PLATFORM_CHUNK_TOKENS == STORE_CHUNK_TOKENS, "a record's tokens");

enum {
    /* An engine's default, so that staging memory bounds the queue depth as in an engine. */
    STAGING_BYTES = 64 << 20,
    FULL_ROUNDS = 3,
};

/* A sample ends when its records are read. After this time no more reads are submitted. */
#define SAMPLE_NS 100000000
/* No further round of samples of a tier begins after this time. A slow device gets few samples,
 * which are enough to show that it is slow. */
#define TIER_NS 3000000000

/* --- a queue that is kept full ---------------------------------------------------------------- */

int profile_reads_open(struct profile_reads *r, const struct model *m,
                       const struct profile_source *from, int depth, struct err *err)
{
    CHECK(from->n_hits > 0);
    size_t hidden = model_hidden_bytes(m), kv = model_most_kv_bytes(m);
    *r = (struct profile_reads){.m = m, .from = from};
    r->room = store_read_room(from->store, STORE_CHUNK_TOKENS * MAX(hidden, kv));
    size_t most = STAGING_BYTES / r->room;
    r->depth = depth > 0 ? depth : (int)MIN(MAX(most, 4), PROFILE_MAX_DEPTH);
    int rc = buf_alloc(m->dev, MEM_PINNED, (size_t)r->depth * r->room, &r->staging, err);
    if (rc != 0)
        return err_wrap(err, "profile");
    memset(r->staging.ptr, 0, r->staging.bytes); /* takes the page faults now */
    return store_reader_open(from->store, r->depth, r->staging.ptr, r->staging.bytes,
                             &r->reader, err);
}

void profile_reads_close(struct profile_reads *r)
{
    store_reader_close(r->reader);
    buf_free(r->m->dev, &r->staging);
}

/* Finds the next record of this kind, round and round. Returns false if there is none. */
static bool next_record(struct profile_reads *r, enum store_kind kind,
                        struct store_read *read)
{
    int n_layers = config_n_keeping(&r->m->cfg);
    for (long tried = 0; tried <= (long)n_layers * r->from->n_hits; tried++) {
        if (r->chunk == r->from->n_hits) {
            r->chunk = 0;
            r->layer = (r->layer + 1) % n_layers;
        }
        const struct store_hit *h = &r->from->hits[r->chunk++];
        if (store_mask_has(&h->mask, r->layer, kind)) {
            read->hit = h;
            read->layer = r->layer;
            read->kind = kind;
            return true;
        }
    }
    return false;
}

static int submit(struct profile_reads *r, enum store_kind kind, struct store_read *read,
                  void *dst, struct err *err)
{
    *read = (struct store_read){.dst = dst, .dst_bytes = r->room};
    if (!next_record(r, kind, read))
        return err_set(err, ERR_NOT_FOUND, "profile: no record of this kind");
    store_reader_submit(r->reader, &read, 1);
    return 0;
}

/* Returns whether a run that began at t0 may continue. */
static bool has_time(int64_t t0, const atomic_bool *stop)
{
    return stop != NULL ? !atomic_load(stop) : clock_now_ns() - t0 < SAMPLE_NS;
}

int profile_reads_run(struct profile_reads *r, enum store_kind kind, int n, int depth,
                      const atomic_bool *stop, struct profile_tally *out, struct err *err)
{
    struct store_read *done[PROFILE_MAX_DEPTH];
    int started = 0, ended = 0, rc = 0;
    int64_t t0 = clock_now_ns();
    *out = (struct profile_tally){0};
    depth = MIN(depth, r->depth);
    for (;
         rc == 0 && started < n && started < depth && (started == 0 || has_time(t0, stop));
         started++)
        rc = submit(r, kind, &r->slot[started],
                    (uint8_t *)r->staging.ptr + (size_t)started * r->room, err);
    while (rc == 0 && ended < started) {
        int got = 0;
        rc = store_reader_wait(r->reader, done, PROFILE_MAX_DEPTH, &got, err);
        bool more = has_time(t0, stop);
        for (int i = 0; rc == 0 && i < got; i++, ended++) {
            if (done[i]->status == 0) {
                out->n++;
                out->bytes += done[i]->n_bytes;
                r->in_place = !store_read_is_in_dst(done[i]);
                r->last = done[i];
            }
            if (more && started < n) {
                started++;
                rc = submit(r, kind, done[i], done[i]->dst, err);
            }
        }
    }
    out->ns = clock_now_ns() - t0;
    return rc;
}

bool profile_reads_has(struct profile_reads *r, enum store_kind kind)
{
    struct store_read any;
    return next_record(r, kind, &any);
}

/* --- one tier --------------------------------------------------------------------------------- */

struct io_samples {
    struct regress_sample s[64];
    int n;
    uint64_t bytes;
    int64_t ns;
};

/* Adds a sample for the fit of: time = bytes / bandwidth + latency + records * time per record */
static int add_sample(struct profile_reads *r, enum store_kind kind, int n,
                      struct io_samples *v, struct err *err)
{
    struct profile_tally t;
    int rc = profile_reads_run(r, kind, n, PROFILE_MAX_DEPTH, NULL, &t, err);
    if (rc != 0 || t.n == 0)
        return rc;
    double seconds = (double)MAX(t.ns, 100) * 1e-9;
    v->s[v->n++] = (struct regress_sample){.x = {(double)t.bytes, 1, t.n}, .y = seconds};
    v->bytes += t.bytes;
    v->ns += t.ns;
    return 0;
}

/* Fits the tier's speed to the samples. If they do not determine it, all time is bandwidth. */
static void fit_tier(const struct io_samples *v, struct platform_tier *t)
{
    struct regress_fit f;
    bool good = regress(v->s, v->n, 3, &f) && f.coef[0] > 0;
    if (!good) /* the fit gave everything to the time per record */
        good = regress(v->s, v->n, 2, &f) && f.coef[0] > 0;
    if (!good)
        f = (struct regress_fit){.coef = {(double)v->ns * 1e-9 / (double)v->bytes}};
    t->bytes_per_s = 1 / f.coef[0];
    t->latency_s = f.coef[1];
    t->request_s = f.coef[2];
    t->r2 = f.r2;
    t->correction.spread_log2 = log2(1 + fmin(f.rms, 0.4));
}

/* Measures the copy to the device: from staging, or from the memory of a store in memory. */
static int measure_copies(struct profile_reads *r, struct platform_tier *t, struct err *err)
{
    const void *from = r->in_place ? r->last->bytes : r->staging.ptr;
    size_t bytes = r->in_place ? r->last->n_bytes : r->staging.bytes;
    return profile_copies(r->m->dev, from, bytes, t, err);
}

/* Takes a sample of each kind and number of records. */
static int measure_round(struct profile_reads *r, struct io_samples *v, struct err *err)
{
    static const int counts[] = {1, 8, 64, 256};
    int rc = 0;
    for (int kind = 0; kind < STORE_KINDS; kind++)
        for (int i = 0; rc == 0 && profile_reads_has(r, kind) && i < 4; i++)
            rc = add_sample(r, kind, counts[i], v, err);
    return rc;
}

static int measure_tier(struct profile_reads *r, bool full, struct platform_tier *t,
                        struct err *err)
{
    struct io_samples v = {.n = 0};
    int64_t t0 = clock_now_ns();
    int rc = measure_round(r, &v, err);
    for (int k = 1; rc == 0 && full && k < FULL_ROUNDS && clock_now_ns() - t0 < TIER_NS;
         k++)
        rc = measure_round(r, &v, err);
    if (rc != 0)
        return rc;
    if (v.bytes == 0)
        return err_set(err, -EIO, "profile: no stored record could be read");
    fit_tier(&v, t);
    return measure_copies(r, t, err);
}

int profile_tier(struct platform_tier *t, const struct model *m,
                 const struct profile_source *from, enum profile_effort effort,
                 struct err *err)
{
    struct profile_reads r;
    int rc = profile_reads_open(&r, m, from, 0, err);
    if (rc == 0)
        rc = measure_tier(&r, effort == PROFILE_FULL, t, err);
    profile_reads_close(&r);
    return rc;
}

int profile_io(struct platform *p, const struct model *m, struct store *store,
               const struct store_hit *hits, int n_hits, struct err *err)
{
    const struct profile_source from = {.store = store, .hits = hits, .n_hits = n_hits};
    struct platform_tier t = {.name = "store"};
    int rc = profile_tier(&t, m, &from, PROFILE_QUICK, err);
    if (rc == 0) {
        p->tier[0] = t;
        p->n_tiers = 1;
    }
    return rc;
}

/* --- a check of both -------------------------------------------------------------------------- */

enum { CHECK_CHUNKS = 8, CHECK_LEAST_ROWS = 16, CHECK_RUNS = 3 };
/* Time of each part of a check, by the profile. */
static const double CHECK_S = 1e-3;

/* Reads a few records, and corrects the speed of tier 0 if they took much more or less time than
 * the profile says. */
static void check_reads(struct platform *p, const struct model *m, struct store *store,
                        const struct sha256 *fingerprint)
{
    struct store_hit hits[CHECK_CHUNKS];
    struct profile_reads r;
    struct profile_tally t;
    int n_hits = store_sample(store, fingerprint, CHECK_CHUNKS, hits);
    const struct profile_source from = {.store = store, .hits = hits, .n_hits = n_hits};
    struct platform_tier *tier = &p->tier[0];
    bool kv = n_hits > 0 &&
              store_mask_has(&hits[0].mask, config_n_keeping(&m->cfg) - 1, STORE_KV);
    enum store_kind kind = kv ? STORE_KV : STORE_HIDDEN;
    enum platform_record record = kv ? RECORD_KV : RECORD_HIDDEN;
    double each_s = platform_read_s(p, 0, STORE_CHUNK_TOKENS, record);
    int n = (int)fmax(1, fmin(CHECK_CHUNKS, CHECK_S / each_s));
    if (n_hits == 0)
        return;
    if (profile_reads_open(&r, m, &from, n, NULL) == 0 &&
        profile_reads_run(&r, kind, n, n, NULL, &t, NULL) == 0 && t.n == n && !r.in_place) {
        double plain = (double)n * (double)record_bytes(m, 0, kind);
        each_s = platform_stored_read_s(p, 0, STORE_CHUNK_TOKENS, record,
                                        (double)t.bytes / plain); /* some may be packed */
        correction_check(&tier->correction, tier->latency_s + n * each_s,
                         (double)t.ns * 1e-9);
    }
    profile_reads_close(&r);
    store_release(store, hits, n_hits);
}

/* Projects as many rows as fit the time, and corrects GEMM in the same way. */
static void check_projection(struct platform *p, const struct model *m,
                             struct model_work *w, struct stream *s)
{
    int rows = CHECK_LEAST_ROWS, most = MIN(model_work_rows(w), m->max_ctx);
    while (2 * rows <= most && CHECK_RUNS * platform_h_s(p, 2 * rows) <= CHECK_S)
        rows *= 2;
    if (rows <= most)
        correction_check(&p->gemm_correction, platform_h_s(p, rows),
                         profile_projection_s(m, w, s, rows, CHECK_RUNS));
}

void profile_check(struct platform *p, const struct model *m, struct model_work *w,
                   struct stream *s, struct store *store, const struct sha256 *fingerprint)
{
    if (p->n_tiers > 0)
        check_reads(p, m, store, fingerprint);
    check_projection(p, m, w, s);
}
