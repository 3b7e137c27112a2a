/* test_bpe.c - byte pair encoding against its definition: the best pair is merged, the leftmost of
 * equals first. Random vocabularies, and text that a vocabulary lacks. */
#include "bpe/bpe.h"

#include "base/mem.h"
#include "base/rng.h"
#include "bpe/tokenizer_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

#define META "\xE2\x96\x81"

enum { MOST_TOKENS = 64, TOKEN_BYTES = 64, MOST_TEXT = 400 };

/* A vocabulary and its merges, as the test made them. */
struct made {
    int n, n_merges;
    char text[MOST_TOKENS][TOKEN_BYTES];
    int left[MOST_TOKENS], right[MOST_TOKENS], joined[MOST_TOKENS]; /* by rank */
    float scores[MOST_TOKENS];
    bool by_scores, fuse_unk, byte_fallback, has_unk;
};

static int find(const struct made *m, const char *s, size_t n)
{
    for (int i = 0; i < m->n; i++)
        if (strlen(m->text[i]) == n && memcmp(m->text[i], s, n) == 0)
            return i;
    return -1;
}

static void add_token(struct made *m, const char *text)
{
    snprintf(m->text[m->n++], TOKEN_BYTES, "%s", text);
}

/* Makes a vocabulary of four characters and of joined tokens. crossing: tokens may have a metaspace
 * behind another character, so text cannot be cut into words. */
static void make(struct made *m, struct rng *rng, bool crossing)
{
    static const char *const letters[] = {"a", "b", "c", META};
    m->has_unk = rng_below(rng, 4) != 0;
    if (m->has_unk)
        add_token(m, "<unk>");
    int first = m->n;
    for (int i = 0; i < 4; i++)
        add_token(m, letters[i]);
    for (int tries = 0; tries < 60 && m->n < MOST_TOKENS - 1; tries++) {
        char joined[2 * TOKEN_BYTES];
        int left = first + (int)rng_below(rng, (uint64_t)(m->n - first)),
            right = first + (int)rng_below(rng, (uint64_t)(m->n - first));
        snprintf(joined, sizeof joined, "%s%s", m->text[left], m->text[right]);
        bool crosses = strstr(m->text[right], META) != NULL &&
                       strcmp(m->text[left], META) != 0;
        if (strlen(joined) >= TOKEN_BYTES || (crosses && !crossing))
            continue;
        int have = find(m, joined, strlen(joined));
        if (have < 0) {
            have = m->n;
            add_token(m, joined);
        }
        bool listed = false;
        for (int r = 0; r < m->n_merges; r++)
            listed |= m->left[r] == left && m->right[r] == right;
        if (listed || m->n_merges == MOST_TOKENS)
            continue;
        m->left[m->n_merges] = left;
        m->right[m->n_merges] = right;
        m->joined[m->n_merges++] = have;
    }
    for (int i = 0; i < m->n; i++) /* some scores are equal */
        m->scores[i] = (float)rng_below(rng, 12) - 6.0f;
    m->by_scores = rng_below(rng, 2) == 0;
    m->fuse_unk = rng_below(rng, 2) == 0;
    m->byte_fallback = rng_below(rng, 3) == 0;
}

