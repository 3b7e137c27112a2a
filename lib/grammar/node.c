/* node.c - see node.h. */
#include "grammar/node.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "grammar/vocab.h"

enum { NO_NODE = UINT32_MAX, MAX_WORK = 300000000 };

int build_abandon(struct build *b)
{
    arena_deinit(&b->arena);
    arena_deinit(&b->scratch);
    free(b->nodes);
    free(b->edges);
    free(b->lists);
    free(b->rules);
    return b->err->code;
}

void build_fault(struct build *b, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_setv(b->err, code, fmt, ap);
    va_end(ap);
    longjmp(b->fault, 1);
}

static _Noreturn void too_large(struct build *b)
{
    build_fault(b, ERR_LIMIT, "the grammar is too large: it needs more than %d MiB",
                GRAMMAR_MAX_BYTES >> 20);
}

void *build_alloc(struct build *b, size_t n)
{
    void *p = arena_alloc(b->now, n);
    if (p == NULL)
        too_large(b);
    memset(p, 0, n);
    return p;
}

void scratch_begin(struct build *b)
{
    b->scratch.used_bytes = 0;
    b->now = &b->scratch;
}

void scratch_end(struct build *b)
{
    b->now = &b->arena;
}

void build_work(struct build *b, uint64_t steps)
{
    b->work += steps;
    if (b->work > MAX_WORK)
        build_fault(b, ERR_LIMIT, "the form is too complex: compiling it takes too long");
}

void *build_grow(struct build *b, void *array, uint32_t *cap, uint32_t n, size_t size)
{
    if (n < *cap)
        return array;
    uint32_t more = *cap == 0 ? 4 : *cap * 2; /* most lists are short */
    void *p = build_alloc(b, more * size);
    if (n > 0)
        memcpy(p, array, n * size);
    *cap = more;
    return p;
}

/* Returns an array of the graph with room for n + 1 elements. */
static void *graph_grow(struct build *b, void *array, uint32_t *cap, uint32_t n,
                        size_t size)
{
    if (n < *cap)
        return array;
    uint32_t more = MAX(*cap * 2, 64u);
    if (b->graph_bytes + more * size > GRAMMAR_MAX_BYTES)
        too_large(b);
    void *p = mem_try_realloc(array, more * size);
    if (p == NULL)
        build_fault(b, -ENOMEM, "no memory for a grammar");
    b->graph_bytes += (more - *cap) * size;
    *cap = more;
    return p;
}

static uint32_t node_new(struct build *b, enum node_kind kind)
{
    b->nodes = graph_grow(b, b->nodes, &b->cap_nodes, b->n_nodes, sizeof *b->nodes);
    b->nodes[b->n_nodes] = (struct node){.kind = (uint8_t)kind};
    return b->n_nodes++;
}

/* What lies behind the first bytes is in huge pages. Most forms need less, and compile sooner than
 * the kernel clears two huge pages. */
static int build_arena(struct arena *a)
{
    enum { SMALL_BYTES = 2 << 20 };
    int rc = arena_init(a, GRAMMAR_MAX_BYTES);
    if (rc == 0)
        (void)madvise(a->base + SMALL_BYTES, GRAMMAR_MAX_BYTES - SMALL_BYTES,
                      MADV_HUGEPAGE);
    return rc;
}

int build_begin(struct build *b, struct err *err)
{
    memset(b, 0, sizeof *b);
    b->err = err;
    int rc = build_arena(&b->arena);
    if (rc == 0)
        rc = build_arena(&b->scratch);
    if (rc != 0) {
        arena_deinit(&b->arena);
        return err_set(err, rc, "no memory to compile a grammar");
    }
    b->now = &b->arena;
    b->cap_nodes = 64;
    b->nodes = mem_try(b->cap_nodes * sizeof *b->nodes);
    if (b->nodes == NULL) {
        err_set(err, -ENOMEM, "no memory to compile a grammar");
        return build_abandon(b);
    }
    node_new(b, NODE_EDGES); /* NODE_ID_FAIL */
    node_new(b, NODE_RETURN);
    return 0;
}

