/* node.h - the graph of a grammar, and its builder; private to lib/grammar.
 *
 * A node consumes a byte or decides what comes next:
 *
 *     EDGES    one byte, by ranges; each range has its own next node
 *     SPLIT    any of several nodes, without a byte
 *     CALL     a rule, then `next`
 *     RETURN   the end of a rule
 *     REPEAT   `body` min to max times, then `next`; the count lies on the stack of the walk
 *     AGAIN    the end of a body of the repeat `body`
 *     COUNTER  puts a count of 0 on the stack, then `next`
 *     COUNT    adds 1 to the count, which must then lie between min and max, then `next`
 *     COUNTED  takes the count from the stack if it lies between min and max, then `next`
 *     UNIQUE   puts an empty list of items on the stack, then `next`
 *     ITEM     the text of an item begins, then `next`
 *     ITEM_END the item's text joins the list, then `next`; fails if the list has it already, or,
 *              where the UNIQUE is ascending, if it is not greater than the one before
 *     UNIQUE_END takes the list from the stack, then `next`
 *
 * Graphs are built from the end: a function takes the node that follows and returns the node that
 * begins.  A build allocates from an arena. A fault unwinds with longjmp to the compiler's entry,
 * which frees the arena, so no function of a build returns an error.
 *
 * Invariants after build_finish:
 *  1. From each node that the root reaches, a text can be completed. Edges to others are gone.
 *  2. Ranges of a node are sorted and do not overlap. */
#ifndef GRAMMAR_NODE_H
#define GRAMMAR_NODE_H

#include <setjmp.h>
#include <stdint.h>

#include "base/arena.h"
#include "grammar/grammar.h"

enum node_kind {
    NODE_EDGES,
    NODE_SPLIT,
    NODE_CALL,
    NODE_RETURN,
    NODE_REPEAT,
    NODE_AGAIN,
    NODE_COUNTER,
    NODE_COUNT,
    NODE_COUNTED,
    NODE_UNIQUE,
    NODE_ITEM,
    NODE_ITEM_END,
    NODE_UNIQUE_END,
};

/* Values of node.free: characters of some classes (vocab.h), those of node.body, lead back to the
 * same place, or at least to some place. All but FREE_OPEN are found by build_finish. */
enum {
    FREE_NOT = 0,
    FREE_ENDLESS = 1,
    FREE_COUNTED = 2, /* while the count on the stack's top is below node.max */
    FREE_WITHIN = 3, /* once the character that has begun is complete, it is FREE_ENDLESS */
    FREE_OPEN = 4    /* up to node.max of them may follow, in any order */
};
enum { REPEAT_ENDLESS = INT32_MAX };
/* The two nodes of every graph: one that matches nothing, and the end of a rule or of the text. */
enum { NODE_ID_FAIL = 0, NODE_ID_RETURN = 1 };

struct edge {
    uint8_t lo, hi;
    uint32_t next;
};

struct node {
    uint8_t kind, free;
    bool blank;     /* EDGES: its bytes are no part of an item's text */
    bool ascending; /* UNIQUE */
    /* EDGES: its edges; SPLIT: its nodes; COUNTER: n is how far the bounds of its COUNTs are from
     * its own */
    uint32_t first, n;
    /* CALL: the rule; REPEAT: the body's first node; AGAIN: the repeat; EDGES: see `free` */
    uint32_t body;
    /* All but EDGES, SPLIT, RETURN and AGAIN: what follows.  EDGES: if it is free for all
     * characters, the spelling of the escapes that lead back, too (vocab.h); 0: none. */
    uint32_t next;
    int32_t min, max; /* REPEAT, COUNTER, COUNT, COUNTED; EDGES: see `free` */
};

struct grammar {
    struct node *nodes;
    struct edge *edges;
    uint32_t *lists; /* nodes of the SPLITs */
    uint32_t *rules; /* first node of each rule */
    uint32_t n_nodes;
    uint32_t root; /* first node of the text; its last is a RETURN with an empty stack */
};

enum { COMBINED_BUCKETS = 256 };

struct dfa;

