/* answer_impl.h - shared by the files of the answer's parser; only they include it.
 *
 *     answer_tags.c     tags of one model, and matching them
 *     answer_values.c   arguments that are not JSON -> JSON
 *     answer.c          the parser
 *
 * The parser's text marks special tokens with bytes that UTF-8 never has:
 *
 *     text <0xFF> spelling of the token <0xF8> text
 *
 * Tags are marked in the same way, so comparing bytes tells tokens from text. */
#ifndef TEXT_ANSWER_IMPL_H
#define TEXT_ANSWER_IMPL_H

#include "base/textbuf.h"
#include "text/answer.h"

#define MARK_BEGIN '\xFF'
#define MARK_END   '\xF8'
#define MARK_NONE                                                                          \
    '\xFE' /* replaces these bytes in a text that has them; never in UTF-8, too */

/* --- tags ----------------------------------------------------------------------------- */

struct tag {
    char *s; /* NULL: the syntax has no such tag */
    size_t n;
};

enum form_tag {
    TAG_THOUGHT,
    TAG_THOUGHT_END,
    TAG_SECTION,
    TAG_SECTION_END,
    TAG_OPEN,
    TAG_OPEN_SHORT,
    TAG_SKIP_TO,
    TAG_NAME_PREFIX,
    TAG_NAME_CUT,
    TAG_NAME_END,
    TAG_CLOSE,
    TAG_CLOSE_MORE,
    TAG_KEY,
    TAG_KEY_END,
    TAG_KEY_SKIP,
    TAG_VALUE_END,
    TAG_QUOTE,
    /* tags of channels */
    TAG_START,
    TAG_END,
    TAG_RETURN,
    TAG_CONSTRAIN, /* ends a recipient's name, as blanks do */
    FORM_TAGS
};

struct form_token {
    int32_t id;
    struct tag marked;
};

struct answer_form {
    const struct call_syntax *calls; /* NULL: calls are not known */
    struct tag tag[FORM_TAGS];
    struct form_token *token; /* special tokens that occur in tags */
    int n_token;
};

static inline bool answer_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

enum { MATCH_NO = -2, MATCH_MORE = -1 };
/* Compares the tag with the text s[at, n). Returns the offset in s where the tag ends. Returns
 * MATCH_MORE if the text ends within the tag, and MATCH_NO if it differs or the syntax has no such
 * tag. */
long tag_match(const struct tag *t, const char *s, size_t n, size_t at);

/* --- values --------------------------------------------------------------------------- */

/* Appends the JSON text of a value that stands between tags. JSON stays as it is; Python's True,
 * False and None become JSON's; other text, and with `is_text` any text, becomes a string. */
void value_append(struct textbuf *out, const char *s, size_t n, bool is_text);
/* Appends the JSON text of {key:value} (CALL_BRACES). Returns false if it is malformed. */
bool value_append_braces(struct textbuf *out, const struct tag *quote, const char *s,
                         size_t n);
/* Reads the call f(key=value, ...) at s[*at]: *name gets its name, *out the JSON text of its
 * arguments. Moves *at behind it. Returns false if it is malformed. */
bool value_python_call(const char *s, size_t n, size_t *at, struct textbuf *name,
                       struct textbuf *out);

/* Returns whether the tool of that name was offered. */
bool tools_have(const struct json *tools, const char *name);
/* Returns whether the tool's schema says that the parameter `key` is text. */
bool tools_want_text(const struct json *tools, const char *name, const char *key);

#endif