uint32_t node_edges(struct build *b, const struct edge *edges, uint32_t n)
{
    uint32_t id = node_new(b, NODE_EDGES), first = b->n_edges;
    for (uint32_t i = 0; i < n; i++) {
        struct edge *last = b->n_edges > first ? &b->edges[b->n_edges - 1] : NULL;
        CHECK(last == NULL || edges[i].lo > last->hi);
        if (last != NULL && last->next == edges[i].next && last->hi + 1 == edges[i].lo) {
            last->hi = edges[i].hi;
            continue;
        }
        b->edges = graph_grow(b, b->edges, &b->cap_edges, b->n_edges, sizeof *b->edges);
        b->edges[b->n_edges++] = edges[i];
    }
    b->nodes[id].first = first;
    b->nodes[id].n = b->n_edges - first;
    return id;
}

uint32_t node_range(struct build *b, uint8_t lo, uint8_t hi, uint32_t next)
{
    struct edge e = {.lo = lo, .hi = hi, .next = next};
    return node_edges(b, &e, 1);
}

uint32_t node_bytes(struct build *b, const char *text, size_t n, uint32_t next)
{
    for (size_t i = n; i > 0; i--)
        next = node_range(b, (uint8_t)text[i - 1], (uint8_t)text[i - 1], next);
    return next;
}

uint32_t node_split(struct build *b, const uint32_t *nodes, uint32_t n)
{
    if (n == 0)
        return NODE_ID_FAIL;
    if (n == 1)
        return nodes[0];
    uint32_t id = node_new(b, NODE_SPLIT), first = b->n_lists;
    for (uint32_t i = 0; i < n; i++) {
        b->lists = graph_grow(b, b->lists, &b->cap_lists, b->n_lists, sizeof *b->lists);
        b->lists[b->n_lists++] = nodes[i];
    }
    b->nodes[id].first = first;
    b->nodes[id].n = n;
    return id;
}

uint32_t node_either(struct build *b, uint32_t one, uint32_t other)
{
    const uint32_t both[] = {one, other};
    return node_split(b, both, 2);
}

uint32_t node_call(struct build *b, uint32_t rule, uint32_t next)
{
    uint32_t id = node_new(b, NODE_CALL);
    b->nodes[id].body = rule;
    b->nodes[id].next = next;
    return id;
}

uint32_t node_count(struct build *b, enum node_kind kind, int32_t min, int32_t max,
                    uint32_t next)
{
    uint32_t id = node_new(b, kind);
    b->nodes[id].min = min;
    b->nodes[id].max = max;
    b->nodes[id].next = next;
    return id;
}

uint32_t node_mark(struct build *b, enum node_kind kind, uint32_t next)
{
    return node_count(b, kind, 0, 0, next);
}

uint32_t repeat_begin(struct build *b, int32_t min, int32_t max, uint32_t next)
{
    const uint32_t both[] = {NO_NODE, next};
    CHECK(min >= 0 && max >= min);
    if (max == REPEAT_ENDLESS && min == 0) /* a loop needs no count */
        return node_split(b, both, 2);
    uint32_t id = node_new(b, NODE_REPEAT);
    b->nodes[id].min = min;
    b->nodes[id].max = max;
    b->nodes[id].next = next;
    b->nodes[id].body = NO_NODE;
    return id;
}

uint32_t repeat_again(struct build *b, uint32_t repeat)
{
    if (b->nodes[repeat].kind == NODE_SPLIT)
        return repeat;
    uint32_t id = node_new(b, NODE_AGAIN);
    b->nodes[id].body = repeat;
    return id;
}

void repeat_end(struct build *b, uint32_t repeat, uint32_t body)
{
    struct node *r = &b->nodes[repeat];
    if (r->kind == NODE_SPLIT)
        b->lists[r->first] = body;
    else
        r->body = body;
}

uint32_t rule_new(struct build *b)
{
    b->rules = graph_grow(b, b->rules, &b->cap_rules, b->n_rules, sizeof *b->rules);
    b->rules[b->n_rules] = NODE_ID_FAIL;
    return b->n_rules++;
}

void rule_set(struct build *b, uint32_t rule, uint32_t node)
{
    b->rules[rule] = node;
}

/* --- nodes from which a text can be completed --------------------------------------- */

static bool completes(const struct build *b, const bool *ok, const struct node *n)
{
    bool any = false;
    switch ((enum node_kind)n->kind) {
    case NODE_EDGES:
        for (uint32_t i = 0; i < n->n; i++)
            any |= ok[b->edges[n->first + i].next];
        return any;
    case NODE_SPLIT:
        for (uint32_t i = 0; i < n->n; i++)
            any |= ok[b->lists[n->first + i]];
        return any;
    case NODE_CALL:
        return ok[n->next] && ok[b->rules[n->body]];
    case NODE_REPEAT:
        return ok[n->next] && (n->min == 0 || ok[n->body]);
    case NODE_COUNTER:
    case NODE_COUNT:
    case NODE_COUNTED:
    case NODE_UNIQUE:
    case NODE_ITEM:
    case NODE_ITEM_END:
    case NODE_UNIQUE_END:
        return ok[n->next];
    case NODE_RETURN:
    case NODE_AGAIN: /* the body ends; its REPEAT decides */
        return true;
    }
    return false;
}

