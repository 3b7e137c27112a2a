/* test_shelf.c - files and records of batches: their owners, their order, and their state after a
 * restart. */
#include <malloc.h>

#include "tests/unit.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "api/shelf.h"
#include "base/json.h"
#include "tests/base/said.h"

/* The folder lies in memory if the machine has a file system for that, because these tests write
 * hundreds of files. */
static char folder[64];
static struct err err;
static bool pending;

static int make_folder(void **state)
{
    strcpy(folder, "/dev/shm/hcache-shelf.XXXXXX");
    if (mkdtemp(folder) != NULL)
        return 0;
    strcpy(folder, "/tmp/hcache-shelf.XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int empty_folder(void **state)
{
    char *command = xasprintf("rm -rf %s", folder);
    int rc = system(command);
    free(command);
    return rc;
}

static struct shelf *open_shelf(uint64_t max_bytes)
{
    struct shelf *s;
    assert_int_equal(shelf_open(folder, max_bytes, NULL, &s, &err), 0);
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
    b->status = BATCH_FAILED; /* a new batch waits, whatever is in its place */
    assert_int_equal(shelf_add_batch(s, tenant, f.head.id, b, &err), 0);
    return b;
}

TEST_WITH(one_process_has_a_folder, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20), *other;
    assert_int_equal(shelf_open(folder, 1 << 20, NULL, &other, &err), ERR_BUSY);
    shelf_close(s);
}

/* A process without standard input writes and reads files as descriptor 0. */
TEST_WITH(files_may_be_the_first_descriptor, make_folder, empty_folder)
{
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
    /* the folder may be this descriptor, too, and is closed */
    struct stat st;
    own = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    int opened = shelf_open(folder, 1 << 20, NULL, &s, &err);
    int was_open = fstat(STDIN_FILENO, &st);
    shelf_close(opened == 0 ? s : NULL);
    int is_open = fstat(STDIN_FILENO, &st);
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    assert_int_equal(opened, 0);
    assert_int_equal(was_open, 0);
    assert_int_equal(is_open, -1);
}

TEST_WITH(a_restart_finds_what_was_kept, make_folder, empty_folder)
{
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
TEST_WITH(records_name_no_other_files, make_folder, empty_folder)
{
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
TEST_WITH(links_are_not_followed, make_folder, empty_folder)
{
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
TEST_WITH(answers_wait_for_the_end, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t");
    struct shelf_file f;
    put(b->output, "answers");
    assert_int_equal(shelf_read_file(s, "t", b->output, &f, NULL, &err), ERR_NOT_FOUND);
    shelf_close(s);
    s = open_shelf(1 << 20);
    assert_true(is_there(b->output));
    assert_int_equal(shelf_delete_file(s, "t", b->input, &pending, &err), ERR_BUSY);
    /* the second time, the process was killed before the record was written */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shelf_keep_answers(s, b, &err), 0);
        assert_true(b->has_output && !b->has_errors);
        assert_int_equal(shelf_read_file(s, "t", b->output, &f, NULL, &err), 0);
        assert_int_equal(f.n_bytes, 7);
    }
    b->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", b->input, &pending, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", b->output, &pending, &err), 0);
    assert_false(is_there(b->output) || is_there(b->input));
    shelf_close(s);
    free(b);
}

/* A batch's progress is visible while it runs; the rest of its record stays, and no file is
 * written. */
