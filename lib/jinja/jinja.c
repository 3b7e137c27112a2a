/* jinja.c - the interpreter's public functions, its limits and its memory.
 *
 * It owns the arenas, the limits, and the way out after a failure (jinja_impl.h).  The arena of a
 * compilation lives as long as the template; that of a render ends with it. */
#include "jinja/jinja_impl.h"

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct jinja_template {
    struct arena arena;
    struct jinja_limits limits;
    char *name;
    const struct jnode *root;
};

struct jinja_limits jinja_default_limits(void)
{
    return (struct jinja_limits){
        .max_steps = 20 * 1000 * 1000,
        .max_depth = 500,
        .max_source_bytes = 1 << 20,
        .max_output_bytes = 64 << 20,
        .max_memory_bytes = 512 << 20,
    };
}

/* --- failing ------------------------------------------------------------------------ */

void jinja_fail(struct jinja *j, int code, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    j->code = err_set(j->err, code, "%s:%d: %s", j->name, j->line, msg);
    longjmp(j->escape, 1);
}

void jinja_raise(struct jinja *j, const char *s, size_t n)
{
    char text[500];
    n = n < sizeof text ? n : sizeof text;
    for (size_t i = 0; i < n; i++)
        text[i] = s[i] != 0 ? s[i] : ' ';
    j->code = n > 0 ? err_set(j->err, ERR_USAGE, "%.*s", (int)n, text)
                    : err_set(j->err, ERR_USAGE, "%s:%d: an exception without a message",
                              j->name, j->line);
    longjmp(j->escape, 1);
}

/* --- the bounds --------------------------------------------------------------------- */

void *jinja_alloc(struct jinja *j, size_t n)
{
    void *p = arena_alloc(j->arena, n);
    if (p == NULL)
        jinja_fail(j, ERR_LIMIT, "needs more than %zu bytes of memory",
                   j->limits.max_memory_bytes);
    return p;
}

void *jinja_calloc(struct jinja *j, size_t n, size_t size)
{
    CHECK(size != 0);
    if (n > SIZE_MAX / size)
        jinja_fail(j, ERR_LIMIT, "needs more than %zu bytes of memory",
                   j->limits.max_memory_bytes);
    return memset(jinja_alloc(j, n * size), 0, n * size);
}

void jinja_charge(struct jinja *j, size_t bytes)
{
    j->steps += 1 + bytes / 64;
    if (j->steps > j->limits.max_steps)
        jinja_fail(j, ERR_LIMIT, "takes more than %llu steps",
                   (unsigned long long)j->limits.max_steps);
}

void jinja_enter(struct jinja *j)
{
    if (++j->depth > j->limits.max_depth)
        jinja_fail(j, ERR_LIMIT, "nested deeper than %u levels", j->limits.max_depth);
}

void jinja_leave(struct jinja *j)
{
    CHECK(j->depth > 0);
    j->depth--;
}

/* --- text that grows ---------------------------------------------------------------- */

/* In an arena of its own a text grows in place: blocks whose size is a multiple of the arena's
 * alignment follow each other without a gap. */
static void jbuf_extend(struct jinja *j, struct jbuf *b, size_t n)
{
    enum { STEP = 4096 };
    size_t more = (n / STEP + 1) * STEP;
    char *p = arena_alloc(b->own, more);
    if (p == NULL)
        jinja_fail(j, ERR_LIMIT, "writes more than %zu bytes", j->limits.max_output_bytes);
    b->s = b->cap == 0 ? p : b->s;
    CHECK(p == b->s + b->cap);
    b->cap += more;
}

void jbuf_put(struct jinja *j, struct jbuf *b, const char *s, size_t n)
{
    jinja_charge(j, n);
    if (b->own != NULL && n > b->cap - b->n)
        jbuf_extend(j, b, n - (b->cap - b->n));
    if (n > b->cap - b->n) {
        size_t cap = MAX(b->cap, 256);
        while (cap - b->n < n) {
            if (cap > j->limits.max_memory_bytes)
                jinja_fail(j, ERR_LIMIT, "needs more than %zu bytes of memory",
                           j->limits.max_memory_bytes);
            cap *= 2;
        }
        char *grown = jinja_alloc(j, cap);
        if (b->n != 0)
            memcpy(grown, b->s, b->n);
        if (j->trace != NULL)
            jtrace_copied(j->trace, grown, b->s, b->n);
        b->s = grown;
        b->cap = cap;
    }
    if (n != 0)
        memcpy(b->s + b->n, s, n);
    if (j->trace != NULL)
        jtrace_copied(j->trace, b->s + b->n, s, n);
    b->n += n;
}

void jbuf_inherit(struct jinja *j, struct jbuf *b, size_t n, const char *from)
{
    for (size_t i = b->n - n; j->trace != NULL && i < b->n; i++)
        jtrace_copied(j->trace, b->s + i, from, 1);
}

void jbuf_puts(struct jinja *j, struct jbuf *b, const char *s)
{
    jbuf_put(j, b, s, strlen(s));
}

void jbuf_printf(struct jinja *j, struct jbuf *b, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* callers bound the length of the text that they print */
    CHECK(n >= 0 && (size_t)n < sizeof text);
    jbuf_put(j, b, text, (size_t)n);
}

/* --- compile ------------------------------------------------------------------------ */

/* Parses the source into t. Returns 0 or the code of a failure: every call after the setjmp may
 * jump back to it. */
static int parse_into(struct jinja *j, struct jinja_template *t, struct jstr source)
{
    if (setjmp(j->escape) != 0)
        return j->code;
    size_t bad = utf8_check(source.s, source.n);
    if (bad != source.n)
        jinja_fail(j, ERR_FORMAT, "byte %zu is not valid UTF-8", bad);
    struct jtokens tokens = {0};
    jinja_lex(j, source, &tokens);
    t->root = jinja_parse(j, &tokens);
    return 0;
}

