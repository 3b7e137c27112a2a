/* pretokenize_regex.c - see pretokenize_regex.h.
 *
 * Supported constructs of Oniguruma's (Ruby's) dialect, and their translation:
 *
 *   characters, \r \n \t \f, \ before ASCII punctuation     the same
 *   [...] and [^...] of those, ranges                        the same
 *   \p{X} \P{X}, X a general category                        the same
 *   \s \S                          Unicode's White_Space, spelled out: PCRE2's has U+180E, too
 *   \d                             \p{Nd}
 *   \A \z outside of classes       the same
 *   | ( ) (?: ) (?= ) (?! )        the same
 *   (?i: )                         only ASCII letters, ' and | inside, and no pair of letters
 *                                  that is the folding of one character (ss, st, ff, fi, fl)
 *   ? * + and ?? *? +? ?+ *+ ++    the same
 *   {n} {n,} {n,m}                 the same; a ? or + behind it has another meaning, so is refused
 *
 * Everything else is refused: . ^ $, other anchors, \w \b \h \v and the like, back-references,
 * look-behind, nested classes, && and POSIX classes, {,n}.  A pattern that matches the empty text
 * is refused, too: transformers cuts there and this program would not. */
#include "bpe/pretokenize_regex.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* --- translation -------------------------------------------------------------------------- */

struct translation {
    const char *p, *end; /* the rest of the pattern */
    char *out;
    size_t n, cap;
    /* Depth of the enclosing (?i: ) group; 0: the place is in no such group. */
    int caseless_depth;
    int depth;
    struct err *err;
};

static void put(struct translation *t, const char *s, size_t n)
{
    if (t->cap - t->n < n) {
        t->cap = 2 * t->cap + n + 64;
        t->out = xrealloc(t->out, t->cap);
    }
    memcpy(t->out + t->n, s, n);
    t->n += n;
}

static void put_text(struct translation *t, const char *s)
{
    put(t, s, strlen(s));
}

/* Copies n bytes of the pattern unchanged. */
static void copy(struct translation *t, size_t n)
{
    put(t, t->p, n);
    t->p += n;
}

static size_t left(const struct translation *t)
{
    return (size_t)(t->end - t->p);
}

static bool next_is(const struct translation *t, const char *s)
{
    return left(t) >= strlen(s) && memcmp(t->p, s, strlen(s)) == 0;
}

/* Refuses the pattern because of its next n bytes, which the message shows as whole characters. */
static int refuse(const struct translation *t, size_t n)
{
    while (n < left(t) && ((unsigned char)t->p[n] & 0xC0) == 0x80)
        n++;
    return err_set(t->err, ERR_UNSUPPORTED, "regular expression: '%.*s' is not supported",
                   (int)(n < left(t) ? n : left(t)), t->p);
}

static const char white_space[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/* Translates \p{X} or \P{X}, with X a general category of one or two letters. */
static int translate_property(struct translation *t)
{
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf "
        "Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co ";
    const char *close = left(t) > 3 ? memchr(t->p, '}', left(t)) : NULL;
    if (t->p[2] != '{' || close == NULL || close - t->p > 5)
        return refuse(t, close != NULL ? (size_t)(close - t->p) + 1 : 4);
    char name[8] = " ";
    memcpy(name + 1, t->p + 3, (size_t)(close - t->p - 3));
    name[close - t->p - 2] = ' ';
    if (strlen(name) < 3 || strstr(categories, name) == NULL)
        return refuse(t, (size_t)(close - t->p) + 1);
    copy(t, (size_t)(close - t->p) + 1);
    return 0;
}

static int translate_escape(struct translation *t, bool in_class)
{
    if (left(t) < 2)
        return refuse(t, 1);
    const char c = t->p[1];
    if (c == 'p' || c == 'P')
        return left(t) < 5 ? refuse(t, 5) : translate_property(t);
    if (c == 's' || (c == 'S' && !in_class)) {
        put_text(t, in_class ? "" : c == 's' ? "[" : "[^");
        put_text(t, white_space);
        put_text(t, in_class ? "" : "]");
        t->p += 2;
        return 0;
    }
    if (c == 'd') {
        put_text(t, "\\p{Nd}");
        t->p += 2;
        return 0;
    }
    if (strchr(in_class ? "rntf" : "rntfAz", c) == NULL && !ispunct((unsigned char)c))
        return refuse(t, 2);
    copy(t, 2);
    return 0;
}

static int translate_class(struct translation *t)
{
    copy(t, next_is(t, "[^") ? 2 : 1);
    if (next_is(t, "]"))
        return refuse(t, 1);
    while (left(t) > 0 && t->p[0] != ']') {
        int rc = 0;
        if (t->p[0] == '\\')
            rc = translate_escape(t, true);
        else if (t->p[0] == '[' || next_is(t, "&&"))
            rc = refuse(t, 2);
        else
            copy(t, 1);
        if (rc != 0)
            return rc;
    }
    if (left(t) == 0)
        return err_set(t->err, ERR_FORMAT, "regular expression: a class is not closed");
    copy(t, 1);
    return 0;
}

/* Copies {n}, {n,} or {n,m}; PCRE2 checks the numbers. */
static int translate_braces(struct translation *t)
{
    size_t i = 1;
    while (i < left(t) && isdigit((unsigned char)t->p[i]))
        i++;
    bool ok = i > 1;
    if (i < left(t) && t->p[i] == ',')
        for (i++; i < left(t) && isdigit((unsigned char)t->p[i]);)
            i++;
    ok = ok && i < left(t) && t->p[i] == '}';
    if (!ok || (i + 1 < left(t) && (t->p[i + 1] == '?' || t->p[i + 1] == '+')))
        return refuse(t, ok ? i + 2 : i + 1);
    copy(t, i + 1);
    return 0;
}

static int translate_group(struct translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?i:"};
    t->depth++;
    if (!next_is(t, "(?")) {
        copy(t, 1);
        return 0;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!next_is(t, kinds[i]))
            continue;
        if (kinds[i][2] == 'i')
            t->caseless_depth = t->depth;
        copy(t, strlen(kinds[i]));
        return 0;
    }
    return refuse(t, 4);
}

