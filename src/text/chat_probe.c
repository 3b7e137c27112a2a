/* chat_probe.c - see chat_impl.h.
 *
 * A probe is a short conversation with a mark in it. It is rendered, and the prompt has the mark or
 * not. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/answer_find.h"
#include "text/chat_impl.h"

#define MARK ANSWER_SAMPLE
#define TOOL ANSWER_SAMPLE_TOOL
#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define SAID "{\"role\":\"assistant\",\"content\":\"y\"}"
#define RESULT(content)                                                                    \
    "{\"role\":\"tool\",\"tool_call_id\":\"callid000\",\"name\":\"" TOOL                   \
    "\",\"content\":" content "}"
#define DONE RESULT("\"x\"")
/* A declaration of the tool of that name. */
#define DECLARE(name)                                                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"description\":\"d\","    \
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}"

/* Renders a probe's messages. Returns the prompt, which the caller frees, or NULL if the template
 * refuses them. `tools` NULL: no tools, or one if the template needs some. `ask`: the prompt ends
 * where an answer begins. */
static char *render(const struct chat_template *t, const char *messages, const char *tools,
                    bool ask, size_t *n)
{
    struct chat_request r = {
        .add_generation_prompt = ask, .bos_token = "", .eos_token = ""};
    struct json *m = NULL, *tool_list = NULL;
    char *text = NULL;
    struct tm epoch = {.tm_year = 70, .tm_mday = 1};
    if (json_parse(&m, messages, strlen(messages), "probe", NULL) != 0)
        return NULL;
    if (tools == NULL && t->needs_tools)
        tools = "[" DECLARE("other") "]";
    if (tools != NULL)
        (void)json_parse(&tool_list, tools, strlen(tools), "probe", NULL);
    r.now = &epoch;
    const struct chat_prepared p = {.messages = m, .tools = tool_list, .marked = true};
    (void)chat_render_prepared(t, &r, &p, &text, n, NULL, NULL);
    json_free(tool_list);
    json_free(m);
    return text;
}

/* Returns whether a probe's prompt shows the mark. If `quoted` is false, a mark behind a quotation
 * mark does not count, because the template then printed a whole list or dict. */
static bool shows(const struct chat_template *t, const char *messages, const char *tools,
                  bool quoted)
{
    size_t n = 0;
    char *text = render(t, messages, tools, true, &n);
    const char *at = text != NULL ? memmem(text, n, MARK, strlen(MARK)) : NULL;
    bool shown = at != NULL && (quoted || at == text || (at[-1] != '\'' && at[-1] != '"'));
    free(text);
    return shown;
}

/* --- roles and parts ------------------------------------------------------------------ */

/* Returns the JSON text of a string, from malloc. */
static char *quote(const char *s)
{
    struct json *v = json_new_bytes(s, strlen(s));
    char *text = json_text(v, 0);
    json_free(v);
    return text;
}

/* Returns the form with the text in place of its "%s", from malloc. */
static char *fill(const char *form, const char *text)
{
    const char *hole = strstr(form, "%s");
    return xasprintf("%.*s%s%s", (int)(hole - form), form, text, hole + 2);
}

bool chat_probe_role(const struct chat_template *t, const char *role)
{
    size_t n = 0;
    char *quoted = quote(role);
    char *messages = fill("[" USER ",{\"role\":%s,\"content\":\"" MARK "\"}]", quoted);
    char *prompt = render(t, messages, NULL, true, &n);
    bool lost = prompt != NULL && memmem(prompt, n, MARK, strlen(MARK)) == NULL;
    free(prompt);
    free(messages);
    free(quoted);
    return !lost;
}

