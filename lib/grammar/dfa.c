/* dfa.c - see dfa.h. */
#include "grammar/dfa.h"

#include <string.h>

#include "base/check.h"
#include "base/minmax.h"
#include "grammar/vocab.h"

bool dfa_contains(const struct dfa *d, const char *text, size_t n)
{
    uint32_t s = d->start;
    for (size_t i = 0; i < n && s != 0; i++)
        s = dfa_step(d, s, (uint8_t)text[i]);
    return d->accepts[s];
}

static struct dfa *dfa_new(struct build *b, uint32_t n, const uint8_t cls[256],
                           uint32_t n_cls)
{
    if (n > DFA_MAX_STATES)
        build_fault(b, ERR_LIMIT,
                    "a pattern, length or number is too large: more than %d states",
                    DFA_MAX_STATES);
    struct dfa *d = build_alloc(b, sizeof *d);
    memcpy(d->cls, cls, sizeof d->cls);
    d->n_cls = n_cls;
    d->n = n;
    d->to = build_alloc(b, (size_t)n * n_cls * sizeof *d->to);
    d->accepts = build_alloc(b, n);
    return d;
}

/* --- trim and merge ----------------------------------------------------------------- */

/* Marks the states that can be completed, and all others as dead. */
static bool *live_states(struct build *b, const struct dfa *d)
{
    bool *live = build_alloc(b, d->n);
    memcpy(live, d->accepts, d->n);
    for (bool changed = true; changed;) {
        changed = false;
        build_work(b, d->n);
        for (uint32_t s = d->n; s-- > 0;) {
            for (uint32_t c = 0; c < d->n_cls && !live[s]; c++)
                if (live[d->to[s * d->n_cls + c]])
                    live[s] = changed = true;
        }
    }
    return live;
}

/* The states, ordered so that those of a block stand together. */
struct partition {
    uint32_t *state, *at;    /* [n] the order, and the place of each state in it */
    uint32_t *block;         /* [n] of each state */
    uint32_t *first, *count; /* [n] of each block */
    uint32_t *marked;        /* [n] how many of a block's first states are marked */
    uint32_t n_blocks;
};

static void partition_mark(struct partition *p, uint32_t state, uint32_t *touched,
                           uint32_t *n_touched)
{
    uint32_t k = p->block[state], to = p->first[k] + p->marked[k];
    if (p->at[state] < to)
        return;
    if (p->marked[k]++ == 0)
        touched[(*n_touched)++] = k;
    uint32_t other = p->state[to];
    p->state[p->at[state]] = other;
    p->at[other] = p->at[state];
    p->state[to] = state;
    p->at[state] = to;
}

/* Makes the marked states of a block a block of their own. Returns it, or the block itself if all
 * are marked. */
static uint32_t partition_split(struct partition *p, uint32_t k)
{
    uint32_t n = p->marked[k], other = p->n_blocks;
    p->marked[k] = 0;
    if (n == p->count[k])
        return k;
    p->n_blocks++;
    p->first[other] = p->first[k];
    p->count[other] = n;
    p->first[k] += n;
    p->count[k] -= n;
    for (uint32_t i = 0; i < n; i++)
        p->block[p->state[p->first[other] + i]] = other;
    return other;
}

/* Transitions backwards: those of class c that lead to s are from[start[c * n + s]] on. There are
 * none to the dead state. */
struct backwards {
    uint32_t *start, *from;
};

static struct backwards backwards_of(struct build *b, const struct dfa *d)
{
    size_t n = d->n, total = n * d->n_cls;
    struct backwards w = {.start = build_alloc(b, (total + 1) * sizeof *w.start),
                          .from = build_alloc(b, total * sizeof *w.from)};
    for (size_t s = 0; s < n; s++)
        for (size_t c = 0; c < d->n_cls; c++)
            if (d->to[s * d->n_cls + c] != 0)
                w.start[c * n + d->to[s * d->n_cls + c]]++;
    for (size_t i = 0, sum = 0; i <= total; i++) {
        sum += i < total ? w.start[i] : 0;
        w.start[i] = (uint32_t)sum; /* the end; it falls as the list is filled */
    }
    for (size_t s = n; s-- > 0;)
        for (size_t c = 0; c < d->n_cls; c++)
            if (d->to[s * d->n_cls + c] != 0)
                w.from[--w.start[c * n + d->to[s * d->n_cls + c]]] = (uint32_t)s;
    return w;
}

/* The same as group_states, if no state is on a loop: from the ends backwards, states with one
 * verdict whose bytes lead to equal groups are equal.  Returns 0 if there is a loop. */
