/* jinja_exec.c - runs statements and prints text: scopes, loops, macros.
 *
 * Scopes are Jinja's: a loop's body (a new scope for each item), a macro, a captured block and a
 * `with` have their own scope; an `if` does not.  `set` writes to the innermost scope, so a
 * variable set inside a loop is gone after it (namespace() avoids this).  A macro sees the scope of
 * its definition, in its state at the time of the call. */
#include "jinja/jinja_impl.h"

#include <string.h>

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow exec_list(struct jinja *j, struct jscope *s, const struct jnode *n);

/* --- scopes ------------------------------------------------------------------------- */

static struct jvar *find_var(struct jinja *j, const struct jscope *s, struct jstr name)
{
    size_t passed = 0;
    struct jvar *v = s->vars;
    for (; v != NULL && !jstr_equal(v->name, name); v = v->next)
        passed++;
    if (passed >= 8)
        jinja_charge(j, passed * 8);
    return v;
}

struct jval *jscope_find(struct jinja *j, const struct jscope *s, struct jstr name)
{
    for (; s != NULL; s = s->up) {
        struct jvar *v = find_var(j, s, name);
        if (v != NULL)
            return &v->value;
    }
    return NULL;
}

void jscope_set(struct jinja *j, struct jscope *s, struct jstr name, struct jval value)
{
    struct jvar *v = find_var(j, s, name);
    if (v == NULL) {
        v = jinja_alloc(j, sizeof *v);
        *v = (struct jvar){.name = name, .next = s->vars};
        s->vars = v;
    }
    v->value = value;
}

static struct jscope *scope_open(struct jinja *j, struct jscope *up, const struct jnode *n)
{
    struct jscope *s = jinja_alloc(j, sizeof *s);
    *s = (struct jscope){.up = up};
    for (size_t i = 0; n->plan != NULL && i < n->plan->n; i++)
        jscope_set(j, s, n->plan->hidden[i], (struct jval){.kind = J_MISSING});
    return s;
}

/* --- assignment --------------------------------------------------------------------- */

static void assign(struct jinja *j, struct jscope *s, const struct jnode *target,
                   struct jval value);

static void unpack(struct jinja *j, struct jscope *s, const struct jnode *targets,
                   const struct jval *value)
{
    size_t want = 0, i = 0;
    for (const struct jnode *t = targets; t != NULL; t = t->next)
        want++;
    if (value->kind == J_UNDEF || !jval_iterable(value))
        jinja_fail(j, ERR_MISMATCH, "cannot unpack '%s' object", jval_type(value));
    const struct jseq *q = jval_items(j, value);
    if (q->n != want)
        jinja_fail(j, ERR_MISMATCH, "%s values to unpack (expected %zu, got %zu)",
                   q->n < want ? "not enough" : "too many", want, q->n);
    for (const struct jnode *t = targets; t != NULL; t = t->next)
        assign(j, s, t, q->at[i++]);
}

static struct jval *namespace_of(struct jinja *j, struct jscope *s,
                                 const struct jnode *target)
{
    struct jval *ns = jscope_find(j, s, target->name);
    if (ns == NULL || ns->kind != J_NS)
        jinja_fail(j, ERR_MISMATCH, "cannot assign attribute on non-namespace object");
    return ns;
}

static void assign(struct jinja *j, struct jscope *s, const struct jnode *target,
                   struct jval value)
{
    if (target->kind == N_NAME) {
        jscope_set(j, s, target->name, value);
    } else if (target->kind == N_TUPLE) {
        jinja_enter(j);
        unpack(j, s, target->a, &value);
        jinja_leave(j);
    } else {
        jdict_put(j, namespace_of(j, s, target)->dict, target->value, value);
    }
}

/* --- output ------------------------------------------------------------------------- */

static void emit(struct jinja *j, const struct jval *v)
{
    size_t before = j->out->n;
    jval_print(j, j->out, v);
    j->output_bytes += j->out->n - before;
    if (j->output_bytes > j->limits.max_output_bytes)
        jinja_fail(j, ERR_LIMIT, "prints more than %zu bytes", j->limits.max_output_bytes);
}

