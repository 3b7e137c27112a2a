/* test_metrics.c - the text of /metrics: each counter has its line, with its value. Every
 * counter of the input differs from all others. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "server/metrics.h"

static const struct hcache_stats stats = {
    .n_waiting = 101,
    .n_running = 102,
    .wait_s = 103,
    .n_ended = 1000,
    .n_cancelled = 105,
    .n_failed = 106,
    .n_refused = 107,
    .n_timed_out = 108,
    .prompt_tokens = 109,
    .generated_tokens = 110,
    .guessed_tokens = 705,
    .guessed_right = 700,
    .device_tokens = 111,
    .restored_tokens = 2000,
    .dram_tokens = 113,
    .remote_tokens = 114,
    .computed_tokens = 115,
    .restored_bytes = 116,
    .n_restores = 117,
    .layers_recompute = 119,
    .layers_hidden = 120,
    .layers_kv = 121,
    .restore_measured_s = 256,
    .restore_wait_s = 64,
    .n_misses = 128,
    .saves_ended = {2, {{"writer_behind", 129}, {"erased", 609}}},
    .saved_chunks = 3000,
    .saved_tails = 138,
    .shared_chunks = 139,
    .save_buffer_bytes = 140,
    .save_buffer_used_bytes = 141,
    .n_preempted = 142,
    .recovered_tokens = 143,
    .recomputed_tokens = 144,
    .n_stairs = 145,
    .n_replays = 146,
    .stairs_s = 147,
    .kv_blocks = 148,
    .kv_blocks_free = 149,
    .kv_blocks_kept = 150,
    .kv_blocks_evicted = 151,
    .plans = {2, {{"kv", 601}, {"hidden", 602}}},
    .surprises = {1, {{"reads", 603}}},
    .stalls = {1, {{"left", 604}}},
};

static const struct hcache_cache_stats saved = {
    .tier = "disk",
    .n_checksum_failures = 152,
    .n_read_failures = 153,
    .used_bytes = 154,
    .cap_bytes = 155,
    .read_bytes = 156,
    .appended_bytes = 157,
    .misses = {1, {{"absent", 605}}},
    .evictions = {1, {{"room", 606}}},
    .dram = {.cap_bytes = 201,
             .used_bytes = 202,
             .n_chunks = 203,
             .n_written = 204,
             .n_promoted = 205,
             .promoted_bytes = 206,
             .n_unused = 207,
             .n_demoted = 208,
             .n_full = 209,
             .read_bytes = 210},
    .n_expiring = 501,
    .n_guarantees = 502,
    .guaranteed_bytes = 503,
    .guarantee_limit_bytes = 504,
    .n_guarantees_broken = 505,
    .n_pins = 506,
    .remote = {.url = "redis://h",
               .is_up = 1,
               .is_full = 320,
               .n_fetches = 302,
               .n_round_trips = 303,
               .n_fetched = 304,
               .fetched_bytes = 305,
               .n_written = 306,
               .written_bytes = 307,
               .n_known = 308,
               .n_dropped = 309,
               .n_gone = 310,
               .n_refused = 311,
               .n_failures = 312,
               .n_queued = 313,
               .n_unpublished = 314,
               .n_erasures = 400,
               .n_erasures_everywhere = 316,
               .n_servers = 317,
               .latency_s = 318,
               .bytes_per_s = 319,
               .misses = {1, {{"slow", 607}}}},
};

enum { IDLE_S = 608 };

static const char *const want[] = {
    "requests_waiting 101",
    "queue_wait_expected_seconds 103",
    "requests_running 102",
    "requests_total{end=\"done\"} 681",
    "requests_total{end=\"cancelled\"} 105",
    "requests_total{end=\"failed\"} 106",
    "requests_total{end=\"timeout\"} 108",
    "requests_total{end=\"refused\"} 107",
    "preemptions_total 142",
    "resumed_tokens_total{how=\"recovered\"} 143",
    "resumed_tokens_total{how=\"recomputed\"} 144",
    "truncation_steps_total 145",
    "truncation_stall_seconds_total 147",
    "truncation_replays_total 146",
    "prompt_tokens_total{source=\"device\"} 111",
    "prompt_tokens_total{source=\"dram\"} 113",
    "prompt_tokens_total{source=\"disk\"} 1887",
    "prompt_tokens_total{source=\"computed\"} 115",
    "generated_tokens_total 110",
    "guessed_tokens_total{outcome=\"right\"} 700",
    "guessed_tokens_total{outcome=\"wrong\"} 5",
    "kv_blocks 148",
    "kv_blocks_free 149",
    "kv_blocks_kept 150",
    "kv_blocks_evicted_total 151",
    "restores_total 117",
    "restores_by_plan_total{plan=\"kv\"} 601",
    "restores_by_plan_total{plan=\"hidden\"} 602",
    "restore_layers_total{method=\"recompute\"} 119",
    "restore_layers_total{method=\"hidden\"} 120",
    "restore_layers_total{method=\"kv\"} 121",
    "restore_bytes_total 116",
    "restore_predictions_missed_total{cause=\"reads\"} 603",
    "restore_stalls_total{end=\"left\"} 604",
    "restore_wait_seconds_total 64",
    "restore_bubble_share 0.25",
    "requests_missed_total 128",
    "store_saves 1",
    "pins 506",
    "idle_ttl_seconds 608",
    "expiring_chunks 501",
    "guarantees 502",
    "guaranteed_bytes 503",
    "guarantee_limit_bytes 504",
    "guarantees_broken_total 505",
    "misses_total{reason=\"absent\"} 605",
    "evictions_total{reason=\"room\"} 606",
    "checksum_failures_total 152",
    "read_failures_total 153",
    "store_bytes 154",
    "store_cap_bytes 155",
    "store_read_bytes_total 156",
    "store_written_bytes_total 157",
    "saves_ended_total{reason=\"writer_behind\"} 129",
    "saves_ended_total{reason=\"erased\"} 609",
    "saved_chunks_total{how=\"written\"} 2861",
    "saved_chunks_total{how=\"shared\"} 139",
    "saved_tails_total 138",
    "save_buffer_bytes 140",
    "save_buffer_used_bytes 141",
    "dram_bytes 202",
    "dram_cap_bytes 201",
    "dram_chunks 203",
    "dram_copies_total{how=\"written\"} 204",
    "dram_copies_total{how=\"promoted\"} 205",
    "dram_promoted_bytes_total 206",
    "dram_promotions_unused_total 207",
    "dram_demotions_total 208",
    "dram_full_total 209",
    "dram_read_bytes_total 210",
    "remote_up 1",
    "remote_full 320",
    "remote_tokens_total 114",
    "remote_fetches_total 302",
    "remote_round_trips_total 303",
    "remote_misses_total{reason=\"slow\"} 607",
    "remote_fetched_chunks_total 304",
    "remote_fetched_bytes_total 305",
    "remote_offered_chunks_total{end=\"written\"} 306",
    "remote_offered_chunks_total{end=\"known\"} 308",
    "remote_offered_chunks_total{end=\"dropped\"} 309",
    "remote_offered_chunks_total{end=\"gone\"} 310",
    "remote_offered_chunks_total{end=\"refused\"} 311",
    "remote_written_bytes_total 307",
    "remote_queued_chunks 313",
    "remote_failures_total 312",
    "remote_erasures_to_publish 314",
    "remote_erasures_behind 84",
    "remote_servers 317",
    "remote_latency_seconds 318",
    "remote_bytes_per_second 319",
    "llamacpp:prompt_tokens_total 115",
    "llamacpp:prompt_tokens_cached_total 2111",
    "llamacpp:tokens_predicted_total 110",
    "llamacpp:tokens_predicted_seconds_total 0",
    "llamacpp:requests_processing 102",
    "llamacpp:requests_deferred 101",
};
enum { N_WANT = sizeof want / sizeof want[0] };

/* --- reading the text ------------------------------------------------------------------------- */