TEST_WITH(counts_are_seen_while_it_runs, make_folder, empty_folder)
{
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

TEST_WITH(tenants_see_their_own, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *page = xcalloc(2, sizeof *page);
    struct shelf_file f;
    bool more;
    struct shelf_page mine = {.tenant = "t", .limit = 2},
                      other = {.tenant = "u", .limit = 2};
    assert_int_equal(shelf_read_file(s, "u", b->input, &f, NULL, &err), ERR_NOT_FOUND);
    assert_int_equal(shelf_delete_file(s, "u", b->input, &pending, &err), ERR_NOT_FOUND);
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

TEST_WITH(tenants_take_turns, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b[4], *next = xcalloc(1, sizeof *next);
    static const char *const tenants[] = {"b", "b", "a", "c"};
    assert_false(shelf_next_batch(s, "", next, NULL));
    for (int i = 0; i < 4; i++)
        b[i] = add_batch(s, tenants[i]);
    static const struct {
        const char *last;
        int next;
    } rows[] = {{"", 2}, {"a", 0}, {"b", 3}, {"c", 2}, {"bb", 3}, {"z", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(shelf_next_batch(s, rows[i].last, next, NULL));
        assert_string_equal(next->head.id, b[rows[i].next]->head.id);
    }
    b[0]->status = BATCH_CANCELLED; /* then it is the turn of the tenant's second batch */
    assert_int_equal(shelf_put_batch(s, b[0], &err), 0);
    assert_true(shelf_next_batch(s, "a", next, NULL));
    assert_string_equal(next->head.id, b[1]->head.id);
    shelf_close(s);
    for (int i = 0; i < 4; i++)
        free(b[i]);
    free(next);
}

/* The runner may have read the batch before a client cancelled it, and writes its own state
 * later. */
TEST_WITH(a_cancel_is_not_lost, make_folder, empty_folder)
{
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

TEST_WITH(room_is_bounded, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(3 * SHELF_RECORD_BYTES);
    struct shelf_file f, g;
    char *bytes = xcalloc(1, SHELF_RECORD_BYTES + 1);
    assert_int_equal(shelf_add_file(s, "t", "f", bytes, SHELF_RECORD_BYTES, &f, &err), 0);
    assert_int_equal(shelf_room(s, "t"), SHELF_RECORD_BYTES);
    assert_int_equal(shelf_add_file(s, "t", "g", bytes, 1, &g, &err), ERR_LIMIT);
    assert_false(is_there(g.head.id));
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), 0);
    assert_int_equal(shelf_add_file(s, "t", "g", bytes, 1, &g, &err), 0);
    shelf_close(s);
    free(bytes);
}

/* Room is taken by the answers of each batch that has not ended, running or not: of a batch that
 * made room for another tenant's, too, and of one that an earlier process began. */
TEST_WITH(room_is_taken_by_answers, make_folder, empty_folder)
{
    uint64_t max = 1 << 20, left;
    struct shelf *s = open_shelf(max);
    struct shelf_batch *x = add_batch(s, "x"), *y = add_batch(s, "y");
    struct shelf_file f;
    left = shelf_room(s, "t");
    shelf_set_growing(s, x, 1000);
    shelf_set_growing(s, x, 3000);
    assert_int_equal(shelf_room(s, "t"), left - 3000);
    shelf_set_growing(s, y, 200);
    assert_int_equal(shelf_room(s, "t"), left - 3200);
    x->status = BATCH_IN_PROGRESS; /* the caller's record knows nothing of the answers */
    assert_int_equal(shelf_put_batch(s, x, &err), 0);
    shelf_count_batch(s, y);
    assert_int_equal(shelf_room(s, "t"), left - 3200);
    assert_int_equal(shelf_keep_answers(s, y, &err), 0);
    assert_int_equal(shelf_room(s, "t"), left - 3000);
    shelf_set_growing(s, x, left);
    char byte = 0;
    assert_int_equal(shelf_add_file(s, "z", "f", &byte, 1, &f, &err), ERR_LIMIT);
    shelf_close(s);
    put(x->output, "{}\n{}\n");
    put(x->errors, "{}\n");
    put(y->output, "{}\n");
    s = open_shelf(max);
    assert_int_equal(shelf_room(s, "t"), left - 12);
    x->status = BATCH_CANCELLED;
    assert_int_equal(shelf_keep_answers(s, x, &err), 0);
    assert_int_equal(shelf_room(s, "t"), left - 12 - 2 * SHELF_RECORD_BYTES);
    shelf_close(s);
    free(x);
    free(y);
}

/* A tenant's many batches push out its own, not the few of another. */
TEST_WITH(many_batches_push_out_their_own, make_folder, empty_folder)
{
    struct shelf *s = open_shelf((uint64_t)1 << 30);
    struct shelf_batch *mine[3], *b = xcalloc(1, sizeof *b), *first = NULL;
    for (int i = 0; i < 3; i++) {
        mine[i] = add_batch(s, "mine");
        mine[i]->status = BATCH_COMPLETED;
        assert_int_equal(shelf_put_batch(s, mine[i], &err), 0);
    }
    first = add_batch(s, "other");
    for (int i = 0; i < SHELF_MAX_BATCHES + 20; i++) {
        assert_int_equal(shelf_add_batch(s, "other", first->input, b, &err), 0);
        b->status = BATCH_COMPLETED;
        assert_int_equal(shelf_put_batch(s, b, &err), 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(shelf_find_batch(s, "mine", mine[i]->head.id, b, &err), 0);
    /* a place for one more of mine is made by the other's, too */
    free(add_batch(s, "mine"));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shelf_find_batch(s, "mine", mine[i]->head.id, b, &err), 0);
        free(mine[i]);
    }
    shelf_close(s);
    free(first);
    free(b);
}

/* Of two keys, each has half of every bound: what one takes is never the other's. */
TEST_WITH(shares_are_of_each_tenant, make_folder, empty_folder)
{
    struct shelf *s = open_shelf((uint64_t)64 << 20);
    struct shelf_file f;
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    char *bytes = xcalloc(1, 3 << 20);
    shelf_divide(s, 2, 2 << 20);
    assert_int_equal(shelf_add_file(s, "a", "f", bytes, 1 << 20, &f, &err), 0);
    assert_int_equal(shelf_add_file(s, "a", "f", bytes, 1 << 20, &f, &err), ERR_LIMIT);
    assert_int_equal(shelf_room(s, "b"), 2 << 20);
    shelf_divide(s, 2, 0);
    assert_int_equal(shelf_room(s, "b"), 32 << 20);
    assert_int_equal(shelf_add_file(s, "a", "f", bytes, 1 << 20, &f, &err), 0);
    /* batches: those that wait are refused, those that have ended make room */
    for (int i = 0; i < SHELF_MAX_BATCHES / 2; i++)
        assert_int_equal(shelf_add_batch(s, "a", f.head.id, b, &err), 0);
    assert_int_equal(shelf_add_batch(s, "a", f.head.id, b, &err), ERR_LIMIT);
    struct shelf_batch *mine = add_batch(s, "b");
    mine->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, mine, &err), 0);
    assert_int_equal(shelf_add_batch(s, "a", f.head.id, b, &err), ERR_LIMIT);
    assert_int_equal(shelf_find_batch(s, "b", mine->head.id, b, &err), 0);
    /* files */
    shelf_divide(s, SHELF_MAX_FILES / 4, 1 << 20);
    for (int i = 0; i < 3; i++)
        assert_int_equal(shelf_add_file(s, "c", "f", bytes, 1, &f, &err), 0);
    assert_int_equal(shelf_add_file(s, "c", "f", bytes, 1, &f, &err), 0);
    assert_int_equal(shelf_add_file(s, "c", "f", bytes, 1, &f, &err), ERR_LIMIT);
    assert_int_equal(shelf_add_file(s, "d", "f", bytes, 1, &f, &err), 0);
    shelf_close(s);
    free(bytes);
    free(mine);
    free(b);
}

