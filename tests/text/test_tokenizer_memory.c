/* test_tokenizer_memory.c - a text for which memory does not suffice fails alone with -ENOMEM. The
 * process survives, and the next text is tokenized. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "jinja/jinja.h"
#include "text/tokenizer.h"
#include "tests/base/tempdir.h"

#define SMALL(name) "tests/model/golden/" name

enum { N_TEXT = 1 << 17 };

/* bytes of the largest allocation that succeeds, from any caller; 0: all succeed */
static size_t most;
static int n_denied;
/* number of the one allocation that fails, of those that may; 0: none does */
static int nth, n_asked;

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    bool no = most != 0 && n > most;
    if (ask == MEM_MAY_FAIL && nth != 0)
        no = ++n_asked == nth;
    n_denied += no;
    return no;
}

static int count(const struct tokenizer *t, const char *text, size_t n, struct err *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = tokenizer_encode(t, text, n, TOKENIZER_PARSE_SPECIAL | TOKENIZER_GUARDED, &ids,
                              &n_ids, err);
    if (rc == 0)
        free(ids);
    return rc == 0 ? (int)n_ids : rc;
}

/* Tries many limits on the size of an allocation, so that each allocation of the call is denied by
 * some of them. */
TEST(a_large_text_fails_alone)
{
    static const char *const folders[] = {SMALL("llama2-like"), SMALL("llama2-first"),
                                          SMALL("gpt2-like"),   SMALL("qwen-like"),
                                          SMALL("falcon-like"), SMALL("splits-like")};
    static const char *const units[] = {"a", "word and word ", "  "};
    char *text = malloc(N_TEXT);
    assert_non_null(text);
    for (int f = 0; f < 6; f++) {
        struct tokenizer *t;
        struct err err = {0};
        if (tokenizer_open(&t, folders[f], &err) != 0)
            fail_msg("%s", err.msg);
        for (int u = 0; u < 3; u++) {
            size_t k = strlen(units[u]), n = N_TEXT / k * k;
            for (size_t i = 0; i < n; i += k)
                memcpy(text + i, units[u], k);
            int whole = count(t, text, n, &err), n_failed = 0;
            if (whole <= 0)
                fail_msg("%s, %s: %s", folders[f], units[u], err.msg);
            for (most = 4096; most < (size_t)16 << 20; most *= 4) {
                n_denied = 0;
                int rc = count(t, text, n, &err);
                assert_true(rc == -ENOMEM || rc == whole);
                assert_int_equal(rc == -ENOMEM, n_denied > 0);
                n_failed += rc < 0;
                assert_true(count(t, "Hello", 5, &err) > 0);
            }
            most = 0;
            assert_true(n_failed > 1);
            assert_int_equal(count(t, text, n, &err), whole);
        }
        tokenizer_close(t);
    }
    free(text);
}

/* Denies each allocation of a call once. */
TEST(no_allocation_is_done_without)
{
    static const char *const folders[] = {SMALL("llama2-like"), SMALL("llama2-first"),
                                          SMALL("gpt2-like"),   SMALL("qwen-like"),
                                          SMALL("falcon-like"), SMALL("splits-like")};
    static const char text[] = "Two words, and 12 digits: a b";
    for (int f = 0; f < 6; f++) {
        struct tokenizer *t;
        struct err err = {0};
        if (tokenizer_open(&t, folders[f], &err) != 0)
            fail_msg("%s", err.msg);
        int whole = count(t, text, sizeof text - 1, &err), rc = -ENOMEM;
        assert_true(whole > 0);
        for (nth = 1; rc == -ENOMEM; nth++) {
            n_asked = n_denied = 0;
            rc = count(t, text, sizeof text - 1, &err);
            assert_int_equal(rc, n_denied > 0 ? -ENOMEM : whole);
        }
        assert_true(nth > 3);
        nth = 0;
        tokenizer_close(t);
    }
}

/* The message names the bytes of the text as the steps before have left it. */
TEST(the_message_names_the_bytes)
{
    enum { N = 1000 };
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16], text[N];
    struct tokenizer *t;
    struct err err = {0};
    tempdir_make(dir, "memory");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
          "\"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", "
          "\"add_prefix_space\": true, \"use_regex\": false}, {\"type\": \"Digits\", "
          "\"individual_digits\": false}]}, \"post_processor\": null, \"decoder\": "
          "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "
          "{\"a\": 0, \"\\u0120\": 1}, \"merges\": []}}",
          f);
    assert_int_equal(fclose(f), 0);
    if (tokenizer_open(&t, dir, &err) != 0)
        fail_msg("%s", err.msg);
    memset(text, 'a', N);
    assert_int_equal(count(t, text, N, &err), N + 1);
    /* The first step takes 2 bytes for each byte of the text and 2 for its piece. It adds a space,
     * so the second step takes 2 bytes more. */
    most = 2 * (N + 1);
    int rc = count(t, text, N, &err);
    most = 0;
    assert_int_equal(rc, -ENOMEM);
    assert_string_equal(err.msg, "no memory to split a text of 1001 bytes");
    tokenizer_close(t);
    tempdir_remove(dir);
}

/* Rendering a template with too little memory fails in the same way. */
TEST(a_large_render_fails_alone)
{
    static const char source[] = "{{ 'x' * 200000 }}";
    struct err err = {0};
    struct jinja_template *t;
    char *text;
    size_t n;
    assert_int_equal(jinja_compile(&t, source, strlen(source), "t", NULL, &err), 0);
    most = 100000;
    n_denied = 0;
    int rc = jinja_render(t, &(struct jinja_input){0}, &text, &n, &err);
    most = 0;
    assert_true(n_denied > 0);
    assert_int_equal(rc, -ENOMEM);
    assert_null(text);
    assert_int_equal(jinja_render(t, &(struct jinja_input){0}, &text, &n, &err), 0);
    assert_int_equal(n, 200000);
    free(text);
    jinja_destroy(t);
}
