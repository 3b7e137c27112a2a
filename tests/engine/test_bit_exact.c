/* test_bit_exact.c - the central test: a restored state is bit-equal to a state that was never
 * evicted.
 *
 * A run that is never evicted gives the reference: K and V of every layer and position, and a
 * digest of the f32 logits of every generated position. Then the same prompt is saved under some
 * policy, restored by some plan, and prefilled and continued with other piece sizes and thread
 * counts. K, V and logits must have the same bits. The last tests show that this test can fail.
 *
 * Each plan, model, type, length of a tail and kind of restore meets each other one at least once.
 * HCACHE_BIT_EXACT=all tries all of their products. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "api/stack.h"
#include "store/chain.h"
#include "restore/save_policy.h"
#include "tests/engine/enginetest.h"

enum {
    N_PROMPT = 205, /* three chunks and a tail of 13 tokens */
    N_CHUNKS = 3,
    N_GENERATE = 12,
};

/* --- one run ---------------------------------------------------------------------------------- */

struct run {
    uint64_t digest; /* digest of the logits */
    uint8_t *kv;     /* [n_layers][N_PROMPT][2 * kv_dim] T */
    size_t kv_bytes;
    int32_t tokens[N_GENERATE];
    int n_cached;
    /* The first position whose K and V exist in every layer. Windows may make earlier positions
     * unnecessary. */
    int first_token;
    int n_layers;
};

/* The next stacks save their state packed. */
static bool packs;

static void open_stack_as(struct stack *k, const char *model, const char *dtype,
                          const char *weights, int threads, int step_rows)
{
    struct err err = {0};
    struct stack_opts o = {.user.model = model,
                           .user.dtype = dtype,
                           .user.pack = packs ? "on" : "off",
                           .user.weights = weights,
                           .user.threads = threads,
                           .step_rows = step_rows,
                           .user.max_context = 256,
                           .user.store_in_memory = true,
                           .user.save_buffer_bytes = 1 << 20,
                           .user.staging_bytes = 1 << 20,
                           .no_profile = true,
                           .user.no_reuse = true};
    int rc = stack_open(&o, k, &err);
    if (rc != 0)
        fail_msg("%s %s, weights %s: %s", model, dtype, weights, err.msg);
    /* plans are forced here, but the planner needs a platform all the same */
    k->platform.c_tok.b_s = 1e-5;
    k->platform.c_h.b_s = 2e-6;
    k->platform.c_kv.b_s = 1e-7;
    k->platform.n_tiers = 1;
    k->platform.tier[0] = (struct platform_tier){.name = "test", .bytes_per_s = 1e9};
}

static void open_stack(struct stack *k, const char *model, const char *dtype, int threads,
                       int step_rows)
{
    open_stack_as(k, model, dtype, "checkpoint", threads, step_rows);
}

static void make_prompt(const struct model *m, int32_t prompt[N_PROMPT])
{
    struct rng r = {.s = 42};
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + (int32_t)rng_below(&r, (uint64_t)m->cfg.vocab_size - 3);
}

