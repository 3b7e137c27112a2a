/* test_chat.c - conversations to prompts: recorded results of the reference implementation, and the
 * preparation of the API's messages. */
#include "text/chat.h"

#include "base/file.h"
#include "base/textbuf.h"
#include "text/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

static struct json *read_json(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    struct json *root = NULL;
    if (file_read(path, 64 << 20, &text, &n, NULL) == 0)
        json_parse(&root, text, n, path, NULL);
    free(text);
    return root;
}

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(&v, text, strlen(text), "t", &err) != 0)
        fail_msg("%s", err.msg);
    return v;
}

static struct chat_template *open_template(const char *source)
{
    struct chat_template *t = NULL;
    struct err err = {0};
    if (chat_open(&t, source, NULL, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* --- the reference's results -------------------------------------------------------- */

/* Returns whether chat_render refuses or changes this conversation on purpose. */
static bool prepared_otherwise(const char *talk)
{
    static const char *const names[] = {"parts",
                                        "none-content",
                                        "no-content",
                                        "no-messages",
                                        "tool-call-string",
                                        "tool-call-none",
                                        "tool-result-object",
                                        "system-late"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(talk, names[i]) == 0)
            return true;
    return false;
}

static char *model_source(const char *model)
{
    char path[512];
    const char *shared = getenv("HCACHE_SHARED");
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer_config.json",
             shared != NULL ? shared : "../shared", model);
    struct json *config = read_json(path);
    const char *s = json_string_of(json_member(config, "chat_template"), NULL);
    char *copy = s != NULL ? strdup(s) : NULL;
    json_free(config);
    return copy;
}

static struct tm golden_now(const struct json *golden)
{
    int64_t t[6] = {0};
    for (size_t i = 0; i < 6; i++)
        json_int_of(json_at(json_member(golden, "now"), i), &t[i]);
    struct tm tm = {
        .tm_year = (int)t[0] - 1900, .tm_mon = (int)t[1] - 1, .tm_mday = (int)t[2]};
    tm.tm_hour = (int)t[3];
    tm.tm_min = (int)t[4];
    tm.tm_sec = (int)t[5];
    mktime(&tm);
    return tm;
}

/* Returns a conversation's remaining template variables: those that are no parameters of
 * chat_render. */
static struct json *kwargs_of(const struct json *talk)
{
    static const char *const placed[] = {"messages",  "tools",     "add_generation_prompt",
                                         "bos_token", "eos_token", "documents"};
    struct json *kwargs = json_new_object();
    struct json_iter it = json_begin(talk);
    while (json_next(&it)) {
        bool own = true;
        for (size_t i = 0; i < sizeof placed / sizeof *placed; i++)
            own = own && strcmp(it.key, placed[i]) != 0;
        if (own)
            json_put(kwargs, it.key, json_share(it.value));
    }
    return kwargs;
}

/* Checks that tracing changes neither bytes nor result. */
static void check_traced(const struct chat_template *t, const struct chat_request *r,
                         int rc, const char *text, size_t n)
{
    char *again = NULL;
    uint8_t *foreign = NULL;
    size_t n_again = 0;
    assert_int_equal(chat_render(t, r, &again, &n_again, &foreign, NULL), rc);
    assert_int_equal(n_again, rc == 0 ? n : 0);
    if (rc == 0)
        assert_memory_equal(again, text, n);
    free(foreign);
    free(again);
}

static bool has_calls(const struct json *messages)
{
    bool any = false;
    for (size_t i = 0; i < json_count(messages); i++)
        any |= json_count(json_member(json_at(messages, i), "tool_calls")) > 0;
    return any;
}

/* Returns whether the text shows everything that a message says: content and thought. */
static bool shows_all(const struct json *messages, const char *text)
{
    static const char *const keys[] = {"content", "reasoning_content", "reasoning",
                                       "thinking"};
    for (size_t i = 0; i < json_count(messages); i++)
        for (size_t k = 0; k < 4; k++) {
            const char *s = json_string_of(json_member(json_at(messages, i), keys[k]),
                                           NULL);
            char word[64] = "";
            if (s != NULL) /* the first line: templates strip blanks and tags */
                sscanf(s + (strncmp(s, "<think>", 7) == 0 ? 7 : 0), " %63[^\n<]", word);
            for (size_t n = strlen(word); n > 0 && word[n - 1] == ' '; n--)
                word[n - 1] = 0;
            if (text == NULL || strstr(text, word) == NULL)
                return false;
        }
    return true;
}

/* Returns whether the text has the names of all calls. */
static bool shows_calls(const struct json *messages, const char *text)
{
    bool shown = true;
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json *calls = json_member(json_at(messages, i), "tool_calls");
        for (size_t k = 0; k < json_count(calls); k++) {
            const char *name = json_string_of(
                json_member(json_member(json_at(calls, k), "function"), "name"), NULL);
            shown = shown && (name == NULL || strstr(text, name) != NULL);
        }
    }
    return shown;
}

/* Where the reference refuses a conversation or leaves out what a message says, this program shows
 * it, or refuses it by name. */
static bool is_shown_or_named(const struct json *messages, const char *want, int rc,
                              const char *text, const struct err *err)
{
    if (shows_all(messages, want))
        return false;
    if (want == NULL && rc == ERR_USAGE)
        return true;
    return rc == 0 ? shows_all(messages, text)
                   : rc == ERR_USAGE && (strstr(err->msg, "does not show") != NULL ||
                                         strstr(err->msg, "would leave out") != NULL ||
                                         strstr(err->msg, "alternate") != NULL);
}

static bool as_expected(const char *source, const struct json *talk, const struct tm *now,
                        const struct json *expected)
{
    struct chat_template *t = open_template(source);
    struct json *kwargs = kwargs_of(talk);
    struct chat_request r = {
        .messages = json_member(talk, "messages"),
        .tools = json_member(talk, "tools"),
        .documents = json_member(talk, "documents"),
        .kwargs = kwargs,
        .bos_token = json_string_of(json_member(talk, "bos_token"), NULL),
        .eos_token = json_string_of(json_member(talk, "eos_token"), NULL),
        .now = now};
    json_bool_of(json_member(talk, "add_generation_prompt"), &r.add_generation_prompt);
    struct err err = {0};
    char *text = NULL;
    size_t n = 0, n_want = 0;
    int rc = chat_render(t, &r, &text, &n, NULL, &err);
    check_traced(t, &r, rc, text, n);
    const char *want = json_string_of(json_member(expected, "output"), &n_want);
    /* The reference leaves out tools and calls that a template does not show. */
    bool declares = chat_abilities(t).declared_tools && json_count(r.tools) > 0;
    bool lost = has_calls(r.messages) && want != NULL &&
                (!shows_calls(r.messages, want) || !chat_abilities(t).calls);
    if (declares || lost) {
        bool refused = rc == ERR_USAGE &&
                       (!lost || strstr(err.msg, "does not show tool calls"));
        bool shown = refused ? lost
                             : rc == 0 && shows_all(r.messages, text) &&
                                   shows_calls(r.messages, text) &&
                                   (!declares ||
                                    strstr(text, "You can call these functions") != NULL);
        if (!shown)
            print_error("not all is shown: [%s]\n", text);
        free(text);
        json_free(kwargs);
        chat_close(t);
        return shown;
    }
    if (is_shown_or_named(r.messages, want, rc, text, &err)) {
        free(text);
        json_free(kwargs);
        chat_close(t);
        return true;
    }
    const char *message = json_string_of(json_member(expected, "message"), NULL);
    const char *kind = json_string_of(json_member(expected, "error"), NULL);
    bool good = want != NULL
                    ? rc == 0 && n == n_want && memcmp(text, want, n) == 0
                    : rc == (strcmp(kind, "raised") == 0 ? ERR_USAGE : ERR_MISMATCH);
    if (kind != NULL && strcmp(kind, "raised") == 0)
        good = good && strcmp(err.msg, message) == 0;
    if (!good)
        print_error("expected [%s], got %d [%s]\n", want != NULL ? want : message, rc,
                    rc == 0 ? text : err.msg);
    free(text);
    json_free(kwargs);
    chat_close(t);
    return good;
}

TEST(test_golden)
{
    struct json *golden = read_json("tests/model/golden/chat.json");
    const struct json *chats = json_member(golden, "chats");
    struct tm now = golden_now(golden);
    size_t done = 0, skipped = 0, bad = 0;
    for (size_t i = 0; i < json_count(chats); i++) {
        const struct json *c = json_at(chats, i);
        const char *name = json_string_of(json_at(c, 0), NULL);
        const char *talk = json_string_of(json_at(c, 1), NULL);
        if (prepared_otherwise(talk))
            continue;
        const char *own = json_string_of(
            json_member(json_member(golden, "templates"), name), NULL);
        char *source = own != NULL ? strdup(own) : model_source(name);
        if (source == NULL) {
            skipped++;
            continue;
        }
        bool good = as_expected(source,
                                json_member(json_member(golden, "conversations"), talk),
                                &now, json_at(c, 2));
        if (!good)
            print_error("    %s on %s\n", name, talk);
        bad += !good;
        done++;
        free(source);
    }
    print_message("%zu conversations, %zu skipped: no ../shared/tokenizers\n", done,
                  skipped);
    json_free(golden);
    /* no recorded case is left out silently */
    assert_in_range(done + skipped, 465, SIZE_MAX);
    assert_true(done > 150);
    assert_int_equal(bad, 0);
}

/* --- preparing messages ------------------------------------------------------------- */

#define SHOW "{{ messages | tojson }}{{ tools }}"
#define WALK                                                                               \
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}"      \
    "{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"

static void expect(const char *source, const char *messages, const char *tools, int rc,
                   const char *text)
{
    struct chat_template *t = open_template(source);
    struct json *m = parse(messages), *list = tools != NULL ? parse(tools) : NULL;
    struct chat_request r = {.messages = m, .tools = list};
    struct err err = {0};
    char *out = NULL;
    size_t n = 0;
    assert_int_equal(chat_render(t, &r, &out, &n, NULL, &err), rc);
    assert_string_equal(rc == 0 ? out : err.msg, text);
    free(out);
    json_free(list);
    json_free(m);
    chat_close(t);
}

TEST(test_content)
{
    const char *parts =
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
        " {\"type\": \"text\", \"text\": \"b\"}]}]";
    expect(SHOW, parts, NULL, 0, "[{\"role\": \"user\", \"content\": \"a\\nb\"}]None");
    expect(WALK, parts, NULL, 0, "user:<a><b>");
    expect(WALK, "[{\"role\": \"user\", \"content\": \"plain\"}]", NULL, 0, "user:plain");
    expect(SHOW, "[{\"role\": \"user\", \"content\": []}]", NULL, 0,
           "[{\"role\": \"user\", \"content\": \"\"}]None");
    expect(SHOW, "[{\"role\": \"assistant\", \"content\": null, \"refusal\": null}]", NULL,
           0, "[{\"role\": \"assistant\", \"content\": \"\"}]None");
    expect(SHOW, "[{\"role\": \"assistant\"}]", NULL, 0,
           "[{\"role\": \"assistant\", \"content\": \"\"}]None");
    expect(SHOW, "[{\"role\": \"user\", \"content\": \"x\", \"name\": \"n\"}]", "[]", 0,
           "[{\"role\": \"user\", \"content\": \"x\", \"name\": \"n\"}][]");
}

TEST(test_arguments)
{
#define CALL(arguments)                                                                    \
    "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", "      \
    "\"type\": "                                                                           \
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]"
    const char *show = "{{ messages[-1].tool_calls[0] | tojson }}";
#define SHOWN(arguments)                                                                   \
    "{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "             \
    "\"arguments\": " arguments "}}"
    expect(show, CALL("\"{\\\"a\\\": [1, true, null]}\""), NULL, 0,
           SHOWN("{\"a\": [1, true, null]}"));
    expect(show, CALL("{\"a\": 1}"), NULL, 0, SHOWN("{\"a\": 1}"));
    expect(show, CALL("\"\""), NULL, 0, SHOWN("{}"));
    expect(show, CALL("\"{broken\""), NULL, 0, SHOWN("\"{broken\""));
    expect(show, CALL("\"[1]\""), NULL, 0, SHOWN("\"[1]\""));
    expect(SHOW, "[{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": []}]",
           NULL, 0, "[{\"role\": \"assistant\", \"content\": \"x\"}]None");
}

