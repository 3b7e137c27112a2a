/* test_windows.c - layers with a window keep their records only where requests resume, and what is
 * restored is bit-equal to state that was never evicted.
 *
 * The models of tests/model/golden/families that have layers of both kinds, with windows of 16 to
 * 24 tokens: behind a full chunk, one chunk is the whole window. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "io/io.h"
#include "save/repack.h"
#include "tests/engine/enginetest.h"

enum { N_TEXT = 250, N_GENERATE = 4 };

static const char *const families[] = {"cohere2",       "gemma2",  "gemma3",
                                       "gemma4",        "gpt-oss", "gpt-oss-mxfp4",
                                       "gemma4-layers", "olmo3",   "qwen2-window"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static int32_t text[N_TEXT];

/* How the next stacks keep state. */
struct kept {
    const char *pack;
    const unsigned char *key;
    uint64_t dram_bytes;
};
static const unsigned char secret[HCACHE_STORE_KEY_BYTES] =
    "a secret of 32 bytes for tests";
static const struct kept kinds[] = {
    {0}, {.pack = "on"}, {.key = secret, .dram_bytes = 4 << 20}};

/* Opens a stack over a store on `io`; NULL: without one. */
static void open_family(struct stack *k, const char *family, struct io *io, int kind)
{
    char path[128];
    snprintf(path, sizeof path, "tests/model/golden/families/%s", family);
    const struct kept *keeps = &kinds[kind % 3];
    struct stack_opts o = {.user.model = path,
                           .user.dtype = "bf16",
                           .user.threads = 2,
                           .user.max_context = 256,
                           .user.pack = keeps->pack,
                           .user.store_key = io != NULL ? keeps->key : NULL,
                           .user.dram_bytes = io != NULL ? keeps->dram_bytes : 0,
                           .user.store = et_dirs,
                           .user.n_store = io != NULL ? 2 : 0,
                           .io = io};
    et_open(k, &o);
}

/* Runs the first n tokens in a stack of its own, so that nothing is left on the device. */
static struct et_run run(const char *family, struct io *io, int kind, int n,
                         const char *save, const char *plan)
{
    struct stack k;
    struct et_run r;
    const struct et_ask a = {.prompt = text,
                             .n_prompt = n,
                             .max_tokens = N_GENERATE,
                             .save = save,
                             .plan = plan};
    open_family(&k, family, io, kind);
    assert_int_equal(et_run(&k, &a, &r), 0);
    stack_close(&k);
    return r;
}

/* Writes for each full chunk of the first n tokens which layers it has: W those with a window, F
 * the others, B both. */
static void layers_of(const char *family, struct io *io, int kind, int n, char *out)
{
    struct stack k;
    int n_links = 0;
    open_family(&k, family, io, kind);
    struct sha256 key = store_root_key(&k.fingerprint, NULL);
    for (int c = 0; c < n / 64; c++)
        key = store_chunk_key(&key, text + c * 64);
    struct store_link *links = store_chain_of(k.store, &key, &n_links);
    for (int c = 0; c < n_links; c++) {
        bool has[2] = {false, false};
        for (int l = 0; l < config_n_keeping(&k.model->cfg); l++)
            has[config_window(&k.model->cfg, l) > 0] |= store_mask_has(&links[c].mask, l,
                                                                       STORE_KV);
        out[c] = has[0] && has[1] ? 'B' : has[1] ? 'W' : has[0] ? 'F' : '-';
    }
    out[n_links] = 0;
    free(links);
    assert_true(store_audit(k.store));
    stack_close(&k);
}

/* A turn, the next turn after a restart, a shorter prompt that resumes elsewhere, and one that goes
 * on from there. */
static void check_turns(int f, const char *plan, const char *save)
{
    const char *family = families[f];
    struct io *io = et_disk(9, 1 << 28);
    struct et_run want[4], r;
    static const int n[] = {200, 240, 150, 190};
    char has[8];
    et_small_prompt(text, N_TEXT, 40);
    for (int i = 0; i < 4; i++)
        want[i] = run(family, NULL, f, n[i], "none", "recompute");
    r = run(family, io, f, n[0], save, plan);
    et_same(&r, &want[0], family);
    assert_int_equal(r.committed, n[0] + N_GENERATE - 1);
    layers_of(family, io, f, 192, has);
    assert_string_equal(has, "FFB"); /* the window of the end */
    r = run(family, io, f, n[1], save, plan);
    et_same(&r, &want[1], family);
    assert_in_range(r.n_cached, 192, 200);
    /* behind 128 tokens no window is kept: the request computes it, and keeps it from now on */
    r = run(family, io, f, n[2], save, plan);
    et_same(&r, &want[2], family);
    assert_int_equal(r.n_cached, 0);
    assert_non_null(strstr(r.miss, "the windows of layers that see"));
    layers_of(family, io, f, 192, has);
    assert_string_equal(has, "FBB");
    text[150] = 3 + (text[150] + 1) % 100;
    want[3] = run(family, NULL, f, n[3], "none", "recompute");
    r = run(family, io, f, n[3], save, plan);
    et_same(&r, &want[3], family);
    assert_in_range(r.n_cached, 128, 150);
    io_close(io);
}

