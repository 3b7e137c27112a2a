/* stack.c - see stack.h.
 *
 * Threads are created here or in parts that are opened here: compute workers (pool), the saver's
 * writer, the restore pipeline's I/O thread. docs/ARCHITECTURE.md lists them. */
#include "api/stack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "model/pack_file.h"
#include "store/remote/remote.h"
#include "redis/url.h"
#include "api/memory_plan.h"
#include "save/fingerprint.h"
#include "restore/profile.h"
#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/peers.h"
#include "text/tokenizer.h"

/* Default size of the staging memory for restores. */
#define STAGING_BYTES ((size_t)64 << 20)

void stack_warn(const struct hcache_opts *o, const char *text)
{
    if (o->warn != NULL)
        o->warn(o->warn_arg, text);
    else
        log_warn("%s", text);
}

static void say(const struct stack *k, const char *text)
{
    stack_warn(&k->o.user, text);
}

static void warn(void *arg, const char *text)
{
    say(arg, text);
}

void stack_note(const struct hcache_opts *o, const char *text)
{
    if (o->warn != NULL)
        o->warn(o->warn_arg, text);
    else
        fprintf(stderr, "%s\n", text);
}

static int max_sequences(const struct stack *k)
{
    return k->o.user.max_sequences > 0 ? k->o.user.max_sequences : 1;
}

size_t stack_staging_bytes(const struct stack *k)
{
    return k->o.user.staging_bytes > 0 ? k->o.user.staging_bytes : STAGING_BYTES;
}

static size_t save_buffer_bytes(const struct stack *k)
{
    return k->o.user.save_buffer_bytes > 0 ? k->o.user.save_buffer_bytes
                                           : (size_t)256 << 20;
}

static int open_store(struct stack *k, struct err *err);

/* Returns the bytes of a chunk with all kinds of records, in a store or in the remote. */
static size_t chunk_bytes(const struct model *m)
{
    size_t layer = round_up(record_most_bytes(m, STORE_HIDDEN), STORE_ALIGN) +
                   round_up(record_most_bytes(m, STORE_KV), STORE_ALIGN);
    return (size_t)config_n_keeping(&m->cfg) * layer + STORE_ALIGN;
}

/* Returns the size of the store in memory for truncated contexts, used if there is no other
 * store: two windows of the model's own size, with all kinds of records. One holds the tokens
 * that a context sees. The other holds dropped tokens until the store evicts them. */
static uint64_t window_store_bytes(const struct model *m)
{
    return 2 * (uint64_t)(m->cfg.max_ctx / STORE_CHUNK_TOKENS) * chunk_bytes(m);
}

/* Makes a store in memory if none is configured and contexts may be truncated: truncated contexts
 * move through a store. */
static void make_window_store(struct stack *k, const struct model *m)
{
    struct hcache_opts *o = &k->o.user;
    if (!o->truncates || o->n_store > 0 || o->store_in_memory ||
        model_check_truncation(m, NULL) != 0)
        return;
    o->store_in_memory = true;
    o->store_cap_bytes = k->window_store_bytes = window_store_bytes(m);
}

/* Returns whether some of the contexts' blocks may lie on the host. */
static bool has_host_blocks(const struct stack *k)
{
    return k->method != MIXED_OFF && k->method != MIXED_RECOMPUTE &&
           k->o.user.host_bytes > 0;
}

/* Returns the memory for copies in DRAM; a.dram_bytes is ignored. With HCACHE_DRAM_AUTO it is 0 if
 * there is a budget for weights or contexts lie on the host, because then memory is short. */
static uint64_t dram_bytes(const struct stack *k, const struct memory_ask *a)
{
    const struct hcache_opts *u = &k->o.user;
    if (u->n_store == 0)
        return 0;
    if (u->dram_bytes != HCACHE_DRAM_AUTO)
        return u->dram_bytes;
    return u->weights_memory == NULL && u->host_bytes == 0 ? memory_plan_dram_bytes(a) : 0;
}

/* Has steps take the longest text whole, if the model's attention needs that. */
static void widen_steps(struct stack *k, const struct model *m)
{
    if (!m->cfg.both_ways)
        return;
    k->batch_rows = MAX(k->batch_rows, m->max_ctx);
    k->step_rows = k->batch_rows;
}

static struct memory_ask ask_of(const struct stack *k, const struct model *m,
                                const struct model_need *need)
{
    return (struct memory_ask){.model = m,
                               .need = need,
                               .max_seqs = max_sequences(k),
                               .max_rows = k->batch_rows,
                               .step_rows = k->step_rows,
                               .most_guesses = k->most_guesses,
                               .by_sequence = k->o.mixed != NULL || has_host_blocks(k),
                               .kv_tokens = (int64_t)k->o.user.kv_tokens,
                               .has_store = k->o.user.n_store > 0 ||
                                            k->o.user.store_in_memory,
                               .staging_bytes = stack_staging_bytes(k),
                               .save_bytes = save_buffer_bytes(k),
                               .store_bytes = k->window_store_bytes};
}