struct build {
    struct arena arena, scratch;
    struct arena *now;          /* the one that build_alloc takes from */
    uint64_t work;              /* see build_work */
    const struct dfa *any_text; /* NULL: not made yet */
    struct combined *combined[COMBINED_BUCKETS];
    uint32_t blanks_rule; /* rule + 1; 0: not made yet */
    /* The graph. Its arrays become the grammar's; their bytes count as the arena's do. */
    size_t graph_bytes;
    struct node *nodes;
    struct edge *edges;
    uint32_t *lists, *rules;
    uint32_t n_nodes, n_edges, n_lists, n_rules;
    uint32_t cap_nodes, cap_edges, cap_lists, cap_rules;
    struct err *err;
    jmp_buf fault; /* set by the compiler's entry */
};

/* Returns 0, or an error. The caller then calls setjmp(b->fault). */
int build_begin(struct build *b, struct err *err);
/* Ends a build whose compiler failed. Returns the error's code. */
int build_abandon(struct build *b);
/* Makes the grammar whose text begins at root. Does not return if no text can be completed. */
struct grammar *build_finish(struct build *b, uint32_t root);

/* Ends the build with an error. */
_Noreturn void build_fault(struct build *b, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *build_alloc(struct build *b, size_t n); /* zeroed */
/* Between the two, build_alloc takes from memory that the next scratch_begin forgets. */
void scratch_begin(struct build *b);
void scratch_end(struct build *b);
/* Counts steps of work. The bound on their sum keeps the time of a compilation below a second. */
void build_work(struct build *b, uint64_t steps);
/* Returns array with room for n + 1 elements. */
void *build_grow(struct build *b, void *array, uint32_t *cap, uint32_t n, size_t size);

uint32_t node_edges(struct build *b, const struct edge *edges, uint32_t n);
uint32_t node_range(struct build *b, uint8_t lo, uint8_t hi, uint32_t next);
uint32_t node_bytes(struct build *b, const char *text, size_t n, uint32_t next);
uint32_t node_split(struct build *b, const uint32_t *nodes, uint32_t n);
uint32_t node_either(struct build *b, uint32_t one, uint32_t other);
uint32_t node_call(struct build *b, uint32_t rule, uint32_t next);

/* Repeats a part: r = repeat_begin, then repeat_end(b, r, BODY), where BODY is built with
 * repeat_again(b, r) as the node that follows. The result of repeat_begin begins the repetition. */
uint32_t repeat_begin(struct build *b, int32_t min, int32_t max, uint32_t next);
uint32_t repeat_again(struct build *b, uint32_t repeat);
void repeat_end(struct build *b, uint32_t repeat, uint32_t body);

/* Makes a node of a kind of which only min, max and next say more. */
uint32_t node_count(struct build *b, enum node_kind kind, int32_t min, int32_t max,
                    uint32_t next);

/* The same without bounds. */
uint32_t node_mark(struct build *b, enum node_kind kind, uint32_t next);

/* A rule may be called before its first node is known. */
uint32_t rule_new(struct build *b);
void rule_set(struct build *b, uint32_t rule, uint32_t node);

/* --- the compilers; `next` follows the texts ------------------------------------------- */

/* Exactly a tag; see grammar.h. */
uint32_t node_tag(struct build *b, struct grammar_tag t, uint32_t next);
/* Any text up to and with the first occurrence of a tag without blanks. */
uint32_t node_up_to(struct build *b, struct grammar_tag t, uint32_t next, uint32_t end);
uint32_t node_blanks(struct build *b, int32_t max, uint32_t next);
/* A text in double quotes, in its shortest JSON spelling. */
uint32_t node_quoted(struct build *b, const char *text, size_t n, uint32_t next);
/* Returns a rule whose texts are the values of a schema and of another; also NULL: of the schema
 * alone. loose: see grammar.h. */
uint32_t schema_root(struct build *b, const struct json *schema, const struct json *also,
                     struct textbuf *loose);
uint32_t calls_root(struct build *b, const struct grammar_calls *k, struct textbuf *loose,
                    uint32_t next);
uint32_t gbnf_root(struct build *b, const char *text, size_t n, uint32_t next);

#endif
