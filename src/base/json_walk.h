/* json_walk.h - finds the end of a JSON object or array in a text that arrives byte by byte. Pure.
 *
 * A walk follows brackets, strings, commas and colons. So a bracket inside a string counts as text,
 * and a missing bracket or quotation mark is found at the first byte that cannot follow. Words,
 * numbers and escapes are not checked: json_parse does that once the text is whole. */
#ifndef BASE_JSON_WALK_H
#define BASE_JSON_WALK_H

#include <stdint.h>

/* {0} is the beginning of a value. */
struct json_walk {
    uint8_t is_object[17]; /* a bit for each open bracket */
    uint8_t depth, state;
};

/* Returns 1 if the byte ends the value, 0 if the value goes on, -1 if the byte cannot follow. After
 * a result other than 0 the walk is over. Blanks before the value are not allowed. */
int json_walk(struct json_walk *w, char byte);

#endif