bool chat_probe_member(const struct chat_template *t, const char *role, const char *key)
{
    static const char *const forms[CHAT_ROLES] = {
        [CHAT_USER] = "[{\"role\":\"user\",\"content\":\"x\",%s:\"" MARK "\"}]",
        [CHAT_SYSTEM] = "[{\"role\":\"system\",\"content\":\"x\",%s:\"" MARK "\"}," USER
                        "]",
        [CHAT_ASSISTANT] = "[" USER ",{\"role\":\"assistant\",\"content\":\"y\",%s:\"" MARK
                           "\"}," USER "]",
        [CHAT_TOOL] = "[" USER "," SAID
                      ",{\"role\":\"tool\",\"tool_call_id\":\"callid000\","
                      "\"content\":\"x\",%s:\"" MARK "\"}]"};
    enum chat_role at = strcmp(role, "assistant") == 0 ? CHAT_ASSISTANT
                        : strcmp(role, "system") == 0  ? CHAT_SYSTEM
                        : strcmp(role, "tool") == 0    ? CHAT_TOOL
                                                       : CHAT_USER;
    char *quoted = quote(key), *messages = fill(forms[at], quoted);
    bool shown = shows(t, messages, NULL, true);
    free(messages);
    free(quoted);
    return shown;
}

#define SYSTEM(text) "{\"role\":\"system\",\"content\":\"" text "\"}"

/* Returns whether a later system message is shown at its place. Templates that collect all system
 * messages at the beginning would change the beginning of a prompt that is stored. */
static bool shows_later_system(const struct chat_template *t)
{
    static const char *const forms[] = {
        "[{\"role\":\"user\",\"content\":\"" TOOL "\"}," SAID "," SYSTEM(MARK) "," USER "]",
        "[{\"role\":\"user\",\"content\":\"" TOOL "\"}," SYSTEM(MARK) "," USER "]"};
    bool shown = true;
    for (int i = 0; i < 2 && shown; i++) {
        size_t n = 0;
        char *text = render(t, forms[i], NULL, true, &n);
        const char *before = text != NULL ? memmem(text, n, TOOL, strlen(TOOL)) : NULL;
        shown = before != NULL &&
                memmem(before, n - (size_t)(before - text), MARK, strlen(MARK)) != NULL;
        free(text);
    }
    return shown;
}

static void probe_roles(struct chat_template *t, const char *source)
{
    t->can.system = shows(t, "[" SYSTEM(MARK) "," USER "]", NULL, true);
    t->two_systems = shows(t, "[" SYSTEM("s") "," SYSTEM(MARK) "," USER "]", NULL, true);
    t->later_system = shows_later_system(t);
    t->two_users = shows(t, "[" USER ",{\"role\":\"user\",\"content\":\"" MARK "\"}]", NULL,
                         true);
    t->two_answers = shows(
        t, "[" USER "," SAID ",{\"role\":\"assistant\",\"content\":\"" MARK "\"}," USER "]",
        NULL, true);
    t->developer = strstr(source, "developer") != NULL &&
                   shows(t, "[{\"role\":\"developer\",\"content\":\"" MARK "\"}," USER "]",
                         NULL, true);
}

static void probe_parts(struct chat_template *t)
{
#define PARTS "\"content\":[{\"type\":\"text\",\"text\":\"" MARK "\"}]"
    t->parts[CHAT_USER] = shows(t, "[{\"role\":\"user\"," PARTS "}]", NULL, false);
    t->parts[CHAT_SYSTEM] = shows(t, "[{\"role\":\"system\"," PARTS "}," USER "]", NULL,
                                  false);
    t->parts[CHAT_ASSISTANT] = shows(
        t, "[" USER ",{\"role\":\"assistant\"," PARTS "}," USER "]", NULL, false);
    t->can.parts = t->parts[CHAT_USER];
}

/* --- how the template shows calls ----------------------------------------------------- */

static int count(const char *text, size_t n, const char *what)
{
    int found = 0;
    const char *end = text + n;
    for (const char *at = text;
         at != NULL && (at = memmem(at, (size_t)(end - at), what, strlen(what))) != NULL;
         at += strlen(what))
        found++;
    return found;
}

/* A conversation with a call. Some templates show calls only if the result follows, or if there are
 * tools. */
