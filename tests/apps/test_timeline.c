/* test_timeline.c - pictures, against their expected text. */
#include "tests/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/timeline.h"
#include "tests/base/golden.h"

static struct pipeline lanes;

static void simulate(const char *mode, double io_s, int n_layers)
{
    static struct plan_layer layer[PLAN_MAX_LAYERS];
    static double prefill_s[PLAN_MAX_LAYERS];
    for (int i = 0; i < n_layers; i++) {
        layer[i] = (struct plan_layer){.io_h_s = io_s,
                                       .io_kv_s = 2 * io_s,
                                       .comp_h_s = 1e-3,
                                       .comp_kv_s = 0.25e-3,
                                       .comp_tok_s = 4e-3,
                                       .comp_tok_last_s = 1e-3,
                                       .has_h = true,
                                       .has_kv = true,
                                       .can_recompute = true};
        prefill_s[i] = 0.5e-3;
    }
    struct plan_request q = {
        .n_layers = n_layers, .layer = layer, .prefill_s = prefill_s, .head_s = 1e-3};
    struct plan plan;
    struct err e;
    if (plan_mode_parse(mode, &q, &e) != 0 || plan_make(&q, &plan, &e) != 0)
        fail_msg("%s", e.msg);
    pipeline_simulate(&q, &plan, &lanes);
}

static void expect_text(int width, const char *want)
{
    char got[4096];
    int n = timeline_text(&lanes, width, got, sizeof got);
    assert_int_equal(n, strlen(got));
    assert_string_equal(got, want);
}

TEST(test_golden)
{
    simulate("RRHHK", 2e-3, 5);
    expect_text(72,
                "         0           2.94         5.88        8.81     11.8 ms\n"
                "I/O      HHHHHHHHHhhhhhhhhKKKKKKKKKKKKKKKKK................   68 % busy\n"
                "compute  RRRRRRRRRRRRRRRRRhhhhHHHHHrrrr....KppPPppPPPppLLLL   91 % busy\n"
                "         R recompute  H hidden states  K keys/values  P prefill  L head "
                "of the model  . idle\n");
}

TEST(test_many_layers)
{
    simulate("RRRRHHHHHHHHHHHHHHHHHHHHHHHHKKKK", 1e-3, 32);
    expect_text(64, "         0         13.8       27.5      41.3     55 ms\n"
                    "I/O      HHHHHHHHHHHHHHHHHHKKKKKK..................   58 % busy\n"
                    "compute  RRRHHHHHHHHHHHHHHHHHHHRRRRRRRPPPPPPPPPPPPL  100 % busy\n"
                    "         R recompute  H hidden states  K keys/values  P prefill  L "
                    "head of the model  . idle\n");
}

TEST(test_width_is_bounded)
{
    simulate("hidden", 1e-3, 4);
    char narrow[4096], forty[4096], wide[8192];
    timeline_text(&lanes, -5, narrow, sizeof narrow);
    timeline_text(&lanes, 40, forty, sizeof forty);
    assert_string_equal(narrow, forty);
    int n = timeline_text(&lanes, 100000, wide, sizeof wide);
    assert_true(n < 4 * 401);
    /* without a buffer the call returns the length only */
    assert_int_equal(timeline_text(&lanes, 100000, NULL, 0), n);
    timeline_text(&lanes, 100000, wide, 10);
    assert_int_equal(strlen(wide), 9);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what))
        n++;
    return n;
}

TEST(test_svg)
{
    simulate("RRHHK", 2e-3, 5);
    int n = timeline_svg(&lanes, "a <b> & c", NULL, 0);
    char *svg = malloc((size_t)n + 1);
    assert_int_equal(timeline_svg(&lanes, "a <b> & c", svg, (size_t)n + 1), n);
    assert_int_equal(strlen(svg), n);
    assert_non_null(strstr(svg, "a &lt;b&gt; &amp; c"));
    /* 3 reads, 5 restorations, 5 prefills, and one more for the output head */
    assert_int_equal(count(svg, "<title>"), 14);
    assert_int_equal(count(svg, "</title></rect>"), 14);
    assert_int_equal(count(svg, "<text"), count(svg, "</text>"));
    assert_non_null(strstr(svg, "layer 4: keys/values, 4 to 8 ms"));
    assert_string_equal(svg + n - 7, "</svg>\n");
    free(svg);
}

/* Compares the whole picture with the golden file, byte for byte. HCACHE_WRITE_GOLDEN=1 rewrites
 * the golden file; look at the new picture then. */
TEST(test_svg_is_golden)
{
    static const char *const path = "tests/apps/golden/timeline.svg";
    static char got[1 << 16], want[1 << 16];
    simulate("RRHHK", 2e-3, 5);
    assert_true(timeline_svg(&lanes, "a <b> & c", got, sizeof got) < (int)sizeof got);
    bool writes = getenv("HCACHE_WRITE_GOLDEN") != NULL;
    FILE *f = fopen(path, writes ? "w" : "r");
    assert_non_null(f);
    if (writes)
        assert_true(fputs(got, f) >= 0);
    else
        want[fread(want, 1, sizeof want - 1, f)] = 0;
    fclose(f);
    if (!writes)
        assert_string_equal(got, want);
}

