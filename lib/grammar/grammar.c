/* grammar.c - see grammar.h: the entry of all compilers. */
#include <string.h>

#include "base/minmax.h"
#include "grammar/automaton.h"
#include "grammar/dfa.h"

enum {
    TAG_BLANKS = 4,     /* for a blank in a tag */
    THOUGHT_BLANKS = 8, /* between a thought and the form */
};

static uint32_t choice_root(struct build *b, const struct grammar_source *s, uint32_t next)
{
    if (s->n == 0 || s->n > 100000)
        build_fault(b, ERR_USAGE, "a choice must have 1 to 100,000 texts, it has %zu",
                    s->n);
    for (size_t i = 0; i < s->n; i++)
        if (s->texts[i][0] == 0)
            build_fault(b, ERR_USAGE, "a choice is empty");
    return dfa_embed(b, dfa_of_texts(b, s->texts, (uint32_t)s->n), false, next);
}

uint32_t node_blanks(struct build *b, int32_t max, uint32_t next)
{
    uint32_t r = repeat_begin(b, 0, max, next), again = repeat_again(b, r);
    const struct edge blank[] = {
        {'\t', '\n', again}, {'\r', '\r', again}, {' ', ' ', again}};
    repeat_end(b, r, node_edges(b, blank, 3));
    return r;
}

uint32_t node_tag(struct build *b, struct grammar_tag t, uint32_t next)
{
    /* Parts are made from the end, but a special token is seen at its first byte. */
    uint8_t *is_id = build_alloc(b, t.n + 1);
    for (size_t i = 0; i < t.n; i++)
        if (!is_id[i] && (uint8_t)t.at[i] == VOCAB_SPECIAL)
            memset(is_id + i, 1, MIN(t.n - i, (size_t)VOCAB_SPECIAL_BYTES));
    for (size_t i = t.n; i > 0; i--)
        next = t.at[i - 1] == ' ' && !is_id[i - 1] ? node_blanks(b, TAG_BLANKS, next)
                                                   : node_bytes(b, t.at + i - 1, 1, next);
    return next;
}

/* The text is bytes, without those that stand for special tokens unless the tag has them.  Knuth,
 * Morris and Pratt's automaton: state i says that the last i bytes are the tag's first. */
uint32_t node_up_to(struct build *b, struct grammar_tag t, uint32_t next, uint32_t end)
{
    const uint8_t *tag = (const uint8_t *)t.at;
    size_t n = t.n;
    uint32_t *at = build_alloc(b, (n + 1) * sizeof *at);
    size_t *back = build_alloc(b, (n + 1) * sizeof *back);
    for (size_t i = 0; i < n; i++)
        at[i] = node_edges(b, NULL, 0);
    at[n] = next;
    for (size_t i = 1; i < n; i++) { /* back[i]: the longest border of the first i bytes */
        size_t k = back[i];
        while (k > 0 && tag[k] != tag[i])
            k = back[k];
        back[i + 1] = k + (tag[k] == tag[i]);
    }
    for (size_t i = 0; i < n; i++) {
        struct edge e[256];
        uint32_t n_edges = 0;
        for (int byte = 0; byte < 256; byte++) {
            size_t k = i;
            while (k > 0 && tag[k] != byte)
                k = back[k];
            k += tag[k] == byte;
            /* A special token is either the tag or not allowed. */
            bool special = byte == VOCAB_SPECIAL || (i > 0 && tag[0] == VOCAB_SPECIAL);
            if (!special || k == i + 1)
                e[n_edges++] = (struct edge){(uint8_t)byte, (uint8_t)byte, at[k]};
        }
        uint32_t made = node_edges(b, e, n_edges);
        if (end != NODE_ID_FAIL)
            made = node_either(b, made, end);
        b->nodes[at[i]] = b->nodes[made];
    }
    return at[0];
}

/* Any bytes, special tokens included. */
static uint32_t anything(struct build *b, uint32_t next)
{
    uint32_t at = node_edges(b, NULL, 0);
    const struct edge byte = {0, 255, at};
    uint32_t made = node_either(b, node_edges(b, &byte, 1), next);
    b->nodes[at] = b->nodes[made];
    return at;
}

static uint32_t root_of(struct build *b, const struct grammar_source *s)
{
    uint32_t root = NODE_ID_FAIL;
    switch (s->kind) {
    case GRAMMAR_SCHEMA:
        root = node_call(b, schema_root(b, s->schema, NULL, s->loose), NODE_ID_RETURN);
        break;
    case GRAMMAR_GBNF:
        root = gbnf_root(b, s->text, s->n, NODE_ID_RETURN);
        break;
    case GRAMMAR_REGEX:
        root = dfa_embed(b, dfa_of_regex(b, s->text, s->n, true), false, NODE_ID_RETURN);
        break;
    case GRAMMAR_CHOICE:
        root = choice_root(b, s, NODE_ID_RETURN);
        break;
    case GRAMMAR_CALLS:
        root = calls_root(b, s->calls, s->loose, NODE_ID_RETURN);
        break;
    }
    if (s->kind != GRAMMAR_CALLS)
        root = node_tag(b, s->text_open, root);
    if (s->kind != GRAMMAR_CALLS && s->calls != NULL)
        root = node_either(b, root, calls_root(b, s->calls, s->loose, NODE_ID_RETURN));
    if (s->call_head.n > 0)
        root = node_either(b, root, node_tag(b, s->call_head, anything(b, NODE_ID_RETURN)));
    if (s->thought == GRAMMAR_NO_THOUGHT)
        return root;
    uint32_t thought = node_up_to(b, s->thought_close, node_blanks(b, THOUGHT_BLANKS, root),
                                  NODE_ID_FAIL);
    if (s->thought == GRAMMAR_IN_THOUGHT)
        return thought;
    return node_either(b, root, node_tag(b, s->thought_open, thought));
}

/* Returns NULL after a fault. */
static struct grammar *compile(struct build *b, const struct grammar_source *s)
{
    if (setjmp(b->fault) != 0)
        return NULL;
    return build_finish(b, root_of(b, s));
}

int grammar_compile(struct grammar **out, const struct grammar_source *s, struct err *err)
{
    struct err own;
    struct build b;
    *out = NULL;
    err = err == NULL ? &own : err;
    int rc = build_begin(&b, err);
    if (rc != 0)
        return rc;
    *out = compile(&b, s);
    return *out == NULL ? build_abandon(&b) : 0;
}

bool grammar_contains(const struct grammar *g, const char *text, size_t n)
{
    struct automaton *a = automaton_create(g, NULL);
    struct walk w = {0};
    bool ok = false;
    if (a != NULL && walk_begin(&w, a) == 0 && walk_bytes(&w, text, n, &ok) == 0)
        ok = ok && walk_accepts(&w);
    walk_end(&w);
    automaton_destroy(a);
    return ok;
}
