/* golden.h - compares a text with a golden file. */
#ifndef TESTS_BASE_GOLDEN_H
#define TESTS_BASE_GOLDEN_H

#include "base/textbuf.h"

/* Fails the test at the first line of the text that differs from the file's. Frees the text. With
 * HCACHE_WRITE_GOLDEN=1 it writes the file instead: the version control's diff then shows what has
 * changed. */
void golden_check(struct textbuf *text, const char *path);

#endif
