/* life.c - see life.h. */
#include "tests/restore/life.h"

#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "restore/restore_impl.h"
#include "tests/restore/life_device.h"
#include "tests/restore/life_impl.h"
#include "tests/restore/turns.h"

/* [windows][is_split]. In a world with windows, the layers of one model see a window only; in the
 * other world the layers of both models see all tokens. is_split: the device has memory of its own;
 * otherwise its memory is unified. */
static struct world worlds[2][2];

void (*life_before_restart)(void);

/* --- one thing after another ------------------------------------------------------------------ */

static void cancel(struct life *f, struct slot *s)
{
    enum life_stage at = restore_found(s->r) == NULL ? LIFE_FINDING
                         : !s->is_started            ? LIFE_FOUND
                         : !restore_is_done(s->r)    ? LIFE_READING
                                                     : LIFE_DONE;
    f->counts->n_cancelled[at]++;
    restore_end(s->r);
    s->r = NULL;
    s->t = NULL;
}

static void move_restore(struct life *f, struct slot *s)
{
    const struct restore_found *found = restore_found(s->r);
    int n_back = 0;
    if (found == NULL)
        return;
    if (!s->is_started && life_restore_start(f, s, found, false))
        return;
    if (s->is_started) {
        life_check_ready(f, s);
        life_stall(f, s);
        if (!restore_is_done(s->r))
            return;
        n_back = life_check_restored(f, s);
    }
    life_save_open(f, s, n_back, n_back > 0 ? &found->hits[(n_back - 1) / 64] : NULL);
    restore_end(s->r);
    s->r = NULL;
}

static void move(struct life *f, struct slot *s)
{
    if (s->t == NULL && f->dram_bytes > 0 && !s->waits && life_below(f, 2) == 0) {
        s->waits = true;
        s->wanted = &s->w->text[life_below(f, 5) / 2];
        restore_pipeline_want(f->pipeline, s, s->wanted->chain.keys,
                              s->wanted->chain.n_chunks, life_below(f, 100));
    } else if (s->t == NULL) {
        /* The slot restores the text that was fetched for it, or its request was cancelled and it
         * takes another text. */
        s->t = s->waits && life_below(f, 4) != 0 ? s->wanted
                                                 : &s->w->text[life_below(f, 5) / 2];
        if (s->waits)
            restore_pipeline_want_end(f->pipeline, s);
        s->waits = false;
        life_erase_begin(f, s);
        life_restore_begin(f, s, s->t->n - (int)life_below(f, 3) * 40);
    } else if (s->r != NULL && life_below(f, life_has(f, LIFE_HANG) ? 8 : 60) == 0) {
        cancel(f, s);
    } else if (s->r != NULL) {
        move_restore(f, s);
    } else {
        life_note_committed(f, s);
        if (!life_save_some(f, s))
            life_save_end(f, s);
    }
}

/* Runs a work item.  Counts it if it ended groups of several layers: an item takes all groups of
 * one restore and kind that its budget allows. */
static bool work_item(struct life *f, int64_t budget)
{
    int before[N_SLOTS][STORE_MAX_LAYERS], most = 0;
    for (int i = 0; i < N_SLOTS; i++)
        if (f->slot[i].r != NULL)
            memcpy(before[i], f->slot[i].r->layer_left, sizeof before[i]);
    if (!restore_pipeline_work(f->pipeline, budget))
        return false;
    for (int i = 0; i < N_SLOTS; i++) {
        const struct restore *r = f->slot[i].r;
        int n = 0;
        for (int l = 0; r != NULL && l < f->w->m->cfg.n_layers; l++)
            n += r->layer_left[l] < before[i][l];
        most = n > most ? n : most;
    }
    f->counts->n_joint += most > 1 && !f->w->is_split;
    return true;
}

/* Runs a few work items of the compute lane, and sometimes waits for one.  Budgets are small
 * because the simulated clock hardly moves during compute. */
