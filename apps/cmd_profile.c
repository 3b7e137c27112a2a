/* cmd_profile.c - hcache profile: measures this machine with this model, for the planner.
 *
 * It writes the platform file that run, serve and ingest read beside the store, and prints its
 * measurements, each curve with its R². */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cmds.h"
#include "apps/option_tables.h"
#include "apps/engine_options.h"
#include "apps/user_files.h"
#include "opt/opt.h"
#include "base/progress.h"
#include "bench/device_rig.h"
#include "build_id.h"
#include "api/stack.h"
#include "restore/profile.h"
#include "sim/profile_overlap.h"
#include "sim/profile_scratch.h"

enum { CONTEXT = 8192 + 512 }; /* length of context up to which attention is measured */

struct profile_args {
    struct engine_args engine;
    const char *out;
};

static const struct opt positionals[] = {
    OPT_MODEL(struct profile_args, "a Hugging Face folder, a GGUF file, or synth:SHAPE"),
    {0},
};

static const struct opt options[] = {
    {"store", OPT(struct profile_args, engine.store), .arg = "DIR[,DIR...]",
     .help = "the store whose devices are measured. The profile is written beside it, one "
             "file per kind of weights, where run and serve find it. Without it, or with "
             "\"memory\", only DRAM is measured"},
    OPT_STORE_KEY(struct profile_args),
    {"out", OPT(struct profile_args, out), .arg = "FILE",
     .help = "also write the profile to FILE, for hcache plan --platform FILE"},
    OPT_COMPUTE(struct profile_args),
    OPT_DEVICE_TUNING(struct profile_args),
    OPT_BATCH_ROWS(struct profile_args),
    {0},
};

static const struct opt_cmd cmd = {
    .name = "profile",
    .summary =
        "Measures the costs of restoring on this machine: a layer by history length, the "
        "projection of hidden states, loading KV, every store device and DRAM, and how "
        "much reading and computing slow each other.",
    .positionals = positionals,
    .options = options,
    .examples =
        "  hcache profile MODEL_DIR --store /var/lib/hcache\n"
        "  hcache profile synth:bench-220m --store /mnt/a,/mnt/b --out my.platform\n"
        "  hcache plan MODEL_DIR --platform my.platform --history 8192\n",
    .values_bytes = sizeof(struct profile_args),
};
const struct opt_cmd *const options_of_profile = &cmd;

/* --- measuring -------------------------------------------------------------------------------- */

/* Everything that the measuring functions use. */
struct measuring {
    struct stack *k;
    struct model_work *w;
    struct stream *s;
    /* counts the steps: one for compute, one for each tier, and one for both at once */
    struct progress progress;
    uint64_t n_done;
};

static void step_done(struct measuring *m)
{
    progress_at(&m->progress, ++m->n_done);
}

/* Measures all of `dirs` together, as restores use them, or DRAM if there are none. The first
 * tier's device is also measured beside compute, with the file that is already written, because a
 * slow device takes seconds to write one. */
static int measure_tier(struct measuring *m, struct platform *p, const char *name,
                        const char *const *dirs, int n_dirs, struct err *err)
{
    struct profile_scratch *scratch;
    struct platform_tier *t = &p->tier[p->n_tiers];
    int rc = profile_scratch_open(m->k->model, n_dirs > 0 ? m->k->io : NULL, dirs, n_dirs,
                                  &scratch, err);
    if (rc != 0)
        return rc;
    struct profile_source from = profile_scratch_source(scratch);
    snprintf(t->name, sizeof t->name, "%s", name);
    rc = profile_tier(t, m->k->model, &from, PROFILE_FULL, err);
    step_done(m);
    if (rc == 0 && n_dirs > 0 && p->n_tiers == 0) {
        rc = profile_overlap(p, m->k->model, m->w, m->s, &from, err);
        step_done(m);
    }
    p->n_tiers += rc == 0;
    profile_scratch_close(scratch);
    return rc;
}

/* Measures the tiers: first the store in the directories of --store as tier 0, then DRAM, then each
 * of the store's devices alone. */
static int measure_tiers(struct measuring *m, struct platform *p,
                         const struct profile_args *a, struct err *err)
{
    int rc = 0, n = a->engine.o.n_store;
    if (n > 0)
        rc = measure_tier(m, p, "store", a->engine.o.store, n, err);
    if (rc == 0)
        rc = measure_tier(m, p, "dram", NULL, 0, err);
    for (int i = 0; rc == 0 && n > 1 && i < n && p->n_tiers < PLATFORM_TIERS_MAX; i++) {
        char name[24];
        snprintf(name, sizeof name, "device %d", i);
        rc = measure_tier(m, p, name, &a->engine.o.store[i], 1, err);
    }
    return rc;
}

