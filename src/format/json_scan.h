/* json_scan.h - looks through a JSON text before it is parsed, and builds nothing.
 *
 * A parsed value may take eighty times the bytes of its text ("{}," is three).  So a text that
 * comes from outside is scanned first: the scan tells what its tree would take, and takes out
 * the members that nobody is going to look at, however large they are. */
#ifndef FORMAT_JSON_SCAN_H
#define FORMAT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Returns 0, or ERR_FORMAT where the text is no JSON, or nested deeper than json_parse allows.
 *
 * *cost is the most that json_parse takes for the tree, in bytes; at an error, for what stands
 * before it.  The value of each member of the outermost object whose name ignores(arg, name, n)
 * accepts (NULL: none) is checked like the others, and then overwritten with 0 and spaces.  Of
 * such a value duplicate keys are not seen.  `file` begins the message. */
int json_scan(char *text, size_t n,
              bool (*ignores)(const void *arg, const char *name, size_t n_name),
              const void *arg, const char *file, size_t *cost, struct err *err);

#endif