/* Returns the value of a sample as text, or NULL. `name` includes the labels. */
static const char *value_of(const char *text, const char *name)
{
    static char value[64];
    char begin[200];
    int n = snprintf(begin, sizeof begin, "\n%s%s ", strchr(name, ':') ? "" : "hcache_",
                     name);
    const char *at = strstr(text, begin);
    if (at == NULL)
        return NULL;
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at + n, "\n"), at + n);
    return value;
}

static void assert_sample(const char *text, const char *name, const char *value)
{
    const char *got = value_of(text, name);
    if (got == NULL || strcmp(got, value) != 0)
        fail_msg("%s is %s instead of %s", name, got != NULL ? got : "missing", value);
}

/* Returns the number of samples that do not belong to histograms. Checks that each sample comes
 * after the HELP and TYPE lines of its family. */
static int count_samples(const char *text)
{
    int n = 0;
    char family[100] = "", type[20] = "";
    for (const char *p = text; *p != 0; p = strchr(p, '\n') + 1) {
        if (strncmp(p, "# HELP ", 7) == 0) {
            sscanf(p + 7, "%99s", family);
            assert_true(p[7 + strlen(family)] == ' ' && p[8 + strlen(family)] != '\n');
            type[0] = 0;
        } else if (strncmp(p, "# TYPE ", 7) == 0) {
            char named[100];
            assert_int_equal(sscanf(p + 7, "%99s %19s", named, type), 2);
            assert_string_equal(named, family);
        } else {
            assert_true(type[0] != 0);
            assert_memory_equal(p, family, strlen(family));
            n += strcmp(type, "histogram") != 0;
        }
    }
    return n;
}

