/* test_recurrent.c - models with recurrent layers: a state that was replayed from saved inputs is
 * bit-equal to one that was never evicted.
 *
 * A run without a store gives the reference.  Then a prefix of n tokens is saved and the whole
 * prompt is restored behind it, for every n around two chunks, by plans of every kind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "io/io.h"
#include "save/snapshots.h"
#include "save/repack.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 205, N_GENERATE = 6, N_LONG = 440 };

static int32_t prompt[N_PROMPT];

/* The model of the test that runs, one for each kind of recurrent layer. */
static const char *shape;

static int use(void **state)
{
    shape = *state;
    return 0;
}

static void open_hybrid(struct stack *k, const char *dtype, bool has_store, int step_rows)
{
    struct stack_opts o = {.user.model = shape,
                           .user.dtype = dtype,
                           .user.threads = 2,
                           .user.max_context = 256,
                           .user.max_sequences = 3,
                           .user.store_in_memory = has_store,
                           .user.no_reuse = has_store,
                           .step_rows = step_rows};
    et_open(k, &o);
    et_prompt(prompt, N_PROMPT, 7);
}

/* Returns a run of the whole prompt that is never evicted. */
static struct et_run alone(const char *dtype, int step_rows)
{
    struct stack k;
    struct et_run r;
    open_hybrid(&k, dtype, false, step_rows);
    assert_int_equal(et_run(&k,
                            &(struct et_ask){.prompt = prompt,
                                             .n_prompt = N_PROMPT,
                                             .max_tokens = N_GENERATE},
                            &r),
                     0);
    stack_close(&k);
    return r;
}

/* Saves n tokens of the prompt, and restores them for the whole prompt. Without a store the
 * second run goes on from the state that the first one leaves on the device. */
static void check_cut(struct stack *k, const struct et_run *want, int n, const char *save,
                      const char *plan)
{
    static int n_checks;
    char salt[80];
    struct et_run r;
    snprintf(salt, sizeof salt, "%d: %d tokens, %s, %s", n_checks++, n, save, plan);
    struct et_ask a = {
        .prompt = prompt, .n_prompt = n, .max_tokens = 1, .save = save, .salt = salt};
    assert_int_equal(et_run(k, &a, &r), 0);
    assert_int_equal(r.committed, k->store != NULL ? n : 0);
    a.n_prompt = N_PROMPT;
    a.max_tokens = N_GENERATE;
    a.plan = plan;
    assert_int_equal(et_run(k, &a, &r), 0);
    et_same(&r, want, salt);
    if (strcmp(plan, "recompute") != 0 && r.n_cached != n)
        fail_msg("%s: %d tokens came back: %s", salt, r.n_cached, r.miss);
    assert_int_equal(r.n_device, k->store != NULL ? 0 : n);
}

static void every_cut(void **state)
{
    static const char *const plans[] = {"hidden", "kv",   "RHHK", "RRHK",
                                        "RRRK",   "RRRH", "auto", "recompute"};
    static const char *const dtypes[] = {"f32", "bf16"};
    for (int d = 0; d < 2; d++) {
        struct et_run want = alone(dtypes[d], 512);
        struct stack k, device;
        open_hybrid(&k, dtypes[d], true, 512);
        open_hybrid(&device, dtypes[d], false, 512);
        for (int n = 1; n <= 200; n++) {
            check_cut(&device, &want, n, "none", "auto");
            bool near = n % 64 <= 1 || n % 64 == 63;
            check_cut(&k, &want, n, d == 0 ? "both" : "hidden", plans[n % 7]);
            for (int i = 0; near && i < 8; i++)
                check_cut(&k, &want, n, "both", plans[i]);
        }
        stack_close(&k);
        stack_close(&device);
    }
}

static void every_step(void **state)
{
    static const int rows[] = {3, 64, 100};
    struct et_run want = alone("f32", 512);
    for (int i = 0; i < 3; i++) {
        struct et_run r = alone("f32", rows[i]);
        et_same(&r, &want, "steps of other sizes");
    }
}

