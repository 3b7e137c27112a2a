/* api_embed.c - embeddings and rankings: OpenAI's /v1/embeddings, Ollama's /api/embed and
 * /api/embeddings, llama-server's /embedding, and /v1/rerank as Jina, Cohere, vLLM and
 * llama-server have it.
 *
 * Every text is a prompt without an answer, from whose rows the embedding or the judgement is read
 * (hcache_request.reads). The texts of one request wait outside the engine's queue, of which they
 * take at most a half (generation.h). Special tokens that a text spells stay text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/shape.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "server/call.h"

enum { MOST_TEXTS = 2048 };

/* The form of an answer, by its route. TEI, of Hugging Face, calls documents `texts`. */
enum form { FORM_OPENAI, FORM_OLLAMA, FORM_OLLAMA_ONE, FORM_LLAMA, FORM_RANKING, FORM_TEI };

struct embed {
    enum form form;
    bool base64, truncates, returns_documents, is_raw; /* is_raw: not scaled to length 1 */
    int64_t n_dims;                                    /* of an embedding; 0: all */
    int64_t n_best;                                    /* of a ranking; 0: all */
    const struct json *documents; /* of the body, which lives as long as the call */
    int64_t begun_ns;
    struct prompt_ids *prompts; /* [n] */
    int n;
};

static void drop_prompts(struct embed *e)
{
    for (int i = 0; i < e->n; i++)
        hcache_free(e->prompts[i].ids);
    free(e->prompts);
    e->prompts = NULL;
    e->n = 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static bool is_ranking(const struct embed *e)
{
    return e->form >= FORM_RANKING;
}

static void put_usage(struct json *o, const struct generation *g)
{
    int64_t n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->choice[i].n_prompt;
    json_extend(o, "{usage: {prompt_tokens: %ld, total_tokens: %ld}}", n, n);
}

/* Cuts an embedding to its first n_dims numbers (0: does not cut it), and scales it to length 1
 * unless it is raw. Returns how many numbers it has. */
static int finish_embedding(const struct embed *e, struct hcache_result *r)
{
    int n = e->n_dims > 0 ? (int)MIN(e->n_dims, r->n_embedding) : r->n_embedding;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)r->embedding[i] * (double)r->embedding[i];
    double length = !e->is_raw && sum > 0 ? sqrt(sum) : 1;
    for (int i = 0; i < n; i++)
        r->embedding[i] = (float)((double)r->embedding[i] / length);
    return n;
}

/* Returns the little-endian bytes of n floats in base64. */
static struct json *as_base64(const float *x, int n)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *in = (const void *)x;
    size_t n_in = (size_t)n * sizeof *x;
    struct textbuf out = {0};
    for (size_t i = 0; i < n_in; i += 3) {
        size_t k = MIN(n_in - i, 3);
        uint32_t bits = (uint32_t)in[i] << 16 | (uint32_t)(k > 1 ? in[i + 1] : 0) << 8 |
                        (uint32_t)(k > 2 ? in[i + 2] : 0);
        char four[4];
        for (size_t d = 0; d < 4; d++)
            four[d] = d <= k ? digits[bits >> (18 - 6 * d) & 63] : '=';
        textbuf_add(&out, four, 4);
    }
    struct json *v = json_new_bytes(out.p, out.n);
    textbuf_free(&out);
    return v;
}

/* Returns a list of floats as text: a value for each would take ten times the memory. */
static struct json *as_list(const float *x, int n)
{
    struct textbuf out = {0};
    for (int i = 0; i < n; i++)
        textbuf_addf(&out, "%c%.9g", i == 0 ? '[' : ',', (double)x[i]);
    textbuf_add(&out, "]", 1);
    struct json *v = json_new_raw(out.p, out.n);
    textbuf_free(&out);
    return v;
}

static struct json *embedding_json(const struct embed *e, struct choice *ch)
{
    int n = finish_embedding(e, &ch->result);
    return e->base64 ? as_base64(ch->result.embedding, n)
                     : as_list(ch->result.embedding, n);
}

static struct json *answer_openai(struct generation *g, const struct embed *e)
{
    struct json *list = json_new_array();
    for (int i = 0; i < g->n; i++) {
        json_push(list, json_make("{object: 'embedding', index: %d, embedding: %p}", i,
                                  embedding_json(e, &g->choice[i])));
    }
    struct json *o = json_make("{object: 'list', data: %p, model: %s}", list,
                               g->client.model_name);
    put_usage(o, g);
    return o;
}