/* Templates that accept tool calls in only one form. The template that tests `content is none`
 * leaves out the call of a message whose content is "", as well-known templates do. */
TEST(test_calls)
{
#define CALLS_OF(content, call)                                                            \
    "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% elif " content     \
    " %}{% for c in m.tool_calls %}[" call "]{% endfor %}{% else %}A{{ m.content }}"       \
    "{% endif %}{% endfor %}"
#define OBJECT "{{ c.function.name }} {{ c.function.arguments | tojson }}"
#define TEXT   "{{ c.function.name + ' ' + c.function.arguments }}"
#define TALK(content)                                                                      \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\"" content          \
    ", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": "            \
    "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":  1}\"}}]}]"
    static const char *const empty[] = {TALK(", \"content\": null"), TALK(""),
                                        TALK(", \"content\": \"\""),
                                        TALK(", \"content\": []")};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        expect(CALLS_OF("m.content is none", OBJECT), empty[i], NULL, 0,
               "Uq[f {\"a\": 1}]");
        expect(CALLS_OF("m.content == ''", OBJECT), empty[i], NULL, 0, "Uq[f {\"a\": 1}]");
        expect(CALLS_OF("m.tool_calls", OBJECT), empty[i], NULL, 0, "Uq[f {\"a\": 1}]");
        /* A template that wants text gets the arguments byte by byte as they came. */
        expect(CALLS_OF("m.content is none", TEXT), empty[i], NULL, 0, "Uq[f {\"a\":  1}]");
        expect(CALLS_OF("m.content is defined", "{{ c.function.arguments }}"), empty[i],
               NULL, 0, "Uq[{\"a\":  1}]"); /* never Python's {'a': 1} */
    }
    const char *both = TALK(", \"content\": \"said\"");
    /* a template that shows either text or calls gets a message for each */
    expect(CALLS_OF("m.tool_calls", OBJECT), both, NULL, 0, "UqAsaid[f {\"a\": 1}]");
    expect(CALLS_OF("m.content is none", OBJECT), both, NULL, 0, "UqAsaid[f {\"a\": 1}]");
    expect("{% for m in messages %}{% if m.tool_calls and m.content %}{{ m.content }}{% "
           "elif m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}",
           both, NULL, ERR_USAGE,
           "messages[1] has content and tool_calls: the model's chat template would leave "
           "out the calls");
    /* one that shows no calls gets them as text, as the model writes them */
    expect(
        "{% for m in messages %}{{ m.content }}{% endfor %}", both, NULL, 0,
        "qsaid\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
    expect("{{ messages[0].content }}", both, NULL, ERR_USAGE,
           "messages[1].tool_calls: the model's chat template does not show tool calls");
    struct chat_template *t = open_template(CALLS_OF("m.content is none", TEXT));
    assert_true(chat_abilities(t).calls && chat_abilities(t).declared_tools);
    chat_close(t);
}

