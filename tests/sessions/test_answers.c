/* test_answers.c - answers are found by their text, within limits, and never across salts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sessions/answers.h"
#include "tests/base/tempdir.h"

/* Adds an answer whose text comes in two parts, cut at a random place. The parts must count as one
 * text. */
static void put_ids(struct answers *m, const char *salt, const char *text, size_t n,
                    const int32_t *ids, int n_ids)
{
    size_t cut = n / 3;
    const struct answers_text t = {
        .text = text, .n_text = cut, .more = text + cut, .n_more = n - cut};
    const struct answers_ids all = {.prompt = ids,
                                    .n_prompt = n_ids / 2,
                                    .answer = ids + n_ids / 2,
                                    .n_answer = n_ids - n_ids / 2};
    answers_put(m, salt, &t, &all);
}

static void put(struct answers *m, const char *salt, const char *text, int32_t id)
{
    const int32_t ids[] = {id, id + 1};
    put_ids(m, salt, text, strlen(text), ids, 2);
}

/* Returns the first id of the answer found, or 0 if there is none. *n gets the length of the
 * answer's text. */
static int32_t find(struct answers *m, const char *salt, const char *text, size_t *n)
{
    int32_t *ids, first;
    int n_ids;
    if (!answers_find(m, salt, text, strlen(text), n, &ids, &n_ids))
        return 0;
    assert_int_equal(n_ids, 2);
    first = ids[0];
    free(ids);
    return first;
}

static struct answers *make(int max_entries, size_t max_bytes)
{
    struct answers *m = NULL;
    struct err err = {0};
    struct answers_opts o = {.max_entries = max_entries, .max_bytes = max_bytes};
    if (answers_open(&o, &m, &err) != 0)
        fail_msg("%s", err.msg);
    return m;
}

static void the_longest_beginning_is_found(void **state)
{
    (void)state;
    struct answers *m;
    size_t n;
    m = make(8, 1 << 20);
    assert_int_equal(find(m, NULL, "anything", &n), 0);
    put(m, NULL, "one", 10);
    put(m, NULL, "one two", 20);
    put(m, NULL, "one two and", 30);
    assert_int_equal(find(m, NULL, "one two three", &n), 20);
    assert_int_equal(n, strlen("one two"));
    assert_int_equal(find(m, NULL, "one two", &n), 20);
    assert_int_equal(find(m, NULL, "one tw", &n), 10);
    assert_int_equal(find(m, NULL, "on", &n), 0);
    put(m, NULL, "one two", 40); /* the newer answer replaces the older one */
    assert_int_equal(find(m, NULL, "one two three", &n), 40);
    answers_close(m);
}

static void salts_do_not_meet(void **state)
{
    (void)state;
    struct answers *m;
    size_t n;
    m = make(8, 1 << 20);
    put(m, "a", "text", 1);
    put(m, NULL, "text", 5);
    assert_int_equal(find(m, "a", "text!", &n), 1);
    assert_int_equal(n, 4);
    assert_int_equal(find(m, "b", "text!", &n), 0);
    assert_int_equal(find(m, NULL, "text!", &n), 5);
    answers_close(m);
}

static void the_least_used_goes_first(void **state)
{
    (void)state;
    struct answers *m;
    size_t n;
    char text[16];
    m = make(4, 1 << 20);
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "%d", i);
        put(m, NULL, text, 10 + i);
    }
    assert_int_equal(find(m, NULL, "0", &n), 10);
    put(m, NULL, "new", 50);
    assert_int_equal(find(m, NULL, "1", &n), 0);
    assert_int_equal(find(m, NULL, "0", &n), 10);
    assert_int_equal(find(m, NULL, "new", &n), 50);
    answers_close(m);
}

/* The order is that of use, and not that of the entries' places. */
static void places_that_are_used_again_keep_the_order(void **state)
{
    (void)state;
    struct answers *m;
    size_t n;
    m = make(2, 1 << 20);
    put(m, NULL, "a", 1);
    put(m, NULL, "b", 2);
    put(m, NULL, "c", 3);
    put(m, NULL, "d", 4);
    assert_int_equal(find(m, NULL, "b", &n), 0);
    assert_int_equal(find(m, NULL, "c", &n), 3);
    assert_int_equal(find(m, NULL, "d", &n), 4);
    answers_close(m);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    struct answers *m;
    size_t n;
    m = make(100, 150); /* one entry takes 64 bytes, so two fit */
    put(m, NULL, "aaaaaaaaaa", 1);
    put(m, NULL, "bbbbbbbbbb", 2);
    put(m, NULL, "cccccccccc", 3);
    assert_int_equal(find(m, NULL, "aaaaaaaaaa", &n), 0);
    assert_int_equal(find(m, NULL, "cccccccccc", &n), 3);
    int32_t many[40] = {0};
    put_ids(m, NULL, "far too much", 12, many, 40);
    assert_int_equal(find(m, NULL, "cccccccccc", &n), 3);
    answers_close(m);
}

