/* jinja_impl.h - shared by the files of the Jinja interpreter; only they include it.
 *
 *     jinja.c         compile and render: arenas, limits, the return after a failure
 *     jinja_lex.c     source -> tokens, whitespace control
 *     jinja_parse.c   tokens -> statements
 *     jinja_expr.c    tokens -> expressions
 *     jinja_scope.c   the parsed tree: which names a scope hides
 *     jinja_trace.c   which bytes come from the caller's foreign strings
 *     jinja_value.c   values: making, truth, equality, order, items, slices
 *     jinja_print.c   values -> text: str(), repr(), tojson
 *     jinja_eval.c    expressions -> values
 *     jinja_exec.c    statements -> text; scopes, loops, macros
 *     jinja_attr.c    attributes, items, and calls
 *     jinja_string.c  strings: characters, stripping, replacing
 *     jinja_format.c  strings: printf-style formats
 *     jinja_case.c    strings: upper and lower case
 *     jinja_method.c  strings: the methods of str
 *     jinja_filter.c, jinja_filter_seq.c, jinja_test.c, jinja_global.c   the built-ins
 *
 * Errors.  Inside these files a failing function does not return: jinja_fail unwinds with longjmp
 * to jinja_compile or jinja_render, as Lua does, because every function of an interpreter can fail
 * and almost none could handle it.  Nothing leaks, because every allocation is in an arena. */
#ifndef JINJA_JINJA_IMPL_H
#define JINJA_JINJA_IMPL_H

#include "base/arena.h"
#include "jinja/jinja.h"

#include <setjmp.h>
#include <stdbool.h>

/* --- the state of one compilation or one render -------------------------------------- */

/* text that grows in the render's arena, or in an arena that holds nothing else */
struct jbuf {
    char *s;
    size_t n, cap;
    struct arena *own; /* arena of its own; NULL: the render's arena */
};

struct jinja {
    struct arena *arena;
    jmp_buf escape;
    int code; /* the code given to jinja_fail */
    struct err *err;
    const char *name;
    int line; /* the present line of the template, for messages */
    struct jinja_limits limits;
    uint64_t steps;
    uint32_t depth;
    size_t output_bytes;
    struct jbuf *out; /* buffer to which statements print */
    const struct tm *now;
    char *shown_time;
    struct jtrace *trace; /* NULL: nothing is traced */
};