struct shape {
    const char *content;  /* of the message with the call, JSON */
    const char *before;   /* messages before it, with a comma behind them */
    const char *more;     /* more members of it, with a comma before them */
    const char *id;       /* NULL: callid000 */
    bool is_text;         /* the arguments are JSON text */
    bool two;             /* a second call follows */
    bool result, offered; /* the result follows; there are tools */
    bool ask;             /* the beginning of an answer follows */
};

static char *one_call(const struct shape *s, const char *tool)
{
    return xasprintf("{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\","
                     "\"arguments\":%s}}",
                     s->id != NULL ? s->id : "callid000", tool,
                     s->is_text ? "\"{\\\"" ANSWER_SAMPLE_KEY "\\\": \\\"" MARK "\\\"}\""
                                : "{\"" ANSWER_SAMPLE_KEY "\":\"" MARK "\"}");
}

/* Returns the prompt of a conversation of this shape, or NULL if the template refuses it. */
static char *call_text(const struct chat_template *t, const struct shape *s, size_t *n)
{
    char *first = one_call(s, TOOL), *second = one_call(s, TOOL "2"), *done = NULL;
    if (s->result)
        done = xasprintf(",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"name\":\"" TOOL
                         "\",\"content\":\"x\"}",
                         s->id != NULL ? s->id : "callid000");
    char *messages = xasprintf(
        "[" USER ",%s{\"role\":\"assistant\",\"content\":%s%s,\"tool_calls\":[%s%s%s]}%s]",
        s->before != NULL ? s->before : "", s->content, s->more != NULL ? s->more : "",
        first, s->two ? "," : "", s->two ? second : "", done != NULL ? done : "");
    char *text = render(t, messages,
                        s->offered ? "[" DECLARE(TOOL) "," DECLARE(TOOL "2") "]" : NULL,
                        s->ask, n);
    free(messages);
    free(first);
    free(second);
    free(done);
    return text;
}

/* Returns whether the prompt shows the call's argument correctly: not as a dict that Python prints,
 * not as JSON text that was quoted once more, and without null content printed as None. If `also`
 * is not NULL, the prompt must show that text, too. */
static bool shows_call(const struct chat_template *t, const struct shape *s,
                       const char *also)
{
    size_t n = 0, n_empty = 0;
    struct shape without = *s;
    without.content = "\"\"";
    char *text = call_text(t, s, &n), *empty = call_text(t, &without, &n_empty);
    bool shown = text != NULL && count(text, n, MARK) > 0 &&
                 count(text, n, "'" ANSWER_SAMPLE_KEY "'") == 0 &&
                 count(text, n, "\\\"" ANSWER_SAMPLE_KEY) == 0 &&
                 count(text, n, "None") <= count(empty, n_empty, "None") &&
                 (also == NULL || count(text, n, also) > 0);
    free(text);
    free(empty);
    return shown;
}

/* Tries four conversations with the call of *s, and leaves in *s the first one in which the
 * template shows the call. Returns false if it shows the call in none. */
static bool finds_call(const struct chat_template *t, struct shape *s, const char *also)
{
    for (int i = 0; i < 4; i++) {
        s->ask = true;
        s->result = i % 2 == 1;
        s->offered = i >= 2;
        if (shows_call(t, s, also))
            return true;
    }
    return false;
}

/* Finds the form of tool calls that the template shows.  Arguments as objects are tried first: a
 * template that prints every value as JSON would quote JSON text a second time. */
