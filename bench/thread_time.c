/* thread_time.c - see thread_time.h. */
#include "bench/thread_time.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Reads the first line of a file below /proc/PID/task/TID. Returns false if the file does not
 * exist, because the thread may have ended. */
static bool read_line(int64_t pid, const char *tid, const char *file, char *line, int n)
{
    char path[320];
    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/task/%s/%s", pid, tid, file);
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && fgets(line, n, f) != NULL;
    if (f != NULL)
        (void)fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = 0;
    return ok;
}

static int idx_of(const struct thread_time *t, const char *name)
{
    int i = 0;
    while (i < t->n && strcmp(t->of[i].name, name) != 0)
        i++;
    return i;
}

static int add_thread(struct thread_time *t, int64_t pid, const char *tid, struct err *err)
{
    char name[sizeof t->of[0].name], line[128];
    int64_t ns;
    if (!read_line(pid, tid, "comm", name, sizeof name))
        return 0;
    if (!read_line(pid, tid, "schedstat", line, sizeof line) ||
        sscanf(line, "%" SCNd64, &ns) != 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "this kernel does not report processor time of threads "
                       "(/proc/PID/task/TID/schedstat)");
    int i = idx_of(t, name);
    if (i == THREAD_TIME_NAMES)
        return err_set(err, ERR_UNSUPPORTED,
                       "process %" PRId64 " has threads of more than %d names", pid,
                       THREAD_TIME_NAMES);
    if (i == t->n)
        (void)snprintf(t->of[t->n++].name, sizeof name, "%s", name);
    t->of[i].ns += ns;
    return 0;
}

int thread_time_of(int64_t pid, struct thread_time *out, struct err *err)
{
    char path[64];
    int rc = 0;
    *out = (struct thread_time){0};
    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/task", pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        return err_set(err, ERR_NOT_FOUND, "process %" PRId64 ": %s", pid, strerror(errno));
    for (struct dirent *e; rc == 0 && (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.')
            rc = add_thread(out, pid, e->d_name, err);
    (void)closedir(tasks);
    return rc;
}

int64_t thread_time_since(const struct thread_time *before, const struct thread_time *now,
                          int name_idx)
{
    int i = idx_of(before, now->of[name_idx].name);
    return now->of[name_idx].ns - (i < before->n ? before->of[i].ns : 0);
}