/* The syntax of answers is the one that the template renders. */
TEST(test_syntax)
{
#define TURN(call)                                                                         \
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ "   \
    "m.role }}|>\n"                                                                        \
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}" call                          \
    "{% endfor %}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% "    \
    "endif %}"
    static const struct {
        const char *source, *family, *open, *close, *name;
    } rows[] = {
        {TURN("<tool_call>{{ c.function | tojson }}</tool_call>"), "hermes", "<tool_call>",
         "</tool_call>", "name"},
        {TURN("[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"),
         "mistral", "[TOOL_CALLS]", NULL, "name"},
        {TURN("<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in "
              "c.function.arguments | items %}<parameter={{ k }}>\n{{ v "
              "}}\n</parameter>\n{% endfor %}</function>\n</tool_call>"),
         "qwen-xml", "<tool_call> <function=", "</function>", NULL},
        /* tags that no table has */
        {TURN("<act>{{ {'tool': c.function.name, 'input': c.function.arguments} | tojson "
              "}}</act>"),
         "template", "<act>", "</act>", "tool"},
        {TURN("<<do>>[{{ {'tool': c.function.name, 'input': c.function.arguments} | tojson "
              "}}]"),
         "template", "<<do>>", NULL, "tool"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct chat_template *t = open_template(rows[i].source);
        const struct call_syntax *c = chat_syntax(t)->calls;
        assert_non_null(c);
        assert_string_equal(c->family, rows[i].family);
        assert_string_equal(c->open, rows[i].open);
        if (rows[i].close == NULL)
            assert_null(c->close);
        else
            assert_string_equal(c->close, rows[i].close);
        if (rows[i].name != NULL)
            assert_string_equal(c->name_key, rows[i].name);
        chat_close(t);
    }
    /* calls that cannot be read: the model is told another form */
    struct chat_template *t = open_template(TURN("{{ c.function.name }}!"));
    assert_string_equal(chat_syntax(t)->calls->family, "hermes");
    assert_true(chat_abilities(t).declared_tools);
    chat_close(t);
}

