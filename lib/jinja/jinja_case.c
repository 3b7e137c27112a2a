/* jinja_case.c - upper and lower case, exact for a list of scripts.
 *
 * It covers ASCII, Latin-1, Latin Extended-A, Greek without its special cases, Cyrillic, and the
 * blocks without case (CJK, Hangul, Arabic, Indic, symbols, emoji).  Any other character is an
 * error.  In practice templates change the case of names of roles and types, and an error is better
 * than a wrong letter.  (Only the tokenizer uses utf8proc, the library that covers all of Unicode.)
 */
#include "jinja/jinja_impl.h"

#include "base/utf8.h"

/* Ranges of letters. The lower case of an upper letter is `step` code points further on. step 0:
 * upper and lower letters alternate, and upper letters have the parity of `first`. */
static const struct {
    /* range of the upper letters; if letters alternate, of all letters */
    uint16_t first, last;
    uint16_t step;
} pairs[] = {
    {'A', 'Z', 32},     {0xC0, 0xD6, 32},   {0xD8, 0xDE, 32},   {0x100, 0x12F, 0},
    {0x132, 0x137, 0},  {0x139, 0x148, 0},  {0x14A, 0x177, 0},  {0x179, 0x17E, 0},
    {0x388, 0x38A, 37}, {0x386, 0x386, 38}, {0x38C, 0x38C, 64}, {0x38E, 0x38F, 63},
    {0x391, 0x3A1, 32}, {0x3A3, 0x3AB, 32}, {0x400, 0x40F, 80}, {0x410, 0x42F, 32},
    {0x460, 0x481, 0},  {0x48A, 0x4BF, 0},  {0x4C0, 0x4C0, 15}, {0x4C1, 0x4CE, 0},
    {0x4D0, 0x52F, 0},
};

static const struct {
    uint32_t first, last;
} caseless[] = {
    {0x00, 0x40},       {0x5B, 0x60},       {0x7B, 0xA9},       {0xAB, 0xB4},
    {0xB6, 0xB9},       {0xBB, 0xBF},       {0xD7, 0xD7},       {0xF7, 0xF7},
    {0x300, 0x344},     {0x346, 0x36F},     {0x483, 0x489},     {0x591, 0x109F},
    {0x1100, 0x139F},   {0x1780, 0x17FF},   {0x2000, 0x206F},   {0x20A0, 0x20CF},
    {0x2190, 0x245F},   {0x2500, 0x2BFF},   {0x2E80, 0xA4FF},   {0xAC00, 0xD7FF},
    {0xF900, 0xFAFF},   {0xFE00, 0xFF20},   {0xFF5B, 0xFFFD},   {0x1F000, 0x1F12F},
    {0x1F18A, 0x1FAFF}, {0x20000, 0x3FFFD}, {0xE0100, 0xE01EF},
};

enum letter { CASELESS, LOWER, UPPER };

/* Returns the class of the letter cp (upper, lower, none). *other: the same letter in the other
 * case. */
static enum letter letter(struct jinja *j, uint32_t cp, uint32_t *other)
{
    *other = cp;
    if (cp == 0xFF || cp == 0x178) {
        *other = cp == 0xFF ? 0x178 : 0xFF;
        return cp == 0xFF ? LOWER : UPPER;
    }
    for (size_t i = 0; i < sizeof caseless / sizeof *caseless; i++)
        if (cp >= caseless[i].first && cp <= caseless[i].last)
            return CASELESS;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        uint32_t first = pairs[i].first, last = pairs[i].last, step = pairs[i].step;
        if (step == 0 && cp >= first && cp <= last) {
            bool upper = (cp & 1) == (first & 1);
            *other = upper ? cp + 1 : cp - 1;
            return upper ? UPPER : LOWER;
        }
        if (step != 0 && cp >= first && cp <= last) {
            *other = cp + step;
            return UPPER;
        }
        if (step != 0 && cp >= first + step && cp <= last + step && cp != 0x3C2) {
            *other = cp - step;
            return LOWER;
        }
    }
    jinja_fail(j, ERR_UNSUPPORTED,
               "the upper or lower case of the character U+%04X is not known", cp);
}

