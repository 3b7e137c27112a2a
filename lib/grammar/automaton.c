/* automaton.c - see automaton.h.
 *
 * A place is a node of kind EDGES and a stack.  Stacks are cells that share their lower parts and
 * exist once each, so equal stacks have equal numbers.  A state is a sorted list of places. */
#include "grammar/automaton.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/textbuf.h"
#include "grammar/node.h"

enum {
    DEAD = 0,
    UNKNOWN = UINT32_MAX,
    MAX_PLACES = 4096,     /* places of one state */
    MAX_VISITS = 16384,    /* nodes visited after one byte */
    SOFT_STATES = 1 << 13, /* at this bound states are forgotten before the next token */
    HARD_STATES = 1 << 17, /* bound inside the search of one token */
    SOFT_BYTES = 12 << 20, /* of kept masks */
    N_BUCKETS = 4096,      /* of kept masks */
};

struct place {
    uint32_t node, stack;
};

/* Element of a stack. tag: a CALL, whose `next` follows the rule, or a REPEAT or COUNTER with its
 * count. */
struct cell {
    uint32_t below, tag;
    int32_t count;
};

struct state {
    uint32_t first, n; /* places */
    uint32_t to;       /* index of its transitions, or UNKNOWN */
    /* Characters without an escape that may follow in a string; -1: none. only: no place but that
     * one takes such a character. */
    int32_t room;
    bool only, accepts;
    struct found *found;
};

/* Tokens found by a search: a list of ids, or a mask. */
struct found {
    struct found *next; /* of the same bucket */
    uint64_t hash;
    size_t n_key;
    bool is_mask;
    uint32_t n;
    uint32_t *at;
    uint8_t key[];
};

/* A set of numbers below the count of an array, looked up by hash. */
struct table {
    uint32_t *slots; /* number + 1; 0: empty */
    uint32_t mask;   /* slots - 1 */
};

struct automaton {
    const struct grammar *g;
    const struct vocab *v;
    struct walk *walks;
    int rc; /* error of a step */
    struct state *states;
    struct place *places;
    struct cell *cells;
    uint32_t (*to)[256];
    uint32_t n_states, n_places, n_cells, n_to;
    uint32_t cap_states, cap_places, cap_cells, cap_to;
    struct table state_table, cell_table;
    struct found *buckets[N_BUCKETS];
    size_t found_bytes;
    /* of one byte's step */
    struct place *visits; /* [MAX_VISITS] */
    uint32_t n_visits;
    uint32_t *visit_slots; /* [MAX_VISITS * 2] number + 1 */
    uint32_t *used_slots;  /* [MAX_VISITS] */
    uint32_t *path;        /* [deepest token + 1] states of a search */
    int32_t *ids;          /* [n_tokens] tokens of a search */
    struct textbuf key;    /* of a search */
};

/* --- arrays and tables -------------------------------------------------------------- */

static bool grow(void *array, uint32_t *cap, uint32_t n, size_t size)
{
    void **p = array;
    if (n <= *cap)
        return true;
    uint32_t more = MAX(MAX(*cap * 2, n), 256u);
    void *q = mem_try_realloc(*p, more * size);
    if (q == NULL)
        return false;
    *p = q;
    *cap = more;
    return true;
}

