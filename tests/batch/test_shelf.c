/* test_shelf.c - files and records of batches: their owners, their order, and their state after a
 * restart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "batch/shelf.h"

/* The folder lies in memory if the machine has a file system for that, because these tests write
 * hundreds of files. */
static char folder[64];
static struct err err;

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/dev/shm/hcache-shelf.XXXXXX");
    if (mkdtemp(folder) != NULL)
        return 0;
    strcpy(folder, "/tmp/hcache-shelf.XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int empty_folder(void **state)
{
    (void)state;
    char *command = xasprintf("rm -rf %s", folder);
    int rc = system(command);
    free(command);
    return rc;
}

static struct shelf *open_shelf(uint64_t max_bytes)
{
    struct shelf *s;
    assert_int_equal(shelf_open(folder, max_bytes, &s, &err), 0);
    return s;
}

static bool is_there(const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static void put(const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

static struct shelf_batch *add_batch(struct shelf *s, const char *tenant)
{
    struct shelf_file f;
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    assert_int_equal(shelf_add_file(s, tenant, "in", "{}\n", 3, &f, &err), 0);
    strcpy(b->endpoint, "/v1/completions");
    strcpy(b->metadata, "{\"a\":\"\\\"\"}");
    assert_int_equal(shelf_add_batch(s, tenant, f.head.id, b, &err), 0);
    return b;
}

static void one_process_has_a_folder(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20), *other;
    assert_int_equal(shelf_open(folder, 1 << 20, &other, &err), ERR_BUSY);
    shelf_close(s);
}

/* A process without standard input writes and reads files as descriptor 0. */
static void files_may_be_the_first_descriptor(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f, again;
    int own = dup(STDIN_FILENO), fd = -1;
    close(STDIN_FILENO);
    int added = shelf_add_file(s, "t", "name", "bytes", 5, &f, &err);
    int read = shelf_read_file(s, "t", f.head.id, &again, &fd, &err);
    if (fd >= 0)
        close(fd);
    if (own >= 0) {
        assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
        close(own);
    }
    assert_int_equal(added, 0);
    assert_int_equal(read, 0);
    assert_int_equal(fd, STDIN_FILENO);
    shelf_close(s);
}

static void a_restart_finds_what_was_kept(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f, again;
    struct shelf_batch *b = add_batch(s, "t"), *found = xcalloc(1, sizeof *found);
    assert_int_equal(shelf_add_file(s, "t", "name", "bytes", 5, &f, &err), 0);
    b->status = BATCH_FAILED;
    b->at_s[BATCH_FAILED] = 7;
    b->n_lines = 9;
    strcpy(b->error_code, "storage_full");
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    shelf_close(s);
    /* the process ended while it was writing the file */
    put("file-012301230123012301230123.new", "torn");
    /* the process ended before it wrote the file's record */
    put("file-456745674567456745674567", "no record");
    put("file-89ab89ab89ab89ab89ab89ab.json", "no JSON"); /* perhaps from a later version */
    put("file-89ab89ab89ab89ab89ab89ab", "its bytes");
    put("letter", "of the user");
    put("file-2024", "of the user");
    put("batch_notes.new", "of the user");
    s = open_shelf(1 << 20);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &again, NULL, &err), 0);
    assert_memory_equal(&f, &again, sizeof f);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), 0);
    assert_memory_equal(b, found, sizeof *b);
    assert_false(is_there("file-012301230123012301230123.new") ||
                 is_there("file-456745674567456745674567"));
    assert_true(is_there("file-89ab89ab89ab89ab89ab89ab") &&
                is_there("file-89ab89ab89ab89ab89ab89ab.json") && is_there("letter"));
    assert_true(is_there("file-2024") && is_there("batch_notes.new"));
    shelf_close(s);
    free(found);
    free(b);
}