/* A list of embeddings for each text, since llama-server may give one for each token. */
static struct json *answer_llama(struct generation *g, const struct embed *e)
{
    struct json *list = json_new_array();
    for (int i = 0; i < g->n; i++) {
        json_push(list, json_make("{index: %d, embedding: [%p]}", i,
                                  embedding_json(e, &g->choice[i])));
    }
    return list;
}

static struct json *answer_ollama(struct generation *g, const struct embed *e)
{
    if (e->form == FORM_OLLAMA_ONE)
        return json_make("{embedding: %p}", embedding_json(e, &g->choice[0]));
    struct json *list = json_new_array();
    int64_t n = 0;
    for (int i = 0; i < g->n; i++) {
        json_push(list, embedding_json(e, &g->choice[i]));
        n += g->choice[i].n_prompt;
    }
    return json_make("{model: %s, embeddings: %p, total_duration: %ld, load_duration: 0, "
                     "prompt_eval_count: %ld}",
                     g->client.model_name, list, clock_now_ns() - e->begun_ns, n);
}

static int by_score(const void *a, const void *b)
{
    const struct choice *x = *(const struct choice *const *)a,
                        *y = *(const struct choice *const *)b;
    float sx = x->result.embedding[0], sy = y->result.embedding[0];
    return sx != sy ? (sx < sy) - (sx > sy) : x->index - y->index;
}

static const struct json *text_of(const struct json *document)
{
    return json_kind(document) == JSON_KIND_OBJECT ? json_member(document, "text")
                                                   : document;
}

static struct json *answer_ranking(struct generation *g, const struct embed *e)
{
    struct json *list = json_new_array();
    bool tei = e->form == FORM_TEI;
    struct choice **order = xcalloc((size_t)g->n, sizeof(struct choice *));
    for (int i = 0; i < g->n; i++)
        order[i] = &g->choice[i];
    qsort(order, (size_t)g->n, sizeof(struct choice *), by_score);
    for (int i = 0; i < g->n && (e->n_best == 0 || i < e->n_best); i++) {
        int at = order[i]->index;
        double score = (double)order[i]->result.embedding[0];
        struct json *one = json_make(
            tei ? "{index: %d, score: %g}" : "{index: %d, relevance_score: %g}", at, score);
        const struct json *text = text_of(json_at(e->documents, (size_t)at));
        if (e->returns_documents)
            json_extend(one, tei ? "{text: %p}" : "{document: {text: %p}}",
                        json_share(text));
        json_push(list, one);
    }
    free(order);
    if (tei)
        return list;
    struct json *o = json_make("{object: 'list', model: %s, results: %p}",
                               g->client.model_name, list);
    put_usage(o, g);
    return o;
}

static struct json *make_answer(struct generation *g)
{
    const struct embed *e = g->own;
    return is_ranking(e)            ? answer_ranking(g, e)
           : e->form == FORM_OPENAI ? answer_openai(g, e)
           : e->form == FORM_LLAMA  ? answer_llama(g, e)
                                    : answer_ollama(g, e);
}

/* Refuses what is no number: the weights hold a NaN or an infinity, or values overflowed. */
static int check_numbers(struct generation *g, struct fault *f)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->choice[i].result.n_embedding; k++)
            if (!isfinite(g->choice[i].result.embedding[k]))
                return fault_set(f, 500, NULL, NULL,
                                 "the model's numbers for text %d are not finite. The "
                                 "weights hold a NaN or an infinity, or values overflow",
                                 i);
    return 0;
}

static void drop(void *own)
{
    drop_prompts(own);
    free(own);
}

static const struct dialect embeddings = {
    .answer = make_answer, .keep = check_numbers, .drop = drop};

/* --- prompts ---------------------------------------------------------------------------------- */

/* Checks the token ids of a text. If there are too many and the request wants that, cuts the text
 * but keeps its last token, which may be one that the tokenizer adds. Returns 0, or -1 with *f. */
static int fit(const struct embed *e, const struct hcache_model_info *info,
               struct prompt_ids *p, const char *name, struct fault *f)
{
    if (p->n == 0)
        return fault_field(f, name, "has a text without tokens, number %d", e->n - 1);
    for (int i = 0; i < p->n; i++)
        if (p->ids[i] < 0 || p->ids[i] >= info->vocab_size)
            return fault_field(f, name, "has the token %d; tokens are 0 to %d", p->ids[i],
                               info->vocab_size - 1);
    if (p->n <= info->max_context)
        return 0;
    if (e->truncates) {
        p->ids[info->max_context - 1] = p->ids[p->n - 1];
        p->n = info->max_context;
        return 0;
    }
    fault_set(
        f, 400, "context_length_exceeded", name,
        "text %d is too large: this model's maximum context length is %d tokens, but it "
        "has %d",
        e->n - 1, info->max_context, p->n);
    return fault_too_long(f, p->n, info->max_context);
}