static void scale_times(double factor)
{
    lanes.makespan_s *= factor;
    lanes.io_busy_s *= factor;
    lanes.comp_busy_s *= factor;
    for (int i = 0; i < lanes.n_items; i++) {
        lanes.item[i].start_s *= factor;
        lanes.item[i].end_s *= factor;
    }
}

/* Pictures of all widths, units of time and kinds of plans: every letter and every number. */
TEST(test_texts_are_golden)
{
    static const struct {
        const char *mode;
        double io_s, factor;
        int n_layers;
    } cases[] = {{"RRHHK", 2e-3, 1, 5},
                 {"hidden", 1e-3, 1e-3, 4},
                 {"kv", 3e-3, 100, 7},
                 {"recompute", 1e-3, 1, 9},
                 {"RHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHK", 1.5e-3, 30, 32},
                 {"HHHHHHHHHHHHHHHHK", 1e-4, 0.01, 17}};
    static const int widths[] = {40, 41, 57, 80, 399, 400, 401};
    static char got[4 * 402];
    struct textbuf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            simulate(cases[i].mode, cases[i].io_s, cases[i].n_layers);
            scale_times(cases[i].factor);
            timeline_text(&lanes, widths[w], got, sizeof got);
            textbuf_addf(&b, "%s, %d columns\n%s", cases[i].mode, widths[w], got);
        }
    golden_check(&b, "tests/apps/golden/timelines.txt");
}

/* Draws a pipeline of two stages, in which a bus and a compute lane are busy on each. */
TEST(test_stages_are_golden)
{
    static char got[1 << 16];
    struct textbuf b = {0};
    memset(&lanes, 0, sizeof lanes);
    lanes.n_stages = 2;
    lanes.makespan_s = 10;
    lanes.io_busy_s = 4;
    for (int k = 0; k < 2; k++) {
        lanes.stage_up_s[k] = 3 + k;
        lanes.stage_comp_s[k] = 5 + k;
    }
    for (int i = 0; i < 8; i++)
        lanes.item[lanes.n_items++] = (struct pipe_item){.start_s = i,
                                                         .end_s = i == 6 ? i : i + 1.5,
                                                         .layer = (int16_t)(i / 2),
                                                         .method = "HKRPLHKX"[i],
                                                         .lane = (uint8_t)(i % 4),
                                                         .stage = (uint8_t)(i / 4)};
    timeline_text(&lanes, 80, got, sizeof got);
    textbuf_addf(&b, "%s", got);
    timeline_svg(&lanes, "a \"stage\" & <b>\tline\x7f \xc3\xa9", got, sizeof got);
    textbuf_addf(&b, "%s", got);
    golden_check(&b, "tests/apps/golden/stages.txt");
}

TEST(test_nothing)
{
    memset(&lanes, 0, sizeof lanes);
    expect_text(80, "nothing to restore\n");
    assert_true(timeline_svg(&lanes, "", NULL, 0) > 0);
}

/* Each stage has two lanes, its bus and its compute. They follow the lane of reading. */
TEST(test_lanes_of_stages)
{
    static const struct {
        const char *name;
        enum pipe_lane lane;
        int stage;
        double busy_s;
    } want[] = {{"I/O", PIPE_IO, -1, 1},        {"bus 0", PIPE_UP, 0, 3},
                {"comp 0", PIPE_RESTORE, 0, 5}, {"bus 1", PIPE_UP, 1, 4},
                {"comp 1", PIPE_RESTORE, 1, 6}, {"compute", PIPE_RESTORE, -1, 2}};
    static struct pipeline p = {.io_busy_s = 1, .comp_busy_s = 2};
    struct timeline_lane lane;
    p.stage_up_s[0] = 3, p.stage_up_s[1] = 4;
    p.stage_comp_s[0] = 5, p.stage_comp_s[1] = 6;
    for (int n_stages = 1; n_stages <= 2; n_stages++) {
        int n = n_stages == 1 ? 2 : 5;
        p.n_stages = n_stages;
        for (int i = 0; i < n; i++) {
            int k = n_stages == 1 && i == 1 ? 5 : i;
            assert_true(timeline_lane_at(&p, i, &lane));
            assert_string_equal(lane.name, want[k].name);
            assert_int_equal(lane.lane, want[k].lane);
            assert_int_equal(lane.stage, want[k].stage);
            assert_true(lane.busy_s == want[k].busy_s);
        }
        assert_false(timeline_lane_at(&p, n, &lane));
    }
    /* Prefill runs on the lane of compute; an item belongs to its stage's lane. */
    struct pipe_item x = {.lane = PIPE_PREFILL, .stage = 1};
    assert_true(timeline_lane_at(&p, 4, &lane) && timeline_in_lane(&x, &lane));
    assert_true(timeline_lane_at(&p, 2, &lane) && !timeline_in_lane(&x, &lane));
    assert_true(timeline_lane_at(&p, 3, &lane) && !timeline_in_lane(&x, &lane));
}
