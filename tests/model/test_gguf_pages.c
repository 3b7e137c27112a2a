/* test_gguf_pages.c - the pages of each tensor are asked for before their use, and the file's pages
 * of a quantised tensor are given back batch by batch.
 *
 * A page of the file counts as memory of the process until it is given back. If the pages of a
 * whole tensor stayed until it is loaded, the peak of loading would include all pages of the output
 * head. This file defines madvise to see which ranges are asked for and given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "format/gguf.h"
#include "solo.h"
#include "tests/base/tempdir.h"

#define SIX  "tests/model/golden/gguf/six.gguf"
#define PAGE ((size_t)4096)
enum { N_TENSORS = 20 }; /* of SIX */

/* --- the call --------------------------------------------------------------------------------- */

static size_t most; /* bytes of the largest range given back */
/* bytes of the longest run of ranges in which each range began where the previous one ended */
static size_t longest_run;
static uintptr_t run_begin, run_end;
static int n_wanted;       /* ranges that were asked for before their use */
static size_t most_wanted; /* bytes of the largest */

int madvise(void *p, size_t n, int advice)
{
    if (advice == MADV_WILLNEED) {
        n_wanted++;
        if (n > most_wanted)
            most_wanted = n;
    }
    if (advice == MADV_DONTNEED) {
        if ((uintptr_t)p != run_end)
            run_begin = (uintptr_t)p;
        run_end = (uintptr_t)p + n;
        if (n > most)
            most = n;
        if (run_end - run_begin > longest_run)
            longest_run = run_end - run_begin;
    }
    return (int)syscall(SYS_madvise, p, n, advice);
}

/* --- a file with a large table ---------------------------------------------------------------- */

/* Writes a copy of SIX whose embedding table, which also serves as the head, lies at the file's end
 * and has n_rows rows of zeros. Returns the table's bytes. */
static size_t write_with_rows(const char *path, uint64_t n_rows)
{
    static const char name[] = "token_embd.weight";
    enum { DIMS = sizeof name - 1 + 4, ROWS = DIMS + 8, OFFSET = ROWS + 8 + 4 };
    char *bytes;
    size_t n, row_bytes = 210; /* a row is one block of q6_k */
    struct err e = {0};
    struct gguf g;
    assert_int_equal(file_read(SIX, 1 << 24, &bytes, &n, &e), 0);
    assert_int_equal(gguf_parse(&g, bytes, n, n, SIX, &e), 0);
    uint8_t *at = memmem(bytes, n, name, sizeof name - 1);
    assert_non_null(at);
    assert_int_equal(get_u64(at + DIMS), 256);
    uint64_t end = (n + 31) / 32 * 32;
    put_u64(at + ROWS, n_rows);
    put_u64(at + OFFSET, end - g.data_begin);
    gguf_deinit(&g);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(end + n_rows * row_bytes)), 0);
    assert_int_equal(fclose(f), 0);
    free(bytes);
    return (size_t)n_rows * row_bytes;
}

/* --- the promise ------------------------------------------------------------------------------ */

static void test_pages_of_a_quantised_tensor_are_given_back_batch_by_batch(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    struct solo t;
    tempdir_make(dir, "pages");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    size_t bytes = write_with_rows(path, 40000);
    solo_open_held(&t, path, NULL, "q4");
    assert_int_equal(t.m->w.head.dtype, DTYPE_Q6_K);
    assert_int_equal(t.m->w.head.n, 40000);
    solo_close(&t);
    tempdir_remove(dir);
    assert_true(bytes > 8000000);
    assert_int_equal(n_wanted, N_TENSORS);
    assert_true(most_wanted >= bytes);
    if (most > bytes / 4)
        fail_msg("%zu bytes of a tensor of %zu were given back at once", most, bytes);
    if (longest_run + PAGE < bytes)
        fail_msg("of %zu bytes, %zu were given back without a gap", bytes, longest_run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_of_a_quantised_tensor_are_given_back_batch_by_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
