/* cuda_upload.c - uploads token ids and batch descriptions to the device. */
#include "cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

enum {
    ALIGN = 256,
    /* sequences with fewer rows are processed row by row, because a tile would be mostly empty */
    SOLO_ROWS = 8,
};

int upload_create(struct cuda_memory *m, struct upload *u, size_t half_bytes)
{
    void *host = NULL, *dev = NULL;
    u->half = half_bytes;
    if (cudaHostAlloc(&host, 2 * half_bytes, cudaHostAllocDefault) != cudaSuccess)
        return -ENOMEM;
    u->host = host;
    if (cuda_memory_take(m, 2 * half_bytes, &dev) != cudaSuccess)
        return -ENOMEM;
    u->dev = dev;
    for (int i = 0; i < 2; i++)
        if (cudaEventCreateWithFlags(&u->left[i], cudaEventDisableTiming) != cudaSuccess)
            return -ENOMEM;
    return 0;
}

void upload_destroy(struct cuda_memory *m, struct upload *u)
{
    cudaFreeHost(u->host);
    cuda_memory_give(m, u->dev);
    for (int i = 0; i < 2; i++)
        if (u->left[i] != NULL)
            cudaEventDestroy(u->left[i]);
}

int upload_take(struct cuda_stream *s, size_t bytes, void **host, void **dev)
{
    struct upload *u = &s->up;
    size_t room = round_up(bytes, ALIGN);
    if (room > u->half) {
        char why[160];
        snprintf(why, sizeof why,
                 "device cuda: a batch description of %zu bytes, %zu at most", bytes,
                 u->half);
        return cuda_fail(s, ERR_LIMIT, why);
    }
    if (u->used + room > u->half) {
        int rc = cuda_check(s, cudaEventRecord(u->left[u->side], s->handle), "upload");
        u->side = 1 - u->side;
        u->used = 0;
        if (rc == 0 && u->n_switches++ > 0)
            rc = cuda_check(s, cudaEventSynchronize(u->left[u->side]), "upload");
        if (rc != 0)
            return rc;
    }
    size_t at = (size_t)u->side * u->half + u->used;
    u->used += room;
    *host = u->host + at;
    *dev = u->dev + at;
    return 0;
}

int upload_send(struct cuda_stream *s, void *dev, const void *host, size_t bytes)
{
    if (bytes > 0)
        gpu_fetch(s->handle, dev, host, bytes);
    return cuda_leave(&s->base, "upload");
}

int upload_ids(struct cuda_stream *s, const int32_t *ids, int64_t n, const int32_t **dev)
{
    void *host, *to;
    size_t bytes = (size_t)n * sizeof *ids;
    int rc = upload_take(s, bytes, &host, &to);
    if (rc != 0)
        return rc;
    memcpy(host, ids, bytes);
    *dev = to;
    return upload_send(s, to, host, bytes);
}

/* --- batches ---------------------------------------------------------------------------------- */

/* Lengths of the parts of a batch's image. */
struct image_size {
    int n_rows, n_seqs, table_ld, n_tiles, n_solo;
};

static int n_rows_of(const struct ragged *r, int seq)
{
    return r->seq_row[seq + 1] - r->seq_row[seq];
}

static struct image_size measure(const struct ragged *r)
{
    struct image_size z = {.n_rows = r->n_rows, .n_seqs = r->n_seqs};
    for (int q = 0; q < r->n_seqs; q++) {
        int n = n_rows_of(r, q);
        if (n == 0)
            continue;
        int blocks = r->pos[r->seq_row[q + 1] - 1] / KV_BLOCK_TOKENS + 1;
        z.table_ld = blocks > z.table_ld ? blocks : z.table_ld;
        if (n < SOLO_ROWS)
            z.n_solo += n;
        else
            z.n_tiles += (n + GPU_TILE_ROWS - 1) / GPU_TILE_ROWS;
    }
    return z;
}