TEST(test_refusals)
{
    expect(SHOW, "[]", NULL, ERR_USAGE,
           "messages must be an array with at least one message");
    expect(SHOW, "{}", NULL, ERR_USAGE,
           "messages must be an array with at least one message");
    expect(SHOW, "[5]", NULL, ERR_USAGE, "messages[0] must be an object, it is an integer");
    expect(SHOW, "[{\"content\": \"x\"}]", NULL, ERR_USAGE,
           "messages[0].role must be a string");
    expect(SHOW, "[{\"role\": \"user\"}]", NULL, ERR_USAGE,
           "messages[0].content is missing");
    expect(SHOW, "[{\"role\": \"user\", \"content\": 5}]", NULL, ERR_USAGE,
           "messages[0].content must be a string or an array of parts, it is an integer");
    expect(SHOW, "[{\"role\": \"user\", \"content\": [\"x\"]}]", NULL, ERR_USAGE,
           "messages[0].content[0] must be an object with a type");
    expect(WALK, "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", NULL,
           ERR_USAGE,
           "messages[0].content[0]: parts of type 'image_url' are not supported, only text "
           "is");
    expect(WALK, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", NULL,
           ERR_USAGE, "messages[0].content[0].text must be a string");
    expect(SHOW, "[{\"role\": \"assistant\", \"tool_calls\": {}}]", NULL, ERR_USAGE,
           "messages[0].tool_calls must be an array, it is an object");
    expect(SHOW, "[{\"role\": \"user\", \"content\": \"x\"}]", "{}", ERR_USAGE,
           "tools must be an array, it is an object");
    expect("{{ raise_exception('alternate!') }}",
           "[{\"role\": \"user\", \"content\": \"x\"}]", NULL, ERR_USAGE, "alternate!");
    struct chat_template *t = NULL;
    struct err err = {0};
    assert_int_equal(chat_open(&t, NULL, NULL, &err), ERR_NOT_FOUND);
    assert_int_equal(chat_open(&t, "{% nope %}", NULL, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "chat_template:1: unknown tag 'nope'");
    assert_null(t);
}

TEST(test_kwargs)
{
    struct chat_template *t = open_template(
        "{{ bos_token }}{{ eos_token }}{{ flag }}"
        "{{ add_generation_prompt }}{{ bos_token is defined }}");
    struct json *m = parse("[{\"role\": \"user\", \"content\": \"x\"}]");
    struct json *good = parse("{\"flag\": false, \"eos_token\": \"E\"}");
    struct json *reserved = parse("{\"tools\": []}");
    struct chat_request r = {.messages = m, .kwargs = good, .eos_token = "</s>"};
    struct err err = {0};
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(chat_render(t, &r, &text, &n, NULL, &err), 0);
    assert_string_equal(text, "EFalseFalseFalse");
    free(text);
    r = (struct chat_request){.messages = m, .kwargs = reserved};
    assert_int_equal(chat_render(t, &r, &text, &n, NULL, &err), ERR_USAGE);
    assert_string_equal(err.msg, "'tools' cannot be an argument of the template");
    json_free(m);
    json_free(good);
    json_free(reserved);
    chat_close(t);
}

TEST(test_turns)
{
    struct chat_template *t = open_template(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor "
        "%}{{ 'assistant:' if add_generation_prompt }}");
    struct json *messages = parse("[{\"role\": \"system\", \"content\": \"short\"},"
                                  " {\"role\": \"user\", \"content\": \"h\xc3\xa9\"}]");
    struct chat_request r = {
        .messages = messages, .add_generation_prompt = true, .bos_token = "<s>"};
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(chat_render(t, &r, &text, &n, NULL, NULL), 0);
    assert_string_equal(text, "<s>system: short\nuser: h\xc3\xa9\nassistant:");
    assert_int_equal(n, strlen(text));
    free(text);
    json_free(messages);
    chat_close(t);
}

static void expect_abilities(const char *source, bool parts, bool tools, bool system)
{
    struct chat_template *t = open_template(source);
    struct chat_abilities can = chat_abilities(t);
    if (can.parts != parts || can.tools != tools || can.system != system)
        fail_msg("%.60s: parts %d, tools %d, system %d", source, can.parts, can.tools,
                 can.system);
    chat_close(t);
}

TEST(test_abilities)
{
    struct json *golden = read_json("tests/model/golden/chat.json");
    const struct json *t = json_member(golden, "templates");
    expect_abilities(WALK, true, false, true);
    expect_abilities("{{ messages }}", false, false, true);
    expect_abilities("{{ messages[0].content | trim }}", false, false, true);
#define OF(name) json_string_of(json_member(t, name), NULL)
    expect_abilities(OF("gemma-style"), false, false, false);
    expect_abilities(OF("gemma3-style"), true, false, true);
    expect_abilities(OF("llama3.1-style"), false, true, true);
    expect_abilities(OF("mistral-v3-style"), false, true, true);
    expect_abilities(OF("qwen2.5-style"), false, true, true);
    expect_abilities(OF("qwen2-style"), false, false, true);
    expect_abilities(OF("qwen3-style"), true, false, true);
    json_free(golden);
}

/* Each part's text stands on a line of its own, whatever bytes it has. */
TEST(test_joined_parts)
{
#define PART(text)    "{\"type\": \"text\", \"text\": \"" text "\"}"
#define USER(content) "[{\"role\": \"user\", \"content\": " content "}]"
    static const char show[] = "{{ messages[0].content | tojson }}";
    expect(show, USER("[" PART("a") "]"), NULL, 0, "\"a\"");
    expect(show, USER("[" PART("a") "," PART("") "," PART("bc") "]"), NULL, 0,
           "\"a\\n\\nbc\"");
    expect(show, USER("[" PART("") "]"), NULL, 0, "\"\"");
    expect(show, USER("[" PART("") "," PART("") "]"), NULL, 0, "\"\\n\"");
    expect(show, USER("[" PART("a") ",5]"), NULL, ERR_USAGE,
           "messages[0].content[1] must be an object with a type");
    expect(show, USER("[" PART("a") ",{\"type\": 5}]"), NULL, ERR_USAGE,
           "messages[0].content[1] must be an object with a type");
    expect(show, USER("[" PART("a") ",{\"type\": \"text\", \"text\": null}]"), NULL,
           ERR_USAGE, "messages[0].content[1].text must be a string");
    expect(show, USER("\"a\"") "", NULL, 0, "\"a\"");
}

/* Members keep their order; those that are null and empty lists of calls are left out. */
TEST(test_members_of_a_message)
{
    static const char show[] = "{{ messages | tojson }}";
    expect(show,
           "[{\"name\": \"n\", \"content\": \"c\", \"role\": \"user\", \"x\": null},"
           "{\"role\": \"assistant\", \"tool_calls\": null, \"y\": [1]},"
           "{\"tool_calls\": [], \"role\": \"assistant\", \"content\": \"d\"}]",
           NULL, 0,
           "[{\"name\": \"n\", \"content\": \"c\", \"role\": \"user\"}, "
           "{\"role\": \"assistant\", \"y\": [1], \"content\": \"\"}, "
           "{\"role\": \"assistant\", \"content\": \"d\"}]");
    /* the second message is named */
    expect(show, "[{\"role\": \"user\", \"content\": \"c\"}, {\"role\": 5}]", NULL,
           ERR_USAGE, "messages[1].role must be a string");
    expect(show, "[{\"role\": \"user\", \"content\": null}]", NULL, ERR_USAGE,
           "messages[0].content is missing");
    expect(show, "[{\"role\": \"user\", \"content\": {}}]", NULL, ERR_USAGE,
           "messages[0].content must be a string or an array of parts, it is an object");
}

/* Renders a conversation. The caller frees the text; NULL: it was refused. */
static char *rendered(const char *source, const char *messages, const char *tools,
                      char *unshown, uint8_t **foreign)
{
    struct chat_template *t = open_template(source);
    struct json *m = parse(messages), *list = tools != NULL ? parse(tools) : NULL;
    struct chat_request r = {.messages = m, .tools = list, .unshown = unshown};
    char *out = NULL;
    size_t n = 0;
    (void)chat_render(t, &r, &out, &n, foreign, NULL);
    json_free(list);
    json_free(m);
    chat_close(t);
    return out;
}

#define PLAIN "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
#define A_CALL(id, name)                                                                   \
    "{\"id\": \"" id "\", \"function\": {\"name\": \"" name "\", \"arguments\": \"{}\"}}"
#define RESULT(id, text)                                                                   \
    "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}"

/* A mark is where the text from messages behind it begins, also in a message that was joined from
 * both sides of the mark, or that moved in front of it. */
TEST(test_marks)
{
#define ONE_SYSTEM                                                                         \
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"                \
    "{{ raise_exception('late') }}{% endif %}<{{ m.role }}>{{ m.content | trim }}"         \
    "{% endfor %}{{ tools }}"
#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
    static const char four[] = "[" SAYS("system", "s") "," SAYS("user", "u") "," SAYS(
        "assistant", "a") "," SAYS("user", "v") "]";
    static const char late[] = "[" SAYS("system", "s") "," SAYS("user", "u") "," SAYS(
        "system", "late") "]";
    static const char two[] = "[" SAYS("system", "s") "," SAYS("system", "t") "," SAYS(
        "user", "u") "]";
    static const struct {
        const char *source, *messages;
        size_t message;
        const char *before; /* text up to the mark */
    } cases[] = {
        {ONE_SYSTEM, four, 0, "<system>"},
        {ONE_SYSTEM, four, 1, "<system>s<user>"},
        {ONE_SYSTEM, four, 3, "<system>s<user>u<assistant>a<user>"},
        {ONE_SYSTEM, four, 4, "<system>s<user>u<assistant>a<user>vNone"},
        {ONE_SYSTEM, late, 1, "<system>s<user>"}, /* the user says it */
        {ONE_SYSTEM, late, 2, "<system>s<user>"},
        {ONE_SYSTEM, two, 1, "<system>s"}, /* "s\n\nt" is one message */
        {PLAIN, late, 1, "<system>s<system>"},
        {PLAIN, late, 2, "<system>s<system>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int large = 0; large < 2;
             large++) { /* large texts are traced without a copy */
            struct chat_template *t = open_template(cases[i].source);
            struct json *m = parse(cases[i].messages), *big = json_new_array();
            struct textbuf text = {0};
            size_t pad = large ? 40000 : 0, n = 0;
            for (size_t k = 0; k < pad; k++)
                textbuf_add(&text, "p", 1);
            for (size_t k = 0; k < json_count(m); k++) {
                struct json *o = json_new_object();
                const char *role = json_string_of(json_member(json_at(m, k), "role"), NULL);
                const char *said = json_string_of(json_member(json_at(m, k), "content"),
                                                  NULL);
                text.n = k == 0 ? pad : 0;
                textbuf_add(&text, said, strlen(said));
                json_put_string(o, "role", role);
                json_put_bytes(o, "content", text.p, text.n);
                json_push(big, o);
            }
            struct chat_mark marks[] = {{cases[i].message, 0}, {9, 0}};
            struct chat_request r = {.messages = big, .marks = marks, .n_marks = 2};
            uint8_t *foreign = NULL;
            char *out = NULL;
            assert_int_equal(chat_render(t, &r, &out, &n, &foreign, NULL), 0);
            char shown[128];
            size_t n_shown = 0;
            for (size_t k = 0; k < marks[0].at && n_shown < sizeof shown - 1; k++)
                if (out[k] != 'p')
                    shown[n_shown++] = out[k];
            shown[n_shown] = 0;
            assert_string_equal(shown, cases[i].before);
            assert_int_equal(marks[1].at, n);
            free(out);
            free(foreign);
            textbuf_free(&text);
            json_free(big);
            json_free(m);
            chat_close(t);
        }
    }
}

/* A member that the prompt does not show is named, unless it says nothing or only repeats. */
TEST(test_unshown_members)
{
    static const char talk[] =
        "[{\"role\": \"system\", \"content\": \"s\", \"name\": \"n\"},"
        "{\"role\": \"user\", \"content\": \"u\", \"name\": \"bob\", \"cache_control\": "
        "{\"a\": 1}},"
        "{\"role\": \"assistant\", \"content\": \"a\", \"annotations\": [], \"refusal\": "
        "null,"
        "\"tool_calls\": [" A_CALL("1", "f") "]}," RESULT(
            "1", "r") ", {\"role\": \"user\", \"content\": \"v\"}]";
    static const struct {
        const char *source, *unshown;
    } rows[] = {
        {PLAIN, "name cache_control"},
        /* shown for users only */
        {"{% for m in messages %}{{ m.role }} {{ m.name if m.role == 'user' }}{{ m.content "
         "}}{% endfor %}",
         "name cache_control"},
        {"{% for m in messages %}{{ m.role }} {{ m.name }} {{ m.content }}{% endfor %}",
         "cache_control"},
        {"{{ messages | tojson }}", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char unshown[CHAT_UNSHOWN] = "?";
        uint8_t *foreign = NULL;
        char *text = rendered(rows[i].source, talk, NULL, unshown, &foreign);
        assert_non_null(text);
        assert_string_equal(unshown, rows[i].unshown);
        free(foreign);
        free(text);
    }
    /* members that would change the answer */
    expect(PLAIN,
           "[{\"role\": \"assistant\", \"content\": null, \"audio\": {\"id\": \"a\"}}]",
           NULL, ERR_USAGE, "messages[0].audio is not supported");
    expect(
        PLAIN, "[{\"role\": \"assistant\", \"content\": \"a\", \"prefix\": true}]", NULL,
        ERR_USAGE,
        "messages[0].prefix is not supported: /v1/messages and /v1/completions continue a "
        "text");
    expect(PLAIN, "[{\"role\": \"assistant\", \"content\": \"a\", \"prefix\": false}]",
           NULL, 0, "<assistant>a");
    expect(
        PLAIN,
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"function\": {}}]}]",
        NULL, ERR_USAGE, "messages[0].tool_calls[0] needs a function with a name");
}

/* Results stand in the order of their calls, with the tools' names. */
TEST(test_results_in_order)
{
    static const char talk[] =
        "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
        "\"tool_calls\": [" A_CALL("1", "f") "," A_CALL("2", "g") "]}," RESULT(
            "2", "R2") "," RESULT("9", "R9") "," RESULT("1", "R1") "]";
    expect(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ "
        "c.function.arguments | tojson }}){% endfor %}"
        "{{ m.name }} {{ m.content }};{% endfor %}",
        talk, NULL, 0, " u;(f {})(g {}) ;f R1;g R2; R9;");
}

/* A template that takes one call at a time (Llama 3) gets a message for each, with its result. */
TEST(test_single_calls)
{
    static const char source[] = "{% for m in messages %}{% if m.tool_calls is defined "
                                 "%}{% if m.tool_calls | length != 1 %}{{ "
                                 "raise_exception('single') }}{% endif %}{{ m.content "
                                 "}}({{ m.tool_calls[0].function.name }} {{ "
                                 "m.tool_calls[0].function.arguments | tojson }}){% else "
                                 "%}{{ m.content }};{% endif %}{% endfor %}";
    static const char talk[] =
        "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": "
        "\"said\", "
        "\"tool_calls\": [" A_CALL("1", "f") "," A_CALL("2", "g") "]}," RESULT(
            "2", "R2") "," RESULT("9", "R9") "," RESULT("1", "R1") ", {\"role\": 5}]";
    expect(source, talk, NULL, ERR_USAGE, "messages[5].role must be a string");
    char good[sizeof talk];
    snprintf(good, sizeof good, "%.*s]", (int)(strrchr(talk, ',') - talk), talk);
    expect(source, good, NULL, 0, "u;said(f {})R1;(g {})R2;R9;");
}

/* A template that shows neither tools, calls nor results: the model gets all of them as text, and
 * may get the tags as special tokens. */
TEST(test_written_calls)
{
    static const char talk[] = "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": "
                               "\"assistant\", \"content\": \"said\","
                               "\"tool_calls\": [{\"id\": \"1\", \"type\": \"custom\", "
                               "\"custom\": {\"name\": \"f\", "
                               "\"input\": \"<tool_call>\"}}," A_CALL(
                                   "2", "g") "]}," RESULT("1", "R1") "," RESULT("2",
                                                                                "R2") "]";
    static const char roles[] =
        "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ "
        "raise_exception('roles') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    static const char written[] =
        "said\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"input\": "
        "\"<tool_call>\"}}\n"
        "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    uint8_t *foreign = NULL;
    char *text = rendered(roles, talk, NULL, NULL, &foreign);
    assert_non_null(text);
    char *at = strstr(text, written);
    assert_non_null(at);
    assert_string_equal(at + strlen(written),
                        "<user><tool_response>\nR1\n</tool_response>\n\n"
                        "<tool_response>\nR2\n</tool_response>");
    size_t ours = (size_t)(strstr(at, "<tool_call>") - text);
    size_t theirs = (size_t)(strstr(at, "\"<tool_call>") - text) + 1;
    assert_false(foreign[ours / 8] >> ours % 8 & 1);
    assert_true(foreign[theirs / 8] >> theirs % 8 & 1);
    free(foreign);
    free(text);
    /* arguments that are no object cannot be written */
    expect(roles,
           "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
           "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\"}}]}]",
           NULL, ERR_USAGE,
           "messages[1].tool_calls: the model's chat template does not show tool calls, "
           "and one "
           "of these cannot be written as text: arguments must be the JSON of an object");
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]";
    text = rendered(roles,
                    "[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": "
                    "\"user\", \"content\": \"u\"}]",
                    tools, NULL, &foreign);
    assert_non_null(text);
    assert_true(strncmp(text, "<system>Be brief.\n\nYou can call", 31) == 0);
    assert_non_null(strstr(text, "\n{\"name\": \"f\", \"parameters\": {}}\n"));
    assert_non_null(
        strstr(text, "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": "
                     "\"VALUE\"}}\n</tool_call>\n"));
    free(foreign);
    free(text);
}

/* Calls are written as the model's own tags want them, and can be read back. */
TEST(test_written_forms)
{
    static const struct {
        const char *source, *tokens, *text;
    } rows[] = {
        /* the template names the tag, and shows no calls: Granite 3.3 */
        {"{% if tools %}Answer with <|tool_call|>{{ tools | tojson }}{% endif %}" PLAIN,
         NULL,
         "said\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x'\\\"\", \"b\": "
         "[true, null, 18446744073709551615]}}, {\"name\": \"g\", \"arguments\": {}}]"},
        /* the tokenizer has the tags: LFM2 */
        {"{% if tools %}{{ tools | tojson }}{% endif %}" PLAIN, "<|tool_call_start|>",
         "said\n<|tool_call_start|>[f(a=\"x'\\\"\", b=[True, None, 18446744073709551615]), "
         "g()]<|tool_call_end|>"},
    };
    static const char talk[] =
        "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": "
        "\"said\", "
        "\"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"a\\\": \\\"x'\\\\\\\"\\\", \\\"b\\\": [true, null, "
        "18446744073709551615]}\"}}," A_CALL("2", "g") "]}]";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct chat_template *t = NULL;
        struct err err = {0};
        struct json *m = parse(talk),
                    *tools = parse("[{\"name\": \"f\"}, {\"name\": \"g\"}]");
        struct chat_request r = {.messages = m};
        char *text = NULL;
        size_t n = 0, n_parts = 0;
        assert_int_equal(chat_open(&t, rows[i].source, rows[i].tokens, &err), 0);
        assert_false(chat_abilities(t).declared_tools);
        assert_int_equal(chat_render(t, &r, &text, &n, NULL, &err), 0);
        assert_string_equal(strstr(text, "said"), rows[i].text);
        struct answer_form *f = answer_form_create(chat_syntax(t), NULL);
        struct answer *a = answer_open(f, "", 0, tools);
        answer_push(a, rows[i].text, strlen(rows[i].text));
        answer_end(a);
        const struct answer_part *p = answer_parts(a, &n_parts);
        assert_int_equal(n_parts, 3);
        assert_string_equal(p[1].name, "f");
        assert_string_equal(
            p[1].text, "{\"a\": \"x'\\\"\", \"b\": [true, null, 18446744073709551615]}");
        assert_string_equal(p[2].name, "g");
        answer_close(a);
        answer_form_destroy(f);
        free(text);
        json_free(tools);
        json_free(m);
        chat_close(t);
    }
}