/* Encodes a text behind the tokens of *p. */
static int add_text(struct hcache *h, const char *text, size_t n, unsigned flags,
                    const char *name, struct prompt_ids *p, struct fault *f)
{
    struct hcache_err err = {0};
    int32_t *ids = NULL;
    int n_ids = 0;
    if (hcache_encode(h, text, n, flags, &ids, &n_ids, &err) != 0)
        return fault_refuse(f, err.code, name, "'%-s': %s", name, err.msg);
    p->ids = xrealloc(p->ids, (size_t)(p->n + n_ids + 1) * sizeof *ids);
    memcpy(p->ids + p->n, ids, (size_t)n_ids * sizeof *ids);
    p->n += n_ids;
    hcache_free(ids);
    return 0;
}

/* Joins the texts of {"content": [{"type": "text", "text": ...}, ...]}, a form of llama-server's. */
static int join_parts(const struct json *parts, const char *name, struct textbuf *out,
                      struct fault *f)
{
    for (size_t i = 0; i < json_count(parts); i++) {
        const struct json *part = json_at(parts, i);
        size_t n = 0;
        const char *text = json_string_of(json_member(part, "text"), &n);
        if (!json_string_is(json_member(part, "type"), "text") || text == NULL)
            return fault_field(f, name, "has a part that is no text, number %zu", i);
        textbuf_add(out, text, n);
    }
    return 0;
}

/* Reads one input: a text, a list of token ids, or an object with the parts of a text. */
static int add_input(struct hcache *h, struct embed *e, const struct json *v,
                     const char *name, const struct hcache_model_info *info,
                     struct fault *f)
{
    struct prompt_ids *p = &e->prompts[e->n++];
    size_t n = 0;
    const struct json *parts = json_member(v, "content");
    struct textbuf joined = {0};
    const char *text = json_string_of(v, &n);
    int rc = 0;
    if (json_kind(parts) == JSON_KIND_ARRAY) {
        rc = join_parts(parts, name, &joined, f);
        text = joined.p;
        n = joined.n;
    }
    if (rc == 0 && text != NULL)
        rc = e->truncates || (rc = prompt_fits(h, false, text, n, name, f)) == 0
                 ? add_text(h, text, n, HCACHE_ADD_SPECIAL, name, p, f)
                 : rc;
    else if (rc == 0 && json_kind(v) == JSON_KIND_ARRAY)
        rc = request_ids(v, name, &p->ids, &p->n, f);
    else if (rc == 0)
        rc = fault_field(f, name, "must hold texts or lists of token ids, not %-s",
                         json_kind_name(v));
    textbuf_free(&joined);
    return rc == 0 ? fit(e, info, p, name, f) : rc;
}

/* Reads the inputs: one text, one list of ids, or a list of either. */
static int read_inputs(struct call *c, struct embed *e, const struct json *v,
                       const char *name, struct fault *f)
{
    struct hcache_model_info info;
    bool is_list = json_kind(v) == JSON_KIND_ARRAY && json_count(v) > 0 &&
                   json_kind(json_at(v, 0)) != JSON_KIND_INT;
    size_t n = is_list ? json_count(v) : 1;
    int rc = 0;
    if (json_kind(v) == JSON_KIND_NULL ||
        (json_kind(v) == JSON_KIND_ARRAY && json_count(v) == 0))
        return fault_field(f, name,
                           "must be a text, a list of token ids, or a list of "
                           "either");
    if (n > MOST_TEXTS)
        return fault_field(f, name, "has %zu texts; at most %d are allowed", n,
                           (int)MOST_TEXTS);
    hcache_model_info(call_model(c), &info);
    if (e->n_dims > info.n_embedding)
        return fault_field(f, "dimensions", "is %lld; this model's embeddings have %d",
                           (long long)e->n_dims, info.n_embedding);
    e->prompts = xcalloc(n, sizeof *e->prompts);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_input(call_model(c), e, is_list ? json_at(v, i) : v, name, &info, f);
    return rc;
}

/* --- requests --------------------------------------------------------------------------------- */