/* Returns the type of a family of metrics. */
static const char *type_of(const char *text, const char *family)
{
    static char type[20];
    char begin[200];
    int n = snprintf(begin, sizeof begin, "\n# TYPE %s%s ",
                     strchr(family, ':') ? "" : "hcache_", family);
    const char *at = strstr(text, begin);
    assert_non_null(at);
    snprintf(type, sizeof type, "%.*s", (int)strcspn(at + n, "\n"), at + n);
    return type;
}

/* --- what is written -------------------------------------------------------------------------- */

TEST(each_counter_has_its_line)
{
    struct textbuf b = {0};
    metrics_of_engine(&b, &stats, &saved, IDLE_S);
    for (int i = 0; i < N_WANT; i++) {
        char name[100];
        size_t n = (size_t)(strrchr(want[i], ' ') - want[i]);
        snprintf(name, sizeof name, "%.*s", (int)n, want[i]);
        assert_sample(b.p, name, want[i] + n + 1);
        name[strcspn(name, "{")] = 0;
        n = strlen(name);
        bool is_total = n > 6 && strcmp(name + n - 6, "_total") == 0;
        assert_string_equal(type_of(b.p, name), is_total ? "counter" : "gauge");
    }
    assert_int_equal(count_samples(b.p), N_WANT);
    textbuf_free(&b);
}

/* Each bucket counts all values up to its bound. */
TEST(histograms_add_up)
{
    static const char *const names[] = {"queue_seconds", "ttft_seconds", "tbt_seconds",
                                        "restore_seconds", "restore_predicted_seconds"};
    struct hcache_stats st = stats;
    struct hcache_hist *all[] = {&st.queue, &st.ttft, &st.tbt, &st.restore,
                                 &st.restore_predicted};
    struct textbuf b = {0};
    for (int i = 0; i < 5; i++) {
        all[i]->count[0] = 1;
        all[i]->count[3] = 10 + (uint64_t)i;
        all[i]->count[HCACHE_HIST_BUCKETS] = 100;
        all[i]->sum_s = 0.5 + i;
    }
    metrics_of_engine(&b, &st, &saved, IDLE_S);
    for (int i = 0; i < 5; i++) {
        char name[100], value[32];
        static const struct {
            const char *le;
            /* n3: count of the third bucket; n_last: count above all bounds */
            int n3, n_last;
        } rows[] = {{"0.0001", 0, 0},
                    {"0.0004", 0, 0},
                    {"0.0008", 1, 0},
                    {"838.861", 1, 0},
                    {"+Inf", 1, 1}};
        for (int k = 0; k < 5; k++) {
            snprintf(name, sizeof name, "%s_bucket{le=\"%s\"}", names[i], rows[k].le);
            snprintf(value, sizeof value, "%d",
                     1 + rows[k].n3 * (10 + i) + rows[k].n_last * 100);
            assert_sample(b.p, name, value);
        }
        snprintf(name, sizeof name, "%s_sum", names[i]);
        snprintf(value, sizeof value, "%.9g", 0.5 + i);
        assert_sample(b.p, name, value);
        snprintf(name, sizeof name, "%s_count", names[i]);
        snprintf(value, sizeof value, "%d", 111 + i);
        assert_sample(b.p, name, value);
        assert_string_equal(type_of(b.p, names[i]), "histogram");
    }
    assert_int_equal(count_samples(b.p), N_WANT);
    textbuf_free(&b);
}