_Noreturn void jinja_fail(struct jinja *j, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* fails with raise_exception's message */
_Noreturn void jinja_raise(struct jinja *j, const char *s, size_t n);
/* never returns NULL */
void *jinja_alloc(struct jinja *j, size_t n);
void *jinja_calloc(struct jinja *j, size_t n, size_t size);
/* counts one step, and one more for each 64 bytes */
void jinja_charge(struct jinja *j, size_t bytes);
void jinja_enter(struct jinja *j); /* goes one level deeper */
/* goes back one level; after a failure no call is needed */
void jinja_leave(struct jinja *j);

void jbuf_put(struct jinja *j, struct jbuf *b, const char *s, size_t n);
/* Marks the last n bytes of b as foreign if the character at `from` is foreign: they were made from
 * it. */
void jbuf_inherit(struct jinja *j, struct jbuf *b, size_t n, const char *from);
void jbuf_puts(struct jinja *j, struct jbuf *b, const char *s);
void jbuf_printf(struct jinja *j, struct jbuf *b, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* --- values ------------------------------------------------------------------------- */

struct jstr {
    const char *s; /* valid UTF-8; may contain zeros */
    size_t n;
};

#define JLIT(text) ((struct jstr){"" text, sizeof(text) - 1})
/* arguments for "%.*s" in messages, which shows at most 200 bytes */
#define JARG(str) (int)((str).n < 200 ? (str).n : 200), (str).s

enum jkind {
    J_MISSING, /* no value at all: an argument that was not given */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG, /* an integer beyond 64 bits, which can be shown and compared; uses str: its digits */
    J_REAL,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE, /* uses seq, with all items made */
    J_VIEW,  /* uses seq: a dict's keys(), values() or items() */
    J_ITER,  /* uses seq: a generator's items from seq->pos on, which can be walked once */
    J_NS,    /* uses dict: a namespace(), the only kind of value that can change */
    J_MACRO,
    J_FUNC,   /* a built-in function */
    J_METHOD, /* an attribute that can be called */
    J_LOOP,
};

struct jval {
    enum jkind kind;
    bool safe; /* the string was marked with |safe, so it is not escaped */
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr str;
        struct jseq *seq;
        struct jdict *dict;
        struct jundef *undef;
        struct jmacro *macro;
        struct jmethod *method;
        struct jloop *loop;
        const struct jfunc *func;
    };
};

struct jseq {
    struct jval *at;
    size_t n;
    size_t pos; /* only for J_ITER: index of the next item */
};

struct jpair {
    struct jval key, value;
};

struct jdict { /* members in order of insertion, searched from the front */
    struct jpair *at;
    size_t n, cap;
};

struct jundef { /* why a value is undefined, for the message when the template uses it */
    enum { UNDEF_NAME, UNDEF_ATTR, UNDEF_ITEM, UNDEF_HINT, UNDEF_UNSAFE } why;
    struct jstr name; /* name of the variable or attribute, or the hint itself */
    const char *type; /* type of the object that lacks the attribute or item */
    struct jval key;  /* the key, for UNDEF_ITEM */
};

struct jmethod {
    struct jval self;
    const char *name;
};

/* jinja_value.c */
struct jval jval_undef_name(struct jinja *j, struct jstr name);
struct jval jval_undef_hint(struct jinja *j, const char *hint);
struct jval jval_none(void);
struct jval jval_bool(bool b);
struct jval jval_int(int64_t i);
struct jval jval_real(double f);
struct jval jval_str(struct jstr s);
struct jval jval_text(const char *s); /* makes a string from a C string that stays valid */
struct jval jval_buf(const struct jbuf *b);
/* makes a sequence of n items, all None */
struct jval jval_seq(struct jinja *j, enum jkind kind, size_t n);
struct jval jval_dict(struct jinja *j);
struct jval jval_from_json(struct jinja *j, const struct json *v);
/* Like jval_from_json, but the bytes of its strings are traced as j->trace says. is_marked: v is
 * the list with the marks. */
struct jval jval_from_foreign(struct jinja *j, const struct json *v, bool is_marked);
void jdict_put(struct jinja *j, struct jdict *d, struct jval key, struct jval value);
struct jval *jdict_find(struct jinja *j, const struct jdict *d, struct jval key);
struct jval *jdict_find_str(const struct jdict *d, struct jstr key);

bool jstr_is(struct jstr a, const char *b);
bool jstr_equal(struct jstr a, struct jstr b);
/* returns Python's name of the type: "str", "NoneType" */
const char *jval_type(const struct jval *v);
bool jval_is_number(const struct jval *v); /* a bool counts as a number, as in Python */
int64_t jval_as_int(const struct jval *v); /* v must be an int or a bool */
double jval_as_real(const struct jval *v);
bool jval_truth(struct jinja *j, const struct jval *v);
bool jval_equal(struct jinja *j, const struct jval *a, const struct jval *b);
/* Compares a with b, for the operator `op` ("<") of the template. Returns a number below, equal to
 * or above 0. Values that cannot be ordered fail with Python's message. */
int jval_order(struct jinja *j, const struct jval *a, const struct jval *b, const char *op);
bool jval_contains(struct jinja *j, const struct jval *item, const struct jval *in);
bool jval_iterable(const struct jval *v);
/* returns the items; walks a J_ITER to its end */
struct jseq *jval_items(struct jinja *j, const struct jval *v);
int64_t jval_len(struct jinja *j, const struct jval *v);
struct jval jval_slice(struct jinja *j, const struct jval *v, const struct jval *start,
                       const struct jval *stop, const struct jval *step);
_Noreturn void jval_fail_undef(struct jinja *j, const struct jval *v);
void jval_need(struct jinja *j, const struct jval *v); /* fails if v is undefined */

/* jinja_trace.c */
enum { JTRACE_FAR = 256, JTRACE_FAR_BYTES = 16 << 10 };

struct jtrace {
    struct jtrace_region {
        const struct arena *arena;
        /* plane 0 has one bit per byte of the arena; set: the byte is foreign. In plane 1 + i it is
         * set if the byte is foreign and lies behind mark i. */
        uint8_t *bits[1 + JINJA_MARKS];
    } values, output;
    struct jtrace_far { /* a foreign string that was too large to copy */
        struct jstr s;
        size_t behind[1 + JINJA_MARKS]; /* its first byte that is set in a plane */
    } far[JTRACE_FAR];
    int n_far, n_planes;
    const struct jinja_input *in;
    bool is_foreign; /* the value that is being read is foreign */
    bool is_marked;  /* and it is element `element` of the list with the marks */
    size_t element;
};
/* Returns 0, or -errno if the address space cannot be reserved. */
int jtrace_init(struct jtrace *t, const struct arena *values, const struct arena *output,
                const struct jinja_input *in);
/* Frees the bits of the values; only the output's bits are still needed. */
void jtrace_end_values(struct jtrace *t);
void jtrace_deinit(struct jtrace *t);
/* Returns the text of s, or of a copy, marked as foreign. s must stay valid until
 * jtrace_end_values. key: the member that holds it, or NULL. */
struct jstr jtrace_foreign(struct jinja *j, const char *key, struct jstr s);
/* Records that to[0..n) in the arena was copied from from[0..n), which may lie anywhere. */
void jtrace_copied(struct jtrace *t, const char *to, const char *from, size_t n);
/* Returns the bits of the first n bytes of the output, from malloc; NULL if there is no memory. */
uint8_t *jtrace_bits(const struct jtrace *t, size_t n);
/* Sets the places of the marks in the first n bytes of the output. */
void jtrace_marks(const struct jtrace *t, size_t n);

/* jinja_print.c */
struct jstr jval_to_str(struct jinja *j, const struct jval *v);
void jval_print(struct jinja *j, struct jbuf *b, const struct jval *v);
void jval_repr(struct jinja *j, struct jbuf *b, const struct jval *v);
struct jval jval_tojson(struct jinja *j, const struct jval *v, const struct jval *indent,
                        bool ascii, const struct jval *separators, bool sort_keys);

/* jinja_string.c */
size_t jutf_len(struct jstr s); /* returns the length in characters */
/* returns the byte offset of character number `chars` */
size_t jutf_offset(struct jstr s, size_t chars);
bool jutf_is_space(uint32_t cp); /* as Python's str.isspace */
struct jstr jstr_strip(struct jinja *j, struct jstr s, const struct jval *chars, bool left,
                       bool right);
struct jstr jstr_upper(struct jinja *j, struct jstr s);
struct jstr jstr_lower(struct jinja *j, struct jstr s);
struct jstr jstr_capitalize(struct jinja *j, struct jstr s);
struct jstr jstr_title(struct jinja *j, struct jstr s);
struct jstr jstr_title_filter(struct jinja *j, struct jstr s);
struct jstr jstr_replace(struct jinja *j, struct jstr s, struct jstr from, struct jstr to,
                         int64_t count);
struct jval jstr_splitlines(struct jinja *j, struct jstr s, bool keep_ends);
bool jstr_find(struct jinja *j, struct jstr s, struct jstr what, size_t from, size_t *at);
/* as Python's str.isupper and str.islower */
bool jstr_cased(struct jinja *j, struct jstr s, bool upper);
/* escapes & < > " ' for HTML */
struct jstr jstr_escape(struct jinja *j, struct jstr s);
struct jstr jstr_repeat(struct jinja *j, struct jstr s, int64_t times);

/* jinja_format.c */
struct jstr jstr_format(struct jinja *j, struct jstr format, const struct jval *args);

/* jinja_strformat.c: Python's str.format. */
struct jcall;
struct jval jstr_format_method(struct jinja *j, struct jstr s, const struct jcall *c);

/* --- calls of built-ins ------------------------------------------------------------- */

struct jkwarg {
    struct jstr name;
    struct jval value;
};

struct jcall {
    const char *what; /* name of the filter, test, method or function, for messages */
    struct jval self; /* input of a filter or test, or object of a method */
    struct jval *args;
    size_t n_args;
    struct jkwarg *kw;
    size_t n_kw;
};

/* Binds arguments like Python: out[i] is the argument named names[i], or J_MISSING. The first
 * n_required are required, and no other argument is accepted. */
void jcall_bind(struct jinja *j, const struct jcall *c, const char *const *names,
                size_t n_names, size_t n_required, struct jval *out);
struct jval *jcall_kwarg(const struct jcall *c, const char *name);

struct jfunc {
    const char *name;
    /* NULL: the name is known, but not implemented */
    struct jval (*call)(struct jinja *j, const struct jcall *c);
};

extern const struct jfunc jinja_filters_text[], jinja_filters_seq[], jinja_tests[],
    jinja_globals[]; /* each table ends with a NULL name */

/* Calls the filter of that name. Fails if the name is unknown. */
struct jval jinja_call_filter(struct jinja *j, struct jstr name, struct jcall *c);
bool jinja_call_test(struct jinja *j, struct jstr name, struct jcall *c);

/* Returns v.name. */
struct jval jval_getattr(struct jinja *j, const struct jval *v, struct jstr name);
/* Returns v[key]. */
struct jval jval_getitem(struct jinja *j, const struct jval *v, const struct jval *key);
/* Returns the value at a path such as "a.b.0", as filters take it. */
struct jval jval_getpath(struct jinja *j, struct jval v, const struct jval *path);
struct jval jmethod_call(struct jinja *j, const struct jmethod *m, struct jcall *c);
bool jstr_has_method(struct jstr name, const char **interned);
struct jval jstr_call(struct jinja *j, const char *name, const struct jcall *c);

/* --- tokens ------------------------------------------------------------------------- */

enum jtok {
    T_END,
    T_DATA,        /* text outside of tags */
    T_BLOCK_BEGIN, /* {% */
    T_BLOCK_END,
    T_VAR_BEGIN, /* {{ */
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_REAL,
    T_OP,
};

enum jop {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LBRACE,
    OP_RBRACE,
    OP_DOT,
    OP_COMMA,
    OP_COLON,
    OP_PIPE,
    OP_ASSIGN,
    OP_SEMICOLON,
};

struct jtoken {
    enum jtok kind;
    enum jop op;
    int line;
    /* for T_DATA, T_NAME and T_STRING (without quotes, escapes resolved) */
    struct jstr text;
    int64_t i;
    double f;
};

struct jtokens {
    struct jtoken *at; /* the tokens; the last one is T_END */
    size_t n, cap;
};

void jinja_lex(struct jinja *j, struct jstr source, struct jtokens *out);
const char *jop_text(enum jop op);

/* --- the tree ----------------------------------------------------------------------- */

enum jnode_kind {
    /* Expressions, with the fields of struct jnode that each kind uses. */
    N_CONST, /* value */
    N_NAME,  /* name */
    N_LIST,  /* a: first item, linked by next */
    N_TUPLE, /* a: first item */
    N_DICT,  /* a: first N_PAIR (a: key, b: value) */
    N_PAIR,
    N_UNARY,  /* op, a */
    N_BINARY, /* op, a, b */
    N_AND,    /* a, b */
    N_OR,
    N_NOT,     /* a */
    N_COMPARE, /* a, b: first N_OPERAND (op, a) */
    N_OPERAND,
    N_COND, /* a: test, b: value if true, c: else value or NULL */
    N_ATTR, /* a, name */
    N_ITEM, /* a, b: the key */
    /* a: object; b: N_TUPLE of start, stop, step; N_NONE stands for an absent one */
    N_SLICE,
    N_CALL, /* a: callee, b: first argument; N_KWARG (name, a) */
    N_KWARG,
    N_FILTER, /* a: input, or NULL in a filter block; name; b: first argument */
    N_TEST,   /* a, name, b: first argument */
    N_NSREF,  /* name.value.str: an assignment target of set */
    /* Statements, with the fields of struct jnode that each kind uses. */
    N_TEXT,   /* value */
    N_OUTPUT, /* a */
    N_IF,     /* a: test, body, orelse (for an elif, an N_IF) */
    N_FOR,    /* a: target, b: sequence, c: filter or NULL, body, orelse: N_SCOPE or NULL */
    N_SET,    /* a: target, b: value */
    N_SET_BLOCK, /* a: target, b: filters or NULL, body */
    /* name, a: first N_PARAM (name, a: default or NULL), body, c: the enclosing macro, for the
     * parser */
    N_MACRO,
    N_PARAM,
    N_CALL_BLOCK,   /* a: first N_PARAM, b: N_CALL, body */
    N_FILTER_BLOCK, /* b: filters, body */
    N_WITH,         /* a: first N_SET, body */
    N_SCOPE, /* body; a `generation` block, the else of a loop, or the whole template */
    N_BREAK,
    N_CONTINUE,
};

/* Names that a scope hides until it sets them, because its first mention of them is an assignment:
 * see jinja_scope.c. */
struct jscope_plan {
    const struct jstr *hidden;
    size_t n;
};

struct jnode {
    enum jnode_kind kind;
    enum jop op;
    int line;
    bool uses_caller; /* the body mentions `caller`; for N_MACRO and N_CALL_BLOCK */
    bool is_elif;     /* the node is an elif; for N_IF */
    struct jstr name;
    struct jval value;
    struct jnode *a, *b, *c, *body, *orelse, *next;
    const struct jscope_plan *plan; /* names that the node's scope hides; NULL: none */
};

/* Returns the elif that follows an if or elif, or NULL. */
static inline struct jnode *jnode_elif(const struct jnode *n)
{
    return n->orelse != NULL && n->orelse->is_elif ? n->orelse : NULL;
}

struct jparser {
    struct jinja *j;
    const struct jtoken *t; /* the present token */
    int loop_depth;         /* number of enclosing loops that a break here may end */
    struct jnode *macro;    /* the innermost enclosing macro or call block, or NULL */
};

/* jinja_parse.c */
struct jnode *jinja_parse(struct jinja *j, const struct jtokens *tokens);
struct jnode *jnode_new(struct jparser *p, enum jnode_kind kind);
_Noreturn void jparse_fail(struct jparser *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool jparse_at_op(const struct jparser *p, enum jop op);
bool jparse_at_name(const struct jparser *p, const char *name);
bool jparse_skip_op(struct jparser *p, enum jop op);
bool jparse_skip_name(struct jparser *p, const char *name);
void jparse_expect_op(struct jparser *p, enum jop op);
struct jstr jparse_expect_name(struct jparser *p);

/* jinja_scope.c: fills in `plan`. */
void jinja_plan_scopes(struct jinja *j, struct jnode *root);

/* jinja_expr.c */
/* parses an expression, including a ternary */
struct jnode *jexpr(struct jparser *p);
struct jnode *jexpr_no_cond(struct jparser *p); /* parses an expression without a ternary */
struct jnode *jexpr_tuple(struct jparser *p, bool with_cond, const char *end_name);
struct jnode *jexpr_target(struct jparser *p, bool with_namespace, const char *end_name);
struct jnode *jexpr_filters(struct jparser *p, struct jnode *input, bool first_is_named);

/* --- running ------------------------------------------------------------------------ */

struct jvar {
    struct jstr name;
    struct jval value; /* J_MISSING hides outer variables: see struct jscope_plan */
    struct jvar *next;
};

struct jscope {
    struct jvar *vars;
    struct jscope *up;
};

struct jmacro {
    const struct jnode *node; /* N_MACRO or N_CALL_BLOCK */
    struct jscope *scope;     /* scope in which the macro was defined */
};

struct jloop {
    struct jseq *items;
    size_t pos; /* index of the next item, if `shared` is false */
    /* The items belong to a J_ITER: its own pos is used, so that both consume the items. */
    bool shared;
    const struct jnode *node; /* the N_FOR; its filter applies if `filtered` is set */
    struct jscope *scope;     /* scope in which the filter is evaluated */
    bool filtered;
    int64_t index0;
    /* neighbouring items; J_MISSING: there is no such item */
    struct jval before, current, after;
    int64_t length; /* number of items; -1: not counted yet */
    struct jval changed;
};

struct jval jinja_eval(struct jinja *j, struct jscope *s, const struct jnode *n);
struct jval jinja_binary(struct jinja *j, enum jop op, const struct jval *a,
                         const struct jval *b);
struct jval jinja_apply_filters(struct jinja *j, struct jscope *s,
                                const struct jnode *chain, struct jval input);
struct jval jinja_call(struct jinja *j, const struct jval *callee, struct jcall *c);

void jinja_exec(struct jinja *j, struct jscope *globals, const struct jnode *root);
struct jval jmacro_call(struct jinja *j, const struct jmacro *m, const struct jcall *c);
struct jval *jscope_find(struct jinja *j, const struct jscope *s, struct jstr name);
void jscope_set(struct jinja *j, struct jscope *s, struct jstr name, struct jval value);
struct jval jloop_attr(struct jinja *j, struct jloop *l, struct jstr name);
struct jval jloop_call(struct jinja *j, struct jloop *l, const char *name,
                       const struct jcall *c);

#endif