static void read_kv(struct stack *k, struct seq *s, struct run *out)
{
    const struct model *m = k->model;
    int32_t pos[N_PROMPT], seq_row[2] = {0, N_PROMPT};
    const int32_t *tables[1] = {seq_table(s)->blocks};
    for (int i = 0; i < N_PROMPT; i++)
        pos[i] = i;
    struct ragged r = {
        .n_rows = N_PROMPT, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    size_t layer_bytes = (size_t)N_PROMPT * model_most_kv_bytes(m);
    struct stream *stream;
    assert_int_equal(stream_create(k->dev, STREAM_COMPUTE, &stream, NULL), 0);
    out->n_layers = config_n_keeping(&m->cfg);
    out->kv_bytes = layer_bytes * (size_t)out->n_layers;
    out->kv = xcalloc(1, out->kv_bytes);
    for (int l = 0; l < out->n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(engine_pool(k->engine), l);
        struct mat rows = mat_of(out->kv + (size_t)l * layer_bytes, m->dtype, N_PROMPT,
                                 2 * model_kv_dim(m, l));
        assert_int_equal(k->dev->ops->kv_read(stream, rows, &kv, &r), 0);
    }
    stream_destroy(stream);
}

static struct run run_either(struct stack *k, const char *save, const char *plan,
                             bool restore_first)
{
    struct run out = {0};
    struct err err = {0};
    struct seq *s;
    int32_t prompt[N_PROMPT];
    make_prompt(k->model, prompt);
    struct et_ask a = {.prompt = prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = N_GENERATE,
                       .restore_first = restore_first,
                       .save = save,
                       .plan = plan};
    s = et_add(k, &a);
    int rc = engine_run(k->engine, &err);
    const struct outcome *o = seq_outcome(s);
    if (rc != 0 || o->finish == FINISH_ERROR)
        fail_msg("save %s, plan %s: %s", save, plan, rc != 0 ? err.msg : o->err.msg);
    assert_int_equal(saver_flush(k->saver, &err), 0);
    assert_true(o->r.logits_digest != 0);
    out.digest = o->r.logits_digest;
    out.n_cached = o->r.cached_tokens;
    out.first_token = o->restore.first_token;
    memcpy(out.tokens, o->r.token_ids, sizeof out.tokens);
    read_kv(k, s, &out);
    engine_remove(k->engine, s);
    return out;
}

static struct run run_once(struct stack *k, const char *save, const char *plan)
{
    return run_either(k, save, plan, false);
}

static void run_free(struct run *r)
{
    free(r->kv);
}

/* Compares K and V of every layer, from the first position that both runs have. */
static bool same_kv(const struct run *a, const struct run *b)
{
    int first = a->first_token > b->first_token ? a->first_token : b->first_token;
    if (a->kv_bytes != b->kv_bytes)
        return false;
    size_t layer = a->kv_bytes / (size_t)a->n_layers;
    size_t skip = layer / N_PROMPT * (size_t)first;
    for (int l = 0; l < a->n_layers; l++) {
        size_t at = (size_t)l * layer + skip;
        if (memcmp(a->kv + at, b->kv + at, layer - skip) != 0)
            return false;
    }
    return true;
}

static bool same_bits(const struct run *a, const struct run *b)
{
    return a->digest == b->digest && same_kv(a, b) &&
           memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0;
}

/* Returns the first position that every layer must have of n_cached: the window's, rounded down to
 * a chunk. A recomputed layer below a recomputed one without a window needs all positions. */
static int first_wanted(const struct model_config *c, const char *plan, int n_cached)
{
    int n_r = (int)strspn(plan, "R"), first = 0;
    int in_window = (n_cached + 1 - c->sliding_window) / STORE_CHUNK_TOKENS;
    int last_full = layer_set_last_out(&c->windowed, n_r);
    for (int l = 0; l < config_n_keeping(c); l++)
        if (config_window(c, l) > 0 && (l >= n_r || l > last_full))
            first = in_window * STORE_CHUNK_TOKENS;
    return first;
}

static bool all_products(void)
{
    const char *which = getenv("HCACHE_BIT_EXACT");
    return which != NULL && strcmp(which, "all") == 0;
}

/* The thread sanitizer judges threads and not bits: it gets every ninth restore. */
static bool is_drawn(void)
{
#ifdef __SANITIZE_THREAD__
    static int n_asked;
    return n_asked++ % 9 == 0;
#else
    return true;
#endif
}

/* Restores n_cached tokens by `plan` in k, whose store has them. The new tokens are prefilled after
 * the restore or inside it. Compares the result with `ref`. */
static void check_one(struct stack *k, const struct run *ref, const char *save,
                      const char *plan, bool restore_first, int n_cached, const char *what)
{
    if (strcmp(save, "none") == 0 && !is_drawn())
        return;
    struct run r = run_either(k, save, plan, restore_first);
    if (r.n_cached != n_cached)
        fail_msg("%s, plan %s: %d tokens were restored, not %d", what, plan, r.n_cached,
                 n_cached);
    const struct model_config *c = &k->model->cfg;
    int want = c->sliding_window > 0 ? first_wanted(c, plan, n_cached) : 0;
    if (r.first_token != want)
        fail_msg("%s, plan %s: restored from %d on, not from %d", what, plan, r.first_token,
                 want);
    if (!same_bits(&r, ref))
        fail_msg("%s, plan %s, fused %d: restored state differs from the never-evicted one",
                 what, plan, !restore_first);
    run_free(&r);
}

static void check_restore(struct stack *k, const struct run *ref, const char *save,
                          const char *plan, int n_cached, const char *what)
{
    check_one(k, ref, save, plan, false, n_cached, what);
}

static void check_plan(struct stack *k, const struct run *ref, const char *plan,
                       const char *what)
{
    static int n_asked; /* one kind of restore, by turns */
    n_asked++;
    for (int fused = 0; fused < 2; fused++)
        if (fused == n_asked % 2 || all_products())
            check_one(k, ref, "none", plan, !fused, N_CHUNKS * STORE_CHUNK_TOKENS, what);
}

/* --- models ----------------------------------------------------------------------------------- */

enum { MAX_MODELS = 5 };

static char shared_paths[2][512];

/* Returns a trained model and two synthetic shapes. If ../shared has it, also stories260K and its
 * copy with MHA. */
static int models(const char *out[MAX_MODELS])
{
    static const char *const names[] = {"stories260K", "stories260K-mha"};
    const char *shared = getenv("HCACHE_SHARED");
    int n = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(shared_paths[i], sizeof shared_paths[i], "%s/models/%s",
                 shared != NULL ? shared : "../shared", names[i]);
        if (access(shared_paths[i], R_OK) == 0)
            out[n++] = shared_paths[i];
    }
    out[n++] = "models/demo";
    out[n++] = "synth:tiny-mha";
    out[n++] = "synth:tiny-gqa";
    return n;
}