static uint32_t group_backwards(struct build *b, const struct dfa *d, const bool *live,
                                const struct backwards *w, uint32_t *group)
{
    uint32_t *left = build_alloc(b, d->n * sizeof *left), n_done = 0, n_todo = 0;
    uint32_t *todo = build_alloc(b, d->n * sizeof *todo), n_live = 0, n = 1, mask = 63;
    while (mask < 2 * d->n)
        mask = mask * 2 + 1;
    uint32_t *slots = build_alloc(b,
                                  (mask + 1u) * sizeof *slots); /* a state of each group */
    for (uint32_t s = 1; s < d->n; s++) {
        for (uint32_t c = 0; live[s] && c < d->n_cls; c++)
            left[s] += live[d->to[s * d->n_cls + c]];
        n_live += live[s];
        if (live[s] && left[s] == 0)
            todo[n_todo++] = s;
    }
    for (; n_todo > 0; n_done++) {
        uint32_t s = todo[--n_todo], h = d->accepts[s];
        const uint32_t *to = d->to + (size_t)s * d->n_cls;
        for (uint32_t c = 0; c < d->n_cls; c++)
            h = (h ^ group[to[c]]) * 0x9E3779B1u + (h >> 15);
        uint32_t at = (h ^ h >> 16) & mask;
        for (; slots[at] != 0; at = (at + 1) & mask) {
            const uint32_t *as = d->to + (size_t)slots[at] * d->n_cls;
            uint32_t c = 0;
            while (c < d->n_cls && group[as[c]] == group[to[c]])
                c++;
            if (c == d->n_cls && d->accepts[slots[at]] == d->accepts[s])
                break;
        }
        slots[at] = slots[at] == 0 ? s : slots[at];
        group[s] = slots[at] == s ? n++ : group[slots[at]];
        for (size_t c = 0; c < d->n_cls; c++) {
            const uint32_t *start = w->start + c * d->n + s;
            for (uint32_t k = start[0]; k < start[1]; k++)
                if (live[w->from[k]] && --left[w->from[k]] == 0)
                    todo[n_todo++] = w->from[k];
        }
    }
    build_work(b, (uint64_t)n_done * d->n_cls);
    return n_done == n_live ? n : 0;
}

/* Sets group[s] of each state; equal states have equal groups; group 0 is dead. Returns the number
 * of groups.  (Hopcroft: a block splits all others by which of their states lead to it; of two
 * halves only the smaller one must split again.) */
static uint32_t group_states(struct build *b, const struct dfa *d, const bool *live,
                             uint32_t *group)
{
    size_t bytes = (size_t)(d->n + 3) * sizeof(uint32_t);
    const struct backwards w = backwards_of(b, d);
    uint32_t n_groups = group_backwards(b, d, live, &w, group);
    if (n_groups > 0)
        return n_groups;
    struct partition p = {.state = build_alloc(b, bytes),
                          .at = build_alloc(b, bytes),
                          .block = group,
                          .first = build_alloc(b, bytes),
                          .count = build_alloc(b, bytes),
                          .marked = build_alloc(b, bytes),
                          .n_blocks = 3};
    uint32_t *todo = build_alloc(b, bytes), n_todo = 0, *touched = build_alloc(b, bytes);
    uint32_t *copy = build_alloc(b, bytes), place = 0;
    bool *waits = build_alloc(b, d->n + 3u);
    for (uint32_t k = 0; k < 3; k++) { /* dead, not accepting, accepting */
        p.first[k] = place;
        for (uint32_t s = 0; s < d->n; s++)
            if (k == (!live[s] ? 0u : d->accepts[s] ? 2u : 1u)) {
                p.state[place] = s;
                p.at[s] = place++;
                p.block[s] = k;
            }
        p.count[k] = place - p.first[k];
        waits[k] = k > 0;
        if (k > 0)
            todo[n_todo++] = k;
    }
    while (n_todo > 0) {
        uint32_t by = todo[--n_todo], n = p.count[by];
        waits[by] = false;
        memcpy(copy, p.state + p.first[by], n * sizeof *copy);
        build_work(b, (uint64_t)n * d->n_cls);
        for (uint32_t c = 0; c < d->n_cls; c++) {
            uint32_t n_touched = 0;
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t *start = w.start + (size_t)c * d->n + copy[i];
                for (uint32_t k = start[0]; k < start[1]; k++)
                    partition_mark(&p, w.from[k], touched, &n_touched);
            }
            for (uint32_t i = 0; i < n_touched; i++) {
                uint32_t k = touched[i], other = partition_split(&p, k);
                if (other == k)
                    continue;
                uint32_t add = waits[k] || p.count[other] <= p.count[k] ? other : k;
                waits[add] = true;
                todo[n_todo++] = add;
            }
        }
    }
    return p.n_blocks;
}

/* Merges classes of bytes that no state tells apart. */
static void merge_classes(struct dfa *d)
{
    uint8_t as[256];
    uint32_t n = 0, from[256];
    for (uint32_t c = 0; c < d->n_cls; c++) {
        uint32_t k = 0;
        for (; k < n; k++) {
            bool same = true;
            for (uint32_t s = 0; s < d->n && same; s++)
                same = d->to[s * d->n_cls + c] == d->to[s * d->n_cls + from[k]];
            if (same)
                break;
        }
        if (k == n)
            from[n++] = c;
        as[c] = (uint8_t)k;
    }
    for (uint32_t s = 0; s < d->n; s++)
        for (uint32_t k = 0; k < n; k++)
            d->to[s * n + k] = d->to[s * d->n_cls + from[k]];
    for (int i = 0; i < 256; i++)
        d->cls[i] = as[d->cls[i]];
    d->n_cls = n;
}

const struct dfa *dfa_minimize(struct build *b, const struct dfa *draft)
{
    const bool *live = live_states(b, draft);
    uint32_t *group = build_alloc(b, draft->n * sizeof *group);
    uint32_t n = group_states(b, draft, live, group);
    /* Groups are numbered anew from the start on, so that unreachable ones are left out. */
    uint32_t *seen = build_alloc(b, n * sizeof *seen);     /* group -> its number */
    uint32_t *any = build_alloc(b, (n + 1) * sizeof *any); /* number -> one of its states */
    uint32_t count = 1;
    if (group[draft->start] != 0) {
        any[count] = draft->start;
        seen[group[draft->start]] = count++;
    }
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t c = 0; c < draft->n_cls; c++) {
            uint32_t to = draft->to[any[i] * draft->n_cls + c];
            if (group[to] != 0 && seen[group[to]] == 0) {
                any[count] = to;
                seen[group[to]] = count++;
            }
        }
    }
    scratch_end(b);
    struct dfa *d = dfa_new(b, count, draft->cls, draft->n_cls);
    d->start = seen[group[draft->start]];
    for (uint32_t i = 1; i < count; i++) {
        d->accepts[i] = draft->accepts[any[i]];
        for (uint32_t c = 0; c < draft->n_cls; c++) {
            uint32_t to = group[draft->to[any[i] * draft->n_cls + c]];
            d->to[i * d->n_cls + c] = to == 0 ? 0 : seen[to];
        }
    }
    merge_classes(d);
    return d;
}