/* Fills a tokenizer_json, which the test owns. Tokens of the fallback stand behind the others. */
static void describe(const struct made *m, struct tokenizer_json *t)
{
    *t = (struct tokenizer_json){.n_ids = m->n + (m->byte_fallback ? 256 : 0),
                                 .byte_fallback = m->byte_fallback,
                                 .fuse_unk = m->fuse_unk,
                                 .unk_id = m->has_unk ? 0 : -1};
    t->tokens = xcalloc((size_t)t->n_ids, sizeof *t->tokens);
    for (int32_t i = 0; i < t->n_ids; i++) {
        char *s = i < m->n ? xstrdup(m->text[i])
                           : xasprintf("<0x%02X>", (unsigned)(i - m->n));
        t->tokens[i].s = s;
        t->tokens[i].n = strlen(s);
        tokenizer_json_index(t, i);
    }
    t->scores = NULL;
    if (m->by_scores) {
        t->scores = xcalloc((size_t)t->n_ids, sizeof *t->scores);
        memcpy(t->scores, m->scores, (size_t)m->n * sizeof *t->scores);
        return;
    }
    t->n_merges = (size_t)m->n_merges;
    t->merges = xcalloc(t->n_merges + 1, sizeof *t->merges);
    for (int r = 0; r < m->n_merges; r++)
        t->merges[r] = (struct tokenizer_merge){
            .left = m->left[r], .right = m->right[r], .joined = m->joined[r]};
}

static void forget(struct tokenizer_json *t)
{
    for (int32_t i = 0; i < t->n_ids; i++)
        free((char *)(uintptr_t)t->tokens[i].s);
    free(t->tokens);
    free(t->scores);
    free(t->merges);
    slots_deinit(&t->by_text);
}

/* --- the definition ----------------------------------------------------------------------- */

struct part {
    const char *s;
    size_t n;
    int id; /* the token; -1: the vocabulary lacks it */
};

static size_t character(const char *s)
{
    return (unsigned char)s[0] < 0x80 ? 1 : (unsigned char)s[0] < 0xE0 ? 2 : 3;
}

/* Returns whether pair (a, b) may be merged, with the token and the order of the merge. */
static bool may_merge(const struct made *m, const struct part *a, const struct part *b,
                      int *joined, double *order)
{
    if (m->by_scores) {
        *joined = find(m, a->s, a->n + b->n);
        *order = *joined >= 0 ? -(double)m->scores[*joined] : 0;
        return *joined >= 0;
    }
    for (int r = 0; r < m->n_merges; r++)
        if (m->left[r] == a->id && m->right[r] == b->id) {
            *joined = m->joined[r];
            *order = r;
            return true;
        }
    return false;
}

/* Returns the number of ids. */
static int define(const struct made *m, const char *text, size_t n, int32_t *ids)
{
    static struct part p[MOST_TEXT];
    int n_parts = 0, n_ids = 0;
    for (size_t i = 0; i < n; i += character(text + i)) {
        size_t len = character(text + i);
        int id = find(m, text + i, len);
        /* Before merges go by rank, text that can become no token is dropped. */
        if (id >= 0 || m->by_scores || m->byte_fallback || m->has_unk)
            p[n_parts++] = (struct part){text + i, len, id};
    }
    for (;;) {
        int best = -1, best_joined = -1;
        double best_order = 0;
        for (int i = 0; i + 1 < n_parts; i++) {
            int joined = -1;
            double order = 0;
            if (may_merge(m, &p[i], &p[i + 1], &joined, &order) &&
                (best < 0 || order < best_order)) {
                best = i;
                best_joined = joined;
                best_order = order;
            }
        }
        if (best < 0)
            break;
        p[best].n += p[best + 1].n;
        p[best].id = best_joined;
        memmove(&p[best + 1], &p[best + 2], (size_t)(--n_parts - best - 1) * sizeof *p);
    }
    bool in_unknown = false;
    for (int i = 0; i < n_parts; i++) {
        if (p[i].id >= 0) {
            ids[n_ids++] = p[i].id;
        } else if (m->byte_fallback) {
            for (size_t k = 0; k < p[i].n; k++)
                ids[n_ids++] = m->n + (unsigned char)p[i].s[k];
        } else if (m->has_unk && !(in_unknown && m->fuse_unk)) {
            ids[n_ids++] = 0;
        }
        in_unknown = p[i].id < 0;
    }
    return n_ids;
}

/* --- comparing ---------------------------------------------------------------------------- */