/* model_opts.share: sets how many layers of a packed model stay in memory. */
static int share_memory(void *arg, const struct model *m, const struct weights_sizes *z,
                        int *n_resident, struct err *err)
{
    struct stack *k = arg;
    make_window_store(k, m);
    widen_steps(k, m);
    struct memory_ask a = ask_of(k, m, NULL);
    a.dram_bytes = dram_bytes(k, &a);
    struct memory_share share;
    int rc = memory_plan_share(&a, z, k->o.user.weights_memory, save_buffer_bytes(k),
                               &share, err);
    if (rc != 0)
        return rc;
    if (k->o.user.kv_tokens == 0)
        k->kv_tokens = share.kv_tokens;
    *n_resident = share.n_resident;
    if (share.table[0] != 0)
        say(k, share.table);
    return 0;
}

/* Logs a line if the user asks for copies in DRAM and there is no store on a disk. */
static void say_dram_unused(const struct stack *k)
{
    const struct hcache_opts *u = &k->o.user;
    if (u->n_store == 0 && u->dram_bytes != 0 && u->dram_bytes != HCACHE_DRAM_AUTO)
        say(k, "--dram is not used: copies in memory are made of state in a --store on a "
               "disk");
}

/* Makes room for a model among those that share. */
static int make_room(const struct stack *k, const struct memory_ask *a, struct err *err)
{
    const struct stack_shared *s = k->o.shared;
    size_t unused, total = 0;
    if (!k->dev->unified)
        device_memory(k->dev, &unused, &total);
    return s->room != NULL ? s->room(s->arg, memory_plan_bytes(a), total, err) : 0;
}

/* Does everything that can fail without the weights, whose loading may take minutes: the caller's
 * checks, the memory that the engine will need, and the opening of the store, which another process
 * may have open. */
static int before_weights(void *arg, const struct model *m, const struct model_need *need,
                          struct err *err)
{
    struct stack *k = arg;
    if (m->note[0] != 0)
        stack_note(&k->o.user, m->note);
    make_window_store(k, m);
    widen_steps(k, m);
    struct memory_ask a = ask_of(k, m, need);
    if (a.kv_tokens > 0)
        k->kv_tokens = a.kv_tokens;
    else if (k->kv_tokens == 0) /* otherwise a budget has decided the number of tokens */
        k->kv_tokens = memory_plan_kv_tokens(&a);
    a.kv_tokens = k->kv_tokens;
    k->is_dram_auto = k->o.user.dram_bytes == HCACHE_DRAM_AUTO;
    say_dram_unused(k);
    /* a shared store has its copies already */
    bool has_copies = k->o.shared != NULL && k->o.shared->is_open;
    k->o.user.dram_bytes = a.dram_bytes = has_copies ? 0 : dram_bytes(k, &a);
    spans_end(k->o.spans, "memory plan");
    int rc = k->o.check != NULL ? k->o.check(k->o.check_arg, m, err) : 0;
    spans_end(k->o.spans, "tokenizer");
    if (rc == 0 && k->o.shared != NULL)
        rc = make_room(k, &a, err);
    if (rc == 0)
        rc = memory_plan_reserve(&a, err);
    spans_end(k->o.spans, "room");
    if (rc == 0 && a.has_store) {
        rc = open_store(k, err);
        spans_end(k->o.spans, "store");
    }
    return rc;
}

/* Returns the turn of those that read the same disk. */
static struct io_turn *turn_of(struct stack *k)
{
    return k->o.shared != NULL ? &k->o.shared->turn : &k->turn;
}

struct device_opts stack_device_opts(const struct hcache_opts *o)
{
    return (struct device_opts){.isa = o->isa,
                                .checksums = o->checksums,
                                .cuda_math = o->cuda_math,
                                .cuda_graphs = o->cuda_graphs,
                                .cuda_early = o->cuda_early};
}

/* Reads how many tokens may be guessed. Where the compute device has memory of its own, none are
 * unless a number asks for them, which is refused. */
