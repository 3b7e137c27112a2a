/* automaton.c - see automaton.h.
 *
 * A place is a node of kind EDGES and a stack.  Stacks are cells that share their lower parts and
 * exist once each, so equal stacks have equal numbers.  A state is a sorted list of places.
 *
 * Unique items.  The cell of a UNIQUE holds a record: the set of the array's items so far, and the
 * text of the present one.  Texts, sets and records are chains of cells, too.  Items have one
 * spelling for each value, so items are equal if their texts are.  A text that begins like a member
 * of the set is a threat; once it differs from all of them it is fresh for good.  A place whose
 * threat cannot be averted, because all ways on lead to members of the set, is dropped.  Keys
 * that ascend need no set but the key before: a text is a threat while that key begins with it, and
 * fresh once it is greater.
 *
 * Searches for tokens walk records of their own kind.  These forget the set with a fresh text, so
 * states and masks are shared by all fresh texts.  A token that goes on behind the item (BLIND) is
 * doubtful, and is walked from the state itself. */
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
    SOFT_CELLS = 1 << 20,
    MAX_TRIES = 1024, /* places on the way out of a threat */
    LONG_ROOM = 32,   /* few tokens have more characters */
    N_BUCKETS = 4096, /* of kept masks */
};

/* Tags of cells that are no part of a stack. TEXT: a byte behind a text; SET: a text besides a set;
 * RECORD: a set below, or the key before, and a text. */
enum { TAG_TEXT = 0x80000000u, TAG_SET, TAG_RECORD };
/* Bits of a record's tag. */
enum {
    REC_BETWEEN = 0,
    REC_THREAT = 1,
    REC_FRESH = 2,
    REC_PLACE = 3,
    REC_SEARCH = 4,
    REC_BLIND = 8
};

struct place {
    uint32_t node, stack;
};

/* Element of a stack. tag: a CALL, whose `next` follows the rule, or a REPEAT or COUNTER with its
 * count. */
struct cell {
    uint32_t below, tag;
    int32_t count;   /* UNIQUE: its record */
    uint32_t unique; /* the topmost UNIQUE from here down; 0: none */
};

struct state {
    uint32_t first, n; /* places */
    uint32_t to;       /* index of its transitions, or UNKNOWN */
    /* In one of its places, characters of the classes `loop` may follow, up to `room`.  only: these
     * are all that a string may contain without an escape, and no other place takes one. */
    uint32_t loop;
    int32_t room;
    bool within; /* a character has begun, and its other bytes come first */
    bool only, accepts, unique, blind;
    int32_t least; /* bytes that complete the text; -1: not known yet */
    /* The state is inside a string whose escapes are so spelled: see struct vocab_body.  need:
     * characters that must precede the quote. */
    uint8_t escapes;
    int32_t need;
    uint32_t shadow; /* the state from which tokens are searched; 0: not known yet */
    struct found *found;
};

/* Tokens found by a search: those of a mask, without some and with others. Doubtful ones are
 * another list. */
struct found {
    struct found *next; /* of the same bucket */
    uint64_t hash;
    size_t n_key;
    const uint32_t *base, *inside; /* masks of the vocabulary; NULL: none */
    bool is_mask;                  /* at is a mask, and there are no other lists */
    uint32_t n_without, n_with, n_doubts;
    uint32_t *at; /* those without, with, doubtful */
    uint8_t key[];
};

/* A list of tokens that a search makes. */
struct tokens {
    int32_t *at; /* [n_tokens] */
    uint32_t n;
};

