/* test_answers.c - answers are found by their text, within limits, and never across salts. */
#include "tests/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "api/answers.h"
#include "seal/seal_file.h"
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
    const struct answers_of of = {.state_salt = salt};
    answers_put(m, salt, &t, &all, &of);
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

TEST(the_longest_beginning_is_found)
{
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

TEST(salts_do_not_meet)
{
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

TEST(the_least_used_goes_first)
{
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
TEST(places_that_are_used_again_keep_the_order)
{
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

TEST(bytes_are_bounded)
{
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
static struct seal *seal; /* of all files; NULL: they are plain */

static struct answers *open_file(uint8_t vocabulary)
{
    struct answers *m = NULL;
    struct err err = {0};
    struct answers_opts o = {
        .max_entries = 64, .max_bytes = 1 << 20, .path = path, .seal = seal};
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
TEST(a_file_outlives_the_process)
{
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
TEST(a_damaged_file_is_survived)
{
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
TEST(the_file_is_bounded)
{
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
TEST(the_file_grows_before_it_is_rewritten)
{
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
TEST(the_order_of_answers_outlives_the_process)
{
    struct stat st;
    size_t n;
    struct answers *m = open_file(5);
    put(m, NULL, "first", 1);
    put(m, NULL, "second", 2);
    put(m, NULL, "third", 3);
    assert_int_equal(find(m, NULL, "first", &n), 1);
    answers_close(m);
    answers_close(open_file(5)); /* writes the answers anew, in the same order */
    struct answers_opts o = {
        .max_entries = 2, .max_bytes = 1 << 20, .path = path, .seal = seal};
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
TEST(a_file_that_cannot_be_written_is_told)
{
    struct answers *m = open_file(6);
    struct answers_opts o = {
        .max_entries = 64, .max_bytes = 1 << 20, .path = path, .seal = seal};
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
    /* no room for the head of a file for another vocabulary */
    static const rlim_t limits[] = {0, 20};
    o.vocabulary.b[0] = 7;
    for (int i = 0; i < 2; i++) {
        char temp[sizeof path + 8];
        struct answers *none = NULL;
        limit_files(limits[i]);
        int rc = answers_open(&o, &none, &err);
        limit_files(RLIM_INFINITY);
        assert_int_equal(rc, -ENOSPC);
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
/* --- forgetting ------------------------------------------------------------------------------- */

static struct sha256 key_of(uint8_t first)
{
    struct sha256 k = {{first, 1, 2, 3, 4, 5, 6}};
    return k;
}

static void put_of(struct answers *m, const char *text, int32_t id, const char *state_salt,
                   uint8_t end, uint8_t asked, int64_t ttl_s)
{
    const int32_t ids[] = {id, id + 1};
    const struct answers_text t = {.text = text, .n_text = strlen(text)};
    const struct answers_of of = {.state_salt = state_salt,
                                  .end = key_of(end),
                                  .asked = key_of(asked),
                                  .ttl_s = ttl_s};
    answers_put(m, NULL, &t, &(struct answers_ids){.prompt = ids, .n_prompt = 2}, &of);
}

/* Returns how many of the 16-byte pieces of `old` are in the file, at any place. Zeros do not
 * count. */
static int n_pieces_left(const char *old, size_t n_old)
{
    static char bytes[1 << 16];
    size_t n;
    int n_left = 0;
    bytes_of(bytes, &n);
    for (size_t i = 40; i + 16 <= n_old; i += 16) {
        bool is_zero = memcmp(old + i, (char[16]){0}, 16) == 0;
        n_left += !is_zero && memmem(bytes, n, old + i, 16) != NULL;
    }
    return n_left;
}

/* Each kind of erasure reaches the answers that it concerns, in memory, in the file and after a
 * restart. An overwritten record does not hide those behind it. */
TEST(erasures_reach_what_they_concern)
{
    static const char *const texts[] = {"one", "two", "three", "four"};
    /* which answers are left: bit 0 is the first */
    static const unsigned left[] = {0xa, 0xd, 0xb, 0x7};
    for (int how = 0; how < 4; how++) {
        struct err err = {0};
        size_t n;
        unlink(path);
        struct answers *m = open_file(8);
        put_of(m, "one", 1, "a", 1, 11, 0);
        put_of(m, "two", 2, NULL, 2, 12, 0);
        put_of(m, "three", 3, "a", 3, 13, 0);
        put_of(m, "four", 4, NULL, 4, 14, 0);
        const struct sha256 end = key_of(2), asked = key_of(13), both = key_of(14);
        int rc = how == 0   ? answers_forget_owner(m, "a", &err)
                 : how == 1 ? answers_forget_keys(m, &end, 1, &err)
                 : how == 2 ? answers_forget_keys(m, &asked, 1, &err)
                            : answers_forget_keys(m, &both, 1, &err);
        assert_int_equal(rc, 0);
        for (int round = 0; round < 2; round++) {
            unsigned found = 0;
            for (unsigned i = 0; i < 4; i++)
                found |= (find(m, NULL, texts[i], &n) != 0 ? 1u : 0u) << i;
            assert_int_equal(found, left[how]);
            answers_close(m);
            m = open_file(8);
        }
        answers_close(m);
    }
}

/* A record that is forgotten, replaced or dropped leaves nothing of its name and tokens in the
 * file, and needs no new space. */
TEST(what_is_forgotten_is_overwritten)
{
    static char old[1 << 16];
    size_t n;
    struct stat before, after;
    struct err err = {0};
    int32_t ids[64];
    unlink(path);
    for (int how = 0; how < 3; how++) {
        struct answers *m = open_file(9);
        for (int i = 0; i < 64; i++)
            ids[i] = 1000 * i + how;
        put_ids(m, NULL, "secret", 6, ids, 64);
        bytes_of(old, &n);
        assert_true(n_pieces_left(old, n) > 10);
        assert_int_equal(stat(path, &before), 0);
        if (how == 0)
            assert_int_equal(answers_forget_owner(m, NULL, &err), 0);
        for (int i = 0; how == 1 && i < 64; i++) { /* 64 entries is the bound */
            char text[8];
            snprintf(text, sizeof text, "%d", i);
            put(m, NULL, text, i);
        }
        if (how == 2) {
            put_ids(m, NULL, "secret", 6, ids + 1, 2);
            assert_int_equal(answers_forget_owner(m, NULL, &err), 0);
        }
        assert_int_equal(stat(path, &after), 0);
        assert_true(how != 0 || after.st_size < before.st_size);
        assert_true(n_pieces_left(old, n) <= 1); /* of the head: the vocabulary */
        answers_close(m);
        unlink(path);
    }
}

/* An answer lives as long as the shorter of its state's and the server's time to live. */
TEST(answers_have_their_time)
{
    struct err err = {0};
    size_t n;
    unlink(path);
    struct answers *m = open_file(10);
    put_of(m, "short", 1, NULL, 1, 1, 1);
    put_of(m, "long", 2, NULL, 1, 1, 100000);
    put_of(m, "ever", 3, NULL, 1, 1, 0);
    assert_int_equal(answers_expire(m, &err), 0);
    assert_int_equal(count(m), 3);
    /* ends are rounded up to 16 s; the file holds the time, so it can be set back there */
    answers_close(m);
    static char bytes[1 << 16];
    bytes_of(bytes, &n);
    size_t n_record = 16 + 16 + 4 * 8 + 2 * 4;
    seal_page_open(seal, 32, 40, bytes + 40, n_record + 8);
    assert_true(get_u32((uint8_t *)bytes + 44) > 0);
    put_u32((uint8_t *)bytes + 44, 1);
    put_u64((uint8_t *)bytes + 40 + n_record, checksum64(bytes + 40, n_record));
    seal_page(seal, 32, 40, bytes + 40, n_record + 8);
    write_bytes(bytes, n);
    m = open_file(10);
    assert_int_equal(count(m), 3);
    assert_int_equal(answers_expire(m, &err), 0);
    assert_int_equal(count(m), 2);
    assert_int_equal(find(m, NULL, "short", &n), 0);
    answers_close(m);
}

/* Without the secret beside it the file is worthless, also if there are no API keys. */
TEST(the_file_is_salted)
{
    static char one[1 << 16], two[1 << 16];
    char key[sizeof path + 8];
    size_t n_one, n_two, n;
    struct stat st;
    snprintf(key, sizeof key, "%s.key", path);
    for (int i = 0; i < 2; i++) {
        unlink(path);
        unlink(key);
        struct answers *m = open_file(11);
        put(m, NULL, "the same text", 5);
        answers_close(m);
        bytes_of(i == 0 ? one : two, i == 0 ? &n_one : &n_two);
    }
    assert_int_equal(n_one, n_two);
    assert_memory_not_equal(one + 40 + 8, two + 40 + 8, 4);    /* short hash */
    assert_memory_not_equal(one + 40 + 16, two + 40 + 16, 14); /* name */
    assert_int_equal(stat(key, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    write_bytes(one, n_one); /* another server's file, or an old secret that was lost */
    struct answers *m = open_file(11);
    assert_int_equal(find(m, NULL, "the same text", &n), 0);
    answers_close(m);
    unlink(key);
    write_bytes(one, n_one);
    m = open_file(11);
    assert_int_equal(count(m), 0);
    answers_close(m);
}

/* A client who fills the room drops answers of its own, also those that a file brought back: each
 * other client keeps its share, whichever bound is reached. */
TEST(who_has_the_most_makes_room)
{
    static const int32_t many[200] = {7};
    for (int how = 0; how < 3; how++) {
        bool by_bytes = how == 1, restarts = how == 2;
        size_t n;
        char text[32];
        unlink(path);
        struct answers *m = by_bytes ? make(64, 4096) : open_file(13);
        put(m, "quiet", "the only conversation", 5);
        put(m, "other", "a second one", 6);
        for (int i = 0; i < 100; i++) {
            snprintf(text, sizeof text, "flood %d", i);
            put_ids(m, "loud", text, strlen(text), many, by_bytes ? 200 : 2);
            if (restarts && i % 30 == 29) {
                answers_close(m);
                m = open_file(13);
            }
        }
        assert_int_equal(find(m, "quiet", "the only conversation goes on", &n), 5);
        assert_int_equal(find(m, "other", "a second one goes on", &n), 6);
        int32_t *ids;
        int n_ids;
        assert_true(answers_find(m, "loud", "flood 99", 8, &n, &ids, &n_ids));
        free(ids);
        assert_false(answers_find(m, "loud", "flood 20", 8, &n, &ids, &n_ids));
        answers_close(m);
    }
}

static bool is_first_seven(void *arg, const uint8_t *key)
{
    (void)arg;
    return key[0] == 7;
}

/* `hcache store gc` keeps the answers whose end is still stored. */
TEST(collection_keeps_what_is_stored)
{
    struct err err = {0};
    size_t n;
    int n_forgotten;
    unlink(path);
    assert_int_equal(
        answers_keep_stored(path, seal, is_first_seven, NULL, &n_forgotten, &err), 0);
    struct answers *m = open_file(13);
    put_of(m, "gone", 1, NULL, 6, 7, 0);
    put_of(m, "stored", 2, NULL, 7, 7, 0);
    answers_close(m);
    assert_int_equal(
        answers_keep_stored(path, seal, is_first_seven, NULL, &n_forgotten, &err), 0);
    assert_int_equal(n_forgotten, 1);
    assert_int_equal(
        answers_keep_stored(path, seal, is_first_seven, NULL, &n_forgotten, &err), 0);
    assert_int_equal(n_forgotten, 0);
    m = open_file(13);
    assert_int_equal(find(m, NULL, "gone", &n), 0);
    assert_int_equal(find(m, NULL, "stored", &n), 2);
    int *lengths;
    assert_int_equal(answers_lengths(m, NULL, 1, &lengths), 0);
    free(lengths);
    assert_int_equal(answers_lengths(m, NULL, 2, &lengths), 1);
    assert_int_equal(lengths[0], 2);
    free(lengths);
    answers_close(m);
}

TEST(uses_are_counted)
{
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
    tempdir_make(dir, "answers");
    snprintf(path, sizeof path, "%s/answers", dir);
    return 0;
}

static int remove_folder(void **state)
{
    char key[sizeof path + 8];
    snprintf(key, sizeof key, "%s.key", path);
    unlink(path);
    unlink(key);
    return rmdir(dir); /* fails if a file was left in the folder */
}

int main(void)
{
    static const uint8_t secret[SEAL_KEY_BYTES] = {5};
    int n_failed = unit_run(make_folder, remove_folder);
    seal = seal_shared(secret);
    n_failed += unit_run(make_folder, remove_folder);
    seal_free(seal);
    return n_failed;
}
