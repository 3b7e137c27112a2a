/* grammar.c - see grammar.h: the entry of all compilers. */
#include "base/minmax.h"
#include "grammar/automaton.h"
#include "grammar/dfa.h"

enum { MAX_BLANKS = 8 /* between `after` and the form */ };

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

/* Any text up to the first `tag`, and blanks. The text is bytes, without the bytes that stand for
 * special tokens unless the tag has them (vocab.h). Knuth, Morris and Pratt's automaton: state i
 * says that the last i bytes are the tag's first. */
static uint32_t node_after(struct build *b, const uint8_t *tag, size_t n, uint32_t next)
{
    uint32_t *at = build_alloc(b, (n + 1) * sizeof *at);
    size_t *back = build_alloc(b, (n + 1) * sizeof *back);
    uint32_t blanks = repeat_begin(b, 0, MAX_BLANKS, next);
    const struct edge blank[] = {{'\t', '\n', repeat_again(b, blanks)},
                                 {'\r', '\r', repeat_again(b, blanks)},
                                 {' ', ' ', repeat_again(b, blanks)}};
    repeat_end(b, blanks, node_edges(b, blank, 3));
    for (size_t i = 0; i < n; i++)
        at[i] = node_edges(b, NULL, 0);
    at[n] = blanks;
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
        b->nodes[at[i]] = b->nodes[made];
    }
    return at[0];
}

static uint32_t root_of(struct build *b, const struct grammar_source *s)
{
    uint32_t root = NODE_ID_FAIL;
    switch (s->kind) {
    case GRAMMAR_SCHEMA:
        root = schema_root(b, s->schema, s->loose, NODE_ID_RETURN);
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
    }
    if (s->after != NULL)
        root = node_after(b, (const uint8_t *)s->after, s->n_after, root);
    return root;
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