struct range {
    uint32_t from, to; /* of a trie's ids */
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
    uint32_t *visit_slots;      /* [MAX_VISITS * 2] number + 1 */
    uint32_t *used_slots;       /* [MAX_VISITS] */
    uint32_t *path, *rest_path; /* [deepest token + 1] states of a search */
    struct place *tries;        /* [MAX_TRIES] */
    uint32_t *spine;            /* cells of a stack that is made anew */
    uint32_t cap_spine;
    int32_t *
        least; /* [n_nodes] bytes to the end of a node's rule or repetition; NULL: unknown */
    /* of a search */
    struct tokens with, without, doubts;
    struct range *ranges; /* of allowed plain tokens, ascending */
    uint32_t n_ranges, cap_ranges;
    uint32_t behind; /* state behind the quote whose rests `rests` is of; DEAD: none */
    uint8_t *rests;  /* [most n_behind] of each rest: REST_NO, REST_YES or REST_DOUBT */
    uint8_t rests_escapes; /* their spelling */
    struct textbuf key;
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
    bool unique = tag < TAG_TEXT && a->g->nodes[tag].kind == NODE_UNIQUE;
    c.unique = unique ? a->n_cells : a->cells[below].unique;
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

/* --- unique items ------------------------------------------------------------------- */

static uint32_t record(struct automaton *a, uint32_t kind, uint32_t set, uint32_t text)
{
    return push(a, set, TAG_RECORD + kind, (int32_t)text);
}

static uint32_t kind_of(const struct cell *record)
{
    return record->tag - TAG_RECORD;
}

/* Returns whether a member of the set begins with the text, or whether one is the text. */
static bool is_met(const struct automaton *a, uint32_t set, uint32_t text, bool whole)
{
    for (; set != 0; set = a->cells[set].below) {
        uint32_t t = (uint32_t)a->cells[set].count;
        while (!whole && t != text && t != 0)
            t = a->cells[t].below;
        if (t == text)
            return true;
    }
    return false;
}

/* Compares a beginning of a key that goes on with a byte, with the key. */
static int compare_next(const struct automaton *a, uint32_t key, uint32_t text,
                        uint8_t byte)
{
    if (key == text)
        return 1;
    while (a->cells[key].below != text)
        key = a->cells[key].below;
    return ORDER(byte, a->cells[key].count);
}

/* Returns the record behind a byte; 0: the byte cannot follow. */
static uint32_t record_byte(struct automaton *a, uint32_t at, bool ascending, uint8_t byte)
{
    const struct cell r = a->cells[at];
    uint32_t kind = kind_of(&r), place = kind & REC_PLACE;
    if (place == REC_BETWEEN || (place == REC_FRESH && (kind & REC_SEARCH)))
        return at;
    int order = ascending && place == REC_THREAT
                    ? compare_next(a, r.below, (uint32_t)r.count, byte)
                    : 0;
    uint32_t text = push(a, (uint32_t)r.count, TAG_TEXT, byte);
    if (order < 0)
        return 0;
    if (place == REC_THREAT && (ascending ? order > 0 : !is_met(a, r.below, text, false))) {
        kind ^= REC_THREAT ^ REC_FRESH;
        if (kind & REC_SEARCH)
            return record(a, kind, 0, 0);
    }
    return record(a, kind, r.below, text);
}

/* Returns the record that a search begins with. */
static uint32_t record_search(struct automaton *a, uint32_t at)
{
    const struct cell r = a->cells[at];
    uint32_t kind = kind_of(&r) | REC_SEARCH;
    bool fresh = (kind & REC_PLACE) == REC_FRESH;
    return fresh ? record(a, kind, 0, 0) : record(a, kind, r.below, (uint32_t)r.count);
}

static uint32_t record_begin(struct automaton *a, uint32_t at, bool ascending)
{
    const struct cell r = a->cells[at];
    uint32_t kind = kind_of(&r);
    bool fresh = r.below == 0 || (ascending && (kind & REC_BLIND));
    return record(a, kind | (fresh ? REC_FRESH : REC_THREAT), r.below, 0);
}

/* Returns the record behind an item; 0: the item may not end here. */
static uint32_t record_end(struct automaton *a, uint32_t at, bool ascending)
{
    const struct cell r = a->cells[at];
    uint32_t kind = kind_of(&r), text = (uint32_t)r.count, set = r.below;
    bool threat = (kind & REC_PLACE) == REC_THREAT;
    if (threat && (ascending || is_met(a, set, text, true)))
        return 0;
    if ((kind & REC_BLIND) || (!threat && (kind & REC_SEARCH)))
        return record(a, REC_SEARCH | REC_BLIND, set, 0);
    if (!ascending)
        text = push(a, set, TAG_SET, (int32_t)text);
    return record(a, kind & REC_SEARCH, text, 0);
}

enum change { AT_BYTE, AT_SEARCH };

enum { NO_STACK = UINT32_MAX };

/* Returns the stack with the records of all its UNIQUEs changed. NO_STACK: a byte cannot follow. */
static uint32_t change_records(struct automaton *a, uint32_t stack, enum change change,
                               uint8_t byte)
{
    uint32_t n = 0, at = stack;
    for (; a->cells[at].unique != 0; at = a->cells[at].below) {
        if (!grow(&a->spine, &a->cap_spine, n + 1, sizeof *a->spine))
            return fault(a, -ENOMEM);
        a->spine[n++] = at;
    }
    while (n > 0) {
        const struct cell c = a->cells[a->spine[--n]];
        uint32_t count = (uint32_t)c.count;
        const struct node *k = &a->g->nodes[c.tag];
        if (k->kind == NODE_UNIQUE)
            count = change == AT_BYTE ? record_byte(a, count, k->ascending, byte)
                                      : record_search(a, count);
        if (k->kind == NODE_UNIQUE && count == 0)
            return NO_STACK;
        at = push(a, at, c.tag, (int32_t)count);
    }
    return at;
}

/* Returns the stack behind a byte that a place takes. NO_STACK: the byte cannot follow. */
static uint32_t stack_behind(struct automaton *a, struct place p, uint8_t byte)
{
    return a->g->nodes[p.node].blank ? p.stack : change_records(a, p.stack, AT_BYTE, byte);
}

/* Returns the stack with another record of its topmost UNIQUE. */
static uint32_t change_record(struct automaton *a, uint32_t stack, uint32_t to)
{
    uint32_t unique = a->cells[stack].unique;
    const struct cell c = a->cells[stack];
    if (stack == unique)
        return push(a, c.below, c.tag, (int32_t)to);
    uint32_t below = change_record(a, c.below, to); /* a REPEAT at most lies between */
    return push(a, below, c.tag, c.count);
}

/* Returns whether a search does not know the whole set of an array. */
static bool is_blind(const struct automaton *a, uint32_t stack)
{
    for (uint32_t at = a->cells[stack].unique; at != 0;
         at = a->cells[a->cells[at].below].unique)
        if (kind_of(&a->cells[a->cells[at].count]) & REC_BLIND)
            return true;
    return false;
}

enum { THREAT_ITEM = 1, THREAT_KEY = 2 };

/* Returns which kinds of items may still become what they may not be. */
static unsigned threats(const struct automaton *a, uint32_t stack)
{
    unsigned out = 0;
    for (uint32_t at = a->cells[stack].unique; at != 0;
         at = a->cells[a->cells[at].below].unique)
        if ((kind_of(&a->cells[a->cells[at].count]) & REC_PLACE) == REC_THREAT)
            out |= a->g->nodes[a->cells[at].tag].ascending ? THREAT_KEY : THREAT_ITEM;
    return out;
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

/* Visits the nodes that follow a node of a unique array. */
static void visit_unique(struct automaton *a, uint32_t id, uint32_t stack)
{
    const struct node *n = &a->g->nodes[id];
    uint32_t unique = a->cells[stack].unique, at = (uint32_t)a->cells[unique].count;
    if (n->kind == NODE_UNIQUE) {
        visit(a, n->next, push(a, stack, id, (int32_t)record(a, REC_BETWEEN, 0, 0)));
    } else if (n->kind == NODE_UNIQUE_END) {
        CHECK(stack == unique);
        visit(a, n->next, a->cells[stack].below);
    } else {
        bool ascending = a->g->nodes[a->cells[unique].tag].ascending;
        uint32_t to = n->kind == NODE_ITEM ? record_begin(a, at, ascending)
                                           : record_end(a, at, ascending);
        if (to != 0)
            visit(a, n->next, change_record(a, stack, to));
    }
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
        case NODE_UNIQUE:
        case NODE_ITEM:
        case NODE_ITEM_END:
        case NODE_UNIQUE_END:
            visit_unique(a, p.node, p.stack);
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

/* Few places are the rule, and stand in order but for some. */
static void sort_places(struct place *at, uint32_t n)
{
    if (n > 64)
        qsort(at, n, sizeof *at, by_place);
    for (uint32_t i = 1; i < n; i++) {
        const struct place p = at[i];
        uint32_t k = i;
        for (; k > 0 && by_place(&at[k - 1], &p) > 0; k--)
            at[k] = at[k - 1];
        at[k] = p;
    }
}

/* Returns whether a place takes characters that a string may contain without an escape. *quote:
 * whether it takes quotes alone. */
static bool takes_plain(const struct automaton *a, const struct node *n, bool *quote)
{
    *quote = true;
    for (uint32_t e = 0; e < n->n; e++) {
        const struct edge *x = &a->g->edges[n->first + e];
        *quote = *quote && x->lo == '"' && x->hi == '"';
        bool other = x->hi < 0x20 || (x->lo == x->hi && (x->lo == '"' || x->lo == '\\'));
        if (!other)
            return true;
    }
    return false;
}

/* Sets what the places of a state have in common. */
static void look_for_room(const struct automaton *a, struct state *s)
{
    const struct place *p = a->places + s->first;
    uint32_t n_full = 0, n_counted = 0;
    int32_t best = 0;
    bool mixed = false;
    s->only = true;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct node *n = &a->g->nodes[p[i].node];
        const struct cell *top = &a->cells[p[i].stack];
        bool counted = n->free == FREE_COUNTED;
        s->unique |= a->cells[p[i].stack].unique != 0;
        s->blind |= is_blind(a, p[i].stack);
        unsigned threat = n->free == FREE_NOT ? 0 : threats(a, p[i].stack);
        /* Where characters are few, they may all be needed to avert a threat. */
        bool open = n->free == FREE_OPEN,
             few = counted || (open && n->max != REPEAT_ENDLESS);
        bool free = n->free != FREE_NOT && !(threat & THREAT_KEY) && !(threat && few);
        bool full = free && n->free != FREE_WITHIN && n->body == CHARS_PLAIN &&
                    (!open || n->max == REPEAT_ENDLESS);
        bool quote, plain = takes_plain(a, n, &quote);
        s->only = s->only && (full || !plain);
        /* One spelling of escapes in all places, but for those of the quote behind the string. */
        if (full && !threat && !open && (n_full == 0 || n->next == s->escapes))
            s->escapes = (uint8_t)n->next;
        else if (full || !quote)
            mixed = true;
        n_full += full;
        n_counted += counted;
        if (counted)
            s->need = MAX(a->g->nodes[top->tag].min - top->count, 0);
        if (!free)
            continue;
        int32_t room = n->max == REPEAT_ENDLESS || n->free == FREE_WITHIN ? INT32_MAX
                       : counted ? n->max - top->count
                                 : n->max;
        int32_t worth = MIN(room, LONG_ROOM) * __builtin_popcount(n->body);
        if (worth > best) {
            best = worth;
            s->loop = n->body;
            s->room = room;
            s->within = n->free == FREE_WITHIN;
        }
    }
    s->only = s->only && n_full == 1 && s->room > 0;
    if (mixed || (n_counted > 0 && n_full > 1))
        s->escapes = ESCAPES_NONE;
}

/* Follows the visited nodes, forgets the visits, and leaves the places that take a byte at the
 * beginning of a->visits. Returns their number. */
static uint32_t gather(struct automaton *a, bool *accepts)
{
    uint32_t n = 0;
    *accepts = follow(a);
    for (uint32_t i = 0; i < a->n_visits; i++) {
        const struct node *k = &a->g->nodes[a->visits[i].node];
        a->visit_slots[a->used_slots[i]] = 0;
        if (k->kind == NODE_EDGES && k->n > 0)
            a->visits[n++] = a->visits[i];
    }
    a->n_visits = 0;
    return n;
}

/* Adds the places behind a byte that are threatened to a->tries. Returns true if one is not. */
static bool try_byte(struct automaton *a, struct place from, const struct edge *e,
                     uint8_t byte, uint32_t *n_tries)
{
    bool accepts;
    uint32_t stack = stack_behind(a, from, byte);
    if (stack == NO_STACK)
        return false;
    visit(a, e->next, stack);
    uint32_t n = gather(a, &accepts);
    for (uint32_t i = 0; i < n && !accepts; i++) {
        const struct place *p = &a->visits[i];
        uint32_t k = 0;
        if (!threats(a, p->stack))
            return true;
        while (k < *n_tries &&
               (a->tries[k].node != p->node || a->tries[k].stack != p->stack))
            k++;
        if (k == MAX_TRIES)
            return true; /* too far to look */
        if (k == *n_tries)
            a->tries[(*n_tries)++] = *p;
    }
    return accepts;
}

/* Returns whether a way leads from a threatened place to one that is not threatened. */
static bool can_avert(struct automaton *a, struct place from)
{
    uint32_t n = 1;
    a->tries[0] = from;
    for (uint32_t i = 0; i < n && a->rc == 0; i++) {
        const struct place p = a->tries[i];
        const struct node *k = &a->g->nodes[p.node];
        if (k->blank && i > 0) /* the nodes behind blanks are reached without blanks, too */
            continue;
        for (uint32_t e = 0; e < k->n; e++)
            for (int byte = a->g->edges[k->first + e].lo;
                 byte <= a->g->edges[k->first + e].hi; byte++)
                if (try_byte(a, p, &a->g->edges[k->first + e], (uint8_t)byte, &n))
                    return true;
    }
    return false;
}

/* Drops places whose threat cannot be averted. Returns how many of n remain. */
static uint32_t drop_lost(struct automaton *a, uint32_t n)
{
    uint32_t kept = 0, i = 0;
    while (i < n && !threats(a, a->visits[i].stack))
        i++;
    if (i == n)
        return n;
    struct place *all = mem_try_calloc(n, sizeof *all);
    if (all == NULL)
        return fault(a, -ENOMEM);
    memcpy(all, a->visits, n * sizeof *all);
    for (i = 0; i < n; i++)
        if (!threats(a, all[i].stack) || can_avert(a, all[i]))
            all[kept++] = all[i];
    memcpy(a->visits, all, kept * sizeof *all);
    free(all);
    return kept;
}

/* Returns the state of the visited places, and forgets the visits. */
static uint32_t settle(struct automaton *a)
{
    bool accepts;
    uint32_t n = drop_lost(a, gather(a, &accepts));
    if (a->rc != 0 || (n == 0 && !accepts))
        return DEAD;
    if (n > MAX_PLACES || a->n_states >= HARD_STATES)
        return fault(a, ERR_LIMIT);
    sort_places(a->visits, n);
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
    *s = (struct state){
        .first = a->n_places, .n = n, .to = UNKNOWN, .accepts = accepts, .least = -1};
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
            uint32_t stack = stack_behind(a, p, byte);
            if (stack != p.stack) /* each byte has its own text */
                *lo = *hi = byte;
            if (stack != NO_STACK)
                visit(a, e->next, stack);
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
    a->states[0] = (struct state){.to = UNKNOWN};
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
    a->rest_path = mem_try_calloc(depth + 1, sizeof *a->rest_path);
    a->tries = mem_try_calloc(MAX_TRIES, sizeof *a->tries);
    size_t n_ids = v == NULL ? 1 : (size_t)MAX(v->n_tokens, 1);
    a->with.at = mem_try_calloc(n_ids, sizeof *a->with.at);
    a->without.at = mem_try_calloc(n_ids, sizeof *a->without.at);
    a->doubts.at = mem_try_calloc(n_ids, sizeof *a->doubts.at);
    a->rests = mem_try_calloc(n_ids, sizeof *a->rests);
    if (a->visits == NULL || a->visit_slots == NULL || a->used_slots == NULL ||
        a->path == NULL || a->rest_path == NULL || a->tries == NULL || a->with.at == NULL ||
        a->without.at == NULL || a->doubts.at == NULL || a->rests == NULL ||
        !first_things(a)) {
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
    free(a->rest_path);
    free(a->tries);
    free(a->spine);
    free(a->least);
    free(a->with.at);
    free(a->without.at);
    free(a->doubts.at);
    free(a->ranges);
    free(a->rests);
    textbuf_free(&a->key);
    free(a);
}

/* Former cells that are needed, and then their new numbers. */
struct renewal {
    const struct cell *old;
    uint32_t *to;
};

static bool count_is_cell(const struct automaton *a, const struct cell *c)
{
    return c->tag >= TAG_SET ||
           (c->tag < TAG_TEXT && a->g->nodes[c->tag].kind == NODE_UNIQUE);
}

/* Makes the needed ones of n former cells anew. A cell refers to earlier ones only. */
static void renew_cells(struct automaton *a, struct renewal *r, uint32_t n)
{
    for (uint32_t i = n; i-- > 1;) {
        const struct cell *c = &r->old[i];
        if (r->to[i] != 0)
            r->to[c->below] = 1;
        if (r->to[i] != 0 && count_is_cell(a, c))
            r->to[c->count] = 1;
    }
    r->to[0] = 0;
    for (uint32_t i = 1; i < n && a->rc == 0; i++) {
        const struct cell *c = &r->old[i];
        bool cell = count_is_cell(a, c);
        if (r->to[i] != 0)
            r->to[i] = push(a, r->to[c->below], c->tag,
                            cell ? (int32_t)r->to[c->count] : c->count);
    }
}

/* Forgets all states but those of the walks. */
static int forget(struct automaton *a)
{
    struct state *states = a->states;
    struct place *places = a->places;
    struct cell *cells = a->cells;
    uint32_t n_cells = a->n_cells;
    struct renewal r = {.old = cells, .to = mem_try_calloc(n_cells, sizeof *r.to)};
    a->states = NULL;
    a->places = NULL;
    a->cells = NULL;
    a->n_states = a->n_places = a->n_cells = a->n_to = 0;
    a->cap_states = a->cap_places = a->cap_cells = 0;
    free(a->state_table.slots);
    free(a->cell_table.slots);
    a->state_table = a->cell_table = (struct table){0};
    forget_found(a);
    if (!first_things(a) || r.to == NULL)
        fault(a, -ENOMEM);
    for (struct walk *w = a->walks; a->rc == 0 && w != NULL; w = w->next)
        for (uint32_t i = 0; i < states[w->state].n; i++)
            r.to[places[states[w->state].first + i].stack] = 1;
    if (a->rc == 0)
        renew_cells(a, &r, n_cells);
    for (struct walk *w = a->walks; w != NULL; w = w->next) {
        const struct state s = states[w->state];
        for (uint32_t i = 0; i < s.n && a->rc == 0; i++) {
            const struct place *p = &places[s.first + i];
            visit(a, p->node, r.to[p->stack]);
        }
        if (s.accepts) /* a RETURN with an empty stack */
            visit(a, NODE_ID_RETURN, 0);
        w->state = settle(a);
    }
    free(states);
    free(places);
    free(cells);
    free(r.to);
    return a->rc;
}

static int make_room(struct automaton *a)
{
    if (a->rc == 0 && (a->n_states > SOFT_STATES || a->n_cells > SOFT_CELLS ||
                       a->found_bytes > SOFT_BYTES))
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
        rc = make_room(a);
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

static void add_tokens(struct tokens *l, const int32_t *ids, uint32_t n)
{
    memcpy(l->at + l->n, ids, n * sizeof *ids);
    l->n += n;
}

enum { REST_NO, REST_YES, REST_DOUBT };

/* Finds which rests of tokens that close a string may follow its quote. */
static void find_rests(struct automaton *a, const struct vocab_body *body, int escapes,
                       uint32_t behind)
{
    const struct trie *t = &body->behind;
    if (behind == a->behind && escapes == a->rests_escapes)
        return;
    memset(a->rests, REST_NO, body->n_behind);
    a->behind = behind;
    a->rests_escapes = (uint8_t)escapes;
    uint32_t *path = a->rest_path;
    path[0] = behind;
    uint8_t whole = a->states[behind].blind ? REST_DOUBT : REST_YES;
    for (uint32_t i = 0; behind != DEAD && i < t->at[0].tok; i++)
        a->rests[t->ids[i]] = whole;
    for (uint32_t i = 0; behind != DEAD && i < t->n && a->rc == 0;) {
        const struct trie_node *k = &t->at[i];
        uint32_t to = step(a, path[k->depth - 1], k->byte);
        path[k->depth] = to;
        for (uint32_t n = k->tok; to != DEAD && n < t->at[i + 1].tok; n++)
            a->rests[t->ids[n]] = a->states[to].blind ? REST_DOUBT : REST_YES;
        i = to == DEAD ? k->end : i + 1;
    }
}

/* Returns the state behind the quote that closes a string; DEAD: no token can close it. */
static uint32_t behind_quote(struct automaton *a, uint32_t state, int max_chars)
{
    if (a->states[state].need > max_chars)
        return DEAD;
    for (int32_t need = a->states[state].need; need > 0; need--)
        state = step(a, state, 'x');
    return step(a, state, '"');
}

static void add_closing(struct automaton *a, uint8_t rest, int32_t id)
{
    struct tokens *l = rest == REST_DOUBT ? &a->doubts : &a->with;
    if (rest != REST_NO)
        l->at[l->n++] = id;
}

/* Adds the tokens of `other` from i to end that may follow a state inside a string, of which their
 * first `done` characters have led to the state. */
static void search_body(struct automaton *a, uint32_t state, uint32_t i, uint32_t end,
                        int done)
{
    const struct state s = a->states[state];
    const struct vocab_body *body = &a->v->bodies[s.escapes];
    const int32_t *ids = a->v->other.ids;
    find_rests(a, body, s.escapes, behind_quote(a, state, body->max_chars));
    for (; i < end; i++) {
        int chars = body->chars[i] - done;
        if (body->kinds[i] == BODY_ENDS || chars > s.room)
            continue;
        if (body->kinds[i] == BODY_INSIDE)
            a->with.at[a->with.n++] = ids[i];
        else if (chars >= s.need)
            add_closing(a, a->rests[body->kinds[i] - BODY_CLOSES], ids[i]);
    }
}

/* The same for all tokens, where neither room nor need limits any. */
static void search_whole_body(struct automaton *a, uint32_t state)
{
    const struct vocab_body *body = &a->v->bodies[a->states[state].escapes];
    find_rests(a, body, a->states[state].escapes, step(a, state, '"'));
    for (uint32_t r = 0; r < body->n_behind; r++)
        for (uint32_t i = body->first[r]; a->rests[r] != REST_NO && i < body->first[r + 1];
             i++)
            add_closing(a, a->rests[r], a->v->other.ids[body->closing[i]]);
}

static bool is_body(const struct automaton *a, uint32_t state)
{
    const struct state *s = &a->states[state];
    return s->escapes != ESCAPES_NONE && !s->blind && a->v->bodies[s->escapes].usable;
}

/* Adds the tokens of `other` that a state allows. */
static void search_other(struct automaton *a, uint32_t from)
{
    const struct trie *t = &a->v->other;
    a->path[0] = from;
    for (uint32_t i = 0; i < t->n && a->rc == 0;) {
        const struct trie_node *k = &t->at[i];
        uint32_t to = step(a, a->path[k->depth - 1], k->byte);
        a->path[k->depth] = to;
        if (to == DEAD) {
            i = k->end;
        } else if (k->chars != NOT_PLAIN && is_body(a, to)) {
            search_body(a, to, k->tok, t->at[k->end].tok, k->chars);
            i = k->end;
        } else {
            add_tokens(a->states[to].blind ? &a->doubts : &a->with, t->ids + k->tok,
                       t->at[i + 1].tok - k->tok);
            i++;
        }
    }
}

static void add_range(struct automaton *a, uint32_t from, uint32_t to)
{
    struct range *last = a->n_ranges == 0 ? NULL : &a->ranges[a->n_ranges - 1];
    if (from == to)
        return;
    if (last != NULL && last->to == from) {
        last->to = to;
        return;
    }
    if (!grow(&a->ranges, &a->cap_ranges, a->n_ranges + 1, sizeof *a->ranges)) {
        fault(a, -ENOMEM);
        return;
    }
    a->ranges[a->n_ranges++] = (struct range){from, to};
}

/* Returns whether characters of some classes, up to a number, lead from the state back to it. */
static bool loops(const struct state *s, uint32_t classes, int chars)
{
    return s->loop != 0 && (classes & ~s->loop) == 0 && s->room >= chars && !s->blind;
}

/* Finds the plain tokens that a state allows: as ranges, doubtful ones as a list. */
static void search_plain(struct automaton *a, uint32_t from)
{
    const struct trie *t = &a->v->plain;
    a->path[0] = from;
    for (uint32_t i = 0; i < t->n && a->rc == 0;) {
        const struct trie_node *k = &t->at[i];
        uint32_t before = a->path[k->depth - 1];
        bool begins = (k->byte & 0xC0) != 0x80;
        if (begins != a->states[before].within &&
            loops(&a->states[before], k->below | chars_of_byte(k->byte),
                  k->chars + begins)) {
            add_range(a, k->tok, t->at[k->end].tok);
            i = k->end;
            continue;
        }
        uint32_t to = step(a, before, k->byte);
        a->path[k->depth] = to;
        uint32_t end = i + 1;
        if (to == DEAD || loops(&a->states[to], k->below, k->chars))
            end = k->end;
        if (to != DEAD && a->states[to].blind)
            add_tokens(&a->doubts, t->ids + k->tok, t->at[end].tok - k->tok);
        else if (to != DEAD)
            add_range(a, k->tok, t->at[end].tok);
        i = end;
    }
}

/* Turns the ranges into tokens with or without, whichever are fewer. Returns whether they are all
 * plain tokens but those without. */
static bool sum_ranges(struct automaton *a)
{
    const struct trie *t = &a->v->plain;
    uint32_t n = a->doubts.n, at = 0;
    for (uint32_t i = 0; i < a->n_ranges; i++)
        n += a->ranges[i].to - a->ranges[i].from;
    bool most = n > t->n_ids / 2;
    for (uint32_t i = 0; i < a->n_ranges; i++) {
        const struct range *r = &a->ranges[i];
        if (most)
            add_tokens(&a->without, t->ids + at, r->from - at);
        else
            add_tokens(&a->with, t->ids + r->from, r->to - r->from);
        at = r->to;
    }
    if (most)
        add_tokens(&a->without, t->ids + at, t->n_ids - at);
    return most;
}

static bool key_add(struct automaton *a, uint32_t v)
{
    return textbuf_try_add(&a->key, &v, sizeof v);
}

/* Makes the key of a state's search: its places and stacks, where a count that no token can bring
 * to a bound is replaced by its class.  far: what tokens add at most; far_inside: to the count of a
 * string's characters. */
static bool key_make(struct automaton *a, const struct state *s, int far, int far_inside)
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
                bool inside = at == p->stack && a->g->nodes[p->node].free == FREE_COUNTED;
                int32_t near = (inside ? far_inside : far) + 1 + (int32_t)r->n;
                ok = ok && key_add(a, (uint32_t)MIN(MAX(r->min - c->count, 0), near));
                ok = ok && key_add(a, (uint32_t)MIN(r->max - c->count, near));
            } else if (r->kind == NODE_UNIQUE) {
                ok = ok && key_add(a, (uint32_t)c->count);
            }
        }
        ok = ok && key_add(a, UINT32_MAX);
    }
    return ok;
}