static void work(struct life *f)
{
    int64_t most = life_below(f, 3) == 0 ? RESTORE_NO_LIMIT : 300;
    for (uint64_t n = 1 + life_below(f, f->burst); n > 0; n--) {
        int64_t budget = most == RESTORE_NO_LIMIT ? most
                                                  : (int64_t)life_below(f, (uint64_t)most);
        if (!work_item(f, budget) &&
            (life_below(f, 4) == 0 || !restore_pipeline_wait(f->pipeline, 1000000)))
            break;
    }
}

static void end_slots(struct life *f)
{
    for (int i = 0; i < N_SLOTS; i++) {
        struct slot *s = &f->slot[i];
        if (s->t != NULL && s->r != NULL)
            cancel(f, s);
        else if (s->t != NULL)
            life_save_end(f, s);
    }
}

/* --- opening, closing and restarting ---------------------------------------------------------- */

/* Returns whether opening failed.  Only a life with trouble may fail, and err must have a reason.
 */
static bool may_fail(const struct life *f, int rc, const struct err *err, const char *what)
{
    if (rc != 0 && (life_is_calm(f) || err->msg[0] == 0))
        turns_fail("%s: %s (%s)", what, err_name(rc), err->msg);
    return rc != 0;
}

static void close_parts(struct life *f)
{
    struct store_dram dram = {0};
    restore_pipeline_destroy(f->pipeline);
    saver_destroy(f->saver);
    if (f->store != NULL)
        store_dram_stats(f->store, &dram);
    if (f->store != NULL && !store_audit(f->store))
        turns_fail("the store does not add up");
    f->counts->n_dram_reads += dram.n_reads;
    f->counts->n_demoted += dram.n_demoted;
    f->counts->n_promoted += dram.n_promoted;
    store_close(f->store);
    f->pipeline = NULL;
    f->saver = NULL;
    f->store = NULL;
}

/* Returns the bytes of a staging slot, which holds a group of eight records (restore.h). */
static size_t slot_bytes(const struct model *m)
{
    size_t h = round_up(64 * model_hidden_bytes(m), STORE_ALIGN);
    size_t kv = round_up(64 * model_kv_bytes(m, 0), STORE_ALIGN);
    return 8 * (h > kv ? h : kv);
}

static bool open_parts(struct life *f)
{
    static const char *const dirs[] = {"/store/a", "/store/b"};
    struct err err = {0};
    struct store_opts so = {.io = f->io,
                            .dirs = dirs,
                            .n_dirs = 2,
                            .segment_bytes = 1 << 20,
                            .dram_bytes = f->dram_bytes,
                            .stuck_ns = life_has(f, LIFE_STUCK)  ? 2000000
                                        : life_has(f, LIFE_HANG) ? 200000000
                                                                 : 0};
    if (may_fail(f, store_open(&so, &f->store, &err), &err, "opening the store"))
        return false;
    struct saver_opts vo = {.store = f->store,
                            .model = f->w->m,
                            .fingerprint = f->w->fingerprint,
                            .buffer_bytes = f->is_tight ? 1 : 8 << 20,
                            .max_batch_rows = MAX_ROWS};
    struct restore_pipeline_opts po = {
        .model = f->w->m,
        .store = f->store,
        .pool = f->w->pool,
        .work = f->w->work,
        .stream = f->w->stream,
        .staging_bytes = (3 + life_below(f, 4)) * slot_bytes(f->w->m),
        .direct = life_below(f, 3) == 0 ? RESTORE_DIRECT_OFF : RESTORE_DIRECT_AUTO,
        .max_tokens = f->w->m->max_ctx,
        .fetches = f->dram_bytes > 0};
    bool failed = may_fail(f, saver_create(&vo, &f->saver, &err), &err,
                           "creating a saver") ||
                  may_fail(f, restore_pipeline_create(&po, &f->pipeline, &err), &err,
                           "creating a restore pipeline");
    if (failed)
        close_parts(f);
    return !failed;
}

