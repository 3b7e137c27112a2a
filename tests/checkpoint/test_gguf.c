/* test_gguf.c - good and bad GGUF files, and the decoding of every element type.
 *
 * golden/gguf/types.bin holds blocks of every type with the values that gguf-py gives them
 * (tools/golden/make_gguf_types.py). */
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_types.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "tests/model/gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* --- making files ------------------------------------------------------------------------- */

static void begin(struct gguf_bytes *f, uint32_t version, uint64_t n_tensors,
                  uint64_t n_values)
{
    memset(f, 0, sizeof *f);
    memcpy(f->bytes, "GGUF", 4);
    f->n = 4;
    add_u32(f, version);
    add_u64(f, n_tensors);
    add_u64(f, n_values);
}

static void add_tensor(struct gguf_bytes *f, const char *name, uint64_t cols, uint64_t rows,
                       uint32_t type, uint64_t at)
{
    add_text(f, name);
    add_u32(f, rows != 0 ? 2 : 1);
    add_u64(f, cols);
    if (rows != 0)
        add_u64(f, rows);
    add_u32(f, type);
    add_u64(f, at);
}

static void add_data(struct gguf_bytes *f, size_t n)
{
    f->n = (size_t)round_up(f->n, 32) + n;
}

static int parse(struct gguf *g, const struct gguf_bytes *f, struct err *e)
{
    /* Exact size, so that a sanitizer sees reads beyond the end. */
    uint8_t *exact = xmalloc(f->n);
    memcpy(exact, f->bytes, f->n);
    int rc = gguf_parse(g, exact, f->n, f->n, "f.gguf", e);
    gguf_deinit(g);
    free(exact);
    return rc;
}

/* --- good files --------------------------------------------------------------------------- */

TEST(test_every_kind_of_value_is_read_back)
{
    struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    begin(&f, 3, 2, 5);
    add_text(&f, "b.text");
    add_u32(&f, GGUF_STRING);
    add_text(&f, "hello");
    add_text(&f, "a.count");
    add_u32(&f, GGUF_U32);
    add_u32(&f, 4000000000u);
    add_text(&f, "c.list");
    add_u32(&f, GGUF_ARRAY);
    add_u32(&f, GGUF_STRING);
    add_u64(&f, 2);
    add_text(&f, "x");
    add_text(&f, "");
    add_text(&f, "d.below");
    add_u32(&f, GGUF_I32);
    add_u32(&f, (uint32_t)-7);
    add_text(&f, "e.on");
    add_u32(&f, GGUF_BOOL);
    f.bytes[f.n++] = 1;
    add_tensor(&f, "w", 32, 3, GGUF_TYPE_Q4_1, 0);
    add_tensor(&f, "v", 5, 0, GGUF_TYPE_F32, 64);
    add_data(&f, 84);
    assert_int_equal(gguf_parse(&g, f.bytes, f.n, f.n, "f.gguf", &e), 0);

    int64_t i;
    double x;
    bool on;
    const char *s;
    size_t n;
    struct gguf_strings it;
    assert_true(gguf_int(gguf_find(&g, "a.count"), 0, &i) && i == 4000000000);
    assert_true(gguf_int(gguf_find(&g, "d.below"), 0, &i) && i == -7);
    /* a.count has one element only */
    assert_false(gguf_int(gguf_find(&g, "a.count"), 1, &i));
    assert_false(gguf_int(gguf_find(&g, "b.text"), 0, &i)); /* not a number */
    assert_false(gguf_real(gguf_find(&g, "a.count"), 0, &x));
    assert_true(gguf_bool(gguf_find(&g, "e.on"), 0, &on) && on);
    assert_true(gguf_string(gguf_find(&g, "b.text"), &s, &n) && n == 5 &&
                memcmp(s, "hello", 5) == 0);
    assert_false(gguf_string(gguf_find(&g, "c.list"), &s, &n));
    assert_true(gguf_strings_begin(gguf_find(&g, "c.list"), &it));
    assert_true(gguf_strings_next(&it, &s, &n) && n == 1 && *s == 'x');
    assert_true(gguf_strings_next(&it, &s, &n) && n == 0);
    assert_false(gguf_strings_next(&it, &s, &n));
    assert_null(gguf_find(&g, "a"));

    const struct gguf_tensor *w = gguf_find_tensor(&g, "w"), *v = gguf_find_tensor(&g, "v");
    assert_int_equal(w->shape[0], 3); /* rows come first here */
    assert_int_equal(w->shape[1], 32);
    assert_int_equal(w->end - w->begin, 60);
    assert_int_equal(v->begin - w->begin, 64);
    assert_int_equal(v->end, f.n);
    assert_int_equal(g.data_begin % 32, 0);
    gguf_deinit(&g);
}