/* A conversation of several turns with a branch, over a store on a disk that is opened anew before
 * each turn. */
static void turns_and_branches(void **state)
{
    struct io *io = et_disk(3, 1 << 28);
    int32_t text[240];
    int n = 0;
    for (int turn = 0; turn < 4; turn++) {
        struct et_run got, want;
        struct stack k;
        int grows = 17 + 22 * turn;
        et_prompt(text + n, grows, (uint64_t)turn);
        n += grows;
        const struct et_ask plain = {.prompt = text, .n_prompt = n, .max_tokens = 5};
        struct et_ask saving = plain;
        saving.save = "auto";
        open_hybrid(&k, "f32", false, 512);
        assert_int_equal(et_run(&k, &plain, &want), 0);
        stack_close(&k);
        struct stack_opts o = {.user.model = shape,
                               .user.max_context = 256,
                               .user.store = et_dirs,
                               .user.n_store = 1,
                               .user.no_reuse = true,
                               .io = io};
        et_open(&k, &o);
        int32_t last = text[n - 1];
        for (int branch = 0; branch < 2; branch++) {
            assert_int_equal(et_run(&k, &saving, &got), 0);
            if (branch == 0)
                et_same(&got, &want, "a turn after a restart");
            else
                assert_true(got.digest != want.digest);
            assert_true(branch == 1 || turn == 0 || got.n_cached >= n - grows - 1);
            text[n - 1] = 3 + (last + 1) % 400; /* the next one ends differently */
        }
        text[n - 1] = last;
        stack_close(&k);
        memcpy(text + n, want.tokens, 5 * sizeof *text);
        n += 5;
    }
    io_close(io);
}

/* --- snapshots -------------------------------------------------------------------------------- */

static int32_t longer[N_LONG];

/* hcache_opts.pack of the next stacks: "on" or "off". */
static const char *packing = "off";

static bool reuses;      /* whether the next stacks keep states on the device */
static int input_tokens; /* stack_opts.input_tokens of the next stacks */

/* Returns whether packing makes a snapshot smaller: a convolution's of 576 bytes stays. */
static bool packs(void)
{
    return strcmp(shape, "synth:tiny-conv") != 0;
}

/* Opens a stack over a store on `io`, or without a store. */
static void open_longer(struct stack *k, struct io *io, const char *dtype)
{
    struct stack_opts o = {.user.model = shape,
                           .user.dtype = dtype,
                           .user.threads = 2,
                           .user.max_context = 512,
                           .user.no_reuse = !reuses,
                           .user.max_sequences = 2,
                           .user.pack = packing,
                           .user.store = et_dirs,
                           .user.n_store = io != NULL ? 2 : 0,
                           .input_tokens = input_tokens,
                           .io = io};
    et_open(k, &o);
    et_prompt(longer, N_LONG, 8);
}

/* Returns the run of the first n tokens that is never evicted. */
static struct et_run never_evicted(const char *dtype, int n, int max_tokens)
{
    struct stack k;
    struct et_run r;
    const struct et_ask a = {.prompt = longer, .n_prompt = n, .max_tokens = max_tokens};
    open_longer(&k, NULL, dtype);
    assert_int_equal(et_run(&k, &a, &r), 0);
    stack_close(&k);
    return r;
}

/* Saves n tokens and restores them for all tokens: the states come from the last snapshot and are
 * replayed behind it. */
