/* test_memory.c - memory runs out at each allocation in turn while a model's files are read, a chat
 * is rendered, or a text is encoded. Each time the call returns an error that says so, and leaks
 * nothing (the address sanitizer checks it). With memory again the call gives the same result as
 * before. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/pool.h"
#include "base/json.h"
#include "text/chat.h"
#include "model/config.h"
#include "model/model.h"
#include "text/tokenizer.h"
#include "model/weights.h"
#include "tests/base/memtest.h"

#define DEMO "models/demo"

static void read_config(void *arg)
{
    struct model_config c;
    struct weights_info info = {0};
    struct err err = {0};
    (void)arg;
    if (memtest_ok(config_load(&c, DEMO, &err), &err, "config") &&
        memtest_ok(weights_describe(&info, DEMO, &c, DTYPE_F32, &err), &err, "weights"))
        assert_int_equal(c.vocab_size, 3072);
    weights_info_deinit(&info);
}

static void read_tokenizer(void *arg)
{
    static const char text[] = "My name is Ada, and I live in Lisbon.";
    struct tokenizer *t = NULL;
    struct err err = {0};
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n_ids, n_back;
    (void)arg;
    if (memtest_ok(tokenizer_open(&t, DEMO, &err), &err, "tokenizer") &&
        memtest_ok(tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n_ids, &err), &err,
                   "encode") &&
        memtest_ok(tokenizer_decode(t, ids, n_ids, false, &back, &n_back, &err), &err,
                   "decode"))
        assert_string_equal(back, text);
    free(ids);
    free(back);
    tokenizer_close(t);
}

static const char chat_source[] =
    "{% macro line(m) %}<{{ m.role | upper }}>{{ m.content | trim }}{% endmacro %}{% set "
    "ns = namespace(n=0) %}{% for m in messages %}{{ line(m) }}{% set ns.n = ns.n + 1 %}{% "
    "endfor %}{{ ns.n }}{% if tools %}{{ tools | tojson }}{% endif %}";

static void write_chat(void *arg)
{
    static const char json[] = "[{\"role\":\"user\",\"content\":\" Hi \"},"
                               "{\"role\":\"assistant\",\"content\":\"Hello\"}]";
    struct chat_template *t = NULL;
    struct json *messages = NULL;
    struct err err = {0};
    char *text = NULL;
    size_t n;
    (void)arg;
    if (memtest_ok(chat_open(&t, chat_source, NULL, &err), &err, "template") &&
        memtest_ok(json_parse(&messages, json, sizeof json - 1, "messages", &err), &err,
                   "parse")) {
        struct chat_request r = {.messages = messages};
        if (memtest_ok(chat_render(t, &r, &text, &n, NULL, &err), &err, "render"))
            assert_string_equal(text, "<USER>Hi<ASSISTANT>Hello2");
    }
    free(text);
    json_free(messages);
    chat_close(t);
}

/* Parsing JSON may fail for lack of memory. Building JSON values does not fail: it uses the
 * reserve. */
static void build_json(void *arg)
{
    (void)arg;
    struct json *v = json_new_object(), *a = json_new_array();
    for (int i = 0; i < 20; i++)
        json_push_int(a, i);
    json_put(v, "numbers", a);
    json_put_string(v, "text", "no UTF-8: \xff");
    char *text = json_text(v, 0);
    assert_non_null(strstr(text, "[0, 1, 2"));
    free(text);
    json_free(v);
}

static void load_model(void *arg)
{
    struct pool *pool = NULL;
    struct model_opts o = {.dtype = "f32"};
    struct model *m = NULL;
    struct err err = {0};
    (void)arg;
    if (memtest_ok(pool_create(1, &pool, &err), &err, "pool") &&
        memtest_ok(device_open("cpu", NULL, pool, &o.dev, &err), &err, "device"))
        (void)memtest_ok(model_open("synth:tiny-mha", &o, &m, &err), &err, "model");
    model_close(m);
    device_close(o.dev);
    pool_destroy(pool);
}

#define WALK(fn, most)                                                                     \
    TEST(test_##fn)                                                                        \
    {                                                                                      \
        memtest_walk(#fn, fn, NULL, most);                                                 \
    }
WALK(read_config, 80)
WALK(read_tokenizer, 20)
WALK(write_chat, 80)
WALK(build_json, 100)
WALK(load_model, 20)

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
