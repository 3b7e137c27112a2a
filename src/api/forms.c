/* forms.c - see forms.h. */
#include "api/forms.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "base/json.h"
#include "api/hcache_impl.h"

enum { N_KEPT = 8, MAX_FORM_BYTES = 4 << 20 };

struct kept {
    struct hcache_form_opts o; /* its texts belong to the entry */
    enum grammar_thought thought;
    struct form *form; /* NULL: the entry is empty */
    char *unenforced;
    uint64_t last_use;
};

struct forms {
    const struct tokenizer *tokenizer;
    struct answer_syntax syntax; /* how the model writes thoughts and calls */
    int32_t n_vocab;
    pthread_mutex_t lock; /* protects all below */
    struct vocab *vocab;  /* made at the first form */
    uint64_t clock;
    struct kept kept[N_KEPT];
};

struct forms *forms_create(const struct tokenizer *t, const struct answer_syntax *syntax,
                           int32_t n_vocab)
{
    struct forms *f = xcalloc(1, sizeof *f);
    f->tokenizer = t;
    f->syntax = *syntax;
    f->n_vocab = n_vocab;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

static void kept_clear(struct kept *k)
{
    form_release(k->form);
    free((char *)k->o.text);
    free((char *)k->o.only);
    free((char *)k->o.tools);
    free(k->unenforced);
    *k = (struct kept){0};
}

void forms_destroy(struct forms *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < N_KEPT; i++)
        kept_clear(&f->kept[i]);
    vocab_destroy(f->vocab);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static const char *bytes_of(void *arg, int32_t id, size_t *n, bool *special)
{
    const struct forms *f = arg;
    if (id >= tokenizer_size(f->tokenizer))
        return NULL;
    *special = tokenizer_is_special(f->tokenizer, id);
    return tokenizer_bytes(f->tokenizer, id, n);
}

static int need_vocab(struct forms *f, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    if (f->vocab == NULL)
        rc = vocab_create(&f->vocab, f->n_vocab, bytes_of, f, err);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static bool same_text(const char *a, const char *b)
{
    return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

static bool is_form(const struct kept *k, const struct hcache_form_opts *o,
                    enum grammar_thought thought)
{
    return k->form != NULL && k->o.kind == o->kind && k->o.loose == o->loose &&
           k->o.many == o->many && k->o.may_talk == o->may_talk && k->thought == thought &&
           k->o.n == o->n && memcmp(k->o.text, o->text, o->n) == 0 &&
           same_text(k->o.only, o->only) && same_text(k->o.tools, o->tools);
}

/* Returns a share of a form that is kept, or NULL. */
static struct form *find(struct forms *f, const struct hcache_form_opts *o,
                         enum grammar_thought thought, char **unenforced)
{
    struct form *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < N_KEPT && found == NULL; i++) {
        struct kept *k = &f->kept[i];
        if (!is_form(k, o, thought))
            continue;
        k->last_use = ++f->clock;
        found = form_share(k->form);
        *unenforced = k->unenforced == NULL ? NULL : xstrdup(k->unenforced);
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

/* Keeps a share of the form in place of the one that was used least recently. */
static void keep(struct forms *f, const struct hcache_form_opts *o,
                 enum grammar_thought thought, struct form *form, const char *unenforced)
{
    struct kept *oldest = &f->kept[0];
    pthread_mutex_lock(&f->lock);
    for (int i = 1; i < N_KEPT; i++)
        if (f->kept[i].last_use < oldest->last_use)
            oldest = &f->kept[i];
    kept_clear(oldest);
    oldest->o = *o;
    oldest->o.text = xmemdup(o->text, o->n);
    oldest->o.only = o->only == NULL ? NULL : xstrdup(o->only);
    oldest->o.tools = o->tools == NULL ? NULL : xstrdup(o->tools);
    oldest->o.prompt_end = NULL;
    oldest->thought = thought;
    oldest->form = form_share(form);
    oldest->unenforced = unenforced == NULL ? NULL : xstrdup(unenforced);
    oldest->last_use = ++f->clock;
    pthread_mutex_unlock(&f->lock);
}

/* Parses a JSON value of any kind: the only element of the array *root. */
static int parse_value(const char *value, size_t n, const char *what, struct json **root,
                       struct err *err)
{
    char *text = mem_try(n + 2);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory for a schema of %zu bytes", n);
    text[0] = '[';
    memcpy(text + 1, value, n);
    text[n + 1] = ']';
    int rc = json_parse(root, text, n + 2, what, err);
    free(text);
    if (rc == 0 && json_count(*root) != 1)
        rc = err_set(err, ERR_USAGE, "%s must be one JSON value", what);
    return rc == ERR_FORMAT ? err_set(err, ERR_USAGE, "%s", err->msg) : rc;
}

/* --- tags ----------------------------------------------------------------------------------- */

/* Everything that a source points to. */
struct parts {
    struct json *root;       /* the parsed text */
    struct json *tools_root; /* the parsed tools that may be called instead */
    struct json *any_object; /* {"type": "object"} */
    const char **texts;
    struct grammar_tool *tools;
    struct grammar_calls calls;
    char *tags[24];
    int n_tags;
};

static void parts_free(struct parts *p)
{
    json_free(p->root);
    json_free(p->tools_root);
    json_free(p->any_object);
    free(p->texts);
    free(p->tools);
    for (int i = 0; i < p->n_tags; i++)
        free(p->tags[i]);
}

/* Returns a tag's bytes. The longest special token at each place is that token. */
static struct grammar_tag tag_of(const struct forms *f, struct parts *p, const char *text)
{
    struct textbuf b = {0};
    size_t n = text == NULL ? 0 : strlen(text), k = 1;
    for (size_t i = 0; i < n; i += k) {
        char id_bytes[VOCAB_SPECIAL_BYTES];
        int32_t id = tokenizer_special_at(f->tokenizer, text + i, n - i, &k);
        if (id >= 0) {
            vocab_special(id, id_bytes);
            textbuf_add(&b, id_bytes, sizeof id_bytes);
        } else {
            textbuf_add(&b, text + i, k = 1);
        }
    }
    CHECK(p->n_tags < (int)(sizeof p->tags / sizeof *p->tags));
    p->tags[p->n_tags++] = b.p;
    return (struct grammar_tag){.at = b.p, .n = b.n};
}

/* Returns whether the form begins behind a thought. */
static enum grammar_thought thought_of(const struct forms *f,
                                       const struct hcache_form_opts *o)
{
    const struct thought_syntax *t = &f->syntax.thoughts;
    const char *source = tokenizer_chat_template(f->tokenizer);
    if (o->prompt_end == NULL || t->open == NULL || t->close == NULL)
        return GRAMMAR_NO_THOUGHT;
    if (answer_thought_begun(&f->syntax, o->prompt_end))
        return GRAMMAR_IN_THOUGHT;
    bool closed = answer_ends_with(o->prompt_end, t->close); /* the template has ended it */
    return !closed && source != NULL && strstr(source, t->close) != NULL
               ? GRAMMAR_MAY_THINK
               : GRAMMAR_NO_THOUGHT;
}

/* --- sources ---------------------------------------------------------------------------------- */

static int read_choices(const struct json *v, struct parts *p, struct grammar_source *s,
                        struct err *err)
{
    s->n = json_count(v);
    s->texts = p->texts = mem_try_calloc(s->n + 1, sizeof *p->texts);
    if (p->texts == NULL)
        return err_set(err, -ENOMEM, "no memory for a list of %zu choices", s->n);
    if (json_kind(v) != JSON_KIND_ARRAY)
        return err_set(err, ERR_USAGE, "choices must be a list of texts");
    for (size_t i = 0; i < s->n; i++) {
        p->texts[i] = json_string_of(json_at(v, i), NULL);
        if (p->texts[i] == NULL)
            return err_set(err, ERR_USAGE, "choice %zu is no text", i + 1);
    }
    return 0;
}

static bool is_strict(const struct json *tool)
{
    const struct json *inner = json_member(tool, "function");
    bool strict = false;
    (void)json_bool_of(json_member(inner != NULL ? inner : tool, "strict"), &strict);
    return strict;
}

static bool are_strict(const struct json *tools)
{
    for (size_t i = 0; i < json_count(tools); i++)
        if (!is_strict(json_at(tools, i)))
            return false;
    return true;
}

/* Adds the tools of the list v that may be called to p; only != NULL: the one of that name. A tool
 * is {"name", "parameters"}, the same inside {"function"}, or {"name", "input_schema"}. If the
 * answer may be free text instead (may_talk), tools that are not strict take any arguments. */
static int read_tools(const struct json *v, const char *only, bool may_talk,
                      struct parts *p, struct err *err)
{
    size_t n = json_count(v);
    p->calls.tools = p->tools = mem_try_calloc(n + 1, sizeof *p->tools);
    if (p->tools == NULL)
        return err_set(err, -ENOMEM, "no memory for %zu tools", n);
    for (size_t i = 0; i < n; i++) {
        const struct json *tool = json_at(v, i), *inner = json_member(tool, "function");
        inner = json_kind(inner) == JSON_KIND_OBJECT ? inner : tool;
        const char *name = json_string_of(json_member(inner, "name"), NULL);
        const struct json *schema = json_member(inner, "parameters");
        if (schema == NULL)
            schema = json_member(inner, "input_schema");
        if (json_kind(schema) != JSON_KIND_OBJECT && json_kind(schema) != JSON_KIND_NULL)
            return err_set(err, ERR_USAGE, "the parameters of tool %zu must be a schema",
                           i + 1);
        if (name == NULL || (only != NULL && strcmp(name, only) != 0))
            continue;
        bool none = json_kind(schema) == JSON_KIND_NULL || (may_talk && !is_strict(tool));
        p->tools[p->calls.n_tools++] = (struct grammar_tool){
            .name = name, .schema = none ? NULL : schema};
    }
    if (p->calls.n_tools == 0)
        return err_set(err, ERR_USAGE,
                       only != NULL ? "no tool has the name '%s'" : "no tool is offered",
                       only);
    return 0;
}

/* Fills in the model's own syntax of calls. */
static int read_syntax(const struct forms *f, const struct hcache_form_opts *o,
                       struct parts *p, struct err *err)
{
    static const char any_object[] = "{\"type\":\"object\"}";
    const struct call_syntax *c = f->syntax.calls;
    if (c == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "the model's template shows no syntax of tool calls");
    static const enum grammar_call_body bodies[] = {
        [CALL_OBJECT] = GRAMMAR_CALL_OBJECT, [CALL_JSON] = GRAMMAR_CALL_JSON,
        [CALL_TAGS] = GRAMMAR_CALL_TAGS,     [CALL_BRACES] = GRAMMAR_CALL_BRACES,
        [CALL_PYTHON] = GRAMMAR_CALL_PYTHON, [CALL_CHANNEL] = GRAMMAR_CALL_JSON};
    struct grammar_calls *k = &p->calls;
    bool channel = c->body == CALL_CHANNEL,
         talks = o->kind == HCACHE_FORM_CALLS && o->may_talk;
    k->body = bodies[c->body];
    k->section = tag_of(f, p, c->section);
    k->section_end = tag_of(f, p, c->section_end);
    char open[128];
    const char *skip = c->skip_to != NULL ? c->skip_to : "";
    snprintf(open, sizeof open, "%s%s",
             c->is_bare        ? ""
             : channel         ? "<|channel|>commentary to=functions."
             : c->open != NULL ? c->open
                               : "",
             skip);
    k->open = tag_of(f, p, open);
    k->name_end = tag_of(f, p, channel ? " <|constrain|>json<|message|>" : c->name_end);
    k->close = tag_of(f, p, channel ? NULL : c->close); /* the tag ends the answer */
    k->quote = tag_of(f, p, c->quote);
    k->close_more = tag_of(f, p, c->close_more);
    k->key_open = tag_of(f, p, c->key_open);
    k->key_end = tag_of(f, p, c->key_end);
    k->key_skip = tag_of(f, p, c->key_skip);
    k->value_end = tag_of(f, p, c->value_end);
    k->name_key = c->name_key;
    k->arguments_key = c->arguments_key;
    k->is_list = (c->is_list && c->body == CALL_OBJECT) || c->body == CALL_PYTHON;
    k->is_tight = channel || c->body == CALL_BRACES;
    k->value_on_lines = c->value_on_lines;
    k->many = o->many && !c->is_bare && !channel;
    k->may_talk = talks;
    if (channel) { /* the name of the tool stands in front of the channel, or behind it */
        struct grammar_tag to = tag_of(f, p, " to=functions.");
        k->also[0] = (struct grammar_spelling){k->open, tag_of(f, p, " json<|message|>")};
        k->also[1] = (struct grammar_spelling){
            to, tag_of(f, p, "<|channel|>commentary <|constrain|>json<|message|>")};
        k->also[2] = (struct grammar_spelling){
            to, tag_of(f, p, "<|channel|>commentary json<|message|>")};
        k->think = tag_of(f, p, f->syntax.thoughts.open);
        k->say[0] = tag_of(f, p, "<|channel|>final<|message|>");
        k->say[1] = tag_of(f, p, "<|channel|>commentary<|message|>");
        k->message_end = tag_of(f, p, "<|end|><|start|>assistant");
    }
    int rc = json_parse(&p->any_object, any_object, sizeof any_object - 1, "schema", err);
    k->any_object = p->any_object;
    return rc;
}

/* Reads the calls that an answer may make instead of having its form: s->calls. Where no grammar
 * describes the calls, sets s->call_head: any text may follow the tag that begins a call. */
static int read_other(const struct forms *f, const struct hcache_form_opts *o,
                      struct parts *p, struct grammar_source *s, struct err *err)
{
    const struct call_syntax *c = f->syntax.calls;
    const struct json *tools;
    if (o->tools == NULL || c == NULL)
        return 0;
    int rc = parse_value(o->tools, strlen(o->tools), "the list of tools", &p->tools_root,
                         err);
    if (rc != 0)
        return rc;
    tools = json_at(p->tools_root, 0);
    bool own = c->body == CALL_TAGS || c->body == CALL_BRACES || c->body == CALL_PYTHON;
    if (own && !are_strict(tools)) {
        s->call_head = tag_of(f, p, c->section != NULL ? c->section : c->open);
        return 0;
    }
    s->calls = &p->calls;
    rc = read_syntax(f, o, p, err);
    return rc != 0 ? rc : read_tools(tools, NULL, true, p, err);
}

/* Sets the tags between which the answer's thought stands, and those before its text. */
static void set_thought(const struct forms *f, bool may_talk, struct parts *p,
                        struct grammar_source *s)
{
    bool channels = f->syntax.calls != NULL && f->syntax.calls->body == CALL_CHANNEL;
    if (s->thought == GRAMMAR_NO_THOUGHT)
        return;
    s->thought_open = tag_of(f, p, f->syntax.thoughts.open);
    s->thought_close = tag_of(
        f, p, channels ? "<|end|><|start|>assistant" : f->syntax.thoughts.close);
    if (channels && may_talk && s->thought == GRAMMAR_MAY_THINK)
        s->thought = GRAMMAR_NO_THOUGHT; /* thoughts are messages like others */
    else if (channels)
        s->text_open = tag_of(f, p, "<|channel|>final<|message|>");
}

/* Compiles the grammar of a form. `loose` gets the keywords that it leaves out, if o->loose. */
static int compile(const struct forms *f, const struct hcache_form_opts *o,
                   enum grammar_thought thought, struct textbuf *loose,
                   struct grammar **out, struct err *err)
{
    static const enum grammar_kind kinds[] = {
        [HCACHE_FORM_SCHEMA] = GRAMMAR_SCHEMA, [HCACHE_FORM_GBNF] = GRAMMAR_GBNF,
        [HCACHE_FORM_REGEX] = GRAMMAR_REGEX,   [HCACHE_FORM_CHOICE] = GRAMMAR_CHOICE,
        [HCACHE_FORM_CALLS] = GRAMMAR_CALLS,
    };
    struct parts p = {0};
    struct grammar_source s = {.kind = kinds[o->kind],
                               .text = o->text,
                               .n = o->n,
                               .calls = o->kind == HCACHE_FORM_CALLS ? &p.calls : NULL,
                               .thought = thought,
                               .loose = o->loose ? loose : NULL};
    int rc = 0;
    bool calls = o->kind == HCACHE_FORM_CALLS;
    if (o->kind != HCACHE_FORM_GBNF && o->kind != HCACHE_FORM_REGEX)
        rc = parse_value(o->text, o->n,
                         calls                           ? "the list of tools"
                         : o->kind == HCACHE_FORM_CHOICE ? "the list of choices"
                                                         : "the JSON schema",
                         &p.root, err);
    const struct json *v = json_at(p.root, 0);
    s.schema = v;
    if (rc == 0 && o->kind == HCACHE_FORM_CHOICE)
        rc = read_choices(v, &p, &s, err);
    if (rc == 0 && calls)
        rc = read_syntax(f, o, &p, err);
    if (rc == 0 && calls)
        rc = read_tools(v, o->only, o->may_talk, &p, err);
    bool json = p.calls.body == GRAMMAR_CALL_OBJECT || p.calls.body == GRAMMAR_CALL_JSON;
    bool mixed = calls && o->may_talk && !json && !are_strict(v);
    bool bare = calls && f->syntax.calls != NULL && f->syntax.calls->is_bare;
    if (rc == 0 && calls && o->may_talk && (mixed || bare))
        rc = err_set(err, ERR_UNSUPPORTED,
                     "strict tools cannot be enforced in the syntax of %s beside text",
                     f->syntax.calls->family);
    if (rc == 0 && !calls)
        rc = read_other(f, o, &p, &s, err);
    set_thought(f, calls && o->may_talk, &p, &s);
    if (rc == 0)
        rc = grammar_compile(out, &s, err);
    parts_free(&p);
    return rc;
}

/* Sets *out to a share of the form, and *unenforced (from malloc) to the names that were left out,
 * or NULL. Returns the errors of hcache_form_create. */
static int forms_get(struct forms *f, const struct hcache_form_opts *o, struct form **out,
                     char **unenforced, struct err *err)
{
    struct textbuf loose = {0};
    struct grammar *g;
    *unenforced = NULL;
    if ((unsigned)o->kind > HCACHE_FORM_CALLS)
        return err_set(err, ERR_USAGE, "unknown kind of form %d", (int)o->kind);
    if (o->n > MAX_FORM_BYTES)
        return err_set(err, ERR_LIMIT, "a form has %zu bytes; at most %d are allowed", o->n,
                       MAX_FORM_BYTES);
    int rc = need_vocab(f, err);
    if (rc != 0)
        return rc;
    enum grammar_thought thought = thought_of(f, o);
    *out = find(f, o, thought, unenforced);
    if (*out != NULL)
        return 0;
    rc = compile(f, o, thought, &loose, &g, err);
    if (rc == 0) {
        *out = form_create(g, f->vocab);
        if (*out == NULL)
            rc = err_set(err, -ENOMEM, "no memory for the form of an answer");
    }
    if (rc == 0)
        keep(f, o, thought, *out, loose.p);
    if (rc == 0 && loose.p != NULL)
        *unenforced = xstrdup(loose.p);
    textbuf_free(&loose);
    return rc;
}

int hcache_form_create(struct hcache *h, const struct hcache_form_opts *o,
                       struct hcache_form **out, char **unenforced, struct hcache_err *err)
{
    struct form *form = NULL;
    char *names = NULL;
    *out = NULL;
    if (h->forms == NULL)
        return err_set(hcache_inner(err), ERR_UNSUPPORTED,
                       "the model has no tokenizer, so its answers cannot have a form");
    int rc = forms_get(h->forms, o, &form, &names, hcache_inner(err));
    if (rc != 0)
        return rc;
    *out = xcalloc(1, sizeof **out);
    (*out)->form = form;
    if (unenforced != NULL)
        *unenforced = names;
    else
        free(names);
    return 0;
}

void hcache_form_free(struct hcache_form *f)
{
    if (f == NULL)
        return;
    form_release(f->form);
    free(f);
}