/* --- combination -------------------------------------------------------------------- */

/* A combination that was made. */
struct combined {
    struct combined *next;
    const struct dfa *x, *y, *result;
    enum dfa_mode mode;
};

/* A set of pairs of states with a number for each. */
struct pairs {
    uint64_t *at; /* pair of each number */
    uint32_t n, cap;
    uint32_t *slots;
    uint32_t mask;
};

static uint32_t pair_number(struct build *b, struct pairs *p, uint32_t x, uint32_t y)
{
    uint64_t key = (uint64_t)x << 32 | y;
    if (p->n * 2 >= p->mask) {
        p->mask = p->mask == 0 ? 255 : p->mask * 2 + 1;
        p->slots = build_alloc(b, (p->mask + 1u) * sizeof *p->slots);
        for (uint32_t i = 0; i < p->n; i++) {
            uint32_t at = (uint32_t)(p->at[i] * 0x9E3779B97F4A7C15u >> 32) & p->mask;
            while (p->slots[at] != 0)
                at = (at + 1) & p->mask;
            p->slots[at] = i + 1;
        }
    }
    uint32_t at = (uint32_t)(key * 0x9E3779B97F4A7C15u >> 32) & p->mask;
    for (; p->slots[at] != 0; at = (at + 1) & p->mask)
        if (p->at[p->slots[at] - 1] == key)
            return p->slots[at] - 1;
    p->at = build_grow(b, p->at, &p->cap, p->n, sizeof *p->at);
    p->at[p->n] = key;
    p->slots[at] = ++p->n;
    return p->n - 1;
}

static const struct dfa *combine(struct build *b, const struct dfa *x, const struct dfa *y,
                                 enum dfa_mode mode)
{
    uint8_t cls[256], of_x[256], of_y[256];
    uint32_t n_cls = 0;
    for (int i = 0; i < 256; i++) {
        uint32_t c = 0;
        while (c < n_cls && (of_x[c] != x->cls[i] || of_y[c] != y->cls[i]))
            c++;
        if (c == n_cls) {
            of_x[n_cls] = x->cls[i];
            of_y[n_cls++] = y->cls[i];
        }
        cls[i] = (uint8_t)c;
    }
    struct pairs p = {0};
    uint32_t *to = NULL, cap = 0;
    scratch_begin(b);
    pair_number(b, &p, 0, 0);
    uint32_t start = pair_number(b, &p, x->start, y->start);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t sx = (uint32_t)(p.at[i] >> 32), sy = (uint32_t)p.at[i];
        if (p.n > DFA_MAX_STATES)
            build_fault(b, ERR_LIMIT, "the patterns together are too large");
        to = build_grow(b, to, &cap, i, n_cls * sizeof *to);
        build_work(b, n_cls);
        for (uint32_t c = 0; c < n_cls; c++) {
            uint32_t tx = x->to[sx * x->n_cls + of_x[c]],
                     ty = y->to[sy * y->n_cls + of_y[c]];
            bool dead = mode == DFA_AND ? tx == 0 || ty == 0 : mode == DFA_MINUS && tx == 0;
            to[i * n_cls + c] = dead ? 0 : pair_number(b, &p, tx, ty);
        }
    }
    struct dfa *d = dfa_new(b, p.n, cls, n_cls);
    memcpy(d->to, to, (size_t)p.n * n_cls * sizeof *to);
    d->start = start;
    for (uint32_t i = 0; i < p.n; i++) {
        bool ax = x->accepts[p.at[i] >> 32], ay = y->accepts[(uint32_t)p.at[i]];
        d->accepts[i] = mode == DFA_AND     ? ax && ay
                        : mode == DFA_MINUS ? ax && !ay
                                            : ax || ay;
    }
    return dfa_minimize(b, d);
}

const struct dfa *dfa_combine(struct build *b, const struct dfa *x, const struct dfa *y,
                              enum dfa_mode mode)
{
    size_t h = (size_t)x * 31 + (size_t)y * 7 + mode;
    struct combined **at = &b->combined[h / 16 % COMBINED_BUCKETS];
    for (const struct combined *k = *at; k != NULL; k = k->next)
        if (k->x == x && k->y == y && k->mode == mode)
            return k->result;
    const struct dfa *result = combine(b, x, y, mode);
    struct combined *k = build_alloc(b, sizeof *k);
    *k = (struct combined){.next = *at, .x = x, .y = y, .result = result, .mode = mode};
    *at = k;
    return result;
}

/* --- simple sets -------------------------------------------------------------------- */

/* Ranges of first bytes of characters, and how many bytes follow. The second byte of some is
 * limited (Unicode 15, table 3-7). */