static void every_cut_behind_a_snapshot(void **state)
{
    static const char *const plans[] = {"hidden", "kv", "RRHK", "RRRR", "auto"};
    static const char *const dtypes[] = {"f32", "bf16"};
    int n_used = 0, n_replayed = 0;
    struct saver_stats st;
    for (int d = 0; d < 2; d++) {
        struct io *io = et_disk(5, 1 << 28);
        struct stack k;
        struct et_run want = never_evicted(dtypes[d], N_LONG, N_GENERATE), r;
        packing = d == 0 ? "on" : "off";
        open_longer(&k, io, dtypes[d]);
        for (int n = 250; n <= 400; n += n % 64 <= 1 || n % 64 == 63 ? 1 : 7) {
            char salt[40];
            const char *plan = plans[n % 5];
            snprintf(salt, sizeof salt, "%d tokens, %s", n, plan);
            struct et_ask a = {.prompt = longer,
                               .n_prompt = n,
                               .max_tokens = 1,
                               .save = "both",
                               .salt = salt};
            assert_int_equal(et_run(&k, &a, &r), 0);
            a.n_prompt = N_LONG;
            a.max_tokens = N_GENERATE;
            a.plan = plan;
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &want, salt);
            if (strcmp(plan, "auto") == 0)
                continue;
            int end = (n - 1) / 64 * 64;
            int place = end >= SNAPSHOT_LEAST ? end : n >= SNAPSHOT_LEAST ? n : 0;
            assert_int_equal(r.n_cached, n);
            if (strcmp(plan, "RRRR") == 0) /* attention wants the whole input */
                place = 0;
            assert_int_equal(r.restore.snapshot_tokens, place);
            n_used += place > 0;
            n_replayed += place > 0 && place < n;
        }
        saver_stats(k.saver, &st);
        assert_int_equal(st.n_packed > 0, d == 0 && packs());
        stack_close(&k);
        io_close(io);
    }
    assert_in_range(n_used, 20, 1000);
    assert_in_range(n_replayed, 20, 1000);
}

/* Packs what was stored as it is. Returns the number of chunks, snapshots among them. */
static uint64_t pack_later(struct store *s)
{
    struct repack *r;
    struct repack_counts n;
    assert_int_equal(repack_open(s, &r, NULL), 0);
    for (bool more = true; more;)
        assert_int_equal(repack_step(r, &more, NULL), 0);
    repack_counts(r, &n);
    repack_close(r);
    return n.n_chunks;
}

/* Without inputs (--save kv) a context comes back up to its last snapshot. Without a snapshot the
 * recurrent layers are recomputed. Snapshots are packed at once, or later. */
static void states_alone(void **state)
{
    static const int n_saved[] = {200, 256, 300, 384, 400};
    struct io *io = et_disk(11, 1 << 28);
    struct et_run want = never_evicted("bf16", N_LONG, N_GENERATE);
    struct stack k;
    open_longer(&k, io, "bf16");
    for (int i = 0; i < 5; i++) {
        struct et_run r;
        struct saver_stats before, st;
        char salt[16];
        int n = n_saved[i], end = (n - 1) / 64 * 64;
        int place = end >= SNAPSHOT_LEAST ? end : n >= SNAPSHOT_LEAST ? n : 0;
        snprintf(salt, sizeof salt, "%d", n);
        k.o.user.pack = i % 2 == 0 ? "on" : "off";
        struct et_ask a = {
            .prompt = longer, .n_prompt = n, .max_tokens = 1, .save = "kv", .salt = salt};
        saver_stats(k.saver, &before);
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_int_equal(r.committed, n);
        saver_stats(k.saver, &st);
        assert_int_equal(st.n_packed > before.n_packed, place > 0 && i % 2 == 0 && packs());
        if (i % 2 != 0)
            assert_int_equal(pack_later(k.store) > 0, place > 0 && packs());
        a.n_prompt = N_LONG;
        a.max_tokens = N_GENERATE;
        a.plan = "kv";
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &want, salt);
        assert_int_equal(r.n_cached, place > 0 ? place : n);
        assert_int_equal(r.restore.snapshot_tokens, place);
        assert_int_equal(r.plan.n_r, place > 0 ? 0 : 3);
    }
    stack_close(&k);
    io_close(io);
}