static int read_guesses(struct stack *k, struct err *err)
{
    const char *text = k->o.user.speculate;
    bool is_auto = text == NULL || strcmp(text, "auto") == 0;
    char *end = NULL;
    long n = is_auto ? GUESS_MOST : strcmp(text, "off") == 0 ? 0 : strtol(text, &end, 10);
    if (end != NULL && (*end != 0 || end == text || n < 1 || n > GUESS_MOST))
        return err_set(err, ERR_USAGE,
                       "speculate: '%s' is none of auto, off, and a number from 1 to %d",
                       text, GUESS_MOST);
    bool can = k->dev->unified && k->o.mixed == NULL;
    if (!can && !is_auto && n > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "speculate: tokens are guessed only where the model lies in host "
                       "memory as a whole; leave the option out");
    k->most_guesses = can ? (int)n : 0;
    k->always_guesses = !is_auto;
    return 0;
}

/* Opens pool, device and model. Before the weights, model_open calls before_weights (the store). */
static int open_model(struct stack *k, struct err *err)
{
    const struct hcache_opts *o = &k->o.user;
    int threads = o->threads > 0 ? o->threads : MAX(cpus_usable() / peers_here(), 1);
    int n_ranks = o->tensor_parallel > 0 ? o->tensor_parallel : 1;
    int n_stages = o->pipeline_parallel > 0 ? o->pipeline_parallel : 1;
    const struct device_opts d = stack_device_opts(o);
    int rc = pool_create(threads, &k->pool, err);
    if (rc == 0)
        rc = group_open(o->device != NULL ? o->device : "cpu", &d, n_ranks, n_stages,
                        k->pool, &k->dev, err);
    spans_end(k->o.spans, "device");
    if (rc == 0)
        rc = read_guesses(k, err);
    if (rc == 0)
        k->batch_rows = o->batch_rows > 0 ? o->batch_rows : k->dev->batch_rows;
    k->step_rows = k->o.step_rows > 0 ? k->o.step_rows
                                      : k->batch_rows * MAX(o->mini_batches, 1);
    struct model_opts mo = {.dev = k->dev,
                            .reserve = before_weights,
                            .reserve_arg = k,
                            .dtype = o->dtype,
                            .weights = o->weights,
                            .probe_ids = tokenizer_first_ids,
                            .images = o->images,
                            .max_ctx = o->max_context,
                            .share = o->weights_memory != NULL ? share_memory : NULL,
                            .share_arg = k,
                            .spans = k->o.spans,
                            .stuck_ns = k->o.stuck_ns};
    if (rc == 0 && o->weights_memory != NULL && !pack_file_is(o->model))
        rc = err_set(
            err, ERR_USAGE,
            "--weights-memory needs a packed model: hcache model pack %s --out FILE",
            o->model);
    if (rc == 0 && o->weights_memory != NULL && k->o.io == NULL)
        k->weights_io = io_machine_open(NULL);
    if (k->weights_io != NULL)
        io_share_disk(k->weights_io, turn_of(k), true);
    mo.io = k->o.io != NULL ? k->o.io : k->weights_io;
    if (rc == 0)
        rc = model_open(o->model, &mo, &k->model, err);
    return rc;
}

/* Opens k->io for a store on disks. The throttle, given for one process, becomes that of all. */
static void open_io(struct stack *k)
{
    const struct hcache_opts *o = &k->o.user;
    k->io = k->o.io;
    if (o->store_in_memory || k->io != NULL)
        return;
    struct err why = {0};
    k->owns_io = true;
    k->io = io_machine_open(&why);
    if (why.code != 0) {
        char text[640];
        snprintf(text, sizeof text, "%s; using plain reads and writes, which are slower",
                 why.msg);
        say(k, text);
    }
    io_share_disk(k->io, turn_of(k), false);
    k->io = peers_disks(k->io);
    io_throttle(k->io, o->throttle_bytes_per_s, 0);
    k->o.user.throttle_bytes_per_s *= (uint64_t)peers_count(); /* of all disks together */
}

/* Segment size of a store in pinned memory. A device with memory of its own copies from pinned
 * memory at least twice as fast. Pinning takes time, so a segment is smaller than one of ordinary
 * memory; a chunk of a large model has 80 MB. */
#define PINNED_SEGMENT_BYTES ((uint64_t)256 << 20)

static void *pinned_get(void *dev, size_t bytes)
{
    struct buf b;
    return buf_alloc(dev, MEM_PINNED, bytes, &b, NULL) == 0 ? b.ptr : NULL;
}

static void pinned_put(void *dev, void *p, size_t bytes)
{
    buf_free(dev, &(struct buf){p, bytes, MEM_PINNED});
}

/* Opens a store and commits once: look-ups report what is in it as durable. A damaged index, which
 * the commit shows, is rebuilt when the store is opened again. Other errors of the commit surface
 * later, through the saver. */
static int open_durable(const struct store_opts *o, struct store **out, struct err *err)
{
    int rc = store_open(o, out, err);
    if (rc != 0 || store_commit(*out, NULL) != ERR_CORRUPT)
        return rc;
    store_close(*out);
    *out = NULL;
    return store_open(o, out, err);
}