/* Runs the body and returns its output as a string. */
static struct jval capture(struct jinja *j, struct jscope *s, const struct jnode *body)
{
    struct jbuf b = {0};
    struct jbuf *outer = j->out;
    j->out = &b;
    exec_list(j, s, body);
    j->out = outer;
    return jval_buf(&b);
}

/* --- loops -------------------------------------------------------------------------- */

static bool next_unfiltered(struct jloop *l, struct jval *out)
{
    size_t *pos = l->shared ? &l->items->pos : &l->pos;
    if (*pos >= l->items->n)
        return false;
    *out = l->items->at[(*pos)++];
    return true;
}

static bool next_item(struct jinja *j, struct jloop *l, struct jval *out)
{
    while (next_unfiltered(l, out)) {
        if (!l->filtered)
            return true;
        struct jscope *s = scope_open(j, l->scope, l->node->c);
        assign(j, s, l->node->a, *out);
        struct jval keep = jinja_eval(j, s, l->node->c);
        if (jval_truth(j, &keep))
            return true;
    }
    return false;
}

/* Returns the next item without consuming it, for loop.last; J_MISSING after the last one. */
static struct jval peek(struct jinja *j, struct jloop *l)
{
    if (l->after.kind == J_MISSING && !next_item(j, l, &l->after))
        l->after.kind = J_MISSING;
    return l->after;
}

static bool loop_advance(struct jinja *j, struct jloop *l)
{
    struct jval item = peek(j, l);
    if (item.kind == J_MISSING)
        return false;
    l->after.kind = J_MISSING;
    l->index0++;
    l->before = l->current;
    l->current = item;
    return true;
}

/* Returns the number of items of the loop. A sequence without a known length, or with a filter, is
 * walked to its end. */
static int64_t loop_length(struct jinja *j, struct jloop *l)
{
    struct jval item, *rest;
    size_t n = 0;
    if (l->length >= 0)
        return l->length;
    if (!l->filtered && !l->shared)
        return l->length = (int64_t)l->items->n;
    size_t most = l->items->n - (l->shared ? l->items->pos : l->pos);
    rest = jinja_calloc(j, most, sizeof *rest);
    while (next_item(j, l, &item))
        rest[n++] = item;
    struct jseq *items = jinja_calloc(j, 1, sizeof *items);
    *items = (struct jseq){.at = rest, .n = n};
    l->items = items;
    l->pos = 0;
    l->shared = l->filtered = false;
    return l->length = (int64_t)n + l->index0 + 1 + (l->after.kind != J_MISSING);
}

struct jval jloop_attr(struct jinja *j, struct jloop *l, struct jstr name)
{
    struct jval next;
    if (jstr_is(name, "index0"))
        return jval_int(l->index0);
    if (jstr_is(name, "index"))
        return jval_int(l->index0 + 1);
    if (jstr_is(name, "first"))
        return jval_bool(l->index0 == 0);
    if (jstr_is(name, "last"))
        return jval_bool(peek(j, l).kind == J_MISSING);
    if (jstr_is(name, "length"))
        return jval_int(loop_length(j, l));
    if (jstr_is(name, "revindex"))
        return jval_int(loop_length(j, l) - l->index0);
    if (jstr_is(name, "revindex0"))
        return jval_int(loop_length(j, l) - l->index0 - 1);
    if (jstr_is(name, "depth") || jstr_is(name, "depth0"))
        return jval_int(jstr_is(name, "depth"));
    if (jstr_is(name, "previtem"))
        return l->index0 > 0 ? l->before : jval_undef_hint(j, "there is no previous item");
    if (jstr_is(name, "nextitem")) {
        next = peek(j, l);
        return next.kind != J_MISSING ? next : jval_undef_hint(j, "there is no next item");
    }
    if (jstr_is(name, "cycle") || jstr_is(name, "changed")) {
        struct jmethod *m = jinja_alloc(j, sizeof *m);
        *m = (struct jmethod){.self = {.kind = J_LOOP, .loop = l},
                              .name = jstr_is(name, "cycle") ? "cycle" : "changed"};
        return (struct jval){.kind = J_METHOD, .method = m};
    }
    if (name.n > 0 && name.s[0] == '_')
        jinja_fail(j, ERR_MISMATCH,
                   "access to attribute '%.*s' of 'LoopContext' object is "
                   "unsafe.",
                   JARG(name));
    return (struct jval){.kind = J_MISSING};
}

