/* guess.c - see guess.h.
 *
 * The index is a hash table of runs of GUESS_LEAST tokens. An entry leads to the position behind
 * the latest such run, and from there a chain leads to earlier runs with the same hash. A run
 * enters the table with the token behind it, so the text's own end is never found.  Of each pair of
 * tokens only the latest place is kept. */
#include "engine/guess.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

/* Guesses delay others by 3 % at most. */
#define WORTH 1.03
/* Guesses are made for 3 % more speed, and beside eight clients for 10 %. Rows have nearly their
 * full price there, so gain and cost are close, and both are estimates. */
#define WORTH_OF(n_seqs) (1.02 + 0.01 * (n_seqs))
/* No proposal is tried whose first token is less probable. It would gain less than the times of
 * passes vary, and it is judged without being computed, too. */
#define LEAST_RATE 0.15

enum { CHAIN_MOST = 16, MATCH_MOST = 64, HEADS_MOST = 1 << 16, ASIDE_MOST = 8 };
/* The machine's pace follows the last passes. What a number of rows costs is a mean over more of
 * them, because a choice among noisy means takes the one that is too low. A number of rows that is
 * not chosen is not measured again, so a pass that was held up must not make it look dear. A pass
 * therefore counts as at most MOST_NEWS times what was expected. The expectation before the first
 * pass counts as COST_RULE passes. */
enum { PACE_PASSES = 8, COST_PASSES = 64, COST_RULE = 1 };
#define MOST_NEWS 1.5

struct guess_index {
    int room, n;
    uint32_t mask;  /* number of heads, less 1 */
    int32_t *ids;   /* [room] */
    int32_t *prev;  /* [room] earlier position of the same hash; 0: none */
    int32_t *heads; /* position behind the latest run of a hash; 0: none */
    int32_t *pairs; /* the same for two tokens */
    int at, n_at;   /* the last place that was found, and n at that time; at 0: none */
};

struct guess_index *guess_index_create(int room)
{
    uint32_t n_heads = 64;
    while (n_heads < HEADS_MOST && n_heads < 2 * (uint32_t)room)
        n_heads *= 2;
    size_t n = (size_t)room;
    struct guess_index *x = mem_try_calloc(1,
                                           sizeof *x + 2 * (n + n_heads) * sizeof(int32_t));
    if (x == NULL)
        return NULL;
    x->room = room;
    x->mask = n_heads - 1;
    x->ids = (int32_t *)(void *)(x + 1);
    x->prev = x->ids + n;
    x->heads = x->prev + n;
    x->pairs = x->heads + n_heads;
    return x;
}

void guess_index_free(struct guess_index *x)
{
    free(x);
}

int guess_index_count(const struct guess_index *x)
{
    return x->n;
}

/* Returns the head of the run of n tokens that ends before position i. */
static uint32_t head_of(const struct guess_index *x, int i, int n)
{
    uint64_t h = 0;
    for (int k = i - n; k < i; k++)
        h = (h ^ (uint32_t)x->ids[k]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 40) & x->mask;
}

void guess_index_add(struct guess_index *x, const int32_t *ids, int n)
{
    for (int k = 0; k < n; k++) {
        int i = x->n++;
        if (i >= x->room)
            continue;
        x->ids[i] = ids[k];
        if (i >= 2)
            x->pairs[head_of(x, i, 2)] = i;
        if (i < GUESS_LEAST)
            continue;
        int32_t *head = &x->heads[head_of(x, i, GUESS_LEAST)];
        x->prev[i] = *head;
        *head = i;
    }
}

/* Returns how many tokens before position i agree with the last ones. */
static int match_at(const struct guess_index *x, int i)
{
    int n = 0;
    while (n < MATCH_MOST && n < i && x->ids[i - 1 - n] == x->ids[x->n - 1 - n])
        n++;
    return n;
}