static const struct lead {
    uint8_t lo, hi, n_more, lo2, hi2;
} leads[] = {
    {0x00, 0x7F, 0, 0, 0},       {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
    {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF},
    {0xF0, 0xF0, 3, 0x90, 0xBF}, {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F},
};

const struct dfa *dfa_length(struct build *b, int32_t min, int32_t max)
{
    static const struct {
        uint8_t from, cls; /* C0, C1 and F5 to FF occur nowhere */
    } borders[] = {{0x00, 0}, {0x80, 1},  {0x90, 2},  {0xA0, 3}, {0xC0, 4},
                   {0xC2, 5}, {0xE0, 6},  {0xE1, 7},  {0xED, 8}, {0xEE, 7},
                   {0xF0, 9}, {0xF1, 10}, {0xF4, 11}, {0xF5, 4}};
    /* A count of c characters is at 1 + 8 * c. The states behind it wait for bytes of a character:
     * +1, +2, +3 for as many of any kind, +4 to +7 for a limited second byte.  No two of them are
     * equal. */
    static const int limited[] = {0, 0, 4, 0, 5, 0, 6, 0, 7};
    const uint32_t n_cls = 12;
    uint8_t cls[256];
    int32_t bound = max == REPEAT_ENDLESS ? min : max;
    if (max < min)
        return dfa_new(b, 1, (const uint8_t[256]){0}, 1);
    if (bound > DFA_MAX_STATES / 8 - 2)
        build_fault(b, ERR_UNSUPPORTED, "a length of %d beside a pattern or a format",
                    bound);
    for (size_t i = 0, k = 0; i < 256; i++) {
        if (k < sizeof borders / sizeof *borders && borders[k].from == i)
            k++;
        cls[i] = borders[k - 1].cls;
    }
    build_work(b, (uint64_t)bound * 100);
    struct dfa *d = dfa_new(b, 2 + 8 * (uint32_t)bound + (max == REPEAT_ENDLESS ? 7 : 0),
                            cls, n_cls);
    d->start = 1;
    for (int32_t c = 0; c <= bound; c++) {
        uint32_t at = 1 + 8 * (uint32_t)c;
        bool last = c == bound && max != REPEAT_ENDLESS;
        uint32_t done = c == bound ? at : at + 8; /* a count at an open bound stays */
        d->accepts[at] = c >= min;
        for (int byte = 0; byte < 256 && !last; byte++) {
            uint32_t k = cls[byte];
            for (size_t l = 0; l < sizeof leads / sizeof *leads; l++) {
                const struct lead *e = &leads[l];
                if (byte >= e->lo && byte <= e->hi)
                    d->to[at * n_cls + k] = e->n_more == 0 ? done
                                            : limited[l]   ? at + (uint32_t)limited[l]
                                                           : at + e->n_more;
                if (limited[l] && byte >= e->lo2 && byte <= e->hi2)
                    d->to[(at + (uint32_t)limited[l]) * n_cls + k] = at + e->n_more - 1u;
            }
            for (uint32_t more = 1; more <= 3 && byte >= 0x80 && byte < 0xC0; more++)
                d->to[(at + more) * n_cls + k] = more == 1 ? done : at + more - 1;
        }
    }
    return d;
}

const struct dfa *dfa_any(struct build *b)
{
    if (b->any_text == NULL)
        b->any_text = dfa_length(b, 0, REPEAT_ENDLESS);
    return b->any_text;
}

const struct dfa *dfa_text(struct build *b, const char *text, size_t n)
{
    uint8_t cls[256] = {0};
    uint32_t n_cls = 1;
    if (n > DFA_MAX_STATES - 2)
        build_fault(b, ERR_LIMIT, "a text of a list has more than %d bytes",
                    DFA_MAX_STATES - 2);
    for (size_t i = 0; i < n; i++)
        if (cls[(uint8_t)text[i]] == 0)
            cls[(uint8_t)text[i]] = (uint8_t)n_cls++;
    struct dfa *d = dfa_new(b, (uint32_t)n + 2, cls, n_cls);
    d->start = 1;
    d->accepts[n + 1] = true;
    for (uint32_t i = 0; i < n; i++)
        d->to[(i + 1) * n_cls + cls[(uint8_t)text[i]]] = i + 2;
    return d;
}

/* Gives each byte of the texts its own class, behind the classes that there are. Returns the sum of
 * their lengths. */
static size_t classes_of_texts(struct build *b, const char *const *texts, uint32_t n,
                               uint8_t cls[256], uint32_t *n_cls)
{
    bool seen[256] = {false};
    size_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (const uint8_t *p = (const uint8_t *)texts[i]; *p != 0; p++, sum++) {
            if (!seen[*p])
                cls[*p] = (uint8_t)(*n_cls)++;
            seen[*p] = true;
        }
    }
    if (sum + 2 > DFA_MAX_STATES || *n_cls > 256)
        build_fault(b, ERR_LIMIT, "the names of an object's keys are too long together");
    return sum;
}

const struct dfa *dfa_of_texts(struct build *b, const char *const *texts, uint32_t n)
{
    uint8_t cls[256] = {0};
    uint32_t n_cls = 1;
    size_t most = classes_of_texts(b, texts, n, cls, &n_cls) + 2;
    scratch_begin(b);
    struct dfa *d = dfa_new(b, (uint32_t)most, cls, n_cls);
    uint32_t n_states = 2;
    d->start = 1;
    for (uint32_t i = 0; i < n; i++) { /* a trie */
        uint32_t at = 1;
        for (const uint8_t *p = (const uint8_t *)texts[i]; *p != 0; p++) {
            uint32_t *to = &d->to[at * n_cls + cls[*p]];
            if (*to == 0)
                *to = n_states++;
            at = *to;
        }
        d->accepts[at] = true;
    }
    return dfa_minimize(b, d);
}