struct jval jloop_call(struct jinja *j, struct jloop *l, const char *name,
                       const struct jcall *c)
{
    if (c->n_kw != 0)
        jinja_fail(j, ERR_MISMATCH, "%s() got an unexpected keyword argument", name);
    if (strcmp(name, "cycle") == 0) {
        if (c->n_args != 0)
            return c->args[(size_t)l->index0 % c->n_args];
        jinja_fail(j, ERR_MISMATCH, "no items for cycling given");
    }
    struct jval now = jval_seq(j, J_TUPLE, c->n_args);
    if (c->n_args != 0)
        memcpy(now.seq->at, c->args, c->n_args * sizeof *c->args);
    bool changed = l->changed.kind == J_MISSING || !jval_equal(j, &l->changed, &now);
    l->changed = now;
    return jval_bool(changed);
}

static enum flow exec_for(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval over = jinja_eval(j, s, n->b);
    struct jloop *l = jinja_calloc(j, 1, sizeof *l);
    *l = (struct jloop){.node = n,
                        .scope = s,
                        .filtered = n->c != NULL,
                        .shared = over.kind == J_ITER,
                        .index0 = -1,
                        .length = -1};
    j->line = n->line;
    l->items = l->shared ? over.seq : jval_items(j, &over);
    bool finished_one = false;
    while (loop_advance(j, l)) {
        struct jscope *inner = scope_open(j, s, n);
        assign(j, inner, n->a, l->current);
        jscope_set(j, inner, JLIT("loop"), (struct jval){.kind = J_LOOP, .loop = l});
        enum flow flow = exec_list(j, inner, n->body);
        if (flow == FLOW_BREAK)
            break;
        finished_one |= flow == FLOW_ON;
        j->line = n->line;
    }
    /* Jinja runs the else branch if no pass through the loop was completed, so also after a break
     * in the first pass. */
    if (!finished_one && n->orelse != NULL)
        return exec_list(j, s, n->orelse);
    return FLOW_ON;
}

/* --- macros ------------------------------------------------------------------------- */

static struct jval macro_value(struct jinja *j, const struct jnode *n, struct jscope *s)
{
    struct jmacro *m = jinja_alloc(j, sizeof *m);
    *m = (struct jmacro){.node = n, .scope = s};
    return (struct jval){.kind = J_MACRO, .macro = m};
}

static struct jval not_provided(struct jinja *j, struct jstr name)
{
    struct jbuf b = {0};
    jbuf_puts(j, &b, "parameter '");
    jbuf_put(j, &b, name.s, name.n);
    /* `sizeof` counts the final zero, which ends the hint. */
    jbuf_put(j, &b, "' was not provided", sizeof "' was not provided");
    return jval_undef_hint(j, b.s);
}

/* Sets the macro's parameters as variables of scope s. All of them exist before a default value is
 * evaluated. */
static void bind_params(struct jinja *j, struct jscope *s, const struct jnode *macro,
                        const struct jcall *c)
{
    size_t i = 0, named = 0;
    for (const struct jnode *p = macro->a; p != NULL; p = p->next, i++) {
        struct jval v = i < c->n_args ? c->args[i] : (struct jval){.kind = J_MISSING};
        jinja_charge(j, c->n_kw * 8);
        for (size_t k = 0; k < c->n_kw && i >= c->n_args; k++)
            if (jstr_equal(c->kw[k].name, p->name)) {
                v = c->kw[k].value;
                named++;
            }
        jscope_set(j, s, p->name, v);
    }
    if (c->n_args > i)
        jinja_fail(j, ERR_MISMATCH, "macro '%.*s' takes not more than %zu argument(s)",
                   JARG(macro->name), i);
    for (const struct jnode *p = macro->a; p != NULL; p = p->next)
        if (find_var(j, s, p->name)->value.kind == J_MISSING)
            jscope_set(j, s, p->name,
                       p->a != NULL ? jinja_eval(j, s, p->a) : not_provided(j, p->name));
    const struct jval *caller = jcall_kwarg(c, "caller");
    if (macro->uses_caller) {
        named += caller != NULL;
        jscope_set(j, s, JLIT("caller"),
                   caller != NULL ? *caller : jval_undef_hint(j, "No caller defined"));
    }
    if (named != c->n_kw)
        jinja_fail(j, ERR_MISMATCH, "macro '%.*s' takes no such keyword argument",
                   JARG(macro->name));
}