static int measure(struct stack *k, struct platform *p, const struct profile_args *a,
                   struct err *err)
{
    struct measuring m = {.k = k};
    int n = a->engine.o.n_store, rc = stream_create(k->dev, STREAM_COMPUTE, &m.s, err);
    progress_begin(&m.progress, "measuring", PROGRESS_ITEMS,
                   (uint64_t)(n > 1 ? 4 + n : 2 + 2 * n));
    progress_at(&m.progress, 0);
    if (rc == 0)
        rc = model_work_create(k->model, RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS, &m.w,
                               err);
    if (rc == 0)
        rc = profile_compute(p, k->model, m.w, m.s, PROFILE_FULL, err);
    step_done(&m);
    if (rc == 0)
        rc = measure_tiers(&m, p, a, err);
    if (rc == 0)
        rc = platform_validate(p, err);
    progress_end(&m.progress);
    stream_destroy(m.s);
    model_work_destroy(m.w);
    return rc;
}

/* --- printing --------------------------------------------------------------------------------- */

/* Prints one curve. Its R2 is 0 or less if the measured times were too disturbed for the curve to
 * mean anything. */
static void print_curve(const char *name, const struct cost_curve *c, double r2)
{
    printf("  %-28s %9.3f ms a call + %9.3f per 1000 tokens + %8.4f per (1000 tokens)^2   "
           "R2 %.4f\n",
           name, c->a_s * 1e3, c->b_s * 1e6, c->c_s * 1e9, r2);
}

static void print_compute(const struct platform *p)
{
    printf("compute, per layer\n");
    print_curve("C_tok, the whole layer", &p->c_tok, p->c_tok_r2);
    print_curve("C_H, projecting hidden states", &p->c_h, p->c_h_r2);
    print_curve("C_KV, checking and placing", &p->c_kv, p->c_kv_r2);
    printf("  prefill of 512 new tokens behind 0, 2048, 8192: %.2f, %.2f, %.2f ms\n",
           platform_prefill_s(p, 0, 512) * 1e3, platform_prefill_s(p, 2048, 512) * 1e3,
           platform_prefill_s(p, 8192, 512) * 1e3);
    printf("  embedding %.3f us a token, head %.3f ms\n\n", p->embed_s * 1e6,
           p->head_s * 1e3);
    if (p->unpack_bytes_per_s > 0)
        printf("  unpacking state %.2f GB/s, all threads together\n",
               p->unpack_bytes_per_s * 1e-9);
}

static void print_tier(const struct platform *p, int i)
{
    const struct platform_tier *t = &p->tier[i];
    if (platform_tier_in_place(t)) {
        printf("  %-10s read in place: nothing is copied, so it has no rate\n", t->name);
        return;
    }
    printf("  %-10s latency %8.1f us, %7.2f us a record, then %8.2f GB/s   R2 %.4f",
           t->name, t->latency_s * 1e6, t->request_s * 1e6, t->bytes_per_s * 1e-9, t->r2);
    if (t->up_bytes_per_s > 0)
        printf("\n  %-10s to a stage %.2f GB/s over its buses", "",
               t->up_bytes_per_s * 1e-9);
    if (t->gather_bytes_per_s > 0)
        printf(", then H gathered by %d ranks at %.2f GB/s", p->n_ranks,
               t->gather_bytes_per_s * 1e-9);
    printf("\n  %-10s 1000 tokens of a layer: IO_H %.3f ms, IO_KV %.3f ms\n", "",
           platform_io_s(p, i, 1000, RECORD_HIDDEN) * 1e3,
           platform_io_s(p, i, 1000, RECORD_KV) * 1e3);
}

static void print_platform(const struct platform *p, const struct profile_args *a)
{
    printf("%s on %s\nmodel %.16s, commit %s, %s\n\n", a->engine.o.model, p->machine,
           p->model, p->commit, p->date);
    print_compute(p);
    printf("reading (C_KV includes checking and placing the bytes)\n");
    for (int i = 0; i < p->n_tiers; i++)
        print_tier(p, i);
    if (a->engine.o.n_store > 0)
        printf("\ntogether: reading takes %.2f times as long beside projection, projection "
               "%.2f "
               "times as long beside reading\n",
               p->io_overlap, p->comp_overlap);
    printf("hidden states read and projected are balanced at %.3g GB/s\n",
           platform_balance_bytes_per_s(p, 1024) * 1e-9);
}

/* Prints the measured speeds as shares of the device's own limits, for a device with memory of its
 * own. */
