/* table_file.c - see table_file.h. */
#include "table_file.h"

#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_types.h"
#include "tensor/tensor.h"

#define MIXED "tests/model/golden/gguf/mixed.gguf"

enum { ROWS = 64, COLS = 256 };

/* Fills a block with random numbers and small scales, so that the model's numbers stay finite. */
static void fill_block(uint8_t *b, uint32_t type, uint32_t *seed)
{
    const struct gguf_type *t = gguf_type(type);
    bool by_256 = t->block == 256;
    float scale = (by_256 ? 0.0005f : 0.02f) * (1.0f + (float)(*seed >> 28));
    for (size_t i = 0; i < t->bytes; i++) {
        *seed = *seed * 1664525 + 1013904223;
        b[i] = (uint8_t)(*seed >> 24);
    }
    put_u16(b + (type == GGUF_TYPE_Q6_K ? 208 : 0), f32_to_f16(scale / (by_256 ? 4 : 1)));
    if (type == GGUF_TYPE_MXFP4)
        b[0] = 120; /* an exponent */
    else if (type != GGUF_TYPE_Q6_K && type != GGUF_TYPE_Q4_0)
        put_u16(b + 2, f32_to_f16(scale));
}

void table_file_write(const char *path, uint32_t type)
{
    static const char name[] = "token_embd.weight";
    enum { TYPE = sizeof name - 1 + 4 + 16, OFFSET = TYPE + 4 };
    const struct gguf_type *t = gguf_type(type);
    size_t n, block_bytes = t->bytes, n_blocks = ROWS * COLS / t->block;
    char *bytes;
    struct err e = {0};
    struct gguf g;
    uint32_t seed = type;
    assert_int_equal(file_read(MIXED, 1 << 24, &bytes, &n, &e), 0);
    assert_int_equal(gguf_parse(&g, bytes, n, n, MIXED, &e), 0);
    uint8_t *at = memmem(bytes, n, name, sizeof name - 1);
    assert_non_null(at);
    assert_int_equal(get_u64(at + TYPE - 16), COLS);
    assert_int_equal(get_u64(at + TYPE - 8), ROWS);
    uint64_t table = (n - g.data_begin + 63) / 64 * 64 + 32;
    size_t all = (size_t)(g.data_begin + table) + n_blocks * block_bytes;
    put_u32(at + TYPE, type);
    put_u64(at + OFFSET, table);
    uint8_t *out = calloc(1, all);
    assert_non_null(out);
    memcpy(out, bytes, n);
    for (size_t i = 0; i < n_blocks; i++)
        fill_block(out + g.data_begin + table + i * block_bytes, type, &seed);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(out, 1, all, f), all);
    assert_int_equal(fclose(f), 0);
    gguf_deinit(&g);
    free(out);
    free(bytes);
}