/* Numbers of every width, alone and as the last element of an array. */
TEST(test_numbers_of_every_width)
{
    static const struct {
        enum gguf_kind kind;
        size_t n_bytes;
        uint64_t bits;
        bool is_int;
        int64_t want;
    } rows[] = {
        {GGUF_U8, 1, 0xfe, true, 0xfe},
        {GGUF_I8, 1, 0xfe, true, -2},
        {GGUF_U16, 2, 0xfffe, true, 0xfffe},
        {GGUF_I16, 2, 0xfffe, true, -2},
        {GGUF_U32, 4, 0xfffffffe, true, 0xfffffffe},
        {GGUF_I32, 4, 0xfffffffe, true, -2},
        {GGUF_I64, 8, UINT64_MAX - 1, true, -2},
        {GGUF_U64, 8, INT64_MAX, true, INT64_MAX},
        {GGUF_U64, 8, 0, true, 0},
        {GGUF_U64, 8, (uint64_t)INT64_MAX + 1, false, 0},
        {GGUF_BOOL, 1, 1, false, 0},
        {GGUF_F32, 4, 0x3fc00000, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gguf_bytes f;
        struct gguf g;
        struct err e = {0};
        int64_t one, last;
        uint8_t bytes[8];
        put_u64(bytes, rows[i].bits);
        begin(&f, 2, 0, 2);
        add_text(&f, "one");
        add_u32(&f, rows[i].kind);
        memcpy(f.bytes + f.n, bytes, rows[i].n_bytes);
        f.n += rows[i].n_bytes;
        add_text(&f, "list");
        add_u32(&f, GGUF_ARRAY);
        add_u32(&f, rows[i].kind);
        add_u64(&f, 3);
        f.n += 2 * rows[i].n_bytes; /* zeros */
        memcpy(f.bytes + f.n, bytes, rows[i].n_bytes);
        f.n += rows[i].n_bytes;
        assert_int_equal(gguf_parse(&g, f.bytes, f.n, f.n, "f.gguf", &e), 0);
        assert_int_equal(g.version, 2);
        const struct gguf_value *v = gguf_find(&g, "one"), *list = gguf_find(&g, "list");
        assert_true(!v->is_array && v->n == 1 && v->n_bytes == rows[i].n_bytes);
        assert_true(list->is_array && list->n == 3 && list->n_bytes == 3 * rows[i].n_bytes);
        assert_int_equal(gguf_int(v, 0, &one), rows[i].is_int);
        assert_int_equal(gguf_int(list, 2, &last), rows[i].is_int);
        assert_true(!rows[i].is_int || (one == rows[i].want && last == rows[i].want));
        assert_false(gguf_int(list, 3, &last));
        assert_false(gguf_int(NULL, 0, &last));
        bool is_bool = rows[i].kind == GGUF_BOOL, on = false;
        assert_int_equal(gguf_bool(v, 0, &on), is_bool);
        assert_true(on == is_bool);
        assert_int_equal(gguf_bool(list, 2, &on), is_bool);
        assert_false(gguf_bool(list, 3, &on));
        assert_false(gguf_bool(NULL, 0, &on));
        gguf_deinit(&g);
        assert_null(g.values);
    }
}

TEST(test_reals_of_both_widths)
{
    static const double values[] = {1.5, -0.1, 0};
    struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    double x = 7;
    const char *s;
    size_t n;
    struct gguf_strings it;
    begin(&f, 3, 0, 2);
    for (int wide = 0; wide < 2; wide++) {
        add_text(&f, wide ? "wide" : "narrow");
        add_u32(&f, GGUF_ARRAY);
        add_u32(&f, wide ? GGUF_F64 : GGUF_F32);
        add_u64(&f, 3);
        for (int i = 0; i < 3; i++) {
            float narrow = (float)values[i];
            memcpy(f.bytes + f.n, wide ? (const void *)&values[i] : (const void *)&narrow,
                   wide ? 8 : 4);
            f.n += wide ? 8 : 4;
        }
    }
    assert_int_equal(gguf_parse(&g, f.bytes, f.n, f.n, "f.gguf", &e), 0);
    const struct gguf_value *narrow = gguf_find(&g, "narrow"),
                            *wide = gguf_find(&g, "wide");
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(gguf_real(wide, i, &x) && x == values[i]);
        assert_true(gguf_real(narrow, i, &x) && x == (double)(float)values[i]);
    }
    assert_false(gguf_real(wide, 3, &x));
    assert_false(gguf_real(NULL, 0, &x));
    assert_false(gguf_string(narrow, &s, &n));
    assert_false(gguf_string(NULL, &s, &n));
    assert_false(gguf_strings_begin(narrow, &it));
    assert_false(gguf_strings_begin(NULL, &it));
    assert_null(gguf_find_tensor(&g, "wide"));
    gguf_deinit(&g);
}