static void probe_calls(struct chat_template *t, struct shape *found)
{
    for (int i = 0; i < 4 && !t->can.calls; i++) {
        t->text_arguments = i / 2 == 1;
        t->null_beside_calls = (i % 2 == 1) != t->can.parts;
        *found = (struct shape){.content = t->null_beside_calls ? "null" : "\"\"",
                                .is_text = t->text_arguments};
        t->can.calls = finds_call(t, found, NULL);
    }
    if (!t->can.calls)
        return;
    struct shape s = *found;
    s.content = "\"hcachesaid\"";
    t->can.calls_beside_text = finds_call(t, &s, NULL);
    t->text_beside_calls = finds_call(t, &s, "hcachesaid");
    s.content = found->content;
    s.before = "{\"role\":\"assistant\",\"content\":\"hcachesaid\"},";
    t->text_before_calls = finds_call(t, &s, "hcachesaid");
    /* a loop goes on behind the result; some templates count the roles */
    char *call = one_call(&s, TOOL);
    char *more = xasprintf(
        "%s{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[%s]}," DONE ",%s",
        s.before, s.content, call, s.before);
    s.before = more;
    t->text_before_calls = t->text_before_calls && finds_call(t, &s, "hcachesaid");
    free(call);
    free(more);
    s = *found;
    s.id = "call_0123456789abcdef";
    t->short_ids = !finds_call(t, &s, NULL);
    s = *found;
    s.two = true;
    t->single_calls = true;
    for (int i = 0; i < 4 && t->single_calls; i++) {
        size_t n = 0;
        s.result = i % 2 == 1;
        s.offered = i >= 2;
        char *text = call_text(t, &s, &n);
        t->single_calls = text == NULL || count(text, n, MARK) < 2;
        free(text);
    }
}

/* Finds whether the template shows results of tools, as a text and as parts. */
static void probe_results(struct chat_template *t, const struct shape *found)
{
    char *call = one_call(found, TOOL);
    static const char *const results[] = {
        RESULT("\"" MARK "\""), RESULT("[{\"type\":\"text\",\"text\":\"" MARK "\"}]")};
    for (int i = 0; i < 2; i++) {
        char *replaced = t->can.calls ? xstrdup(call) : NULL;
        /* the call's own argument must not count as the mark */
        char *at = replaced != NULL ? strstr(replaced, MARK) : NULL;
        if (at != NULL)
            memset(at, 'z', strlen(MARK));
        char *messages = replaced != NULL
                             ? xasprintf("[" USER ",{\"role\":\"assistant\",\"content\":%s,"
                                         "\"tool_calls\":[%s]},%s]",
                                         found->content, replaced, results[i])
                             : xasprintf("[" USER "," SAID ",%s]", results[i]);
        bool shown = shows(t, messages, NULL, i == 0) ||
                     shows(t, messages, "[" DECLARE(TOOL) "]", i == 0);
        if (i == 0)
            t->tool_results = shown;
        else
            t->parts[CHAT_TOOL] = shown;
        free(messages);
        free(replaced);
    }
    free(call);
}

/* --- thoughts ------------------------------------------------------------------------- */

/* Returns whether the template shows a message with these members, in a history, in a loop of calls
 * or as the last one. */
static bool shows_thought(const struct chat_template *t, const char *members)
{
    static const char *const forms[] = {
        "[" USER ",{\"role\":\"assistant\",\"content\":\"y\",%s}," USER "]",
        "[" USER ",{\"role\":\"assistant\",\"content\":\"\",%s,\"tool_calls\":[{\"id\":"
        "\"callid000\",\"type\":\"function\",\"function\":{\"name\":\"" TOOL
        "\",\"arguments\":{}}}]}," DONE "]",
        "[" USER ",{\"role\":\"assistant\",\"content\":\"y\",%s}]"};
    bool shown = false;
    for (int i = 0; i < 3 && !shown; i++) {
        char *messages = fill(forms[i], members);
        shown = shows(t, messages, i == 1 ? "[" DECLARE(TOOL) "]" : NULL, true);
        free(messages);
    }
    return shown;
}

