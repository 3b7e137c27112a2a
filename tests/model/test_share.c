/* test_share.c - which rows each rank holds, and which slots each stage: for every
 * known shape, every slot and every number of ranks, compared with a table and with a search row
 * by row. */
#include "tests/unit.h"

#include <string.h>

#include "base/rng.h"
#include "model/weights_slots.h"
#include "model/share.h"

enum { MOST_ROWS = 1 << 19, NOWHERE = -1 };

static struct err err;

/* How a slot is divided among ranks. */
enum cut {
    WHOLE,  /* each rank has all of it */
    ROWS,   /* one run of rows */
    ROWS_2, /* a run of each half of the rows */
};

static enum cut cut_of(const struct model_config *c, enum slot s, int n_ranks)
{
    bool cuts_head = !c->tie_word_embeddings && c->vocab_size % n_ranks == 0;
    switch (s) {
    case SLOT_HEAD:
    case SLOT_HEAD_BIAS:
        return cuts_head ? ROWS : WHOLE;
    case SLOT_WQ:
    case SLOT_BQ:
    case SLOT_WV:
    case SLOT_WO:
    case SLOT_BO:
    case SLOT_DOWN:
    case SLOT_B_DOWN:
        return ROWS;
    case SLOT_WKV:
    case SLOT_BKV:
        return ROWS_2;
    case SLOT_UP:
    case SLOT_B_UP:
        return c->mlp_gated ? ROWS_2 : ROWS;
    default:
        return WHOLE;
    }
}

/* Fills own_of[i] with the rank's own row for row i of the slot. */
static void find_rows(int64_t rows, enum cut cut, int rank, int n_ranks, int64_t *own_of)
{
    int sections = cut == ROWS ? 1 : cut == ROWS_2 ? 2 : 0;
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t section = sections > 0 ? rows / sections : rows;
        bool is_own = sections == 0 || i % section / (section / n_ranks) == rank;
        own_of[i] = is_own ? n++ : NOWHERE;
    }
}

static void check_slot(const struct model_config *c, enum slot s, int n_ranks,
                       struct rng *r)
{
    static int64_t own_of[MOST_ROWS];
    int64_t rows = slot_rows(c, 0, s);
    enum cut cut = n_ranks > 1 ? cut_of(c, s, n_ranks) : WHOLE;
    assert_true(rows <= MOST_ROWS);
    assert_int_equal(share_rows(c, 0, s, n_ranks),
                     cut == ROWS || cut == ROWS_2 ? rows / n_ranks : rows);
    for (int rank = 0; rank < n_ranks; rank++) {
        find_rows(rows, cut, rank, n_ranks, own_of);
        for (int t = 0; t < 4; t++) {
            int64_t begin = t == 0 ? 0 : (int64_t)rng_below(r, (uint64_t)rows);
            int64_t end = t == 0
                              ? rows
                              : begin + (int64_t)rng_below(r, (uint64_t)(rows - begin) + 1);
            int64_t at = begin, next = begin, own, n;
            while (share_next(c, 0, s, rank, n_ranks, &at, end, &own, &n)) {
                assert_true(n > 0);
                for (; next < at; next++) /* left out rows are not the rank's */
                    assert_int_equal(own_of[next], NOWHERE);
                for (; next < at + n; next++)
                    assert_int_equal(own_of[next], own + next - at);
                at = next;
            }
            for (; next < end; next++)
                assert_int_equal(own_of[next], NOWHERE);
        }
    }
}

TEST(each_rank_has_its_rows)
{
    struct rng r = {7};
    for (int i = 0; config_shape_name(i) != NULL; i++) {
        struct model_config c = {0};
        assert_int_equal(config_shape(&c, config_shape_name(i), &err), 0);
        for (int tied = 0; tied <= 1; tied++)
            for (int n_ranks = 1; n_ranks <= 5; n_ranks++) {
                c.tie_word_embeddings = tied;
                assert_int_equal(share_cuts_head(&c, n_ranks),
                                 n_ranks > 1 && !tied && c.vocab_size % n_ranks == 0);
                if (share_check(&c, n_ranks, 1, &err) != 0)
                    continue;
                for (enum slot s = 0; s < N_SLOTS; s++)
                    check_slot(&c, s, n_ranks, &r);
            }
    }
}

/* The last stage has the head, and the embedding table if that serves as the head. */
TEST(each_stage_has_its_slots)
{
    struct model_config c = {0};
    assert_int_equal(config_shape(&c, "bench-220m", &err), 0);
    for (int tied = 0; tied <= 1; tied++)
        for (int n = 1; n <= c.n_layers; n++) {
            c.tie_word_embeddings = tied;
            for (enum slot s = 0; s < N_SLOTS; s++) {
                if (slot_is_in_layer(s))
                    continue;
                bool is_first = s == SLOT_EMBED || s == SLOT_POSITIONS;
                assert_int_equal(share_stage(&c, s, 0, n), is_first && !tied ? 0 : n - 1);
            }
            int n_of[16] = {0}, before = 0;
            for (int l = 0; l < c.n_layers; l++) {
                int stage = share_stage(&c, SLOT_WQ, l, n);
                assert_true(stage == before || stage == before + 1);
                before = stage;
                n_of[stage]++;
                for (enum slot s = 0; s < N_SLOTS; s++)
                    if (slot_is_in_layer(s))
                        assert_int_equal(share_stage(&c, s, l, n), stage);
            }
            for (int k = 0; k < n; k++)
                assert_in_range(n_of[k], c.n_layers / n, (c.n_layers + n - 1) / n);
        }
}

/* Each part that cannot be divided is named, and a part that can is not. */
TEST(a_model_that_cannot_be_divided_is_refused)
{
    static const struct {
        int heads, kv_heads, ffn, embd, ranks, stages;
        const char *word; /* NULL: it can be divided */
    } cases[] = {
        {8, 2, 352, 768, 2, 1, NULL},
        {8, 2, 352, 768, 2, 12, NULL},
        {8, 2, 352, 768, 2, 13, "12 layers"},
        {9, 2, 352, 768, 2, 1, "9 attention heads"},
        {8, 3, 352, 768, 2, 1, "3 key/value heads"},
        {8, 2, 353, 768, 2, 1, "353 columns in its MLP"},
        {8, 2, 352, 769, 2, 1, "769 elements in its hidden states"},
        {9, 3, 353, 769, 1, 1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = {0};
        assert_int_equal(config_shape(&c, "bench-220m", &err), 0);
        c.n_heads = cases[i].heads;
        c.n_kv_heads = cases[i].kv_heads;
        c.n_ffn = cases[i].ffn;
        c.n_embd = cases[i].embd;
        c.d_head = 16;
        err = (struct err){0};
        int rc = share_check(&c, cases[i].ranks, cases[i].stages, &err);
        bool is_right = cases[i].word == NULL ? rc == 0
                                              : rc == ERR_UNSUPPORTED &&
                                                    strstr(err.msg, cases[i].word) != NULL;
        if (!is_right)
            fail_msg("case %zu: %d [%s]", i, rc, err.msg);
    }
}
