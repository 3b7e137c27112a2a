/* test_safetensors.c - good and bad headers, the writer, the index of several files. */
#include "checkpoint/safetensors.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* Makes a file with this header and n_data zero bytes; the caller frees it. */
static uint8_t *make_file(const char *header, size_t n_data, size_t *n)
{
    size_t len = strlen(header);
    *n = 8 + len + n_data;
    uint8_t *p = xcalloc(*n, 1);
    put_u64(p, len);
    memcpy(p + 8, header, len);
    return p;
}

/* --- golden bad headers ------------------------------------------------------------- */

static const struct {
    const char *header;
    size_t n_data;
    int code;
    const char *message;
} bad[] = {
    {"[]", 0, ERR_FORMAT, "the header must be an object, it is an array"},
    {"{\"a\": 1}", 0, ERR_FORMAT, "tensor 'a': must be an object, it is an integer"},
    {"{\"a\": {}}", 0, ERR_FORMAT, "tensor 'a': 'dtype' is missing"},
    {"{\"a\": {\"dtype\": \"Q4_0\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4,
     ERR_UNSUPPORTED, "tensor 'a': unknown dtype 'Q4_0'"},
    {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", 4, ERR_FORMAT,
     "tensor 'a': 'shape' is missing"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4,
     ERR_FORMAT, "tensor 'a': shape[0] must be an integer that is not negative"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", 4,
     ERR_FORMAT, "tensor 'a': shape[0] must be an integer that is not negative"},
    {"{\"a\": {\"dtype\": \"U8\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, "
     "1]}}",
     1, ERR_UNSUPPORTED, "tensor 'a': 9 dimensions, at most 8 are supported"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, ERR_FORMAT,
     "tensor 'a': 'data_offsets' is missing"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4, ERR_FORMAT,
     "tensor 'a': 'data_offsets' must be two integers, not negative"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", 4,
     ERR_FORMAT, "tensor 'a': data_offsets [4, 0] run backwards"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}", 4,
     ERR_FORMAT,
     "tensor 'a': data_offsets [0, 8] lie outside of the file, which has 4 bytes of data"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, "
     "9223372036854775807]}}",
     4, ERR_FORMAT, "lie outside of the file"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4,
     ERR_FORMAT, "tensor 'a': its shape needs 8 bytes, its data_offsets span 4"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], \"data_offsets\": "
     "[0, 0]}}",
     0, ERR_FORMAT, "tensor 'a': the size of its shape overflows"},
    {"{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]},"
     " \"b\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [2, 6]}}",
     6, ERR_FORMAT, "tensors 'a' and 'b' overlap"},
    {"{\"a\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]},"
     " \"b\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [4, 6]}}",
     6, ERR_FORMAT, ": 2 bytes before tensor 'b' belong to no tensor"},
    {"{\"a\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}}", 3,
     ERR_FORMAT, ": 1 bytes after the last tensor belong to none"},
    {"{\"a\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]},"
     " \"a\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}}",
     2, ERR_FORMAT, "duplicate object key"},
    {"{\"a\": {\"dtype\"", 0, ERR_FORMAT, "near end of file"},
};

TEST(test_bad_headers)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t n;
        uint8_t *file = make_file(bad[i].header, bad[i].n_data, &n);
        struct safetensors s;
        struct err err = {0};
        assert_int_equal(safetensors_parse(&s, file, n, n, "m.safetensors", &err),
                         bad[i].code);
        if (strstr(err.msg, bad[i].message) == NULL ||
            strstr(err.msg, "m.safetensors") == NULL)
            fail_msg("'%s' is not in: %s", bad[i].message, err.msg);
        safetensors_deinit(&s);
        free(file);
    }
}

static void expect_error(const uint8_t *bytes, size_t n, uint64_t file_bytes,
                         const char *message)
{
    struct safetensors s;
    struct err err = {0};
    assert_int_equal(safetensors_parse(&s, bytes, n, file_bytes, "m", &err), ERR_FORMAT);
    if (strstr(err.msg, message) == NULL)
        fail_msg("'%s' is not in: %s", message, err.msg);
    safetensors_deinit(&s);
}