/* Clients cannot delete batches. If there are too many, the oldest batch that has ended makes
 * room. */
TEST_WITH(old_batches_are_forgotten, make_folder, empty_folder)
{
    struct shelf *s = open_shelf((uint64_t)1 << 30);
    struct shelf_batch *first = add_batch(s, "t"), *b = xcalloc(1, sizeof *b);
    size_t before = mallinfo2().uordblks;
    for (int i = 1; i < SHELF_MAX_BATCHES; i++)
        assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), 0);
    /* without metadata a batch takes no room for the largest */
    assert_true(mallinfo2().uordblks - before < (size_t)SHELF_MAX_BATCHES * 2048);
    assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), ERR_LIMIT);
    first->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, first, &err), 0);
    assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), 0);
    assert_int_equal(shelf_find_batch(s, "t", first->head.id, b, &err), ERR_NOT_FOUND);
    /* the last one has ended, and those before it have not */
    struct shelf_batch *last = xcalloc(1, sizeof *last);
    const struct shelf_page page = {.tenant = "t", .limit = 1};
    bool more;
    assert_int_equal(shelf_list_batches(s, &page, last, &more), 1);
    last->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, last, &err), 0);
    assert_int_equal(shelf_add_batch(s, "t", first->input, b, &err), 0);
    assert_int_equal(shelf_find_batch(s, "t", last->head.id, b, &err), ERR_NOT_FOUND);
    free(last);
    shelf_close(s);
    free(first);
    free(b);
}

/* --- records ---------------------------------------------------------------------------------- */

static struct json *read_record(const char *id)
{
    char *path = xasprintf("%s/%s.json", folder, id), *text;
    size_t n;
    struct json *o;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &err), 0);
    assert_int_equal(json_parse(&o, text, n, path, &err), 0);
    free(text);
    free(path);
    return o;
}

static void write_record(const char *id, const struct json *o)
{
    char *name = xasprintf("%s.json", id), *text = json_text(o, 0);
    put(name, text);
    free(text);
    free(name);
}

/* Opens the shelf and returns whether it has the record. Warnings are not printed. */
static bool is_known(const char *id, bool is_file)
{
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    struct shelf_file f;
    log_set_level(LOG_QUIET);
    struct shelf *s = open_shelf(1 << 20);
    log_set_level(LOG_WARN);
    int rc = is_file ? shelf_read_file(s, "t", id, &f, NULL, &err)
                     : shelf_find_batch(s, "t", id, b, &err);
    shelf_close(s);
    free(b);
    assert_true(rc == 0 || rc == ERR_NOT_FOUND);
    return rc == 0;
}

enum change { DROPPED, NULLED, OTHER_TYPE, NEGATIVE, LONG, TOO_LONG, CHANGES };

/* Changes a member of a record. Returns false if the change does not suit the member: its type is
 * 't' (text), 'i' (integer) or 'b' (boolean), and a text with a bound has `room` bytes. */
static bool change_member(struct json *o, const char *name, char type, size_t room,
                          enum change how)
{
    char text[SHELF_MAX_METADATA + 1] = {0};
    memset(text, 'x', how == LONG && room > 0 ? room - 1 : room);
    json_drop(o, name);
    switch (how) {
    case DROPPED:
        return true;
    case NULLED:
        json_put_null(o, name);
        return true;
    case OTHER_TYPE:
        if (type == 't')
            json_put_int(o, name, 1);
        else
            json_put_string(o, name, "1");
        return true;
    case NEGATIVE:
        json_put_int(o, name, -1);
        return type == 'i';
    case LONG:
    case TOO_LONG:
        json_put_string(o, name, text);
        return room > 0;
    case CHANGES:
        break;
    }
    return false;
}

