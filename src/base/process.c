/* process.c - see process.h. */
#include "base/minmax.h"
#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
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

/* Describes a process by its command line. Arguments are separated by zero bytes, and control
 * characters would spoil a terminal, so both become spaces. */
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

/* Returns the number after a label in a system file, times `unit`; UINT64_MAX without the label. */
static uint64_t number_in(const char *path, const char *label, uint64_t unit)
{
    char line[256];
    unsigned long long n = 0;
    bool found = false;
    FILE *f = fopen(path, "re");
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, label, strlen(label)) == 0 &&
                sscanf(line + strlen(label), "%llu", &n) == 1;
    if (f != NULL)
        fclose(f);
    return found ? (uint64_t)n * unit : UINT64_MAX;
}

/* --- control groups --------------------------------------------------------------------------- */

/* The names in one version of control groups: the controller's folder, the files with the limit and
 * with the used memory, and the labels of the file pages in memory.stat. */
struct group_files {
    const char *folder, *most, *used, *idle, *active;
};
static const struct group_files versions[] = {
    {"", "memory.max", "memory.current", "inactive_file ", "active_file "},
    {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
     "total_active_file "},
};

static uint64_t number_of_group(const char *dir, const char *file, const char *label)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return number_in(path, label, 1);
}

/* Returns how many bytes a group may still use; UINT64_MAX: it has no limit. The kernel can drop
 * file pages, also those that were used lately, so they count as free, as in MemAvailable. */
static uint64_t left_in(const struct group_files *f, const char *dir)
{
    uint64_t most = number_of_group(dir, f->most, "");
    uint64_t used = number_of_group(dir, f->used, "");
    uint64_t idle = number_of_group(dir, "memory.stat", f->idle);
    uint64_t active = number_of_group(dir, "memory.stat", f->active);
    uint64_t cache = (idle != UINT64_MAX ? idle : 0) + (active != UINT64_MAX ? active : 0);
    if (most == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    used -= cache < used ? cache : 0;
    return used < most ? most - used : 0;
}

/* Returns the smallest left_in of the group at `path` and all its ancestors, because each of them
 * bounds the process. Cuts `path` down meanwhile. In a container `path` may be the host's, while
 * only the root, its own group, is there. */
static uint64_t least_upwards(const struct group_files *f, const char *root, char *path)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, "%s%s%s", root, f->folder, path);
        uint64_t left = left_in(f, dir);
        least = MIN(left, least);
        char *end = strrchr(path, '/');
        if (end == NULL)
            return least;
        *end = 0;
    }
}

/* Returns whether a line of /proc/self/cgroup lists "memory" between its first two colons. */
static bool has_memory(const char *controllers)
{
    size_t n = strlen("memory");
    for (const char *c = controllers; *c != 0 && *c != ':'; c++)
        if ((c == controllers || c[-1] == ',') && strncmp(c, "memory", n) == 0 &&
            (c[n] == ',' || c[n] == ':'))
            return true;
    return false;
}

uint64_t process_group_memory_left(const char *groups, const char *root)
{
    char line[PATH_MAX / 2];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(groups, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL)
            continue;
        bool is_v2 = strncmp(line, "0::", 3) == 0;
        if (!is_v2 && !has_memory(controllers + 1))
            continue;
        uint64_t left = least_upwards(&versions[is_v2 ? 0 : 1], root, path + 1);
        least = MIN(left, least);
    }
    if (f != NULL)
        fclose(f);
    return least;
}

/* --- memory ----------------------------------------------------------------------------------- */

uint64_t process_memory_left(void)
{
    uint64_t free_bytes = number_in("/proc/meminfo", "MemAvailable:", 1024);
    uint64_t group = process_group_memory_left("/proc/self/cgroup", "/sys/fs/cgroup");
    uint64_t least = MIN(free_bytes, group);
    return least == UINT64_MAX ? 0 : least;
}