int jinja_compile(struct jinja_template **out, const char *source, size_t n,
                  const char *name, const struct jinja_limits *limits, struct err *err)
{
    *out = NULL;
    struct jinja_limits l = limits != NULL ? *limits : jinja_default_limits();
    if (n > l.max_source_bytes)
        return err_set(err, ERR_LIMIT, "%s: has %zu bytes, more than %zu", name, n,
                       l.max_source_bytes);
    struct jinja_template *t = xcalloc(1, sizeof *t);
    t->limits = l;
    t->name = xstrdup(name);
    int rc = arena_init(&t->arena, l.max_memory_bytes);
    if (rc != 0) {
        rc = err_set(err, rc, "%s: no address space for %zu bytes", name,
                     l.max_memory_bytes);
        goto done;
    }
    struct jinja j = {
        .arena = &t->arena, .err = err, .name = t->name, .line = 1, .limits = l};
    rc = parse_into(&j, t, (struct jstr){source, n});
done:
    if (rc == 0)
        *out = t;
    else
        jinja_destroy(t);
    return rc;
}

void jinja_destroy(struct jinja_template *t)
{
    if (t == NULL)
        return;
    if (t->arena.base != NULL)
        arena_deinit(&t->arena);
    free(t->name);
    free(t);
}

/* --- render ------------------------------------------------------------------------- */

static void define_variables(struct jinja *j, struct jscope *globals,
                             const struct jinja_input *in)
{
    for (const struct jfunc *f = jinja_globals; f->name != NULL; f++) {
        if (strcmp(f->name, "strftime_now") == 0 && in->now == NULL)
            continue;
        struct jval v = {.kind = J_FUNC, .func = f};
        jscope_set(j, globals, (struct jstr){f->name, strlen(f->name)}, v);
    }
    struct json_iter it = json_begin(in->vars);
    while (json_next(&it))
        jscope_set(j, globals, (struct jstr){it.key, strlen(it.key)},
                   jval_from_json(j, it.value));
    for (size_t i = 0; i < in->n_extra; i++) {
        const struct jinja_var *v = &in->extra[i];
        jscope_set(j, globals, (struct jstr){v->name, strlen(v->name)},
                   v->is_foreign ? jval_from_foreign(j, v->value, i == 0)
                                 : jval_from_json(j, v->value));
    }
}

static int run(struct jinja *j, const struct jinja_template *t,
               const struct jinja_input *in, struct jbuf *out)
{
    if (setjmp(j->escape) != 0)
        return j->code;
    j->out = out;
    struct jscope globals = {0};
    define_variables(j, &globals, in);
    jinja_exec(j, &globals, t->root);
    return 0;
}

int jinja_render(const struct jinja_template *t, const struct jinja_input *in, char **text,
                 size_t *n, struct err *err)
{
    struct jinja_input untraced = *in;
    uint8_t *foreign;
    untraced.traces = false;
    untraced.n_marks = 0;
    return jinja_render_traced(t, &untraced, text, n, &foreign, err);
}

/* Copies the output and its trace bits for the caller. */
static int hand_over(const struct jinja_template *t, const struct jbuf *out,
                     const struct jtrace *trace, char **text, size_t *n, uint8_t **foreign,
                     struct err *err)
{
    bool is_traced = trace->output.bits[0] != NULL;
    *text = mem_try(out->n + 1);
    if (*text != NULL && is_traced) {
        *foreign = jtrace_bits(trace, out->n);
        jtrace_marks(trace, out->n);
    }
    if (*text == NULL || (is_traced && *foreign == NULL)) {
        free(*text);
        *text = NULL;
        return err_set(err, -ENOMEM, "%s: no memory for %zu bytes of text", t->name,
                       out->n);
    }
    if (out->n != 0)
        memcpy(*text, out->s, out->n);
    (*text)[out->n] = 0;
    *n = out->n;
    return 0;
}

/* The values are freed before the output is copied, so that a long text exists at most twice. */
int jinja_render_traced(const struct jinja_template *t, const struct jinja_input *in,
                        char **text, size_t *n, uint8_t **foreign, struct err *err)
{
    /* The output's limit is checked after each print, so the arena has room for one print more. */
    enum { LAST_PRINT = 1 << 20 };
    *text = NULL;
    *n = 0;
    *foreign = NULL;
    struct arena arena = {0}, output = {0};
    struct jtrace trace = {0};
    int rc = arena_init(&arena, t->limits.max_memory_bytes);
    if (rc == 0)
        rc = arena_init(&output, t->limits.max_output_bytes + LAST_PRINT);
    if (rc == 0 && in->traces)
        rc = jtrace_init(&trace, &arena, &output, in);
    if (rc != 0) {
        rc = err_set(err, rc, "%s: no address space for %zu bytes", t->name,
                     t->limits.max_memory_bytes);
        goto done;
    }
    struct jbuf out = {.own = &output};
    struct jinja j = {.arena = &arena,
                      .err = err,
                      .name = t->name,
                      .line = 1,
                      .limits = t->limits,
                      .now = in->now,
                      .shown_time = in->shown_time,
                      .trace = in->traces ? &trace : NULL};
    rc = run(&j, t, in, &out);
    if (in->traces)
        jtrace_end_values(&trace);
    arena_deinit(&arena);
    if (rc == 0)
        rc = hand_over(t, &out, &trace, text, n, foreign, err);
done:
    if (in->traces)
        jtrace_deinit(&trace);
    if (output.base != NULL)
        arena_deinit(&output);
    if (arena.base != NULL)
        arena_deinit(&arena);
    return rc;
}
