/* test_gguf_files.c - the files of a split model: names, numbers and counts that make one. */
#include "checkpoint/gguf_files.h"

#include "tests/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/model/made_gguf.h"
#include "base/file.h"
#include "tests/base/tempdir.h"

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 32];

static int make_dir(void **state)
{
    *state = dir;
    tempdir_make(dir, "gguf");
    return 0;
}

static void set_path(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
}

static void put(const char *name, const char *bytes, size_t n)
{
    set_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Writes file `no` (from 0) of a split model. Each file has one tensor, with a name of its own. */
static void put_part(const char *name, int no, int count, int n_tensors)
{
    static const char *const names[] = {"token_embd.weight", "b", "c"};
    struct made_file f = {
        .values = {{.key = "split.no", .kind = GGUF_U32, .value = no},
                   {.key = "split.count", .kind = GGUF_U32, .value = count},
                   {.key = "split.tensors.count", .kind = GGUF_I32, .value = n_tensors}},
        .tensors = {{.name = "token_embd.weight"}, {names[no], 1, {8}, 0, (float)no}}};
    if (no == 0) {
        f.tensors[0] = f.tensors[1];
        f.tensors[1].name = NULL;
    }
    set_path(name);
    made_gguf_write(path, &f);
}

static void refuse(const char *name, int code, const char *message)
{
    struct gguf_files f;
    struct err e = {0};
    set_path(name);
    int rc = gguf_files_open(&f, path, true, &e);
    gguf_files_close(&f);
    if (rc != code || strstr(e.msg, message) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
}

TEST(test_which_files_are_gguf)
{
    put("four", "GGUF", 4);
    assert_true(gguf_files_is(path));
    put("three", "GGU", 3);
    assert_false(gguf_files_is(path));
    put("other", "GGUX and more", 13);
    assert_false(gguf_files_is(path));
    set_path("absent");
    assert_false(gguf_files_is(path));
    assert_false(gguf_files_is(dir));
    refuse("absent", -ENOENT, "absent: No such file or directory");
    refuse("three", ERR_FORMAT, "three: not a GGUF file");
    refuse(".", ERR_FORMAT, "not a GGUF file");
    set_path("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(gguf_files_is(path));
    refuse("pipe", ERR_FORMAT, "pipe: not a GGUF file");
}

TEST(test_the_parts_are_one_model)
{
    struct gguf_files f;
    struct err e = {0};
    const struct gguf_file *in = NULL;
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i + 1);
        put_part(name, i, 3, 3);
    }
    set_path("m-00001-of-00003.gguf");
    assert_int_equal(gguf_files_open(&f, path, true, &e), 0);
    assert_int_equal(f.n, 3);
    assert_non_null(gguf_files_find(&f, "token_embd.weight", &in));
    assert_ptr_equal(in, &f.files[0]);
    const struct gguf_tensor *c = gguf_files_find(&f, "c", &in);
    assert_non_null(c);
    assert_ptr_equal(in, &f.files[2]);
    float value;
    assert_int_equal(file_read_at(in->fd, &value, sizeof value, c->begin), 0);
    assert_true(value == 2);
    assert_ptr_equal(gguf_files_find(&f, "c", NULL), c);
    assert_null(gguf_files_find(&f, "d", &in));
    gguf_files_close(&f);
    assert_int_equal(f.n, 0);

    /* without the others, the first file alone */
    assert_int_equal(gguf_files_open(&f, path, false, &e), 0);
    assert_int_equal(f.n, 1);
    gguf_files_close(&f);
}

TEST(test_parts_that_do_not_belong_together)
{
    put_part("a-00001-of-00002.gguf", 0, 2, 2);
    refuse("a-00001-of-00002.gguf", -ENOENT,
           "incomplete download: a file of the model is missing");
    put_part("a-00002-of-00002.gguf", 2, 2, 2);
    refuse("a-00001-of-00002.gguf", ERR_MISMATCH,
           "its metadata does not say that it is file 2 of 2");
    put_part("a-00002-of-00002.gguf", 1, 3, 2);
    refuse("a-00001-of-00002.gguf", ERR_MISMATCH,
           "its metadata does not say that it is file 2 of 2");
    put_part("a-00001-of-00002.gguf", 0, 2, 3);
    put_part("a-00002-of-00002.gguf", 1, 2, 3);
    refuse("a-00001-of-00002.gguf", ERR_MISMATCH,
           "the files have 2 tensors together; 3 are announced");
    /* a negative count says nothing */
    put_part("a-00001-of-00002.gguf", 0, 2, -1);
    struct gguf_files f;
    assert_int_equal(gguf_files_open(&f, path, true, NULL), 0);
    gguf_files_close(&f);
    /* 0 tensors are announced */
    put_part("a-00001-of-00002.gguf", 0, 2, 0);
    refuse("a-00001-of-00002.gguf", ERR_MISMATCH, "2 tensors together; 0 are announced");

    refuse("a-00002-of-00002.gguf", ERR_USAGE, "is file 2 of 2 of a model: give the first");
    put_part("b.gguf", 0, 2, 2);
    refuse(
        "b.gguf", ERR_MISMATCH,
        "b.gguf: is the first of 2 files, whose names must end with -00001-of-00002.gguf");
    put_part("-00001-of-00002.gguf", 0, 2, 2);
    refuse("-00001-of-00002.gguf", -ENOENT, "-00002-of-00002.gguf");
    put_part("b.gguf", 0, -1, 2);
    refuse("b.gguf", ERR_FORMAT, "'split.count' is 4294967295");
    put_part("b.gguf", 0, 1001, 2);
    refuse("b.gguf", ERR_FORMAT, "'split.count' is 1001");
    put_part("b.gguf", 0, 1000, 2);
    refuse("b.gguf", ERR_MISMATCH, "is the first of 1000 files");
    put_part("b.gguf", 0, 1, 2);
    assert_int_equal(gguf_files_open(&f, path, true, NULL), 0);
    assert_int_equal(f.n, 1);
    gguf_files_close(&f);
}

int main(void)
{
    return unit_run(make_dir, tempdir_end);
}
