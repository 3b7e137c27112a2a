/* test_models.c - which model is unloaded, and which requests wait for one. The whole is tested by
 * tests/e2e/test_several_models.py. */
#include "tests/unit.h"

#include <errno.h>
#include <string.h>

#include "api/client.h"
#include "api/models.h"

static int choose(const char *uses, const uint64_t *last, uint64_t bytes, uint64_t bound,
                  bool may_exceed)
{
    struct models_use u[8] = {{0}};
    int n = (int)strlen(uses);
    for (int i = 0; i < n; i++)
        u[i] = (struct models_use){.is_loaded = uses[i] != '-',
                                   .n_uses = uses[i] - '0',
                                   .last_used = last[i],
                                   .bytes = 10};
    return models_choose(u, n, bytes, bound, may_exceed);
}

/* A digit is a loaded model with so many uses of 10 bytes each; "-" is a model that is not loaded. */
TEST(the_least_recently_used_idle_model_leaves)
{
    static const uint64_t last[] = {4, 2, 3, 1};
    assert_int_equal(choose("000-", last, 10, 40, false), MODELS_FITS);
    assert_int_equal(choose("000-", last, 11, 40, false), 1);
    assert_int_equal(choose("010-", last, 11, 40, false), 2); /* 1 is in use */
    assert_int_equal(choose("012-", last, 11, 40, false), 0); /* idle, though used last */
    assert_int_equal(choose("111-", last, 11, 40, false),
                     1); /* all in use: wait for this one */
    assert_int_equal(choose("0001", last, 10, 40, false), 1);
    assert_int_equal(choose("----", last, 40, 40, false), MODELS_FITS);
    assert_int_equal(choose("----", last, 41, 40, false), MODELS_NEVER_FITS);
    assert_int_equal(choose("----", last, 41, 40, true),
                     MODELS_FITS); /* alone it may exceed */
    assert_int_equal(choose("0---", last, 41, 40, true), 0);
}

TEST(names_find_their_model)
{
    static const char *const a[] = {"org/red"}, *const b[] = {"blue.gguf"};
    const struct model_names m[] = {{.items = a, .n = 1}, {.items = b, .n = 1}};
    assert_int_equal(client_find_model(m, 2, NULL), 0);
    assert_int_equal(client_find_model(m, 2, "default"), 0);
    assert_int_equal(client_find_model(m, 2, "red"), 0);
    assert_int_equal(client_find_model(m, 2, "blue"), 1);
    assert_int_equal(client_find_model(m, 2, "blue.gguf"), 1);
    assert_int_equal(client_find_model(m, 2, "blue:latest"), 1);
    assert_int_equal(client_find_model(m, 2, "blu"), -1);
    assert_int_equal(client_find_model(m, 2, "blue:q4"), -1);
}

/* Each caller that waits gets the failure of its own loading, and the next caller tries again. */
TEST(a_failed_loading_fails_those_that_waited)
{
    const struct hcache_opts of[] = {{.model = "/nonexistent/model"},
                                     {.model = "synth:tiny?"}};
    const struct models_opts o = {.of = of, .n = 2};
    struct models *m;
    struct models_stats st;
    struct hcache *h;
    struct err err = {0};
    assert_int_equal(models_open(&o, &m, &err), 0);
    for (int i = 1; i <= 2; i++) {
        assert_int_not_equal(models_wait(m, 0, &h, &err), 0);
        assert_non_null(strstr(err.msg, "/nonexistent/model"));
        models_stats(m, &st);
        assert_int_equal(st.n_failed, i);
    }
    assert_null(models_store(m));
    models_stop(m);
    assert_int_equal(models_wait(m, 1, &h, &err), ERR_CANCELLED);
    models_close(m);
    models_close(NULL);
}