TEST(turns_of_every_family)
{
    static const char *const plans[] = {"kv", "auto", "hidden", "R", "RR"};
    for (int f = 0; f < N_FAMILIES; f++) {
        struct stack k;
        open_family(&k, families[f], NULL, f);
        int n_layers = config_n_keeping(&k.model->cfg);
        stack_close(&k);
        for (int p = 0; p < 5; p++) {
            char plan[16];
            size_t n_r = strspn(plans[p], "R");
            snprintf(plan, sizeof plan, "%s", plans[p]);
            for (int l = 0; n_r > 0 && l < n_layers;
                 l++) /* the first layers are recomputed */
                plan[l] = (size_t)l < n_r ? 'R' : l % 2 != 0 ? 'K' : 'H';
            plan[n_r > 0 ? (size_t)n_layers : strlen(plans[p])] = 0;
            check_turns(f, plan, p == 0 ? "kv" : "both");
        }
    }
}

/* Power fails at many moments of a turn, also while records are dropped. The next turn restores
 * what is there, and its bits are those of a turn without a store. */
TEST(power_fails_while_windows_are_dropped)
{
    const char *family = "gemma3";
    int n_cached[2] = {0, 0};
    et_small_prompt(text, N_TEXT, 41);
    struct et_run want = run(family, NULL, 0, 240, "none", "recompute");
    uint64_t n_ops = 100;
    for (uint64_t at = 0; at <= n_ops; at += at == 0 ? 1 : 2) { /* 0: at the end */
        struct io *io = et_disk(at, 1 << 28);
        struct stack k;
        struct et_run r;
        const struct et_ask a = {
            .prompt = text, .n_prompt = 200, .max_tokens = N_GENERATE, .save = "both"};
        open_family(&k, family, io, (int)at);
        uint64_t before = io_sim_count(io, IO_SIM_AT_OP);
        io_sim_crash_at(io, IO_SIM_AT_OP, at);
        assert_int_equal(et_run(&k, &a, &r), 0);
        n_ops = at == 0 ? io_sim_count(io, IO_SIM_AT_OP) - before : n_ops;
        if (!io_sim_crashed(io))
            io_sim_crash(io);
        stack_close(&k);
        io_sim_restart(io);
        r = run(family, io, (int)at, 240, "both", "auto");
        et_same(&r, &want, "after a power failure");
        n_cached[r.n_cached > 0]++;
        r = run(family, io, (int)at, 240, "both", "kv");
        et_same(&r, &want, "once more");
        assert_in_range(r.n_cached, 192, 239);
        io_close(io);
    }
    print_message("%d moments of %d with state before\n", n_cached[1],
                  n_cached[0] + n_cached[1]);
    assert_true(n_cached[0] > 0 && n_cached[1] > 0);
}

/* Chunks that are packed later keep the records apart, so they can still be dropped. A pin keeps
 * the window behind its chunk, and a guarantee all records. */
TEST(packing_and_pins)
{
    struct io *io = et_disk(12, 1 << 28);
    struct stack k;
    struct err err = {0};
    struct sha256 keys[3];
    char has[8];
    et_small_prompt(text, N_TEXT, 42);
    (void)run("gemma3", io, 0, 130, "both", NULL);
    layers_of("gemma3", io, 0, 128, has);
    assert_string_equal(has, "FB");
    open_family(&k, "gemma3", io, 0);
    struct repack *p;
    assert_int_equal(repack_open(k.store, &p, NULL), 0);
    for (bool more = true; more;)
        assert_int_equal(repack_step(p, &more, NULL), 0);
    struct repack_counts packed;
    repack_counts(p, &packed);
    assert_int_equal(packed.n_chunks, 2);
    repack_close(p);
    stack_close(&k);
    (void)run("gemma3", io, 0, 240, "both", NULL);
    layers_of("gemma3", io, 0, 192, has);
    assert_string_equal(has, "FBB"); /* where the turn began, and its end */
    (void)run("gemma3", io, 0, 250, "both", NULL);
    layers_of("gemma3", io, 0, 192, has);
    assert_string_equal(has, "FFB"); /* the packed chunk has lost them, too */
    open_family(&k, "gemma3", io, 0);
    struct sha256 parent = store_root_key(&k.fingerprint, "b");
    for (int c = 0; c < 3; c++)
        parent = keys[c] = store_chunk_key(&parent, text + c * 64);
    assert_int_equal(store_pin_until(k.store, keys, 1, INT64_MAX / 4, &err), 0);
    struct et_ask a = {
        .prompt = text, .n_prompt = 200, .max_tokens = 1, .save = "kv", .salt = "b"};
    (void)et_must_run(&k, &a);
    int n = 0;
    struct store_link *links = store_chain_of(k.store, &keys[2], &n);
    assert_int_equal(n, 3);
    assert_true(store_mask_has(&links[0].mask, 0, STORE_KV) && links[0].is_pinned);
    assert_false(store_mask_has(&links[1].mask, 0, STORE_KV));
    assert_true(store_mask_has(&links[2].mask, 0, STORE_KV));
    free(links);
    struct store_guaranteed g;
    struct store_hit hit;
    const struct layer_set windowed = save_apart(&k.model->cfg);
    assert_int_equal(store_guarantee(k.store, keys, 3, INT64_MAX / 4, &g, &err), 0);
    assert_true(store_pin(k.store, &keys[0], &hit));
    assert_int_equal(store_load(k.store, &hit, &err), 0);
    assert_int_equal(store_drop_records(k.store, &hit, &windowed), 0);
    assert_int_equal(store_unpin_keys(k.store, &keys[2], 1, &err), 0);
    assert_true(store_drop_records(k.store, &hit, &windowed) > 0);
    store_release(k.store, &hit, 1);
    assert_true(store_audit(k.store));
    stack_close(&k);
    io_close(io);
}