/* Removes the ways of a node that cannot be completed. */
static void prune(struct build *b, const bool *ok, struct node *n)
{
    uint32_t kept = 0;
    if (n->kind == NODE_EDGES) {
        for (uint32_t i = 0; i < n->n; i++)
            if (ok[b->edges[n->first + i].next])
                b->edges[n->first + kept++] = b->edges[n->first + i];
        n->n = kept;
    } else if (n->kind == NODE_SPLIT) {
        for (uint32_t i = 0; i < n->n; i++)
            if (ok[b->lists[n->first + i]])
                b->lists[n->first + kept++] = b->lists[n->first + i];
        n->n = kept;
    } else if (n->kind == NODE_REPEAT && !ok[n->body]) {
        n->max = 0;
    }
}

/* --- places that characters lead back to -------------------------------------------- */

enum { LOOP_DEPTH = 6, LOOP_WAYS = 8, FEW_CHARS = 4 };

struct loop {
    bool counted;
    int32_t max;
};

static bool count_in(struct loop *l, int32_t max)
{
    l->counted = true;
    l->max = MIN(l->max, max);
    return true;
}

/* Returns whether a node leads to `to` without a byte. *l gets the counts on the way. */
static bool leads_to(const struct build *b, uint32_t id, uint32_t to, int depth,
                     struct loop *l)
{
    const struct node *n = &b->nodes[id];
    if (id == to || depth == LOOP_DEPTH)
        return id == to;
    if (n->kind == NODE_COUNT)
        return n->min == 0 && leads_to(b, n->next, to, depth + 1, l) && count_in(l, n->max);
    if (n->kind == NODE_AGAIN)
        return leads_to(b, b->nodes[n->body].body, to, depth + 1, l) &&
               count_in(l, b->nodes[n->body].max);
    for (uint32_t i = 0; n->kind == NODE_SPLIT && n->n <= LOOP_WAYS && i < n->n; i++)
        if (leads_to(b, b->lists[n->first + i], to, depth + 1, l))
            return true;
    return false;
}

/* Returns whether all bytes from lo to hi, and `more` continuing ones behind each, lead from a node
 * to `to`. */
static bool all_lead_to(const struct build *b, uint32_t id, uint8_t lo, uint8_t hi,
                        int more, uint32_t to, struct loop *l)
{
    const struct node *n = &b->nodes[id];
    int at = lo;               /* the first byte that is not known to lead there */
    if (n->kind == NODE_COUNT) /* characters are counted at their first byte */
        return n->min == 0 && count_in(l, n->max) &&
               all_lead_to(b, n->next, lo, hi, more, to, l);
    for (uint32_t i = 0; n->kind == NODE_EDGES && i < n->n && at <= hi; i++) {
        const struct edge *e = &b->edges[n->first + i];
        if (e->hi < at)
            continue;
        if (e->lo > at ||
            (more == 0 ? !leads_to(b, e->next, to, 0, l)
                       : !all_lead_to(b, e->next, 0x80, 0xBF, more - 1, to, l)))
            return false;
        at = e->hi + 1;
    }
    return at > hi;
}

