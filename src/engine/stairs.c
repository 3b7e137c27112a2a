/* stairs.c - see stairs.h. */
#include "engine/stairs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/step.h"
#include "engine/view.h"
#include "restore/stall.h"

enum { MAX_REPLAYS = 8 };

static const struct truncation *truncation_of(const struct seq *s)
{
    return &s->view.truncation;
}

static bool is_long(const struct seq *s)
{
    return truncation_of(s)->context > 0 && s->n_tokens > truncation_of(s)->context;
}

/* --- pins ------------------------------------------------------------------------------------- */

static void pin(struct seq *s, const struct sha256 *key)
{
    struct stairs *st = &s->stairs;
    struct store_hit hit;
    if (s->shared->store == NULL || !store_pin(s->shared->store, key, &hit))
        return;
    GROW(st->pins, st->n_pins, st->cap_pins);
    st->pins[st->n_pins++] = hit;
}

static void unpin_all(struct seq *s)
{
    if (s->stairs.n_pins > 0)
        store_release(s->shared->store, s->stairs.pins, s->stairs.n_pins);
    s->stairs.n_pins = s->stairs.n_former = 0;
}

/* Pins the chunks in view. A pin keeps all chunks before it in its stair. So the view needs one pin
 * at the end of each stair, and one at the end of the kept chunks. The last moved chunk ends a
 * stair: the present one begins behind it. */
static void pin_view(struct seq *s)
{
    int n = view_moved(&s->view) / STORE_CHUNK_TOKENS;
    int n_kept = truncation_of(s)->keep / STORE_CHUNK_TOKENS;
    for (int i = 0; i < n; i++) {
        int64_t behind = (int64_t)(view_chunk(&s->view, i) + 1) * STORE_CHUNK_TOKENS;
        if (i + 1 == n_kept || truncation_begins(truncation_of(s), behind))
            pin(s, &s->view.keys[i]);
    }
}

/* Pins the chunks that the stair before saw and the present stair has dropped. */
static void pin_dropped(struct seq *s)
{
    const struct truncation *t = truncation_of(s);
    struct stairs *st = &s->stairs;
    st->former_end = (int)(t->keep + s->view.cut) / STORE_CHUNK_TOKENS;
    st->former = st->former_end - (s->view.cut > 0 ? t->step / STORE_CHUNK_TOKENS : 0);
    for (int c = st->former; c < st->former_end; c++)
        pin(s, &s->chain.keys[c]);
    st->n_former = st->n_pins;
}

/* Sets the pins anew. New pins are set before old ones are released. */
static void pin_anew(struct seq *s)
{
    struct stairs old = s->stairs;
    s->stairs.pins = NULL;
    s->stairs.n_pins = s->stairs.cap_pins = s->stairs.n_former = 0;
    if (s->stairs.is_stepping)
        pin_dropped(s);
    pin_view(s);
    if (old.n_pins > 0)
        store_release(s->shared->store, old.pins, old.n_pins);
    free(old.pins);
}

/* Releases the dropped chunks: the first chunk of the present stair is durable, so this sequence
 * does not need them to continue. They become the store's first victims (store_drop), unless other
 * sequences still use them. */
static void let_go(struct seq *s)
{
    struct stairs *st = &s->stairs;
    int n = st->n_former;
    if (n == 0)
        return;
    store_release(s->shared->store, st->pins, n);
    st->n_pins -= n;
    st->n_former = 0;
    memmove(st->pins, st->pins + n, (size_t)st->n_pins * sizeof *st->pins);
    store_drop(s->shared->store, &s->chain.keys[st->former], st->former_end - st->former);
}

/* --- life ------------------------------------------------------------------------------------- */

/* Sets the first stair's view, which is the only view of a context that is not long. */
static void begin(struct seq *s)
{
    view_set(&s->view, &s->chain, s->tokens, s->n_tokens, 0);
    s->stairs.must_choose = is_long(s);
}

void stairs_init(struct seq *s)
{
    s->stairs.limit = INT_MAX;
    begin(s);
    if (s->stairs.must_choose && s->shared->saver != NULL)
        s->stairs.mark = saver_mark(s->shared->saver);
}

void stairs_deinit(struct seq *s)
{
    stairs_carry_no_more(s);
    unpin_all(s);
    free(s->stairs.pins);
}

void stairs_left(struct seq *s, int n_done)
{
    if (n_done >= view_moved(&s->view))
        s->stairs.n_left = view_token(&s->view, n_done);
    begin(s);
}

/* --- replaying without the store -------------------------------------------------------------- */

