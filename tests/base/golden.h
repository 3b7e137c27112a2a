/* golden.h - compares a text with a golden file. */
#ifndef TESTS_BASE_GOLDEN_H
#define TESTS_BASE_GOLDEN_H

#include "base/textbuf.h"

/* Fails the test at the first line of the text that differs from the file's. Frees the text. With
 * HCACHE_WRITE_GOLDEN=1 it writes the file instead: the version control's diff then shows what has
 * changed. */
void golden_check(struct textbuf *text, const char *path);

/* Compares the text's digests, one for each 100 lines, with those under `name` in the golden file.
 * For texts of thousands of lines. HCACHE_WRITE_GOLDEN=1 writes the digests; with
 * HCACHE_GOLDEN_TEXTS=DIR the text goes to DIR/NAME.txt, so that a diff of two commits' texts shows
 * what has changed. Frees the text. */
void golden_digests(struct textbuf *text, const char *path, const char *name);

#endif