/* Keeps what a search found. base, inside: see struct found. */
static struct found *found_new(struct automaton *a, uint64_t hash, const uint32_t *base,
                               const uint32_t *inside)
{
    size_t words = a->v->n_words;
    struct found *f = mem_try_calloc(1, sizeof *f + a->key.n);
    if (f == NULL)
        return NULL;
    f->is_mask = a->with.n + a->without.n > words;
    size_t n = (f->is_mask ? words : a->with.n + a->without.n) + a->doubts.n;
    f->at = mem_try_calloc(MAX(n, (size_t)1), sizeof *f->at);
    if (f->at == NULL) {
        free(f);
        return NULL;
    }
    uint32_t *at = f->at;
    if (f->is_mask) {
        if (base != NULL)
            memcpy(at, base, words * sizeof *at);
        for (uint32_t i = 0; i < a->without.n; i++)
            mask_clear(at, a->without.at[i]);
        for (uint32_t i = 0; i < a->with.n; i++)
            mask_set(at, a->with.at[i]);
        at += words;
    } else {
        f->n_without = a->without.n;
        f->n_with = a->with.n;
        memcpy(at, a->without.at, a->without.n * sizeof *at);
        memcpy(at + a->without.n, a->with.at, a->with.n * sizeof *at);
        at += a->without.n + a->with.n;
    }
    memcpy(at, a->doubts.at, a->doubts.n * sizeof *at);
    f->base = base;
    f->inside = inside;
    f->n_doubts = a->doubts.n;
    f->hash = hash;
    f->n_key = a->key.n;
    memcpy(f->key, a->key.p, a->key.n);
    f->next = a->buckets[hash % N_BUCKETS];
    a->buckets[hash % N_BUCKETS] = f;
    a->found_bytes += sizeof *f + f->n_key + n * sizeof *f->at;
    return f;
}