/* Returns true for a fault that can end without a change of the command, such as missing space or
 * permissions. Returns false for wrong arguments and for a store in use. */
static bool is_fault_of_disk(int rc)
{
    switch (rc) {
    case ERR_BUSY:
    case ERR_MISMATCH:
    case ERR_NOT_FOUND:
    case ERR_UNSUPPORTED:
    case ERR_USAGE:
    case -EEXIST:
    case -ELOOP:
    case -ENAMETOOLONG:
    case -ENOENT:
    case -ENOTDIR:
        return false;
    default:
        return true;
    }
}

/* Opens the store for reading only: generation continues, and stored state is still restored. A
 * folder of another user is refused (-EPERM), because that user could have replaced its files. */
static int open_without_saving(struct stack *k, struct store_opts *so,
                               const struct err *why)
{
    char text[700];
    k->store_err = *why;
    so->read_only = true;
    if (why->code == -EPERM || store_open(so, &k->store, NULL) != 0)
        k->store = NULL;
    snprintf(text, sizeof text, "nothing is saved until a restart%s: %s",
             k->store != NULL ? "; saved state is still used" : ", and nothing is restored",
             why->msg);
    say(k, text);
    return 0;
}

/* Logs a line if --dram auto gets less memory for copies in DRAM than intended. */
static void say_less_dram(const struct stack *k)
{
    struct store_dram dram = {0};
    char text[160];
    const double mb = 1e-6;
    if (k->store != NULL)
        store_dram_stats(k->store, &dram);
    /* More than half counts as enough: segments may leave a part of the wanted size unused. */
    bool is_whole = dram.cap_bytes > k->o.user.dram_bytes / 2;
    if (k->store == NULL || k->store_err.code != 0 || k->o.user.dram_bytes == 0 || is_whole)
        return;
    snprintf(text, sizeof text,
             "--dram auto: %.0f MB of the %.0f MB wanted are available for copies in DRAM",
             (double)dram.cap_bytes * mb, (double)k->o.user.dram_bytes * mb);
    say(k, text);
}

/* Returns the memory for copies that is provided ahead: all of it if the user gave a size. */
static uint64_t dram_ahead_bytes(const struct stack *k)
{
    if (k->o.dram_ahead_bytes != 0)
        return k->o.dram_ahead_bytes;
    return k->is_dram_auto ? 0 : UINT64_MAX;
}

static int open_own_store(struct stack *k, struct err *err)
{
    open_io(k);
    struct store_opts so = {
        .io = k->o.user.store_in_memory ? NULL : k->io,
        .dirs = k->o.user.store,
        .n_dirs = k->o.user.n_store,
        .n_processes = k->owns_io ? peers_count() : 0,
        .cap_bytes = k->o.user.store_in_memory ? k->o.user.store_cap_bytes : 0,
        .files_cap_bytes = k->o.user.store_cap_bytes,
        .memory_ahead = k->o.user.remote != NULL,
        .dram_bytes = k->o.user.dram_bytes,
        .dram_optional = k->is_dram_auto,
        .dram_ahead_bytes = dram_ahead_bytes(k),
        .policy = k->policy,
        .key = k->o.user.store_key,
        .quota_bytes = k->o.user.salt_quota_bytes,
        .guarantee_bytes = k->o.user.guarantee_bytes,
        .stuck_ns = k->o.stuck_ns};
    if (!k->dev->unified && k->o.shared == NULL) { /* a shared store outlives the device */
        so.memory = (struct store_memory){pinned_get, pinned_put, k->dev};
        so.segment_bytes = k->o.user.store_in_memory ? PINNED_SEGMENT_BYTES : 0;
    }
    struct err why = {0};
    int rc = open_durable(&so, &k->store, &why);
    if (rc != 0) {
        err_wrap(&why, "store %s",
                 k->o.user.n_store > 0 ? k->o.user.store[0] : "in memory");
        if (k->o.user.store_optional && is_fault_of_disk(rc))
            rc = open_without_saving(k, &so, &why);
        else
            err_set(err, rc, "%s", why.msg);
    }
    if (rc == 0 && so.key != NULL && so.io != NULL)
        say(k, "--store-key encrypts all files that hold texts, tokens or state, and state "
               "in a "
               "--remote. Memory and swap are not encrypted");
    if (rc == 0 && k->is_dram_auto)
        say_less_dram(k);
    return rc;
}

