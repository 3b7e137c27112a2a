/* jinja_lex.c - splits template source into tokens.
 *
 * It decides where text ends and a tag begins, and which whitespace around tags is dropped.  The
 * rules are those of transformers' environment (trim_blocks, lstrip_blocks):
 *
 *   - the newline right after a block tag or a comment is dropped, unless it closes with +%};
 *   - spaces and tabs between the start of a line and a block tag or comment are dropped,
 *     unless it opens with {%+; never before {{;
 *   - {%- {{- {#- drop all whitespace before, -%} -}} -#} all whitespace after;
 *   - one newline at the very end of the source is dropped;
 *   - \r\n and \r are \n, everywhere.
 *
 * Jinja's lexer is a table of regular expressions.  This one matches the same tokens by hand, in
 * the table's order: inside a tag the tag's end (unless brackets are open), whitespace, float,
 * integer, name, string, operator. */
#include "jinja/jinja_impl.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct lexer {
    struct jinja *j;
    const char *s; /* the source with normalised newlines */
    size_t n;
    size_t at;
    bool line_starting; /* the last token ended with a newline, or there was no token yet */
    struct jtokens *out;
    char open[256]; /* stack of closing brackets that are expected */
    size_t n_open;
};

static const struct {
    const char *text;
    enum jop op;
} operators[] = {
    /* Operators; longer ones come first, so that the longest match wins. */
    {"//", OP_FLOORDIV}, {"**", OP_POW},      {"==", OP_EQ},    {"!=", OP_NE},
    {"<=", OP_LE},       {">=", OP_GE},       {"+", OP_ADD},    {"-", OP_SUB},
    {"*", OP_MUL},       {"/", OP_DIV},       {"%", OP_MOD},    {"~", OP_TILDE},
    {"<", OP_LT},        {">", OP_GT},        {"(", OP_LPAREN}, {")", OP_RPAREN},
    {"[", OP_LBRACKET},  {"]", OP_RBRACKET},  {"{", OP_LBRACE}, {"}", OP_RBRACE},
    {".", OP_DOT},       {",", OP_COMMA},     {":", OP_COLON},  {"|", OP_PIPE},
    {"=", OP_ASSIGN},    {";", OP_SEMICOLON},
};

const char *jop_text(enum jop op)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].op == op)
            return operators[i].text;
    return op == OP_IN ? "in" : op == OP_NOT_IN ? "not in" : "?";
}

/* --- small steps -------------------------------------------------------------------- */

static bool looking_at(const struct lexer *l, size_t at, const char *text)
{
    size_t n = strlen(text);
    return l->n - at >= n && memcmp(l->s + at, text, n) == 0;
}

/* Returns the length of the whitespace character at `at`; 0 if there is none. */
static size_t space_at(const struct lexer *l, size_t at)
{
    uint32_t cp = 0;
    size_t k = at < l->n ? utf8_decode(l->s + at, l->n - at, &cp) : 0;
    return k != 0 && jutf_is_space(cp) ? k : 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    for (size_t k; (k = space_at(l, at)) != 0;)
        at += k;
    return at;
}

/* Moves to position `to` and counts the lines that it passes. */
static void advance(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->j->line += l->s[l->at] == '\n';
    if (to > 0)
        l->line_starting = l->s[to - 1] == '\n';
}

static struct jtoken *push(struct lexer *l, enum jtok kind)
{
    struct jtokens *t = l->out;
    jinja_charge(l->j, 0);
    if (t->n == t->cap) {
        size_t cap = t->cap == 0 ? 256 : 2 * t->cap;
        struct jtoken *grown = jinja_calloc(l->j, cap, sizeof *grown);
        if (t->n != 0)
            memcpy(grown, t->at, t->n * sizeof *grown);
        t->at = grown;
        t->cap = cap;
    }
    t->at[t->n] = (struct jtoken){.kind = kind, .line = l->j->line};
    return &t->at[t->n++];
}

/* --- text between tags -------------------------------------------------------------- */

/* Returns the end of the text between `begin` and the tag at `tag`, without the whitespace that is
 * dropped. The end depends on the tag's sign ('-', '+' or 0) and whether lstrip_blocks applies to
 * it. */
