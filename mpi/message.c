/* message.c - a call as bytes (messages.h). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "mpi/messages.h"

static uint8_t *room_for(struct messages *to, size_t bytes)
{
    if (to->bytes + bytes > to->room) {
        to->room = 2 * (to->bytes + bytes);
        to->at = xrealloc(to->at, to->room);
    }
    uint8_t *at = to->at + to->bytes;
    to->bytes += bytes;
    return at;
}

/* Copies a part behind the message, and returns the end of its room. */
static uint8_t *put(uint8_t *at, struct message *m, int part, const void *from,
                    size_t bytes)
{
    m->part_bytes[part] = bytes;
    if (bytes > 0)
        memcpy(at, from, bytes);
    return at + part_room(bytes);
}

void message_add(struct messages *to, const struct message *from)
{
    const struct ragged none = {0}, *r = from->c.r != NULL ? from->c.r : &none;
    size_t rows = (size_t)r->n_rows * sizeof *r->pos, blocks = 0;
    size_t runs = r->n_seqs > 0 ? ((size_t)r->n_seqs + 1) * sizeof *r->seq_row : 0;
    for (int i = 0; r->tables != NULL && i < r->n_seqs; i++)
        blocks += (size_t)ragged_blocks(r, i) * sizeof **r->tables;
    uint8_t *first = room_for(to, part_room(sizeof *from) + part_room(from->c.host_bytes) +
                                      part_room(rows) + part_room(runs) +
                                      part_room(blocks));
    struct message *m = (struct message *)(void *)first;
    *m = *from;
    m->r = (struct ragged){.n_rows = r->n_rows, .n_seqs = r->n_seqs};
    uint8_t *at = first + part_room(sizeof *m);
    at = put(at, m, PART_HOST, from->c.host, from->c.host_bytes);
    at = put(at, m, PART_POS, r->pos, rows);
    at = put(at, m, PART_SEQ_ROW, r->seq_row, runs);
    m->part_bytes[PART_TABLES] = blocks;
    for (int i = 0; blocks > 0 && i < r->n_seqs; i++) {
        size_t bytes = (size_t)ragged_blocks(r, i) * sizeof **r->tables;
        memcpy(at, r->tables[i], bytes);
        at += bytes;
    }
}

struct message *message_open(uint8_t *from, size_t *bytes, const int32_t ***tables)
{
    struct message *m = (struct message *)(void *)from;
    const uint8_t *part[N_PARTS];
    uint8_t *at = from + part_room(sizeof *m);
    for (int i = 0; i < N_PARTS; i++) {
        part[i] = at;
        at += part_room(m->part_bytes[i]);
    }
    m->c.host = part[PART_HOST];
    m->c.r = &m->r;
    m->r.pos = (const int32_t *)(const void *)part[PART_POS];
    m->r.seq_row = (const int32_t *)(const void *)part[PART_SEQ_ROW];
    *tables = xrealloc((void *)*tables, ((size_t)m->r.n_seqs + 1) * sizeof **tables);
    const int32_t *blocks = (const int32_t *)(const void *)part[PART_TABLES];
    for (int i = 0; i < m->r.n_seqs; i++) {
        (*tables)[i] = blocks;
        blocks += ragged_blocks(&m->r, i);
    }
    m->r.tables = *tables;
    *bytes = (size_t)(at - from);
    return m;
}