/* Opens the store, or takes the shared one. The first stack that shares opens it for all. */
static int open_store(struct stack *k, struct err *err)
{
    struct stack_shared *s = k->o.shared;
    if (s == NULL || !s->is_open) {
        int rc = open_own_store(k, err);
        if (rc != 0 || s == NULL)
            return rc;
        s->io = k->owns_io ? k->io : NULL;
        s->store = k->store;
        s->store_err = k->store_err;
        s->is_open = true;
    }
    k->owns_io = s->io != NULL;
    k->io = k->owns_io ? s->io : k->o.io;
    k->store = s->store;
    k->store_err = s->store_err;
    return 0;
}

void stack_shared_close(struct stack_shared *s)
{
    remote_close(s->remote);
    store_close(s->store);
    io_close(s->io);
}

/* Returns how many restores have corrected the platform so far (restore/correction.h). */
static int64_t count_observed(const struct platform *p)
{
    int64_t n = (int64_t)p->gemm_correction.n_observed + p->kv_correction.n_observed;
    for (int i = 0; i < p->n_tiers; i++)
        n += p->tier[i].correction.n_observed;
    return n;
}

/* Stores a new profile, and the corrections that restores have made, beside the state. A profile
 * that a throttle distorted is not stored. */
static void keep_profile(struct stack *k)
{
    struct err err = {0};
    bool changed = k->profile_changed || count_observed(&k->platform) != k->n_observed;
    if (k->profile_path == NULL || !changed || k->o.user.throttle_bytes_per_s > 0)
        return;
    if (profile_store(&k->platform, k->profile_path, &err) != 0)
        log_info("%s", err.msg);
}

/* Returns whether a stored profile is measured again: other work disturbed it, on another day. */
static bool is_outdated(const struct platform *p, const struct platform *now)
{
    return profile_is_disturbed(p) && strcmp(p->date, now->date) != 0;
}

/* Loads the cached profile, or measures a new one. The cache lies beside the state. */
static int open_profile(struct stack *k, struct model_work *work, struct stream *s,
                        struct err *err)
{
    struct platform expected;
    struct err why = {0};
    profile_begin(&expected, k->model, &k->fingerprint);
    k->platform = expected;
    if (k->o.no_profile)
        return 0;
    if (k->o.user.n_store > 0 && k->owns_io)
        k->profile_path = profile_path(k->o.user.store[0], &k->fingerprint);
    if (k->profile_path != NULL) {
        int rc = profile_load(&k->platform, k->profile_path, &expected, &why);
        k->n_observed = count_observed(&k->platform);
        if (rc == 0 && k->platform.piece_tokens != profile_rows(k->model, work))
            rc = err_set(&why, ERR_MISMATCH, "%s: measured with batches of %d rows",
                         k->profile_path, k->platform.piece_tokens);
        if (rc == 0 && !is_outdated(&k->platform, &expected)) {
            if (k->o.user.throttle_bytes_per_s == 0)
                profile_check(&k->platform, k->model, work, s, k->store, &k->fingerprint);
            return 0;
        }
        if (rc != 0 && rc != -ENOENT)
            log_warn("%s; measuring again", why.msg);
    }
    k->platform = expected;
    k->profile_changed = true;
    int rc = profile_compute(&k->platform, k->model, work, s, PROFILE_QUICK, err);
    if (rc == 0 && profile_is_disturbed(&k->platform))
        log_info("the profile was measured while other work had %.0f %% of the processors: "
                 "it is measured again on another day",
                 100 * (1 - k->platform.cpu_share));
    /* now, because a killed process keeps nothing at its end, and the next one would measure */
    if (rc == 0)
        keep_profile(k);
    return rc;
}

/* Returns the largest number of rows in one step. */
static int most_rows(const struct stack *k)
{
    return MAX(k->step_rows, k->batch_rows);
}

/* Default time to live of chunks in the remote: seven days. */
#define REMOTE_TTL_S (7 * 86400)

/* Opens the remote, or takes the shared one, which the first stack that shares opens for all. */
static int open_remote(struct stack *k, struct err *err)
{
    const struct hcache_opts *u = &k->o.user;
    struct stack_shared *s = k->o.shared;
    if (s != NULL && s->remote != NULL) {
        k->remote = s->remote;
        remote_allow(k->remote, chunk_bytes(k->model));
        return 0;
    }
    struct remote_opts o = {.url = u->remote,
                            .ca_file = u->remote_ca,
                            .cert_file = u->remote_cert,
                            .key_file = u->remote_key,
                            .store = k->store,
                            .key = u->store_key,
                            .place_dir = u->n_store > 0 ? u->store[0] : NULL,
                            .stuck_ns = (int64_t)u->remote_timeout_s * 1000000000,
                            .ttl_s = u->remote_ttl_s > 0 ? (uint32_t)u->remote_ttl_s
                                                         : REMOTE_TTL_S,
                            .max_chunk_bytes = chunk_bytes(k->model)};
    int when,
        rc = device_choice("remote-write", u->remote_write, remote_when_names, &when, err);
    o.when = (enum remote_when)when;
    if (rc == 0)
        rc = remote_open(&o, &k->remote, err);
    if (s != NULL)
        s->remote = k->remote;
    return rc;
}

