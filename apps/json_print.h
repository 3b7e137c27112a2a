/* json_print.h - prints a JSON value on standard output. */
#ifndef APPS_JSON_PRINT_H
#define APPS_JSON_PRINT_H

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"

/* Prints the value and a line feed, with json_text's indent, and frees the value. */
static inline void json_print(struct json *v, int indent)
{
    char *text = json_text(v, indent);
    puts(text);
    free(text);
    json_free(v);
}

#endif