TEST(test_bad_lengths)
{
    uint8_t b[64] = {0};
    expect_error(b, 0, 0, "truncated: 0 bytes");
    expect_error(b, 7, 7, "truncated: 7 bytes");
    put_u64(b, 57);
    expect_error(b, 64, 64, "the header says it has 57 bytes, the file has 64");
    put_u64(b, UINT64_MAX);
    expect_error(b, 64, 64, "the header says it has 18446744073709551615 bytes");
    put_u64(b, 100000001);
    expect_error(b, 64, 200000000, "more than 100000000");
    put_u64(b, 100);
    expect_error(b, 64, 200, "truncated inside the header");
    put_u64(b, 0);
    expect_error(b, 64, 64, "'[' or '{' expected");
    expect_error(b, 8, 7, "truncated: 7 bytes");
    expect_error(b, 7, 8, "truncated: 8 bytes");
    expect_error(b, 8, 8, "'[' or '{' expected");
}

/* The header may fill the file, and have 100,000,000 bytes, but not one more. */
TEST(test_header_end)
{
    static const struct {
        uint64_t length, file_bytes;
        uint64_t end; /* 0: refused */
    } rows[] = {{56, 64, 64},
                {57, 64, 0},
                {0, 8, 8},
                {1, 8, 0},
                {100000000, 200000000, 100000008},
                {100000001, 200000000, 0},
                {100000000, 100000008, 100000008},
                {100000000, 100000007, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t b[8];
        uint64_t end = 0;
        put_u64(b, rows[i].length);
        assert_int_equal(safetensors_header_end(b, 8, rows[i].file_bytes, "m", &end, NULL),
                         rows[i].end != 0 ? 0 : ERR_FORMAT);
        assert_int_equal(end, rows[i].end);
    }
}

/* Every element type is read and written with its size. */
TEST(test_types)
{
    static const size_t bytes[] = {1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8};
    static const char *const names[] = {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
                                        "I16",  "U16", "F16", "BF16",    "I32",
                                        "U32",  "F32", "F64", "I64",     "U64"};
    for (int i = 0; i < 15; i++) {
        char header[200];
        size_t n;
        struct safetensors s;
        struct err err = {0};
        snprintf(header, sizeof header,
                 "{\"t\": {\"dtype\": \"%s\", \"shape\": [3, 1, 2], \"data_offsets\": [0, "
                 "%zu]}}",
                 names[i], 6 * bytes[i]);
        uint8_t *file = make_file(header, 6 * bytes[i], &n);
        if (safetensors_parse(&s, file, n, n, "m", &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(s.tensors[0].dtype, i);
        assert_int_equal(s.tensors[0].n_dims, 3);
        assert_true(s.tensors[0].shape[0] == 3 && s.tensors[0].shape[2] == 2);
        assert_int_equal(s.data_begin, 8 + strlen(header));
        assert_int_equal(s.tensors[0].begin, s.data_begin);
        assert_int_equal(s.tensors[0].end, n);
        assert_string_equal(safetensors_dtype_name((enum safetensors_dtype)i), names[i]);
        safetensors_deinit(&s);
        assert_null(s.tensors);
        free(file);
    }
}

/* Eight dimensions, empty tensors between others and at both ends, and no tensor at all. */
TEST(test_odd_files)
{
    static const struct {
        const char *header;
        size_t n_data, n_tensors;
    } rows[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\": {\"a\": \"b\"}}", 0, 0},
        {"{\"t\": {\"dtype\": \"U8\", \"shape\": [1,1,1,1,1,1,1,2], \"data_offsets\": [0, "
         "2]}}",
         2, 1},
        {"{\"c\": {\"dtype\": \"U8\", \"shape\": [0], \"data_offsets\": [4, 4]},"
         " \"b\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [2, 4]},"
         " \"a\": {\"dtype\": \"U8\", \"shape\": [0], \"data_offsets\": [2, 2]},"
         " \"e\": {\"dtype\": \"U8\", \"shape\": [0], \"data_offsets\": [0, 0]},"
         " \"d\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}}",
         4, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t n;
        struct safetensors s;
        struct err err = {0};
        uint8_t *file = make_file(rows[i].header, rows[i].n_data, &n);
        if (safetensors_parse(&s, file, n, n, "m", &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(s.n_tensors, rows[i].n_tensors);
        for (size_t k = 1; k < s.n_tensors; k++)
            assert_true(strcmp(s.tensors[k - 1].name, s.tensors[k].name) < 0);
        assert_null(safetensors_find(&s, "__metadata__"));
        safetensors_deinit(&s);
        free(file);
    }
}

/* A header's data begin at the next multiple of 64, whatever the length of its names. */
TEST(test_padding)
{
    for (size_t len = 1; len <= 130; len++) {
        char name[140] = {0};
        memset(name, 'n', len);
        struct safetensors_tensor t = {
            .name = name, .dtype = SAFETENSORS_U16, .n_dims = 2, .shape = {3, 2}};
        uint8_t *bytes;
        size_t n;
        safetensors_write_header(&t, 1, &bytes, &n);
        assert_int_equal(n % 64, 0);
        assert_int_equal(get_u64(bytes), n - 8);
        size_t used = n;
        while (bytes[used - 1] == ' ')
            used--;
        assert_int_equal(bytes[used - 1], '}');
        assert_true(n - used < 64);
        assert_int_equal(t.begin, n);
        assert_int_equal(t.end, n + 12);
        free(bytes);
    }
}

/* Every truncation and every flipped byte gives an error or a parse, never a crash. */
TEST(test_damage)
{
    const char *header =
        "{\"__metadata__\": {\"format\": \"pt\"},"
        "\"x\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]},"
        "\"y\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [12, 16]}}";
    size_t n;
    uint8_t *file = make_file(header, 16, &n);
    struct safetensors s;
    assert_int_equal(safetensors_parse(&s, file, n, n, "m", NULL), 0);
    safetensors_deinit(&s);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = xmalloc(cut); /* exact size, for the address sanitizer */
        memcpy(copy, file, cut);
        assert_true(safetensors_parse(&s, copy, cut, cut, "m", NULL) < 0);
        safetensors_deinit(&s);
        free(copy);
    }
    struct rng rng = {.s = 1};
    for (int i = 0; i < 20000; i++) {
        size_t at = rng_below(&rng, n - 16);
        uint8_t old = file[at];
        file[at] = (uint8_t)rng_u64(&rng);
        (void)safetensors_parse(&s, file, n, n, "m", NULL);
        safetensors_deinit(&s);
        file[at] = old;
    }
    free(file);
}

/* --- good files --------------------------------------------------------------------- */

TEST(test_write_then_parse)
{
    struct safetensors_tensor t[] = {
        {.name = "z.weight", .dtype = SAFETENSORS_BF16, .n_dims = 2, .shape = {3, 5}},
        {.name = "empty", .dtype = SAFETENSORS_F32, .n_dims = 2, .shape = {0, 5}},
        {.name = "a", .dtype = SAFETENSORS_F32, .n_dims = 0},
        {.name = "m", .dtype = SAFETENSORS_I64, .n_dims = 1, .shape = {2}},
    };
    uint8_t *bytes;
    size_t n;
    safetensors_write_header(t, 4, &bytes, &n);
    assert_int_equal(n % 64, 0);
    assert_int_equal(t[0].begin, n);
    uint64_t total = t[3].end;
    assert_int_equal(total, n + 30 + 0 + 4 + 16);

    struct safetensors s;
    struct err err = {0};
    uint64_t end;
    assert_int_equal(safetensors_header_end(bytes, 8, total, "m", &end, &err), 0);
    assert_int_equal(end, n);
    assert_int_equal(safetensors_parse(&s, bytes, n, total, "m", &err), 0);
    assert_int_equal(s.n_tensors, 4);
    assert_int_equal(s.data_begin, n);
    for (int i = 0; i < 4; i++) {
        const struct safetensors_tensor *f = safetensors_find(&s, t[i].name);
        assert_non_null(f);
        assert_int_equal(f->dtype, t[i].dtype);
        assert_int_equal(f->n_dims, t[i].n_dims);
        assert_memory_equal(f->shape, t[i].shape, sizeof f->shape);
        assert_int_equal(f->begin, t[i].begin);
        assert_int_equal(f->end, t[i].end);
    }
    assert_null(safetensors_find(&s, "nothing"));
    safetensors_deinit(&s);
    free(bytes);
}

TEST(test_real_file)
{
    const char *path = "models/demo/model.safetensors";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = xmalloc(n);
    assert_int_equal(fread(bytes, 1, n, f), n);
    fclose(f);
    struct safetensors s;
    struct err err = {0};
    if (safetensors_parse(&s, bytes, n, n, path, &err) != 0)
        fail_msg("%s", err.msg);
    const struct safetensors_tensor *t = safetensors_find(&s, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, SAFETENSORS_BF16);
    assert_int_equal(t->shape[0], 3072);
    assert_int_equal(t->shape[1], 256);
    safetensors_deinit(&s);
    free(bytes);
}

/* --- the index ---------------------------------------------------------------------- */

TEST(test_index)
{
    const char *good = "{\"metadata\": {\"total_size\": 10}, \"weight_map\": {"
                       "\"b\": \"model-2.safetensors\", \"c\": \"model-1.safetensors\","
                       "\"a\": \"model-2.safetensors\"}}";
    struct safetensors_index x;
    struct err err = {0};
    assert_int_equal(safetensors_index_parse(&x, good, strlen(good), "i.json", &err), 0);
    assert_int_equal(x.n_files, 2);
    assert_string_equal(x.files[0], "model-1.safetensors");
    assert_int_equal(x.n_entries, 3);
    assert_string_equal(x.entries[0].name, "a");
    assert_int_equal(x.entries[0].file_idx, 1);
    assert_int_equal(x.entries[2].file_idx, 0);
    safetensors_index_deinit(&x);

    static const char *const refused[][2] = {
        {"{}", "i.json: 'weight_map' is missing"},
        {"{\"weight_map\": {}}", "i.json: 'weight_map' is empty"},
        {"{\"weight_map\": {\"a\": 1}}", "tensor 'a' is not mapped to a plain file name"},
        {"{\"weight_map\": {\"a\": \"../x\"}}",
         "tensor 'a' is not mapped to a plain file name"},
        {"{\"weight_map\": {\"a\": \"/x\"}}",
         "tensor 'a' is not mapped to a plain file name"},
        {"{\"weight_map\": {\"a\": \"x\\u0000\"}}", "tensor 'a' is not mapped"},
        {"{\"weight_map\": {\"a\": \"\"}}", "tensor 'a' is not mapped"},
        {"{\"weight_map\": {\"a\": \".x\"}}", "tensor 'a' is not mapped"},
        {"{\"weight_map\": {\"a\": \"x\", \"b\": \"x/y\"}}", "tensor 'b' is not mapped"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *text = refused[i][0];
        assert_int_equal(safetensors_index_parse(&x, text, strlen(text), "i.json", &err),
                         ERR_FORMAT);
        if (strstr(err.msg, refused[i][1]) == NULL)
            fail_msg("'%s' is not in: %s", refused[i][1], err.msg);
        safetensors_index_deinit(&x);
    }
    for (int n = 255; n <= 256; n++) { /* the longest name of a file has 255 bytes */
        char name[257] = {0}, text[400];
        memset(name, 'n', (size_t)n);
        snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", name);
        assert_int_equal(safetensors_index_parse(&x, text, strlen(text), "i.json", &err),
                         n == 255 ? 0 : ERR_FORMAT);
        safetensors_index_deinit(&x);
    }
    const char *many = "{\"weight_map\": {\"d\": \"2\", \"c\": \"3\", \"b\": \"1\","
                       "\"a\": \"2\", \"f\": \"2\", \"e\": \"3\"}}";
    static const size_t files[] = {1, 0, 2, 1, 2, 1};
    assert_int_equal(safetensors_index_parse(&x, many, strlen(many), "i.json", &err), 0);
    assert_int_equal(x.n_files, 3);
    assert_int_equal(x.n_entries, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(x.entries[i].name[0], 'a' + (int)i);
        assert_int_equal(x.entries[i].file_idx, files[i]);
        assert_int_equal(x.files[i / 2][0], '1' + (int)(i / 2));
    }
    safetensors_index_deinit(&x);
    assert_null(x.files);
}