bool stairs_may_replay(const struct seq *s)
{
    return truncation_of(s)->context > 0 && s->shared->platform != NULL &&
           s->shared->n_carrying == 0 && carry_may(s->shared->model->dev) &&
           !seq_is_forced(s);
}

bool stairs_need_replay(const struct seq *s)
{
    return s->n_done < view_moved(&s->view);
}

double stairs_replay_s(const struct seq *s, int position)
{
    return staircase_price_s(s->shared->platform, truncation_of(s), 0,
                             view_token(&s->view, position));
}

bool stairs_replay(struct seq *s)
{
    if (!stairs_may_replay(s) ||
        !carry_begin(&s->stairs.carry, s->shared->model, truncation_of(s)))
        return false;
    s->shared->n_carrying++;
    s->shared->stats.n_replays++;
    return true;
}

void stairs_carry_no_more(struct seq *s)
{
    s->shared->n_carrying -= carry_is_on(&s->stairs.carry);
    carry_end(&s->stairs.carry);
}

void stairs_judge_saves(struct seq *s)
{
    struct stairs *st = &s->stairs;
    double again_s;
    if (!stairs_must_wait(s) || !stairs_may_replay(s)) {
        st->t_heard = 0;
        return;
    }
    uint64_t n = saver_settled(s->shared->saver);
    int64_t now = clock_now_ns();
    if (st->t_heard == 0 || n != st->n_heard) {
        st->t_heard = now;
        st->n_heard = n;
        return;
    }
    double price_s = staircase_price_s(s->shared->platform, truncation_of(s), 0,
                                       s->n_tokens);
    const struct stall_view v = {.recompute_s = price_s,
                                 .silent_s = (double)(now - st->t_heard) * 1e-9,
                                 .n_left = 1,
                                 .may_recompute = price_s > 0};
    if (stall_choose(&v, &again_s) != STALL_LEAVE || !stairs_replay(s))
        return;
    s->out.stall = STALL_LEFT;
    s->shared->stats.n_stalls[STALL_LEFT]++;
    log_info("for %.0f ms the store did not take the state of a truncated context: its %d "
             "tokens are computed again, stair by stair",
             v.silent_s * 1e3, s->n_tokens);
}

/* Returns the cut of the next view that the carried rows can fill. */
static int carried_cut(const struct seq *s)
{
    const struct carry *c = &s->stairs.carry;
    return c->cut + (c->n == c->max_rows ? truncation_of(s)->step : 0);
}

static void choose_carried(struct seq *s)
{
    int cut = carried_cut(s);
    if (cut > s->stairs.carry.cut)
        carry_move(&s->stairs.carry, truncation_of(s),
                   config_n_keeping(&s->shared->model->cfg));
    view_set(&s->view, &s->chain, s->tokens, s->n_tokens, cut);
    unpin_all(s);
}

/* Writes the carried rows into blocks. Chunks are saved whole, so the tokens of a chunk that a
 * preemption has interrupted are computed again. */
void stairs_take_up(struct seq *s)
{
    const struct seq_shared *sh = s->shared;
    s->stairs.carry.n -= s->stairs.carry.n % STORE_CHUNK_TOKENS;
    int rc = carry_fill(&s->stairs.carry, sh->model, sh->stream, sh->pool, &s->table);
    if (rc != 0) {
        struct step_fault fault = step_fault(sh, rc);
        seq_fail(s, rc, fault.text);
        return;
    }
    s->n_done = s->stairs.carry.n;
    seq_enter_prefill(s);
}

/* --- choosing --------------------------------------------------------------------------------- */

/* The wait has no bound here: stairs_judge_saves ends one that costs more than a replay. */
bool stairs_must_wait(const struct seq *s)
{
    const struct saver *saver = s->shared->saver;
    if (!s->stairs.must_choose || saver == NULL || carry_is_on(&s->stairs.carry))
        return false;
    return (s->save != NULL && !save_is_settled(s->save)) ||
           !saver_reached(saver, s->stairs.mark);
}

static bool is_stored(const struct seq *s, const struct sha256 *key)
{
    return s->shared->store != NULL && store_pin(s->shared->store, key, NULL);
}

/* Returns whether the device or the store has all moved tokens of the view. */
static bool has_moved(const struct seq *s)
{
    const struct view *v = &s->view;
    int n = view_moved(v) / STORE_CHUNK_TOKENS, n_unused;
    int i = seq_find_known(s, &n_unused);
    while (i < n && view_chunk(v, i) < s->stairs.limit && is_stored(s, &v->keys[i]))
        i++;
    return i >= n;
}

/* Returns whether the sequence begins with the first stair: its request asks for recomputation. */
static bool begins_anew(const struct seq *s)
{
    return s->n_reached == 0 && seq_plan_is(s, "recompute");
}

