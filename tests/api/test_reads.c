/* test_reads.c - what a request reads from its prompt: embeddings and log-probabilities have the
 * same bits however the prompt was computed, cut, restored or preempted, and are those that the
 * model's logits say. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit.h"
#include "hcache.h"
#include "tests/base/tempdir.h"

enum { N = 150, TOP = 3 };

static struct hcache *open_or_fail(const struct hcache_opts *o)
{
    struct hcache *h;
    struct hcache_err err = {0};
    if (hcache_open(o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    return h;
}

static struct hcache_result run(struct hcache *h, const struct hcache_request *r)
{
    struct hcache_result out;
    struct hcache_err err = {0};
    if (hcache_generate(h, r, &out, &err) != 0)
        fail_msg("%s", err.msg);
    return out;
}

static void make_prompt(int32_t *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = 3 + i * 37 % 450;
}

/* --- log-probabilities ------------------------------------------------------------------------ */

static struct hcache_logprob decoded[N][1 + TOP];
static int n_decoded;

/* Reads the log-probabilities of an answer. Returns the answer, of N tokens. */
static void decode(struct hcache *h, const int32_t *prompt, int n_prompt, int32_t *answer)
{
    struct hcache_ticket *t;
    struct hcache_delta d;
    struct hcache_result r;
    struct hcache_err err = {0};
    const struct hcache_request ask = {.prompt = prompt,
                                       .n_prompt = n_prompt,
                                       .max_tokens = N,
                                       .ignore_eos = true,
                                       .temperature = 1,
                                       .seed = 7,
                                       .logprobs = true,
                                       .n_top = TOP};
    assert_int_equal(hcache_serve_start(h, 0, &err), 0);
    assert_int_equal(hcache_submit(h, &ask, &t, &err), 0);
    hcache_ticket_wait(t);
    hcache_ticket_read(t, &d);
    n_decoded = d.n_ids;
    assert_int_equal(n_decoded, N);
    memcpy(decoded, d.logprobs, sizeof decoded);
    assert_int_equal(hcache_ticket_result(t, &r, &err), 0);
    memcpy(answer, r.token_ids, N * sizeof *answer);
    hcache_result_free(&r);
    hcache_ticket_free(t);
    hcache_serve_stop(h);
}

/* Whoever computes a token one by one must see the numbers of one pass over all. */
TEST(prompts_have_the_logprobs_of_answers)
{
    int32_t ids[10 + N];
    struct hcache_opts o = {.model = "synth:tiny-gqa", .dtype = "f32", .threads = 2};
    struct hcache *h = open_or_fail(&o);
    make_prompt(ids, 10);
    decode(h, ids, 10, ids + 10);
    struct hcache_request ask = {
        .prompt = ids, .n_prompt = 10 + N, .n_top = TOP, .reads = HCACHE_READS_LOGPROBS};
    for (int again = 0; again < 2;
         again++) { /* the second one finds its prompt in the KV cache */
        struct hcache_result r = run(h, &ask);
        assert_int_equal(r.cached_tokens, 0);
        for (int i = 0; i < N; i++)
            assert_memory_equal(r.prompt_logprobs + (size_t)(9 + i) * (1 + TOP), decoded[i],
                                sizeof decoded[i]);
        assert_int_equal(r.n_tokens, 0);
        hcache_result_free(&r);
    }
    ask.max_tokens = 4; /* an answer may follow */
    struct hcache_result r = run(h, &ask);
    assert_int_equal(r.n_tokens, 4);
    assert_memory_equal(r.prompt_logprobs + 9 * (1 + TOP), decoded, sizeof decoded);
    hcache_result_free(&r);
    hcache_close(h);
}