/* Finds where the template shows thoughts, and whether also beside a text and a call. */
static void probe_thoughts(struct chat_template *t, const struct shape *found)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    for (int i = 0; i < 3 && t->thought_key == NULL; i++) {
        char *members = xasprintf("\"%s\":\"" MARK "\"", keys[i]);
        if (shows_thought(t, members))
            t->thought_key = keys[i];
        free(members);
    }
    if (t->thought_key != NULL) {
        char *more = xasprintf(",\"%s\":\"" MARK "\"", t->thought_key);
        struct shape s = *found;
        s.more = more;
        bool alone = finds_call(t, &s, NULL);
        s.content = "\"y\"";
        t->thought_or_text = alone && !finds_call(t, &s, NULL);
        free(more);
    }
    static const char part[] = "[" USER ",{\"role\":\"assistant\",\"content\":[{\"type\":"
                               "\"thinking\",\"thinking\":\"" MARK
                               "\"},{\"type\":\"text\",\"text\":\"y\"}]}," USER "]";
    t->thought_parts = t->thought_key == NULL && shows(t, part, NULL, false);
}

/* --- the syntax of answers ------------------------------------------------------------ */

/* Returns the sample of an answer. `text` is the prompt with the answer, and belongs to the sample
 * from now on; `asked` is the prompt without the answer, or NULL. */
static struct answer_sample sample(char *text, size_t n, const char *asked, size_t n_asked)
{
    size_t same = 0;
    while (text != NULL && asked != NULL && same < n && same < n_asked &&
           text[same] == asked[same])
        same++;
    return (struct answer_sample){.text = text, .n = n, .begin = same};
}

/* Returns the text that follows a sample's thought, up to the end of the closing tag and of the
 * blanks behind this tag. It is from malloc. NULL: no tag follows the thought closely. */
static char *thought_end(const struct thought_syntax *tags, const struct answer_sample *s)
{
    const char *end = s->text + s->n;
    const char *from = s->text != NULL ? memmem(s->text, s->n, MARK, strlen(MARK)) : NULL;
    if (from == NULL)
        return NULL;
    from += strlen(MARK);
    const char *to = memmem(from, (size_t)(end - from), tags->close, strlen(tags->close));
    if (to == NULL || to - from > 8)
        return NULL;
    to += strlen(tags->close);
    while (to < end && strchr(" \n", *to) != NULL)
        to++;
    return xasprintf("%.*s", (int)(to - from), from);
}

/* --- calls as text -------------------------------------------------------------------- */

static const struct call_syntax *syntax_of(const char *family)
{
    for (int i = 0; i < CALL_SYNTAXES; i++)
        if (strcmp(call_syntaxes[i].family, family) == 0)
            return &call_syntaxes[i];
    return NULL;
}

/* Returns whether the template shows calls that are written into the content, byte for byte, in a
 * loop of two calls. */
static bool shows_written(const struct chat_template *t)
{
    static const char sample[] = "[{\"function\":{\"name\":\"" TOOL
                                 "\",\"arguments\":{\"" ANSWER_SAMPLE_KEY "\":\"" MARK
                                 "\"}}}]";
    struct json *calls = NULL, *message = json_new_object();
    struct textbuf marked = {0}, plain = {0};
    size_t n = 0;
    (void)json_parse(&calls, sample, sizeof sample - 1, "sample", NULL);
    textbuf_addf(&marked, "y\n");
    bool good = chat_write_calls(&plain, t->syntax.calls, calls, false) &&
                chat_write_calls(&marked, t->syntax.calls, calls, true);
    json_put_string(message, "role", "assistant");
    json_put_bytes(message, "content", marked.p, marked.n);
    char *said = json_text(message, 0);
    char *messages = xasprintf("[" USER ",%s," USER ",%s," USER "]", said, said);
    char *text = good ? render(t, messages, NULL, true, &n) : NULL;
    good = text != NULL && plain.n > 0 && count(text, n, plain.p) == 2;
    free(text);
    free(messages);
    free(said);
    json_free(message);
    json_free(calls);
    textbuf_free(&plain);
    textbuf_free(&marked);
    return good;
}

/* Chooses how calls and tools reach the model where the template shows none. If the
 * model has tokens for calls, calls are written with them; otherwise a system message tells the
 * model what to write. */