/* Saves and restores in an order that the seed decides. */
static void live(struct life *f)
{
    int n = life_has(f, LIFE_MEMORY) ? 60 : 40 + (int)life_below(f, 110);
    for (uint64_t k = life_has(f, LIFE_FLIP) ? life_below(f, 3) : 0; k > 0; k--)
        life_flip(f, &f->rng);
    f->has_other = pthread_create(&f->other, NULL, life_other_main, f) == 0;
    for (int i = 0; i < n; i++) {
        move(f, &f->slot[life_below(f, N_SLOTS)]);
        work(f);
        if (life_has(f, LIFE_HANG) && life_below(f, 12) == 0)
            io_sim_unstick(f->io);
    }
    end_slots(f);
    if (life_has(f, LIFE_HANG)) { /* the reads of restores that ended long ago end now */
        io_sim_fault_clear(f->io);
        io_sim_unstick(f->io);
    }
    f->quits = true;
    if (f->has_other)
        pthread_join(f->other, NULL);
    life_erase_check(f);
}

/* Waits until something changes. No simulated stall lasts an hour, so an hour without a change
 * means that a wake-up was lost. */
static void await_news(struct life *f)
{
    const int64_t hour_ns = (int64_t)3600 * 1000000000;
    int64_t until = clock_now_ns() + hour_ns;
    if (!restore_pipeline_wait(f->pipeline, hour_ns) || clock_now_ns() >= until)
        turns_fail("the compute lane waits for news that nobody tells");
}

/* Checks that all committed tokens are found and that everything found is restored. */
static void check_text(struct life *f, int i, bool must_have)
{
    struct slot *s = &f->slot[0];
    const struct restore_found *found;
    s->t = &f->w->text[i];
    life_restore_begin(f, s, s->t->n);
    while ((found = restore_found(s->r)) == NULL)
        await_news(f);
    int n = life_tokens_of(found, found->n_hits);
    if (must_have && n < f->committed[i])
        turns_fail("%lld tokens were committed, %d are found: %s",
                   (long long)f->committed[i], n, found->why);
    f->counts->n_committed += must_have ? (uint64_t)f->committed[i] : 0;
    if (life_restore_start(f, s, found, true)) {
        while (!restore_is_done(s->r))
            if (!restore_pipeline_work(f->pipeline, RESTORE_NO_LIMIT))
                await_news(f);
        (void)life_check_restored(f, s);
    }
    restore_end(s->r);
    *s = (struct slot){.w = s->w, .table = s->table};
}

static struct io *empty_disk(const struct world *w, uint64_t seed)
{
    struct io_sim_opts o = {.seed = seed};
    struct err err = {0};
    struct io *io = NULL;
    life_must(io_sim_open(&o, &io, &err), &err, "disk");
    life_must(io_mkdirs(io, "/store", NULL, &err), &err, "/store");
    if (w->is_split)
        life_device_disk(io, seed);
    return io;
}

/* Gets a disk for the life: an empty disk, or a copy of the disk on which all texts are stored. */
static void get_disk(struct life *f)
{
    struct err err = {0};
    if (life_has(f, LIFE_MEMORY) || life_below(f, 3) == 0) {
        f->io = empty_disk(f->w, f->rng.s);
        return;
    }
    life_must(io_sim_fork(f->w->full, f->rng.s, &f->io, &err), &err, "a full disk");
    if (f->w->is_split)
        life_device_disk(f->io, f->rng.s);
    for (int i = 0; i < N_TEXTS; i++)
        f->committed[i] = f->w->text[i].n;
}

static void life_main(void *arg)
{
    struct life *f = arg;
    get_disk(f);
    if (open_parts(f)) {
        life_trouble_begin(f);
        live(f);
        close_parts(f);
    }
    life_trouble_count(f);
    if (life_before_restart != NULL)
        life_before_restart();
    io_sim_fault_clear(f->io);
    io_sim_crash_at(f->io, IO_SIM_AT_OP, 0);
    io_sim_restart(f->io);
    bool kept = life_keeps(f);
    f->trouble &= 1u << LIFE_FLIP | 1u << LIFE_READ_FAIL | 1u << LIFE_LOSSY;
    if (open_parts(f)) {
        for (int i = 0; i < N_TEXTS; i++)
            check_text(f, i, kept);
        close_parts(f);
    }
    io_close(f->io);
}

