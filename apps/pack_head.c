/* pack_head.c - see pack_head.h. */
#include "apps/pack_head.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json.h"
#include "base/mem.h"

static uint64_t aligned(uint64_t n)
{
    return round_up(n, PACK_ALIGN);
}

static struct json *describe_matrices(const struct pack_file *f)
{
    struct json *list = json_make("[{head: %s}]", dtype_name(f->matrices.head));
    for (int l = 0; l < f->n_layers; l++) {
        struct json *of = json_new_object();
        for (enum slot s = SLOT_WQ; s <= SLOT_LAST_IN_BLOCKS; s++) {
            enum dtype t = matrix_type(&f->matrices, l, s);
            bool is_told = s == SLOT_WV ? matrix_types_differ_in_kv(&f->matrices, l)
                                        : s <= SLOT_DOWN || t != DTYPE_Q8;
            if (is_told)
                json_put_string(of, pack_matrix_keys[s - SLOT_WQ], dtype_name(t));
        }
        json_push(list, of);
    }
    return list;
}

static struct json *describe(const struct pack_file *f)
{
    struct json *o = json_new_object(), *types = json_new_array(),
                *files = json_new_array(), *parts = json_new_array();
    json_extend(o,
                "{source: %s, note: %s, layout: %s, weights: %s, source_type: %s, "
                "embeddings: %s, positions: %s, any_context: %p, layers: %d}",
                f->source, f->note, f->layout, dtype_name(f->dtype),
                dtype_name(f->file_dtype), dtype_name(f->table_dtype[0]),
                dtype_name(f->table_dtype[1]), json_new_bool(f->any_context), f->n_layers);
    for (int i = 0; i < f->types.n; i++) {
        json_push(types, json_make("{name: %s, tensors: %d, quantised: %p}",
                                   f->types.of[i].name, f->types.of[i].n_tensors,
                                   json_new_bool(f->types.of[i].quantised)));
    }
    for (size_t i = 0; i < f->n_members; i++) {
        const struct pack_member *m = &f->members[i];
        char sum[20];
        snprintf(sum, sizeof sum, "%016" PRIx64, m->sum);
        json_push(
            files,
            json_make("{name: %s, at: %lu, bytes: %lu, file_bytes: %lu, checksum: %s}",
                      m->name, m->at, m->bytes, m->file_bytes, sum));
    }
    for (size_t i = 0; i < f->n_parts; i++) {
        json_push(parts,
                  json_make("{at: %lu, bytes: %lu}", f->parts[i].at, f->parts[i].bytes));
    }
    if (f->dtype == DTYPE_Q4)
        json_put(o, "matrices", describe_matrices(f));
    json_extend(o, "{types: %p, files: %p, parts: %p}", types, files, parts);
    return o;
}

/* Returns the room for the description, whose numbers get longer when offsets are set. */
static uint64_t text_room(const struct pack_file *f)
{
    struct json *o = describe(f);
    char *text = json_text(o, 1);
    uint64_t n = strlen(text) + 20 * 2 * (f->n_parts + f->n_members);
    free(text);
    json_free(o);
    return aligned(n);
}

void pack_head_lay_out(struct pack_file *f)
{
    uint64_t at = PACK_TEXT_AT + text_room(f);
    f->n_sums = 0;
    for (size_t i = 0; i < f->n_members; i++) {
        f->members[i].at = at;
        at += aligned(f->members[i].bytes);
    }
    for (size_t i = 0; i < f->n_parts; i++) {
        CHECK(f->parts[i].bytes % PACK_ALIGN == 0);
        f->parts[i].first_sum = f->n_sums;
        f->n_sums += pack_part_sums(&f->parts[i]);
    }
    at += aligned(8 * (uint64_t)f->n_sums);
    for (size_t i = 0; i < f->n_parts; i++) {
        f->parts[i].at = at;
        at += f->parts[i].bytes;
    }
    f->file_bytes = at;
}

void pack_head_encode(const struct pack_file *f, const char *const *member_bytes,
                      uint8_t **out, size_t *n)
{
    uint64_t end = f->parts[0].at;
    uint64_t sums = end - aligned(8 * (uint64_t)f->n_sums);
    uint8_t *b = xcalloc((size_t)end, 1);
    struct json *o = describe(f);
    char *text = json_text(o, 1);
    size_t n_text = strlen(text);
    CHECK(PACK_TEXT_AT + n_text <= (f->n_members > 0 ? f->members[0].at : sums));
    memcpy(b + PACK_TEXT_AT, text, n_text);
    for (size_t i = 0; i < f->n_members; i++)
        memcpy(b + f->members[i].at, member_bytes[i], (size_t)f->members[i].bytes);
    for (size_t i = 0; i < f->n_sums; i++)
        put_u64(b + sums + 8 * i, f->sums[i]);
    memcpy(b, PACK_MAGIC, 8);
    bool has_experts = f->n_parts > pack_streamed_part(f->n_layers);
    put_u32(b + PACK_H_VERSION, has_experts                           ? PACK_VERSION
                                : dtype_has_blocks(f->table_dtype[0]) ? 2
                                                                      : 1);
    put_u64(b + PACK_H_FILE_BYTES, f->file_bytes);
    put_u64(b + PACK_H_TEXT_BYTES, n_text);
    put_u64(b + PACK_H_TEXT_SUM, checksum64(text, n_text));
    put_u64(b + PACK_H_SUMS_AT, sums);
    put_u64(b + PACK_H_N_SUMS, f->n_sums);
    put_u64(b + PACK_H_SUMS_SUM, checksum64(b + sums, 8 * f->n_sums));
    memcpy(b + PACK_H_HASH, f->hash.b, sizeof f->hash.b);
    put_u64(b + PACK_H_SUM, checksum64(b, PACK_H_SUM));
    free(text);
    json_free(o);
    *out = b;
    *n = (size_t)end;
}