/* Writes for each full chunk of the first n tokens whether it has inputs of a recurrent layer. */
static void inputs_of(struct stack *k, int n, char *out)
{
    int n_links = 0, l = 0;
    struct sha256 key = store_root_key(&k->fingerprint, NULL);
    while (!config_is_recurrent(&k->model->cfg, l))
        l++;
    for (int c = 0; c < n / 64; c++)
        key = store_chunk_key(&key, longer + c * 64);
    struct store_link *links = store_chain_of(k->store, &key, &n_links);
    for (int c = 0; c < n_links; c++)
        out[c] = store_mask_has(&links[c].mask, l, STORE_HIDDEN) ? 'i' : '-';
    out[n_links] = 0;
    free(links);
    assert_true(store_audit(k->store));
}

/* A context loses the inputs of old tokens that a snapshot follows, and comes back behind it. A
 * request that leaves the context earlier has the same bits, and takes a snapshot where it leaves.
 * So has one that finds the snapshot damaged. */
static void old_inputs_go(void **state)
{
    static const char *const plans[] = {"auto", "hidden", "kv"};
    static const int n_kept[] = {64, 128, 0}; /* 0: all of so short a context */
    static const char *const kept[] = {"-----i", "----ii", "iiiiii"};
    for (int i = 0; i < 3; i++) {
        struct io *io = et_disk(20, 1 << 28);
        struct et_run want = never_evicted("bf16", N_LONG, N_GENERATE), r;
        struct et_run left = never_evicted("bf16", 350, N_GENERATE);
        struct et_ask a = {
            .prompt = longer, .n_prompt = 400, .max_tokens = 1, .save = "both"};
        char has[8];
        struct stack k;
        input_tokens = n_kept[i];
        open_longer(&k, io, "bf16");
        a.n_prompt = 250; /* too short for a snapshot */
        (void)et_must_run(&k, &a);
        inputs_of(&k, 250, has);
        assert_string_equal(has, "iii");
        a.n_prompt = 400;
        (void)et_must_run(&k, &a);
        inputs_of(&k, 400, has);
        assert_string_equal(has, kept[i]);
        stack_close(&k);
        open_longer(&k, io, "bf16");
        inputs_of(&k, 400, has);
        assert_string_equal(has, kept[i]);
        a = (struct et_ask){.prompt = longer,
                            .n_prompt = N_LONG,
                            .max_tokens = N_GENERATE,
                            .save = "none",
                            .plan = plans[i]};
        r = et_must_run(&k, &a);
        et_same(&r, &want, "behind the snapshot");
        assert_int_equal(r.n_cached, 400);
        a.n_prompt = 350;
        a.save = "both";
        r = et_must_run(&k, &a);
        et_same(&r, &left, "before the snapshot");
        r = et_must_run(&k, &a);
        et_same(&r, &left, "there again");
        assert_true(i == 0 || r.restore.snapshot_tokens == 320); /* auto may recompute */
        struct sha256 key = store_root_key(&k.fingerprint, NULL);
        struct store_hit hit;
        for (int c = 0; c < 6; c++)
            key = store_chunk_key(&key, longer + c * 64);
        key = store_state_key(&key);
        assert_true(store_pin(k.store, &key, &hit));
        store_condemn(k.store, &hit, "for a test");
        store_release(k.store, &hit, 1);
        a.n_prompt = N_LONG;
        a.save = "none";
        r = et_must_run(&k, &a);
        et_same(&r, &want, "without the snapshot");
        stack_close(&k);
        io_close(io);
    }
    input_tokens = 0;
}