static bool table_reserve(struct table *t, uint32_t n,
                          uint64_t (*hash)(const void *, uint32_t), const void *arg)
{
    if (t->slots != NULL && n * 2 <= t->mask)
        return true;
    uint32_t size = 1024;
    while (size < n * 4)
        size *= 2;
    uint32_t *slots = mem_try_calloc(size, sizeof *slots);
    if (slots == NULL)
        return false;
    for (uint32_t i = 0; t->slots != NULL && i <= t->mask; i++) {
        if (t->slots[i] == 0)
            continue;
        uint32_t at = (uint32_t)hash(arg, t->slots[i] - 1) & (size - 1);
        while (slots[at] != 0)
            at = (at + 1) & (size - 1);
        slots[at] = t->slots[i];
    }
    free(t->slots);
    t->slots = slots;
    t->mask = size - 1;
    return true;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t cell_hash_of(const struct cell *c)
{
    return mix(mix(mix(1, c->below), c->tag), (uint32_t)c->count);
}

static uint64_t cell_hash(const void *a, uint32_t i)
{
    return cell_hash_of(&((const struct automaton *)a)->cells[i]);
}

static uint64_t places_hash(const struct place *p, uint32_t n, bool accepts)
{
    uint64_t h = mix(n, accepts);
    for (uint32_t i = 0; i < n; i++)
        h = mix(h, (uint64_t)p[i].node << 32 | p[i].stack);
    return h;
}

static uint64_t state_hash(const void *arg, uint32_t i)
{
    const struct automaton *a = arg;
    const struct state *s = &a->states[i];
    return places_hash(a->places + s->first, s->n, s->accepts);
}

static uint32_t fault(struct automaton *a, int rc)
{
    if (a->rc == 0)
        a->rc = rc;
    return DEAD;
}

/* Returns the number of the cell; 0 is the empty stack. */
static uint32_t push(struct automaton *a, uint32_t below, uint32_t tag, int32_t count)
{
    struct cell c = {.below = below, .tag = tag, .count = count};
    if (!table_reserve(&a->cell_table, a->n_cells + 1, cell_hash, a) ||
        !grow(&a->cells, &a->cap_cells, a->n_cells + 1, sizeof *a->cells))
        return fault(a, -ENOMEM);
    uint32_t at = (uint32_t)cell_hash_of(&c) & a->cell_table.mask;
    for (; a->cell_table.slots[at] != 0; at = (at + 1) & a->cell_table.mask) {
        const struct cell *d = &a->cells[a->cell_table.slots[at] - 1];
        if (d->below == below && d->tag == tag && d->count == count)
            return a->cell_table.slots[at] - 1;
    }
    a->cells[a->n_cells] = c;
    a->cell_table.slots[at] = a->n_cells + 1;
    return a->n_cells++;
}

/* --- from a node to the places that take a byte ------------------------------------- */

static void visit(struct automaton *a, uint32_t node, uint32_t stack)
{
    uint32_t at = (uint32_t)mix(node, stack) & (MAX_VISITS * 2 - 1);
    for (; a->visit_slots[at] != 0; at = (at + 1) & (MAX_VISITS * 2 - 1)) {
        const struct place *p = &a->visits[a->visit_slots[at] - 1];
        if (p->node == node && p->stack == stack)
            return;
    }
    if (a->n_visits == MAX_VISITS) {
        fault(a, ERR_LIMIT);
        return;
    }
    a->used_slots[a->n_visits] = at;
    a->visits[a->n_visits++] = (struct place){.node = node, .stack = stack};
    a->visit_slots[at] = a->n_visits;
}

/* Visits what follows one repetition more. count: repetitions before it; -1 begins the repeat. */
static void visit_repeat(struct automaton *a, uint32_t repeat, int32_t count,
                         uint32_t below)
{
    const struct node *r = &a->g->nodes[repeat];
    int32_t done = count + 1;
    if (r->max == REPEAT_ENDLESS)
        done = MIN(done, r->min);
    if (done >= r->min)
        visit(a, r->next, below);
    if (done < r->max)
        visit(a, r->body, push(a, below, repeat, done));
}

/* Visits what follows a node that counts. */
static void visit_count(struct automaton *a, const struct node *n, const struct cell *top)
{
    const struct node *counter = &a->g->nodes[top->tag];
    int32_t count = top->count + (n->kind == NODE_COUNT);
    CHECK(counter->kind == NODE_COUNTER);
    if (count < n->min || count > n->max)
        return;
    if (n->kind == NODE_COUNTED) {
        visit(a, n->next, top->below);
        return;
    }
    if (counter->max == REPEAT_ENDLESS)
        count = MIN(count, counter->min);
    visit(a, n->next, push(a, top->below, top->tag, count));
}

/* Follows all visited nodes. Returns whether the text may end. */
static bool follow(struct automaton *a)
{
    const struct grammar *g = a->g;
    bool accepts = false;
    for (uint32_t i = 0; i < a->n_visits && a->rc == 0; i++) {
        struct place p = a->visits[i];
        const struct node *n = &g->nodes[p.node];
        const struct cell top = a->cells[p.stack];
        switch ((enum node_kind)n->kind) {
        case NODE_EDGES:
            break;
        case NODE_SPLIT:
            for (uint32_t k = 0; k < n->n; k++)
                visit(a, g->lists[n->first + k], p.stack);
            break;
        case NODE_CALL: /* a call at the end of a rule returns to the rule's own caller */
            visit(a, g->rules[n->body],
                  g->nodes[n->next].kind == NODE_RETURN ? p.stack
                                                        : push(a, p.stack, p.node, 0));
            break;
        case NODE_RETURN:
            if (p.stack == 0)
                accepts = true;
            else
                visit(a, g->nodes[top.tag].next, top.below);
            break;
        case NODE_REPEAT:
            visit_repeat(a, p.node, -1, p.stack);
            break;
        case NODE_AGAIN:
            CHECK(p.stack != 0 && top.tag == n->body);
            visit_repeat(a, n->body, top.count, top.below);
            break;
        case NODE_COUNTER:
            visit(a, n->next, push(a, p.stack, p.node, 0));
            break;
        case NODE_COUNT:
        case NODE_COUNTED:
            visit_count(a, n, &top);
            break;
        }
    }
    return accepts;
}

static int by_place(const void *x, const void *y)
{
    const struct place *a = x, *b = y;
    return a->node != b->node ? ORDER(a->node, b->node) : ORDER(a->stack, b->stack);
}

/* Sets room and only. */
static void look_for_room(const struct automaton *a, struct state *s)
{
    const struct place *p = a->places + s->first;
    s->room = -1;
    s->only = true;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct node *n = &a->g->nodes[p[i].node];
        if (n->free == FREE_NOT) {
            for (uint32_t e = 0; e < n->n; e++) {
                const struct edge *x = &a->g->edges[n->first + e];
                bool quote = x->lo == x->hi && (x->lo == '"' || x->lo == '\\');
                s->only = s->only && (x->hi < 0x20 || quote);
            }
        } else {
            const struct cell *top = &a->cells[p[i].stack];
            int32_t room = INT32_MAX;
            if (n->free == FREE_COUNTED && a->g->nodes[top->tag].max != REPEAT_ENDLESS)
                room = a->g->nodes[top->tag].max - top->count - n->min;
            s->only = s->only && s->room < 0;
            s->room = MAX(s->room, room);
        }
    }
    s->only = s->only && s->room > 0;
}