/* Answers with the fault if rc is not 0; else starts the work. e is from malloc, and given away. */
static void start(struct call *c, struct embed *e, int rc, struct fault *f)
{
    if (rc != 0) {
        drop(e);
        call_fault(c, f);
        return;
    }
    struct gen_params p = {.kind = REQUEST_COMPLETION,
                           .n = 1,
                           .thinking = -1,
                           .generation_prompt = -1,
                           .continues = -1,
                           .cache_ttl = -1,
                           .reads = is_ranking(e) ? HCACHE_READS_JUDGEMENT
                                                  : HCACHE_READS_EMBEDDING};
    struct prompt_ids *prompts = e->prompts;
    int n = e->n;
    e->n = 0; /* the generation takes the ids, and e keeps the array until it is dropped */
    call_generate(c, &embeddings, e, &p, prompts, n, NULL, "");
}

static int read_int(const struct json *body, const char *name, int64_t *out,
                    struct fault *f)
{
    struct err err = {0};
    return json_opt_int(body, name, 1, INT32_MAX, out, &err) == 0
               ? 0
               : fault_set(f, 400, NULL, name, "%s", err.msg);
}

static int read_bool(const struct json *body, const char *name, bool *out, struct fault *f)
{
    struct err err = {0};
    return json_opt_bool(body, name, out, &err) == 0
               ? 0
               : fault_set(f, 400, NULL, name, "%s", err.msg);
}

void api_embeddings(struct call *c)
{
    static const char *const names[] = {"model",      "input", "encoding_format",
                                        "dimensions", "user",  NULL};
    const struct json *body = call_body(c, 0);
    struct fault f;
    if (body == NULL)
        return;
    struct embed *e = xcalloc(1, sizeof *e);
    const struct json *format = json_member(body, "encoding_format");
    int rc = call_check_members(c, body, names, &f);
    e->base64 = json_string_is(format, "base64");
    if (rc == 0 && json_kind(format) != JSON_KIND_NULL && !e->base64 &&
        !json_string_is(format, "float"))
        rc = fault_field(&f, "encoding_format", "must be float or base64");
    if (rc == 0)
        rc = read_int(body, "dimensions", &e->n_dims, &f);
    if (rc == 0)
        rc = read_inputs(c, e, json_member(body, "input"), "input", &f);
    start(c, e, rc, &f);
}

static void embed_ollama(struct call *c, enum form form, const char *name)
{
    static const char *const names[] = {"model",      "input",   "prompt",     "truncate",
                                        "keep_alive", "options", "dimensions", NULL};
    const struct json *body = call_body(c, 0);
    struct fault f;
    if (body == NULL)
        return;
    struct embed *e = xcalloc(1, sizeof *e);
    *e = (struct embed){.form = form,
                        .truncates = true,
                        .is_raw = form == FORM_OLLAMA_ONE,
                        .begun_ns = clock_now_ns()};
    int rc = call_check_members(c, body, names, &f);
    if (rc == 0)
        rc = read_bool(body, "truncate", &e->truncates, &f);
    if (rc == 0)
        rc = read_int(body, "dimensions", &e->n_dims, &f);
    if (rc == 0)
        rc = read_inputs(c, e, json_member(body, name), name, &f);
    if (rc == 0 && form == FORM_OLLAMA_ONE && e->n != 1)
        rc = fault_field(&f, name, "must be one text");
    if (rc == 0)
        (void)api_ollama_unloads(c, body);
    start(c, e, rc, &f);
}

void api_ollama_embed(struct call *c)
{
    embed_ollama(c, FORM_OLLAMA, "input");
}

void api_ollama_embeddings(struct call *c)
{
    embed_ollama(c, FORM_OLLAMA_ONE, "prompt");
}

void api_llama_embedding(struct call *c)
{
    static const char *const names[] = {"model", "content", "input", "embd_normalize",
                                        NULL};
    const struct json *body = call_body(c, 0);
    struct fault f;
    int64_t how = 2; /* the length that a text's numbers have together: 2 is Euclid's */
    if (body == NULL)
        return;
    struct embed *e = xcalloc(1, sizeof *e);
    const char *from = json_member(body, "content") != NULL ? "content" : "input";
    const struct json *given = json_member(body, "embd_normalize");
    int rc = call_check_members(c, body, names, &f);
    if (rc == 0 && given != NULL && (!json_int_of(given, &how) || (how != 2 && how != -1)))
        rc = fault_field(&f, "embd_normalize", "must be 2 (length 1) or -1 (as they are)");
    e->form = FORM_LLAMA;
    e->is_raw = how == -1;
    if (rc == 0)
        rc = read_inputs(c, e, json_member(body, from), from, &f);
    start(c, e, rc, &f);
}