/* Hundreds of values and tensors in any order are found by their names. */
TEST(test_many_values_and_tensors)
{
    enum { N = 300 };
    static struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    char name[16];
    int64_t v;
    begin(&f, 3, N, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "k%d", i * 77 % N);
        add_text(&f, name);
        add_u32(&f, GGUF_U16);
        put_u16(f.bytes + f.n, (uint16_t)(i * 77 % N));
        f.n += 2;
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i * 77 % N);
        add_tensor(&f, name, 8, 0, GGUF_TYPE_F32, (uint64_t)(i * 77 % N) * 32);
    }
    size_t directory = f.n;
    add_data(&f, N * 32);
    assert_int_equal(gguf_parse(&g, f.bytes, f.n, f.n, "f.gguf", &e), 0);
    assert_int_equal(g.n_values, N);
    assert_int_equal(g.n_tensors, N);
    assert_int_equal(g.data_begin, round_up(directory, 32));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "k%d", i);
        assert_true(gguf_int(gguf_find(&g, name), 0, &v) && v == i);
        snprintf(name, sizeof name, "t%d", i);
        const struct gguf_tensor *t = gguf_find_tensor(&g, name);
        assert_non_null(t);
        assert_int_equal(t->begin, g.data_begin + (uint64_t)i * 32);
        assert_int_equal(t->end, t->begin + 32);
        assert_int_equal(t->n_dims, 1);
        assert_int_equal(t->type, GGUF_TYPE_F32);
    }
    gguf_deinit(&g);
}