static int print_shares(struct stack *k, const struct platform *p, struct err *err)
{
    struct device_ceilings most = {0};
    struct rig r;
    int rc = rig_open(k->dev, k->model->dtype, &r, err);
    if (rc == 0)
        rc = device_ceilings_measure(&r, &most, err);
    if (rc == 0) {
        double flop = 2.0 * k->model->cfg.n_embd * config_kv_width(&k->model->cfg, 0);
        device_ceilings_print(&most, &r);
        printf("  projection: %.2f of the GEMM rate;", flop / p->c_h.b_s / most.gemm_flops);
        for (int i = 0; i < p->n_tiers; i++)
            printf(" %s: %.2f of pinned copies up;", p->tier[i].name,
                   platform_io_bytes_per_s(p, i) / most.up_bytes_per_s);
        printf(" head: %.2f of the memory's bandwidth\n",
               (double)k->model->cfg.vocab_size * k->model->cfg.n_embd *
                   (double)dtype_bytes(k->model->w.dtype) / p->head_s /
                   most.memory_bytes_per_s);
    }
    rig_close(&r);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

/* Logs why an existing profile is unusable, if it is. The new profile replaces it in any case. */
static void judge_old(const char *path, const struct platform *expected)
{
    struct platform old;
    struct err why = {0};
    int rc = profile_load(&old, path, expected, &why);
    if (rc != 0 && rc != -ENOENT)
        fprintf(stderr, "hcache profile: %s; measuring again\n", why.msg);
}

/* Copies the profile for `hcache plan` without options, which plans for this machine. Nothing
 * depends on the copy, so a failure is silent. */
static void remember(const struct platform *p)
{
    char *path = user_file("platform");
    struct err why = {0};
    if (path == NULL)
        return;
    user_file_make_folders(path);
    (void)profile_store(p, path, &why);
    free(path);
}

static int run_measured(struct stack *k, const struct profile_args *a, struct err *err)
{
    struct platform p;
    profile_begin(&p, k->model, &k->fingerprint);
    snprintf(p.commit, sizeof p.commit, "%s", BUILD_ID);
    char *path = a->engine.o.n_store > 0
                     ? profile_path(a->engine.o.store[0], &k->fingerprint)
                     : NULL;
    if (path != NULL)
        judge_old(path, &p);
    int rc = measure(k, &p, a, err);
    if (rc == 0 && path != NULL)
        rc = profile_store(&p, path, err);
    if (rc == 0 && a->out != NULL)
        rc = profile_store(&p, a->out, err);
    if (rc == 0)
        remember(&p);
    if (rc == 0)
        print_platform(&p, a);
    if (rc == 0 && !k->dev->unified)
        rc = print_shares(k, &p, err);
    if (rc == 0 && profile_is_disturbed(&p))
        fprintf(stderr,
                "hcache profile: other programs used %.0f %% of the processors meanwhile; "
                "run it again on an idle machine\n",
                100 * (1 - p.cpu_share));
    if (rc == 0 && path != NULL)
        printf("written to %s\n", path);
    if (rc == 0 && a->out != NULL)
        printf("written to %s\n", a->out);
    free(path);
    return rc;
}

/* Checks that the file can be written, because measuring takes minutes. */
static int check_out(const char *path, struct err *err)
{
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    int n = slash == path ? 1 : slash != NULL ? (int)(slash - path) : 0;
    char dir[4096];
    snprintf(dir, sizeof dir, "%.*s", n > 0 ? n : 1, n > 0 ? path : ".");
    if (path != NULL && access(dir, W_OK | X_OK) != 0)
        return err_set(err, -errno, "--out %s: folder %s: %s", path, dir, strerror(errno));
    return 0;
}

static int run(const struct profile_args *a, struct err *err)
{
    struct stack k;
    struct stack_opts o = {.user = a->engine.o, .no_profile = true};
    int rc = check_out(a->out, err);
    if (rc != 0)
        return rc;
    rc = stack_open(&o, &k, err);
    if (rc == 0)
        rc = run_measured(&k, a, err);
    stack_close(&k);
    return rc;
}

int cmd_profile(int argc, char **argv)
{
    struct profile_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = engine_args_finish(&a.engine, &err);
    a.engine.o.store_in_memory = a.engine.o.n_store == 0;
    a.engine.o.no_reuse = true;
    a.engine.o.max_context = CONTEXT;
    if (rc == 0)
        rc = run(&a, &err);
    if (rc != 0)
        fprintf(stderr, "hcache profile: %s\n", err.msg);
    engine_args_end(&a.engine);
    opt_end(parsed);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}