/* Saves all texts on the disk of which lives get copies. The kinds of records differ between
 * chunks, so that a restore has many groups. */
static void fill_disk(void *arg)
{
    struct life *f = arg;
    struct slot *s = &f->slot[0];
    f->io = f->w->full = empty_disk(f->w, 1);
    (void)open_parts(f);
    for (int i = 0; i < N_TEXTS; i++) {
        s->t = &f->w->text[i];
        for (int64_t at = 0; at < s->t->n; at = s->until) {
            life_save_open(f, s, at, NULL);
            s->until = at + 64 < s->t->n ? at + 64 : s->t->n;
            while (life_save_some(f, s)) {
            }
            save_idle(s->q, s->t->tokens, s->n, NULL);
            save_close(s->q);
        }
    }
    if (saver_flush(f->saver, NULL) != 0)
        turns_fail("the texts are not saved");
    close_parts(f);
}

static struct life new_life(struct world *w, uint64_t seed, struct life_counts *counts)
{
    struct life f = {.w = w, .rng = {.s = rng_mix(seed)}, .counts = counts};
    for (int i = 0; i < N_SLOTS; i++)
        f.slot[i] = (struct slot){.w = w, .table = &w->table[i]};
    return f;
}

void life_prepare(void)
{
    struct life_counts unused = {0};
    log_set_level(LOG_QUIET);
    for (int split = 0; split < 2; split++) {
        struct world *all = &worlds[0][split], *windows = &worlds[1][split];
        world_open(all, "synth:tiny-mha", 1024, split != 0);
        world_make_texts(all, (const int[]){12 * 64 + 20, 11 * 64 + 37, 3 * 64 + 9}, 5 * 64,
                         477);
        world_open(windows, "tests/model/golden/families/mistral", 256, split != 0);
        world_make_texts(windows, (const int[]){3 * 64 + 50, 3 * 64 + 17, 64 + 33}, 2 * 64,
                         120);
        for (int i = 0; i < 2; i++) {
            struct life f = new_life(&worlds[i][split], 1, &unused);
            turns_run(&(struct turns_opts){.seed = 1}, fill_disk, &f, NULL);
        }
    }
}

void life_run(uint64_t seed, unsigned trouble, struct life_counts *counts)
{
    struct rng r = {.s = rng_mix(seed ^ 0x6c696665)};
    unsigned drawn = life_trouble_draw(&r);
    trouble = trouble == LIFE_DRAWN ? drawn : trouble;
    bool windows = (trouble >> LIFE_MEMORY & 1) != 0 || rng_below(&r, 3) == 0;
    bool split = rng_below(&r, 2) == 0;
    struct life f = new_life(&worlds[windows][split], seed, counts);
    struct turns_counts turns;
    struct life_reader_counts before = life_device_counts(), after;
    f.w->dev->checksums = split && rng_below(&r, 4) == 0 ? CHECKSUMS_HOST : CHECKSUMS_AUTO;
    f.trouble = trouble;
    f.burst = (const uint64_t[]){3, 100, 300}[rng_below(&r, 3)];
    f.is_tight = rng_below(&r, 3) == 0;
    f.dram_bytes = (const uint64_t[]){0, 1 << 20, 4 << 20}[rng_below(&r, 3)];
    counts->n_calm += life_is_calm(&f);
    turns_run(&(struct turns_opts){.seed = seed}, life_main, &f, &turns);
    after = life_device_counts();
    counts->n_lives++;
    counts->n_split += split;
    counts->n_batches += after.n_batches - before.n_batches;
    counts->n_refused += after.n_refused - before.n_refused;
    counts->n_broken += after.n_broken - before.n_broken;
    counts->n_stuck += after.n_cancels - before.n_cancels;
    counts->n_turns += turns.n_turns;
    counts->n_switches += turns.n_switches;
}

void life_release(void)
{
    for (int i = 0; i < 4; i++)
        world_close(&worlds[i / 2][i % 2]);
}