static const char *const dtypes[] = {"f32", "bf16", "f16"};

/* --- tests ------------------------------------------------------------------------------------ */

/* Tries every (r,h,k), and mixtures per layer that a seed draws. */
TEST(every_plan)
{
    const char *model[MAX_MODELS];
    int n_models = models(model), n_plans = 0;
    uint64_t n_packed = 0;
    struct rng rng = {.s = 1};
    for (int i = 0; i < n_models * 3; i++) {
        struct stack k;
        /* bf16 of every second model, f16 of the others */
        packs = i % 3 != 0 && (i / 3 + i % 3) % 2 == 0;
        open_stack(&k, model[i / 3], dtypes[i % 3], 2, 512);
        int n_layers = k.model->cfg.n_layers;
        struct run ref = run_once(&k, "both", "recompute");
        char plan[64];
        for (int r = 0; r <= n_layers; r++) {
            for (int h = 0; r + h <= n_layers; h++, n_plans++) {
                et_letters(plan, r, h, n_layers - r - h);
                check_plan(&k, &ref, plan, model[i / 3]);
            }
        }
        for (int j = 0; j < 12; j++, n_plans++) {
            int r = (int)rng_below(&rng, (uint64_t)n_layers + 1);
            for (int l = 0; l < n_layers; l++)
                plan[l] = l < r ? 'R' : "HK"[rng_below(&rng, 2)];
            plan[n_layers] = 0;
            check_plan(&k, &ref, plan, model[i / 3]);
        }
        struct saver_stats st;
        saver_stats(k.saver, &st);
        assert_true(packs || st.n_packed == 0);
        n_packed += st.n_packed;
        run_free(&ref);
        stack_close(&k);
    }
    packs = false;
    assert_true(n_packed > 0);
    print_message("%d plans restored bit for bit\n", n_plans);
}