static void probe_written(struct chat_template *t, const char *tokens)
{
    const struct call_syntax *own = t->syntax.calls, *has = NULL;
    if (own == NULL && tokens != NULL)
        has = call_syntax_in(tokens);
    if (has != NULL && chat_writes(has) && !has->is_bare && !t->can.calls)
        own = has;
    bool unread = t->syntax.calls == NULL, other = own == NULL;
    other = other || (!chat_writes(own) && !t->can.calls);
    if (other)
        own = syntax_of("hermes");
    t->syntax.calls = own;
    bool written = chat_writes(own) && shows_written(t);
    t->written_calls = written && (!t->can.calls || unread);
    t->native_calls = t->can.calls;
    t->written_beside_text = written && t->can.calls && !t->text_beside_calls &&
                             !t->text_before_calls;
    t->can.declared_tools = written && (other || !t->can.tools);
    if (unread && !t->written_calls)
        t->syntax.calls = NULL;
    t->can.calls = t->can.calls || t->written_calls;
    if (t->written_calls || t->written_beside_text)
        t->can.calls_beside_text = true;
}

/* Sets the members of t that depend on the tags of thoughts and calls in rendered answers. */
static void probe_syntax(struct chat_template *t, const char *source, struct shape s)
{
    size_t n = 0, n_asked = 0;
    const char *tools = s.offered ? "[" DECLARE(TOOL) "," DECLARE(TOOL "2") "]" : NULL;
    struct answer_samples samples = {0};
    char *asked = render(t, "[" USER "]", tools, true, &n_asked), *text;
    s.ask = false;
    if (t->can.calls) {
        text = call_text(t, &s, &n);
        samples.one = sample(text, n, asked, n_asked);
        s.two = true;
        text = call_text(t, &s, &n);
        samples.two = sample(text, n, asked, n_asked);
    }
    free(asked);
    if (t->thought_key != NULL) {
        char *messages = xasprintf(
            "[" USER ",{\"role\":\"assistant\",\"content\":\"y\",\"%s\":\"" MARK "\"}]",
            t->thought_key);
        text = render(t, messages, NULL, false, &n);
        samples.thought = sample(text, n, NULL, 0);
        free(messages);
    }
    text = render(t, "[" USER ",{\"role\":\"assistant\",\"content\":\"" MARK "\"}]", NULL,
                  false, &n);
    samples.plain = sample(text, n, NULL, 0);
    t->syntax = answer_find(source, &samples, &t->own);
    t->syntax.thought_end = t->thought_end = thought_end(&t->syntax.thoughts,
                                                         &samples.thought);
    t->no_thoughts = t->thought_key == NULL && !t->thought_parts &&
                     strstr(source, t->syntax.thoughts.close) != NULL;
    t->can.thoughts = t->thought_key != NULL || t->thought_parts ||
                      strstr(source, t->syntax.thoughts.open) != NULL;
    free((char *)(uintptr_t)samples.one.text);
    free((char *)(uintptr_t)samples.two.text);
    free((char *)(uintptr_t)samples.thought.text);
    free((char *)(uintptr_t)samples.plain.text);
}

void chat_probe(struct chat_template *t, const char *source, const char *tokens)
{
    struct shape found = {.content = "\"\""};
    size_t n = 0;
    char *plain = render(t, "[" USER "]", NULL, true, &n);
    char *tools = render(t, "[" USER "]", "[" DECLARE("other") "]", true, &n);
    char *bare = render(t, "[" USER "]",
                        "[{\"type\":\"function\",\"function\":{\"name\":\"other\","
                        "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]",
                        true, &n);
    t->needs_tools = plain == NULL && tools != NULL;
    t->needs_descriptions = bare == NULL && tools != NULL;
    free(plain);
    free(tools);
    free(bare);
    probe_roles(t, source);
    probe_parts(t);
    t->can.tools = shows(t, "[" USER "]", "[" DECLARE(MARK) "]", true);
    probe_calls(t, &found);
    probe_results(t, &found);
    probe_thoughts(t, &found);
    probe_syntax(t, source, found);
    probe_written(t, tokens);
}
