/* known.h - short texts that this user's processes have found out and remember, by a key.
 *
 * They lie in one file, $XDG_CACHE_HOME/hcache/known (~/.cache/hcache/known), a line for each:
 *
 *     key, 64 hexadecimal digits | checksum of key and text, 16 | text
 *
 * The file has at most KNOWN_MAX lines; the oldest go first.  It is a cache: a process that is
 * killed while it writes loses lines, and lines with a wrong checksum are ignored.  A file that
 * belongs to another user, or that others may write, is neither read nor written.  Any thread and
 * any process may call. */
#ifndef BASE_KNOWN_H
#define BASE_KNOWN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"

enum { KNOWN_MAX = 256, KNOWN_TEXT_BYTES = 600 };

/* Returns the path of a folder beside the file, from malloc; NULL if there is none, or if others
 * may write to it. With `makes` a missing folder is made. */
char *known_folder(const char *name, bool makes);

/* Copies the newest text of a key to out [KNOWN_TEXT_BYTES]. Returns false if there is none. */
bool known_get(const struct sha256 *key, char *out);
/* Remembers a text of one line. Does nothing if the user has no home directory, or the file cannot
 * be written. */
void known_put(const struct sha256 *key, const char *text);

#endif