/* Tries every family of models. The saved state is the layer's input and K before RoPE, for every
 * kind of layer: with or without biases, QK norm, learned positions or a window. */
TEST(every_family)
{
    static const char dir[] = "tests/model/golden/families";
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/config.json", dir, e->d_name);
        if (access(path, R_OK) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        /* f32, bf16, and bf16 with 8-bit weights; f32 and 8 bits each in a fifth of the families */
        int drawn = (int)(strlen(e->d_name) % 5);
        for (int t = 0; t < 3; t++) {
            /* models with recurrent layers: test_recurrent.c */
            if ((t != 1 && t != drawn) || strstr(path, "qwen3.5") || strstr(path, "next") ||
                strstr(path, "lfm2") || strstr(path, "granite-h"))
                continue;
            struct stack k;
            open_stack_as(&k, path, dtypes[t > 0], t < 2 ? "checkpoint" : "q8", 2, 512);
            int n_layers = config_n_keeping(&k.model->cfg);
            struct run ref = run_once(&k, "both", "recompute");
            for (int r = 0; r <= n_layers; r++) {
                for (int h = 0; r + h <= n_layers; h++) {
                    char plan[64];
                    et_letters(plan, r, h, n_layers - r - h);
                    check_plan(&k, &ref, plan, path);
                }
            }
            run_free(&ref);
            stack_close(&k);
        }
        n++;
    }
    closedir(d);
    print_message("%d checkpoints\n", n);
    assert_true(n >= 10);
}

/* State is saved under one policy and restored under another. Then chunks of one context are saved
 * under different policies. */
TEST(mixed_policies)
{
    static const char *const saves[] = {"hidden", "kv", "both"};
    static const char *const wants[] = {"hidden", "kv", "auto", "RHKK"};
    for (int d = 0; d < 3; d++) {
        for (int s = 0; s < 3; s++) {
            struct stack k;
            open_stack(&k, "synth:tiny-mha", dtypes[d], 2, 512);
            struct run ref = run_once(&k, saves[s], "recompute");
            for (int w = 0; w < 4; w++) {
                bool possible = s == 2 || w == s || w == 2;
                if (possible)
                    check_plan(&k, &ref, wants[w], saves[s]);
            }
            run_free(&ref);
            stack_close(&k);
        }
    }
}

static void save_prefix(struct stack *k, const char *save, int n_tokens)
{
    struct err err = {0};
    struct seq *s;
    int32_t prompt[N_PROMPT];
    make_prompt(k->model, prompt);
    struct et_ask a = {.prompt = prompt, .n_prompt = n_tokens, .save = save};
    s = et_add(k, &a);
    assert_int_equal(engine_run(k->engine, &err), 0);
    assert_int_equal(saver_flush(k->saver, &err), 0);
    engine_remove(k->engine, s);
}

/* The first chunk has hidden states, the second KV, the third both: one restore uses all three. */
TEST(mixed_chunks)
{
    for (int d = 0; d < 3; d++) {
        struct stack plain;
        open_stack(&plain, "synth:tiny-gqa", dtypes[d], 2, 512);
        struct run ref = run_once(&plain, "none", "recompute");
        stack_close(&plain);
        struct stack k;
        open_stack(&k, "synth:tiny-gqa", dtypes[d], 2, 512);
        /* makes recomputation expensive, so that auto prefers stored state */
        k.platform.c_tok.b_s = 1e-3;
        save_prefix(&k, "hidden", 64);
        save_prefix(&k, "kv", 128);
        save_prefix(&k, "HKBK", 192);
        check_plan(&k, &ref, "auto", "mixed chunks");
        run_free(&ref);
        stack_close(&k);
    }
}

/* A context whose end is a partial chunk is restored by every (r,h,k) and then continued.  The
 * resulting full chunk, made of stored rows and new ones, is restored by every (r,h,k), too. */