static void put_char(struct jinja *j, struct jbuf *b, const char *from, uint32_t cp)
{
    char utf8[4];
    size_t n = utf8_encode(cp, utf8);
    jbuf_put(j, b, utf8, n);
    jbuf_inherit(j, b, n, from);
}

/* Appends the character cp, which lies at `from`, in the wanted case. */
static void put_cased(struct jinja *j, struct jbuf *b, const char *from, uint32_t cp,
                      enum letter want)
{
    uint32_t other;
    /* U+00DF is already lower case; its upper case has two letters. */
    if (cp == 0xDF && want == LOWER) {
        put_char(j, b, from, cp);
        return;
    }
    enum letter is = letter(j, cp, &other);
    if (cp == 0x3A3 && want == LOWER)
        jinja_fail(j, ERR_UNSUPPORTED, "the lower case of a sigma depends on its word");
    put_char(j, b, from, is != CASELESS && is != want ? other : cp);
}

static struct jstr map_case(struct jinja *j, struct jstr s, enum letter want)
{
    struct jbuf b = {0};
    uint32_t cp = 0;
    for (size_t i = 0, at; i < s.n;) {
        i += utf8_decode(s.s + (at = i), s.n - i, &cp);
        if (cp == 0xDF && want == UPPER)
            jbuf_puts(j, &b, "SS");
        else
            put_cased(j, &b, s.s + at, cp, want);
    }
    return jval_buf(&b).str;
}

struct jstr jstr_upper(struct jinja *j, struct jstr s)
{
    return map_case(j, s, UPPER);
}

struct jstr jstr_lower(struct jinja *j, struct jstr s)
{
    return map_case(j, s, LOWER);
}

struct jstr jstr_capitalize(struct jinja *j, struct jstr s)
{
    struct jbuf b = {0};
    uint32_t cp = 0;
    for (size_t i = 0, at; i < s.n;) {
        enum letter want = i == 0 ? UPPER : LOWER;
        i += utf8_decode(s.s + (at = i), s.n - i, &cp);
        put_cased(j, &b, s.s + at, cp, want);
    }
    return jval_buf(&b).str;
}

/* str.title: a letter that follows a letter becomes lower case, any other letter upper case. */
struct jstr jstr_title(struct jinja *j, struct jstr s)
{
    struct jbuf b = {0};
    uint32_t cp = 0, other;
    enum letter want = UPPER;
    for (size_t i = 0, at; i < s.n;) {
        i += utf8_decode(s.s + (at = i), s.n - i, &cp);
        put_cased(j, &b, s.s + at, cp, want);
        want = cp == 0xDF || letter(j, cp, &other) != CASELESS ? LOWER : UPPER;
    }
    return jval_buf(&b).str;
}

/* The filter `title`: a word begins after whitespace and after each of - ( { [ < */
struct jstr jstr_title_filter(struct jinja *j, struct jstr s)
{
    struct jbuf b = {0};
    uint32_t cp = 0;
    enum letter want = UPPER;
    for (size_t i = 0, at; i < s.n;) {
        i += utf8_decode(s.s + (at = i), s.n - i, &cp);
        put_cased(j, &b, s.s + at, cp, want);
        bool starts = jutf_is_space(cp) || cp == '-' || cp == '(' || cp == '{' ||
                      cp == '[' || cp == '<';
        want = starts ? UPPER : LOWER;
    }
    return jval_buf(&b).str;
}

bool jstr_cased(struct jinja *j, struct jstr s, bool upper)
{
    bool any = false;
    uint32_t cp = 0, other;
    for (size_t i = 0; i < s.n;) {
        i += utf8_decode(s.s + i, s.n - i, &cp);
        enum letter is = cp == 0xDF ? LOWER : letter(j, cp, &other);
        if (is == (upper ? LOWER : UPPER))
            return false;
        any = any || is != CASELESS;
    }
    jinja_charge(j, s.n);
    return any;
}