static size_t text_end(const struct lexer *l, size_t begin, size_t tag, char sign,
                       bool block)
{
    size_t end = begin;
    if (sign == '-') {
        /* `end` becomes the end of the last character that is not whitespace. No whitespace begins
         * inside of a character. */
        for (size_t at; (at = skip_space(l, end)) < tag;)
            end = at + 1;
        return end;
    }
    if (sign == '+' || !block)
        return tag;
    for (end = tag; end > begin && l->s[end - 1] != '\n';)
        end--;
    if (end == begin && !l->line_starting)
        return tag;
    return skip_space(l, end) >= tag ? end : tag;
}

static void push_text(struct lexer *l, size_t begin, size_t end)
{
    if (end > begin)
        push(l, T_DATA)->text = (struct jstr){l->s + begin, end - begin};
}

/* Returns the position after the end of a block tag or comment ("%}", "-%}", "+%}") at `at`; 0 if
 * no tag ends there. */
static size_t tag_end(const struct lexer *l, size_t at, const char *close, bool trims)
{
    char sign = at < l->n ? l->s[at] : 0;
    bool signed_end = sign == '-' || (sign == '+' && trims);
    size_t after = at + signed_end;
    if (after > l->n || !looking_at(l, after, close))
        return 0;
    after += 2;
    if (sign == '-')
        return skip_space(l, after);
    return trims && !signed_end && after < l->n && l->s[after] == '\n' ? after + 1 : after;
}

static size_t find(const struct lexer *l, size_t from, const char *what)
{
    const char *p = from < l->n ? memmem(l->s + from, l->n - from, what, 2) : NULL;
    return p != NULL ? (size_t)(p - l->s) : l->n;
}

/* --- comments and raw blocks -------------------------------------------------------- */

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static void lex_comment(struct lexer *l, size_t inside)
{
    size_t close = find(l, inside, "#}");
    /* at the very end Jinja accepts an unclosed comment, and an unclosed raw block */
    if (inside >= l->n) {
        advance(l, l->n);
        return;
    }
    if (close == l->n)
        jinja_fail(l->j, ERR_FORMAT, "Missing end of comment tag");
    bool signed_end = close > inside && sign_at(l, close - 1) != 0;
    advance(l, tag_end(l, close - signed_end, "#}", true));
}

/* Returns the position after a tag that contains only the word `what`; 0 if it is another tag. The
 * inside of the tag begins at `at`. trims: the newline after the tag is dropped. */
static size_t lone_word(const struct lexer *l, size_t at, const char *what, bool trims)
{
    at = skip_space(l, at);
    if (!looking_at(l, at, what))
        return 0;
    at = skip_space(l, at + strlen(what));
    return tag_end(l, at, "%}", trims);
}

static void lex_raw(struct lexer *l, size_t body)
{
    advance(l, body);
    for (size_t tag = body; (tag = find(l, tag, "{%")) < l->n; tag += 2) {
        char sign = sign_at(l, tag + 2);
        size_t end = lone_word(l, tag + 2 + (sign != 0), "endraw", true);
        if (end == 0)
            continue;
        push_text(l, body, text_end(l, body, tag, sign, true));
        advance(l, end);
        return;
    }
    if (body < l->n)
        jinja_fail(l->j, ERR_FORMAT, "Missing end of raw directive");
}

/* --- inside a tag ------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the position after the digits that begin at `at`. Single underscores may separate
 * digits. */
static size_t skip_digits(const struct lexer *l, size_t at)
{
    while (at < l->n &&
           (is_digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->n &&
                                   is_digit(l->s[at + 1]) && is_digit(l->s[at - 1]))))
        at++;
    return at;
}