int stairs_next_cut(const struct seq *s)
{
    if (!s->stairs.must_choose)
        return s->view.cut;
    if (carry_is_on(&s->stairs.carry))
        return carried_cut(s);
    return begins_anew(s) ? 0 : (int)truncation_cut(truncation_of(s), s->n_tokens - 1);
}

/* Returns whether the sequence tries its last view with the help of the remote. */
static bool may_try_remote(const struct seq *s)
{
    return s->shared->has_remote && s->n_reached == 0 && !s->stairs.has_asked_remote;
}

/* Notes that the remote did not send the missing chunks of the last view. The store still has the
 * chunks that it had before. */
static void end_try(struct seq *s)
{
    if (s->stairs.asks_remote)
        s->stairs.limit = INT_MAX;
    s->stairs.asks_remote = false;
}

static void choose_view(struct seq *s)
{
    const struct truncation *t = truncation_of(s);
    end_try(s);
    for (int cut = stairs_next_cut(s); cut > 0; cut -= t->step) {
        view_set(&s->view, &s->chain, s->tokens, s->n_tokens, cut);
        if (has_moved(s))
            return;
        if (may_try_remote(s)) {
            s->stairs.has_asked_remote = s->stairs.asks_remote = true;
            return;
        }
    }
    view_set(&s->view, &s->chain, s->tokens, s->n_tokens, 0);
}

/* Decides how s replays its stairs, because the stair that it was on has lost its state. With a
 * store that keeps state, the chosen view already begins the replay. Otherwise s replays without
 * the store, or waits until it may, or fails. */
static void replay(struct seq *s)
{
    enum save_end lost = s->save != NULL ? save_ended(s->save) : s->stairs.lost;
    char why[300];
    const char *text = NULL;
    if (lost != SAVE_GOES_ON)
        text = save_end_text(lost);
    else if (++s->stairs.n_replays > MAX_REPLAYS)
        text = "it was evicted from the store again and again; make the store larger";
    if (text == NULL)
        return;
    if (stairs_replay(s)) {
        log_info(
            "the store does not keep the state of a truncated context (%s): its %d tokens "
            "are computed again, stair by stair",
            text, s->n_tokens);
        choose_carried(s);
        return;
    }
    if (s->shared->n_carrying > 0) {
        s->stairs.must_choose = true;
        return;
    }
    snprintf(
        why, sizeof why,
        "the context has outgrown its window of %d tokens, and the state that it still "
        "sees is not stored: %s",
        truncation_of(s)->context, text);
    seq_fail(s, -EAGAIN, why);
}

void stairs_choose(struct seq *s)
{
    const struct truncation *t = truncation_of(s);
    if (!s->stairs.must_choose)
        return;
    if (carry_is_on(&s->stairs.carry)) {
        choose_carried(s);
        s->stairs.must_choose = false;
        return;
    }
    choose_view(s);
    s->stairs.must_choose = false;
    int next = s->stairs.n_left < s->n_tokens ? s->stairs.n_left : s->n_tokens - 1;
    bool is_lost = s->view.cut < truncation_cut(t, next);
    /* The next stair begins: all chunks of the ended stair are durable. */
    if (s->stairs.is_stepping && !is_lost)
        let_go(s);
    pin_anew(s);
    if (is_lost)
        replay(s);
}

/* --- on a stair ------------------------------------------------------------------------------- */

void stairs_began(struct seq *s)
{
    struct hcache_result *r = &s->out.r;
    if (s->stairs.is_stepping) {
        int64_t stall_ns = clock_now_ns() - s->stairs.t_step;
        r->truncation.steps++;
        r->truncation.stall_ms += clock_ms(stall_ns);
        s->shared->stats.n_stairs++;
        s->shared->stats.stairs_ns += stall_ns;
    }
    if (s->stairs.asks_remote) /* the store has its view only now */
        pin_anew(s);
    s->stairs.is_stepping = false;
    s->stairs.asks_remote = false;
    s->stairs.limit = INT_MAX;
    r->truncated_tokens = s->view.cut;
}

void stairs_advanced(struct seq *s)
{
    int64_t first = truncation_first(truncation_of(s), s->view.cut);
    int end = seq_at(s), begin = end - s->n_rows, before = s->n_reached;
    int known_end = MIN(end, before);
    s->out.r.recomputed_tokens += known_end > begin ? known_end - begin : 0;
    s->n_reached = MAX(end, before);
    if (carry_is_on(&s->stairs.carry))
        s->stairs.carry.n = s->n_done;
    if (s->stairs.n_former > 0 &&
        save_committed_tokens(s->save) >= first + STORE_CHUNK_TOKENS)
        let_go(s);
}