TEST(tails)
{
    static const int lengths[] = {1, 40, 63, 65, 100, 191, 200};
    const char *model[MAX_MODELS];
    int n_models = models(model), n_plans = 0;
    for (int i = 0; i < n_models * 3; i++) {
        struct stack plain;
        open_stack(&plain, model[i / 3], dtypes[i % 3], 2, 512);
        struct run ref = run_once(&plain, "none", "recompute");
        stack_close(&plain);
        for (int j = 0; j < 7; j++) {
            struct stack k;
            if ((i + j) % 2 != 0 && !all_products())
                continue;
            open_stack(&k, model[i / 3], dtypes[i % 3], 2, 512);
            int n_layers = k.model->cfg.n_layers, n = lengths[j];
            save_prefix(&k, "both", n);
            for (int grown = 0; grown < 2; grown++) {
                for (int r = 0; r <= n_layers; r++) {
                    for (int h = 0; r + h <= n_layers; h++) {
                        char plan[64];
                        if ((r + 2 * h + i / 2 + j + grown) % 3 != 0 && !all_products())
                            continue;
                        n_plans++;
                        et_letters(plan, r, h, n_layers - r - h);
                        check_restore(&k, &ref, "none", plan, n, "a tail");
                    }
                }
                check_restore(&k, &ref, "both", "kv", n, "going on from a tail");
                n = n < 192 ? 192 : n; /* the tail of a document is not superseded */
            }
            stack_close(&k);
        }
        run_free(&ref);
    }
    print_message("%d restores of tails, bit for bit\n", n_plans);
}

/* If a tail lacks records that are to be saved now, its rows are computed again, so that the full
 * chunk gets these records. If a tail lacks the records that the plan needs, it is not used. */
TEST(tails_that_lack_records)
{
    struct stack k;
    open_stack(&k, "synth:tiny-gqa", "bf16", 2, 512);
    k.platform.c_tok.b_s = 1e-3;
    struct run ref = run_once(&k, "none", "recompute");
    save_prefix(&k, "kv", 100);
    check_restore(&k, &ref, "kv", "auto", 100, "the same records");
    stack_close(&k);
    open_stack(&k, "synth:tiny-gqa", "bf16", 2, 512);
    k.platform.c_tok.b_s = 1e-3;
    save_prefix(&k, "kv", 100);
    check_restore(&k, &ref, "none", "auto", 100, "nothing to be saved");
    check_restore(&k, &ref, "both", "auto", 64, "more records");
    check_restore(&k, &ref, "none", "auto", 192, "the chunk of a tail");
    run_free(&ref);
    stack_close(&k);
}

/* Prefill in pieces of 1, 7, 64, 200 and all tokens, with 1 or 2 threads. State saved by one of
 * these is restored by all others. (Each of the three types takes half of these, by turns.) */
TEST(chunkings)
{
    static const int rows[] = {1, 7, 64, 200, 512};
    const char *model[MAX_MODELS];
    int n_models = models(model);
    for (int i = 0; i < n_models * 3; i++) {
        struct run ref = {0};
        bool has_ref = false;
        for (int c = 0; c < 10; c++) {
            struct stack k;
            if ((c + c / 2 + i) % 2 != 0 && !all_products())
                continue;
            open_stack(&k, model[i / 3], dtypes[i % 3], 1 + c % 2, rows[c / 2]);
            struct run r = run_once(&k, "both", "recompute");
            bool is_ref = !has_ref;
            has_ref = true;
            if (is_ref)
                ref = r;
            else if (!same_bits(&r, &ref))
                fail_msg("%s %s: prefill in steps of %d with %d threads differs",
                         model[i / 3], dtypes[i % 3], rows[c / 2], 1 + c % 2);
            char plan[32];
            et_letters(plan, 1, 2, k.model->cfg.n_layers - 3);
            check_plan(&k, &ref, plan, "chunkings");
            if (!is_ref)
                run_free(&r);
            stack_close(&k);
        }
        run_free(&ref);
    }
}

/* The same with quantised weights. Activations are rounded row by row, so a row does not depend on
 * the other rows of its batch. (Each type takes the first and a third of the sizes.) */
