/* json_scan.h - examines a JSON text before it is parsed, without building a tree.
 *
 * A parsed value may take eighty times the bytes of its text ("{}," is three bytes).  So a text
 * from outside is scanned first.  The scan tells how much memory its tree would take, and blanks
 * out the members that the caller ignores, however large they are. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Returns 0, or ERR_FORMAT if the text is not JSON or is nested deeper than json_parse allows.
 * *cost is an upper bound on the bytes that json_parse takes for the tree (after an error: for the
 * part before the error). A member of the outermost object whose name ignores(arg, name, n) accepts
 * is checked like other members, and its value is then overwritten with 0 and spaces; ignores NULL:
 * no member is ignored. Duplicate keys inside such a value are not detected. `file` begins the
 * message. */
int json_scan(char *text, size_t n,
              bool (*ignores)(const void *arg, const char *name, size_t n_name),
              const void *arg, const char *file, size_t *cost, struct err *err);

/* Returns the string value of a member of the outermost object, from malloc. Returns NULL if there
 * is no such member, it is no string, or the text is not JSON up to the member's end. */
char *json_find_text(const char *text, size_t n, const char *name);
/* Finds a member of the outermost object: text[*at, *at + *len) is its value as it is written.
 * Returns false if there is none. */
bool json_find(const char *text, size_t n, const char *name, size_t *at, size_t *len);

#endif
