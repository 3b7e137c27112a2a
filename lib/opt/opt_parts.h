/* opt_parts.h - functions that --help, man pages and completion share; private to src/base. */
#ifndef BASE_OPT_PARTS_H
#define BASE_OPT_PARTS_H

#include "opt/opt.h"

/* Returns how the option's value is shown: "N", "FILE", "a|b"; "" for a flag. The result may point
 * into out. */
const char *opt_arg_text(const struct opt *o, char *out, size_t out_bytes);
/* Writes the help text with default and bounds: "... (default 128; 1 to 1000000)". */
void opt_explain(const struct opt *o, char *out, size_t out_bytes);

#endif
