/* plugin.h - finds a shared library of this build that the program loads on demand. */
#ifndef TENSOR_PLUGIN_H
#define TENSOR_PLUGIN_H

#include <stddef.h>

/* Loads `file` and returns the object of that name; NULL, with the reason: there is none. It is
 * looked for beside the program or libhcache.so, then in ../lib/hcache and in hcache/ from there;
 * HCACHE_PLUGINS names another folder.  `advice` ends the reason of a file that is not found. */
const void *plugin_symbol(const char *file, const char *symbol, const char *advice,
                          char *reason, size_t room);

#endif