/* A template that counts roles, and shows calls or text, but not both: text and calls of a loop go
 * into one message (Mistral Nemo). */
TEST(test_loops_beside_text)
{
    static const char source[] =
        "{% if tools %}{{ tools | tojson }}{% endif %}{% set ns = namespace(i=0) %}{% for "
        "m in messages %}{% if not (m.role == 'tool' or m.tool_calls is defined) %}{% if "
        "(m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('alternate') }}{% "
        "endif %}{% set ns.i = ns.i + 1 %}{% endif %}{% endfor %}{% for m in messages %}{% "
        "if m.role == 'tool' %}[R]{{ m.content }}{% elif m.tool_calls is defined "
        "%}[TOOL_CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not "
        "loop.last }}{% endfor %}]</s>{% elif m.role == 'user' %}[I]{{ m.content }}[/I]{% "
        "else %}{{ m.content }}</s>{% endif %}{% endfor %}";
#define STEP(said, id)                                                                     \
    "{\"role\": \"assistant\", \"content\": " said                                         \
    ", \"tool_calls\": [" A_CALL(id, "f") "]}," RESULT(id, "R" id) ","
    expect(source,
           "[{\"role\": \"user\", \"content\": \"q\"}," STEP("\"One\"", "1")
               STEP("null", "2")
                   STEP("\"Two\"", "3") "{\"role\": \"assistant\", \"content\": \"End\"}]",
           NULL, 0,
           "[I]q[/I]One\n[TOOL_CALLS][{\"name\": \"f\", \"arguments\": "
           "{}}]</s>[I]<tool_response>\nR1\n</tool_response>[/I][TOOL_CALLS][{\"name\": "
           "\"f\", \"arguments\": {}}]</s>[R]R2Two\n[TOOL_CALLS][{\"name\": \"f\", "
           "\"arguments\": {}}]</s>[I]<tool_response>\nR3\n</tool_response>[/I]End</s>");
}

