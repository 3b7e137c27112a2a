/* flight.c - see flight.h. */
#include "engine/flight.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "engine/step_batch.h"

void flight_init(struct flight *f, int max_seqs)
{
    size_t n = (size_t)max_seqs;
    f->parts = xcalloc(n, sizeof *f->parts);
    f->seq_row = xcalloc(n + 1, sizeof *f->seq_row);
    f->tables = xcalloc(n, sizeof *f->tables);
}

void flight_deinit(struct flight *f)
{
    free(f->parts);
    free(f->seq_row);
    free(f->tables);
}

int flight_count(const struct device *d, int n_rows)
{
    int n = n_rows / FLIGHT_ROWS;
    if (d->unified || n < 1) /* stages that share processors work in turn */
        return 1;
    return n < d->n_stages ? n : d->n_stages;
}

void flight_cut(const struct step_batch *b, int begin, int end, struct flight *f)
{
    f->first_row = begin;
    f->n_parts = 0;
    f->seq_row[0] = 0;
    for (int k = 0; k < b->n_parts; k++) {
        const struct save_part *all = &b->parts[k];
        int from = MAX(all->row, begin);
        int to = MIN(all->row + all->n_rows, end);
        if (from >= to)
            continue;
        f->parts[f->n_parts] = (struct save_part){all->seq, all->pos + (from - all->row),
                                                  from - begin, to - from};
        f->tables[f->n_parts] = b->tables[k];
        f->seq_row[++f->n_parts] = to - begin;
    }
    f->r = (struct ragged){.n_rows = end - begin,
                           .n_seqs = f->n_parts,
                           .pos = b->pos + begin,
                           .seq_row = f->seq_row,
                           .tables = f->tables,
                           .id = ragged_new_id()};
}