/* An alignment is a power of two of at most 2^20, and tensors begin at its multiples. */
TEST(test_alignment)
{
    static const struct {
        uint32_t value;
        bool is_good;
    } rows[] = {{0, false},       {1, true},
                {2, true},        {3, false},
                {64, true},       {96, false},
                {1 << 15, true},  {1 << 20, true},
                {1 << 21, false}, {(1 << 20) - 1, false},
                {1u << 31, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gguf_bytes f;
        struct gguf g;
        struct err e = {0};
        begin(&f, 3, 1, 1);
        add_text(&f, "general.alignment");
        add_u32(&f, GGUF_U32);
        add_u32(&f, rows[i].value);
        add_tensor(&f, "t", 4, 0, GGUF_TYPE_F32, rows[i].value);
        uint64_t begins = rows[i].is_good ? round_up(f.n, rows[i].value) : 0;
        int rc = gguf_parse(&g, f.bytes, f.n, begins + rows[i].value + 16, "f.gguf", &e);
        assert_int_equal(rc, rows[i].is_good ? 0 : ERR_FORMAT);
        if (rc == 0) {
            assert_int_equal(g.alignment, rows[i].value);
            assert_int_equal(g.data_begin, begins);
            assert_int_equal(g.tensors[0].begin, begins + rows[i].value);
        } else {
            assert_non_null(strstr(e.msg, "'general.alignment' must be a power of two"));
        }
        gguf_deinit(&g);
        if (rc != 0)
            continue;
        /* one byte less is a truncated file */
        rc = gguf_parse(&g, f.bytes, f.n, begins + rows[i].value + 15, "f.gguf", &e);
        assert_int_equal(rc, ERR_FORMAT);
        assert_non_null(strstr(e.msg, "truncated: tensor 't'"));
        gguf_deinit(&g);
    }
}

/* A tensor has one to four dimensions, and a name of at most 65535 bytes without a zero. */
TEST(test_dimensions_and_names)
{
    static struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    for (uint32_t n = 0; n <= 5; n++) {
        begin(&f, 3, 1, 0);
        add_text(&f, "t");
        add_u32(&f, n);
        for (uint32_t i = 0; i < n; i++)
            add_u64(&f, 2 + i);
        add_u32(&f, GGUF_TYPE_F32);
        add_u64(&f, 0);
        uint64_t bytes = 4;
        for (uint32_t i = 0; i < n; i++)
            bytes *= 2 + i;
        int rc = gguf_parse(&g, f.bytes, f.n, round_up(f.n, 32) + bytes, "f.gguf", &e);
        assert_int_equal(rc, n >= 1 && n <= 4 ? 0 : ERR_FORMAT);
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            assert_int_equal(g.tensors[0].shape[i], 2 + n - 1 - i);
        assert_true(rc != 0 || g.tensors[0].end - g.tensors[0].begin == bytes);
        assert_true(rc == 0 || strstr(e.msg, "dimensions; 1 to 4 are allowed") != NULL);
        gguf_deinit(&g);
    }
    for (uint64_t n = 65534; n <= 65536; n++) {
        uint8_t *bytes = xcalloc(1, 70000), *at = bytes + 24;
        memcpy(bytes, "GGUF", 4);
        put_u32(bytes + 4, 3);
        put_u64(bytes + 16, 1);
        put_u64(at, n);
        memset(at + 8, 'k', n);
        put_u32(at + 8 + n, GGUF_U8);
        int rc = gguf_parse(&g, bytes, 24 + 8 + n + 5, 24 + 8 + n + 5, "f.gguf", &e);
        assert_int_equal(rc, n <= 65535 ? 0 : ERR_FORMAT);
        if (rc == 0)
            assert_int_equal(strlen(g.values[0].key), n);
        else
            assert_non_null(strstr(e.msg, "the key at byte 32 is empty, too long, or not"));
        gguf_deinit(&g);
        free(bytes);
    }
    static const char *const bad[] = {"", "a\xff", "\0b"};
    static const size_t bad_bytes[] = {0, 2, 2};
    for (int i = 0; i < 3; i++) {
        begin(&f, 3, 0, 1);
        add_u64(&f, bad_bytes[i]);
        memcpy(f.bytes + f.n, bad[i], bad_bytes[i]);
        f.n += bad_bytes[i];
        add_u32(&f, GGUF_U8);
        f.n++;
        assert_int_equal(parse(&g, &f, &e), ERR_FORMAT);
        assert_non_null(
            strstr(e.msg, "the key at byte 32 is empty, too long, or not text"));
    }
}

/* The counts of a file are bounded by its size: a pair takes at least 13 bytes, a tensor 24. Up to
 * the bound the first pair or tensor is read. */
TEST(test_counts_fit_into_the_file)
{
    for (uint64_t n = 0; n < 12; n++) {
        struct gguf_bytes f;
        struct gguf g;
        struct err e = {0};
        begin(&f, 3, n, 0);
        f.n = 100;
        assert_int_equal(parse(&g, &f, &e), n == 0 ? 0 : ERR_FORMAT);
        assert_int_equal(strstr(e.msg, "do not fit into 100 bytes") != NULL, n > 100 / 24);
        e.msg[0] = 0;
        begin(&f, 3, 0, n);
        f.n = 100;
        assert_int_equal(parse(&g, &f, &e), n == 0 ? 0 : ERR_FORMAT);
        assert_int_equal(strstr(e.msg, "do not fit into 100 bytes") != NULL, n > 100 / 13);
    }
}

/* Tensors may touch; one byte of overlap is refused. */
TEST(test_neighbours)
{
    struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    for (uint64_t cols = 8; cols <= 9; cols++) {
        begin(&f, 3, 2, 0);
        add_tensor(&f, "z", 8, 0, GGUF_TYPE_F32, 32);
        add_tensor(&f, "a", cols, 0, GGUF_TYPE_F32, 0);
        add_data(&f, 64);
        assert_int_equal(parse(&g, &f, &e), cols == 8 ? 0 : ERR_FORMAT);
    }
    assert_non_null(strstr(e.msg, "tensors 'a' and 'z' overlap"));
}

/* --- bad files ---------------------------------------------------------------------------- */

static void expect(const struct gguf_bytes *f, int code, const char *message)
{
    struct gguf g;
    struct err e = {0};
    assert_int_equal(parse(&g, f, &e), code);
    if (strstr(e.msg, message) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, message);
    assert_non_null(strstr(e.msg, "f.gguf"));
}

TEST(test_bad_headers_are_refused_by_name)
{
    struct gguf_bytes f;
    begin(&f, 3, 0, 0);
    f.bytes[0] = 'g';
    expect(&f, ERR_FORMAT, "does not begin with GGUF");
    begin(&f, 1, 0, 0);
    expect(&f, ERR_UNSUPPORTED, "is GGUF version 1; 2 and 3 are supported");
    begin(&f, 4, 0, 0);
    expect(&f, ERR_UNSUPPORTED, "is GGUF version 4");
    begin(&f, 0x03000000, 0, 0);
    expect(&f, ERR_UNSUPPORTED, "big-endian");
    begin(&f, 3, UINT64_MAX, 0);
    expect(&f, ERR_FORMAT, "do not fit into");
    begin(&f, 3, 0, UINT64_MAX);
    expect(&f, ERR_FORMAT, "do not fit into");
    f.n = 9;
    expect(&f, ERR_FORMAT, "truncated");
}

TEST(test_bad_values_are_refused_by_key)
{
    struct gguf_bytes f;
    static const struct {
        uint32_t kind;
        uint64_t n;
        int code;
        const char *message;
    } bad[] = {
        {13, 1, ERR_FORMAT, "'k' has the unknown type 13"},
        {GGUF_STRING, UINT64_MAX, ERR_FORMAT, "truncated"},
        {GGUF_U32, UINT64_MAX / 2, ERR_FORMAT, "truncated"},
        {GGUF_BOOL, 2, ERR_FORMAT, "'k' must be true or false"},
        {GGUF_ARRAY, 1, ERR_UNSUPPORTED, "'k' is an array of arrays"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        begin(&f, 3, 0, 1);
        add_text(&f, "k");
        add_u32(&f, GGUF_ARRAY);
        add_u32(&f, bad[i].kind);
        add_u64(&f, bad[i].n);
        memset(f.bytes + f.n, 7, 16);
        f.n += 16;
        expect(&f, bad[i].code, bad[i].message);
    }
    begin(&f, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        add_text(&f, "twice");
        add_u32(&f, GGUF_U8);
        f.bytes[f.n++] = 1;
    }
    expect(&f, ERR_FORMAT, "'twice' appears twice");
    begin(&f, 3, 0, 1);
    add_text(&f, "");
    add_u32(&f, GGUF_U64);
    add_u64(&f, 0);
    expect(&f, ERR_FORMAT, "the key at byte");
    begin(&f, 3, 0, 1);
    add_text(&f, "general.alignment");
    add_u32(&f, GGUF_U32);
    add_u32(&f, 24);
    expect(&f, ERR_FORMAT, "'general.alignment' must be a power of two");
}

TEST(test_bad_tensors_are_refused_by_name)
{
    struct gguf_bytes f;
    static const struct {
        uint64_t cols, rows, at;
        uint32_t type;
        int code;
        const char *message;
    } bad[] = {
        {32, 1, 0, 99, ERR_UNSUPPORTED,
         "'t' has the unknown type 99; supported are F32, F16"},
        {32, 1, 0, 4, ERR_UNSUPPORTED, "'t' has the unknown type 4"},
        {33, 1, 0, GGUF_TYPE_Q4_0, ERR_FORMAT, "not a multiple of 32 as Q4_0 asks"},
        {32, 1, 0, GGUF_TYPE_Q6_K, ERR_FORMAT, "not a multiple of 256 as Q6_K asks"},
        {0, 1, 0, GGUF_TYPE_F32, ERR_FORMAT, "'t': its shape is empty"},
        {1ull << 40, 1ull << 40, 0, GGUF_TYPE_F32, ERR_FORMAT, "too large"},
        {8, 1, 8, GGUF_TYPE_F32, ERR_FORMAT, "not a multiple of the alignment, 32"},
        {8, 2, 0, GGUF_TYPE_F32, ERR_FORMAT, "truncated: tensor 't' ends after"},
        {8, 1, UINT64_MAX - 31, GGUF_TYPE_F32, ERR_FORMAT, "'t'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        begin(&f, 3, 1, 0);
        add_tensor(&f, "t", bad[i].cols, bad[i].rows, bad[i].type, bad[i].at);
        add_data(&f, 32);
        expect(&f, bad[i].code, bad[i].message);
    }
    begin(&f, 3, 2, 0);
    add_tensor(&f, "a", 16, 0, GGUF_TYPE_F32, 0);
    add_tensor(&f, "b", 8, 0, GGUF_TYPE_F32, 32);
    add_data(&f, 64);
    expect(&f, ERR_FORMAT, "tensors 'a' and 'b' overlap");
    begin(&f, 3, 2, 0);
    add_tensor(&f, "a", 8, 0, GGUF_TYPE_F32, 0);
    add_tensor(&f, "a", 8, 0, GGUF_TYPE_F32, 32);
    add_data(&f, 64);
    expect(&f, ERR_FORMAT, "tensor 'a' appears twice");
    begin(&f, 3, 1, 0);
    add_text(&f, "a");
    add_u32(&f, 5);
    f.n += 64;
    expect(&f, ERR_FORMAT, "tensor 'a' has 5 dimensions");
}

/* Every prefix of a good file is refused, and nothing beyond its end is read (sanitizers check it).
 */
TEST(test_every_truncation_is_refused)
{
    struct gguf_bytes f;
    struct gguf g;
    struct err e = {0};
    begin(&f, 3, 1, 1);
    add_text(&f, "list");
    add_u32(&f, GGUF_ARRAY);
    add_u32(&f, GGUF_STRING);
    add_u64(&f, 2);
    add_text(&f, "ab");
    add_text(&f, "c");
    add_tensor(&f, "t", 32, 2, GGUF_TYPE_Q8_0, 0);
    add_data(&f, 68);
    assert_int_equal(parse(&g, &f, &e), 0);
    for (size_t all = f.n; f.n-- > 4;)
        if (parse(&g, &f, &e) == 0)
            fail_msg("%zu of %zu bytes are taken for a file", f.n, all);
}

/* --- element types ------------------------------------------------------------------------ */

TEST(test_every_type_is_decoded_to_the_bit)
{
    char *bytes;
    size_t n, at = 0;
    int n_types = 0;
    struct err e = {0};
    if (file_read("tests/model/golden/gguf/types.bin", 1 << 20, &bytes, &n, &e) != 0)
        fail_msg("%s", e.msg);
    for (; at < n; n_types++) {
        const uint8_t *p = (const uint8_t *)bytes + at;
        uint32_t type = get_u32(p), n_values = get_u32(p + 4), n_bytes = get_u32(p + 8);
        const struct gguf_type *t = gguf_type(type);
        float *got = xcalloc(n_values, sizeof *got);
        assert_non_null(t);
        assert_int_equal(n_values / t->block * t->bytes, n_bytes);
        t->decode(p + 12, got, n_values / t->block);
        for (uint32_t i = 0; i < n_values; i++) {
            uint32_t bits;
            memcpy(&bits, &got[i], sizeof bits);
            if (bits != get_u32(p + 12 + n_bytes + 4 * (size_t)i))
                fail_msg("%s: element %u is %a", t->name, i, (double)got[i]);
        }
        free(got);
        at += 12 + n_bytes + 4 * (size_t)n_values;
    }
    assert_int_equal(n_types, 21);
    free(bytes);
}

/* The list in messages equals the list of types that have a decoder. */
TEST(test_supported_types_are_those_that_are_decoded)
{
    for (uint32_t i = 0; i < GGUF_N_TYPES + 2; i++) {
        const struct gguf_type *t = gguf_type(i);
        if (t == NULL)
            continue;
        char name[32];
        snprintf(name, sizeof name, "%s,", t->name);
        char list[256];
        snprintf(list, sizeof list, "%s,", gguf_types_supported());
        assert_int_equal(strstr(list, name) != NULL, t->decode != NULL);
    }
}