/* Returns the position after the exponent at `at`, or `at` if there is none. */
static size_t skip_exponent(const struct lexer *l, size_t at)
{
    if (at >= l->n || (l->s[at] | 0x20) != 'e')
        return at;
    size_t digits = at + 1 + (sign_at(l, at + 1) != 0);
    return digits < l->n && is_digit(l->s[digits]) ? skip_digits(l, digits) : at;
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static void lex_number(struct lexer *l)
{
    size_t begin = l->at;
    size_t end = skip_digits(l, begin);
    bool real = false;
    /* in x.0.1 the numbers are indices: x[0][1] */
    bool after_dot = begin > 0 && l->s[begin - 1] == '.';
    if (!after_dot && end + 1 < l->n && l->s[end] == '.' && is_digit(l->s[end + 1])) {
        end = skip_digits(l, end + 1);
        real = true;
    }
    size_t behind = after_dot ? end : skip_exponent(l, end);
    real = real || behind != end;
    end = behind;
    if (!real && l->s[begin] == '0' && end > begin + 1)
        for (size_t i = begin; i < end; i++)
            if (l->s[i] != '0' && l->s[i] != '_')
                jinja_fail(l->j, ERR_FORMAT, "an integer cannot begin with 0");
    if (end < l->n && is_name_byte(l->s[end]))
        jinja_fail(l->j, ERR_UNSUPPORTED, "number followed by '%c'", l->s[end]);
    char digits[64];
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (n + 1 == sizeof digits)
            jinja_fail(l->j, ERR_UNSUPPORTED, "number of more than 63 digits");
        if (l->s[i] != '_')
            digits[n++] = l->s[i];
    }
    digits[n] = 0;
    struct jtoken *t = push(l, real ? T_REAL : T_INT);
    if (real) {
        t->f = strtod(digits, NULL);
    } else {
        int64_t v = 0;
        for (size_t i = 0; i < n; i++)
            if (__builtin_mul_overflow(v, 10, &v) ||
                __builtin_add_overflow(v, digits[i] - '0', &v))
                jinja_fail(l->j, ERR_UNSUPPORTED, "integer beyond 64 bits");
        t->i = v;
    }
    advance(l, end);
}

/* Returns the character of a hexadecimal escape with `digits` digits at `at`. */
static uint32_t hex_escape(struct lexer *l, size_t at, size_t end, size_t digits)
{
    uint32_t cp = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = at + i < end ? l->s[at + i] : 0;
        bool hex = is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
        if (!hex)
            jinja_fail(l->j, ERR_FORMAT, "truncated \\x, \\u or \\U escape in a string");
        cp = cp << 4 | (uint32_t)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        jinja_fail(l->j, ERR_UNSUPPORTED, "escape \\%0*x is not a character", (int)digits,
                   cp);
    return cp;
}

/* Appends the character of the escape at `at` (its backslash) to b. Returns the position after the
 * escape. */
static size_t lex_escape(struct lexer *l, size_t at, size_t end, struct jbuf *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s[at + 1];
    const char *known = c != 0 ? strchr(from, c) : NULL;
    if (known != NULL) {
        jbuf_put(l->j, b, &to[known - from], 1);
        return at + 2;
    }
    if (c == '\n')
        return at + 2;
    if (c == 'N')
        jinja_fail(l->j, ERR_UNSUPPORTED, "escape \\N in a string");
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t cp = 0;
    size_t after = at + 2 + digits;
    if (digits != 0) {
        cp = hex_escape(l, at + 2, end, digits);
    } else if (c >= '0' && c <= '7') {
        for (after = at + 1; after < end && after < at + 4; after++) {
            if (l->s[after] < '0' || l->s[after] > '7')
                break;
            cp = cp * 8 + (uint32_t)(l->s[after] - '0');
        }
    } else { /* an unknown escape is kept unchanged, as in Python */
        jbuf_put(l->j, b, l->s + at, 1);
        return at + 1;
    }
    char utf8[4];
    jbuf_put(l->j, b, utf8, utf8_encode(cp, utf8));
    return after;
}

static void lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    bool escapes = false;
    for (; end < l->n && l->s[end] != quote; end++)
        if (l->s[end] == '\\') {
            escapes = true;
            end++;
        }
    if (end >= l->n)
        jinja_fail(l->j, ERR_FORMAT, "string without its end");
    struct jtoken *t = push(l, T_STRING);
    if (!escapes) {
        t->text = (struct jstr){l->s + l->at + 1, end - l->at - 1};
    } else {
        struct jbuf b = {0};
        for (size_t at = l->at + 1; at < end;) {
            if (l->s[at] == '\\') {
                at = lex_escape(l, at, end, &b);
            } else {
                jbuf_put(l->j, &b, l->s + at, 1);
                at++;
            }
        }
        t->text = jval_buf(&b).str; /* jval_buf gives an empty text an address, too */
    }
    advance(l, end + 1);
}

