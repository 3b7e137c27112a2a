/* hub.h - the folder of models that `hcache pull` fetches, and their names OWNER/REPO[:TYPE].
 *
 *     FOLDER/OWNER/REPO/FILE      a GGUF file, its parts, or the files of a checkpoint
 *
 * A file that is not whole has the end ".part"; only a whole and verified file has its name. */
#ifndef APPS_HUB_H
#define APPS_HUB_H

#include <stdbool.h>

#include "base/err.h"

/* Returns the folder: `given`, or $XDG_CACHE_HOME/hcache/models (~/.cache/hcache/models), from
 * malloc; NULL: the user has no home directory. */
char *hub_folder(const char *given);

struct hub_name {
    char owner[128], repo[128], type[64]; /* type "": any */
};
/* Reads OWNER/REPO[:TYPE]. Returns 0, or ERR_USAGE. */
int hub_name_read(const char *text, struct hub_name *out, struct err *err);

/* Returns whether a file of a repository is the GGUF file, or the first part of one, that has the
 * type: "Q4_K_M" matches "model-Q4_K_M.gguf", in either case. Type "": every GGUF file. */
bool hub_file_is(const char *file, const char *type);
/* Finds a fetched model by its name. Returns its path, from malloc, with *path NULL if `text`
 * names a file or folder, or is no such name. Returns ERR_NOT_FOUND if it is not fetched. */
int hub_find(const char *text, const char *folder, char **path, struct err *err);

#endif