static int open_saver(struct stack *k, struct err *err)
{
    struct saver_opts so = {.store = k->store,
                            .remote = k->remote,
                            .model = k->model,
                            .fingerprint = k->fingerprint,
                            .buffer_bytes = save_buffer_bytes(k),
                            .max_batch_rows = most_rows(k),
                            .input_tokens = k->o.input_tokens,
                            .pack_idle_ns = INT64_C(60000000000),
                            .warn = warn,
                            .warn_arg = k};
    return saver_create(&so, &k->saver, err);
}

/* Returns the seconds that a layer's weights take to come up, averaged over all layers
 * (platform.weights_s). */
static double mean_weights_s(const struct model *m)
{
    struct weights_stream_stats s;
    weights_stats(&m->w, &s);
    if (s.n_streamed == 0 || s.disk_bytes_per_s <= 0)
        return 0;
    return (double)s.layer_bytes / s.disk_bytes_per_s * s.n_streamed / s.n_layers;
}

/* Waits until the memory of a given --dram is provided, so that it is ready before the first
 * request. Providing it beside decodes took 15 % of their time (docs/perf/2026-11-23.md). */
static void await_dram(const struct stack *k)
{
    const int64_t second = 1000000000;
    const double gb = 1e-9;
    int64_t begin = clock_now_ns();
    uint64_t n_bytes = 0;
    char text[160];
    while (k->store != NULL && !store_await_dram(k->store, second, &n_bytes)) {
        snprintf(text, sizeof text,
                 "--dram: the system has provided %.1f of %.1f GB after %.0f s of waiting",
                 (double)n_bytes * gb, (double)k->o.user.dram_bytes * gb,
                 (double)(clock_now_ns() - begin) * gb);
        say(k, text);
    }
}

/* Makes the fingerprint; with a store also the profile, the remote and the saver. */
static int open_state(struct stack *k, struct err *err)
{
    struct model_work *work = NULL;
    struct stream *s = NULL;
    int rc = stream_create(k->dev, STREAM_COMPUTE, &s, err);
    if (rc == 0)
        rc = model_work_create(k->model, k->batch_rows, &work, err);
    if (rc == 0)
        rc = fingerprint_make(k->model, work, s, &k->fingerprint, err);
    spans_end(k->o.spans, "fingerprint");
    /* The store gets the fingerprint, so that a miss can report "state of another model". */
    if (rc == 0 && k->store != NULL) {
        /* before the profile: the threads that provide pages would disturb its measurements */
        await_dram(k);
        if (k->o.shared == NULL) /* else state of another model is nothing unusual */
            store_expect(k->store, &k->fingerprint);
        spans_end(k->o.spans, "memory for copies");
        rc = open_profile(k, work, s, err);
        k->platform.weights_s = mean_weights_s(k->model);
        k->platform.unseal_bytes_per_s = pool_threads(k->dev->pool) *
                                         store_unseal_bytes_per_s(k->store);
        spans_end(k->o.spans, "profile");
    }
    stream_destroy(s);
    model_work_destroy(work);
    if (rc == 0 && k->store != NULL && k->o.user.remote != NULL)
        rc = open_remote(k, err);
    if (rc == 0 && k->store != NULL)
        rc = open_saver(k, err);
    spans_end(k->o.spans, "remote and saver");
    return rc;
}

static int read_method(struct stack *k, struct err *err)
{
    const struct hcache_opts *o = &k->o.user;
    const char *name = o->cache_method != NULL ? o->cache_method : "off";
    int method, rc = device_choice("method", name, mixed_methods, &method, err);
    if (rc != 0)
        return rc;
    k->method = (enum mixed_method)method;
    bool is_forced = k->method == MIXED_KV || k->method == MIXED_ACT ||
                     k->method == MIXED_PRINTED;
    if (is_forced && (o->n_store > 0 || o->store_in_memory))
        return err_set(err, ERR_USAGE,
                       "--method %s and --store exclude each other: saved contexts have KV "
                       "blocks on the device",
                       name);
    return 0;
}

