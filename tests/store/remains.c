/* remains.c - see remains.h. */
#include "remains.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "sim/io_sim.h"

struct bytes {
    uint8_t *p;
    size_t n;
};

static struct bytes file_bytes(struct io *io, const char *dir, const char *name)
{
    struct bytes b = {0};
    struct io_file *f;
    char path[600];
    uint64_t size;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_size(f, &size, NULL), 0);
    b.p = xmalloc(size + 1);
    assert_int_equal(io_file_pread_some(f, b.p, size, 0, &b.n, NULL), 0);
    io_file_close(f);
    return b;
}

/* The segments of the one open store whose place is memory. */
static struct bytes segments[8];

static void *segment_get(void *arg, size_t bytes)
{
    int i = 0;
    (void)arg;
    while (segments[i].p != NULL)
        i++;
    assert_true(i < 8);
    segments[i] = (struct bytes){mem_map(bytes), bytes};
    return segments[i].p;
}

static void segment_put(void *arg, void *p, size_t bytes)
{
    int i = 0;
    (void)arg;
    while (segments[i].p != p)
        i++;
    segments[i] = (struct bytes){0};
    mem_unmap(p, bytes);
}

struct store_memory remains_memory(void)
{
    return (struct store_memory){segment_get, segment_put, NULL};
}

static int segments_with(const void *what, size_t n)
{
    int n_with = 0;
    for (int i = 0; i < 8; i++)
        n_with += segments[i].p != NULL &&
                  memmem(segments[i].p, segments[i].n, what, n) != NULL;
    return n_with;
}

int files_with(const struct st_place *p, const void *what, size_t n)
{
    int n_with = p->io == NULL ? segments_with(what, n) : 0;
    for (int d = 0; p->io != NULL && d < p->opts.n_dirs; d++) {
        struct io_names names;
        assert_int_equal(io_list(p->io, p->dirs[d], &names, NULL), 0);
        for (size_t i = 0; i < names.n; i++) {
            struct bytes b = file_bytes(p->io, p->dirs[d], names.name[i]);
            n_with += memmem(b.p, b.n, what, n) != NULL;
            free(b.p);
        }
        io_names_free(&names);
    }
    /* the medium itself, with the blocks that were freed */
    if (p->io != NULL && strcmp(io_name(p->io), "sim") == 0)
        n_with += (int)io_sim_raw_count(p->io, what, n);
    return n_with;
}

int remains(const struct st_place *p, const struct st_ctx *c, int chunk, bool keys_too)
{
    struct sha256 keys[ST_MAX_CHUNKS];
    int32_t tokens[STORE_CHUNK_TOKENS];
    uint8_t code[4 * STORE_CHUNK_TOKENS], state[64];
    int n = 0;
    st_keys(c, chunk + 1, keys);
    st_tokens(c, chunk, tokens);
    for (int i = 0; i < STORE_CHUNK_TOKENS; i++)
        put_u32(code + 4 * i, (uint32_t)tokens[i]);
    n += files_with(p, code, 16);
    for (int l = 0; l < st_small.n_layers; l++)
        for (int k = 0; k < STORE_KINDS; k++) {
            st_fill(&keys[chunk], l, (enum store_kind)k, state, sizeof state);
            n += files_with(p, state, sizeof state);
        }
    return keys_too ? n + files_with(p, keys[chunk].b, 16) : n;
}
