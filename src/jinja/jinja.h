/* jinja.h - the part of the Jinja template language that chat templates use.
 *
 * A model's chat template is a program: it walks a conversation and prints the prompt.  This
 * is an interpreter for it, exact where it answers and silent nowhere: what it does not know
 * is an error that names the line and the construct, never a guess.
 *
 * What it matches is Jinja as the field's reference library sets it up: the immutable
 * sandboxed environment with trim_blocks and lstrip_blocks, loop controls, `tojson` without
 * HTML escapes, `raise_exception`, `strftime_now`.  Values behave as Python's do, down to
 * how a list prints.  Not there: template inheritance, imports and includes, `do`, recursive
 * loops, autoescape, *args and **kwargs, integers beyond 64 bits, and case mapping outside
 * the scripts named in jinja_case.c.
 *
 *     struct jinja_template *t;
 *     rc = jinja_compile(&t, source, n, "chat_template", NULL, &err);
 *     rc = jinja_render(t, &(struct jinja_input){.vars = vars}, &text, &n_text, &err);
 *     jinja_destroy(t);
 *
 * Pure: no files, no clock, no globals.  A template is immutable once compiled and may be
 * rendered by any number of threads; all memory of one render is one arena that ends with
 * it.
 *
 * Templates come with models and are not trusted: every loop, every level of nesting and
 * every byte is counted against the limits.
 *
 * Codes: ERR_FORMAT bad syntax; ERR_UNSUPPORTED well formed, but not in the subset;
 * ERR_LIMIT a limit is reached; ERR_MISMATCH the template cannot be applied to these values
 * (an undefined name, a type that has no such operation); ERR_USAGE the template itself
 * refused with raise_exception, and then err->msg is its message and nothing else.  All
 * other messages start with "NAME:LINE: ". */
#ifndef JINJA_JINJA_H
#define JINJA_JINJA_H

#include "base/err.h"
#include "format/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct jinja_template;

struct jinja_limits {
    uint64_t max_steps;      /* nodes evaluated, plus one for each 64 bytes worked on */
    uint32_t max_depth;      /* nesting in the source, of evaluation, of printed values */
    size_t max_source_bytes; /* of the template */
    size_t max_output_bytes; /* of the text, with what is captured on the way */
    size_t max_memory_bytes; /* of one compilation or render: address space until used */
};

/* 20 million steps (about a second), depth 500, 1 MiB, 64 MiB, 512 MiB. */
struct jinja_limits jinja_default_limits(void);

/* `source` is UTF-8 and is not kept; `name` begins every message and is copied.  NULL limits
 * are the default ones; they hold for renders too.  The caller destroys *out. */
int jinja_compile(struct jinja_template **out, const char *source, size_t n,
                  const char *name, const struct jinja_limits *limits, struct err *err);
void jinja_destroy(struct jinja_template *t); /* NULL is allowed */

struct jinja_var {
    const char *name;
    const struct json *value; /* NULL is None */
    bool is_foreign; /* the bytes of its strings are traced: see jinja_input.traces */
};

struct jinja_input {
    const struct json *vars;       /* an object: its members are variables; NULL: none */
    const struct jinja_var *extra; /* more variables; they hide those of `vars` */
    size_t n_extra;
    const struct tm *now; /* what strftime_now tells; NULL: it is not defined */
    /* Traces which bytes of the text come from strings of foreign variables, through slices, joins,
     * replacements, macros and filters.  traces: NULL, or whether a string is to be traced; key is
     * the name of the member that it is, NULL for an element of a list.  Names of
     * members always are. */
    bool (*traces)(const char *key, const struct json *string);
};

/* *text (the caller frees it; a final zero is not counted in *n). */
int jinja_render(const struct jinja_template *t, const struct jinja_input *in, char **text,
                 size_t *n, struct err *err);
/* The same with in->traces: bit i of *foreign (the caller frees it) is set where byte i of the
 * text is foreign.  It has 8 bytes more than needed, so that it can be read in words. */
int jinja_render_traced(const struct jinja_template *t, const struct jinja_input *in,
                        char **text, size_t *n, uint8_t **foreign, struct err *err);

#endif