/* Sets *at to the longest match of at least GUESS_LEAST tokens among the latest places. */
static int find_run(const struct guess_index *x, int *at)
{
    int best = 0;
    int i = x->n >= GUESS_LEAST ? x->heads[head_of(x, x->n, GUESS_LEAST)] : 0;
    for (int k = 0; k < CHAIN_MOST && i > 0; k++, i = x->prev[i]) {
        int n = match_at(x, i);
        if (n > best) {
            best = n;
            *at = i;
        }
    }
    return best >= GUESS_LEAST ? best : 0;
}

/* Sets *at to the latest place of the text's last two tokens. */
static int find_pair(const struct guess_index *x, int *at)
{
    *at = x->n >= 2 ? x->pairs[head_of(x, x->n, 2)] : 0;
    int n = *at > 0 ? match_at(x, *at) : 0;
    return n >= 2 ? n : 0;
}

int guess_index_find(struct guess_index *x, int most, int32_t *out)
{
    int at = 0, n = 0, aside = x->at + (x->n - x->n_at);
    if (x->n > x->room || most <= 0)
        return 0;
    bool goes_on = x->at > 0 && x->n - x->n_at <= ASIDE_MOST;
    int n_aside = goes_on ? GUESS_ASIDE + match_at(x, aside) : 0;
    n = find_run(x, &at);
    if (n == 0 && n_aside <= GUESS_ASIDE)
        n = find_pair(x, &at);
    if (n == 0) {
        n = n_aside;
        at = aside;
    } else {
        x->at = at;
        x->n_at = x->n;
    }
    for (int k = 0; n > 0 && k < most; k++)
        out[k] = at + k < x->n ? x->ids[at + k] : out[at + k - x->n];
    return n;
}

/* --- how often guesses are right -------------------------------------------------------------- */

static int class_of(int match)
{
    return match < 4              ? match - GUESS_ASIDE
           : match < 6            ? 3
           : match < 9            ? 4
           : match < 17           ? 5
           : match < GUESS_FORCED ? 6
                                  : 7;
}

struct guess_rates guess_rates_first(void)
{
    return (struct guess_rates){.tried = {8, 8, 8, 8, 8, 8, 8, 8},
                                .hit = {0.8F, 1, 2.4F, 3.2F, 4.4F, 5.6F, 6.8F, 7.2F}};
}

static void learn(struct guess_rates *r, int class, bool hit, float keep)
{
    r->tried[class] = keep * r->tried[class] + 1;
    r->hit[class] = keep * r->hit[class] + (hit ? 1 : 0);
}

void guess_learn(struct guess_rates *own, struct guess_rates *all, int match, bool hit)
{
    learn(own, class_of(match), hit, 0.95F);
    learn(all, class_of(match), hit, 0.99F);
}

double guess_rate(const struct guess_rates *own, const struct guess_rates *all, int match)
{
    enum { WEIGHT = 4 }; /* tries of its own after which a sequence counts as much as all */
    int c = class_of(match);
    double known = all->tried[c] > 0 ? (double)all->hit[c] / (double)all->tried[c] : 0;
    return ((double)own->hit[c] + WEIGHT * known) / ((double)own->tried[c] + WEIGHT);
}

/* --- what a pass takes ------------------------------------------------------------------------ */

/* Returns what a pass costs by the passes that are known; from them, further rows by a rule. */
static double cost_of(const struct guess_speed *s, int n_rows)
{
    int below = MIN(n_rows, GUESS_MAX_ROWS), above = n_rows;
    while (below > 0 && s->n_seen[below] == 0)
        below--;
    while (above <= GUESS_MAX_ROWS && s->n_seen[above] == 0)
        above++;
    if (below == n_rows)
        return s->cost[n_rows];
    if (below > 0 && above <= GUESS_MAX_ROWS) {
        double share = (double)(n_rows - below) / (above - below);
        double more = s->cost[above] - s->cost[below];
        return s->cost[below] + share * MAX(more, 0);
    }
    int known = below > 0 ? below : above;
    if (known > GUESS_MAX_ROWS)
        return 0;
    /* A further row takes a fifth of a pass of one row, so `known` rows take (4 + known) / 5 of
     * it. */
    return s->cost[known] * (4 + n_rows) / (4 + known);
}