/* Searches the tokens that a state allows. Where it is `only`, plain ones are left out. */
static struct found *search(struct automaton *a, uint32_t state, uint64_t hash)
{
    const struct vocab *v = a->v;
    const struct state s = a->states[state];
    const uint32_t *base = NULL, *inside = NULL;
    a->with.n = a->without.n = a->doubts.n = a->n_ranges = 0;
    a->behind = DEAD;
    a->rests_escapes = ESCAPES_NONE;
    if (is_body(a, state) && s.need == 0 && s.room >= v->bodies[s.escapes].max_chars) {
        search_whole_body(a, state);
        inside = v->bodies[s.escapes].inside;
    } else if (is_body(a, state)) {
        search_body(a, state, 0, v->other.n_ids, 0);
    } else {
        search_other(a, state);
    }
    if (!s.only) {
        search_plain(a, state);
        base = a->rc == 0 && sum_ranges(a) ? v->all_plain : NULL;
    }
    if (a->rc != 0)
        return NULL;
    struct found *f = found_new(a, hash, base, inside);
    if (f == NULL)
        fault(a, -ENOMEM);
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
    int inside = s->only && is_body(a, state) ? a->v->bodies[s->escapes].max_chars : far;
    if (!key_make(a, s, far, inside)) {
        fault(a, -ENOMEM);
        return NULL;
    }
    uint64_t hash = checksum64(a->key.p, a->key.n);
    struct found *f = a->buckets[hash % N_BUCKETS];
    while (f != NULL && (f->hash != hash || f->n_key != a->key.n ||
                         memcmp(f->key, a->key.p, a->key.n) != 0))
        f = f->next;
    if (f == NULL)
        f = search(a, state, hash);
    if (f != NULL)
        a->states[state].found = f;
    return f;
}