static void expect_request(const char *kwargs, const char *tools, int rc, const char *text)
{
    struct chat_template *t = open_template(
        "{{ bos_token is defined }} {{ x }} "
        "{{ add_generation_prompt }} {{ tools is none }}");
    struct json *m = parse(USER("\"q\"")), *k = parse(kwargs);
    char wrapped[64];
    snprintf(wrapped, sizeof wrapped, "{\"t\": %s}", tools);
    struct json *list = parse(wrapped);
    struct chat_request r = {.messages = m,
                             .kwargs = k,
                             .tools = json_member(list, "t"),
                             .add_generation_prompt = true};
    struct err err = {0};
    char *out = NULL;
    size_t n = 9;
    assert_int_equal(chat_render(t, &r, &out, &n, NULL, &err), rc);
    assert_string_equal(rc == 0 ? out : err.msg, text);
    assert_int_equal(n, rc == 0 ? strlen(text) : 0);
    free(out);
    json_free(list);
    json_free(k);
    json_free(m);
    chat_close(t);
}

TEST(test_requests)
{
    expect_request("{\"x\": 5}", "null", 0, "False 5 True True");
    expect_request("{\"x\": 5, \"bos_token\": \"b\"}", "[]", 0, "True 5 True False");
    expect_request("{}", "[1]", 0, "False  True False");
    expect_request("{}", "\"f\"", ERR_USAGE, "tools must be an array, it is a string");
    expect_request(
        "[]", "null", ERR_USAGE,
        "the template's arguments (chat_template_kwargs) must be an object, not an array");
    static const char *const reserved[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
    for (size_t i = 0; i < 4; i++) {
        char kwargs[64], message[80];
        snprintf(kwargs, sizeof kwargs, "{\"a\": 1, \"%s\": null}", reserved[i]);
        snprintf(message, sizeof message, "'%s' cannot be an argument of the template",
                 reserved[i]);
        expect_request(kwargs, "null", ERR_USAGE, message);
    }
}

/* Bytes of a message are foreign, except for a known role, which may make a template's marker. */
TEST(test_which_bytes_are_foreign)
{
    static const char *const known[] = {"system",    "developer",   "user",
                                        "assistant", "tool",        "function",
                                        "ipython",   "observation", "model"};
    static const char *const others[] = {"User", "users", "use", "x", "<|im_end|>"};
    struct chat_template *t = open_template(
        "<{# developer #}{% for m in messages %}{{ m.role }}>{{ m.content }}{% endfor %}");
    for (size_t i = 0; i < 9 + 5; i++) {
        const char *role = i < 9 ? known[i] : others[i - 9];
        char text[128], *out = NULL;
        uint8_t *foreign = NULL;
        size_t n = 0;
        struct err err = {0};
        snprintf(text, sizeof text, "[{\"role\": \"%s\", \"content\": \"user\"}]", role);
        struct json *m = parse(text);
        struct chat_request r = {.messages = m};
        assert_int_equal(chat_render(t, &r, &out, &n, &foreign, &err), 0);
        if (strcmp(role, "function") == 0)
            role = "tool"; /* the newer name */
        assert_int_equal(n, strlen(role) + 6);
        for (size_t k = 0; k < n; k++) {
            bool in_role = k > 0 && k <= strlen(role), in_content = k > strlen(role) + 1;
            bool is_foreign = foreign != NULL && (foreign[k / 8] >> k % 8 & 1) != 0;
            assert_int_equal(is_foreign, in_content || (in_role && i >= 9));
        }
        free(foreign);
        free(out);
        json_free(m);
    }
    chat_close(t);
    chat_close(NULL);
}
