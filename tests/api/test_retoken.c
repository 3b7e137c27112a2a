/* test_retoken.c - a conversation keeps the generated tokens: in the text of the next prompt an
 * answer has its own tokens, even if the tokenizer would split it differently. */
#include <errno.h>

#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "api/retoken.h"
#include "tests/base/tempdir.h"

static struct hcache *h;
static struct answers *m;

/* bytes of the largest allocation that succeeds */
static size_t most_bytes = SIZE_MAX;

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    return ask == MEM_MAY_FAIL && n > most_bytes;
}

static int open_model(void **state)
{
    const struct hcache_opts o = {.model = "models/demo", .threads = 1, .max_context = 512};
    struct hcache_err err = {0};
    return hcache_open(&o, &h, &err);
}

static int close_model(void **state)
{
    hcache_close(h);
    return 0;
}

static int open_answers(void **state)
{
    const struct answers_opts o = {.max_entries = 8, .max_bytes = 1 << 20};
    return answers_open(&o, &m, &(struct err){0});
}

static int close_answers(void **state)
{
    answers_close(m);
    return 0;
}

static struct prompt_text text_of(const char *text)
{
    return (struct prompt_text){.text = (char *)(uintptr_t)text, .n = strlen(text)};
}

static struct prompt_ids encode(const char *text, size_t n)
{
    struct prompt_ids p = {0};
    struct hcache_err err = {0};
    assert_int_equal(hcache_encode(h, text, n, 0, &p.ids, &p.n, &err), 0);
    return p;
}

/* Returns a token for each letter. The tokenizer itself would make tokens of words. */
static struct prompt_ids letters(const char *text)
{
    struct prompt_ids p = {.ids = malloc(strlen(text) * sizeof(int32_t))};
    for (size_t i = 0; text[i] != 0; i++) {
        struct prompt_ids one = encode(text + i, 1);
        assert_int_equal(one.n, 1);
        p.ids[p.n++] = one.ids[0];
        hcache_free(one.ids);
    }
    return p;
}

/* Asserts that `got` has the ids of a, then those of b without the first `skip`. Frees all
 * three. */
static void ids_are(struct prompt_ids got, struct prompt_ids a, struct prompt_ids b,
                    int skip)
{
    assert_int_equal(got.n, a.n + b.n - skip);
    if (a.n > 0)
        assert_memory_equal(got.ids, a.ids, (size_t)a.n * sizeof *a.ids);
    assert_memory_equal(got.ids + a.n, b.ids + skip, (size_t)(b.n - skip) * sizeof *b.ids);
    hcache_free(got.ids);
    hcache_free(a.ids);
    hcache_free(b.ids);
}

static struct prompt_ids retoken(const char *salt, const char *text, const char *want_what)
{
    struct prompt_text t = text_of(text);
    struct prompt_ids out = {0};
    struct hcache_err err = {0};
    char what[200] = "?";
    assert_int_equal(retoken_encode(h, m, salt, &t, &out, what, &err), 0);
    assert_string_equal(what, want_what);
    return out;
}

#define KNOWN "The whale swims"
#define REST  " in the deep sea"

static void put(const char *salt, const char *text, const int32_t *ids, int n)
{
    answers_put(m, salt, &(struct answers_text){.text = text, .n_text = strlen(text)},
                &(struct answers_ids){.prompt = ids, .n_prompt = n},
                &(struct answers_of){.state_salt = salt});
}

static void put_known(const char *salt)
{
    struct prompt_ids k = letters(KNOWN);
    put(salt, KNOWN, k.ids, k.n);
    hcache_free(k.ids);
}

TEST_WITH(a_remembered_beginning_keeps_its_tokens, open_answers, close_answers)
{
    struct answers_stats st;
    put_known(NULL);
    struct prompt_ids known = encode(KNOWN, strlen(KNOWN));
    /* number of the whole text's tokens that the remembered tokens replace */
    int skip = known.n;
    hcache_free(known.ids);
    ids_are(retoken(NULL, KNOWN REST, ""), letters(KNOWN),
            encode(KNOWN REST, strlen(KNOWN REST)), skip);
    ids_are(retoken(NULL, KNOWN, ""), letters(KNOWN), encode(KNOWN, strlen(KNOWN)), skip);
    answers_stats(m, &st);
    assert_int_equal(st.n_used, 2);
    assert_int_equal(st.n_unusable, 0);
}

TEST_WITH(what_is_not_remembered_is_tokenized, open_answers, close_answers)
{
    put_known("salt");
    ids_are(retoken(NULL, KNOWN REST, ""), (struct prompt_ids){0},
            encode(KNOWN REST, strlen(KNOWN REST)), 0);
    struct answers *none = m;
    m = NULL; /* nothing is remembered */
    ids_are(retoken("salt", KNOWN REST, ""), (struct prompt_ids){0},
            encode(KNOWN REST, strlen(KNOWN REST)), 0);
    m = none;
}

