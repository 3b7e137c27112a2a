/* gguf_bytes.h - makes the bytes of small GGUF files for tests. */
#ifndef TESTS_MODEL_GGUF_BYTES_H
#define TESTS_MODEL_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"

struct gguf_bytes {
    uint8_t bytes[1 << 16];
    size_t n;          /* bytes used */
    uint64_t n_values; /* metadata values that were added; counted by the test */
};

static inline void add_u32(struct gguf_bytes *f, uint32_t v)
{
    put_u32(f->bytes + f->n, v);
    f->n += 4;
}

static inline void add_u64(struct gguf_bytes *f, uint64_t v)
{
    put_u64(f->bytes + f->n, v);
    f->n += 8;
}

/* Adds a string as GGUF has it: its length and its bytes. */
static inline void add_text(struct gguf_bytes *f, const char *s)
{
    add_u64(f, strlen(s));
    memcpy(f->bytes + f->n, s, strlen(s));
    f->n += strlen(s);
}

#endif