/* Returns the state from which the tokens that may follow a state are searched. */
static uint32_t shadow_of(struct automaton *a, uint32_t state)
{
    const struct state s = a->states[state];
    if (!s.unique)
        return state;
    if (s.shadow != 0)
        return s.shadow;
    for (uint32_t i = 0; i < s.n && a->rc == 0; i++) {
        struct place p = a->places[s.first + i];
        visit(a, p.node, change_records(a, p.stack, AT_SEARCH, 0));
    }
    if (s.accepts)
        visit(a, NODE_ID_RETURN, 0);
    uint32_t shadow = settle(a);
    a->states[state].shadow = shadow;
    return shadow;
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
    uint32_t at = shadow_of(a, w->state);
    const struct found *f = find(a, at);
    if (f == NULL)
        return a->rc;
    const struct state *s = &a->states[at];
    if (s->only)
        mask_plain(v, s->room, mask);
    else if (f->base != NULL && !f->is_mask)
        memcpy(mask, f->base, v->n_words * sizeof *mask);
    else
        memset(mask, 0, v->n_words * sizeof *mask);
    const uint32_t *ids = f->at;
    for (uint32_t i = 0; i < f->n_without; i++)
        mask_clear(mask, (int32_t)*ids++);
    for (uint32_t i = 0; i < f->n_with; i++)
        mask_set(mask, (int32_t)*ids++);
    for (size_t i = 0; f->inside != NULL && i < v->n_words; i++)
        mask[i] |= f->inside[i];
    for (size_t i = 0; f->is_mask && i < v->n_words; i++)
        mask[i] |= *ids++;
    for (uint32_t i = 0; i < f->n_doubts; i++, ids++) {
        const uint8_t *bytes = (const uint8_t *)v->bytes[*ids];
        uint32_t to = w->state;
        for (uint32_t k = 0; k < v->n_bytes[*ids] && to != DEAD; k++)
            to = step(a, to, bytes[k]);
        if (to != DEAD)
            mask_set(mask, (int32_t)*ids);
    }
    return a->rc;
}