/* A turn ends inside a chunk. The next turn, and another one from the same place, resume there. */
static void the_end_of_a_turn(void **state)
{
    struct io *io = et_disk(6, 1 << 28);
    struct stack k;
    struct et_run first, r, want;
    int32_t text[N_LONG];
    open_longer(&k, io, "f32");
    struct et_ask a = {
        .prompt = longer, .n_prompt = 100, .max_tokens = 230, .save = "auto"};
    assert_int_equal(et_run(&k, &a, &first), 0);
    assert_int_equal(first.committed, 329); /* the last token is not computed */
    stack_close(&k);
    for (int branch = 0; branch < 3; branch++) {
        memcpy(text, longer, 100 * sizeof *text);
        memcpy(text + 100, first.tokens, 230 * sizeof *text);
        et_prompt(text + 330, N_LONG - 330, (uint64_t)(20 + branch));
        const struct et_ask next = {
            .prompt = text, .n_prompt = N_LONG, .max_tokens = N_GENERATE, .save = "auto"};
        open_longer(&k, NULL, "f32");
        assert_int_equal(et_run(&k, &next, &want), 0);
        stack_close(&k);
        open_longer(&k, io, "f32");
        assert_int_equal(et_run(&k, &next, &r), 0);
        et_same(&r, &want, "a turn from the end of another");
        assert_int_equal(r.n_cached, 329);
        assert_int_equal(r.restore.snapshot_tokens, 329);
        stack_close(&k);
    }
    io_close(io);
}

/* The third context that shares its first tokens with others resumes where they part: from the
 * store or from the device. */
static void a_branch(void **state)
{
    struct io *io = et_disk(7, 1 << 28);
    const int place = reuses ? 0 : 320, places[] = {0, 0, place, place};
    struct stack k;
    open_longer(&k, io, "f32");
    for (int i = 0; i < 4; i++) {
        struct et_run r, want;
        struct stack alone_k;
        et_prompt(longer + 330, N_LONG - 330, (uint64_t)(30 + i));
        struct et_ask a = {
            .prompt = longer, .n_prompt = N_LONG, .max_tokens = N_GENERATE, .save = "auto"};
        struct stack_opts o = {.user.model = shape, .user.max_context = 512};
        et_open(&alone_k, &o);
        assert_int_equal(et_run(&alone_k, &a, &want), 0);
        stack_close(&alone_k);
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &want, "a branch");
        assert_int_equal(r.n_cached, i == 0 ? 0 : 320);
        assert_int_equal(r.n_device, reuses && i > 1 ? 320 : 0);
        assert_int_equal(r.restore.snapshot_tokens, places[i]);
    }
    stack_close(&k);
    io_close(io);
}

static void a_branch_on_the_device(void **state)
{
    reuses = true;
    a_branch(state);
    reuses = false;
}

/* The store's states are taken in place of the device's where they go much farther. */
static void the_store_goes_farther(void **state)
{
    struct io *io = et_disk(11, 1 << 28);
    struct et_run r, want = never_evicted("f32", N_LONG, N_GENERATE);
    struct stack k;
    for (int save_kv = 0; save_kv < 2; save_kv++) {
        reuses = false;
        open_longer(&k, io, "f32");
        struct et_ask a = {.prompt = longer,
                           .n_prompt = 420,
                           .max_tokens = 1,
                           .save = save_kv ? "kv" : "hidden",
                           .salt = save_kv ? "kv" : ""};
        assert_int_equal(et_run(&k, &a, &r), 0);
        stack_close(&k);
        reuses = true;
        open_longer(&k, io, "f32");
        a.n_prompt = 90;
        assert_int_equal(et_run(&k, &a, &r), 0); /* leaves its state on the device */
        a.n_prompt = N_LONG;
        a.max_tokens = N_GENERATE;
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &want, "the store goes farther");
        assert_int_equal(r.n_device, 0);
        assert_int_equal(r.n_cached, save_kv ? 384 : 420); /* the end, or the snapshot */
        stack_close(&k);
    }
    reuses = false;
    io_close(io);
}

/* Returns the place of the first state in a segment file of `dir`, or -1. Extents begin with a
 * header whose tokens are at byte 176 (docs/STORE_FORMAT.md). */