/* If a token of the whole text reaches beyond the end of the remembered text, the whole text is
 * tokenized anew. The reported reason names the first token that differs. */
TEST_WITH(a_token_across_the_boundary_is_told, open_answers, close_answers)
{
    struct answers_stats st;
    struct prompt_ids whole = encode("The whale", 9), cut = letters("The wha");
    size_t n;
    const char *first = hcache_token_bytes(h, whole.ids[0], &n);
    /* the token has several letters, so it differs from the first token of `cut` */
    assert_true(first != NULL && n > 1);
    hcache_free(whole.ids);
    put(NULL, "The wha", cut.ids, cut.n);
    ids_are(retoken(NULL, "The whale", "retokenised at 0"), (struct prompt_ids){0},
            encode("The whale", 9), 0);
    answers_stats(m, &st);
    assert_int_equal(st.n_used, 0);
    assert_int_equal(st.n_unusable, 1);
    /* The remembered tokens equal those of the whole text, so no token is lost and no reason is
     * reported. */
    struct prompt_ids own = encode("The whale", 9);
    put(NULL, "The wh", own.ids, 1);
    put(NULL, "The wha", own.ids, 1);
    ids_are(retoken(NULL, "The whale", ""), (struct prompt_ids){0}, own, 0);
    hcache_free(cut.ids);
}

TEST_WITH(known_tokens_are_continued, open_answers, close_answers)
{
    struct prompt_text t = text_of(KNOWN REST);
    struct hcache_err err = {0};
    struct prompt_ids k = letters(KNOWN), out = {0}, known = encode(KNOWN, strlen(KNOWN));
    int skip = known.n;
    hcache_free(known.ids);
    assert_int_equal(retoken_continue(h, k.ids, k.n, strlen(KNOWN), &t, &out, &err), 0);
    ids_are(out, letters(KNOWN), encode(KNOWN REST, strlen(KNOWN REST)), skip);
    /* The known tokens end inside a token of the whole text. The rest is tokenized separately. */
    struct prompt_ids begin = letters("The wha");
    t = text_of("The whales");
    assert_int_equal(retoken_continue(h, begin.ids, begin.n, 7, &t, &out, &err), 0);
    ids_are(out, begin, encode("les", 3), 0);
    hcache_free(k.ids);
}

TEST_WITH(a_text_that_is_none_is_refused, open_answers, close_answers)
{
    struct prompt_text t = text_of(KNOWN "\xff");
    struct prompt_ids out = {0};
    struct hcache_err err = {0};
    char what[200] = "?";
    const int32_t id = 40;
    put_known(NULL);
    assert_true(retoken_encode(h, m, NULL, &t, &out, what, &err) < 0);
    assert_string_equal(what, "");
    assert_int_not_equal(err.code, 0);
    assert_true(retoken_continue(h, &id, 1, 1, &t, &out, &err) < 0);
    hcache_free(out.ids);
}

/* Returns an answer that consists of the letters of `said`. Its text is `shown`. */
static struct hcache_result answer(const char *said, const char *shown)
{
    struct prompt_ids p = letters(said);
    return (struct hcache_result){.token_ids = p.ids,
                                  .n_tokens = p.n,
                                  .text = (char *)(uintptr_t)shown,
                                  .n_text = strlen(shown)};
}

static void marks_are(const char *said, const char *shown, int n, const char *const text[2],
                      int n_tokens)
{
    struct prompt_text asked = text_of("ask:");
    struct hcache_result r = answer(said, shown);
    struct retoken_mark mark[RETOKEN_MAX_MARKS];
    assert_int_equal(retoken_marks(h, &asked, &r, 100, mark), n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(mark[i].n_tokens, 100 + n_tokens);
        assert_int_equal(mark[i].n_text, strlen(text[i]));
        assert_memory_equal(mark[i].text, text[i], strlen(text[i]));
        free(mark[i].text);
    }
    free(r.token_ids);
}

TEST_WITH(an_answer_is_marked_as_shown_and_trimmed, open_answers, close_answers)
{
    marks_are("yes", "yes", 1, (const char *const[]){"yes", NULL}, 3);
    marks_are(" yes\n", " yes\n", 2, (const char *const[]){" yes\n", "yes"}, 5);
    marks_are("yes ", "yes ", 2, (const char *const[]){"yes ", "yes"}, 4);
    marks_are("  ", "  ", 1, (const char *const[]){"  ", NULL}, 2);
    /* A stop string has cut the text. The tokens that were shown completely are marked, with the
     * shown text. */
    marks_are(" yesSTOP", " yes", 2, (const char *const[]){" yes", "yes"}, 4);
    marks_are("abc", "x", 0, NULL, 0);
    marks_are("", "", 0, NULL, 0);
}