static size_t random_text(struct rng *rng, char *out)
{
    static const char *const letters[] = {"a", "a", "b", "b", "c", META, "d", "\xC3\xA9"};
    size_t n = 0, n_letters = 1 + rng_below(rng, rng_below(rng, 4) == 0 ? 100 : 12);
    uint64_t kinds = rng_below(rng, 3) == 0 ? 8 : 6; /* mostly without unknown characters */
    for (size_t i = 0; i < n_letters; i++) {
        const char *s = letters[rng_below(rng, kinds)];
        memcpy(out + n, s, strlen(s));
        n += strlen(s);
    }
    out[n] = 0;
    return n;
}

static void check(const struct made *m, const struct bpe *b, struct bpe_work *w,
                  const char *text, size_t n)
{
    static int32_t want[MOST_TEXT * 3];
    struct id_list got = {0};
    struct err e = {0};
    int n_want = define(m, text, n, want);
    assert_int_equal(bpe_encode(b, w, text, n, &got, &e), 0);
    if ((int)got.n != n_want || memcmp(got.ids, want, got.n * 4) != 0) {
        for (size_t i = 0; i < got.n; i++)
            print_error("%s ", m->text[got.ids[i] < m->n ? got.ids[i] : 0]);
        fail_msg("'%s' has other ids", text);
    }
    id_list_deinit(&got);
}

TEST(test_random_vocabularies)
{
    struct rng rng = {.s = 20};
    for (int round = 0; round < 150; round++) {
        static struct made m;
        struct tokenizer_json t;
        struct bpe *b;
        struct bpe_work w = {0};
        char text[MOST_TEXT];
        memset(&m, 0, sizeof m);
        make(&m, &rng, round % 3 == 0);
        describe(&m, &t);
        b = bpe_create(&t, false);
        for (int i = 0; i < 60; i++) {
            size_t n = random_text(&rng, text);
            check(&m, b, &w, text, n);
            check(&m, b, &w, text, n); /* a whole token is looked up the second time */
        }
        for (int i = 0; i < m.n; i++) /* tokens that merging may not reach */
            if (m.text[i][0] != '<')
                check(&m, b, &w, m.text[i], strlen(m.text[i]));
        bpe_work_deinit(&w);
        bpe_destroy(b);
        forget(&t);
    }
    bpe_destroy(NULL);
}

/* With ignore_merges a piece that is a token is this token, although merging would not make it. */
TEST(test_whole_pieces)
{
    static struct made m;
    add_token(&m, "a");
    add_token(&m, "b");
    add_token(&m, "ab");
    for (int ignore = 0; ignore < 2; ignore++) {
        struct tokenizer_json t;
        struct bpe *b;
        struct bpe_work w = {0};
        struct id_list ids = {0};
        describe(&m, &t);
        t.ignore_merges = ignore;
        b = bpe_create(&t, false);
        assert_int_equal(bpe_encode(b, &w, "ab", 2, &ids, NULL), 0);
        assert_int_equal(ids.n, ignore ? 1 : 2);
        assert_int_equal(ids.ids[0], ignore ? 2 : 0);
        assert_int_equal(bpe_encode(b, &w, "aba", 3, &ids, NULL), 0);
        assert_int_equal(ids.n, (ignore ? 1 : 2) + 3); /* appended */
        id_list_deinit(&ids);
        assert_null(ids.ids);
        bpe_work_deinit(&w);
        bpe_destroy(b);
        forget(&t);
    }
}

