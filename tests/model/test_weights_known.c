/* test_weights_known.c - the hash of a file is computed once and remembered; a file that changed is
 * hashed again; one that is cut or rewritten while it is read is refused.
 *
 * This file defines pread, which harms the file in the middle of a loading, and clock_gettime, by
 * which the file's last change seems long ago. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "model/gguf.h"
#include "model/pass.h"
#include "solo.h"
#include "tests/base/tempdir.h"

#define SIX "tests/model/golden/gguf/six.gguf"

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16], known[TEMPDIR_BYTES + 32];

/* --- calls ------------------------------------------------------------------------------------ */

static int64_t ahead_s; /* added to the time of day */
static enum { UNHARMED, CUT, REWRITTEN } harm;
static atomic_int n_large; /* large reads so far */

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += ahead_s;
    return rc;
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    bool is_third = n >= 100000 && at > 0 && ++n_large == 3;
    if (is_third && harm == CUT)
        assert_int_equal(truncate(path, at + 1000), 0);
    if (is_third && harm == REWRITTEN) {
        int w = open(path, O_WRONLY);
        assert_true(w >= 0 && pwrite(w, "x", 1, at + 7) == 1);
        close(w);
    }
    return (ssize_t)syscall(SYS_pread64, fd, to, n, at);
}

/* --- a file with a large table ---------------------------------------------------------------- */

/* Writes a copy of SIX whose embedding table, which also serves as the head, lies at the file's end
 * and has n_rows rows of zeros. */
static void write_with_rows(uint64_t n_rows)
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
}

/* Loads the file. Returns the bytes that were hashed. */
static uint64_t load(struct sha256 *hash)
{
    struct solo t;
    solo_open_held(&t, path, NULL, "q4");
    assert_int_equal(t.m->w.head.dtype, DTYPE_Q6_K);
    uint64_t n = t.m->w.hashed_bytes;
    *hash = t.m->w.hash;
    solo_close(&t);
    return n;
}

static int begin(void **state)
{
    *state = dir;
    tempdir_make(dir, "known");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    snprintf(known, sizeof known, "%s/hcache/known", dir);
    setenv("XDG_CACHE_HOME", dir, 1);
    ahead_s = 0;
    harm = UNHARMED;
    n_large = 0;
    write_with_rows(40000);
    return 0;
}

/* --- promises --------------------------------------------------------------------------------- */

static void a_file_is_hashed_once(void **state)
{
    (void)state;
    struct sha256 first, second;
    ahead_s = -60; /* a change in the same tick of the clock would not show */
    assert_true(load(&first) > 40000 * 256);
    assert_int_not_equal(access(known, F_OK), 0);
    ahead_s = 10;
    assert_true(load(&first) > 40000 * 256);
    assert_int_equal(load(&second), 0);
    assert_memory_equal(&first, &second, sizeof first);
}

/* The format that "auto" measures is remembered with the hash of the weights, and that is said. */
static void a_format_is_measured_once(void **state)
{
    (void)state;
    ahead_s = 10;
    for (int i = 0; i < 3; i++) {
        struct solo t;
        int64_t n_passes = model_passes();
        solo_open_held(&t, path, NULL, "auto");
        assert_int_equal(model_passes() > n_passes, i == 0);
        assert_int_equal(strstr(t.m->note, "; as measured before") != NULL, i > 0);
        assert_non_null(strstr(t.m->note, " held as "));
        solo_close(&t);
        if (i == 1) { /* the same weights, written again */
            struct sha256 hash;
            write_with_rows(40000);
            assert_true(load(&hash) > 0);
        }
    }
}

static void a_file_that_changed_is_hashed_again(void **state)
{
    (void)state;
    struct sha256 first, second;
    struct stat st;
    ahead_s = 10;
    load(&first);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pwrite(fd, "0123456789abcdef34", 18, st.st_size - 18), 18);
    const struct timespec same[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, same),
                     0); /* the time of writing may be set, ctime may not */
    close(fd);
    assert_true(load(&second) > 0);
    assert_memory_not_equal(&first, &second, sizeof first);
    assert_int_equal(load(&second), 0);
}

static void a_damaged_line_is_ignored(void **state)
{
    (void)state;
    struct sha256 first, second;
    char *text;
    size_t n;
    ahead_s = 10;
    load(&first);
    assert_int_equal(file_read(known, 1 << 20, &text, &n, NULL), 0);
    text[n - 5] ^= 1; /* a digit of the hash */
    FILE *f = fopen(known, "wb");
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(text);
    assert_true(load(&second) > 0);
    assert_memory_equal(&first, &second, sizeof first);
    /* others may write the file: it is not used */
    assert_int_equal(chmod(known, 0666), 0);
    assert_true(load(&second) > 0);
}

static void a_file_that_is_cut_or_rewritten_is_refused(void **state)
{
    (void)state;
    static const char *const message[] = {
        [CUT] = "m.gguf: the file was cut while tensor '",
        [REWRITTEN] = "m.gguf: the file changed while it was read: start again"};
    struct device *d;
    struct err e = {0};
    ahead_s = 10;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, &e), 0);
    for (int i = REWRITTEN; i >= CUT; i--) {
        struct model *m = NULL;
        struct model_opts o = {.dev = d, .weights = "q4"};
        harm = (__typeof__(harm))i;
        n_large = 0;
        assert_int_equal(model_open(path, &o, &m, &e), ERR_MISMATCH);
        if (strstr(e.msg, message[i]) == NULL)
            fail_msg("'%s'", e.msg);
        assert_int_not_equal(access(known, F_OK), 0);
    }
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_is_hashed_once, begin, tempdir_end),
        cmocka_unit_test_setup_teardown(a_format_is_measured_once, begin, tempdir_end),
        cmocka_unit_test_setup_teardown(a_file_that_changed_is_hashed_again, begin,
                                        tempdir_end),
        cmocka_unit_test_setup_teardown(a_damaged_line_is_ignored, begin, tempdir_end),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_or_rewritten_is_refused, begin,
                                        tempdir_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