static int measure_costs(struct stack *k, struct mixed_costs *c, struct err *err)
{
    struct model_work *work = NULL;
    struct stream *s = NULL;
    int rc = stream_create(k->dev, STREAM_COMPUTE, &s, err);
    if (rc == 0)
        rc = model_work_create(k->model, k->batch_rows, &work, err);
    if (rc == 0)
        rc = mixed_measure(k->model, work, s, (double)k->o.user.link_bytes_per_s,
                           max_sequences(k), c, err);
    stream_destroy(s);
    model_work_destroy(work);
    return rc;
}

/* Decides where the blocks of contexts lie. */
static int choose_blocks(struct stack *k, struct mixed_choice *c, struct err *err)
{
    const struct hcache_opts *o = &k->o.user;
    const struct model *m = k->model;
    struct mixed_costs costs = {0};
    struct mixed_job j = {.method = k->method,
                          .unified = k->dev->unified && o->link_bytes_per_s == 0,
                          .is_group = k->dev->n_stages > 1 || k->dev->n_ranks > 1,
                          .has_store = k->store != NULL,
                          .has_states = config_is_hybrid(&m->cfg) || m->cfg.both_ways ||
                                        m->cfg.v_norm || /* layers differ */
                                        config_is_latent(&m->cfg),
                          .max_seqs = max_sequences(k),
                          .device_bytes = (uint64_t)k->kv_tokens *
                                          model_all_kv_bytes(m, -1),
                          .host_bytes = o->host_bytes,
                          .weights_s = mean_weights_s(m)};
    int rc = 0;
    if (mixed_must_measure(&j, c)) {
        rc = measure_costs(k, &costs, err);
        if (rc == 0)
            rc = mixed_decide(&j, m, &costs, c, err);
        c->opts.link_bytes_per_s = (double)o->link_bytes_per_s;
    }
    if (rc == 0 && k->method != MIXED_OFF && (c->is_on || o->host_bytes > 0))
        say(k, c->why);
    return rc;
}

static int open_engine(struct stack *k, struct err *err)
{
    struct mixed_choice blocks;
    int rc = choose_blocks(k, &blocks, err);
    if (rc != 0)
        return rc;
    struct engine_opts eo = {.model = k->model,
                             .store = k->store,
                             .saver = k->saver,
                             .remote = k->remote,
                             .fingerprint = k->fingerprint,
                             .platform = &k->platform,
                             .measure_ahead = k->owns_io && !k->o.no_profile,
                             .throttle_bytes_per_s = k->o.user.throttle_bytes_per_s,
                             .max_seqs = max_sequences(k),
                             .max_batch_rows = k->batch_rows,
                             .step_rows = k->step_rows,
                             .piece_rows = k->o.piece_rows,
                             .most_guesses = blocks.is_on ? 0 : k->most_guesses,
                             .always_guesses = k->always_guesses,
                             .mixed = blocks.is_on ? &blocks.opts : k->o.mixed,
                             .max_kv_tokens = k->kv_tokens,
                             .policy = k->policy,
                             .reuse = !k->o.user.no_reuse,
                             .fetches = k->o.user.prefetch == NULL ||
                                        strcmp(k->o.user.prefetch, "off") != 0,
                             .staging_bytes = stack_staging_bytes(k),
                             .rest_ns = k->o.shared != NULL ? STACK_REST_NS : 0};
    int direct;
    rc = device_choice("gpu-direct", k->o.user.gpu_direct, restore_direct_names, &direct,
                       err);
    eo.direct = (enum restore_direct)direct;
    if (rc == 0 && eo.direct == RESTORE_DIRECT_ON && k->store == NULL)
        rc = err_set(err, ERR_USAGE, "gpu-direct on: there is no store to read from");
    return rc == 0 ? engine_create(&eo, &k->engine, err) : rc;
}

static int read_policy(struct stack *k, struct err *err)
{
    const char *name = k->o.user.policy;
    int kind = name != NULL ? placement_kind_of(name) : PLACEMENT_DEFAULT;
    if (kind < 0 || kind == PLACEMENT_BELADY)
        return err_set(err, ERR_USAGE,
                       "policy: '%s' is none of lru, fifo, lfu, attentionstore, ours",
                       name);
    k->policy = (enum placement_kind)kind;
    return 0;
}

/* Refuses unusable options of a remote before the weights are loaded. */
static int check_remote(const struct stack *k, struct err *err)
{
    const struct hcache_opts *u = &k->o.user;
    struct remote_url url;
    if (u->remote == NULL)
        return 0;
    if (u->n_store == 0 && !u->store_in_memory)
        return err_set(err, ERR_USAGE,
                       "--remote needs --store: chunks from the remote are kept there");
    return remote_url_parse(u->remote, &url, err);
}

