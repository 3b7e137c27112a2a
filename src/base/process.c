/* process.c - see process.h. */
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

/* Returns the number behind a label in a system file, times unit; UINT64_MAX if it is not there. */
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

/* Returns how many bytes this process's control group (version 2) has left. */
static uint64_t group_memory_left(void)
{
    char line[PATH_MAX], path[2 * PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool found = f != NULL && fgets(line, sizeof line, f) != NULL &&
                 strncmp(line, "0::", 3) == 0;
    if (f != NULL)
        fclose(f);
    if (!found)
        return least;
    line[strcspn(line, "\n")] = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
    uint64_t most = number_in(path, "", 1);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
    uint64_t used = number_in(path, "", 1);
    if (most == UINT64_MAX || used == UINT64_MAX)
        return least;
    return used < most ? most - used : 0;
}

uint64_t process_memory_left(void)
{
    uint64_t free_bytes = number_in("/proc/meminfo", "MemAvailable:", 1024);
    uint64_t group = group_memory_left();
    uint64_t least = free_bytes < group ? free_bytes : group;
    return least == UINT64_MAX ? 0 : least;
}

uint64_t process_memory_peak(void)
{
    uint64_t peak = number_in("/proc/self/status", "VmHWM:", 1024);
    return peak == UINT64_MAX ? 0 : peak;
}