/* Two answers that outgrow the KV cache: one loses its place, and computes its prompt again. */
TEST(preempted_prompts_are_read_once)
{
    enum { PROMPT = 100, ANSWER = 80 };
    int32_t ids[2][PROMPT];
    struct hcache_opts o = {.model = "synth:tiny-gqa",
                            .dtype = "f32",
                            .threads = 1,
                            .max_sequences = 2,
                            .kv_tokens = 256};
    struct hcache_opts roomy = o;
    struct hcache_ticket *t[2];
    struct hcache_err err = {0};
    int n_preempted = 0;
    roomy.kv_tokens = 2048;
    struct hcache *h = open_or_fail(&o), *alone = open_or_fail(&roomy);
    struct hcache_request ask[2];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < PROMPT; i++)
            ids[k][i] = 3 + (i * 37 + k * 101) % 450;
        ask[k] = (struct hcache_request){.prompt = ids[k],
                                         .n_prompt = PROMPT,
                                         .max_tokens = ANSWER,
                                         .ignore_eos = true,
                                         .n_top = TOP,
                                         .reads = HCACHE_READS_LOGPROBS};
        assert_int_equal(hcache_submit(h, &ask[k], &t[k], &err), 0);
    }
    assert_int_equal(hcache_serve_start(h, 0, &err), 0);
    for (int k = 0; k < 2; k++) {
        struct hcache_result got, want = run(alone, &ask[k]);
        hcache_ticket_wait(t[k]);
        assert_int_equal(hcache_ticket_result(t[k], &got, &err), 0);
        n_preempted += got.n_preempted;
        assert_int_equal(got.n_tokens, ANSWER);
        assert_memory_equal(got.token_ids, want.token_ids, ANSWER * sizeof(int32_t));
        assert_memory_equal(got.prompt_logprobs, want.prompt_logprobs,
                            (PROMPT - 1) * (1 + TOP) * sizeof *want.prompt_logprobs);
        hcache_result_free(&got);
        hcache_result_free(&want);
        hcache_ticket_free(t[k]);
    }
    assert_true(n_preempted > 0);
    hcache_close(h);
    hcache_close(alone);
}

