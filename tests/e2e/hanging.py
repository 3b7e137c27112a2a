"""A library loaded before the C library: reads of a store's segments do not return while the file
$HANG exists.  It disables io_uring, so that the restores' I/O thread itself hangs in a read."""
import os
import subprocess

HANG = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int io_uring_queue_init(unsigned n, void *ring, unsigned flags)
{
    (void)n, (void)ring, (void)flags;
    return -ENOSYS;
}
ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/seg-") != NULL)
        while (access(getenv("HANG"), F_OK) == 0)
            usleep(1000);
    return syscall(SYS_pread64, fd, buf, n, at);
}
"""


def build_library(folder):
    """Builds the library and returns its path."""
    library, source = os.path.join(folder, "hang.so"), os.path.join(folder, "hang.c")
    with open(source, "w") as f:
        f.write(HANG)
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library