const struct dfa *dfa_without_texts(struct build *b, const char *const *texts, uint32_t n)
{
    const struct dfa *any = dfa_any(b);
    uint8_t cls[256];
    uint32_t n_cls = any->n_cls, of[512]; /* class -> that of any */
    memcpy(cls, any->cls, sizeof cls);
    size_t sum = classes_of_texts(b, texts, n, cls, &n_cls);
    for (int byte = 0; byte < 256; byte++)
        of[cls[byte]] = any->cls[byte];
    for (uint32_t c = 0; c < any->n_cls; c++)
        of[c] = c;
    scratch_begin(b);
    /* The states of any, then a trie whose missing ways lead there. */
    struct dfa *d = dfa_new(b, any->n + (uint32_t)sum + 1, cls, n_cls);
    uint32_t n_states = any->n + 1, *as = build_alloc(b, d->n * sizeof *as);
    for (uint32_t s = 0; s < n_states; s++) {
        as[s] = s < any->n ? s : any->start;
        d->accepts[s] = any->accepts[as[s]];
        for (uint32_t c = 0; c < n_cls; c++)
            d->to[s * n_cls + c] = any->to[as[s] * any->n_cls + of[c]];
    }
    d->start = any->n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = d->start;
        for (const uint8_t *p = (const uint8_t *)texts[i]; *p != 0; p++) {
            uint32_t *to = &d->to[at * n_cls + cls[*p]];
            if (*to < any->n) { /* also a byte that is not UTF-8: the trie ends there */
                uint32_t k = n_states++;
                as[k] = *to;
                d->accepts[k] = any->accepts[as[k]];
                for (uint32_t c = 0; c < n_cls; c++)
                    d->to[k * n_cls + c] = any->to[as[k] * any->n_cls + of[c]];
                *to = k;
            }
            at = *to;
        }
        d->accepts[at] = false;
    }
    d->n = n_states;
    return dfa_minimize(b, d);
}

/* --- into the graph ----------------------------------------------------------------- */

/* Returns a node that counts the character whose first byte leads to state s, where lengths are
 * counted.  The node bounds the count so far: with more or fewer characters than that, no end that
 * is reached from s meets the bounds of the length. */
static uint32_t counted(struct build *b, const struct dfa_form *f, uint32_t s,
                        uint32_t next)
{
    if (f->lengths == NULL || next == NODE_ID_FAIL)
        return next;
    int32_t least = f->lengths->min[s], most = f->lengths->max[s];
    int32_t min = most == REPEAT_ENDLESS ? 0 : MAX(f->min - most, 0),
            max = f->max == REPEAT_ENDLESS ? f->max : f->max - least;
    return max < MAX(min, 1) ? NODE_ID_FAIL : node_count(b, NODE_COUNT, min, max, next);
}

/* Characters that are written with a backslash, and the byte behind it. All other control
 * characters are \u00 and two digits. */
static const struct {
    uint8_t as, byte;
} shorts[] = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'f', '\f'},
              {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};

enum { N_CONTROLS = 0x20, N_ESCAPED = N_CONTROLS + 2 };

/* Where the escapes of a state lead: control characters, then a quote and a backslash. */
struct escapes {
    uint32_t to[N_ESCAPED];
    uint32_t node; /* what follows the backslash */
};

static uint32_t escaped(const struct escapes *x, uint8_t byte)
{
    return x->to[byte < N_CONTROLS ? byte : byte == '"' ? N_CONTROLS : N_CONTROLS + 1];
}

/* Returns what follows \u000 or \u001 where it leads to state `only`; 0: to any. */
static uint32_t last_digit(struct build *b, const struct escapes *x, int high,
                           uint32_t only, const uint32_t *node)
{
    struct edge e[16];
    uint32_t n = 0;
    for (int digit = 0; digit < 16; digit++) {
        int byte = high * 16 + digit;
        uint8_t ch = (uint8_t)(digit < 10 ? '0' + digit : 'a' + digit - 10);
        bool is_short = (byte >= '\b' && byte <= '\r' && byte != '\v');
        if (x->to[byte] != 0 && !is_short && (only == 0 || x->to[byte] == only))
            e[n++] = (struct edge){ch, ch, node[x->to[byte]]};
    }
    return n == 0 ? NODE_ID_FAIL : node_edges(b, e, n);
}

/* Returns what follows the backslash where it leads to state `only`; 0: to any. */
static uint32_t behind_backslash(struct build *b, const struct escapes *x, uint32_t only,
                                 const uint32_t *node)
{
    struct edge e[8];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++) {
        uint32_t to = escaped(x, shorts[i].byte);
        if (to != 0 && (only == 0 || to == only))
            e[n++] = (struct edge){shorts[i].as, shorts[i].as, node[to]};
    }
    const struct edge high[] = {{'0', '0', last_digit(b, x, 0, only, node)},
                                {'1', '1', last_digit(b, x, 1, only, node)}};
    if (high[0].next != NODE_ID_FAIL || high[1].next != NODE_ID_FAIL)
        e[n++] = (struct edge){'u', 'u', node_bytes(b, "00", 2, node_edges(b, high, 2))};
    return n == 0 ? NODE_ID_FAIL : node_edges(b, e, n);
}

/* Returns the node behind the backslash of state s. x: the state asked before, which often leads
 * where this one does. */
