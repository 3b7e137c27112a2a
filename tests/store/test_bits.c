/* test_bits.c - flips bits of one structure of each kind of metadata: one bit of each byte, or with
 * HCACHE_BITS=all every bit. No flip may lose a record or serve wrong bytes. (test_parts flips all
 * bits of a header and of a superblock.)
 *
 * HCACHE_CAMPAIGN_OUT=FILE receives the counts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "damage.h"
#include "sim/io_sim.h"

/* Flips bits of bytes [at, at + n). Neighbouring bytes lose different bits. */
static void flip(struct st_place *p, const char *path, uint64_t at, uint64_t n)
{
    const char *which = getenv("HCACHE_BITS");
    bool all = which != NULL && strcmp(which, "all") == 0;
    for (uint64_t i = 0; i < n; i++)
        for (unsigned bit = 0; bit < 8; bit++)
            if (all || bit == rng_mix(i) % 8)
                damage_flip(p, path, at + i, bit);
}

/* One row of each kind in the index (meta.row, extent.row, record.tab), and the fields of a
 * header. */
TEST(bits_of_the_structures)
{
    static const char index[] = "/st/d0/index.db", segment[] = "/st/d0/seg-000000.hc";
    struct st_place p;
    struct sha256 keys[DAMAGE_CHUNKS];
    uint8_t uuid[16], header[4096];
    struct io_file *f;
    damage_place(&p);
    st_keys(&damage_ctx, DAMAGE_CHUNKS, keys);
    assert_int_equal(io_file_open(p.io, "/st/d0/superblock", IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, uuid, sizeof uuid, 24, NULL), 0);
    io_file_close(f);
    assert_int_equal(io_file_open(p.io, segment, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, header, sizeof header, 0, NULL), 0);
    io_file_close(f);
    size_t table_bytes = (size_t)(header[74] + 256 * header[75]) * 14;
    const struct {
        const char *path;
        uint64_t at, n;
    } parts[] = {
        {index, damage_find(p.io, index, uuid, sizeof uuid) - 16, 64},
        {index, damage_find(p.io, index, keys[DAMAGE_CHUNKS - 1].b, 32) - 40, 184},
        {index, damage_find(p.io, index, header + 512, table_bytes), table_bytes + 8},
        {segment, 0, 512 + table_bytes},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        flip(&p, parts[i].path, parts[i].at, parts[i].n);
    st_place_close(&p);
}

/* The row of a place that still has to be wiped. The erased chunks may come back, but not with
 * wrong bytes; other chunks are not affected. */
TEST(bits_of_a_wipe)
{
    struct st_place p;
    damage_place(&p);
    flip(&p, "/st/d0/index.db", damage_wipe_row(&p), 40);
    st_place_close(&p);
}

int main(void)
{
    int n_bad = unit_run(NULL, NULL);
    const struct damage_line lines[] = {
        {"bits flipped in metadata", damage_counts.n_meta_bits},
        {"wrong bytes served", damage_counts.n_wrong}};
    damage_report(lines, 2);
    return n_bad;
}