/* --- the file --------------------------------------------------------------------------------- */

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];

static struct answers *open_file(uint8_t vocabulary)
{
    struct answers *m = NULL;
    struct err err = {0};
    struct answers_opts o = {.max_entries = 64, .max_bytes = 1 << 20, .path = path};
    o.vocabulary.b[0] = vocabulary;
    if (answers_open(&o, &m, &err) != 0)
        fail_msg("%s", err.msg);
    return m;
}

static void bytes_of(char *out, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *n = fread(out, 1, 1 << 16, f);
    fclose(f);
}

static void write_bytes(const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static int count(struct answers *m)
{
    struct answers_stats st;
    answers_stats(m, &st);
    return st.n_entries;
}

/* The file survives its process, even one that is killed: this test closes nothing. It contains
 * neither text nor tokens. With another vocabulary the file is started anew. */
static void a_file_outlives_the_process(void **state)
{
    (void)state;
    static char bytes[1 << 16];
    size_t n, size;
    struct answers *killed = open_file(1);
    put(killed, "salt", "a secret conversation", 0x41424344);
    put(killed, NULL, "another", 7);
    put(killed, NULL, "another", 9);
    bytes_of(bytes, &size);
    assert_null(memmem(bytes, size, "secret", 6));
    assert_null(memmem(bytes, size, "DCBA", 4));
    for (int i = 0; i < 2; i++) {
        struct answers *m = open_file(1);
        assert_int_equal(count(m), 2);
        assert_int_equal(find(m, "salt", "a secret conversation goes on", &n), 0x41424344);
        assert_int_equal(n, 21);
        assert_int_equal(find(m, NULL, "a secret conversation goes on", &n), 0);
        assert_int_equal(find(m, NULL, "another", &n), 9);
        answers_close(m);
    }
    struct answers *m = open_file(2);
    assert_int_equal(count(m), 0);
    answers_close(m);
    answers_close(killed);
}

/* If the file is cut off anywhere, or any byte of it has changed, the complete entries before that
 * place are used, and new ones are added. */
static void a_damaged_file_is_survived(void **state)
{
    (void)state;
    static char good[1 << 16], bad[1 << 16];
    size_t n_good, n;
    struct answers *m = open_file(3);
    put(m, NULL, "one", 1);
    put(m, NULL, "two", 2);
    answers_close(m);
    bytes_of(good, &n_good);
    for (size_t i = 0; i < 2 * n_good; i++) {
        memcpy(bad, good, n_good);
        bad[i % n_good] ^= 0x20;
        write_bytes(bad, i < n_good ? n_good : i % n_good);
        if (i >= n_good)
            write_bytes(good, i % n_good);
        m = open_file(3);
        int32_t one = find(m, NULL, "one", &n), two = find(m, NULL, "two", &n);
        assert_true(one == 1 || one == 0);
        assert_true(two == 2 || two == 0);
        assert_true(one == 1 || two == 0);
        put(m, NULL, "three", 3);
        answers_close(m);
        m = open_file(3);
        assert_int_equal(find(m, NULL, "three", &n), 3);
        answers_close(m);
    }
}

/* Storing equal answers again does not make the file grow without bound. */
static void the_file_is_bounded(void **state)
{
    (void)state;
    static int32_t ids[4000];
    struct answers *m = open_file(4);
    for (int i = 0; i < 400; i++)
        put_ids(m, NULL, "again", 5, ids, 4000);
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    assert_true(ftell(f) < (2 << 20));
    fclose(f);
    answers_close(m);
}

/* The file is rewritten only when it has grown to twice its answers, and a mebibyte more. */
static void the_file_grows_before_it_is_rewritten(void **state)
{
    (void)state;
    enum { N_IDS = 230000, TIMES = 3 };
    struct stat st;
    int32_t *ids = calloc(N_IDS, sizeof *ids);
    struct answers *m = open_file(6);
    for (int i = 0; i < TIMES; i++)
        put_ids(m, NULL, "again", 5, ids, N_IDS);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > TIMES * N_IDS * 4);
    put_ids(m, NULL, "again", 5, ids, N_IDS);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 2 * N_IDS * 4);
    answers_close(m);
    free(ids);
}