/* Writes the image at `host`. Returns a description with the places of its parts in device memory.
 */
static struct gpu_batch write_image(const struct ragged *r, struct image_size z,
                                    int32_t *host, const int32_t *dev)
{
    size_t rows = (size_t)z.n_rows, tables = (size_t)z.n_seqs * (size_t)z.table_ld;
    int32_t *pos = host, *row_seq = pos + rows, *table = row_seq + rows,
            *solo = table + tables;
    struct gpu_tile *tile = (struct gpu_tile *)(void *)(solo + z.n_solo);
    struct gpu_batch b = {.n_rows = z.n_rows,
                          .n_solo = z.n_solo,
                          .n_tiles = z.n_tiles,
                          .table_ld = z.table_ld,
                          .pos = dev,
                          .row_seq = dev + (row_seq - host),
                          .tables = dev + (table - host),
                          .solo = dev + (solo - host),
                          .tiles = (const void *)(dev + (solo + z.n_solo - host))};
    memcpy(pos, r->pos, rows * sizeof *pos);
    for (int q = 0; q < r->n_seqs; q++) {
        int first = r->seq_row[q], n = n_rows_of(r, q);
        if (n == 0)
            continue;
        int blocks = r->pos[first + n - 1] / KV_BLOCK_TOKENS + 1;
        memcpy(table + (size_t)q * (size_t)z.table_ld, r->tables[q],
               (size_t)blocks * sizeof *table);
        for (int i = 0; i < n; i++)
            row_seq[first + i] = q;
        for (int i = 0; n < SOLO_ROWS && i < n; i++)
            *solo++ = first + i;
        for (int i = 0; n >= SOLO_ROWS && i < n; i += GPU_TILE_ROWS)
            *tile++ = (struct gpu_tile){first + i,
                                        n - i < GPU_TILE_ROWS ? n - i : GPU_TILE_ROWS, q};
    }
    return b;
}

static size_t image_size_bytes(struct image_size z)
{
    size_t n = 2 * (size_t)z.n_rows + (size_t)z.n_seqs * (size_t)z.table_ld +
               (size_t)z.n_solo;
    return n * sizeof(int32_t) + (size_t)z.n_tiles * sizeof(struct gpu_tile);
}

/* Returns whether the batch's image is still there: it lasts through one switch of halves. */
static bool is_there(const struct cuda_stream *s, const struct ragged *r)
{
    return r->id != 0 && r->id == s->batch_id &&
           (s->batch_stays || s->up.n_switches - s->batch_switches <= 1);
}

/* Uploads the image to `to` in device memory; NULL: to the next free place. */
static int send_image(struct cuda_stream *s, const struct ragged *r, struct image_size z,
                      void *to)
{
    size_t bytes = image_size_bytes(z);
    void *host, *dev;
    int rc = upload_take(s, bytes, &host, &dev);
    if (rc != 0)
        return rc;
    s->batch_stays = to != NULL;
    to = to != NULL ? to : dev;
    s->batch = write_image(r, z, host, to);
    s->batch_id = r->id;
    s->batch_switches = s->up.n_switches;
    return upload_send(s, to, host, bytes);
}

int upload_batch(struct cuda_stream *s, const struct ragged *r, struct gpu_batch *out)
{
    if (is_there(s, r)) {
        *out = s->batch;
        return 0;
    }
    struct image_size z = measure(r);
    int rc = send_image(s, r, z, NULL);
    *out = s->batch;
    return rc;
}

int upload_decode(struct cuda_stream *s, const struct ragged *r, void *image,
                  size_t image_bytes)
{
    if (is_there(s, r))
        return 0;
    struct image_size z = measure(r), room = z;
    for (room.table_ld = 1; room.table_ld < z.table_ld;)
        room.table_ld *= 2;
    if (image_size_bytes(room) > image_bytes)
        return send_image(s, r, z, NULL);
    return send_image(s, r, room, image);
}