/* Checks text inside (?i: ), where the dialects fold some pairs of letters differently. */
static int translate_caseless(struct translation *t)
{
    static const char *const folded[] = {"ss", "st", "ff", "fi", "fl"};
    const char c = t->p[0];
    if (!isalpha((unsigned char)c) && c != '\'' && c != '|')
        return refuse(t, 1);
    for (size_t i = 0; i < sizeof folded / sizeof folded[0]; i++)
        if (left(t) >= 2 && tolower((unsigned char)c) == folded[i][0] &&
            tolower((unsigned char)t->p[1]) == folded[i][1])
            return refuse(t, 2);
    copy(t, 1);
    return 0;
}

static int translate_one(struct translation *t)
{
    const char c = t->p[0];
    if (c == ')') {
        if (t->caseless_depth == t->depth)
            t->caseless_depth = 0;
        t->depth--; /* PCRE2 refuses unbalanced brackets */
        copy(t, 1);
        return 0;
    }
    if (t->caseless_depth != 0)
        return translate_caseless(t);
    switch (c) {
    case '\\':
        return translate_escape(t, false);
    case '[':
        return translate_class(t);
    case '(':
        return translate_group(t);
    case '{':
        return translate_braces(t);
    case '.':
    case '^':
    case '$':
        return refuse(t, 1);
    default:
        copy(t, 1);
        return 0;
    }
}

/* Writes the pattern for PCRE2 to *out, which the caller frees. */
static int translate(const char *pattern, size_t n, char **out, size_t *n_out,
                     struct err *err)
{
    struct translation t = {.p = pattern, .end = pattern + n, .err = err};
    int rc = 0;
    while (rc == 0 && left(&t) > 0)
        rc = translate_one(&t);
    *out = t.out;
    *n_out = t.n;
    return rc;
}

/* --- compiling and matching --------------------------------------------------------------- */

struct regex {
    pcre2_code *code;
};

int regex_compile(struct regex **out, const char *pattern, size_t n,
                  enum regex_dialect dialect, struct err *err)
{
    bool translates = dialect == REGEX_ONIGURUMA;
    char *own = NULL;
    size_t n_own = 0;
    int rc = translates ? translate(pattern, n, &own, &n_own, err) : 0;
    if (rc != 0) {
        free(own);
        return rc;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    const uint32_t options = dialect == REGEX_LITERAL
                                 ? PCRE2_UTF | PCRE2_LITERAL
                                 : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)(translates ? own : pattern),
                                  translates ? n_own : n, options, &code, &at, NULL);
    free(own);
    if (c == NULL) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(err, ERR_FORMAT, "regular expression '%.*s': %s", (int)n, pattern,
                       (const char *)text);
    }
    uint32_t may_be_empty = 0;
    (void)pcre2_pattern_info(c, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty != 0) {
        pcre2_code_free(c);
        return err_set(
            err, ERR_UNSUPPORTED,
            "regular expression '%.*s': it may match the empty text, which is not "
            "supported",
            (int)n, pattern);
    }
    /* Without JIT (not compiled in, or no executable memory) pcre2_match interprets. */
    (void)pcre2_jit_compile(c, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    *out = xmalloc(sizeof **out);
    (*out)->code = c;
    return 0;
}