/* A record counts only if it has all its fields, each with its type, and no text is too long. */
TEST_WITH(a_record_needs_each_of_its_fields, make_folder, empty_folder)
{
    static const struct {
        bool is_file;
        const char *name;
        char type;
        size_t room;
    } rows[] = {
        {true, "id", 't', 0},
        {true, "tenant", 't', 0},
        {true, "created", 'i', 0},
        {true, "name", 't', SHELF_NAME_BYTES},
        {true, "purpose", 't', 16},
        {true, "bytes", 'i', 0},
        {false, "id", 't', 0},
        {false, "tenant", 't', 0},
        {false, "created", 'i', 0},
        {false, "status", 't', 0},
        {false, "endpoint", 't', 64},
        {false, "input", 't', 0},
        {false, "output", 't', 0},
        {false, "errors", 't', 0},
        {false, "has_output", 'b', 0},
        {false, "has_errors", 'b', 0},
        {false, "lines", 'i', 0},
        {false, "done", 'i', 0},
        {false, "failed", 'i', 0},
        {false, "error_code", 't', 32},
        {false, "error_message", 't', 300},
        {false, "metadata", 't', SHELF_MAX_METADATA},
    };
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t");
    shelf_close(s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *id = rows[i].is_file ? b->input : b->head.id;
        struct json *whole = read_record(id);
        for (int how = 0; how < CHANGES; how++) {
            struct json *o = read_record(id);
            if (change_member(o, rows[i].name, rows[i].type, rows[i].room,
                              (enum change)how)) {
                write_record(id, o);
                if (is_known(id, rows[i].is_file) != (how == LONG))
                    fail_msg("%s, change %d", rows[i].name, how);
                write_record(id, whole);
            }
            json_free(o);
        }
        assert_true(is_known(id, rows[i].is_file));
        json_free(whole);
    }
    /* an unknown status, and a record under the name of another one */
    struct json *o = read_record(b->head.id);
    json_drop(o, "status");
    json_put_string(o, "status", "paused");
    write_record(b->head.id, o);
    assert_false(is_known(b->head.id, false));
    json_drop(o, "status");
    json_put_string(o, "status", "completed");
    write_record(b->head.id, o);
    assert_true(is_known(b->head.id, false));
    static const char other[] = "batch_012301230123012301230123";
    write_record(other, o);
    assert_false(is_known(other, false));
    json_drop(o, "at"); /* times may be missing */
    write_record(b->head.id, o);
    assert_true(is_known(b->head.id, false));
    json_free(o);
    free(b);
}

/* Opens the shelf, and returns the warnings. */
static const char *warnings(void)
{
    said_begin(LOG_WARN);
    struct shelf *s = open_shelf(1 << 20);
    const char *text = said_end();
    shelf_close(s);
    return text;
}

/* A record that is not used is named, with the reason. */
TEST_WITH(a_record_that_is_not_used_is_named, make_folder, empty_folder)
{
    static const char *const rows[][2] = {
        {"{}", "a field is missing"},
        {"{", "string or '}' expected near end of file"},
        {"[]", "a field is missing"},
    };
    assert_string_equal(warnings(), "");
    for (int i = 0; i < 3; i++) {
        put("file-012301230123012301230123.json", rows[i][0]);
        const char *said = warnings();
        assert_non_null(strstr(said, "hcache: warning: "));
        assert_non_null(strstr(said, "/file-012301230123012301230123.json is not used: "));
        assert_non_null(strstr(said, rows[i][1]));
    }
}

/* Every field of a batch comes back after a restart. */
TEST_WITH(a_batch_is_kept_with_all_its_fields, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *found = xcalloc(1, sizeof *found);
    assert_int_equal(b->status, BATCH_VALIDATING);
    assert_int_equal(strspn(b->head.id + 6, "0123456789abcdef"), SHELF_ID_DIGITS);
    assert_memory_equal(b->head.id, "batch_", 6);
    assert_string_equal(b->head.tenant, "t");
    assert_memory_equal(b->output, "file-", 5);
    assert_string_not_equal(b->output, b->errors);
    assert_true(b->head.created_s > 1500000000);
    for (int status = 0; status < BATCH_STATUSES; status++) {
        b->status = (enum batch_status)status;
        for (int i = 0; i < BATCH_STATUSES; i++)
            b->at_s[i] = i == status ? 0 : 100 + i;
        b->has_output = status % 2 == 0;
        b->has_errors = status % 2 == 1;
        b->n_lines = 30 + status;
        b->n_done = 20 + status;
        b->n_failed = 10 + status;
        strcpy(b->error_code, "code");
        strcpy(b->error_message, "a \"message\"");
        assert_int_equal(shelf_put_batch(s, b, &err), 0);
        shelf_close(s);
        s = open_shelf(1 << 20);
        assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), 0);
        assert_memory_equal(b, found, sizeof *b);
    }
    shelf_close(s);
    free(found);
    free(b);
}

