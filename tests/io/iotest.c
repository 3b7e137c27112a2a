#include "iotest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/io_sim.h"

int iotest_setup(void **state)
{
    const char *kind = *state;
    struct iotest *t = xcalloc(1, sizeof *t);
    struct err err = {0};
    int rc = 0;
    *state = t;
    if (strcmp(kind, "sim") == 0) {
        rc = io_sim_open(&(struct io_sim_opts){.seed = 1}, &t->io, &err);
        strcpy(t->dir, "/work");
        return rc != 0 ? rc : io_mkdir(t->io, t->dir, NULL);
    }
    if (strcmp(kind, "uring") == 0)
        rc = io_uring_open(&t->io, &err);
    else
        t->io = io_pread_open();
    if (rc == ERR_UNSUPPORTED) {
        print_message("SKIP: %s\n", err.msg);
        return 0;
    }
    if (rc == 0)
        tempdir_make_on_disk(t->dir, "io");
    return rc;
}

struct iotest *iotest_begin(void **state)
{
    struct iotest *t = *state;
    if (t->io == NULL)
        skip();
    return t;
}

int iotest_teardown(void **state)
{
    struct iotest *t = *state;
    if (t->io != NULL && strcmp(io_name(t->io), "sim") != 0)
        tempdir_remove(t->dir);
    io_close(t->io);
    free(t);
    return 0;
}

const char *iotest_path(struct iotest *t, const char *name)
{
    char *p = t->path[t->n_paths++ % 8];
    snprintf(p, sizeof t->path[0], "%s/%s", t->dir, name);
    return p;
}

uint8_t *iotest_buffer(size_t n)
{
    uint8_t *p = aligned_alloc(IO_ALIGN, (n + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN);
    assert_non_null(p);
    return p;
}

void iotest_fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_mix(seed * 0x10001 + i);
}