TEST_WITH(an_answer_is_remembered_in_both_forms, open_answers, close_answers)
{
    struct prompt_text asked = text_of("ask:");
    const int32_t prompt[2] = {7, 8};
    struct hcache_result r = answer(" yes\n", " yes\n");
    static const char *const forms[] = {"ask: yes\n", "ask:yes"};
    retoken_remember(h, m, &(struct retoken_owner){0}, &asked, prompt, 2, &r);
    for (int i = 0; i < 2; i++) {
        size_t n;
        int32_t *ids;
        int n_ids;
        assert_true(answers_find(m, NULL, forms[i], strlen(forms[i]), &n, &ids, &n_ids));
        assert_int_equal(n, strlen(forms[i]));
        assert_int_equal(n_ids, 2 + r.n_tokens);
        assert_memory_equal(ids, prompt, sizeof prompt);
        assert_memory_equal(ids + 2, r.token_ids, (size_t)r.n_tokens * sizeof *ids);
        free(ids);
    }
    free(r.token_ids);
    /* A stop string has cut the text. The tokens whose text was shown are remembered, if they make
     * up the whole text. */
    size_t n;
    int32_t *ids;
    int n_ids;
    r = answer("noSTOP", "no");
    asked = text_of("again:");
    retoken_remember(h, m, &(struct retoken_owner){0}, &asked, prompt, 2, &r);
    assert_true(answers_find(m, NULL, "again:no", 8, &n, &ids, &n_ids));
    assert_int_equal(n_ids, 2 + 2);
    free(ids);
    free(r.token_ids);
    r = answer("noSTOP", "nx");
    retoken_remember(h, m, &(struct retoken_owner){0}, &asked, prompt, 2, &r);
    assert_false(answers_find(m, NULL, "again:nx", 8, &n, &ids, &n_ids) && n == 8);
    free(r.token_ids);
}

/* Special tokens have no text: those between tokens that were shown belong to the answer, and those
 * at its end do not. */
TEST_WITH(special_tokens_inside_an_answer_are_remembered, open_answers, close_answers)
{
    struct prompt_text asked = text_of("ask:");
    struct hcache_result r = answer("a?bc??", "abc");
    struct hcache_special special[] = {
        {1, r.token_ids[1]}, {3, r.token_ids[4]}, {3, r.token_ids[5]}};
    struct retoken_mark mark[RETOKEN_MAX_MARKS];
    size_t n;
    int32_t *ids;
    int n_ids;
    r.special = special;
    r.n_special = 3;
    retoken_remember(h, m, &(struct retoken_owner){0}, &asked, NULL, 0, &r);
    assert_true(answers_find(m, NULL, "ask:abc", 7, &n, &ids, &n_ids));
    assert_int_equal(n_ids, 4);
    assert_memory_equal(ids, r.token_ids, 4 * sizeof *ids);
    free(ids);
    assert_int_equal(retoken_marks(h, &asked, &r, 100, mark), 1);
    assert_int_equal(mark[0].n_tokens, 104);
    free(mark[0].text);
    free(r.token_ids);
}

/* Without memory for the tokens the prompt is refused. An answer is then not remembered, or counts
 * as not remembered, and its text is tokenized. */
TEST_WITH(without_memory_nothing_is_remembered, open_answers, close_answers)
{
    enum { MANY = 5000 };
    static int32_t many[MANY];
    struct prompt_text t = text_of(KNOWN REST);
    struct prompt_ids out = {0};
    struct hcache_err err = {0};
    most_bytes = 4 * MANY;
    int rc = retoken_continue(h, many, MANY, strlen(KNOWN), &t, &out, &err);
    hcache_free(out.ids);
    out = (struct prompt_ids){0};
    int rc_without = retoken_continue(h, many, MANY, strlen(KNOWN), &t, &out, NULL);
    hcache_free(out.ids);
    put(NULL, KNOWN, many, MANY); /* not remembered */
    most_bytes = SIZE_MAX;
    assert_int_equal(rc, -ENOMEM);
    assert_int_equal(err.code, -ENOMEM);
    assert_memory_equal(err.msg, "no memory for 50", 16);
    assert_int_equal(rc_without, -ENOMEM);
    struct answers_stats st;
    answers_stats(m, &st);
    assert_int_equal(st.n_entries, 0);
    put(NULL, KNOWN, many, MANY);
    answers_stats(m, &st);
    assert_int_equal(st.n_entries, 1);
    most_bytes = 4 * MANY;
    ids_are(retoken(NULL, KNOWN REST, ""), (struct prompt_ids){0},
            encode(KNOWN REST, strlen(KNOWN REST)), 0);
    most_bytes = SIZE_MAX;
}