TEST_WITH(states_have_names_and_ends, make_folder, empty_folder)
{
    static const struct {
        const char *name;
        bool is_end;
    } rows[BATCH_STATUSES] = {[BATCH_VALIDATING] = {"validating", false},
                              [BATCH_IN_PROGRESS] = {"in_progress", false},
                              [BATCH_FINALIZING] = {"finalizing", false},
                              [BATCH_COMPLETED] = {"completed", true},
                              [BATCH_FAILED] = {"failed", true},
                              [BATCH_CANCELLING] = {"cancelling", false},
                              [BATCH_CANCELLED] = {"cancelled", true}};
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    for (int i = 0; i < BATCH_STATUSES; i++) {
        b->status = (enum batch_status)i;
        assert_string_equal(batch_status_name(b->status), rows[i].name);
        assert_int_equal(batch_has_ended(b), rows[i].is_end);
    }
    free(b);
}

/* --- pages ------------------------------------------------------------------------------------ */

/* Sets the time at which a record was created. */
static void set_created(const char *id, int64_t created_s)
{
    struct json *o = read_record(id);
    json_drop(o, "created");
    json_put_int(o, "created", created_s);
    write_record(id, o);
    json_free(o);
}

/* Lists a page of files. Returns the first letters of their names, and '+' if there are more. */
static const char *page_of(struct shelf *s, struct shelf_page page)
{
    static char text[20];
    struct shelf_file f[10];
    bool more;
    int n = shelf_list_files(s, &page, f, &more);
    for (int i = 0; i < n; i++)
        text[i] = f[i].name[0];
    text[n] = more ? '+' : 0;
    text[n + 1] = 0;
    return text;
}

TEST_WITH(files_are_listed_in_pages, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f[6];
    static const char *const names[] = {"a", "b", "c", "d", "e", "other"};
    for (int i = 0; i < 6; i++)
        assert_int_equal(
            shelf_add_file(s, i < 5 ? "t" : "u", names[i], "x", 1, &f[i], &err), 0);
    shelf_close(s);
    /* the order of creation, not that of the ids or of the folder, decides after a restart */
    for (int i = 0; i < 6; i++)
        set_created(f[i].head.id, i == 5 ? 1002 : 1000 + (i * 2) % 5);
    struct json *o = read_record(f[3].head.id);
    json_drop(o, "purpose");
    json_put_string(o, "purpose", "batch_output");
    write_record(f[3].head.id, o);
    json_free(o);
    s = open_shelf(1 << 20);
    /* a 1000, d 1001, b 1002, e 1003, c 1004 */
    struct shelf_page p = {.tenant = "t", .limit = 10, .oldest_first = true};
    assert_string_equal(page_of(s, p), "adbec");
    p.oldest_first = false;
    assert_string_equal(page_of(s, p), "cebda");
    p.limit = 5;
    assert_string_equal(page_of(s, p), "cebda");
    p.limit = 4;
    assert_string_equal(page_of(s, p), "cebd+");
    p.after = f[4].head.id;
    assert_string_equal(page_of(s, p), "bda");
    p.limit = 3;
    assert_string_equal(page_of(s, p), "bda");
    p.limit = 2;
    assert_string_equal(page_of(s, p), "bd+");
    p.oldest_first = true;
    assert_string_equal(page_of(s, p), "c");
    p.after = f[2].head.id;
    assert_string_equal(page_of(s, p), "");
    p.after = f[5].head.id; /* of another tenant */
    assert_string_equal(page_of(s, p), "");
    p.after = NULL;
    p.limit = 0;
    assert_string_equal(page_of(s, p), "+");
    p.limit = 10;
    p.purpose = "batch_output";
    assert_string_equal(page_of(s, p), "d");
    p.purpose = "batch";
    assert_string_equal(page_of(s, p), "abec");
    p.purpose = NULL;
    assert_int_equal(shelf_delete_file(s, "t", f[1].head.id, &pending, &err), 0);
    assert_string_equal(page_of(s, p), "adec");
    p.tenant = "u";
    assert_string_equal(page_of(s, p), "o");
    shelf_close(s);
}

/* Records of the same second are in the order of their ids. */
TEST_WITH(equal_times_are_ordered_by_id, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f[8], all[8];
    bool more;
    for (int i = 0; i < 8; i++)
        assert_int_equal(shelf_add_file(s, "t", "n", "x", 1, &f[i], &err), 0);
    shelf_close(s);
    for (int i = 0; i < 8; i++)
        set_created(f[i].head.id, 1000);
    s = open_shelf(1 << 20);
    const struct shelf_page p = {.tenant = "t", .limit = 8, .oldest_first = true};
    assert_int_equal(shelf_list_files(s, &p, all, &more), 8);
    for (int i = 1; i < 8; i++)
        assert_true(strcmp(all[i - 1].head.id, all[i].head.id) < 0);
    shelf_close(s);
}

