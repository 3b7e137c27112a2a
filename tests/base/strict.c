/* strict.c - a test program fails at its end if it has left memory mapped or files open.
 *
 * The leak sanitizer sees what malloc has given out; devices, tiers and staging buffers have
 * mappings (mem_map), files have descriptors. Linked into every test. */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem_left.h"

static pid_t pid;
static int n_open_before;

static int n_open(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return n;
}

__attribute__((constructor)) static void remember_program(void)
{
    pid = getpid();
    n_open_before = n_open();
}

__attribute__((destructor)) static void look_for_rests(void)
{
    int n_files = n_open() - n_open_before;
    if (getpid() != pid || (mem_mappings() == 0 && n_files <= 0))
        return; /* a child of the program ends in the middle of a test */
    fprintf(stderr, "at the end %d mappings of mem_map and %d descriptors are left\n",
            mem_mappings(), n_files);
    _exit(25);
}
