/* opt_parts.h - what --help, man pages and completion share about one option; for
 * src/base/opt_*.c. */
#ifndef BASE_OPT_PARTS_H
#define BASE_OPT_PARTS_H

#include "base/opt.h"

/* How the option's value is shown: "N", "FILE", "a|b"; "" for a flag.  May use out. */
const char *opt_arg_text(const struct opt *o, char *out, size_t out_bytes);
/* The help text with default and bounds: "... (default 128; 1 to 1000000)". */
void opt_explain(const struct opt *o, char *out, size_t out_bytes);

#endif
