/* step_batch.c - see step_batch.h. */
#include "engine/step_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

void step_batch_init(struct step_batch *b, struct seq_shared *sh, struct next_token *next,
                     struct zigzag *zigzag, struct mixed *mixed, int max_rows, int max_seqs)
{
    size_t rows = (size_t)max_rows, seqs = (size_t)max_seqs;
    *b = (struct step_batch){.shared = sh, .next = next, .zigzag = zigzag, .mixed = mixed};
    b->seqs = xcalloc(seqs, sizeof *b->seqs);
    b->ids = xcalloc(rows, sizeof *b->ids);
    b->pos = xcalloc(rows, sizeof *b->pos);
    b->tables = xcalloc(2 * seqs, sizeof *b->tables);
    b->parts = xcalloc(2 * seqs, sizeof *b->parts);
    flight_init(&b->flight, 2 * max_seqs);
    b->again = xcalloc(seqs, sizeof *b->again);
}

void step_batch_deinit(struct step_batch *b)
{
    free(b->seqs);
    free(b->ids);
    free(b->pos);
    free(b->tables);
    free(b->parts);
    flight_deinit(&b->flight);
    free(b->again);
}

void step_batch_clear(struct step_batch *b)
{
    b->n_seqs = b->n_parts = b->n_rows = 0;
}

/* Adds rows of s at positions [position, position + n_rows); their tokens begin at first_token. */
static void add_part(struct step_batch *b, struct seq *s, struct save_seq *save,
                     int first_token, int position, int n_rows)
{
    for (int i = 0; i < n_rows; i++) {
        b->ids[b->n_rows + i] = s->tokens[first_token + i];
        b->pos[b->n_rows + i] = position + i;
    }
    b->tables[b->n_parts] = s->table.blocks;
    b->parts[b->n_parts] = (struct save_part){save, first_token, b->n_rows, n_rows};
    b->n_parts++;
    b->n_rows += n_rows;
}

void step_batch_add_again(struct step_batch *b, struct seq *s, int n_rows)
{
    if (n_rows > 0)
        add_part(b, s, NULL, 0, 0, n_rows);
}

void step_batch_add(struct step_batch *b, struct seq *s, int n_rows)
{
    s->row = b->n_rows;
    s->n_rows = n_rows;
    b->seqs[b->n_seqs++] = s;
    add_part(b, s, s->save, seq_at(s), s->n_done, n_rows);
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Copies the rows of sequences that carry their view. */
static int carry_rows(const struct step_batch *b, int l, struct mat kv_rows)
{
    int begin = b->now->first_row, end = begin + b->now->r.n_rows, rc = 0;
    for (int i = 0; rc == 0 && i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int from = MAX(s->row, begin), to = MIN(s->row + s->n_rows, end);
        if (carry_is_on(&s->stairs.carry) && from < to)
            rc = carry_take(&s->stairs.carry, b->shared->stream, l,
                            s->n_done + (from - s->row),
                            mat_rows(kv_rows, from - begin, to - from));
    }
    return rc;
}

/* The tap of the forward pass: gives each layer's rows to the saver and to carried views. */
static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct step_batch *b = arg;
    save_layer(b->now->parts, b->now->n_parts, l, hidden, kv_rows, b->shared->stream);
    return b->shared->n_carrying > 0 ? carry_rows(b, l, kv_rows) : 0;
}

/* Returns whether this batch computes a sequence's last known token. */
static bool comes_to_end(const struct seq *s)
{
    return seq_at(s) + s->n_rows == s->n_tokens;
}

static int count_wanted(const struct step_batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_seqs; i++)
        n += comes_to_end(b->seqs[i]) && next_token_shows_logits(b->seqs[i]);
    return n;
}

/* Adds the sequences whose last known token is in x to next_token. x is the batch's rows from
 * first_row on. */
static int take_ends(struct step_batch *b, int first_row, struct mat x)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int row = s->row + s->n_rows - 1 - first_row;
        if (comes_to_end(s) && row >= 0 && row < x.rows)
            rc = next_token_add(b->next, b->shared->stream, s, mat_rows(x, row, 1));
    }
    return rc;
}

static void end_snapshots(struct step_batch *b)
{
    if (b->shared->saver != NULL)
        save_layers_end(b->shared->saver, b->shared->stream);
}

/* Takes the batch through all layers, piece by piece. */
static int forward_pieces(struct step_batch *b, const struct model_tap *tap)
{
    const struct seq_shared *sh = b->shared;
    struct flight *f = &b->flight;
    struct mat x;
    int n = flight_count(sh->model->dev, b->n_rows), rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        flight_cut(b, flight_begin(b->n_rows, i, n), flight_begin(b->n_rows, i + 1, n), f);
        b->now = f;
        rc = model_forward(sh->model, sh->work, sh->stream, b->ids + f->first_row,
                           kv_pool_layers(sh->pool), &f->r, tap, &x);
        end_snapshots(b);
        if (rc == 0)
            rc = take_ends(b, f->first_row, x);
    }
    return rc;
}

/* Directs the tap to this piece: snapshots of rows now belong to it. */
static int set_now(void *arg, int layer, int piece)
{
    struct step_batch *b = arg;
    (void)layer;
    b->now = &b->zigzag->pieces[piece];
    return 0;
}

/* Ends the snapshots of this piece: the next mini-batch overwrites their source. */
static int end_piece(void *arg, int layer, int piece)
{
    (void)layer;
    (void)piece;
    end_snapshots(arg);
    return 0;
}