/* Replaces a file name in a record by another of equal length. */
static void rename_in_record(const char *id, const char *field, const char *other)
{
    char *record = xasprintf("%s.json", id), *path = xasprintf("%s/%s", folder, record);
    char *text = NULL, *key = xasprintf("\"%s\": \"", field);
    size_t n;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &err), 0);
    char *at = strstr(text, key);
    assert_non_null(at);
    memcpy(at + strlen(key), other, strlen(other));
    put(record, text);
    free(record);
    free(path);
    free(text);
    free(key);
}

/* A record may only name files of its own folder, because a batch writes its answers to them. */
static void records_name_no_other_files(void **state)
{
    (void)state;
    static const char *const fields[] = {"input", "output", "errors"};
    for (int i = 0; i < 3; i++) {
        struct shelf *s = open_shelf(1 << 20);
        struct shelf_batch *b = add_batch(s, "t"), *found = xcalloc(1, sizeof *found);
        shelf_close(s);
        rename_in_record(b->head.id, fields[i], "../etc/");
        s = open_shelf(1 << 20);
        assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), ERR_NOT_FOUND);
        shelf_close(s);
        free(found);
        free(b);
    }
}

/* Another user who can write to the folder cannot redirect an upload or a download. */
static void links_are_not_followed(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f;
    int fd = -1;
    assert_int_equal(shelf_add_file(s, "t", "name", "bytes", 5, &f, &err), 0);
    char *path = xasprintf("%s/%s", folder, f.head.id);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_not_equal(shelf_read_file(s, "t", f.head.id, &f, &fd, &err), 0);
    assert_int_equal(fd, -1);
    shelf_close(s);
    free(path);
}

/* Answers of a batch that has not ended have no record yet. */
static void answers_wait_for_the_end(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t");
    struct shelf_file f;
    put(b->output, "answers");
    assert_int_equal(shelf_read_file(s, "t", b->output, &f, NULL, &err), ERR_NOT_FOUND);
    shelf_close(s);
    s = open_shelf(1 << 20);
    assert_true(is_there(b->output));
    assert_int_equal(shelf_delete_file(s, "t", b->input, &err), ERR_BUSY);
    /* the second time, the process was killed before the record was written */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shelf_keep_answers(s, b, &err), 0);
        assert_true(b->has_output && !b->has_errors);
        assert_int_equal(shelf_read_file(s, "t", b->output, &f, NULL, &err), 0);
        assert_int_equal(f.n_bytes, 7);
    }
    b->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", b->input, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", b->output, &err), 0);
    assert_false(is_there(b->output) || is_there(b->input));
    shelf_close(s);
    free(b);
}

/* A batch's progress is visible while it runs; the rest of its record stays, and no file is
 * written. */
static void counts_are_seen_while_it_runs(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *found = xcalloc(1, sizeof *found);
    b->n_lines = 10;
    b->n_done = 7;
    b->n_failed = 2;
    b->status = BATCH_FAILED; /* shelf_count_batch stores no status */
    shelf_count_batch(s, b);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), 0);
    assert_true(found->n_lines == 10 && found->n_done == 7 && found->n_failed == 2);
    assert_int_not_equal(found->status, BATCH_FAILED);
    shelf_close(s);
    s = open_shelf(1 << 20);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), 0);
    assert_int_equal(found->n_done, 0);
    shelf_close(s);
    free(found);
    free(b);
}