TEST_WITH(batches_are_listed_in_pages, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b[3], *page = xcalloc(3, sizeof *page);
    bool more;
    for (int i = 0; i < 3; i++)
        b[i] = add_batch(s, "t");
    struct shelf_page p = {.tenant = "t", .limit = 2};
    assert_int_equal(shelf_list_batches(s, &p, page, &more), 2);
    assert_true(more);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(&page[i], b[2 - i], sizeof *page);
    p.after = page[1].head.id;
    assert_int_equal(shelf_list_batches(s, &p, page, &more), 1);
    assert_false(more);
    assert_string_equal(page[0].head.id, b[0]->head.id);
    shelf_close(s);
    /* after a restart the times of creation decide: the second is the oldest */
    static const int64_t created_s[] = {1002, 1000, 1001};
    for (int i = 0; i < 3; i++)
        set_created(b[i]->head.id, created_s[i]);
    s = open_shelf(1 << 20);
    p = (struct shelf_page){.tenant = "t", .limit = 3, .oldest_first = true};
    assert_int_equal(shelf_list_batches(s, &p, page, &more), 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(page[i].head.id, b[(i + 1) % 3]->head.id);
    assert_true(shelf_next_batch(s, "", page, NULL));
    assert_string_equal(page[0].head.id, b[1]->head.id);
    shelf_close(s);
    for (int i = 0; i < 3; i++)
        free(b[i]);
    free(page);
}

/* --- bounds and faults ------------------------------------------------------------------------ */

TEST_WITH(a_file_has_its_bytes_and_a_short_name, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f, again;
    struct stat st;
    char name[SHELF_NAME_BYTES + 10] = {0}, bytes[10];
    int fd = -1;
    memset(name, 'n', sizeof name - 1);
    assert_int_equal(shelf_add_file(s, "t", name, "by\0es", 5, &f, &err), 0);
    assert_int_equal(strlen(f.name), SHELF_NAME_BYTES - 1);
    assert_string_equal(f.purpose, "batch");
    assert_int_equal(f.n_bytes, 5);
    assert_memory_equal(f.head.id, "file-", 5);
    assert_int_equal(strlen(f.head.id), 5 + SHELF_ID_DIGITS);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &again, &fd, &err), 0);
    assert_memory_equal(&f, &again, sizeof f);
    assert_int_equal(read(fd, bytes, 10), 5);
    assert_memory_equal(bytes, "by\0es", 5);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    close(fd);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), ERR_NOT_FOUND);
    assert_text(err.msg, "there is no file '%s'", f.head.id);
    char *record = xasprintf("%s.json", f.head.id);
    assert_false(is_there(f.head.id) || is_there(record));
    free(record);
    shelf_close(s);
    shelf_close(NULL);
}

/* Opens a file of the folder without telling the shelf. */
static int open_in_secret(const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    free(path);
    assert_true(fd >= 0);
    return fd;
}

static bool is_zeroed(int fd)
{
    char bytes[4096];
    ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    assert_true(n > 0);
    while (n > 0 && bytes[n - 1] == 0)
        n--;
    close(fd);
    return n == 0;
}

/* Freed blocks keep their bytes, so what is deleted or replaced is overwritten first. */
TEST_WITH(what_goes_is_overwritten, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f;
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    assert_int_equal(shelf_add_file(s, "t", "secret", "secret", 6, &f, &err), 0);
    assert_int_equal(shelf_add_batch(s, "t", f.head.id, b, &err), 0);
    char *record = xasprintf("%s.json", f.head.id),
         *batch = xasprintf("%s.json", b->head.id);
    int old_batch = open_in_secret(batch), bytes = open_in_secret(f.head.id),
        old_record = open_in_secret(record);
    b->status = BATCH_FAILED;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_true(is_zeroed(old_batch));
    assert_false(is_zeroed(open_in_secret(batch)));
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), 0);
    assert_false(pending);
    assert_true(is_zeroed(bytes) && is_zeroed(old_record));
    free(record);
    free(batch);
    free(b);
    shelf_close(s);
}

/* Overwriting would change what a reader sees. So a file stays while it is read. */
TEST_WITH(a_file_that_is_read_stays, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f, again;
    int fd = -1;
    assert_int_equal(shelf_add_file(s, "t", "f", "bytes", 5, &f, &err), 0);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &again, &fd, &err), 0);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), ERR_BUSY);
    close(fd);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), 0);
    shelf_close(s);
}

/* A deletion is acknowledged only if the record is gone for good. */
TEST_WITH(a_deletion_that_fails_changes_nothing, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f, again;
    assert_int_equal(shelf_add_file(s, "t", "f", "bytes", 5, &f, &err), 0);
    char *in_the_way = xasprintf("%s/%s.json.new", folder, f.head.id);
    assert_int_equal(mkdir(in_the_way, 0700), 0);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), -EISDIR);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &again, NULL, &err), 0);
    assert_true(is_there(f.head.id));
    assert_int_equal(rmdir(in_the_way), 0);
    free(in_the_way);
    /* The record goes, and the bytes cannot be overwritten: the next start has to. */
    char *bytes = xasprintf("%s/%s", folder, f.head.id);
    assert_int_equal(unlink(bytes), 0);
    assert_int_equal(mkdir(bytes, 0700), 0);
    assert_int_equal(shelf_delete_file(s, "t", f.head.id, &pending, &err), 0);
    assert_true(pending);
    shelf_close(s);
    assert_int_equal(rmdir(bytes), 0);
    free(bytes);
    s = open_shelf(1 << 20);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &again, NULL, &err), ERR_NOT_FOUND);
    shelf_close(s);
}