/* --- rankings --------------------------------------------------------------------------------- */

/* The prompt of Qwen3-Reranker, from its model card: fixed text around an instruction, the query
 * and the document. The fixed parts are encoded by themselves, as there. */
#define BEFORE                                                                             \
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the "  \
    "Query and the Instruct provided. Note that the answer can only be \"yes\" or "        \
    "\"no\".<|im_end|>\n<|im_start|>user\n"
#define BEHIND "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define INSTRUCTION                                                                        \
    "Given a web search query, retrieve relevant passages that answer the query"

static int add_document(struct hcache *h, struct embed *e, const struct textbuf *asked,
                        const char *document, size_t n,
                        const struct hcache_model_info *info, struct fault *f)
{
    struct prompt_ids *p = &e->prompts[e->n++];
    struct textbuf text = {0};
    textbuf_add(&text, asked->p, asked->n);
    textbuf_add(&text, document, n);
    int rc = prompt_fits(h, false, text.p, text.n, "documents", f);
    if (rc == 0)
        rc = add_text(h, BEFORE, strlen(BEFORE), HCACHE_PARSE_SPECIAL, "query", p, f);
    if (rc == 0)
        rc = add_text(h, text.p, text.n, 0, "documents", p, f);
    if (rc == 0)
        rc = add_text(h, BEHIND, strlen(BEHIND), HCACHE_PARSE_SPECIAL, "query", p, f);
    textbuf_free(&text);
    return rc == 0 ? fit(e, info, p, "documents", f) : rc;
}

static int read_documents(struct call *c, struct embed *e, const struct json *body,
                          struct fault *f)
{
    size_t n_query = 0, n_instruction = strlen(INSTRUCTION), n;
    const char *query = json_string_of(json_member(body, "query"), &n_query);
    const char *instruction = INSTRUCTION;
    const struct json *own = json_member(body, "instruction");
    struct hcache_model_info info;
    struct textbuf asked = {0};
    int rc = 0;
    e->documents = json_member(body, e->form == FORM_TEI ? "texts" : "documents");
    n = json_count(e->documents);
    if (query == NULL)
        return fault_field(f, "query", "must be a text");
    if (json_kind(own) != JSON_KIND_NULL &&
        (instruction = json_string_of(own, &n_instruction)) == NULL)
        return fault_field(f, "instruction", "must be a text");
    if (json_kind(e->documents) != JSON_KIND_ARRAY || n == 0 || n > MOST_TEXTS)
        return fault_field(f, "documents", "must be a list of 1 to %d texts",
                           (int)MOST_TEXTS);
    hcache_model_info(call_model(c), &info);
    textbuf_addf(&asked, "<Instruct>: ");
    textbuf_add(&asked, instruction, n_instruction);
    textbuf_addf(&asked, "\n<Query>: ");
    textbuf_add(&asked, query, n_query);
    textbuf_addf(&asked, "\n<Document>: ");
    e->prompts = xcalloc(n, sizeof *e->prompts);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        size_t n_text = 0;
        const char *text = json_string_of(text_of(json_at(e->documents, i)), &n_text);
        rc = text != NULL
                 ? add_document(call_model(c), e, &asked, text, n_text, &info, f)
                 : fault_field(f, "documents", "must hold texts, or objects with a text");
    }
    textbuf_free(&asked);
    return rc;
}

void api_rerank(struct call *c)
{
    static const char *const names[] = {
        "model",       "query",       "documents", "texts", "top_n", "return_documents",
        "return_text", "instruction", "user",      NULL};
    const struct json *body = call_body(c, 0);
    struct fault f;
    if (body == NULL)
        return;
    struct embed *e = xcalloc(1, sizeof *e);
    e->form = json_member(body, "texts") != NULL ? FORM_TEI : FORM_RANKING;
    int rc = call_check_members(c, body, names, &f);
    if (rc == 0)
        rc = read_int(body, "top_n", &e->n_best, &f);
    if (rc == 0)
        rc = read_bool(body, e->form == FORM_TEI ? "return_text" : "return_documents",
                       &e->returns_documents, &f);
    if (rc == 0)
        rc = read_documents(c, e, body, &f);
    start(c, e, rc, &f);
}
