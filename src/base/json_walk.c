/* json_walk.c - see json_walk.h. */
#include "base/json_walk.h"

#include <stdbool.h>
#include <string.h>

#include "base/json.h"

/* What may follow. Behind an opening bracket this is FIRST_ELEMENT or FIRST_KEY, which allow the
 * closing bracket, too. Behind a comma it is ELEMENT or KEY, which do not. */
enum {
    BEGIN,
    FIRST_ELEMENT,
    ELEMENT,
    FIRST_KEY,
    KEY,
    IN_KEY,
    KEY_ESCAPE,
    COLON,
    VALUE,
    IN_STRING,
    STRING_ESCAPE,
    IN_WORD,
    AFTER, /* a comma or a closing bracket */
};

static bool is_object(const struct json_walk *w)
{
    unsigned i = w->depth - 1u;
    return (w->is_object[i / 8] >> (i % 8) & 1) != 0;
}

static int open(struct json_walk *w, bool object)
{
    unsigned i = w->depth;
    if (i >= JSON_MAX_DEPTH)
        return -1;
    uint8_t bit = (uint8_t)(1u << (i % 8));
    w->is_object[i / 8] = (uint8_t)(object ? w->is_object[i / 8] | bit
                                           : w->is_object[i / 8] & ~bit);
    w->depth++;
    w->state = object ? FIRST_KEY : FIRST_ELEMENT;
    return 0;
}

static int close(struct json_walk *w, char byte)
{
    if (is_object(w) != (byte == '}'))
        return -1;
    w->depth--;
    w->state = AFTER;
    return w->depth == 0;
}

static int value(struct json_walk *w, char c)
{
    if (c == '{' || c == '[')
        return open(w, c == '{');
    if (w->depth == 0)
        return -1;
    if (c == '"')
        w->state = IN_STRING;
    else if (c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' || c == 'n')
        w->state = IN_WORD;
    else
        return -1;
    return 0;
}

static int string(struct json_walk *w, char c, unsigned end, unsigned escape)
{
    if ((unsigned char)c < 0x20)
        return -1;
    w->state = (uint8_t)(c == '"' ? end : c == '\\' ? escape : w->state);
    return 0;
}

static int after(struct json_walk *w, char c)
{
    if (c == '}' || c == ']')
        return close(w, c);
    if (c != ',')
        return -1;
    w->state = is_object(w) ? KEY : ELEMENT;
    return 0;
}

static bool is_of_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || strchr("+-.E", c) != NULL;
}

int json_walk(struct json_walk *w, char c)
{
    bool is_blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    switch (w->state) {
    case IN_KEY:
        return string(w, c, COLON, KEY_ESCAPE);
    case IN_STRING:
        return string(w, c, AFTER, STRING_ESCAPE);
    case KEY_ESCAPE:
    case STRING_ESCAPE:
        w->state = w->state == KEY_ESCAPE ? IN_KEY : IN_STRING;
        return (unsigned char)c < 0x20 ? -1 : 0;
    case IN_WORD:
        if (c != 0 && is_of_word(c))
            return 0;
        w->state = AFTER;
        return is_blank ? 0 : after(w, c);
    case BEGIN:
        return value(w, c);
    default:
        break;
    }
    if (is_blank)
        return 0;
    switch (w->state) {
    case FIRST_ELEMENT:
        return c == ']' ? close(w, c) : value(w, c);
    case FIRST_KEY:
    case KEY:
        if (c == '}' && w->state == FIRST_KEY)
            return close(w, c);
        w->state = IN_KEY;
        return c == '"' ? 0 : -1;
    case COLON:
        w->state = VALUE;
        return c == ':' ? 0 : -1;
    case AFTER:
        return after(w, c);
    default: /* ELEMENT, VALUE */
        return value(w, c);
    }
}