void guess_speed_learn(struct guess_speed *s, int n_rows, int64_t ns)
{
    if (n_rows < 1 || n_rows > GUESS_MAX_ROWS || ns <= 0)
        return;
    if (s->pace_ns == 0) {
        s->pace_ns = (double)ns;
        s->cost[n_rows] = 1;
        s->n_seen[n_rows] = 1;
        return;
    }
    double expected = cost_of(s, n_rows), seen = (double)ns / s->pace_ns;
    int n = MIN(s->n_seen[n_rows] + 1, COST_PASSES);
    seen = MIN(MAX(seen, expected / MOST_NEWS), expected * MOST_NEWS);
    s->n_seen[n_rows] = n;
    s->cost[n_rows] = expected + (seen - expected) / (n + COST_RULE);
    if (n > 1)
        s->pace_ns *= 1 + (seen / expected - 1) / PACE_PASSES;
}

double guess_pass_ns(const struct guess_speed *s, int n_rows)
{
    return s->pace_ns * cost_of(s, n_rows);
}

/* --- how many --------------------------------------------------------------------------------- */

/* What a number of guesses gives. */
struct trial {
    int n[GUESS_MAX_ROWS];
    double gain[GUESS_MAX_ROWS]; /* probability that the next guess of a sequence counts */
    double tokens[GUESS_MAX_ROWS];
    double all_tokens;
};

/* Gives one more guess to the sequence that gains the most by it. Returns false if none is
 * proposed. */
static bool give_one(const struct guess_seq *s, struct trial *t, int n_seqs)
{
    int best = -1;
    for (int i = 0; i < n_seqs; i++)
        if (t->n[i] < s[i].most && (best < 0 || t->gain[i] > t->gain[best]))
            best = i;
    if (best < 0)
        return false;
    int n = ++t->n[best];
    t->tokens[best] += t->gain[best];
    t->all_tokens += t->gain[best];
    if (n < s[best].most)
        t->gain[best] *= s[best].rate[n];
    return true;
}

static double least_tokens(const struct trial *t, int n_seqs)
{
    double least = t->tokens[0];
    for (int i = 1; i < n_seqs; i++)
        least = MIN(t->tokens[i], least);
    return least;
}

void guess_decide(const struct guess_speed *speed, struct guess_seq *s, int n_seqs,
                  int most_rows)
{
    double none = guess_pass_ns(speed, n_seqs);
    struct trial t = {.all_tokens = n_seqs};
    for (int i = 0; i < n_seqs; i++)
        s[i].n = 0;
    if (n_seqs > GUESS_MAX_ROWS || none == 0)
        return;
    for (int i = 0; i < n_seqs; i++) {
        t.gain[i] = s[i].rate[0] < LEAST_RATE ? 0 : s[i].rate[0];
        t.tokens[i] = 1;
    }
    double best = WORTH_OF(n_seqs) * n_seqs / none;
    for (int rows = 1; rows <= most_rows && give_one(s, &t, n_seqs); rows++) {
        double ns = guess_pass_ns(speed, n_seqs + rows);
        if (t.all_tokens / ns <= best || WORTH * least_tokens(&t, n_seqs) < ns / none)
            continue;
        best = t.all_tokens / ns;
        for (int i = 0; i < n_seqs; i++)
            s[i].n = t.n[i];
    }
}

void guess_all(struct guess_seq *s, int n_seqs, int most_rows)
{
    for (int i = 0; i < n_seqs; i++) {
        s[i].n = MIN(s[i].most, most_rows);
        most_rows -= s[i].n;
    }
}
