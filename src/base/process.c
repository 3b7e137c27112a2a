/* process.c - see process.h. */
#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_open(const char *pid, uint64_t device, uint64_t inode)
{
    char dir[300], path[600];
    bool found = false;
    snprintf(dir, sizeof dir, "/proc/%s/fd", pid);
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d != NULL && !found && (e = readdir(d)) != NULL) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        found = e->d_name[0] != '.' && stat(path, &st) == 0 && st.st_dev == device &&
                st.st_ino == inode;
    }
    if (d != NULL)
        closedir(d);
    return found;
}

/* Arguments are separated by zero bytes; control characters would spoil a terminal. */
static void describe(const char *pid, char *out, size_t n)
{
    char path[300], line[160];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
    if (fd >= 0)
        close(fd);
    while (got > 0 && line[got - 1] == 0)
        got--;
    for (ssize_t i = 0; i < got; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127)
            line[i] = ' ';
    if (got > 0)
        snprintf(out, n, "process %s (%.*s)", pid, (int)got, line);
    else
        snprintf(out, n, "process %s", pid);
}

bool process_with_file(uint64_t device, uint64_t inode, char *out, size_t n)
{
    char self[16];
    bool found = false;
    snprintf(self, sizeof self, "%ld", (long)getpid());
    DIR *d = opendir("/proc");
    struct dirent *e;
    while (d != NULL && !found && (e = readdir(d)) != NULL) {
        bool is_process = e->d_name[0] >= '1' && e->d_name[0] <= '9';
        found = is_process && strcmp(e->d_name, self) != 0 &&
                has_open(e->d_name, device, inode);
        if (found)
            describe(e->d_name, out, n);
    }
    if (d != NULL)
        closedir(d);
    if (!found && (found = has_open(self, device, inode)))
        snprintf(out, n, "this process");
    return found;
}