/* Logs the least time of a step: a pass over streamed weights cannot be faster than the disk. */
static void say_step(const struct stack *k)
{
    struct weights_stream_stats s;
    char text[200];
    weights_stats(&k->model->w, &s);
    if (s.n_streamed == 0 || s.disk_bytes_per_s <= 0)
        return;
    double bytes = (double)s.layer_bytes * s.n_streamed;
    snprintf(text, sizeof text,
             "%s %.2f GB, and the disk gave %.2f GB/s: a step takes %s %.2f s",
             s.of_experts ? "a pass that uses all experts reads" : "each pass reads",
             bytes / 1e9, s.disk_bytes_per_s / 1e9, s.of_experts ? "then" : "at least",
             bytes / s.disk_bytes_per_s);
    say(k, text);
}

int stack_open(const struct stack_opts *o, struct stack *out, struct err *err)
{
    *out = (struct stack){.o = *o};
    const struct hcache_opts *u = &o->user;
    if (u->batch_rows != 0 &&
        (u->batch_rows < STACK_MIN_BATCH_ROWS || u->batch_rows > STACK_MAX_BATCH_ROWS))
        return err_set(err, ERR_USAGE, "batch rows are %d; they must be 0, or %d to %d",
                       u->batch_rows, STACK_MIN_BATCH_ROWS, STACK_MAX_BATCH_ROWS);
    if (u->mini_batches < 0 || u->mini_batches > HCACHE_MAX_MINI_BATCHES)
        return err_set(err, ERR_USAGE, "mini-batches are %d; they must be 0 to %d",
                       u->mini_batches, HCACHE_MAX_MINI_BATCHES);
    int rc = read_policy(out, err);
    if (rc == 0)
        rc = check_remote(out, err);
    if (rc == 0)
        rc = read_method(out, err);
    if (rc == 0)
        rc = open_model(out, err);
    if (rc == 0 && (u->n_store > 0 || out->o.user.store_in_memory))
        rc = open_state(out, err);
    if (rc == 0)
        rc = open_engine(out, err);
    spans_end(o->spans, "engine");
    if (rc == 0)
        say_step(out);
    return rc;
}

void stack_close(struct stack *k)
{
    if (k->engine != NULL)
        keep_profile(k);
    engine_destroy(k->engine);
    saver_destroy(k->saver);
    if (k->o.shared == NULL)
        remote_close(k->remote);
    if (k->o.shared == NULL || !k->o.shared->is_open) {
        store_close(k->store);
        if (k->owns_io)
            io_close(k->io);
    }
    model_close(k->model);
    io_close(k->weights_io);
    device_close(k->dev);
    pool_destroy(k->pool);
    free(k->profile_path);
    *k = (struct stack){0};
}

/* Appends "NAME 1.5", the size in MiB, to the text. A size that would show as 0.0 is left out. */
static void describe_item(char *out, size_t n, const char *name, size_t bytes)
{
    size_t used = strlen(out);
    double mib = (double)bytes / (1 << 20);
    if (mib >= 0.05)
        snprintf(out + used, n - used, "%s%s %.1f", used > 0 ? ", " : "", name, mib);
}

static void describe_memory(const struct stack *k, char *out, size_t n)
{
    size_t kv, activations, restore;
    struct store_dram dram = {0};
    engine_bytes(k->engine, &kv, &activations, &restore);
    if (k->store != NULL)
        store_dram_stats(k->store, &dram);
    out[0] = '\0';
    describe_item(out, n, k->model->w.is_mapped ? "mapped weights" : "weights",
                  k->model->w.bytes);
    describe_item(out, n, "KV pool", kv);
    describe_item(out, n, "activations", activations);
    describe_item(out, n, "saving", k->saver != NULL ? saver_bytes(k->saver) : 0);
    describe_item(out, n, "restoring", restore);
    describe_item(out, n, "truncated contexts", k->window_store_bytes);
    describe_item(out, n, "copies in DRAM", dram.cap_bytes);
    describe_item(out, n, "blocks on the host", engine_host_bytes(k->engine));
}

void stack_describe(const struct stack *k, char *out, size_t n)
{
    char memory[280], ranks[64] = "";
    if (k->dev->n_stages > 1) /* the figures are sums over all stages */
        snprintf(ranks, sizeof ranks, "over %d stages, ", k->dev->n_stages);
    if (k->dev->n_ranks > 1) /* the figures are the same on each rank */
        snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks),
                 "on each of %d ranks, ", k->dev->n_ranks);
    describe_memory(k, memory, sizeof memory);
    snprintf(out, n,
             "memory reserved, MiB: %s%s; %d threads, device %s (%s), weights %s, state %s",
             ranks, memory, pool_threads(k->pool), k->dev->name, k->dev->isa,
             dtype_name(k->model->w.dtype), dtype_name(k->model->dtype));
}
