/* niceness.c - see niceness.h. */
#include "tests/base/niceness.h"

#include "tests/unit.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>

int threads_at_nice(int nice)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *e; (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.')
            n += getpriority(PRIO_PROCESS, (id_t)atoi(e->d_name)) == nice;
    closedir(tasks);
    return n;
}