/* A batch needs room for its record, and for one more that its answers will have. */
TEST_WITH(a_batch_needs_room, make_folder, empty_folder)
{
    for (uint64_t less = 0; less < 2; less++) {
        struct shelf *s = open_shelf(3 * SHELF_RECORD_BYTES + 3 - less);
        struct shelf_batch *b = xcalloc(1, sizeof *b);
        struct shelf_file f;
        assert_int_equal(shelf_add_file(s, "t", "in", "{}\n", 3, &f, &err), 0);
        assert_int_equal(shelf_room(s, "t"), 2 * SHELF_RECORD_BYTES - less);
        assert_int_equal(shelf_add_batch(s, "t", f.head.id, b, &err),
                         less == 0 ? 0 : ERR_LIMIT);
        assert_int_equal(shelf_room(s, "t"),
                         less == 0 ? SHELF_RECORD_BYTES : 2 * SHELF_RECORD_BYTES - 1);
        shelf_set_growing(s, b, 5 * SHELF_RECORD_BYTES);
        if (less == 0)
            assert_int_equal(shelf_room(s, "t"), 0);
        assert_int_equal(shelf_keep_answers(s, b, &err),
                         0); /* there are none; nothing grows */
        assert_int_equal(shelf_room(s, "t"),
                         less == 0 ? SHELF_RECORD_BYTES : 2 * SHELF_RECORD_BYTES - 1);
        shelf_close(s);
        free(b);
        empty_folder(NULL);
        make_folder(NULL);
    }
}

/* A folder holds at most SHELF_MAX_FILES files. */
TEST_WITH(files_are_bounded_in_number, make_folder, empty_folder)
{
    for (int i = 1; i < SHELF_MAX_FILES; i++) {
        char name[64], text[300];
        snprintf(name, sizeof name, "file-%024x.json", i);
        snprintf(text, sizeof text,
                 "{\"id\":\"file-%024x\",\"tenant\":\"t\",\"created\":1,\"name\":\"n\","
                 "\"purpose\":\"batch\",\"bytes\":0}",
                 i);
        put(name, text);
    }
    struct shelf *s = open_shelf((uint64_t)1 << 30);
    struct shelf_file f;
    assert_int_equal(shelf_add_file(s, "t", "n", "x", 1, &f, &err), 0);
    assert_int_equal(shelf_add_file(s, "t", "n", "x", 1, &f, &err), ERR_LIMIT);
    assert_string_equal(err.msg, "there are already 10000 files: delete some");
    shelf_close(s);
}

/* Unfinished files of any kind are removed; the answers of an ended batch without a record, too. */
TEST_WITH(rests_are_removed, make_folder, empty_folder)
{
    static const char id[] = "file-012301230123012301230123";
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *running = add_batch(s, "t");
    b->status = BATCH_COMPLETED;
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    shelf_close(s);
    char *fresh = xasprintf("%s.json.new", id), *old = xasprintf("%s.old", id);
    char *fresh_bytes = xasprintf("%s.new", b->input);
    put(fresh, "x");
    put(fresh_bytes, "x");
    put(old, "x");
    put(b->output, "x");
    put(b->errors, "x");
    put(running->errors, "x");
    s = open_shelf(1 << 20);
    assert_false(is_there(fresh) || is_there(fresh_bytes));
    assert_false(is_there(b->output) || is_there(b->errors));
    assert_true(is_there(old) && is_there(running->errors) && is_there(b->input));
    shelf_close(s);
    free(fresh);
    free(fresh_bytes);
    free(old);
    free(running);
    free(b);
}

