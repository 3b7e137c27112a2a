/* quotes.h - JSON in the text of a test, with ' in place of ". */
#ifndef TESTS_QUOTES_H
#define TESTS_QUOTES_H

#include <stdio.h>
#include <string.h>

#include "tests/unit.h"

/* Replaces each ' of a text by ". Returns the text. */
static inline char *quotes_in(char *text)
{
    for (char *p = text; (p = strchr(p, '\'')) != NULL;)
        *p = '"';
    return text;
}

/* Returns a copy in which each ' is ". It is valid until the eighth call from now. */
static inline const char *quotes(const char *text)
{
    static char copy[8][16384];
    static int next;
    char *to = copy[next++ % 8];
    assert_in_range(snprintf(to, sizeof copy[0], "%s", text), 0, sizeof copy[0] - 1);
    return quotes_in(to);
}

#endif