static uint32_t embed_escapes(struct build *b, const struct dfa *d,
                              const struct dfa_form *f, uint32_t s, const uint32_t *node,
                              struct escapes *x)
{
    struct escapes now = {0};
    uint32_t ways[N_ESCAPED], n = 0;
    for (uint32_t i = 0; i < N_ESCAPED; i++)
        now.to[i] = dfa_step(d, s,
                             (uint8_t)(i < N_CONTROLS    ? i
                                       : i == N_CONTROLS ? '"'
                                                         : '\\'));
    if (memcmp(x->to, now.to, sizeof now.to) == 0)
        return x->node;
    *x = now;
    if (f->lengths == NULL)
        return x->node = behind_backslash(b, x, 0, node);
    /* A character is counted before its first byte, so that no backslash leads to nothing. */
    for (uint32_t i = 0; i < N_ESCAPED; i++) {
        bool again = now.to[i] == 0;
        for (uint32_t k = 0; k < i; k++)
            again |= now.to[k] == now.to[i];
        if (!again)
            ways[n++] = counted(b, f, now.to[i], behind_backslash(b, x, now.to[i], node));
    }
    return x->node = n == 0 ? NODE_ID_FAIL : node_split(b, ways, n);
}

/* What may follow each state whatever it is: every run of at most `room` characters of some classes
 * (vocab.h). A token of such characters is allowed without walking its bytes. */
struct freedom {
    uint32_t
        *classes;  /* [n] of characters; of a state that continues one: those behind it */
    int32_t *room; /* [n] */
    bool *begins;  /* [n] the state begins a character */
};

enum { MIXED = 0x80000000u };

/* Classes of bytes. */
struct class_list {
    uint8_t at[256];
    uint32_t n;
};

static struct class_list classes_of(const struct dfa *d, int lo, int hi)
{
    struct class_list l = {.n = 0};
    bool seen[256] = {false};
    for (int byte = lo; byte <= hi; byte++) {
        if (!seen[d->cls[byte]])
            l.at[l.n++] = d->cls[byte];
        seen[d->cls[byte]] = true;
    }
    return l;
}

/* What is asked of every state. */
struct survey {
    const struct dfa *d;
    uint32_t chars[256]; /* classes of the characters that a class of bytes begins */
    bool continues[256];
    struct class_list first[16], second[16], any; /* as `leads` */
};

/* Returns whether every text of `more` bytes may follow a state, whose first byte has one of the
 * classes. */
static bool all_live(const struct survey *v, uint32_t s, const struct class_list *l,
                     int more)
{
    for (uint32_t i = 0; s != 0 && more > 0 && i < l->n; i++)
        if (!all_live(v, v->d->to[s * v->d->n_cls + l->at[i]], &v->any, more - 1))
            return false;
    return s != 0;
}

/* Returns the classes of which each character may follow a state. */
static uint32_t live_classes(const struct survey *v, uint32_t s)
{
    const uint32_t *to = v->d->to + (size_t)s * v->d->n_cls;
    uint32_t out = CHARS_PLAIN;
    for (uint32_t c = 0; c < v->d->n_cls; c++)
        out &= to[c] == 0 ? ~v->chars[c] : CHARS_PLAIN;
    for (size_t l = 1; l < sizeof leads / sizeof *leads; l++)
        for (uint32_t i = 0; i < v->first[l].n; i++)
            if ((out & v->chars[v->first[l].at[i]]) != 0 &&
                !all_live(v, to[v->first[l].at[i]], &v->second[l], leads[l].n_more))
                out &= ~v->chars[v->first[l].at[i]];
    return out;
}

/* Sets the classes behind the states that continue a character. Returns whether one changed. */
static bool classes_behind(const struct dfa *d, const bool continues[256],
                           struct freedom *f)
{
    bool changed = false;
    for (uint32_t s = 1; s < d->n; s++) {
        uint32_t all = 0;
        for (uint32_t c = 0; !f->begins[s] && c < d->n_cls; c++) {
            uint32_t to = d->to[s * d->n_cls + c];
            if (!continues[c] || to == 0)
                continue;
            all = all == 0 || all == f->classes[to] ? f->classes[to] : MIXED;
        }
        changed |= !f->begins[s] && f->classes[s] != all;
        f->classes[s] = f->begins[s] ? f->classes[s] : all;
    }
    return changed;
}

/* Finds the freedom of all states.  A state's room ends where one of its characters leads to a
 * state with other classes; from there it grows backwards, by one for each character. */
static struct freedom freedom_of(struct build *b, const struct dfa *d)
{
    struct freedom f = {.classes = build_alloc(b, d->n * sizeof *f.classes),
                        .room = build_alloc(b, d->n * sizeof *f.room),
                        .begins = build_alloc(b, d->n)};
    struct survey v = {.d = d, .any = classes_of(d, 0x80, 0xBF)};
    uint32_t *chars = v.chars;
    for (int byte = 0x20; byte < 0xF5; byte++) {
        chars[d->cls[byte]] |= chars_of_byte((uint8_t)byte);
        v.continues[d->cls[byte]] |= byte >= 0x80 && byte < 0xC0;
    }
    for (size_t l = 1; l < sizeof leads / sizeof *leads; l++) {
        v.first[l] = classes_of(d, leads[l].lo, leads[l].hi);
        v.second[l] = classes_of(d, leads[l].lo2, leads[l].hi2);
    }
    struct class_list ascii = classes_of(d, 0x20, 0x7F);
    for (uint32_t s = 1; s < d->n; s++) {
        for (uint32_t i = 0; i < ascii.n; i++)
            f.begins[s] |= d->to[s * d->n_cls + ascii.at[i]] != 0;
        f.classes[s] = f.begins[s] ? live_classes(&v, s) : 0;
    }
    for (int bytes = 0; bytes < 3 && classes_behind(d, v.continues, &f); bytes++)
        ;
    build_work(b, (uint64_t)d->n * (d->n_cls + 32));
    scratch_begin(b);
    const struct backwards w = backwards_of(b, d);
    /* A queue with two ends: a state that continues a character is as far as the one behind it. */
    uint32_t *queue = build_alloc(b, (2 * (size_t)d->n + 2) * sizeof *queue);
    uint32_t from = d->n, to = d->n;
    for (uint32_t s = 1; s < d->n; s++) {
        f.room[s] = REPEAT_ENDLESS;
        for (uint32_t c = 0; f.begins[s] && c < d->n_cls; c++)
            if ((chars[c] & f.classes[s]) != 0 &&
                f.classes[d->to[s * d->n_cls + c]] != f.classes[s])
                f.room[s] = 1;
        if (f.room[s] == 1)
            queue[to++] = s;
    }
    while (from < to) {
        uint32_t s = queue[from++];
        for (size_t c = 0; c < d->n_cls; c++) {
            const uint32_t *start = w.start + c * d->n + s;
            for (uint32_t k = start[0]; k < start[1]; k++) {
                uint32_t p = w.from[k];
                bool goes = f.begins[p] ? (chars[c] & f.classes[p]) != 0 : v.continues[c];
                if (!goes || f.room[p] != REPEAT_ENDLESS)
                    continue;
                f.room[p] = f.room[s] + f.begins[p];
                if (f.begins[p])
                    queue[to++] = p;
                else
                    queue[--from] = p;
            }
        }
    }
    scratch_end(b);
    return f;
}