static void tenants_see_their_own(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *page = xcalloc(2, sizeof *page);
    struct shelf_file f;
    bool more;
    struct shelf_page mine = {.tenant = "t", .limit = 2},
                      other = {.tenant = "u", .limit = 2};
    assert_int_equal(shelf_read_file(s, "u", b->input, &f, NULL, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_delete_file(s, "u", b->input, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_find_batch(s, "u", b->head.id, page, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_cancel_batch(s, "u", b->head.id, page, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_add_batch(s, "u", b->input, page, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_list_batches(s, &other, page, &more), 0);
    assert_int_equal(shelf_list_batches(s, &mine, page, &more), 1);
    assert_false(more);
    shelf_close(s);
    free(page);
    free(b);
}

static void tenants_take_turns(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b[4], *next = xcalloc(1, sizeof *next);
    static const char *const tenants[] = {"b", "b", "a", "c"};
    assert_false(shelf_next_batch(s, "", next));
    for (int i = 0; i < 4; i++)
        b[i] = add_batch(s, tenants[i]);
    static const struct {
        const char *last;
        int next;
    } rows[] = {{"", 2}, {"a", 0}, {"b", 3}, {"c", 2}, {"bb", 3}, {"z", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(shelf_next_batch(s, rows[i].last, next));
        assert_string_equal(next->head.id, b[rows[i].next]->head.id);
    }
    b[0]->status = BATCH_CANCELLED; /* then it is the turn of the tenant's second batch */
    assert_int_equal(shelf_put_batch(s, b[0], &err), 0);
    assert_true(shelf_next_batch(s, "a", next));
    assert_string_equal(next->head.id, b[1]->head.id);
    shelf_close(s);
    for (int i = 0; i < 4; i++)
        free(b[i]);
    free(next);
}

/* The runner may have read the batch before a client cancelled it, and writes its own state
 * later. */
static void a_cancel_is_not_lost(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *seen = xcalloc(1, sizeof *seen);
    assert_int_equal(shelf_cancel_batch(s, "t", b->head.id, seen, &err), 0);
    assert_int_equal(seen->status, BATCH_CANCELLING);
    b->status = BATCH_IN_PROGRESS;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, seen, &err), 0);
    assert_int_equal(seen->status, BATCH_CANCELLING);
    b->status = BATCH_CANCELLED;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_int_equal(shelf_cancel_batch(s, "t", b->head.id, seen, &err), 0);
    /* cancelling a batch that has ended changes nothing */
    assert_int_equal(seen->status, BATCH_CANCELLED);
    shelf_close(s);
    free(seen);
    free(b);
}

static void room_is_bounded(void **state)
{
    (void)state;
    struct shelf *s = open_shelf(3 * SHELF_RECORD_BYTES);
    struct shelf_file f, g;
    char *bytes = xcalloc(1, SHELF_RECORD_BYTES + 1);
    assert_int_equal(shelf_add_file(s, "t", "f", bytes, SHELF_RECORD_BYTES, &f, &err), 0);
    assert_int_equal(shelf_room(s), SHELF_RECORD_BYTES);
    assert_int_equal(shelf_add_file(s, "t", "g", bytes, 1, &g, &err), ERR_LIMIT);
    assert_false(is_there(g.head.id));
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &err), 0);
    shelf_set_growing(s, 2 * SHELF_RECORD_BYTES); /* room taken by answers in progress */
    assert_int_equal(shelf_add_file(s, "t", "g", bytes, 1, &g, &err), ERR_LIMIT);
    shelf_set_growing(s, 0);
    assert_int_equal(shelf_add_file(s, "t", "g", bytes, 1, &g, &err), 0);
    shelf_close(s);
    free(bytes);
}

/* Clients cannot delete batches. If there are too many, the oldest batch that has ended makes
 * room. */
static void old_batches_are_forgotten(void **state)
{
    (void)state;
    struct shelf *s = open_shelf((uint64_t)1 << 30);
    struct shelf_batch *first = add_batch(s, "t"), *b = xcalloc(1, sizeof *b);
    for (int i = 1; i < SHELF_MAX_BATCHES; i++)
        assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), 0);
    assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), ERR_LIMIT);
    first->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, first, &err), 0);
    assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), 0);
    assert_int_equal(shelf_find_batch(s, "t", first->head.id, b, &err), ERR_NOT_FOUND);
    shelf_close(s);
    free(first);
    free(b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, empty_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_process_has_a_folder),      TEST(files_may_be_the_first_descriptor),
        TEST(a_restart_finds_what_was_kept), TEST(records_name_no_other_files),
        TEST(links_are_not_followed),        TEST(answers_wait_for_the_end),
        TEST(tenants_see_their_own),         TEST(tenants_take_turns),
        TEST(a_cancel_is_not_lost),          TEST(room_is_bounded),
        TEST(old_batches_are_forgotten),     TEST(counts_are_seen_while_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