TEST_WITH(a_folder_is_made_or_refused, make_folder, empty_folder)
{
    struct shelf *s;
    struct stat st;
    char *inner = xasprintf("%s/shelf", folder), *deep = xasprintf("%s/a/b", folder);
    assert_int_equal(shelf_open(inner, 1 << 20, NULL, &s, &err), 0);
    assert_int_equal(stat(inner, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(shelf_room(s, "t"), 1 << 20);
    char path[100];
    shelf_path(s, "x", path, sizeof path);
    assert_text(path, "%s/x", inner);
    struct shelf *second;
    assert_int_equal(shelf_open(inner, 1 << 20, NULL, &second, &err), ERR_BUSY);
    assert_text(err.msg, "%s is in use by another process", inner);
    shelf_close(s);
    assert_int_equal(shelf_open(deep, 1 << 20, NULL, &s, &err), -ENOENT);
    put("plain", "");
    free(inner);
    inner = xasprintf("%s/plain", folder);
    assert_int_equal(shelf_open(inner, 1 << 20, NULL, &s, &err), -ENOTDIR);
    assert_text(err.msg, "%s: Not a directory", inner);
    free(inner);
    free(deep);
    if (geteuid() ==
        0) { /* also root keeps nothing where another user could read and replace it */
        assert_int_equal(chown(folder, 23456, 23456), 0);
        assert_int_equal(shelf_open(folder, 1 << 20, NULL, &s, &err), -EPERM);
        assert_int_equal(chown(folder, 0, 0), 0);
    }
}

/* A record that cannot be written changes nothing in memory. A folder lies in its place. */
TEST_WITH(a_record_that_cannot_be_written_changes_nothing, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *found = xcalloc(1, sizeof *found);
    struct shelf_file f;
    /* the rest of an earlier write is in nobody's way */
    char *rest = xasprintf("%s.json.new", b->head.id);
    put(rest, "a torn record");
    assert_int_equal(shelf_put_batch(s, b, &err), 0);
    assert_false(is_there(rest));
    free(rest);
    char *record = xasprintf("%s/%s.json", folder, b->head.id);
    char *answers = xasprintf("%s/%s.json", folder, b->errors);
    assert_int_equal(unlink(record), 0);
    assert_int_equal(mkdir(record, 0700), 0);
    b->status = BATCH_FAILED;
    assert_int_equal(shelf_put_batch(s, b, &err), -EISDIR);
    assert_text(err.msg, "%s: Is a directory", record);
    assert_int_equal(shelf_cancel_batch(s, "t", b->head.id, found, &err), -EISDIR);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, found, &err), 0);
    assert_int_equal(found->status, BATCH_VALIDATING);
    assert_int_equal(found->at_s[BATCH_CANCELLING], 0);
    put(b->errors, "answers");
    assert_int_equal(mkdir(answers, 0700), 0);
    assert_int_equal(shelf_keep_answers(s, b, &err), -EISDIR);
    assert_int_equal(shelf_read_file(s, "t", b->errors, &f, NULL, &err), ERR_NOT_FOUND);
    char *want = xasprintf("%s.json.new", b->errors);
    assert_false(is_there(want));
    free(want);
    assert_int_equal(rmdir(record), 0);
    assert_int_equal(rmdir(answers), 0);
    shelf_close(s);
    free(record);
    free(answers);
    free(found);
    free(b);
}

/* A disk that takes no more bytes leaves no file and no record. */
TEST_WITH(a_file_that_cannot_be_written_is_not_there, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_file f;
    struct rlimit old, none;
    uint64_t room = shelf_room(s, "t");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    none = old;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int rc = shelf_add_file(s, "t", "n", "bytes", 5, &f, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, -EFBIG);
    char *fresh = xasprintf("%s.new", f.head.id);
    assert_false(is_there(f.head.id) || is_there(fresh));
    free(fresh);
    assert_int_equal(shelf_room(s, "t"), room);
    assert_int_equal(shelf_read_file(s, "t", f.head.id, &f, NULL, &err), ERR_NOT_FOUND);
    shelf_close(s);
}

/* The answers of a batch become files with a name, an owner and a size; empty ones are removed. */
TEST_WITH(answers_become_files, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t");
    struct shelf_file f;
    put(b->output, "");
    put(b->errors, "lines");
    b->has_output = true;
    assert_int_equal(shelf_keep_answers(s, b, &err), 0);
    assert_true(!b->has_output && b->has_errors);
    assert_false(is_there(b->output));
    assert_int_equal(shelf_read_file(s, "t", b->errors, &f, NULL, &err), 0);
    char *want = xasprintf("%s_error.jsonl", b->head.id);
    assert_string_equal(f.name, want);
    assert_string_equal(f.purpose, "batch_output");
    assert_string_equal(f.head.tenant, "t");
    assert_int_equal(f.n_bytes, 5);
    assert_true(f.head.created_s >= b->head.created_s);
    free(want);
    put(b->output, "answer");
    assert_int_equal(shelf_keep_answers(s, b, &err), 0);
    assert_int_equal(shelf_read_file(s, "t", b->output, &f, NULL, &err), 0);
    assert_text(f.name, "%s_output.jsonl", b->head.id);
    /* a batch that another one has replaced cannot be stored */
    strcpy(b->head.id, "batch_012301230123012301230123");
    assert_int_equal(shelf_put_batch(s, b, &err), ERR_NOT_FOUND);
    assert_string_equal(err.msg, "there is no batch 'batch_012301230123012301230123'");
    shelf_count_batch(s, b);
    shelf_close(s);
    free(b);
}

/* A second cancel keeps the time of the first. */
TEST_WITH(a_cancel_has_its_time, make_folder, empty_folder)
{
    struct shelf *s = open_shelf(1 << 20);
    struct shelf_batch *b = add_batch(s, "t"), *seen = xcalloc(1, sizeof *seen);
    assert_int_equal(shelf_cancel_batch(s, "t", b->head.id, seen, &err), 0);
    assert_in_range(seen->at_s[BATCH_CANCELLING] - b->head.created_s, 0, 600);
    seen->at_s[BATCH_CANCELLING] = 5;
    assert_int_equal(shelf_put_batch(s, seen, &err), 0);
    assert_int_equal(shelf_cancel_batch(s, "t", b->head.id, seen, &err), 0);
    assert_int_equal(seen->at_s[BATCH_CANCELLING], 5);
    shelf_close(s);
    s = open_shelf(1 << 20);
    assert_int_equal(shelf_find_batch(s, "t", b->head.id, seen, &err), 0);
    assert_int_equal(seen->status, BATCH_CANCELLING);
    shelf_close(s);
    free(seen);
    free(b);
}