/* Returns whether all characters that need an escape lead from state s back to s, too. */
static bool escapes_lead_back(const struct dfa *d, uint32_t s)
{
    bool all = dfa_step(d, s, '"') == s && dfa_step(d, s, '\\') == s;
    for (int byte = 0; byte < 0x20; byte++)
        all = all && dfa_step(d, s, (uint8_t)byte) == s;
    return all;
}

/* Sets whether a byte of each class begins a character. No text has bytes of a class of both
 * kinds. */
static void find_chars(const struct dfa *d, bool chars[256])
{
    memset(chars, 0, 256);
    for (int byte = 0; byte < 256; byte++)
        chars[d->cls[byte]] |= (byte & 0xC0) != 0x80;
}

/* Returns whether each length from min to max of state s is at most `apart` from one that the
 * state's ways allow.  By induction on the length, each of those leads to an end. */
static bool has_lengths(const struct dfa *d, const struct dfa_lengths *l,
                        const bool chars[256], uint32_t s, int64_t apart)
{
    int64_t at = d->accepts[s] ? 0
                               : l->min[s] - 1; /* those from min to this one are there */
    for (bool more = at < l->max[s]; more;) {
        more = false;
        for (uint32_t c = 0; c < d->n_cls; c++) {
            uint32_t to = d->to[s * d->n_cls + c];
            int64_t lo = (int64_t)l->min[to] + chars[c], hi = l->max[to];
            hi += hi == REPEAT_ENDLESS ? 0 : chars[c];
            if (to != 0 && lo <= at + 1 + apart && hi > at) {
                at = hi;
                more = true;
            }
        }
    }
    return at == l->max[s];
}

/* Sets the least number of characters from each state to an end, from the ends backwards. */
static void find_least(struct build *b, const struct dfa *d, const bool chars[256],
                       const struct backwards *w, int32_t *min)
{
    /* With two ends: a state that continues a character is as far as the one behind it. */
    uint32_t *queue = build_alloc(b, (2 * (size_t)d->n + 2) * sizeof *queue);
    uint32_t from = d->n, to = d->n;
    for (uint32_t s = 0; s < d->n; s++) {
        min[s] = d->accepts[s] ? 0 : REPEAT_ENDLESS;
        if (d->accepts[s])
            queue[to++] = s;
    }
    build_work(b, (uint64_t)d->n * d->n_cls / 4);
    while (from < to) {
        uint32_t s = queue[from++];
        for (size_t c = 0; c < d->n_cls; c++) {
            const uint32_t *start = w->start + c * d->n + s;
            for (uint32_t k = start[0]; k < start[1]; k++) {
                uint32_t p = w->from[k];
                if (min[s] + chars[c] >= min[p])
                    continue;
                min[p] = min[s] + chars[c];
                queue[chars[c] ? to++ : --from] = p;
            }
        }
    }
}

/* Sets max[s], the most characters of a text from s to an end: first for the states that nothing
 * follows, then for a state once all that follow it have theirs. States on a loop, or before one,
 * keep REPEAT_ENDLESS. count: NULL; else count[s] gets the number of texts, at most DFA_MANY. */
static void find_most(struct build *b, const struct dfa *d, const bool chars[256],
                      const struct backwards *w, int32_t *max, int64_t *count)
{
    int64_t bytes[256] = {0}; /* of each class */
    for (int byte = 0; byte < 256; byte++)
        bytes[d->cls[byte]]++;
    uint32_t *left = build_alloc(b, d->n * sizeof *left);
    uint32_t *todo = build_alloc(b, d->n * sizeof *todo), n_todo = 0;
    for (uint32_t s = 1; s < d->n; s++) {
        max[s] = REPEAT_ENDLESS;
        for (uint32_t c = 0; c < d->n_cls; c++)
            left[s] += d->to[s * d->n_cls + c] != 0;
        if (left[s] == 0)
            todo[n_todo++] = s;
    }
    while (n_todo > 0) {
        uint32_t s = todo[--n_todo];
        max[s] = 0; /* each state leads to an end */
        for (uint32_t c = 0; c < d->n_cls; c++) {
            uint32_t to = d->to[s * d->n_cls + c];
            max[s] = to == 0 ? max[s] : MAX(max[s], max[to] + chars[c]);
        }
        if (count != NULL)
            count[s] = d->accepts[s];
        for (uint32_t c = 0; count != NULL && c < d->n_cls; c++)
            count[s] = MIN(count[s] + bytes[c] * count[d->to[s * d->n_cls + c]],
                           (int64_t)DFA_MANY);
        for (size_t c = 0; c < d->n_cls; c++) {
            const uint32_t *start = w->start + c * d->n + s;
            for (uint32_t k = start[0]; k < start[1]; k++)
                if (--left[w->from[k]] == 0)
                    todo[n_todo++] = w->from[k];
        }
    }
}