/* --- a tokenizer that begins each text with a token ------------------------------------------- */

/* Opens models/demo with a tokenizer that puts token 0 before each text. */
static struct hcache *open_with_begin(const char *dir)
{
    static const char
        none[] = "\"post_processor\": null",
        begins[] =
            "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
            "[{\"SpecialToken\": {\"id\": \"<|begin|>\", \"type_id\": 0}}, "
            "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], "
            "\"special_tokens\": {\"<|begin|>\": {\"id\": \"<|begin|>\", \"ids\": [0], "
            "\"tokens\": [\"<|begin|>\"]}}}";
    static const char *const same[] = {"config.json", "model.safetensors"};
    char from[200], to[TEMPDIR_BYTES + 40], cwd[100], *text;
    size_t n;
    struct err err = {0};
    assert_non_null(getcwd(cwd, sizeof cwd));
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/models/demo/%s", cwd, same[i]);
        snprintf(to, sizeof to, "%s/%s", dir, same[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    assert_int_equal(file_read("models/demo/tokenizer.json", 1 << 24, &text, &n, &err), 0);
    char *at = strstr(text, none);
    assert_non_null(at);
    snprintf(to, sizeof to, "%s/tokenizer.json", dir);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, begins, at + strlen(none));
    fclose(f);
    free(text);
    struct hcache *model = NULL;
    struct hcache_err herr = {0};
    const struct hcache_opts o = {.model = dir, .threads = 1, .max_context = 128};
    if (hcache_open(&o, &model, &herr) != 0)
        fail_msg("%s", herr.msg);
    return model;
}

/* The first token of a text stands for no bytes. It is kept once, however much of the text is
 * known. */
TEST_WITH(the_first_token_is_kept_once, open_answers, close_answers)
{
    char dir[TEMPDIR_BYTES];
    struct hcache *own = h;
    struct hcache_err err = {0};
    struct prompt_text t = text_of(KNOWN REST);
    struct prompt_ids out = {0}, whole = {0}, known = letters(KNOWN), rest;
    int32_t *ids = malloc(((size_t)known.n + 1) * sizeof *ids);
    char what[200];
    tempdir_make(dir, "retoken");
    h = open_with_begin(dir);
    t.flags = HCACHE_ADD_SPECIAL;
    assert_int_equal(hcache_encode(h, t.text, t.n, t.flags, &whole.ids, &whole.n, &err), 0);
    assert_int_equal(whole.ids[0], 0);
    /* nothing of the text is known but its first token */
    const int32_t begin = 0;
    assert_int_equal(retoken_continue(h, &begin, 1, 0, &t, &out, &err), 0);
    assert_int_equal(out.n, whole.n);
    assert_memory_equal(out.ids, whole.ids, (size_t)whole.n * sizeof *out.ids);
    hcache_free(out.ids);
    /* the letters of KNOWN are known, with the first token */
    ids[0] = 0;
    memcpy(ids + 1, known.ids, (size_t)known.n * sizeof *ids);
    rest = encode(REST, strlen(REST));
    for (int by = 0; by < 2; by++) {
        out = (struct prompt_ids){0};
        if (by == 0) {
            put(NULL, KNOWN, ids, known.n + 1);
            assert_int_equal(retoken_encode(h, m, NULL, &t, &out, what, &err), 0);
            assert_string_equal(what, "");
        } else {
            assert_int_equal(
                retoken_continue(h, ids, known.n + 1, strlen(KNOWN), &t, &out, &err), 0);
        }
        assert_int_equal(out.n, known.n + 1 + rest.n);
        assert_memory_equal(out.ids, ids, (size_t)(known.n + 1) * sizeof *ids);
        assert_memory_equal(out.ids + known.n + 1, rest.ids, (size_t)rest.n * sizeof *ids);
        hcache_free(out.ids);
    }
    /* all of the text is known */
    t.n = strlen(KNOWN);
    out = (struct prompt_ids){0};
    assert_int_equal(retoken_continue(h, ids, known.n + 1, t.n, &t, &out, &err), 0);
    assert_int_equal(out.n, known.n + 1);
    assert_memory_equal(out.ids, ids, (size_t)out.n * sizeof *ids);
    hcache_free(out.ids);
    hcache_free(whole.ids);
    hcache_free(known.ids);
    hcache_free(rest.ids);
    free(ids);
    hcache_close(h);
    h = own;
    tempdir_remove(dir);
}

int main(void)
{
    return unit_run(open_model, close_model);
}