static int64_t find_state(struct io *io, const char *dir, char *path, size_t path_bytes)
{
    struct io_names names = {0};
    int64_t found = -1;
    assert_int_equal(io_list(io, dir, &names, NULL), 0);
    for (size_t i = 0; found < 0 && i < names.n; i++) {
        struct io_stat st;
        struct io_file *f;
        if (strncmp(names.name[i], "seg", 3) != 0)
            continue;
        snprintf(path, path_bytes, "%s/%s", dir, names.name[i]);
        assert_int_equal(io_stat(io, path, &st, NULL), 0);
        uint8_t *all = xmalloc(st.size_bytes);
        assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
        assert_int_equal(io_file_pread(f, all, st.size_bytes, 0, NULL), 0);
        io_file_close(f);
        for (uint64_t at = 0; found < 0 && at + 8192 <= st.size_bytes; at += 4096) {
            int32_t token;
            memcpy(&token, all + at + 176, sizeof token);
            if (memcmp(all + at, "HCEXTENT", 8) == 0 && token == STORE_STATE_TOKEN)
                found = (int64_t)at + 4096;
        }
        free(all);
    }
    io_names_free(&names);
    return found;
}

/* A damaged snapshot is not used: the states are replayed from the first token. It is gone then. */
static void damage(void **state)
{
    static const int64_t offsets[] = {0, 70, 500}; /* the count of tokens, and inputs */
    struct et_run want = never_evicted("f32", N_LONG, N_GENERATE);
    for (int i = 0; i < 3; i++)
        for (int dir = 0; dir < 2; dir++) {
            struct io *io = et_disk(9, 1 << 28);
            struct stack k;
            struct et_run r;
            char path[80];
            struct et_ask a = {
                .prompt = longer, .n_prompt = 300, .max_tokens = 1, .save = "both"};
            packing = i > 0 ? "on" : "off";
            open_longer(&k, io, "f32");
            assert_int_equal(et_run(&k, &a, &r), 0);
            assert_true(r.committed == 300);
            int64_t at = find_state(io, et_dirs[dir], path, sizeof path);
            assert_true(at > 0);
            assert_int_equal(io_sim_flip(io, path, (uint64_t)(at + offsets[i]), 3), 0);
            stack_close(&k);
            open_longer(&k, io, "f32");
            a.n_prompt = N_LONG;
            a.max_tokens = N_GENERATE;
            a.plan = i == 0 ? "RRHK" : "hidden";
            a.save = "none";
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &want, "a damaged snapshot");
            assert_int_equal(r.n_cached, 300);
            assert_int_equal(r.restore.snapshot_tokens, 0);
            assert_true(r.restore.has_lost_snapshot);
            assert_int_equal(et_run(&k, &a, &r), 0);
            et_same(&r, &want, "after a damaged snapshot");
            assert_int_equal(r.n_cached, 300);
            assert_false(r.restore.has_lost_snapshot);
            stack_close(&k);
            io_close(io);
        }
    packing = "off";
}

static int count_states(void *arg, const struct store_entry *e)
{
    const struct sha256 key = store_state_key(&e->parent);
    *(int *)arg += memcmp(&key, &e->key, sizeof key) == 0;
    return 0;
}

static int n_states(struct stack *k)
{
    int n = 0;
    assert_int_equal(store_each(k->store, count_states, &n, NULL), 0);
    return n;
}