/* --- completing a text ------------------------------------------------------------------ */

enum { FAR = 1 << 28 }; /* more bytes than any text has */

static int32_t sum(int64_t a, int64_t b)
{
    return (int32_t)MIN(a + b, FAR);
}

/* Returns the least bytes from a node to the end of its rule or repetition, as far as those of the
 * nodes behind it are known. A counter counts characters, of a byte at least. */
static int32_t least_of(const struct automaton *a, const struct node *n)
{
    int32_t least = FAR, next = a->least[n->next];
    switch ((enum node_kind)n->kind) {
    case NODE_EDGES:
        for (uint32_t i = 0; i < n->n; i++)
            least = MIN(least, sum(1, a->least[a->g->edges[n->first + i].next]));
        return least;
    case NODE_SPLIT:
        for (uint32_t i = 0; i < n->n; i++)
            least = MIN(least, a->least[a->g->lists[n->first + i]]);
        return least;
    case NODE_CALL:
        return sum(a->least[a->g->rules[n->body]], next);
    case NODE_REPEAT:
        return n->min == 0 ? next : sum((int64_t)n->min * a->least[n->body], next);
    case NODE_RETURN:
    case NODE_AGAIN:
        return 0;
    case NODE_COUNTER:
        return sum(n->min, next);
    case NODE_COUNT:
    case NODE_COUNTED:
    case NODE_UNIQUE:
    case NODE_ITEM:
    case NODE_ITEM_END:
    case NODE_UNIQUE_END:
        return next;
    }
    return FAR;
}