/* Sets how a node is free. */
static void find_loop(struct build *b, uint32_t id)
{
    /* First bytes of characters and the limits of the second (Unicode 15, table 3-7). */
    static const struct {
        uint8_t lo, hi, more, lo2, hi2;
    } leads[] = {{0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
                 {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F},
                 {0xEE, 0xEF, 2, 0x80, 0xBF}, {0xF0, 0xF0, 3, 0x90, 0xBF},
                 {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};
    struct node *n = &b->nodes[id];
    uint32_t loop = CHARS_PLAIN;
    struct loop l = {.max = REPEAT_ENDLESS};
    bool any = false;
    for (uint32_t i = 0; i < n->n && !any; i++) {
        const struct edge *e = &b->edges[n->first + i];
        any = e->lo < 0x80 && leads_to(b, e->next, id, 0, &l);
    }
    if (!any)
        return;
    for (int byte = 0x20; byte < 0x80; byte++)
        if ((loop & chars_of_byte((uint8_t)byte)) != 0 &&
            !all_lead_to(b, id, (uint8_t)byte, (uint8_t)byte, 0, id, &l))
            loop &= ~chars_of_byte((uint8_t)byte);
    for (size_t k = 0; k < sizeof leads / sizeof *leads; k++) {
        for (int byte = leads[k].lo; byte <= leads[k].hi; byte++) {
            const struct edge *e = &b->edges[n->first], *end = e + n->n;
            while (e < end && e->hi < byte)
                e++;
            if (e == end || e->lo > byte ||
                !all_lead_to(b, e->next, leads[k].lo2, leads[k].hi2, leads[k].more - 1, id,
                             &l))
                loop &= ~chars_of_byte((uint8_t)byte);
        }
    }
    bool more = __builtin_popcount(loop) >= __builtin_popcount(n->body);
    if (n->free == FREE_OPEN && n->max > FEW_CHARS && !more)
        return; /* many characters of many classes are worth more */
    n->free = l.counted ? FREE_COUNTED : FREE_ENDLESS;
    n->body = loop;
    n->max = l.max;
}

/* Returns whether the node, or one that follows it without a byte, is EDGES that are free without a
 * count; *loop: for which characters. */
static bool is_endless(const struct build *b, uint32_t id, uint32_t *loop)
{
    const struct node *n = &b->nodes[id];
    if (n->kind == NODE_EDGES) {
        *loop = n->body;
        return n->free != FREE_NOT && n->free != FREE_COUNTED &&
               (n->free != FREE_OPEN || n->max == REPEAT_ENDLESS);
    }
    for (uint32_t i = 0; n->kind == NODE_SPLIT && i < n->n; i++)
        if (b->nodes[b->lists[n->first + i]].kind == NODE_EDGES &&
            is_endless(b, b->lists[n->first + i], loop))
            return true;
    return false;
}

/* Marks nodes that continue a character with any byte, behind which the place is free. */
static void mark_within(struct build *b)
{
    for (int bytes = 1; bytes <= 3; bytes++) { /* that the character still needs */
        for (uint32_t i = 0; i < b->n_nodes; i++) {
            struct node *n = &b->nodes[i];
            uint32_t loop;
            if (n->kind != NODE_EDGES || n->n != 1 || n->free != FREE_NOT)
                continue;
            const struct edge *e = &b->edges[n->first];
            if (e->lo == 0x80 && e->hi == 0xBF && is_endless(b, e->next, &loop)) {
                n->free = FREE_WITHIN;
                n->body = loop;
            }
        }
    }
}

/* Returns the array without the room behind its n bytes. */
static void *fit(void *array, size_t n)
{
    void *p = n == 0 ? NULL : mem_try_realloc(array, n);
    return p == NULL ? array : p;
}

struct grammar *build_finish(struct build *b, uint32_t root)
{
    bool *ok = build_alloc(b, b->n_nodes);
    /* Parts that follow have lower ids, but for loops and rules. So nearly all is known after one
     * pass. */
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < b->n_nodes; i++) {
            if (!ok[i] && completes(b, ok, &b->nodes[i]))
                changed = ok[i] = true;
        }
    }
    if (!ok[root])
        build_fault(b, ERR_USAGE, "no text has this form");
    for (uint32_t i = 0; i < b->n_nodes; i++)
        prune(b, ok, &b->nodes[i]);
    for (uint32_t i = 0; i < b->n_nodes; i++)
        if (b->nodes[i].kind == NODE_EDGES)
            find_loop(b, i);
    mark_within(b);
    struct grammar *g = mem_try(sizeof *g);
    if (g == NULL)
        build_fault(b, -ENOMEM, "no memory for a grammar");
    *g = (struct grammar){.nodes = fit(b->nodes, b->n_nodes * sizeof *b->nodes),
                          .edges = fit(b->edges, b->n_edges * sizeof *b->edges),
                          .lists = fit(b->lists, b->n_lists * sizeof *b->lists),
                          .rules = fit(b->rules, b->n_rules * sizeof *b->rules),
                          .n_nodes = b->n_nodes,
                          .root = root};
    arena_deinit(&b->arena);
    arena_deinit(&b->scratch);
    return g;
}

void grammar_free(struct grammar *g)
{
    if (g == NULL)
        return;
    free(g->nodes);
    free(g->edges);
    free(g->lists);
    free(g->rules);
    free(g);
}