/* A snapshot goes with the chunks that it stands behind. */
static void erasing(void **state)
{
    struct io *io = et_disk(10, 1 << 28);
    struct stack k;
    struct et_run r;
    struct err err = {0};
    struct store_erased gone;
    struct sha256 keys[N_LONG / 64], key;
    struct et_ask a = {.prompt = longer, .n_prompt = 400, .max_tokens = 1, .save = "both"};
    open_longer(&k, io, "f32");
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(n_states(&k), 1);
    struct sha256 root = store_root_key(&k.fingerprint, NULL);
    for (int i = 0; i < 6; i++)
        keys[i] = store_chunk_key(i == 0 ? &root : &keys[i - 1], longer + 64 * i);
    key = store_partial_key(&keys[5], longer + 384, 16);
    /* the tail first: it is what continues the last full chunk */
    assert_int_equal(store_erase(k.store, &key, 1, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 1);
    assert_int_equal(n_states(&k), 1);
    assert_int_equal(store_erase(k.store, keys, 6, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 7);
    assert_int_equal(gone.n_shared, 0);
    assert_int_equal(n_states(&k), 0);
    stack_close(&k);
    io_close(io);
}

/* Sequences of one batch, and sequences that lose their place, have the results that each has
 * alone. */
static void batches_and_preemption(void **state)
{
    struct err err = {0};
    for (int stored = 0; stored < 2; stored++) {
        uint64_t alone_digest[4];
        struct stack k;
        struct stack_opts o = {.user.model = shape,
                               .user.speculate = "7",
                               .user.threads = 2,
                               .user.max_context = 192,
                               .user.max_sequences = 3,
                               .user.kv_tokens = 256, /* four blocks */
                               .user.store_in_memory = stored == 1,
                               .step_rows = 50};
        et_open(&k, &o);
        et_prompt(prompt, N_PROMPT, 7);
        for (int together = 0; together < 2; together++) {
            struct seq *s[4];
            for (int i = 0; i < 4; i++) {
                const struct et_ask a = {.prompt = prompt + 10 * i,
                                         .n_prompt = 30 + 20 * i,
                                         .max_tokens = 60,
                                         .temperature = 1,
                                         .seed = (uint64_t)i,
                                         .save = stored == 1 ? "both" : "none",
                                         .salt = together == 0 ? "alone" : "together"};
                s[i] = et_add(&k, &a);
                if (together == 0) {
                    assert_int_equal(engine_run(k.engine, &err), 0);
                    alone_digest[i] = seq_outcome(s[i])->r.logits_digest;
                    engine_remove(k.engine, s[i]);
                }
            }
            if (together == 0)
                continue;
            assert_int_equal(engine_run(k.engine, &err), 0);
            struct engine_stats stats;
            engine_stats(k.engine, &stats);
            assert_true(stats.n_preempted > 0);
            for (int i = 0; i < 4; i++) {
                assert_int_equal(seq_outcome(s[i])->finish, FINISH_LENGTH);
                assert_true(seq_outcome(s[i])->r.logits_digest == alone_digest[i]);
                engine_remove(k.engine, s[i]);
            }
        }
        stack_close(&k);
    }
}

/* Guessed tokens change no bit of any answer, at any temperature. The state behind a turn that ends
 * with guesses is that of the tokens, and the next turn resumes there. */
static void guesses(void **state)
{
    enum { N = 4, N_MOST = 270 };
    static int32_t text[N][N_LONG];
    static const float temperatures[] = {0, 0.7F, 2};
    int64_t n_right = 0, n_wrong = 0;
    int n_snapshots = 0;
    struct stack with, without;
    struct stack_opts o = {.user.model = shape,
                           .user.dtype = "bf16",
                           .user.speculate = "15",
                           .user.threads = 2,
                           .user.max_context = 512,
                           .user.max_sequences = 2 * N,
                           .user.no_reuse = true,
                           .user.store_in_memory = true},
                      plain = o;
    plain.user.speculate = "off";
    plain.user.store_in_memory = false;
    et_open(&without, &plain);
    for (int t = 0; t < 3; t++) {
        o.user.no_reuse = t > 0; /* at first the next turns go on from the device */
        et_open(&with, &o);
        struct seq *s[N];
        struct et_ask ask[N];
        struct et_run a, b, want[N];
        struct err err = {0};
        for (int i = 0; i < N; i++) {
            int n = 100 - 17 * i;
            et_prompt(text[i], n, (uint64_t)(10 * t + i));
            ask[i] = (struct et_ask){.prompt = text[i],
                                     .n_prompt = n,
                                     .max_tokens = N_MOST - 3 * i,
                                     .temperature = temperatures[t],
                                     .seed = (uint64_t)i,
                                     .save = i % 2 == 0 ? "both" : "hidden"};
            assert_int_equal(et_run(&without, &ask[i], &want[i]), 0);
            /* guesses from the answer itself, in which some tokens are others */
            struct request *r = et_request(&with, &ask[i]);
            r->n_prediction = want[i].n_tokens;
            r->prediction = xmalloc(sizeof want[i].tokens);
            memcpy(r->prediction, want[i].tokens, sizeof want[i].tokens);
            for (int k = 5; k < r->n_prediction; k += 3 + k % (9 + 4 * i))
                r->prediction[k] = 3;
            assert_int_equal(et_submit(with.engine, r, &s[i], &err), 0);
        }
        assert_int_equal(engine_run(with.engine, &err), 0);
        for (int i = 0; i < N; i++) {
            n_right += seq_outcome(s[i])->r.guessed_right;
            n_wrong += seq_outcome(s[i])->r.guessed_tokens -
                       seq_outcome(s[i])->r.guessed_right;
            et_take(&with, s[i], &a);
            et_same(&a, &want[i], "guesses");
            int n = ask[i].n_prompt + a.n_tokens;
            memcpy(text[i] + ask[i].n_prompt, a.tokens,
                   (size_t)a.n_tokens * sizeof(int32_t));
            const struct et_ask next = {.prompt = text[i], .n_prompt = n, .max_tokens = 20};
            assert_int_equal(et_run(&with, &next, &a), 0);
            assert_int_equal(et_run(&without, &next, &b), 0);
            et_same(&a, &b, "the next turn");
            assert_int_equal(a.n_cached, n - 1);
            assert_int_equal(a.n_device, t > 0 ? 0 : n - 1);
            n_snapshots += a.restore.snapshot_tokens == n - 1;
        }
        stack_close(&with);
    }
    stack_close(&without);
    assert_true(n_right > 1000 && n_wrong > 1000);
    assert_int_equal(n_snapshots, 2 * N);
}

/* What a recurrent state cannot do is refused with what to do instead. */
static void refusals(void **state)
{
    static const struct {
        struct hcache_opts user;
        const char *says;
    } cases[] = {{{.dtype = "f16"}, "--dtype bf16"},
                 {{.weights = "q4"}, "use --weights q8"},
                 {{.tensor_parallel = 2}, "--tensor-parallel 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct stack k;
        struct stack_opts o = {.user = cases[i].user};
        o.user.model = shape;
        assert_int_not_equal(et_try_open(&k, &o, &err), 0);
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
        stack_close(&k);
    }
    struct err err = {0};
    struct stack k;
    open_hybrid(&k, "f32", true, 512);
    assert_int_equal(model_check_truncation(k.model, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--max-context"));
    stack_close(&k);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    static char *const shapes[] = {"synth:tiny-hybrid", "synth:tiny-conv",
                                   "synth:tiny-mamba"};
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } all[] = {
        {"every_cut", every_cut},
        {"every_step", every_step},
        {"turns_and_branches", turns_and_branches},
        {"batches_and_preemption", batches_and_preemption},
        {"guesses", guesses},
        {"refusals", refusals},
        {"every_cut_behind_a_snapshot", every_cut_behind_a_snapshot},
        {"states_alone", states_alone},
        {"old_inputs_go", old_inputs_go},
        {"the_end_of_a_turn", the_end_of_a_turn},
        {"a_branch", a_branch},
        {"a_branch_on_the_device", a_branch_on_the_device},
        {"the_store_goes_farther", the_store_goes_farther},
        {"damage", damage},
        {"erasing", erasing},
    };
    enum { N = sizeof all / sizeof all[0], N_SHAPES = sizeof shapes / sizeof shapes[0] };
    struct CMUnitTest tests[N_SHAPES * N];
    for (int i = 0; i < N_SHAPES * N; i++)
        tests[i] = (struct CMUnitTest){.name = all[i % N].name,
                                       .test_func = all[i % N].test,
                                       .setup_func = use,
                                       .initial_state = shapes[i / N]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
