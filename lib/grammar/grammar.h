/* grammar.h - the forms that an answer can be given: JSON schemas, GBNF grammars, regular
 * expressions and lists of texts, compiled to one representation over bytes.
 *
 * The mental model.  A grammar is a set of texts.  Each compiler turns its input into a graph of
 * nodes (node.h), which automaton.h walks byte by byte.  A compiler either represents exactly the
 * texts that its input describes, in the spelling that docs/STRUCTURED.md states, or refuses with
 * the name of what it cannot represent.  It never represents more.
 *
 * A struct grammar is immutable: any number of threads may use it.  Compiling allocates from one
 * region of at most GRAMMAR_MAX_BYTES, so an input that would need more is refused (ERR_LIMIT).
 *
 * Errors: ERR_USAGE: the input is malformed, or no text has its form.  ERR_UNSUPPORTED: the message
 * names what cannot be enforced.  ERR_LIMIT: the input is too large. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct grammar;
struct json;
struct textbuf;

enum { GRAMMAR_MAX_BYTES = 96 << 20 };

enum grammar_kind {
    GRAMMAR_SCHEMA, /* one JSON value, by a schema of draft 2020-12 unless "$schema" says otherwise */
    GRAMMAR_GBNF,   /* the rule "root" is the text */
    GRAMMAR_REGEX,  /* the whole text matches */
    GRAMMAR_CHOICE, /* one of several texts */
    GRAMMAR_CALLS,  /* tool calls in a model's own syntax */
};

/* Bytes of a tag. A blank stands for up to 4 blanks; special tokens are as in vocab.h. n 0: the tag
 * does not occur. */
struct grammar_tag {
    const char *at;
    size_t n;
};

struct grammar_tool {
    const char *name;
    const struct json *schema; /* of its arguments; NULL: none */
};

/* The forms of one call; text/answer_syntax.h explains them and the tags below. */
enum grammar_call_body {
    GRAMMAR_CALL_OBJECT,
    GRAMMAR_CALL_JSON,
    GRAMMAR_CALL_TAGS,
    GRAMMAR_CALL_BRACES,
    GRAMMAR_CALL_PYTHON,
};

struct grammar_calls {
    enum grammar_call_body body;
    struct grammar_tag section, section_end, open, name_end, close, close_more;
    struct grammar_tag key_open, key_end, key_skip, value_end, quote;
    const char *name_key, *arguments_key; /* name_key NULL: {"f": {...}} */
    bool is_list, value_on_lines;
    bool is_tight; /* no blank stands between `open` and the name */
    const struct grammar_tool *tools;
    size_t n_tools;
    const struct json
        *any_object; /* the schema {"type": "object"}, which all arguments match */
    bool many;       /* more than one call may be made */
    bool may_talk;   /* text may stand before the calls, or instead of them */
    /* Answers of messages: with may_talk, a call may follow any number of thoughts and texts.
     * message_end.n 0: the answer is one text. */
    struct grammar_tag think, say[2], message_end;
    struct
        grammar_spelling { /* tags that may stand for open and name_end; open.n 0: none */
        struct grammar_tag open, name_end;
    } also[3];
};

enum grammar_thought { GRAMMAR_NO_THOUGHT, GRAMMAR_IN_THOUGHT, GRAMMAR_MAY_THINK };

struct grammar_source {
    enum grammar_kind kind;
    const struct json *schema;
    const char *text; /* GBNF or a regular expression */
    size_t n;         /* bytes of text, or number of texts */
    const char *const *texts;
    /* NULL: none. With another kind than GRAMMAR_CALLS, the answer may be calls instead. */
    const struct grammar_calls *calls;
    /* Stands before the text, which is no call. */
    struct grammar_tag text_open;
    /* The answer may instead be this tag, with which calls begin, and any text. */
    struct grammar_tag call_head;
    /* Whether the form begins behind a thought: any text up to the first thought_close, and up to 8
     * blanks. The thought has begun, or the answer may begin with thought_open. */
    enum grammar_thought thought;
    struct grammar_tag thought_open, thought_close;
    /* NULL: a keyword of a schema that cannot be enforced is refused.  Else such a keyword is left
     * out, and its name is added to *loose, separated by ", ". */
    struct textbuf *loose;
};

/* Compiles a form. *out is the caller's. */
int grammar_compile(struct grammar **out, const struct grammar_source *s, struct err *err);
void grammar_free(struct grammar *g); /* NULL is allowed */

/* Returns whether the grammar contains the text. Slow: for tests and for compilers. */
bool grammar_contains(const struct grammar *g, const char *text, size_t n);

#endif
