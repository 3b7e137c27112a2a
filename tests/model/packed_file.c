/* packed_file.c - see packed_file.h. */
#include "packed_file.h"

#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "io/io.h"
#include "apps/pack_write.h"
#include "tensor/group.h"
#include "tests/tensor/peer_threads.h"

void packed_file_make(const char *dir, const char *source, const char *device, int n_ranks,
                      const char *weights, char path[PATH_MAX])
{
    static int n_files;
    struct err err = {0};
    struct device *d;
    struct pack_result r;
    char whole[PATH_MAX];
    assert_non_null(realpath(dir, whole));
    snprintf(path, PATH_MAX, "%s/%d.packed", whole, n_files++);
    peer_threads_use();
    if (group_open(device, NULL, n_ranks, 1, NULL, &d, &err) != 0 ||
        pack_write(source, path, d, weights, &r, &err) != 0)
        fail_msg("%s", err.msg);
    free(r.errors.of);
    device_close(d);
}

void packed_file_copy(struct io *sim, const char *path)
{
    struct err err = {0};
    struct io_file *f;
    char *bytes, *folder = strdup(path);
    size_t n;
    assert_int_equal(file_read(path, 1 << 28, &bytes, &n, &err), 0);
    *strrchr(folder, '/') = 0;
    assert_int_equal(io_mkdirs(sim, folder, NULL, &err), 0);
    assert_int_equal(io_file_open(sim, path, IO_CREATE, &f, &err), 0);
    assert_int_equal(io_file_pwrite(f, bytes, n, 0, &err), 0);
    io_file_close(f);
    free(bytes);
    free(folder);
}
