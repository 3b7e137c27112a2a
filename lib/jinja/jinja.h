/* jinja.h - the part of the Jinja template language that chat templates use.
 *
 * A model's chat template is a program: it walks a conversation and prints the prompt. This is an
 * interpreter for it. Its results are exact; a construct that it does not know is an error that
 * names the line and the construct, never a guess.
 *
 * It implements Jinja as transformers configures it: the immutable sandboxed environment
 * with trim_blocks and lstrip_blocks, loop controls, `tojson` without HTML escapes,
 * `raise_exception`, `strftime_now`. Values behave like Python's, including how a list prints. Not
 * supported: template inheritance, imports and includes, `do`, recursive loops, autoescape, *args
 * and **kwargs, integers beyond 64 bits, and case mapping outside the scripts named in
 * jinja_case.c.
 *
 *     struct jinja_template *t;
 *     rc = jinja_compile(&t, source, n, "chat_template", NULL, &err);
 *     rc = jinja_render(t, &(struct jinja_input){.vars = vars}, &text, &n_text, &err);
 *     jinja_destroy(t);
 *
 * The functions are pure: no files, no clock, no globals. A compiled template is immutable, and any
 * number of threads may render it; all memory of one render is in arenas that end with it.
 *
 * Templates come with models and are not trusted: every loop, every level of nesting and every byte
 * is counted against the limits.
 *
 * Codes: ERR_FORMAT: bad syntax. ERR_UNSUPPORTED: well formed, but not in the subset. ERR_LIMIT: a
 * limit is reached. ERR_MISMATCH: the template cannot be applied to these values (an undefined
 * name, a type without such an operation). ERR_USAGE: the template itself refused with
 * raise_exception; then err->msg is exactly its message. All other messages start with
 * "NAME:LINE: ". */
#ifndef JINJA_JINJA_H
#define JINJA_JINJA_H

#include "base/err.h"
#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct jinja_template;

struct jinja_limits {
    /* bound on steps: one per evaluated node, one per 64 bytes processed */
    uint64_t max_steps;
    /* bound on nesting in the source, in evaluation, and in printed values */
    uint32_t max_depth;
    size_t max_source_bytes; /* bound on the bytes of the template */
    size_t max_output_bytes; /* bound on the bytes of the text, including captured blocks */
    /* bound on the bytes of one compilation or render; reserved as address space, so pages that
     * are not used take no memory */
    size_t max_memory_bytes;
};

/* Returns the default limits: 20 million steps (about a second), depth 500, a source of 1 MiB, an
 * output of 64 MiB, and 512 MiB of memory. */
struct jinja_limits jinja_default_limits(void);

/* Compiles a template. `source` is UTF-8 and is not kept; `name` begins every message and is
 * copied. limits NULL: the defaults. The limits also hold for renders of the template. The caller
 * destroys *out. */
int jinja_compile(struct jinja_template **out, const char *source, size_t n,
                  const char *name, const struct jinja_limits *limits, struct err *err);
void jinja_destroy(struct jinja_template *t); /* NULL is allowed */

struct jinja_var {
    const char *name;
    const struct json *value; /* NULL: None */
    bool is_foreign; /* the bytes of its strings are traced: see jinja_input.traces */
};

enum { JINJA_SHOWN_BYTES = 64, JINJA_MARKS = 4 };

/* A place in the list extra[0], and where the text from strings behind it begins. */
struct jinja_mark {
    size_t element; /* strings of this element and of all later ones lie behind the place */
    /* 0; else only the bytes of the element's member "content" from this one on do */
    size_t byte;
    /* set by jinja_render_traced: offset of the first byte of the text that comes from a traced
     * string behind the place; the text's size if there is none */
    size_t at;
};

struct jinja_input {
    /* an object whose members are variables; NULL: there are none */
    const struct json *vars;
    /* [n_extra] more variables, which hide variables of `vars` */
    const struct jinja_var *extra;
    size_t n_extra;
    /* The time that strftime_now shows; NULL: strftime_now is undefined. */
    const struct tm *now;
    /* [JINJA_SHOWN_BYTES] receives the first text that strftime_now returned, cut to this size;
     * unchanged if it was not called. NULL: the text is not wanted. */
    char *shown_time;
    /* The bytes of foreign variables' strings and of the names of their members are traced: they
     * are followed through slices, joins, replacements, macros and filters into the rendered text.
     * Not traced is a string in a member `own_key` that is one of the own_values, which NULL ends;
     * own_key NULL: there is none. */
    bool traces;
    const char *own_key;
    const char *const *own_values;
    struct jinja_mark
        *marks; /* [n_marks] of at most JINJA_MARKS; without traces n_marks is 0 */
    int n_marks;
};

/* Renders to *text, which the caller frees; its final zero is not counted in *n. */
int jinja_render(const struct jinja_template *t, const struct jinja_input *in, char **text,
                 size_t *n, struct err *err);
/* Like jinja_render, but also traces foreign text (in->traces). Bit i of *foreign is set if byte i
 * of the text is foreign. The caller frees *foreign. *foreign has 8 bytes more than needed, so that
 * it can be read in words. If nothing is traced, *foreign is NULL. */
int jinja_render_traced(const struct jinja_template *t, const struct jinja_input *in,
                        char **text, size_t *n, uint8_t **foreign, struct err *err);

#endif