struct jval jmacro_call(struct jinja *j, const struct jmacro *m, const struct jcall *c)
{
    jinja_enter(j);
    struct jscope *s = scope_open(j, m->scope, m->node);
    bind_params(j, s, m->node, c);
    struct jval text = capture(j, s, m->node->body);
    jinja_leave(j);
    return text;
}

static void exec_call_block(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jnode call = *n->b, caller = {.kind = N_KWARG}, value = {.kind = N_CONST};
    value.value = macro_value(j, n, s);
    value.line = caller.line = n->line;
    caller.name = JLIT("caller");
    caller.a = &value;
    /* The argument `caller` is put before the others in a copy of the call, so that the parsed tree
     * stays unchanged. */
    caller.next = call.b;
    call.b = &caller;
    struct jval v = jinja_eval(j, s, &call);
    emit(j, &v);
}

/* --- statements --------------------------------------------------------------------- */

static void exec_set_block(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = scope_open(j, s, n);
    struct jval v = jinja_apply_filters(j, inner, n->b, capture(j, inner, n->body));
    assign(j, s, n->a, v);
}

static void exec_filter_block(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = scope_open(j, s, n);
    struct jval v = jinja_apply_filters(j, inner, n->b, capture(j, inner, n->body));
    emit(j, &v);
}

static enum flow exec_with(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = scope_open(j, s, n);
    for (const struct jnode *set = n->a; set != NULL; set = set->next)
        /* The value is evaluated in the outer scope. */
        assign(j, inner, set->a, jinja_eval(j, s, set->b));
    return exec_list(j, inner, n->body);
}

static enum flow exec_if(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    for (;; n = n->orelse) {
        struct jval test = jinja_eval(j, s, n->a);
        if (jval_truth(j, &test))
            return exec_list(j, s, n->body);
        if (jnode_elif(n) == NULL)
            return exec_list(j, s, n->orelse);
    }
}

static enum flow exec_one(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval v;
    switch (n->kind) {
    case N_TEXT:
        emit(j, &n->value);
        return FLOW_ON;
    case N_OUTPUT:
        v = jinja_eval(j, s, n->a);
        emit(j, &v);
        return FLOW_ON;
    case N_IF:
        return exec_if(j, s, n);
    case N_FOR:
        return exec_for(j, s, n);
    case N_SET:
        /* the namespace is checked before the value is evaluated, as in Jinja */
        if (n->a->kind == N_NSREF)
            namespace_of(j, s, n->a);
        v = jinja_eval(j, s, n->b);
        j->line = n->line;
        assign(j, s, n->a, v);
        return FLOW_ON;
    case N_SET_BLOCK:
        exec_set_block(j, s, n);
        return FLOW_ON;
    case N_MACRO:
        jscope_set(j, s, n->name, macro_value(j, n, s));
        return FLOW_ON;
    case N_CALL_BLOCK:
        exec_call_block(j, s, n);
        return FLOW_ON;
    case N_FILTER_BLOCK:
        exec_filter_block(j, s, n);
        return FLOW_ON;
    case N_WITH:
        return exec_with(j, s, n);
    case N_SCOPE:
        return exec_list(j, scope_open(j, s, n), n->body);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jinja_fail(j, ERR_UNSUPPORTED, "this statement cannot be run");
    }
}

static enum flow exec_list(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    enum flow flow = FLOW_ON;
    jinja_enter(j);
    for (; n != NULL && flow == FLOW_ON; n = n->next) {
        jinja_charge(j, 0);
        j->line = n->line;
        flow = exec_one(j, s, n);
    }
    jinja_leave(j);
    return flow;
}

void jinja_exec(struct jinja *j, struct jscope *globals, const struct jnode *root)
{
    exec_list(j, scope_open(j, globals, root), root->body);
}