/* Makes the table by lowering its numbers until none is too high. */
static bool need_least(struct automaton *a)
{
    if (a->least != NULL)
        return true;
    a->least = mem_try_calloc(a->g->n_nodes, sizeof *a->least);
    if (a->least == NULL)
        return false;
    for (uint32_t i = 0; i < a->g->n_nodes; i++)
        a->least[i] = FAR;
    for (bool lowered = true; lowered;) {
        lowered = false;
        for (uint32_t i = 0; i < a->g->n_nodes; i++) {
            int32_t least = least_of(a, &a->g->nodes[i]);
            lowered |= least < a->least[i];
            a->least[i] = MIN(least, a->least[i]);
        }
    }
    return true;
}

/* Returns the bytes that complete the text from a place: to the end of its rule, and of all that
 * its stack goes on with. */
static int32_t least_from(const struct automaton *a, struct place p)
{
    int32_t least = a->least[p.node];
    for (uint32_t at = p.stack; at != 0; at = a->cells[at].below) {
        const struct cell *c = &a->cells[at];
        const struct node *n = &a->g->nodes[c->tag];
        int64_t more = MAX(n->min - c->count - (n->kind == NODE_REPEAT), 0);
        if (n->kind == NODE_CALL)
            least = sum(least, a->least[n->next]);
        else if (n->kind == NODE_REPEAT)
            least = sum(least,
                        sum(more == 0 ? 0 : more * a->least[n->body], a->least[n->next]));
        else if (n->kind == NODE_COUNTER)
            least = sum(least, more);
    }
    return least;
}

