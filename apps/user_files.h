/* user_files.h - files that commands keep for their user, below $XDG_STATE_HOME/hcache
 * (~/.local/state/hcache). */
#ifndef APPS_USER_FILES_H
#define APPS_USER_FILES_H

/* Returns the file's path, from malloc; NULL: the user has no home directory. */
char *user_file(const char *name);
/* Creates the folders above the file, for this user alone. A failure shows when the file opens. */
void user_file_make_folders(const char *path);

#endif