/* Returns the state of the visited places, and forgets the visits. */
static uint32_t settle(struct automaton *a)
{
    bool accepts = follow(a);
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_visits; i++) {
        const struct node *k = &a->g->nodes[a->visits[i].node];
        a->visit_slots[a->used_slots[i]] = 0;
        if (k->kind == NODE_EDGES && k->n > 0)
            a->visits[n++] = a->visits[i];
    }
    a->n_visits = 0;
    if (a->rc != 0 || (n == 0 && !accepts))
        return DEAD;
    if (n > MAX_PLACES || a->n_states >= HARD_STATES)
        return fault(a, ERR_LIMIT);
    qsort(a->visits, n, sizeof *a->visits, by_place);
    if (!table_reserve(&a->state_table, a->n_states + 1, state_hash, a) ||
        !grow(&a->states, &a->cap_states, a->n_states + 1, sizeof *a->states) ||
        !grow(&a->places, &a->cap_places, a->n_places + MAX(n, 1), sizeof *a->places))
        return fault(a, -ENOMEM);
    uint32_t at = (uint32_t)places_hash(a->visits, n, accepts) & a->state_table.mask;
    for (; a->state_table.slots[at] != 0; at = (at + 1) & a->state_table.mask) {
        const struct state *s = &a->states[a->state_table.slots[at] - 1];
        if (s->n == n && s->accepts == accepts &&
            memcmp(a->places + s->first, a->visits, n * sizeof *a->visits) == 0)
            return a->state_table.slots[at] - 1;
    }
    struct state *s = &a->states[a->n_states];
    *s = (struct state){.first = a->n_places, .n = n, .to = UNKNOWN, .accepts = accepts};
    memcpy(a->places + s->first, a->visits, n * sizeof *a->visits);
    a->n_places += n;
    look_for_room(a, s);
    a->state_table.slots[at] = a->n_states + 1;
    return a->n_states++;
}

/* --- a byte ------------------------------------------------------------------------- */

/* Finds the state after a byte, and that all bytes from *lo to *hi lead there. */
static uint32_t step_slowly(struct automaton *a, uint32_t from, uint8_t byte, int *lo,
                            int *hi)
{
    const struct state s = a->states[from];
    *lo = 0;
    *hi = 255;
    for (uint32_t i = 0; i < s.n; i++) {
        struct place p = a->places[s.first + i];
        const struct node *n = &a->g->nodes[p.node];
        const struct edge *e = a->g->edges + n->first, *end = e + n->n;
        while (e < end && e->hi < byte)
            e++;
        if (e < end && e->lo <= byte) {
            *lo = MAX(*lo, e->lo);
            *hi = MIN(*hi, e->hi);
            visit(a, e->next, p.stack);
        } else {
            if (e > a->g->edges + n->first)
                *lo = MAX(*lo, e[-1].hi + 1);
            if (e < end)
                *hi = MIN(*hi, e->lo - 1);
        }
    }
    return settle(a);
}