static void lex_name(struct lexer *l)
{
    size_t end = l->at;
    while (end < l->n && is_name_byte(l->s[end]))
        end++;
    if (end < l->n && (l->s[end] & 0x80) && space_at(l, end) == 0)
        jinja_fail(l->j, ERR_UNSUPPORTED, "a name that is not ASCII");
    push(l, T_NAME)->text = (struct jstr){l->s + l->at, end - l->at};
    advance(l, end);
}

static void track_bracket(struct lexer *l, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *o = strchr(opening, c);
    if (o != NULL) {
        if (l->n_open == sizeof l->open)
            jinja_fail(l->j, ERR_LIMIT, "more than %zu open brackets", sizeof l->open);
        l->open[l->n_open++] = closing[o - opening];
    } else if (strchr(closing, c) != NULL) {
        if (l->n_open == 0)
            jinja_fail(l->j, ERR_FORMAT, "unexpected '%c'", c);
        if (l->open[--l->n_open] != c)
            jinja_fail(l->j, ERR_FORMAT, "unexpected '%c', expected '%c'", c,
                       l->open[l->n_open]);
    }
}

static void lex_operator(struct lexer *l)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!looking_at(l, l->at, operators[i].text))
            continue;
        track_bracket(l, operators[i].text[0]);
        push(l, T_OP)->op = operators[i].op;
        advance(l, l->at + strlen(operators[i].text));
        return;
    }
    jinja_fail(l->j, ERR_FORMAT, "unexpected character 0x%02x", (unsigned char)l->s[l->at]);
}

/* Reads a tag: starts after its opening bracket and stops after its closing one. */
static void lex_tag(struct lexer *l, bool block)
{
    l->n_open = 0;
    for (;;) {
        if (l->at >= l->n)
            jinja_fail(l->j, ERR_FORMAT, "unexpected end of template inside a tag");
        size_t end = l->n_open == 0 ? tag_end(l, l->at, block ? "%}" : "}}", block) : 0;
        char c = l->s[l->at];
        if (end != 0) {
            push(l, block ? T_BLOCK_END : T_VAR_END);
            advance(l, end);
            return;
        }
        if (space_at(l, l->at) != 0)
            advance(l, skip_space(l, l->at));
        else if (is_digit(c))
            lex_number(l);
        else if (is_name_byte(c) || (c & 0x80))
            lex_name(l);
        else if (c == '\'' || c == '"')
            lex_string(l);
        else
            lex_operator(l);
    }
}

/* --- the whole source --------------------------------------------------------------- */

static struct jstr normalise_newlines(struct jinja *j, struct jstr in)
{
    char *s = jinja_alloc(j, in.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        if (in.s[i] == '\r' && i + 1 < in.n && in.s[i + 1] == '\n')
            continue;
        s[n++] = in.s[i] == '\r' ? '\n' : in.s[i];
    }
    if (n > 0 && s[n - 1] == '\n')
        n--;
    s[n] = 0;
    return (struct jstr){s, n};
}

/* Returns the position of the next "{%", "{{" or "{#" at or after `from`; the end of the source if
 * there is none. */
static size_t find_tag(const struct lexer *l, size_t from)
{
    for (; from + 1 < l->n; from++)
        if (l->s[from] == '{' && strchr("%{#", l->s[from + 1]) && l->s[from + 1] != 0)
            return from;
    return l->n;
}

void jinja_lex(struct jinja *j, struct jstr source, struct jtokens *out)
{
    source = normalise_newlines(j, source);
    struct lexer l = {
        .j = j, .s = source.s, .n = source.n, .out = out, .line_starting = true};
    while (l.at < l.n) {
        size_t begin = l.at;
        size_t tag = find_tag(&l, begin);
        if (tag == l.n) {
            push_text(&l, begin, l.n);
            advance(&l, l.n);
            break;
        }
        char type = l.s[tag + 1];
        char sign = sign_at(&l, tag + 2);
        size_t inside = tag + 2 + (sign != 0);
        push_text(&l, begin, text_end(&l, begin, tag, sign, type != '{'));
        advance(&l, tag);
        size_t raw = type == '%' ? lone_word(&l, inside, "raw", false) : 0;
        if (type == '#') {
            lex_comment(&l, inside);
        } else if (raw != 0) {
            lex_raw(&l, raw);
        } else {
            push(&l, type == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN);
            advance(&l, inside);
            lex_tag(&l, type == '%');
        }
    }
    push(&l, T_END);
}