const struct dfa_lengths *dfa_lengths(struct build *b, const struct dfa *d, int32_t apart)
{
    struct dfa_lengths *l = build_alloc(b, sizeof *l);
    l->min = build_alloc(b, d->n * sizeof *l->min);
    l->max = build_alloc(b, d->n * sizeof *l->max);
    bool chars[256];
    scratch_begin(b);
    find_chars(d, chars);
    const struct backwards w = backwards_of(b, d);
    find_least(b, d, chars, &w, l->min);
    find_most(b, d, chars, &w, l->max, NULL);
    scratch_end(b);
    for (uint32_t s = 1; s < d->n; s++)
        if (!has_lengths(d, l, chars, s, apart))
            return NULL; /* a gap */
    return l;
}

int64_t dfa_count(struct build *b, const struct dfa *d)
{
    bool chars[256];
    scratch_begin(b);
    find_chars(d, chars);
    const struct backwards w = backwards_of(b, d);
    int32_t *most = build_alloc(b, d->n * sizeof *most);
    int64_t *n = build_alloc(b, d->n * sizeof *n);
    find_most(b, d, chars, &w, most, n);
    scratch_end(b);
    return d->start == 0 ? 0 : most[d->start] == REPEAT_ENDLESS ? DFA_MANY : n[d->start];
}

/* Returns the largest distance of a COUNT's bounds from those of its counter. */
static uint32_t slack_of(const struct dfa *d, const struct dfa_lengths *l)
{
    int32_t slack = 0;
    for (uint32_t s = 1; s < d->n; s++)
        slack = MAX(slack, l->max[s] == REPEAT_ENDLESS ? l->min[s] : l->max[s]);
    return (uint32_t)slack;
}

/* Sets lo and hi of the bytes in a row that have one class and one part in a quoted text. Returns
 * their number. */
static uint32_t runs_of(const struct dfa *d, struct edge runs[256])
{
    uint32_t n = 0;
    for (int c = 0; c < 256; c++) {
        bool begins = c == 0 || d->cls[c] != d->cls[c - 1] || c == 0x20 || c == 0x80 ||
                      c == 0xC0 || c == '"' || c == '"' + 1 || c == '\\' || c == '\\' + 1;
        if (begins)
            runs[n++].lo = (uint8_t)c;
        runs[n - 1].hi = (uint8_t)c;
    }
    return n;
}

uint32_t dfa_embed_as(struct build *b, const struct dfa *d, const struct dfa_form *f,
                      uint32_t next)
{
    if (d->start == 0)
        return NODE_ID_FAIL;
    uint32_t *node = build_alloc(b, d->n * sizeof *node), *count = node;
    uint32_t *body = build_alloc(b, d->n * sizeof *body);
    const struct dfa_lengths *l = f->lengths;
    if (l != NULL)
        next = node_count(b, NODE_COUNTED, f->min, f->max, next);
    /* Nodes first, since states form loops; their edges are filled in afterwards. */
    for (uint32_t s = 1; s < d->n; s++) {
        body[s] = node_edges(b, NULL, 0);
        node[s] = d->accepts[s] ? node_either(b, body[s], next) : body[s];
    }
    if (l != NULL)
        count = build_alloc(b, d->n * sizeof *count);
    for (uint32_t s = 1; s < d->n; s++)
        count[s] = counted(b, f, s, node[s]);
    struct edge runs[256];
    uint32_t n_runs = runs_of(d, runs);
    struct escapes x = {0}; /* a state without escapes */
    struct freedom free = {0};
    if (l == NULL)
        free = freedom_of(b, d);
    for (uint32_t s = 1; s < d->n; s++) {
        uint32_t escapes = f->quoted ? embed_escapes(b, d, f, s, node, &x) : NODE_ID_FAIL;
        struct edge edges[256];
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_runs; i++) {
            uint8_t lo = runs[i].lo;
            uint32_t to = dfa_step(d, s, lo);
            uint32_t k = to == 0 ? NODE_ID_FAIL : ((lo & 0xC0) == 0x80 ? node : count)[to];
            if (f->quoted && (lo < 0x20 || lo == '"'))
                continue;
            if (f->quoted && lo == '\\')
                k = escapes;
            if (k != NODE_ID_FAIL)
                edges[n++] = (struct edge){.lo = lo, .hi = runs[i].hi, .next = k};
        }
        uint32_t made = node_edges(b, edges, n);
        b->nodes[body[s]] = b->nodes[made];
        if (l == NULL && free.begins[s] && free.classes[s] != 0) {
            b->nodes[body[s]].free = FREE_OPEN;
            b->nodes[body[s]].body = free.classes[s];
            b->nodes[body[s]].max = free.room[s];
        }
        if (f->quoted && escapes_lead_back(d, s))
            b->nodes[body[s]].next = ESCAPES_SHORT;
    }
    if (l == NULL)
        return node[d->start];
    uint32_t begin = node_count(b, NODE_COUNTER, f->min, f->max, node[d->start]);
    b->nodes[begin].n = slack_of(d, l);
    return begin;
}

uint32_t dfa_embed(struct build *b, const struct dfa *d, bool quoted, uint32_t next)
{
    return dfa_embed_as(b, d, &(struct dfa_form){.quoted = quoted}, next);
}
