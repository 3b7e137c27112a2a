/* said.c - see said.h. */

#include "tests/unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "said.h"

static int caught_fd = -1, own_fd = -1;
static enum log_level own_level;
static char text[1 << 16];

void said_begin(enum log_level level)
{
    assert_true(caught_fd < 0);
    fflush(stderr);
    caught_fd = memfd_create("stderr", MFD_CLOEXEC);
    own_fd = dup(STDERR_FILENO);
    assert_true(caught_fd >= 0 && own_fd >= 0);
    assert_int_equal(dup2(caught_fd, STDERR_FILENO), STDERR_FILENO);
    own_level = log_level();
    log_set_level(level);
}

const char *said_so_far(void)
{
    fflush(stderr);
    ssize_t n = pread(caught_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

const char *said_end(void)
{
    said_so_far();
    log_set_level(own_level);
    assert_int_equal(dup2(own_fd, STDERR_FILENO), STDERR_FILENO);
    close(own_fd);
    close(caught_fd);
    caught_fd = own_fd = -1;
    return text;
}

int said_count(const char *all, const char *part)
{
    int n = 0;
    for (const char *at = all; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}