static int32_t state_least(struct automaton *a, uint32_t state)
{
    struct state *s = &a->states[state];
    if (s->least >= 0)
        return s->least;
    s->least = s->accepts ? 0 : FAR;
    for (uint32_t i = 0; i < s->n; i++)
        s->least = MIN(s->least, least_from(a, a->places[s->first + i]));
    return s->least;
}

/* Marks in `mask` those tokens of `of` in a trie behind which at most `room` bytes complete the
 * text. Returns the least that any of them needs. */
static int32_t close_by(struct automaton *a, const struct trie *t, uint32_t from,
                        int32_t room, const uint32_t *of, uint32_t *mask)
{
    int32_t best = FAR;
    a->path[0] = from;
    for (uint32_t i = 0; i < t->n && a->rc == 0;) {
        const struct trie_node *k = &t->at[i];
        uint32_t to = step(a, a->path[k->depth - 1], k->byte);
        a->path[k->depth] = to;
        i = to == DEAD ? k->end : i + 1;
        for (uint32_t id = k->tok; to != DEAD && id < k[1].tok; id++) {
            int32_t least = mask_has(of, t->ids[id]) ? state_least(a, to) : FAR;
            best = MIN(best, least);
            if (least <= room)
                mask_set(mask, t->ids[id]);
        }
    }
    return best;
}

int walk_close(struct walk *w, int room, uint32_t *mask)
{
    struct automaton *a = w->automaton;
    size_t bytes = a->v->n_words * sizeof *mask;
    int rc = make_room(a);
    if (rc != 0)
        return rc;
    uint32_t *of = mem_try(bytes);
    if (of == NULL || !need_least(a)) {
        free(of);
        return -ENOMEM;
    }
    memcpy(of, mask, bytes);
    memset(mask, 0, bytes);
    int32_t best = close_by(a, &a->v->plain, w->state, room, of, mask);
    best = MIN(best, close_by(a, &a->v->other, w->state, room, of, mask));
    if (best > room && !a->states[w->state].accepts) {
        (void)close_by(a, &a->v->plain, w->state, best, of, mask);
        (void)close_by(a, &a->v->other, w->state, best, of, mask);
    }
    free(of);
    return a->rc;
}