/* The file keeps the order in which answers were stored, also when it is opened and written
 * anew. So after a restart, too, the oldest answer is the first to go. Only the owner may read
 * the file. */
static void the_order_of_answers_outlives_the_process(void **state)
{
    (void)state;
    struct stat st;
    size_t n;
    struct answers *m = open_file(5);
    put(m, NULL, "first", 1);
    put(m, NULL, "second", 2);
    put(m, NULL, "third", 3);
    assert_int_equal(find(m, NULL, "first", &n), 1);
    answers_close(m);
    answers_close(open_file(5)); /* writes the answers anew, in the same order */
    struct answers_opts o = {.max_entries = 2, .max_bytes = 1 << 20, .path = path};
    struct err err = {0};
    o.vocabulary.b[0] = 5;
    assert_int_equal(answers_open(&o, &m, &err), 0);
    assert_int_equal(count(m), 2);
    /* "first" is the oldest in the file, because its look-up was not written */
    assert_int_equal(find(m, NULL, "first", &n), 0);
    assert_int_equal(find(m, NULL, "third", &n), 3);
    answers_close(m);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* Limits the files of this process to n bytes from now on. */
static void limit_files(rlim_t n)
{
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

/* A file that cannot be written at the start gives an error, and the old file stays. If a later
 * write fails, the file is given up and answers are remembered in memory only. */
static void a_file_that_cannot_be_written_is_told(void **state)
{
    (void)state;
    struct answers *m = open_file(6);
    struct answers_opts o = {.max_entries = 64, .max_bytes = 1 << 20, .path = path};
    struct err err = {0};
    struct stat before, after;
    size_t n;
    o.vocabulary.b[0] = 6;
    put(m, NULL, "kept", 1);
    assert_int_equal(stat(path, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit_files((rlim_t)before.st_size);
    put(m, NULL, "not in the file", 2);
    limit_files(RLIM_INFINITY);
    put(m, NULL, "behind it", 3);
    assert_int_equal(find(m, NULL, "not in the file", &n), 2);
    assert_int_equal(find(m, NULL, "behind it", &n), 3);
    assert_int_equal(count(m), 3);
    answers_close(m);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    /* no room for the file's head; room for the head and a part of a record */
    static const rlim_t limits[] = {0, 60};
    for (int i = 0; i < 2; i++) {
        char temp[sizeof path + 8];
        struct answers *none = NULL;
        limit_files(limits[i]);
        int rc = answers_open(&o, &none, &err);
        limit_files(RLIM_INFINITY);
        assert_int_equal(rc, -EFBIG);
        assert_null(none);
        assert_non_null(strstr(err.msg, path));
        snprintf(temp, sizeof temp, "%s.new", path);
        assert_int_not_equal(access(temp, F_OK), 0);
    }
    m = open_file(6);
    assert_int_equal(count(m), 1);
    assert_int_equal(find(m, NULL, "kept", &n), 1);
    answers_close(m);
    signal(SIGXFSZ, SIG_DFL);
}

/* Remembered tokens that were used, and those that were unusable, are counted separately. */
static void uses_are_counted(void **state)
{
    (void)state;
    struct answers *m = make(8, 1 << 20);
    struct answers_stats st;
    answers_count(m, true);
    answers_count(m, true);
    answers_count(m, false);
    answers_stats(m, &st);
    assert_int_equal(st.n_used, 2);
    assert_int_equal(st.n_unusable, 1);
    assert_int_equal(st.n_entries, 0);
    answers_close(m);
}

static int make_folder(void **state)
{
    (void)state;
    tempdir_make(dir, "answers");
    snprintf(path, sizeof path, "%s/answers", dir);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); /* fails if a file was left in the folder */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_beginning_is_found),
        cmocka_unit_test(salts_do_not_meet),
        cmocka_unit_test(the_least_used_goes_first),
        cmocka_unit_test(places_that_are_used_again_keep_the_order),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(a_file_outlives_the_process),
        cmocka_unit_test(a_damaged_file_is_survived),
        cmocka_unit_test(the_file_is_bounded),
        cmocka_unit_test(the_file_grows_before_it_is_rewritten),
        cmocka_unit_test(the_order_of_answers_outlives_the_process),
        cmocka_unit_test(a_file_that_cannot_be_written_is_told),
        cmocka_unit_test(uses_are_counted),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