static uint32_t step_new(struct automaton *a, uint32_t from, uint8_t byte)
{
    int lo, hi;
    if (from == DEAD || a->rc != 0)
        return DEAD;
    if (a->states[from].to == UNKNOWN) {
        if (!grow(&a->to, &a->cap_to, a->n_to + 1, sizeof *a->to))
            return fault(a, -ENOMEM);
        memset(a->to[a->n_to], 0xFF, sizeof *a->to);
        a->states[from].to = a->n_to++;
    }
    uint32_t to = step_slowly(a, from, byte, &lo, &hi);
    if (a->rc != 0)
        return DEAD;
    for (int i = lo; i <= hi; i++)
        a->to[a->states[from].to][i] = to;
    return to;
}

static inline uint32_t step(struct automaton *a, uint32_t from, uint8_t byte)
{
    uint32_t row = a->states[from].to;
    uint32_t to = row == UNKNOWN ? UNKNOWN : a->to[row][byte];
    return to == UNKNOWN ? step_new(a, from, byte) : to;
}

/* --- life --------------------------------------------------------------------------- */

/* Makes DEAD and the empty stack. */
static bool first_things(struct automaton *a)
{
    if (!grow(&a->states, &a->cap_states, 1, sizeof *a->states) ||
        !grow(&a->cells, &a->cap_cells, 1, sizeof *a->cells))
        return false;
    a->states[0] = (struct state){.to = UNKNOWN, .room = -1};
    a->cells[0] = (struct cell){0};
    a->n_states = a->n_cells = 1;
    return true;
}

struct automaton *automaton_create(const struct grammar *g, const struct vocab *v)
{
    struct automaton *a = mem_try_calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    size_t depth = v == NULL ? 0 : (size_t)MAX(v->plain.max_depth, v->other.max_depth);
    a->g = g;
    a->v = v;
    a->visits = mem_try_calloc(MAX_VISITS, sizeof *a->visits);
    a->visit_slots = mem_try_calloc(MAX_VISITS * 2, sizeof *a->visit_slots);
    a->used_slots = mem_try_calloc(MAX_VISITS, sizeof *a->used_slots);
    a->path = mem_try_calloc(depth + 1, sizeof *a->path);
    a->ids = mem_try_calloc(v == NULL ? 1 : (size_t)MAX(v->n_tokens, 1), sizeof *a->ids);
    if (a->visits == NULL || a->visit_slots == NULL || a->used_slots == NULL ||
        a->path == NULL || a->ids == NULL || !first_things(a)) {
        automaton_destroy(a);
        return NULL;
    }
    return a;
}

static void forget_found(struct automaton *a)
{
    for (size_t i = 0; i < N_BUCKETS; i++) {
        for (struct found *f = a->buckets[i], *next; f != NULL; f = next) {
            next = f->next;
            free(f->at);
            free(f);
        }
        a->buckets[i] = NULL;
    }
    a->found_bytes = 0;
}

void automaton_destroy(struct automaton *a)
{
    if (a == NULL)
        return;
    CHECK(a->walks == NULL);
    forget_found(a);
    free(a->states);
    free(a->places);
    free(a->cells);
    free(a->to);
    free(a->state_table.slots);
    free(a->cell_table.slots);
    free(a->visits);
    free(a->visit_slots);
    free(a->used_slots);
    free(a->path);
    free(a->ids);
    textbuf_free(&a->key);
    free(a);
}

/* Makes a stack of former cells anew. */
static uint32_t restack(struct automaton *a, const struct cell *old, uint32_t stack)
{
    uint32_t n = 0, top = 0;
    for (uint32_t at = stack; at != 0; at = old[at].below)
        n++;
    for (; n > 0; n--) { /* from the lowest cell on */
        uint32_t at = stack;
        for (uint32_t k = 1; k < n; k++)
            at = old[at].below;
        top = push(a, top, old[at].tag, old[at].count);
    }
    return top;
}

