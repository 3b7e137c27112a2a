/* medium.h - tells whether erased bytes leave the medium under a folder. */
#ifndef APPS_MEDIUM_H
#define APPS_MEDIUM_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true if files in the folder are overwritten in place, as far as a program can see
 * (io_medium_check), and share no blocks with other files. Else `why` names the reason. */
bool medium_check(const char *dir, char *why, size_t n);

/* Warns if erased bytes may stay on the medium under the folder. */
void medium_warn(const char *dir);

#endif