static void chunkings_of(const char *weights)
{
    static const int rows[] = {1, 2, 7, 64, 200, 512};
    for (int d = 0; d < 3; d++) {
        struct run ref = {0};
        for (int c = 0; c < 6; c++) {
            struct stack k;
            if (c % 3 != d && c > 0 && !all_products())
                continue;
            open_stack_as(&k, "synth:tiny-gqa", dtypes[d], weights, 1 + c % 2, rows[c]);
            struct run r = run_once(&k, "both", "recompute");
            if (c == 0)
                ref = r;
            else if (!same_bits(&r, &ref))
                fail_msg("%s %s: prefill in steps of %d differs", weights, dtypes[d],
                         rows[c]);
            check_plan(&k, &ref, "RHHK", weights);
            if (c > 0)
                run_free(&r);
            stack_close(&k);
        }
        run_free(&ref);
    }
}

TEST(chunkings_q8)
{
    chunkings_of("q8");
}

TEST(chunkings_q4)
{
    chunkings_of("q4");
}

/* In some layers W_k and W_v have different types. A layer and the projection of hidden states then
 * make two products instead of one. */
TEST(w_v_of_another_type)
{
    static const char *const files[] = {"layers", "six"};
    for (int i = 0; i < 2 * 3; i++) {
        struct stack k;
        char path[64], plan[64];
        snprintf(path, sizeof path, "tests/model/golden/gguf/%s.gguf", files[i / 3]);
        open_stack_as(&k, path, dtypes[i % 3], "q4", 1 + i % 2, i % 2 == 0 ? 512 : 7);
        int n_layers = k.model->cfg.n_layers;
        struct run ref = run_once(&k, "both", "recompute");
        for (int r = 0; r <= n_layers; r++)
            for (int h = 0; r + h <= n_layers; h++) {
                et_letters(plan, r, h, n_layers - r - h);
                check_plan(&k, &ref, plan, path);
            }
        run_free(&ref);
        stack_close(&k);
    }
}

TEST(chunkings_bf16r)
{
    chunkings_of("bf16r");
}

/* Several sequences run in one batch, prefill beside decode. Each gives the same result as
 * alone. */
TEST(batch_composition)
{
    struct err err = {0};
    struct stack_opts o = {.user.model = "synth:tiny-gqa",
                           .user.dtype = "bf16",
                           .user.threads = 2,
                           .step_rows = 50,
                           .user.max_context = 256,
                           .user.max_sequences = 3,
                           .user.store_in_memory = true,
                           .no_profile = true,
                           .user.no_reuse = true};
    struct stack k;
    int32_t prompt[N_PROMPT];
    uint64_t alone[3];
    struct seq *s[3];
    assert_int_equal(stack_open(&o, &k, &err), 0);
    make_prompt(k.model, prompt);
    struct et_ask a = {.max_tokens = N_GENERATE, .plan = "recompute", .temperature = 1};
    for (int together = 0; together < 2; together++) {
        for (int i = 0; i < 3; i++) {
            a.prompt = prompt + 10 * i;
            a.n_prompt = 30 + 50 * i;
            a.seed = (uint64_t)i;
            s[i] = et_add(&k, &a);
            if (together == 0) {
                assert_int_equal(engine_run(k.engine, &err), 0);
                alone[i] = seq_outcome(s[i])->r.logits_digest;
                assert_true(alone[i] != 0);
                engine_remove(k.engine, s[i]);
            }
        }
        if (together == 1) {
            assert_int_equal(engine_run(k.engine, &err), 0);
            for (int i = 0; i < 3; i++) {
                assert_true(seq_outcome(s[i])->r.logits_digest == alone[i]);
                engine_remove(k.engine, s[i]);
            }
        }
    }
    stack_close(&k);
}

/* --- it can fail ------------------------------------------------------------------------------ */

/* Copies a context from one store to another. One element of one record is changed under a right
 * checksum, as if the store lied. */