/* Forgets all states but those of the walks. */
static int forget(struct automaton *a)
{
    struct state *states = a->states;
    struct place *places = a->places;
    struct cell *cells = a->cells;
    a->states = NULL;
    a->places = NULL;
    a->cells = NULL;
    a->n_states = a->n_places = a->n_cells = a->n_to = 0;
    a->cap_states = a->cap_places = a->cap_cells = 0;
    free(a->state_table.slots);
    free(a->cell_table.slots);
    a->state_table = a->cell_table = (struct table){0};
    forget_found(a);
    if (!first_things(a))
        fault(a, -ENOMEM);
    for (struct walk *w = a->walks; w != NULL; w = w->next) {
        const struct state s = states[w->state];
        for (uint32_t i = 0; i < s.n && a->rc == 0; i++) {
            const struct place *p = &places[s.first + i];
            visit(a, p->node, restack(a, cells, p->stack));
        }
        if (s.accepts) /* a RETURN with an empty stack */
            visit(a, NODE_ID_RETURN, 0);
        w->state = settle(a);
    }
    free(states);
    free(places);
    free(cells);
    return a->rc;
}

static int make_room(struct automaton *a)
{
    if (a->rc == 0 && (a->n_states > SOFT_STATES || a->found_bytes > SOFT_BYTES))
        return forget(a);
    return a->rc;
}

static void enlist(struct walk *w, struct automaton *a, uint32_t state)
{
    *w = (struct walk){.automaton = a, .next = a->walks, .at = &a->walks, .state = state};
    if (a->walks != NULL)
        a->walks->at = &w->next;
    a->walks = w;
}

void walk_copy(struct walk *w, const struct walk *from)
{
    enlist(w, from->automaton, from->state);
}

int walk_begin(struct walk *w, struct automaton *a)
{
    enlist(w, a, DEAD);
    int rc = make_room(a);
    if (rc == 0) {
        visit(a, a->g->root, 0);
        w->state = settle(a);
        rc = a->rc;
    }
    return rc;
}

void walk_end(struct walk *w)
{
    if (w->automaton == NULL)
        return;
    *w->at = w->next;
    if (w->next != NULL)
        w->next->at = w->at;
    w->automaton = NULL;
}

int walk_bytes(struct walk *w, const void *bytes, size_t n, bool *ok)
{
    struct automaton *a = w->automaton;
    const uint8_t *b = bytes;
    int rc = make_room(a);
    for (size_t i = 0; rc == 0 && i < n && w->state != DEAD; i++) {
        w->state = step(a, w->state, b[i]);
        rc = a->n_states > SOFT_STATES ? make_room(a) : a->rc;
    }
    *ok = rc == 0 && w->state != DEAD;
    return rc;
}

int walk_token(struct walk *w, int32_t id, bool *ok)
{
    const struct vocab *v = w->automaton->v;
    if (id < 0 || id >= v->n_tokens || v->bytes[id] == NULL) {
        w->state = DEAD;
        *ok = false;
        return w->automaton->rc;
    }
    return walk_bytes(w, v->bytes[id], v->n_bytes[id], ok);
}

bool walk_accepts(const struct walk *w)
{
    return w->automaton->states[w->state].accepts;
}

bool walk_is_complete(struct walk *w)
{
    return w->automaton->states[w->state].n == 0;
}

/* --- the tokens that may follow ----------------------------------------------------- */

/* Adds the tokens of a trie that state `from` allows to a->ids. */
static uint32_t search(struct automaton *a, const struct trie *t, uint32_t from, uint32_t n)
{
    a->path[0] = from;
    for (uint32_t i = 0; i < t->n && a->rc == 0;) {
        const struct trie_node *k = &t->at[i];
        uint32_t to = step(a, a->path[k->depth - 1], k->byte);
        if (to == DEAD) {
            i = k->end;
            continue;
        }
        a->path[k->depth] = to;
        /* In a string with enough room the whole subtree of plain characters is allowed. */
        bool whole = t == &a->v->plain && a->states[to].room >= k->max_chars;
        uint32_t end = whole ? k->end : i + 1;
        uint32_t n_ids = t->at[end].tok - k->tok;
        memcpy(a->ids + n, t->ids + k->tok, n_ids * sizeof *a->ids);
        n += n_ids;
        i = end;
    }
    return n;
}

static bool key_add(struct automaton *a, uint32_t v)
{
    return textbuf_try_add(&a->key, &v, sizeof v);
}

/* Makes the key of a state's search: its places and stacks, where a count that no token of at most
 * `far` bytes can bring to a bound is replaced by its class. */