/* --- embeddings ------------------------------------------------------------------------------- */

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Makes a folder of the demo model with another file. */
static void make_model(const char *dir, const char *name, const char *text)
{
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json"};
    char here[300], from[400], to[512];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(to, sizeof to, "%s/1_Pooling", dir);
    assert_int_equal(mkdir(to, 0700), 0);
    for (int i = 0; i < 4; i++) {
        snprintf(from, sizeof from, "%s/models/demo/%s", here, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    if (name != NULL)
        write_text(dir, name, text);
}

static struct hcache *open_pooling(const char *parent, const char *mode, const char *store,
                                   char pooling[16])
{
    char dir[300], text[200];
    const char *dirs[] = {store};
    struct hcache_model_info info;
    snprintf(dir, sizeof dir, "%s/%s", parent, mode);
    snprintf(text, sizeof text, "{\"pooling_mode_%s\": true, \"include_prompt\": true}",
             mode);
    if (access(dir, F_OK) != 0)
        make_model(dir, "1_Pooling/config.json", text);
    struct hcache_opts o = {.model = dir,
                            .threads = 1,
                            .max_context = 512,
                            .store = store != NULL ? dirs : NULL,
                            .n_store = store != NULL};
    struct hcache *h = open_or_fail(&o);
    hcache_model_info(h, &info);
    snprintf(pooling, 16, "%s", info.pooling);
    return h;
}

static struct hcache_result embed(struct hcache *h, const int32_t *ids, int n,
                                  const char *plan)
{
    struct hcache_result r = run(h,
                                 &(struct hcache_request){.prompt = ids,
                                                          .n_prompt = n,
                                                          .plan = plan,
                                                          .save = "none",
                                                          .reads = HCACHE_READS_EMBEDDING});
    assert_int_equal(r.n_embedding, 256);
    assert_int_equal(r.n_tokens, 0);
    return r;
}

TEST(poolings_agree)
{
    enum { N_IDS = 9 };
    char dir[256], pooling[16];
    int32_t ids[N_IDS];
    double mean[256] = {0};
    make_prompt(ids, N_IDS);
    tempdir_make(dir, "reads");
    struct hcache *last = open_pooling(dir, "lasttoken", NULL, pooling);
    assert_string_equal(pooling, "last");
    struct hcache *all = open_pooling(dir, "mean_tokens", NULL, pooling);
    assert_string_equal(pooling, "mean");
    struct hcache *first = open_pooling(dir, "cls_token", NULL, pooling);
    assert_string_equal(pooling, "cls");
    for (int n = 1; n <= N_IDS; n++) {
        struct hcache_result r = embed(last, ids, n, NULL);
        for (int i = 0; i < 256; i++)
            mean[i] += (double)r.embedding[i];
        if (n == 1) {
            struct hcache_result c = embed(first, ids, N_IDS, NULL);
            assert_memory_equal(c.embedding, r.embedding, 256 * sizeof(float));
            hcache_result_free(&c);
        }
        hcache_result_free(&r);
    }
    struct hcache_result r = embed(all, ids, N_IDS, NULL);
    for (int i = 0; i < 256; i++)
        assert_true(r.embedding[i] == (float)(mean[i] / N_IDS));
    hcache_result_free(&r);
    hcache_close(last);
    hcache_close(all);
    hcache_close(first);
    tempdir_remove(dir);
}

TEST(known_blocks_give_the_same_embedding)
{
    char dir[256], pooling[16];
    int32_t ids[300];
    tempdir_make(dir, "reads");
    make_prompt(ids, 300);
    struct hcache *h = open_pooling(dir, "lasttoken", NULL, pooling);
    struct hcache_result whole = embed(h, ids, 300, NULL), again;
    again = embed(h, ids, 300, NULL); /* from the KV cache, up to the last token */
    assert_int_equal(again.cached_tokens, 299);
    assert_memory_equal(whole.embedding, again.embedding, 256 * sizeof(float));
    hcache_result_free(&again);
    hcache_result_free(&whole);
    hcache_close(h);
    tempdir_remove(dir);
}

TEST(restored_state_gives_the_same_embedding)
{
    char dir[256], store[300], pooling[16];
    int32_t ids[300];
    tempdir_make(dir, "reads");
    snprintf(store, sizeof store, "%s/store", dir);
    make_prompt(ids, 300);
    struct hcache *h = open_pooling(dir, "lasttoken", store, pooling);
    struct hcache_result want = embed(h, ids, 300, NULL);
    struct hcache_result r = run(
        h, &(struct hcache_request){.prompt = ids, .n_prompt = 300, .plan = "kv"});
    hcache_result_free(&r);
    hcache_close(h);
    h = open_pooling(dir, "lasttoken", store, pooling);
    r = embed(h, ids, 300, "kv");
    assert_true(r.cached_tokens >= 256);
    assert_memory_equal(r.embedding, want.embedding, 256 * sizeof(float));
    hcache_result_free(&r);
    hcache_result_free(&want);
    hcache_close(h);
    tempdir_remove(dir);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void refuse(struct hcache *h, enum hcache_reads reads, double ratio,
                   const char *word)
{
    struct hcache_result r;
    struct hcache_err err = {0};
    int32_t ids[] = {5, 6};
    const struct hcache_request ask = {
        .prompt = ids, .n_prompt = 2, .reads = reads, .truncation = {.ratio = ratio}};
    if (hcache_generate(h, &ask, &r, &err) == 0 || strstr(err.msg, word) == NULL)
        fail_msg("expected '%s', got '%s'", word, err.msg);
}

TEST(models_say_what_they_cannot)
{
    char dir[256], sub[300], pooling[16];
    static const char dense[] = "[{\"idx\": 0, \"path\": \"\", \"type\": "
                                "\"sentence_transformers.models.Transformer\"},"
                                " {\"idx\": 1, \"path\": \"1_Pooling\", \"type\": "
                                "\"sentence_transformers.models.Pooling\"},"
                                " {\"idx\": 2, \"path\": \"2_Dense\", \"type\": "
                                "\"sentence_transformers.models.Dense\"}]";
    tempdir_make(dir, "reads");
    struct hcache_opts o = {.model = "models/demo", .threads = 1, .truncates = true};
    struct hcache *h = open_or_fail(&o);
    refuse(h, HCACHE_READS_EMBEDDING, 0, "name no pooling");
    refuse(h, HCACHE_READS_JUDGEMENT, 0, "does not rank");
    refuse(h, HCACHE_READS_LOGPROBS, 0.5, "truncated");
    hcache_close(h);
    snprintf(sub, sizeof sub, "%s/dense", dir);
    make_model(sub, "modules.json", dense);
    write_text(sub, "1_Pooling/config.json", "{\"pooling_mode_lasttoken\": true}");
    o = (struct hcache_opts){.model = sub, .threads = 1};
    h = open_or_fail(&o);
    refuse(h, HCACHE_READS_EMBEDDING, 0, "a layer behind it");
    hcache_close(h);
    h = open_pooling(dir, "max_tokens", NULL, pooling);
    assert_string_equal(pooling, "other");
    hcache_close(h);
    h = open_pooling(dir, "lasttoken", NULL, pooling);
    refuse(h, HCACHE_READS_JUDGEMENT, 0, "made for embeddings");
    hcache_close(h);
    tempdir_remove(dir);
}