/* If there are no copies, no remote or no store, their metrics are missing or 0. */
TEST(parts_that_do_not_exist)
{
    struct hcache_stats st = stats;
    struct hcache_cache_stats k = saved;
    struct textbuf b = {0};
    k.dram.cap_bytes = 0;
    k.remote.url[0] = 0;
    k.saving_fault = -28;
    st.restore_measured_s = 0;
    metrics_of_engine(&b, &st, &k, IDLE_S);
    assert_null(value_of(b.p, "dram_bytes"));
    assert_null(value_of(b.p, "remote_up"));
    assert_sample(b.p, "store_saves", "0");
    assert_sample(b.p, "restore_bubble_share", "0");
    b.n = 0;
    k = saved;
    k.tier = NULL;
    metrics_of_engine(&b, &st, &k, IDLE_S);
    assert_sample(b.p, "store_saves", "0");
    b.n = 0;
    k.tier = "dram"; /* the state is in memory, so all restored tokens come from memory */
    metrics_of_engine(&b, &st, &k, IDLE_S);
    assert_sample(b.p, "prompt_tokens_total{source=\"dram\"}", "2000");
    assert_sample(b.p, "prompt_tokens_total{source=\"disk\"}", "0");
    textbuf_free(&b);
}

TEST(the_advice_has_a_line_for_each_time)
{
    const struct hcache_advice a[HCACHE_ADVICES] = {{"hour", 3600, 1, 6},
                                                    {"day", 86400, 2, 7},
                                                    {"week", 604800, 3, 8},
                                                    {"30 days", 2592000, 4, 9},
                                                    {"all time", 0, 5, 10}};
    struct textbuf b = {0};
    textbuf_addf(&b, "\n");
    metrics_of_advice(&b, a);
    for (int i = 0; i < HCACHE_ADVICES; i++) {
        char name[64], value[8];
        snprintf(name, sizeof name, "used_within_contexts{time=\"%s\"}", a[i].within);
        snprintf(value, sizeof value, "%d", 1 + i);
        assert_sample(b.p, name, value);
        snprintf(name, sizeof name, "used_within_bytes{time=\"%s\"}", a[i].within);
        snprintf(value, sizeof value, "%d", 6 + i);
        assert_sample(b.p, name, value);
    }
    assert_int_equal(count_samples(b.p + 1), 2 * HCACHE_ADVICES);
    textbuf_free(&b);
}

TEST(a_tenant_sees_its_own_counters)
{
    static const struct tenant_counts t = {.n_http = 1,
                                           .n_open = 2,
                                           .n_ended = {3, 4, 5, 6},
                                           .device_tokens = 7,
                                           .restored_tokens = 8,
                                           .computed_tokens = 9,
                                           .generated_tokens = 10,
                                           .restored_bytes = 11,
                                           .n_restores = 12,
                                           .n_misses = 13};
    static const struct {
        const char *name, *value;
    } rows[] = {{"http_requests_total", "1"},
                {"requests_open", "2"},
                {"requests_total{end=\"done\"}", "3"},
                {"requests_total{end=\"cancelled\"}", "4"},
                {"requests_total{end=\"failed\"}", "5"},
                {"requests_total{end=\"timeout\"}", "6"},
                {"prompt_tokens_total{source=\"device\"}", "7"},
                {"prompt_tokens_total{source=\"restored\"}", "8"},
                {"prompt_tokens_total{source=\"computed\"}", "9"},
                {"generated_tokens_total", "10"},
                {"restore_bytes_total", "11"},
                {"restores_total", "12"},
                {"requests_missed_total", "13"}};
    enum { N = sizeof rows / sizeof rows[0] };
    struct textbuf b = {0};
    metrics_of_tenant(&b, &t);
    for (int i = 0; i < N; i++)
        assert_sample(b.p, rows[i].name, rows[i].value);
    assert_int_equal(count_samples(b.p), N);
    textbuf_free(&b);
}