static bool key_make(struct automaton *a, const struct state *s, int far)
{
    bool ok = true;
    a->key.n = 0;
    ok = key_add(a, s->only);
    for (uint32_t i = 0; ok && i < s->n; i++) {
        const struct place *p = &a->places[s->first + i];
        ok = key_add(a, p->node);
        for (uint32_t at = p->stack; ok && at != 0; at = a->cells[at].below) {
            const struct cell *c = &a->cells[at];
            const struct node *r = &a->g->nodes[c->tag];
            ok = key_add(a, c->tag);
            if (r->kind == NODE_REPEAT || r->kind == NODE_COUNTER) {
                int32_t near = far + 1 + (int32_t)r->n;
                ok = ok && key_add(a, (uint32_t)MIN(MAX(r->min - c->count, 0), near));
                ok = ok && key_add(a, (uint32_t)MIN(r->max - c->count, near));
            }
        }
        ok = ok && key_add(a, UINT32_MAX);
    }
    return ok;
}

static struct found *found_new(struct automaton *a, uint64_t hash, uint32_t n)
{
    size_t words = a->v->n_words;
    struct found *f = mem_try_calloc(1, sizeof *f + a->key.n);
    if (f == NULL)
        return NULL;
    f->is_mask = n > words;
    f->n = f->is_mask ? (uint32_t)words : n;
    f->at = mem_try_calloc(MAX(f->n, 1u), sizeof *f->at);
    if (f->at == NULL) {
        free(f);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (f->is_mask)
            mask_set(f->at, a->ids[i]);
        else
            f->at[i] = (uint32_t)a->ids[i];
    }
    f->hash = hash;
    f->n_key = a->key.n;
    memcpy(f->key, a->key.p, a->key.n);
    f->next = a->buckets[hash % N_BUCKETS];
    a->buckets[hash % N_BUCKETS] = f;
    a->found_bytes += sizeof *f + f->n_key + f->n * sizeof *f->at;
    return f;
}

/* Returns what a search from the state finds. Where the state is `only`, plain tokens are left
 * out. NULL: a->rc has the error. */
static struct found *find(struct automaton *a, uint32_t state)
{
    struct state *s = &a->states[state];
    if (s->found != NULL)
        return s->found;
    int far = s->only ? a->v->other.max_depth
                      : MAX(a->v->plain.max_depth, a->v->other.max_depth);
    if (!key_make(a, s, far)) {
        fault(a, -ENOMEM);
        return NULL;
    }
    uint64_t hash = checksum64(a->key.p, a->key.n);
    struct found *f = a->buckets[hash % N_BUCKETS];
    while (f != NULL && (f->hash != hash || f->n_key != a->key.n ||
                         memcmp(f->key, a->key.p, a->key.n) != 0))
        f = f->next;
    if (f == NULL) {
        bool only = s->only;
        uint32_t n = search(a, &a->v->other, state, 0);
        if (!only)
            n = search(a, &a->v->plain, state, n);
        if (a->rc != 0)
            return NULL;
        f = found_new(a, hash, n);
        if (f == NULL)
            fault(a, -ENOMEM);
    }
    a->states[state].found = f;
    return f;
}

/* Writes the plain tokens of at most `room` characters. */
static void mask_plain(const struct vocab *v, int32_t room, uint32_t *mask)
{
    const uint32_t *from = room < VOCAB_SHORT ? v->short_plain + (size_t)room * v->n_words
                                              : v->all_plain;
    memcpy(mask, from, v->n_words * sizeof *mask);
    for (uint32_t i = 0; room >= VOCAB_SHORT && i < v->n_long && v->long_chars[i] > room;
         i++)
        mask[v->long_ids[i] >> 5] &= ~(1u << (v->long_ids[i] & 31));
}

int walk_mask(struct walk *w, uint32_t *mask)
{
    struct automaton *a = w->automaton;
    const struct vocab *v = a->v;
    int rc = make_room(a);
    if (rc != 0)
        return rc;
    const struct found *f = find(a, w->state);
    if (f == NULL)
        return a->rc;
    const struct state *s = &a->states[w->state];
    if (s->only)
        mask_plain(v, s->room, mask);
    else
        memset(mask, 0, v->n_words * sizeof *mask);
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->is_mask)
            mask[i] |= f->at[i];
        else
            mask_set(mask, (int32_t)f->at[i]);
    }
    return 0;
}
