/* store_titles.h - tells which conversation a stored chunk belongs to, for `hcache store ls`. */
#ifndef APPS_STORE_TITLES_H
#define APPS_STORE_TITLES_H

#include "base/hash.h"

struct seal;
struct store_titles;

/* Reads the conversations in the store's first directory.  It never fails: without that file, or
 * while a server has it open, there are no titles. */
struct store_titles *store_titles_open(const char *dir, const struct seal *seal);
void store_titles_close(struct store_titles *t); /* NULL is allowed */

/* Returns the title of the conversation that used the chunk last; NULL: no conversation did. Valid
 * until store_titles_close. */
const char *store_titles_find(const struct store_titles *t, const struct sha256 *key);

#endif
