/* jinja_scope.c - finds the names that a scope hides before it has set them.
 *
 * Jinja compiles templates to Python functions, in which a name that a scope sets anywhere is local
 * to that scope everywhere.  So in
 *
 *     {% for m in messages %}{{ x }}{% endfor %}{% set x = 1 %}
 *
 * the x in the loop is undefined, even if the caller passed an x: the template's own scope has an x
 * that is not yet set.  The rule (jinja2/idtracking.py): a scope hides a name if the name's first
 * mention in this scope is an assignment outside of any `if`, and no outer scope mentions the name.
 * Statements are read in order, and mentions in inner scopes do not count.  All other names are
 * looked up from the inside to the outside. */
#include "jinja/jinja_impl.h"

#include <string.h>

struct names {
    struct jstr *at;
    size_t n, cap;
};

struct frame {
    const struct frame *up;
    struct names mentioned, hidden;
};

static bool contains(struct jinja *j, const struct names *list, struct jstr name)
{
    jinja_charge(j, list->n * 8);
    for (size_t i = 0; i < list->n; i++)
        if (jstr_equal(list->at[i], name))
            return true;
    return false;
}

static void append(struct jinja *j, struct names *list, struct jstr name)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 16 : 2 * list->cap;
        struct jstr *grown = jinja_calloc(j, cap, sizeof *grown);
        if (list->n != 0)
            memcpy(grown, list->at, list->n * sizeof *grown);
        list->at = grown;
        list->cap = cap;
    }
    list->at[list->n++] = name;
}

static void mention(struct jinja *j, struct frame *f, struct jstr name, bool hides)
{
    if (contains(j, &f->mentioned, name))
        return;
    for (const struct frame *up = f->up; up != NULL && hides; up = up->up)
        hides = !contains(j, &up->mentioned, name);
    append(j, &f->mentioned, name);
    if (hides)
        append(j, &f->hidden, name);
}

/* --- the names of a scope ------------------------------------------------------------ */

/* Records the names that a list of expressions mentions. hides: the list consists of targets of
 * assignments, so its names are set, not read. */
static void visit_names(struct jinja *j, struct frame *f, const struct jnode *n, bool hides)
{
    jinja_enter(j);
    for (; n != NULL; n = n->next) {
        jinja_charge(j, 0);
        if (n->kind == N_NAME || n->kind == N_NSREF)
            mention(j, f, n->name, hides && n->kind == N_NAME);
        visit_names(j, f, n->a, hides);
        visit_names(j, f, n->b, hides);
        visit_names(j, f, n->c, hides);
    }
    jinja_leave(j);
}

static void visit_list(struct jinja *j, struct frame *f, const struct jnode *n, bool in_if);

static void visit_one(struct jinja *j, struct frame *f, const struct jnode *n, bool in_if)
{
    switch (n->kind) {
    case N_OUTPUT:
        visit_names(j, f, n->a, false);
        break;
    case N_IF:
        /* a loop instead of a recursion, because a chain of elifs may be long */
        for (; n != NULL; n = jnode_elif(n)) {
            visit_names(j, f, n->a, false);
            visit_list(j, f, n->body, true);
            if (jnode_elif(n) == NULL)
                visit_list(j, f, n->orelse, true);
        }
        break;
    case N_FOR:
    case N_CALL_BLOCK:
    case N_FILTER_BLOCK:
        visit_names(j, f, n->b, false);
        break;
    case N_SET:
        visit_names(j, f, n->b, false);
        visit_names(j, f, n->a, !in_if);
        break;
    case N_SET_BLOCK:
        visit_names(j, f, n->a, !in_if);
        break;
    case N_MACRO:
        mention(j, f, n->name, !in_if);
        break;
    case N_WITH:
        for (const struct jnode *set = n->a; set != NULL; set = set->next)
            visit_names(j, f, set->b, false);
        break;
    default:
        break;
    }
}

static void visit_list(struct jinja *j, struct frame *f, const struct jnode *n, bool in_if)
{
    jinja_enter(j);
    for (; n != NULL; n = n->next)
        visit_one(j, f, n, in_if);
    jinja_leave(j);
}

/* --- scope by scope ----------------------------------------------------------------- */

static void plan_inner(struct jinja *j, struct jnode *n, const struct frame *around);

/* Plans the scope that `n` opens; f already holds the names mentioned before its body. */
static void plan_body(struct jinja *j, struct jnode *n, struct frame *f)
{
    visit_list(j, f, n->body, false);
    if (f->hidden.n != 0) {
        struct jscope_plan *plan = jinja_alloc(j, sizeof *plan);
        *plan = (struct jscope_plan){.hidden = f->hidden.at, .n = f->hidden.n};
        n->plan = plan;
    }
    plan_inner(j, n->body, f);
}

static void plan_scope(struct jinja *j, struct jnode *n, const struct frame *around)
{
    struct frame f = {.up = around};
    switch (n->kind) {
    case N_FOR:
        mention(j, &f, JLIT("loop"), false);
        visit_names(j, &f, n->a, false);
        break;
    case N_MACRO:
    case N_CALL_BLOCK:
        for (const struct jnode *p = n->a; p != NULL; p = p->next)
            mention(j, &f, p->name, false);
        for (const struct jnode *p = n->a; p != NULL; p = p->next)
            visit_names(j, &f, p->a, false);
        if (n->uses_caller)
            mention(j, &f, JLIT("caller"), false);
        break;
    case N_WITH:
        for (const struct jnode *set = n->a; set != NULL; set = set->next)
            visit_names(j, &f, set->a, false);
        break;
    default:
        break;
    }
    plan_body(j, n, &f);
}

static void plan_inner(struct jinja *j, struct jnode *n, const struct frame *around)
{
    jinja_enter(j);
    for (; n != NULL; n = n->next) {
        if (n->kind == N_IF) {
            for (struct jnode *i = n; i != NULL; i = jnode_elif(i)) {
                plan_inner(j, i->body, around);
                if (jnode_elif(i) == NULL)
                    plan_inner(j, i->orelse, around);
            }
        } else if (n->body != NULL) {
            plan_scope(j, n, around);
        }
        if (n->kind == N_FOR)
            plan_inner(j, n->orelse, around);
    }
    jinja_leave(j);
}

void jinja_plan_scopes(struct jinja *j, struct jnode *root)
{
    plan_scope(j, root, NULL);
}