void regex_free(struct regex *r)
{
    if (r == NULL)
        return;
    pcre2_code_free(r->code);
    free(r);
}

/* JIT code has 32 KiB of machine stack by default; backtracking into a long run of white space may
 * need more. */
enum { JIT_STACK_START = 32 << 10, JIT_STACK_MAX = 16 << 20 };

/* Limits on the work of all matches of one text together, counted in bytes of text that are
 * examined. A pattern such as a+b|a examines the whole rest of the text for every letter that it
 * takes.
 *
 * Each match first sees WINDOW bytes.  If it would read on, it is tried again in twice as many
 * bytes, and these are charged.  The bytes that a match takes are credited.  So work that is linear
 * in the text never exceeds the limit, and only text and pattern decide which text is refused. */
enum { WINDOW = 256, WORK_START = 4 << 20, WORK_PER_BYTE = 256 };

/* Limits on the backtracking of one match. A window may take STEPS_PER_BYTE steps for each of its
 * bytes. A match that needs more runs again with STEPS_MAX, and its text is charged for it. */
enum { STEPS_PER_BYTE = 200, STEPS_MAX = 10 * 1000 * 1000, STEPS_CHARGE = 1 << 20 };
enum { HEAP_MAX_KIB = 64 << 10 };

struct scratch {
    int64_t work_left;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

void regex_scratch_free(void *scratch)
{
    struct scratch *s = scratch;
    if (s == NULL)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

static struct scratch *scratch_create(void)
{
    struct scratch *s = xcalloc(1, sizeof *s);
    s->work_left = WORK_START;
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (s->context != NULL && s->stack != NULL)
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    if (s->context != NULL)
        pcre2_set_heap_limit(s->context, HEAP_MAX_KIB);
    return s;
}

/* Returns n, reduced so that no character is cut at the end of s[0, n). */
static size_t whole_characters(const char *s, size_t n)
{
    while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80)
        n--;
    return n;
}

/* Makes one attempt on s[from, end). partial: the text goes on after end. */
static int attempt(const struct regex *r, struct scratch *w, const char *s, size_t end,
                   size_t from, bool partial)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | (partial ? PCRE2_PARTIAL_HARD : 0);
    size_t steps = (end - from + WINDOW) * STEPS_PER_BYTE;
    pcre2_set_match_limit(w->context, steps < STEPS_MAX ? (uint32_t)steps : STEPS_MAX);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)s, end, from, options, w->data, w->context);
    if (rc != PCRE2_ERROR_MATCHLIMIT || steps >= STEPS_MAX)
        return rc;
    w->work_left -= STEPS_CHARGE;
    pcre2_set_match_limit(w->context, STEPS_MAX);
    return pcre2_match(r->code, (PCRE2_SPTR)s, end, from, options, w->data, w->context);
}

/* Does the same as pcre2_match on the whole text, but in windows, which grow as far as the match
 * looks. */
static int match(const struct regex *r, struct scratch *w, const char *s, size_t n,
                 size_t from)
{
    for (size_t window = WINDOW; n - from > window && w->work_left >= 0; window *= 2) {
        int rc = attempt(r, w, s, from + whole_characters(s + from, window), from, true);
        if (rc != PCRE2_ERROR_PARTIAL && rc != PCRE2_ERROR_NOMATCH)
            return rc;
        w->work_left -= (int64_t)window;
    }
    if (w->work_left < 0)
        return 0;
    if (n - from > WINDOW)
        w->work_left -= (int64_t)(n - from);
    return attempt(r, w, s, n, from, false);
}

int regex_find(const struct regex *r, void **scratch, const char *s, size_t n, size_t from,
               size_t *begin, size_t *end, struct err *err)
{
    if (*scratch == NULL)
        *scratch = scratch_create();
    struct scratch *w = *scratch;
    if (w->data == NULL || w->context == NULL)
        return err_set(err, ERR_LIMIT, "out of memory for a regular expression");
    int rc = match(r, w, s, n, from);
    if (w->work_left < 0)
        return err_set(
            err, ERR_LIMIT,
            "the tokenizer's regular expressions take too much work on this text");
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(rc, text, sizeof text);
        return err_set(err, ERR_LIMIT, "regular expression: %s", (const char *)text);
    }
    const PCRE2_SIZE *extent = pcre2_get_ovector_pointer(w->data);
    *begin = extent[0];
    *end = extent[1];
    w->work_left += WORK_PER_BYTE * (int64_t)(*end - from);
    return 1;
}
