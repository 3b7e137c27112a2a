/* test_weights_known.c - the hash of a file is computed once and remembered; a file that changed
 * is hashed again; one that is cut or rewritten while it is read is refused.  An image of the
 * weights is made and mapped, and a change to the image is noticed.
 *
 * This file defines pread, which harms the file in the middle of a loading, clock_gettime, by which
 * the file's last change seems long ago, and linkat, by which an image gets its name. */
#include "tests/unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "model/pass.h"
#include "model/weights_image.h"
#include "model/weights_use.h"
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

static uint64_t free_blocks; /* of the file system with the cache; 0: as it is */

int statvfs(const char *at, struct statvfs *out)
{
    (void)at;
    *out = (struct statvfs){.f_frsize = 1 << 20,
                            .f_bavail = free_blocks > 0 ? free_blocks : 4096};
    return 0;
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

static int writers_policy; /* of the thread that wrote the last image */

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    writers_policy = sched_getscheduler(0);
    return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
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

TEST_WITH(a_file_is_hashed_once, begin, tempdir_end)
{
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
TEST_WITH(a_format_is_measured_once, begin, tempdir_end)
{
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

TEST_WITH(a_file_that_changed_is_hashed_again, begin, tempdir_end)
{
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

TEST_WITH(a_damaged_line_is_ignored, begin, tempdir_end)
{
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

TEST_WITH(a_file_that_is_cut_or_rewritten_is_refused, begin, tempdir_end)
{
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

/* --- images ----------------------------------------------------------------------------------- */

static void open_imaged(struct solo *t)
{
    solo_open_as(t, path, "cpu", 1, 2,
                 &(struct model_opts){.weights = "q4", .images = true});
}

static bool is_mapped(const struct solo *t)
{
    return t->m->w.is_mapped;
}

/* Loads the file. Returns whether its image was mapped; the logits of three tokens in *logits. */
static bool load_imaged(float *logits)
{
    struct solo t;
    open_imaged(&t);
    bool mapped = is_mapped(&t);
    solo_feed(&t, (const int32_t[]){1, 2, 3}, 3, logits);
    solo_close(&t);
    return mapped;
}

/* Returns the number of images, and the path of one in out. */
static int images(char out[2 * TEMPDIR_BYTES])
{
    char folder[TEMPDIR_BYTES + 32];
    int n = 0;
    struct dirent *e;
    snprintf(folder, sizeof folder, "%s/hcache/images", dir);
    DIR *d = opendir(folder);
    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.' && ++n > 0)
            snprintf(out, 2 * TEMPDIR_BYTES, "%s/%s", folder, e->d_name);
    closedir(d);
    return n;
}

enum { ROWS = 100000, N_LOGITS = 3 * ROWS };
static float first_logits[N_LOGITS], logits[N_LOGITS];
static char image[2 * TEMPDIR_BYTES];

static void begin_images(void)
{
    ahead_s = 10;
    free_blocks = 0;
    write_with_rows(ROWS);
    assert_false(load_imaged(first_logits));
    assert_int_equal(images(image), 1);
}

TEST_WITH(a_second_start_maps_the_image, begin, tempdir_end)
{
    begin_images();
    assert_true(load_imaged(logits));
    assert_memory_equal(logits, first_logits, sizeof logits);
    /* the same file without images, and one that has changed */
    struct sha256 hash;
    assert_int_equal(load(&hash), 0);
    write_with_rows(ROWS);
    assert_false(load_imaged(logits));
    assert_int_equal(images(image), 2);
}

TEST_WITH(a_real_time_policy_is_not_that_of_the_image, begin, tempdir_end)
{
    const struct sched_param none = {0};
    assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    begin_images();
    assert_int_equal(sched_setscheduler(0, SCHED_OTHER, &none), 0);
    assert_int_equal(writers_policy, SCHED_OTHER);
}

TEST_WITH(a_damaged_image_is_made_anew, begin, tempdir_end)
{
    begin_images();
    const off_t places[] = {9, 4096 + 3, 3 << 20, -1};
    for (int i = 0; i < 5; i++) {
        struct stat st;
        char byte;
        int fd = open(image, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        if (i == 4) {
            assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
        } else {
            off_t at = places[i] >= 0 ? places[i] : st.st_size - 1;
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        assert_false(load_imaged(logits));
        assert_memory_equal(logits, first_logits, sizeof logits);
        assert_true(load_imaged(logits));
        assert_memory_equal(logits, first_logits, sizeof logits);
    }
    /* a file that others may write is not an image */
    assert_int_equal(chmod(image, 0666), 0);
    assert_false(load_imaged(logits));
}

/* A process maps 16 images at most. One more is left as it is, and its weights are read. */
TEST_WITH(images_beyond_the_sixteenth_stay, begin, tempdir_end)
{
    static struct solo t[17];
    begin_images();
    for (int i = 0; i < 17; i++) {
        open_imaged(&t[i]);
        assert_int_equal(t[i].m->w.is_mapped, i < 16);
    }
    for (int i = 0; i < 17; i++)
        solo_close(&t[i]);
    assert_true(load_imaged(logits));
}

static volatile sig_atomic_t n_other;
static sigjmp_buf back;

static void on_other(int sig)
{
    (void)sig;
    n_other++;
    siglongjmp(back, 1);
}

/* An image that is written or cut while it is mapped ends a pass with an error, and no process; a
 * signal of another mapping reaches the handler that was there before. */
TEST_WITH(a_mapped_image_that_changes_is_noticed, begin, tempdir_end)
{
    begin_images();
    signal(SIGBUS, on_other);
    for (int i = 0; i < 2; i++) {
        struct solo t;
        struct stat st;
        open_imaged(&t);
        assert_true(is_mapped(&t));
        assert_int_equal(weights_check(&t.m->w), 0);
        int fd = open(image, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        if (i == 0)
            assert_int_equal(pwrite(fd, "x", 1, st.st_size - 1), 1);
        else
            assert_int_equal(ftruncate(fd, 4096), 0);
        assert_int_equal(weights_check(&t.m->w), ERR_CORRUPT);
        assert_int_equal(solo_try(&t, (const int32_t[]){1, 2, 3}, 3, logits, NULL),
                         ERR_CORRUPT);
        const volatile uint8_t *data = weights_image_memory(t.m->w.image);
        if (i == 1)
            assert_int_equal(data[1 << 20], 0);
        struct weights_stream_stats told;
        weights_stats(&t.m->w, &told);
        assert_non_null(strstr(told.fault, "the image of the weights was changed"));
        solo_close(&t);
        close(fd);
        assert_false(load_imaged(logits));
        assert_memory_equal(logits, first_logits, sizeof logits);
    }
    int fd = open(known, O_RDWR);
    const volatile char *p = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(fd >= 0 && p != MAP_FAILED);
    if (sigsetjmp(back, 1) == 0)
        assert_int_equal(p[(1 << 20) - 1], 0);
    assert_int_equal(n_other, 1);
    munmap((void *)(uintptr_t)p, 1 << 20);
    close(fd);
}

/* Images take at most a quarter of the room; the ones used longest ago make way. */
TEST_WITH(old_images_make_way, begin, tempdir_end)
{
    char old[sizeof image];
    begin_images();
    memcpy(old, image, sizeof old);
    free_blocks = 120;
    write_with_rows(ROWS);
    assert_false(load_imaged(logits));
    assert_int_equal(images(image), 1);
    assert_string_not_equal(image, old);
    free_blocks = 40;
    write_with_rows(ROWS);
    assert_false(load_imaged(logits));
    assert_int_equal(images(old), 1);
    assert_string_equal(image, old);
}