/* No text makes a special token, a reserved one, or one that was only added. */
TEST(test_tokens_that_text_never_makes)
{
    static struct made m;
    add_token(&m, "<unk>");
    add_token(&m, "a");
    add_token(&m, "b");
    add_token(&m, "c");
    m.has_unk = true;
    struct tokenizer_json t;
    bool reserved[4] = {false, true, false, false};
    struct tokenizer_added added[] = {
        {.id = 2, .in_vocab = true, .special = true, .text = {"b", 1}},
        {.id = 3, .in_vocab = false, .special = false, .text = {"c", 1}}};
    static const struct {
        bool reserved, special, in_vocab;
        int32_t ids[3];
    } known[] = {{true, true, false, {0, 0, 0}},
                 {false, true, false, {1, 0, 0}},
                 {false, false, false, {1, 2, 0}},
                 {false, false, true, {1, 2, 3}},
                 {false, true, true, {1, 0, 3}}};
    for (int i = 0; i < 5; i++) {
        struct bpe *b;
        struct bpe_work w = {0};
        struct id_list ids = {0};
        describe(&m, &t);
        t.reserved = known[i].reserved ? reserved : NULL;
        added[0].special = known[i].special;
        added[1].in_vocab = known[i].in_vocab;
        t.added = added;
        t.n_added = 2;
        b = bpe_create(&t, false);
        for (int k = 0; k < 3; k++)
            assert_int_equal(bpe_encode(b, &w, m.text[k + 1], 1, &ids, NULL), 0);
        assert_int_equal(ids.n, 3);
        assert_memory_equal(ids.ids, known[i].ids, sizeof known[i].ids);
        id_list_deinit(&ids);
        bpe_work_deinit(&w);
        bpe_destroy(b);
        forget(&t);
    }
}

/* Lists and scratch memory grow as far as a text needs. */
TEST(test_long_texts)
{
    enum { N = 300000 };
    static struct made m;
    add_token(&m, "a");
    add_token(&m, "b");
    add_token(&m, "aa");
    m.n_merges = 1;
    m.left[0] = m.right[0] = 0;
    m.joined[0] = 2;
    struct tokenizer_json t;
    struct bpe *b;
    struct bpe_work w = {0};
    struct id_list ids = {0};
    char *text = malloc(N);
    describe(&m, &t);
    b = bpe_create(&t, false);
    memset(text, 'a', N);
    text[1000] = 'b';
    assert_int_equal(bpe_encode(b, &w, text, N, &ids, NULL), 0);
    /* 500 pairs, b, and the other 298,999 letters in pairs with one left over */
    assert_int_equal(ids.n, 500 + 1 + 149499 + 1);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.ids[i], i == 500 ? 1 : i == ids.n - 1 ? 0 : 2);
    assert_true(ids.cap >= ids.n && ids.cap < ids.n + ids.n / 2);
    id_list_deinit(&ids);
    bpe_work_deinit(&w);
    bpe_destroy(b);
    forget(&t);
    free(text);
}

/* A character becomes its bytes only if all of them are tokens.  Else it is the unknown token,
 * which the reference puts behind bytes that follow it. */
TEST(test_vocabularies_without_some_bytes)
{
    static const char *const texts[] = {"<unk>", "a", "<0x78>", "<0xC3>"};
    struct tokenizer_text tokens[4];
    static const int32_t with[] = {2, 0, 1, 0}, without[] = {2, 1};
    struct tokenizer_json t = {.n_ids = 4, .tokens = tokens, .byte_fallback = true};
    for (int i = 0; i < 4; i++)
        tokens[i] = (struct tokenizer_text){texts[i], strlen(texts[i])};
    for (int i = 0; i < 4; i++)
        tokenizer_json_index(&t, i);
    for (int unk = 0; unk >= -1; unk--) {
        struct bpe_work w = {0};
        struct id_list ids = {0};
        t.unk_id = unk;
        struct bpe *b = bpe_create(&t, false);
        assert_false(bpe_has_all_bytes(b));
        assert_int_equal(bpe_encode(b, &w, "\xC3\xA9xa\xC3\xA9", 6, &ids, NULL), 0);
        assert_int_equal(ids.n, unk == 0 ? 4 : 2);
        assert_memory_equal(ids.ids, unk == 0 ? with : without, ids.n * 4);
        id_list_deinit(&ids);
        bpe_work_deinit(&w);
        bpe_destroy(b);
    }
    slots_deinit(&t.by_text);
}
