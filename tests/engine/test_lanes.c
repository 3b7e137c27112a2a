/* test_lanes.c - a plan's lanes as they are drawn in pictures. */

#include "tests/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/restoring.h"
#include "restore/pipeline.h"

enum { L = 6 };

static struct plan_layer layer[L];
static double prefill_s[L];

static struct plan_request request(void)
{
    for (int l = 0; l < L; l++) {
        layer[l] = (struct plan_layer){.io_h_s = 2e-3,
                                       .io_kv_s = 4e-3,
                                       .comp_h_s = 1e-3,
                                       .comp_kv_s = 0.25e-3,
                                       .comp_tok_s = 4e-3,
                                       .comp_tok_last_s = 1e-3,
                                       .has_h = true,
                                       .has_kv = true,
                                       .can_recompute = true};
        prefill_s[l] = 0.5e-3;
    }
    return (struct plan_request){
        .n_layers = L, .layer = layer, .prefill_s = prefill_s, .head_s = 1e-3};
}

/* A prediction shows the spans of the simulated restore, ordered by their beginning. It leaves out
 * prefill and copies to the device. */
TEST(a_prediction_shows_the_simulated_restore)
{
    static const char *const modes[] = {"RRHHKK", "HHHHHH", "KKKKKK", "RRRRRR"};
    struct hcache_lanes lanes = {0};
    for (int fused = 0; fused < 2; fused++)
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
            struct plan_request q = request();
            struct plan plan;
            struct err e;
            q.fused = fused != 0;
            q.fused_tokens = 512;
            assert_int_equal(plan_mode_parse(modes[m], &q, &e), 0);
            assert_int_equal(plan_make(&q, &plan, &e), 0);
            struct pipeline *p = calloc(1, sizeof *p);
            pipeline_simulate(&q, &plan, p);
            lanes_predict(&lanes, &q, &plan); /* frees the spans of the previous plan */
            int n_shown = 0, n_prefill = 0;
            for (int i = 0; i < p->n_items; i++) {
                const struct pipe_item *x = &p->item[i];
                bool is_shown = x->lane == PIPE_IO || x->lane == PIPE_RESTORE;
                int n_found = 0;
                n_shown += is_shown;
                n_prefill += x->lane == PIPE_PREFILL;
                for (int k = 0; k < lanes.n; k++) {
                    const struct hcache_span *s = &lanes.span[k];
                    n_found += s->layer == x->layer && s->method == x->method &&
                               s->is_io == (x->lane == PIPE_IO) &&
                               fabs((double)s->start_ms - x->start_s * 1e3) < 1e-4 &&
                               fabs((double)s->end_ms - x->end_s * 1e3) < 1e-4;
                }
                assert_int_equal(n_found, is_shown);
            }
            assert_true(n_prefill > 0);
            assert_int_equal(lanes.n, n_shown);
            for (int k = 1; k < lanes.n; k++)
                assert_true(lanes.span[k - 1].start_ms <= lanes.span[k].start_ms);
            assert_true(fabs(lanes.total_ms - p->restore_s * 1e3) < 1e-9);
            free(p);
        }
    free(lanes.span);
}
