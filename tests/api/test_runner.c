/* test_runner.c - batches run to their end: their states, their answers and the order of their
 * tenants. A batch that one runner left unfinished continues with the next runner. */

#include "tests/unit.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "api/runner.h"
#include "tests/base/said.h"
#include "tests/base/tempdir.h"

enum {
    MAX_TOLD = 100,
    ROOM = 1 << 20,
    MANY = 200 /* number of lines of a batch that is always stopped before its end */
};

/* by how many seconds the monotonic clock is ahead */
static atomic_int ahead_s;

/* Replaces the C library's function, so that a test can let time pass. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    long rc = syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_MONOTONIC)
        t->tv_sec += atomic_load(&ahead_s);
    return (int)rc;
}

/* The disk takes no more bytes of answers; it says that it has no room for them. */
static atomic_bool disk_is_full, disk_says_full;

int fdatasync(int fd)
{
    if (atomic_load(&disk_is_full)) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

int fstatvfs(int fd, struct statvfs *v)
{
    (void)fd;
    *v = (struct statvfs){.f_frsize = 4096,
                          .f_blocks = 1000,
                          .f_bavail = atomic_load(&disk_says_full) ? 1 : 1000};
    return 0;
}

static char dir[TEMPDIR_BYTES];
static struct hcache *h;
static struct shelf *shelf;
static struct err err;

/* The first letters of the tenants whose answers began, in order; and the numbers of answers that
 * began, ended, and ended well. */
static struct {
    pthread_mutex_t lock;
    int n_began, n_ended, n_done;
    char began[MAX_TOLD];
} told = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void began(void *arg, const char *tenant)
{
    assert_ptr_equal(arg, &told);
    pthread_mutex_lock(&told.lock);
    if (told.n_began < MAX_TOLD)
        told.began[told.n_began++] = tenant[0];
    pthread_mutex_unlock(&told.lock);
}

static void ended(void *arg, const char *tenant, enum answer_end end,
                  const struct hcache_result *r, bool missed)
{
    (void)missed;
    assert_ptr_equal(arg, &told);
    assert_true(tenant[0] != 0);
    pthread_mutex_lock(&told.lock);
    told.n_ended++;
    told.n_done += end == ANSWER_DONE && r != NULL && r->n_tokens > 0;
    pthread_mutex_unlock(&told.lock);
}

static int count(const int *n)
{
    pthread_mutex_lock(&told.lock);
    int now = *n;
    pthread_mutex_unlock(&told.lock);
    return now;
}

/* --- a shelf and a runner --------------------------------------------------------------------- */

static int open_model(void **state)
{
    const struct hcache_opts o = {
        .model = "synth:tiny-gqa", .threads = 1, .max_sequences = 2};
    struct hcache_err herr = {0};
    return hcache_open(&o, &h, &herr) != 0 || hcache_serve_start(h, 0, &herr) != 0;
}

static int close_model(void **state)
{
    hcache_serve_stop(h);
    hcache_close(h);
    return 0;
}

static void open_shelf(uint64_t max_bytes)
{
    if (shelf_open(dir, max_bytes, NULL, &shelf, &err) != 0)
        fail_msg("%s", err.msg);
}

static int begin(void **state)
{
    tempdir_make(dir, "runner");
    open_shelf(ROOM);
    told.n_began = told.n_ended = told.n_done = 0;
    memset(told.began, 0, sizeof told.began);
    return 0;
}

static int end(void **state)
{
    shelf_close(shelf);
    tempdir_remove(dir);
    return 0;
}

static struct runner *start(void)
{
    const struct runner_opts o = {.shelf = shelf,
                                  .client = {.h = h, .model_name = "m"},
                                  .in_flight = 1,
                                  .began = began,
                                  .ended = ended,
                                  .arg = &told};
    struct runner *r;
    if (runner_start(&o, &r, &err) != 0)
        fail_msg("%s", err.msg);
    return r;
}

/* Adds a batch of n_lines lines that generate n_tokens tokens each, followed by the lines
 * `more`. */
static struct shelf_batch *add(const char *tenant, int n_lines, int n_tokens,
                               const char *more)
{
    struct textbuf text = {0};
    struct shelf_file f;
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    for (int i = 0; i < n_lines; i++)
        textbuf_addf(
            &text,
            "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
            "\"body\":{\"prompt\":[%d,7,9],\"max_tokens\":%d,\"ignore_eos\":true}}\n",
            i, 5 + i, n_tokens);
    textbuf_add(&text, more, strlen(more));
    strcpy(b->endpoint, "/v1/completions");
    if (shelf_add_file(shelf, tenant, "in", text.p, text.n, &f, &err) != 0 ||
        shelf_add_batch(shelf, tenant, f.head.id, b, &err) != 0)
        fail_msg("%s", err.msg);
    textbuf_free(&text);
    return b;
}

/* Reads the shelf's present record of the batch into *b. */
static void look(struct shelf_batch *b)
{
    struct shelf_batch *now = xcalloc(1, sizeof *now);
    assert_int_equal(shelf_find_batch(shelf, b->head.tenant, b->head.id, now, &err), 0);
    *b = *now;
    free(now);
}

static void wait_for_end(struct shelf_batch *b)
{
    for (int i = 0; i < 60000 && !batch_has_ended(b); i++) {
        clock_sleep_ns(1000000);
        look(b);
    }
    assert_true(batch_has_ended(b));
}

static void wait_for_answers(int n)
{
    for (int i = 0; i < 60000 && count(&told.n_ended) < n; i++)
        clock_sleep_ns(1000000);
    assert_true(count(&told.n_ended) >= n);
}

static int n_lines_of(const char *id)
{
    char path[TEMPDIR_BYTES + 64], *text;
    size_t n;
    int lines = 0;
    shelf_path(shelf, id, path, sizeof path);
    if (file_read(path, ROOM, &text, &n, &err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    free(text);
    return lines;
}

/* --- the tests -------------------------------------------------------------------------------- */

TEST_WITH(a_batch_ends_with_its_answers, begin, end)
{
    struct shelf_file f;
    struct shelf_batch *b = add("t", 3, 2, "\n  \nno JSON\n");
    struct runner *r = start();
    wait_for_end(b);
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_true(b->at_s[BATCH_IN_PROGRESS] > 0 && b->at_s[BATCH_FINALIZING] > 0);
    assert_true(b->at_s[BATCH_COMPLETED] >= b->at_s[BATCH_FINALIZING]);
    assert_int_equal(b->at_s[BATCH_FAILED] + b->at_s[BATCH_CANCELLED], 0);
    assert_int_equal(b->n_lines, 4); /* blank lines do not count */
    assert_int_equal(b->n_done, 4);
    assert_int_equal(b->n_failed, 1);
    assert_true(b->has_output && b->has_errors);
    assert_int_equal(n_lines_of(b->output), 3);
    assert_int_equal(n_lines_of(b->errors), 1);
    assert_int_equal(shelf_read_file(shelf, "t", b->output, &f, NULL, &err), 0);
    assert_string_equal(f.purpose, "batch_output");
    assert_int_equal(count(&told.n_began), 3);
    assert_int_equal(count(&told.n_ended), 3);
    assert_int_equal(count(&told.n_done), 3);
    assert_int_equal(told.began[0], 't');
    runner_destroy(r);
    free(b);
}

/* Answers have the time of the batch, and only their owner may read them. Lines for another
 * endpoint than the batch's are refused. A runner may tell nobody about its answers. */
TEST_WITH(a_batch_has_one_endpoint_and_one_time, begin, end)
{
    static const char chat[] = "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":"
                               "\"/v1/chat/completions\",\"body\":{\"messages\":[]}}\n";
    struct shelf_batch *b = add("t", 2, 1, chat);
    const struct runner_opts o = {
        .shelf = shelf, .client = {.h = h, .model_name = "m"}, .in_flight = 1};
    struct runner *r;
    struct stat st;
    size_t n;
    char path[TEMPDIR_BYTES + 64], want[64], *text;
    assert_int_equal(runner_start(&o, &r, &err), 0);
    wait_for_end(b);
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_true(b->n_lines == 3 && b->n_done == 3 && b->n_failed == 1);
    shelf_path(shelf, b->errors, path, sizeof path);
    assert_int_equal(file_read(path, ROOM, &text, &n, &err), 0);
    assert_non_null(strstr(text, "\"mismatched_url\""));
    free(text);
    shelf_path(shelf, b->output, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(file_read(path, ROOM, &text, &n, &err), 0);
    snprintf(want, sizeof want, "\"created\": %lld", (long long)b->head.created_s);
    assert_non_null(strstr(text, want));
    free(text);
    assert_int_equal(count(&told.n_began), 0);
    runner_destroy(r);
    free(b);
}

/* The runner has nothing to do until it is woken. */
TEST_WITH(a_new_batch_wakes_the_runner, begin, end)
{
    struct runner *r = start();
    struct shelf_batch *first = add("t", 1, 1, "");
    runner_wake(r);
    wait_for_end(first);
    struct shelf_batch *second = add("t", 2, 1, "");
    runner_wake(r);
    wait_for_end(second);
    assert_int_equal(second->n_done, 2);
    runner_destroy(r);
    free(first);
    free(second);
}

TEST_WITH(tenants_take_turns, begin, end)
{
    struct shelf_batch *b[] = {add("a", 2, 1, ""), add("a", 2, 1, ""), add("b", 2, 1, ""),
                               add("c", 1, 1, "")};
    struct runner *r = start();
    for (int i = 0; i < 4; i++)
        wait_for_end(b[i]);
    assert_string_equal(told.began, "aabbcaa");
    runner_destroy(r);
    for (int i = 0; i < 4; i++)
        free(b[i]);
}

/* A batch that has run for RUNNER_TURN_S makes room for another tenant's, and goes on after it. */
TEST_WITH(a_long_batch_makes_room, begin, end)
{
    struct shelf_batch *a = add("a", MANY, 100, ""), *b = add("b", 1, 1, "");
    struct runner *r = start();
    wait_for_answers(1);
    assert_null(strchr(told.began, 'b'));
    atomic_store(&ahead_s, RUNNER_TURN_S + 1);
    wait_for_end(b);
    look(a);
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_int_equal(a->status, BATCH_IN_PROGRESS);
    assert_true(a->n_done >= 1 && a->n_done < MANY);
    runner_destroy(r);
    free(a);
    free(b);
}

/* A runner without a batch waits without looking again and again: before its first batch, and after
 * the last. */
TEST_WITH(an_idle_runner_uses_no_processor, begin, end)
{
    struct runner *r = start();
    for (int i = 0; i < 2; i++) {
        clock_sleep_ns(20000000);
        int64_t before = clock_cpu_now().ran_ns;
        clock_sleep_ns(200000000);
        assert_in_range(clock_cpu_now().ran_ns - before, 0, 100000000);
        struct shelf_batch *b = add("t", 1, 1, "");
        runner_wake(r);
        wait_for_end(b);
        free(b);
    }
    runner_destroy(r);
}

/* A fault of the disk holds a batch up. The runner says so, tries again later or when it is woken,
 * and the batch goes on. A folder lies in place of the record. */
TEST_WITH(a_fault_of_the_disk_is_waited_out, begin, end)
{
    struct shelf_batch *b = add("t", 1, 1, "");
    char id[SHELF_ID_BYTES + 8], path[TEMPDIR_BYTES + 64], want[TEMPDIR_BYTES + 200];
    snprintf(id, sizeof id, "%s.json", b->head.id);
    shelf_path(shelf, id, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    said_begin(LOG_WARN);
    struct runner *r = start();
    snprintf(want, sizeof want, "hcache: warning: a batch waits: %s: Is a directory\n",
             path);
    for (int i = 0; i < 60000 && said_count(said_so_far(), want) == 0; i++)
        clock_sleep_ns(1000000);
    clock_sleep_ns(100000000);
    look(b);
    int n = said_count(said_so_far(), want), status = b->status;
    assert_int_equal(rmdir(path), 0);
    runner_wake(r);
    wait_for_end(b);
    said_end();
    assert_int_equal(n, 1);
    assert_int_equal(status, BATCH_VALIDATING);
    assert_int_equal(b->status, BATCH_COMPLETED);
    runner_destroy(r);
    free(b);
}

TEST_WITH(a_cancelled_batch_keeps_its_answers, begin, end)
{
    struct shelf_batch *b = add("t", MANY, 100, ""), *after = add("t", 1, 1, "");
    struct runner *r = start();
    wait_for_answers(2);
    assert_int_equal(shelf_cancel_batch(shelf, "t", b->head.id, b, &err), 0);
    assert_int_equal(b->status, BATCH_CANCELLING);
    runner_wake(r);
    wait_for_end(b);
    assert_int_equal(b->status, BATCH_CANCELLED);
    assert_true(b->at_s[BATCH_CANCELLING] > 0 && b->at_s[BATCH_CANCELLED] > 0);
    assert_int_equal(b->at_s[BATCH_COMPLETED] + b->at_s[BATCH_FAILED], 0);
    assert_true(b->has_output && !b->has_errors);
    assert_true(b->n_done >= 2 && b->n_done < MANY);
    assert_int_equal(b->n_lines, MANY);
    assert_int_equal(n_lines_of(b->output), b->n_done);
    wait_for_end(after); /* the next batch has its turn */
    assert_int_equal(after->status, BATCH_COMPLETED);
    runner_destroy(r);
    free(b);
    free(after);
}

/* A batch that is cancelled before its turn has no answers. */
TEST_WITH(a_batch_that_never_ran_can_be_cancelled, begin, end)
{
    struct shelf_batch *b = add("t", 3, 1, "");
    assert_int_equal(shelf_cancel_batch(shelf, "t", b->head.id, b, &err), 0);
    struct runner *r = start();
    wait_for_end(b);
    assert_int_equal(b->status, BATCH_CANCELLED);
    assert_true(!b->has_output && !b->has_errors);
    assert_int_equal(b->at_s[BATCH_IN_PROGRESS], 0);
    assert_int_equal(count(&told.n_began), 0);
    runner_destroy(r);
    free(b);
}

TEST_WITH(a_batch_goes_on_with_the_next_runner, begin, end)
{
    struct shelf_batch *b = add("t", MANY, 100, "");
    struct runner *r = start();
    wait_for_answers(2);
    runner_stop(r);
    runner_stop(r); /* a second stop does nothing */
    look(b);
    assert_int_equal(b->status, BATCH_IN_PROGRESS);
    assert_true(b->n_done >= 1 && b->n_done < MANY);
    assert_int_equal(b->n_lines, MANY);
    int64_t begun_s = b->at_s[BATCH_IN_PROGRESS];
    int n_before = n_lines_of(b->output);
    runner_destroy(r);
    r = start();
    wait_for_end(b);
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_int_equal(b->at_s[BATCH_IN_PROGRESS], begun_s);
    assert_int_equal(b->n_done, MANY);
    assert_int_equal(n_lines_of(b->output), MANY);
    assert_true(n_before >= 1 && n_before < MANY);
    runner_destroy(r);
    free(b);
}

TEST_WITH(answers_in_progress_take_room, begin, end)
{
    struct shelf_batch *b = add("t", MANY, 100, "");
    uint64_t before = shelf_room(shelf, "t");
    struct runner *r = start();
    for (int i = 0; i < 60000 && !batch_has_ended(b) && shelf_room(shelf, "t") == before;
         i++) {
        clock_sleep_ns(1000000);
        look(b);
    }
    assert_false(batch_has_ended(b));
    assert_true(shelf_room(shelf, "t") < before);
    runner_destroy(r);
    free(b);
}

static void wait_for_hold(struct shelf_batch *b, int code)
{
    for (int i = 0; i < 60000 && b->held_code == 0; i++) {
        clock_sleep_ns(1000000);
        look(b);
    }
    assert_int_equal(b->held_code, code);
    assert_int_equal(b->status, BATCH_IN_PROGRESS);
}

/* Answers and files share the shelf's bound. At the bound a batch waits, keeps the answers that it
 * has, and goes on when there is room. Another tenant's batch runs meanwhile. */
TEST_WITH(a_batch_waits_for_room_and_goes_on, begin, end)
{
    struct shelf_file f;
    char *bytes = xcalloc(1, 20 << 10);
    bool pending;
    shelf_close(shelf);
    open_shelf(ROOM);
    shelf_divide(shelf, 2, 6 * SHELF_RECORD_BYTES + (26 << 10));
    assert_int_equal(shelf_add_file(shelf, "t", "f", bytes, 20 << 10, &f, &err), 0);
    struct shelf_batch *b = add("t", 30, 2, "");
    said_begin(LOG_WARN);
    struct runner *r = start();
    wait_for_hold(b, ERR_LIMIT);
    int n_before = n_lines_of(b->output);
    assert_true(n_before >= 1 && n_before < 30);
    struct shelf_batch *other = add("u", 1, 1, "");
    runner_wake(r);
    wait_for_end(other);
    assert_int_equal(other->status, BATCH_COMPLETED);
    look(b);
    assert_int_equal(b->held_code, ERR_LIMIT);
    assert_int_equal(shelf_delete_file(shelf, "t", f.head.id, &pending, &err), 0);
    runner_wake(r);
    wait_for_end(b);
    said_end();
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_int_equal(b->n_done, 30);
    assert_int_equal(n_lines_of(b->output), 30);
    runner_destroy(r);
    free(bytes);
    free(other);
    free(b);
}

/* A batch that waits for room can be cancelled, and keeps its answers. */
TEST_WITH(a_batch_that_waits_for_room_can_be_cancelled, begin, end)
{
    shelf_close(shelf);
    open_shelf(4 * SHELF_RECORD_BYTES + (6 << 10));
    struct shelf_batch *b = add("t", 30, 2, "");
    said_begin(LOG_WARN);
    struct runner *r = start();
    wait_for_hold(b, ERR_LIMIT);
    assert_int_equal(shelf_cancel_batch(shelf, "t", b->head.id, b, &err), 0);
    runner_wake(r);
    wait_for_end(b);
    said_end();
    assert_int_equal(b->status, BATCH_CANCELLED);
    assert_true(b->has_output && n_lines_of(b->output) >= 1);
    runner_destroy(r);
    free(b);
}

/* A disk without room for the next answers holds a batch up, also if it has room for records. The
 * disk is tried again when it says that it has room for them. */
TEST_WITH(a_batch_waits_for_room_on_the_disk, begin, end)
{
    struct shelf_batch *b = add("t", 3, 2, "");
    atomic_store(&disk_is_full, true);
    atomic_store(&disk_says_full, true);
    said_begin(LOG_WARN);
    struct runner *r = start();
    wait_for_hold(b, -ENOSPC);
    int n_tried = count(&told.n_ended);
    atomic_store(&disk_is_full, false);
    atomic_fetch_add(&ahead_s, SHELF_RETRY_S + 1);
    runner_wake(r);
    clock_sleep_ns(50000000);
    look(b);
    assert_int_equal(b->held_code, -ENOSPC);
    assert_int_equal(count(&told.n_ended), n_tried);
    atomic_store(&disk_says_full, false);
    runner_wake(r);
    wait_for_end(b);
    said_end();
    assert_int_equal(b->status, BATCH_COMPLETED);
    assert_int_equal(n_lines_of(b->output), 3);
    runner_destroy(r);
    free(b);
}

/* The message names no file of the server; the log does. */
TEST_WITH(a_batch_whose_file_is_gone_fails, begin, end)
{
    char path[TEMPDIR_BYTES + 64];
    struct shelf_batch *b = add("t", 1, 1, "");
    shelf_path(shelf, b->input, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    log_set_level(LOG_QUIET);
    struct runner *r = start();
    wait_for_end(b);
    log_set_level(LOG_WARN);
    assert_int_equal(b->status, BATCH_FAILED);
    assert_string_equal(b->error_code, "server_error");
    assert_string_equal(b->error_message, "the server could not read or write its files");
    assert_false(b->has_output);
    runner_destroy(r);
    free(b);
}

TEST(no_runner_can_be_stopped)
{
    runner_stop(NULL);
    runner_destroy(NULL);
}

int main(void)
{
    return unit_run(open_model, close_model);
}