static int pass_zigzag(struct step_batch *b, const struct model_tap *tap,
                       const struct kv_layer *kv, const struct zigzag_calls *calls)
{
    const struct seq_shared *sh = b->shared;
    struct mat x;
    struct model_pass_opts o = {.model = sh->model,
                                .work = sh->work,
                                .stream = sh->stream,
                                .n_rows = b->n_rows,
                                .ids = b->ids,
                                .kv = kv,
                                .tap = tap,
                                .checks_range = true};
    int rc = zigzag_run(b->zigzag, &o, calls, &x);
    return rc == 0 ? take_ends(b, 0, x) : rc;
}

/* Takes all pieces through the layers, layer by layer. */
static int forward_zigzag(struct step_batch *b, const struct model_tap *tap)
{
    const struct zigzag_calls calls = {.before = set_now, .behind = end_piece, .arg = b};
    zigzag_cut(b->zigzag, b);
    int rc = pass_zigzag(b, tap, kv_pool_layers(b->shared->pool), &calls);
    end_snapshots(b);
    return rc;
}

/* Runs the forward pass with mixed blocks, which come over the link. */
static int forward_mixed(struct step_batch *b)
{
    struct mixed *x = b->mixed;
    const struct zigzag_calls calls = {
        .before = mixed_before, .behind = mixed_behind, .arg = x};
    mixed_arrange(x, b);
    return mixed_end(x, pass_zigzag(b, NULL, x->places.layers, &calls));
}

static int forward(struct step_batch *b)
{
    const struct seq_shared *sh = b->shared;
    const struct model_tap snapshots = {.layer = snapshot, .arg = b};
    const struct model_tap *tap = sh->saver != NULL ? &snapshots : NULL;
    next_token_begin(b->next, count_wanted(b));
    int rc = mixed_is_on(b->mixed)     ? forward_mixed(b)
             : zigzag_is_on(b->zigzag) ? forward_zigzag(b, tap)
                                       : forward_pieces(b, tap);
    return rc == 0 ? next_token_run(b->next, sh->stream, sh->work) : rc;
}

/* --- faults ----------------------------------------------------------------------------------- */

int step_recover(struct stream *s, struct err *err)
{
    if (stream_fault(s)[0] == 0)
        return 0;
    int rc = stream_recover(s);
    return rc == 0 ? 0 : err_set(err, rc, "%s", stream_fault(s));
}

struct step_fault step_fault(const struct seq_shared *sh, int rc)
{
    struct step_fault f;
    struct weights_stream_stats weights;
    const char *why = stream_fault(sh->stream);
    weights_stats(&sh->model->w, &weights);
    if (why[0] == 0)
        why = weights.fault[0] != 0 ? weights.fault : err_name(rc);
    snprintf(f.text, sizeof f.text, "%s", why);
    return f;
}

/* Runs the sequences of a failed batch one by one. A value out of range is the fault of one
 * sequence, and the batch does not tell which. So all rows are computed again, one sequence after
 * another. They have the same bits as before (ops.h), so the written and saved state of the other
 * sequences stays right. */
static int run_one_by_one(struct step_batch *b)
{
    int n = b->n_seqs, rc = 0;
    memcpy(b->again, b->seqs, (size_t)n * sizeof(struct seq *));
    for (int i = 0; rc == 0 && i < n; i++) {
        struct seq *s = b->again[i];
        step_batch_clear(b);
        step_batch_add(b, s, s->n_rows);
        rc = forward(b);
        if (rc == 0)
            seq_advance(s);
        if (rc == MODEL_E_OVERFLOW) {
            seq_fail_overflow(s);
            rc = 0;
        }
    }
    memcpy(b->seqs, b->again, (size_t)n * sizeof(struct seq *));
    b->n_seqs = n;
    return rc;
}

/* A failed step may have moved the tails of its sequences (mixed.h), so no sequence is computed
 * again from its tail. The sequences whose rows left the range end. The others wait, and are
 * computed again from their full blocks. */
static int fail_overflowed(struct step_batch *b)
{
    const struct zigzag *z = b->zigzag;
    const struct flight *f = &z->pieces[z->piece];
    struct mat out = zigzag_output(z, z->layer);
    const struct device *dev = b->shared->model->dev;
    int n_failed = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int begin = MAX(s->row, f->first_row);
        int end = s->row + s->n_rows, piece_end = f->first_row + f->r.n_rows;
        bool finite = true;
        end = MIN(end, piece_end);
        int rc = begin < end
                     ? dev->ops->all_finite(b->shared->stream,
                                            mat_rows(out, begin, end - begin), &finite)
                     : 0;
        if (rc != 0)
            return rc;
        if (finite)
            seq_preempt(s);
        else
            seq_fail_overflow(s);
        n_failed += !finite;
    }
    CHECK(n_failed > 0);
    return 0;
}

static int fail_batch(struct step_batch *b, int rc, struct err *err)
{
    char why[300];
    struct step_fault fault = step_fault(b->shared, rc);
    snprintf(why, sizeof why, "forward pass: %s", fault.text);
    for (int i = 0; i < b->n_seqs; i++) {
        if (b->seqs[i]->phase != PHASE_DONE)
            seq_fail(b->seqs[i], rc, why);
    }
    return step_recover(b->shared->stream, err);
}

int step_batch_run(struct step_batch *b, struct err *err)
{
    int n = b->n_seqs, rc = forward(b);
    for (int i = 0; rc == 0 && i < n; i++)
        seq_advance(b->seqs[i]);
    if (rc == MODEL_E_OVERFLOW)
        rc = mixed_is_on(b->mixed) ? fail_overflowed(b) : run_one_by_one(b);
    return rc == 0 ? 0 : fail_batch(b, rc, err);
}