static void copy_context(struct stack *from, struct stack *to, int bad_layer,
                         enum store_kind kind)
{
    struct err err = {0};
    struct store_hit hits[N_CHUNKS];
    struct store_reader *reader;
    int32_t prompt[N_PROMPT];
    int n_hits, n_layers = from->model->cfg.n_layers;
    struct chain c;
    make_prompt(from->model, prompt);
    chain_init(&c, &from->fingerprint, NULL);
    chain_extend(&c, prompt, N_PROMPT);
    n_hits = store_lookup(from->store, NULL, c.keys, N_CHUNKS, hits, NULL, 0);
    assert_int_equal(n_hits, N_CHUNKS);
    size_t room = round_up(STORE_CHUNK_TOKENS * model_kv_bytes(from->model, 0),
                           STORE_ALIGN);
    uint8_t *staging = mem_map(2 * room);
    assert_int_equal(store_reader_open(from->store, 4, staging, 2 * room, &reader, &err),
                     0);
    for (int i = 0; i < N_CHUNKS; i++) {
        struct store_record rec[2 * STORE_MAX_LAYERS];
        int n = 0;
        for (int l = 0; l < n_layers; l++) {
            for (int kd = 0; kd < STORE_KINDS; kd++) {
                struct store_read rd = {.hit = &hits[i],
                                        .layer = l,
                                        .kind = (enum store_kind)kd,
                                        .dst = staging};
                assert_int_equal(store_reader_read(reader, &rd, &err), 0);
                uint8_t *copy = xmalloc(rd.n_bytes);
                memcpy(copy, rd.bytes, rd.n_bytes);
                if (i == 1 && l == bad_layer && kd == (int)kind)
                    /* the top bit of an element's exponent */
                    copy[rd.n_bytes / 2 + 1] ^= 0x40;
                rec[n++] = (struct store_record){.layer = l,
                                                 .kind = (enum store_kind)kd,
                                                 .bytes = copy,
                                                 .n_bytes = rd.n_bytes};
            }
        }
        struct store_chunk chunk = {.key = c.keys[i],
                                    .parent = *chain_parent(&c, i),
                                    .fingerprint = from->fingerprint,
                                    .chunk_idx = (uint32_t)i,
                                    .records = rec,
                                    .n_records = n};
        memcpy(chunk.tokens, prompt + i * STORE_CHUNK_TOKENS, sizeof chunk.tokens);
        assert_int_equal(store_append(to->store, &chunk, &err), 0);
        while (n > 0)
            free((void *)(uintptr_t)rec[--n].bytes);
    }
    assert_int_equal(store_commit(to->store, &err), 0);
    store_release(from->store, hits, n_hits);
    store_reader_close(reader);
    mem_unmap(staging, 2 * room);
    chain_deinit(&c);
}

TEST(one_wrong_element_is_seen)
{
    struct stack good;
    open_stack(&good, "synth:tiny-mha", "bf16", 1, 512);
    struct run ref = run_once(&good, "both", "recompute");
    for (int kind = 0; kind < STORE_KINDS; kind++) {
        struct stack bad;
        open_stack(&bad, "synth:tiny-mha", "bf16", 1, 512);
        copy_context(&good, &bad, 2, (enum store_kind)kind);
        struct run r = run_once(&bad, "none", kind == STORE_KV ? "kv" : "hidden");
        assert_int_equal(r.n_cached, N_CHUNKS * STORE_CHUNK_TOKENS);
        assert_true(r.digest != ref.digest);
        assert_true(memcmp(r.kv, ref.kv, ref.kv_bytes) != 0);
        run_free(&r);
        /* records of the other kind are unchanged, so a restore from them is right */
        r = run_once(&bad, "none", kind == STORE_KV ? "hidden" : "kv");
        assert_true(same_bits(&r, &ref));
        run_free(&r);
        stack_close(&bad);
    }
    run_free(&ref);
    stack_close(&good);
}
