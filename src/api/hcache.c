/* hcache.c - the public interface: text and requests in front of the stack.
 *
 * It does not know how the parts below are put together (stack.c). */
#include "hcache.h"
#include "text/answer.h"
#include "text/chat_drop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "model/pass.h"
#include "store/remote/remote.h"
#include "api/forms.h"
#include "api/hcache_impl.h"
#include "restore/save_kinds.h"
#include "restore/save_policy.h"
#include "tensor/group.h"

/* --- opening ---------------------------------------------------------------------------------- */

static int no_tokenizer(const char *source, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "%s has no tokenizer: give token ids instead of text (--token-ids)",
                   source);
}

static int open_tokenizer(struct hcache *h, const struct model *m, struct err *err)
{
    if (strncmp(m->source, "synth:", 6) == 0)
        return 0;
    int rc = tokenizer_open(&h->tokenizer, m->source, err);
    if (rc == -ENOENT)
        return h->opening->chat_template == NULL
                   ? 0 /* a model without a tokenizer takes only token ids */
                   : no_tokenizer(m->source, err);
    if (rc == 0 && h->opening->chat_template != NULL)
        tokenizer_set_template(h->tokenizer, h->opening->chat_template);
    int vocab = m->cfg.vocab_size;
    if (rc == 0 && tokenizer_n_listed(h->tokenizer) > vocab)
        rc = err_set(
            err, ERR_MISMATCH,
            "%s: the tokenizer has ids up to %d, but the model's vocabulary has %d entries",
            m->source, tokenizer_n_listed(h->tokenizer) - 1, vocab);
    return rc;
}

static int check_plan(const struct plan_request *q, const char *text, struct err *err);

/* Checks the options of a request that can be checked without the weights. */
static int check_ahead(const struct hcache_request *r, const struct model *m,
                       struct err *err)
{
    struct plan_request mode = {.n_layers = config_n_keeping(&m->cfg)};
    struct save_policy unused;
    int rc = r->plan != NULL ? plan_mode_parse(r->plan, &mode, err) : 0;
    if (rc == 0 && r->plan != NULL)
        rc = check_plan(&mode, r->plan, err);
    if (rc == 0 && r->save != NULL && strcmp(r->save, "auto") != 0)
        rc = save_policy_make(&unused, r->save, m, NULL, m->max_ctx, err);
    return rc;
}

/* Adds the tokens that end an answer by the tokenizer to those that the model's files name. */
static int add_ends(struct hcache *h, struct err *err)
{
    struct model_config *c = &h->k.model->cfg;
    int32_t ids[TOKENIZER_MAX_ENDS];
    int n = h->tokenizer != NULL ? tokenizer_ends(h->tokenizer, ids) : 0, rc = 0;
    for (int i = 0; rc == 0 && i < n; i++)
        if (ids[i] < c->vocab_size)
            rc = config_add_eos(c, ids[i], err);
    return rc;
}

/* Checks the pooling that the caller chooses. */
static int check_pooling(const char *name, const struct model *m, struct err *err)
{
    enum pooling p = name != NULL ? pooling_of_name(name) : POOLING_MEAN;
    if (p != POOLING_MEAN && p != POOLING_CLS && p != POOLING_LAST)
        return err_set(err, ERR_USAGE, "pooling: '%s' is none of mean, cls, last", name);
    if (name != NULL && m->cfg.pooling == POOLING_OTHER)
        return err_set(
            err, ERR_UNSUPPORTED,
            "pooling %s: %s has a pooling of its own, or a layer behind it, that "
            "is not supported; its embeddings would be wrong without",
            name, m->source);
    return 0;
}

/* stack_opts.check. Also opens the tokenizer. */
static int before_weights(void *arg, const struct model *m, struct err *err)
{
    struct hcache *h = arg;
    const struct hcache_opts *o = h->opening;
    int rc = open_tokenizer(h, m, err);
    if (rc == 0 && o->needs_tokenizer && h->tokenizer == NULL)
        rc = no_tokenizer(m->source, err);
    if (rc == 0)
        rc = check_pooling(o->pooling, m, err);
    return rc == 0 && o->ahead != NULL ? check_ahead(o->ahead, m, err) : rc;
}

static void say_memory(const struct hcache_opts *o, const struct stack *k)
{
    char text[400];
    stack_describe(k, text, sizeof text);
    stack_note(o, text);
}

/* Prints the parts of the start that took time. */
static void say_start(const struct hcache_opts *o, const struct hcache *h)
{
    char text[800];
    double all = 0;
    int at = snprintf(text, sizeof text, "start, ms:");
    for (int i = 0; i < h->spans.n && at < (int)sizeof text; i++) {
        double ms = (double)h->spans.of[i].ns * 1e-6;
        all += ms;
        if (ms >= 0.05)
            at += snprintf(text + at, sizeof text - (size_t)at, " %s %.1f,",
                           h->spans.of[i].name, ms);
    }
    if (at < (int)sizeof text)
        snprintf(text + at, sizeof text - (size_t)at, " together %.1f", all);
    stack_note(o, text);
}

/* Warns if the context is longer than the model's own: no room is made for the excess. */
static void warn_context(const struct hcache_opts *o, const struct stack *k)
{
    char text[160];
    if (o->max_context <= k->model->max_ctx)
        return;
    snprintf(text, sizeof text,
             "a context of %d tokens was asked for; the model's own maximum of %d is used",
             o->max_context, k->model->max_ctx);
    stack_warn(o, text);
}

/* With a lower throttle, opening would seem to hang: it reads 40 KB even from an empty store. */
enum { MIN_THROTTLE = 65536, DEFAULT_HISTORY_CONTEXTS = 16 };

_Static_assert((int)HCACHE_MAX_DEVICES == (int)MAX_RANKS &&
                   (int)MAX_STAGES == (int)MAX_RANKS &&
                   (int)HCACHE_MAX_BATCH_ROWS == (int)STACK_MAX_BATCH_ROWS,
               "what the public header promises");

static int check_opts(const struct hcache_opts *o, struct err *err)
{
    if (o->model == NULL)
        return err_set(err, ERR_USAGE, "no model is given");
    const struct {
        const char *name;
        int value, most;
    } counts[] = {{"threads", o->threads, 1024},
                  {"tensor_parallel", o->tensor_parallel, MAX_RANKS},
                  {"pipeline_parallel", o->pipeline_parallel, MAX_STAGES},
                  {"max_sequences", o->max_sequences, STACK_MAX_SEQUENCES},
                  {"max_context", o->max_context, INT32_MAX}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value < 0 || counts[i].value > counts[i].most)
            return err_set(err, ERR_USAGE, "%s is %d; it must be 0 to %d", counts[i].name,
                           counts[i].value, counts[i].most);
    if (o->kv_tokens > HCACHE_MAX_KV_TOKENS)
        return err_set(err, ERR_USAGE, "kv_tokens is %llu; it must be at most %d",
                       (unsigned long long)o->kv_tokens, HCACHE_MAX_KV_TOKENS);
    if (o->n_store < 0 || (o->n_store > 0 && o->store == NULL) ||
        (o->n_store > 0 && o->store_in_memory))
        return err_set(err, ERR_USAGE, "a store is in directories or in memory, not both");
    if (o->throttle_bytes_per_s > 0 && o->store_in_memory)
        return err_set(err, ERR_USAGE,
                       "throttle: a store in memory cannot be slowed; give it a folder");
    if (o->throttle_bytes_per_s > 0 && o->throttle_bytes_per_s < MIN_THROTTLE)
        return err_set(
            err, ERR_USAGE,
            "throttle is %llu bytes a second; it must be 0 (none) or at least %d: "
            "opening a store and looking chunks up read pages of its index",
            (unsigned long long)o->throttle_bytes_per_s, MIN_THROTTLE);
    return 0;
}

/* Returns the longest context of a request: the model's, or the KV cache's size if smaller. */
static int context_of(const struct hcache *h)
{
    int64_t pool = (int64_t)kv_pool_n_blocks(engine_pool(h->k.engine)) * KV_BLOCK_TOKENS;
    return (int)MIN(pool, h->k.model->max_ctx);
}

/* Memory that running requests and the writer of the store may still need when memory has run
 * out: a few KiB for each of some dozens, and room for the index's transaction. */
enum { RESERVE_BYTES = 8 << 20 };

void hcache_on_end(void (*hook)(void *arg, const char *why), void *arg)
{
    check_on_end(hook, arg);
}

void hcache_shared_init(struct hcache_shared *s)
{
    *s = (struct hcache_shared){.open = NULL};
    pthread_mutex_init(&s->lock, NULL);
}

void hcache_shared_deinit(struct hcache_shared *s)
{
    stack_shared_close(&s->k);
    pthread_mutex_destroy(&s->lock);
}

/* Reports an erasure of another server to all models that share. */
static void forget_erased_soon(void *arg)
{
    struct hcache_shared *s = arg;
    pthread_mutex_lock(&s->lock);
    for (struct hcache *h = s->open; h != NULL; h = h->next)
        service_forget_erased_soon(h->service);
    pthread_mutex_unlock(&s->lock);
}

/* Lists the model among those that share, or removes it. */
static void share_list(struct hcache *h, bool is_open)
{
    struct hcache_shared *s = h->shared;
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    if (is_open) {
        h->next = s->open;
        s->open = h;
    }
    for (struct hcache **at = &s->open; !is_open && *at != NULL; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
}

int hcache_open(const struct hcache_opts *o, struct hcache **out, struct hcache_err *err)
{
    return hcache_open_shared(o, NULL, out, err);
}

int hcache_open_shared(const struct hcache_opts *o, struct hcache_shared *shared,
                       struct hcache **out, struct hcache_err *err)
{
    *out = NULL;
    int rc = check_opts(o, hcache_inner(err));
    if (rc == 0)
        rc = mem_reserve(RESERVE_BYTES, hcache_inner(err));
    if (rc != 0)
        return rc;
    struct hcache *h = xcalloc(1, sizeof *h);
    int64_t t0 = clock_now_ns();
    h->opening = o;
    h->shared = shared;
    h->n_start_passes = -model_passes();
    spans_begin(&h->spans);
    struct stack_opts so = {
        .user = *o, .check = before_weights, .check_arg = h, .spans = &h->spans};
    so.shared = shared != NULL ? &shared->k : NULL;
    if (o->throttle_bytes_per_s > 0 && o->n_store == 0) {
        stack_warn(
            o, "throttle limits the reads of a store; without a store it has no effect");
        so.user.throttle_bytes_per_s = 0;
    }
    rc = chat_drop_open(&h->drop, o->drop_system, hcache_inner(err));
    if (rc != 0)
        err_wrap(hcache_inner(err), "--drop-system");
    if (rc == 0)
        rc = stack_open(&so, &h->k, hcache_inner(err));
    if (rc == 0)
        rc = add_ends(h, hcache_inner(err));
    if (rc == 0 && o->pooling != NULL)
        h->k.model->cfg.pooling = pooling_of_name(o->pooling);
    /* A failure of the model's own template is kept in dialog_err and reported to chats. */
    if (rc == 0 && dialog_open(&h->dialog, h->tokenizer, &h->dialog_err) != 0 &&
        o->chat_template != NULL)
        rc = err_set(hcache_inner(err), h->dialog_err.code, "the chat template: %s",
                     h->dialog_err.msg);
    h->opening = NULL;
    if (rc != 0) {
        hcache_close(h);
        return rc;
    }
    spans_end(&h->spans, "chat template");
    struct service_opts vo = {.weights = &h->k.model->w,
                              .engine = h->k.engine,
                              .saver = h->k.saver,
                              .store = h->k.store,
                              .tokenizer = h->tokenizer,
                              .n_vocab = h->k.model->cfg.vocab_size,
                              .max_sequences = o->max_sequences > 0 ? o->max_sequences : 1,
                              .max_context = context_of(h),
                              .rest_ns = shared != NULL ? STACK_REST_NS : 0,
                              .load_ms = (double)(clock_now_ns() - t0) * 1e-6};
    struct store_stats st;
    if (h->k.store != NULL) {
        store_stats(h->k.store, &st);
        vo.tier = st.tier;
    }
    service_create(&vo, &h->service);
    if (h->tokenizer != NULL)
        h->forms = forms_create(h->tokenizer, dialog_syntax(h->dialog),
                                h->k.model->cfg.vocab_size);
    if (shared != NULL)
        remote_on_erased(h->k.remote, forget_erased_soon, shared);
    else
        remote_on_erased(h->k.remote, service_forget_erased_soon, h->service);
    h->platform = h->k.platform;
    warn_context(o, &h->k);
    spans_end(&h->spans, "service");
    h->n_start_passes += model_passes();
    if (o->verbose) {
        say_start(o, h);
        say_memory(o, &h->k);
    }
    *out = h;
    return 0;
}

void hcache_close(struct hcache *h)
{
    if (h == NULL)
        return;
    share_list(h, false);
    if (h->shared == NULL)
        remote_on_erased(h->k.remote, NULL, NULL);
    service_destroy(h->service);
    stack_close(&h->k);
    dialog_close(h->dialog);
    forms_destroy(h->forms);
    chat_drop_close(h->drop);
    tokenizer_close(h->tokenizer);
    free(h);
}

void hcache_start_info(const struct hcache *h, struct hcache_start *out)
{
    *out = (struct hcache_start){.n_passes = h->n_start_passes,
                                 .hashed_bytes = h->k.model->w.hashed_bytes};
    for (int i = 0; i < h->spans.n && i < HCACHE_MAX_START_PARTS; i++) {
        out->parts[i].name = h->spans.of[i].name;
        out->parts[i].ms = (double)h->spans.of[i].ns * 1e-6;
        out->n_parts = i + 1;
    }
}

/* Returns the saved bytes of a token's K and V in the layer where they are widest. */
static size_t widest_kv_bytes(const struct model *m)
{
    size_t most = 0;
    for (int l = 0; l < config_n_keeping(&m->cfg); l++)
        most = MAX(model_kv_bytes(m, l), most);
    return most;
}

void hcache_model_info(const struct hcache *h, struct hcache_model_info *out)
{
    const struct model *m = h->k.model;
    *out = (struct hcache_model_info){
        .family = family_name(m->cfg.family),
        .dtype = dtype_name(m->dtype),
        .name = h->tokenizer != NULL ? tokenizer_model_name(h->tokenizer) : NULL,
        .format = m->format,
        .held = dtype_name(m->w.dtype),
        .chat_template = h->tokenizer != NULL ? tokenizer_chat_template(h->tokenizer)
                                              : NULL,
        .bos = dialog_bos(h->dialog),
        .eos = dialog_eos(h->dialog),
        .n_embd = m->cfg.n_embd,
        .n_embedding = config_embedding_width(&m->cfg),
        .n_params = config_params(&m->cfg),
        .weights_bytes = m->w.bytes,
        .n_layers = m->cfg.n_layers,
        .vocab_size = m->cfg.vocab_size,
        .max_context = context_of(h),
        .max_history = h->k.o.user.max_history > 0
                           ? h->k.o.user.max_history
                           : (int64_t)DEFAULT_HISTORY_CONTEXTS * context_of(h),
        .hidden_bytes = model_hidden_bytes(m),
        .kv_bytes = widest_kv_bytes(m),
        .has_tokenizer = h->tokenizer != NULL,
        .has_chat_template = h->dialog != NULL || h->dialog_err.code != 0,
        .has_tools = h->dialog != NULL && dialog_has_tools(h->dialog),
        .declares_tools = h->dialog != NULL && dialog_declares_tools(h->dialog),
        .has_thoughts = h->dialog != NULL && dialog_has_thoughts(h->dialog),
        .max_sequences = h->k.o.user.max_sequences > 0 ? h->k.o.user.max_sequences : 1,
        .pooling = pooling_name(m->cfg.pooling)};
    const struct weights_types *t = &m->w.types;
    for (int i = 0; i < t->n && i < HCACHE_MAX_FILE_TYPES; i++) {
        out->file_types[i].name = t->of[i].name;
        out->file_types[i].n_tensors = t->of[i].n_tensors;
        out->n_file_types = i + 1;
    }
    sha256_hex(&h->k.fingerprint, out->fingerprint);
}

/* --- text ------------------------------------------------------------------------------------- */

static int need_tokenizer(const struct hcache *h, struct err *err)
{
    return h->tokenizer != NULL ? 0 : no_tokenizer(h->k.model->source, err);
}

int hcache_encode(const struct hcache *h, const char *text, size_t n, unsigned flags,
                  int32_t **ids, int *n_ids, struct hcache_err *err)
{
    size_t count = 0;
    unsigned f = (flags & HCACHE_ADD_SPECIAL ? (unsigned)TOKENIZER_ADD_SPECIAL : 0) |
                 (flags & HCACHE_PARSE_SPECIAL ? (unsigned)TOKENIZER_PARSE_SPECIAL : 0) |
                 (flags & HCACHE_GUARDED ? (unsigned)TOKENIZER_GUARDED : 0);
    int rc = need_tokenizer(h, hcache_inner(err));
    if (rc == 0)
        rc = tokenizer_encode(h->tokenizer, text, n, f, ids, &count, hcache_inner(err));
    if (rc == 0 &&
        (rc = tokenizer_check_rows(h->tokenizer, *ids, count, h->k.model->cfg.vocab_size,
                                   hcache_inner(err))) != 0) {
        free(*ids);
        *ids = NULL;
        count = 0;
    }
    *n_ids = (int)count;
    return rc;
}

int64_t hcache_least_tokens(const struct hcache *h, const char *text, size_t n)
{
    return h->tokenizer != NULL ? (int64_t)tokenizer_least_count(h->tokenizer, text, n) : 0;
}

int hcache_decode(const struct hcache *h, const int32_t *ids, int n, char **text,
                  size_t *n_text, struct hcache_err *err)
{
    int rc = need_tokenizer(h, hcache_inner(err));
    return rc != 0 ? rc
                   : tokenizer_decode(h->tokenizer, ids, (size_t)n, true, text, n_text,
                                      hcache_inner(err));
}

int hcache_chat_render_parsed(const struct hcache *h, const struct hcache_chat *chat,
                              char **text, size_t *n_text, struct hcache_err *err)
{
    if (h->dialog_err.code != 0)
        return err_set(hcache_inner(err), h->dialog_err.code, "%s", h->dialog_err.msg);
    if (h->dialog == NULL)
        return err_set(hcache_inner(err), ERR_UNSUPPORTED, "%s has no chat template",
                       h->k.model->source);
    return dialog_render(h->dialog, chat, text, n_text, hcache_inner(err));
}

static int render(const struct hcache *h, const char *request, size_t n, bool guarded,
                  char **text, size_t *n_text, struct hcache_err *err)
{
    struct json *j = NULL;
    int rc = json_parse(&j, request, n, "the conversation", hcache_inner(err));
    if (rc != 0)
        return rc;
    const struct hcache_chat chat = {.messages = json_member(j, "messages"),
                                     .tools = json_member(j, "tools"),
                                     .kwargs = json_member(j, "chat_template_kwargs"),
                                     .guarded = guarded};
    rc = hcache_chat_render_parsed(h, &chat, text, n_text, err);
    json_free(j);
    return rc;
}

int hcache_chat_render(const struct hcache *h, const char *request, size_t n, char **text,
                       size_t *n_text, struct hcache_err *err)
{
    return render(h, request, n, false, text, n_text, err);
}

int hcache_chat_render_guarded(const struct hcache *h, const char *request, size_t n,
                               char **text, size_t *n_text, struct hcache_err *err)
{
    return render(h, request, n, true, text, n_text, err);
}

int hcache_drop_system(const struct hcache *h, const char *text, size_t n, char **text_out,
                       size_t *n_out, struct hcache_err *err)
{
    return chat_drop_text(h->drop, text, n, text_out, n_out, hcache_inner(err));
}

void hcache_guard(const struct hcache *h, const char *text, size_t n, char **out,
                  size_t *n_out)
{
    *out = xmemdup(text, n);
    *n_out = n;
    if (h->tokenizer == NULL)
        return;
    /* Without memory for the guards the text is dropped: it must not be taken for a guarded one. */
    if (tokenizer_guard(h->tokenizer, out, n_out, NULL, NULL) != 0)
        *n_out = 0;
}

struct hcache_answer {
    struct answer *a;
    struct answer_form
        *own; /* tables of a model without a template; NULL: the dialog's are used */
};

struct hcache_answer *hcache_answer_open(const struct hcache *h, const char *prompt,
                                         size_t n_prompt, const struct json *tools)
{
    static const struct answer_syntax plain = {.calls = NULL};
    struct hcache_answer *a = xcalloc(1, sizeof *a);
    if (h->dialog == NULL)
        a->own = answer_form_create(&plain, NULL);
    a->a = answer_open(h->dialog != NULL ? dialog_form(h->dialog) : a->own, prompt,
                       n_prompt, tools);
    return a;
}

void hcache_answer_close(struct hcache_answer *a)
{
    if (a == NULL)
        return;
    answer_close(a->a);
    answer_form_destroy(a->own);
    free(a);
}

void hcache_answer_push(struct hcache_answer *a, const char *text, size_t n,
                        const struct hcache_special *special, int n_special)
{
    size_t at = 0;
    for (int i = 0; i < n_special; i++) {
        size_t to = MIN(special[i].at, n);
        if (to > at)
            answer_push(a->a, text + at, to - at);
        at = MAX(at, to);
        answer_token(a->a, special[i].id);
    }
    if (n > at)
        answer_push(a->a, text + at, n - at);
}

void hcache_answer_end(struct hcache_answer *a)
{
    answer_end(a->a);
}

bool hcache_answer_part(const struct hcache_answer *a, int i, struct hcache_part *out)
{
    size_t n;
    const struct answer_part *p = answer_parts(a->a, &n);
    if ((size_t)i >= n)
        return false;
    *out = (struct hcache_part){.kind = (enum hcache_part_kind)p[i].kind,
                                .name = p[i].name,
                                .text = p[i].text != NULL ? p[i].text : "",
                                .n = p[i].n};
    return true;
}

const char *hcache_token_bytes(const struct hcache *h, int32_t id, size_t *n)
{
    *n = 0;
    return h->tokenizer != NULL ? tokenizer_bytes(h->tokenizer, id, n) : NULL;
}

void hcache_free(void *p)
{
    free(p);
}

/* --- generation ------------------------------------------------------------------------------- */

static int check_text(const struct hcache *h, const struct hcache_request *r,
                      struct err *err)
{
    if (r->n_top < 0 || r->n_top > HCACHE_MAX_TOP)
        return err_set(err, ERR_USAGE, "n_top is %d; it must be 0 to %d", r->n_top,
                       HCACHE_MAX_TOP);
    if (r->n_stop < 0 || r->n_stop > HCACHE_MAX_STOP)
        return err_set(err, ERR_USAGE, "there are %d stop strings; at most %d are allowed",
                       r->n_stop, HCACHE_MAX_STOP);
    if (r->n_stop > 0 && h->tokenizer == NULL)
        return err_set(err, ERR_USAGE,
                       "stop strings need a tokenizer, and this model has none");
    for (int i = 0; i < r->n_stop; i++) {
        size_t n = strlen(r->stop[i]);
        if (n == 0 || n > HCACHE_MAX_STOP_BYTES)
            return err_set(err, ERR_USAGE,
                           "stop string %d has %zu bytes; 1 to %d are allowed", i, n,
                           HCACHE_MAX_STOP_BYTES);
    }
    return 0;
}

static int check_request(const struct hcache *h, const struct hcache_request *r,
                         struct err *err)
{
    if (r->n_prompt <= 0)
        return err_set(err, ERR_USAGE, "the prompt is empty");
    if (r->max_tokens < 0)
        return err_set(err, ERR_USAGE, "max_tokens is %d; it must not be negative",
                       r->max_tokens);
    if (!(r->temperature >= 0) || !(r->top_p >= 0 && r->top_p <= 1) ||
        !(r->min_p >= 0 && r->min_p < 1) || r->top_k < 0)
        return err_set(err, ERR_USAGE,
                       "temperature must be >= 0, top_p in 0..1, min_p in 0..1 "
                       "(not 1), top_k >= 0");
    for (int i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || r->prompt[i] >= h->k.model->cfg.vocab_size)
            return err_set(err, ERR_USAGE,
                           "prompt token %d is %d; the vocabulary has %d entries", i,
                           r->prompt[i], h->k.model->cfg.vocab_size);
    }
    if (r->truncation.ratio > 0 && r->max_tokens > HCACHE_MAX_TRUNCATED_ANSWER)
        return err_set(err, ERR_USAGE,
                       "max_tokens is %d; for a truncated context it must be at most %d",
                       r->max_tokens, HCACHE_MAX_TRUNCATED_ANSWER);
    if (r->priority < -HCACHE_MAX_PRIORITY || r->priority > HCACHE_MAX_PRIORITY)
        return err_set(err, ERR_USAGE, "priority is %d; it must be %d to %d", r->priority,
                       -HCACHE_MAX_PRIORITY, HCACHE_MAX_PRIORITY);
    if (r->cache_ttl_s < 0 || r->cache_ttl_s > HCACHE_MAX_CACHE_TTL_S ||
        r->expect_reuse_in_s < 0 || r->expect_reuse_in_s > HCACHE_MAX_CACHE_TTL_S ||
        r->turn < 0)
        return err_set(err, ERR_USAGE,
                       "cache_ttl_s and expect_reuse_in_s must be 0 to %d, turn at least 0",
                       HCACHE_MAX_CACHE_TTL_S);
    if (r->timeout_ms < 0 || r->timeout_ms > HCACHE_MAX_TIMEOUT_MS)
        return err_set(err, ERR_USAGE, "timeout_ms is %d; it must be 0 to %d",
                       r->timeout_ms, HCACHE_MAX_TIMEOUT_MS);
    return check_text(h, r, err);
}

static bool is_forced(const char *plan)
{
    return plan != NULL && strcmp(plan, "auto") != 0 && strcmp(plan, "recompute") != 0;
}

/* Refuses a plan that makes no sense even if there is nothing to restore. */
static int check_plan(const struct plan_request *q, const char *text, struct err *err)
{
    int n = q->n_layers;
    if (q->mode == PLAN_FORCED_LAYERS)
        n = (int)strlen(q->forced_layers);
    if (n == q->n_layers)
        return 0;
    return err_set(err, ERR_USAGE, "--plan '%s': %d layers, but the model has %d", text, n,
                   q->n_layers);
}

static const char *bytes_of(const void *tokenizer, int32_t id, size_t *n)
{
    return tokenizer_bytes(tokenizer, id, n);
}

/* Returns the special token of this text, or -1. */
static int32_t special_of(const struct hcache *h, const char *text)
{
    size_t n = 0;
    return tokenizer_special_at(h->tokenizer, text, strlen(text), &n);
}

/* Makes the bound on the answer's thought. */
static void bound_thought(const struct hcache *h, const struct hcache_request *r,
                          struct shaping_thought *out)
{
    const struct hcache_shaping *g = r->shaping;
    const struct answer_syntax *x = dialog_syntax(h->dialog);
    const char *end = x->thought_end != NULL ? x->thought_end : x->thoughts.close;
    int32_t *ids = NULL;
    size_t n = 0;
    bool channels = x->calls != NULL && x->calls->body == CALL_CHANNEL;
    if (channels)
        /* the answer is another message, which may be a call if there are tools */
        end = r->may_call_tools ? "<|end|><|start|>assistant<|channel|>"
                                : "<|end|><|start|>assistant<|channel|>final<|message|>";
    if (g->max_thought <= 0 || g->prompt_end == NULL || end == NULL ||
        tokenizer_encode(h->tokenizer, end, strlen(end), TOKENIZER_PARSE_SPECIAL, &ids, &n,
                         NULL) != 0)
        return;
    if (tokenizer_check_rows(h->tokenizer, ids, n, h->k.model->cfg.vocab_size, NULL) != 0) {
        free(ids);
        return;
    }
    bool begun = answer_thought_begun(x, g->prompt_end);
    *out = (struct shaping_thought){.max_tokens = g->max_thought,
                                    .close = x->thoughts.close,
                                    .open = begun ? NULL : x->thoughts.open,
                                    .end = ids,
                                    .n_end = (int)n,
                                    .bytes = bytes_of,
                                    .arg = h->tokenizer};
    int32_t channel = special_of(h, "<|channel|>"), message = special_of(h, "<|message|>");
    if (!channels || channel < 0 || message < 0)
        return;
    out->open = "analysis";
    out->channel = channel;
    out->message = message;
    out->begun = begun;
}

static int check_shaping(const struct hcache *h, const struct hcache_shaping *g,
                         struct err *err)
{
    int32_t n_vocab = h->k.model->cfg.vocab_size;
    if (g == NULL)
        return 0;
    if (g->n_bias < 0 || g->n_bias > HCACHE_MAX_BIAS || g->n_stop_ids < 0 ||
        g->n_stop_ids > HCACHE_MAX_STOP_IDS)
        return err_set(err, ERR_USAGE, "at most %d biases and %d stop tokens are allowed",
                       HCACHE_MAX_BIAS, HCACHE_MAX_STOP_IDS);
    for (int i = 0; i < g->n_bias; i++)
        if (g->bias[i].id < 0 || g->bias[i].id >= n_vocab ||
            !(fabsf(g->bias[i].bias) <= 100))
            return err_set(err, ERR_USAGE,
                           "logit_bias of token %d is %g; tokens are 0 to %d, biases -100 "
                           "to 100",
                           g->bias[i].id, (double)g->bias[i].bias, n_vocab - 1);
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] < 0 || g->stop_ids[i] >= n_vocab)
            return err_set(err, ERR_USAGE, "stop token %d is not in 0 to %d",
                           g->stop_ids[i], n_vocab - 1);
    bool good = fabsf(g->frequency_penalty) <= 2 && fabsf(g->presence_penalty) <= 2 &&
                (g->repetition_penalty == 0 ||
                 (g->repetition_penalty >= 0.01f && g->repetition_penalty <= 100)) &&
                g->min_tokens >= 0;
    return good ? 0
                : err_set(
                      err, ERR_USAGE,
                      "frequency_penalty and presence_penalty must be -2 to 2, "
                      "repetition_penalty 0.01 to 100 or 0 (none), min_tokens at least 0");
}

/* Finds the ids of "yes" and "no". */
static int find_judges(const struct hcache *h, int32_t ids[2], struct err *err)
{
    static const char *const words[] = {"yes", "no"};
    for (int i = 0; i < 2; i++) {
        ids[i] = h->tokenizer != NULL ? tokenizer_find(h->tokenizer, words[i]) : -1;
        if (ids[i] < 0 || ids[i] >= h->k.model->cfg.vocab_size)
            return err_set(err, ERR_UNSUPPORTED,
                           "this reranker has no token \"%s\", by which it would judge",
                           words[i]);
    }
    return 0;
}

/* Checks what the request reads from its prompt; *ids gets what a judgement needs. */
static int check_reads(const struct hcache *h, const struct hcache_request *r,
                       int32_t ids[2], struct err *err)
{
    enum pooling pooling = h->k.model->cfg.pooling;
    bool pools = pooling == POOLING_MEAN || pooling == POOLING_CLS ||
                 pooling == POOLING_LAST;
    if (r->reads != HCACHE_READS_EMBEDDING && model_check_text(h->k.model, err) != 0)
        return ERR_UNSUPPORTED;
    if (r->reads == HCACHE_READS_NOTHING)
        return 0;
    if (r->truncation.ratio > 0)
        return err_set(err, ERR_USAGE, "a truncated context's prompt cannot be read: %s",
                       "its tokens are not all seen at once");
    if (r->reads == HCACHE_READS_JUDGEMENT && pooling == POOLING_RANK)
        return find_judges(h, ids, err);
    if (r->reads == HCACHE_READS_LOGPROBS || (r->reads == HCACHE_READS_EMBEDDING && pools))
        return 0;
    return err_set(
        err, ERR_UNSUPPORTED, "this model %s: %s",
        r->reads == HCACHE_READS_JUDGEMENT ? "does not rank documents"
                                           : "makes no embeddings",
        pooling == POOLING_OTHER  ? "its pooling, or a layer behind it, is not supported"
        : pooling == POOLING_RANK ? "it is a reranker (/v1/rerank)"
        : pooling == POOLING_NONE ? "its files name no pooling. Serve a model that is made "
                                    "for it, such as Qwen3-Embedding or Qwen3-Reranker, or "
                                    "choose a pooling (--pooling)"
                                  : "it is made for embeddings (/v1/embeddings)");
}

/* Decides which records the request saves. A forced plan may need any kind of record later. So both
 * kinds are saved, unless the request says otherwise. */
static int make_save(struct hcache *h, const struct hcache_request *r,
                     const struct truncation *truncation, struct save_policy *out,
                     struct err *err)
{
    const char *save = r->save != NULL ? r->save : is_forced(r->plan) ? "both" : "auto";
    struct platform bounded = h->platform;
    platform_throttle(&bounded, 0, (double)h->k.o.user.throttle_bytes_per_s);
    bool packs = save_policy_packs(h->k.o.user.pack, save, h->k.model, &bounded,
                                   h->k.model->max_ctx, h->k.o.user.dram_bytes > 0);
    if (packs)
        bounded.packed_share = SAVE_PACK_SHARE(save_pack_type(h->k.model->dtype));
    int rc = save_policy_make(out, save, h->k.model, &bounded, h->k.model->max_ctx, err);
    out->packs = packs;
    if (rc == 0 && h->k.o.user.max_sequences > 1)
        rc = save_policy_add_beside(out, save, h->k.model, &bounded, h->k.model->max_ctx,
                                    err);
    if (rc == 0 && truncation->context > 0 && strcmp(save, "auto") == 0)
        hcache_save_for_truncation(h->k.model, out);
    return rc;
}

/* Encodes a prediction. A failure costs guesses and nothing else. */
static void encode_prediction(const struct hcache *h, const struct hcache_request *r,
                              struct request *q)
{
    int32_t *ids;
    size_t n;
    if (r->n_prediction == 0 || h->tokenizer == NULL || h->k.most_guesses == 0 ||
        tokenizer_encode(h->tokenizer, r->prediction, r->n_prediction, 0, &ids, &n, NULL) !=
            0)
        return;
    if (n <= (size_t)h->k.model->max_ctx &&
        tokenizer_check_rows(h->tokenizer, ids, n, h->k.model->cfg.vocab_size, NULL) == 0) {
        q->prediction = ids;
        q->n_prediction = (int)n;
    } else {
        free(ids);
    }
}

/* Checks a request, and copies it. Nothing copies it again. */
static int make_request(struct hcache *h, const struct hcache_request *r,
                        struct request **out, struct err *err)
{
    struct truncation truncation;
    struct save_policy save;
    struct plan_request mode = {.n_layers = config_n_keeping(&h->k.model->cfg)};
    int32_t judges[2] = {0};
    int n = 0, rc = check_request(h, r, err);
    if (rc == 0)
        rc = check_reads(h, r, judges, err);
    if (rc == 0)
        rc = check_shaping(h, r->shaping, err);
    if (rc == 0)
        rc = hcache_make_truncation(h, &r->truncation, &truncation, err);
    if (rc == 0 && r->plan != NULL)
        rc = plan_mode_parse(r->plan, &mode, err);
    if (rc == 0 && r->plan != NULL)
        rc = check_plan(&mode, r->plan, err);
    if (rc == 0)
        rc = make_save(h, r, &truncation, &save, err);
    if (rc == 0)
        rc = mem_check(err);
    if (rc != 0)
        return rc;
    struct request *q = request_create(
        r, service_answer_room(h->service, r->max_tokens, &truncation));
    if (q == NULL)
        return err_set(err, -ENOMEM, "no memory for a prompt of %d tokens and its answer",
                       r->n_prompt);
    q->truncation = truncation;
    memcpy(q->judges, judges, sizeof q->judges);
    q->save = save;
    q->form = r->form != NULL ? form_share(r->form->form) : NULL;
    const int32_t *never = h->tokenizer != NULL ? tokenizer_suppressed(h->tokenizer, &n)
                                                : NULL;
    request_forbid(q, never, n, h->k.model->cfg.vocab_size);
    if (r->shaping != NULL && h->dialog != NULL)
        bound_thought(h, r, &q->thought);
    encode_prediction(h, r, q);
    *out = q;
    return 0;
}

/* Passes arrived tokens to on_token one by one. If several came together, the last one gets their
 * text. Returns true if on_token cancels the request. */
static bool pass_on(const struct hcache_request *r, const struct hcache_delta *d)
{
    bool cancel = false;
    if (r->on_token == NULL)
        return false;
    for (int i = 0; i < d->n_ids && !cancel; i++) {
        bool last = i == d->n_ids - 1;
        cancel = r->on_token(r->arg, d->ids[i], last ? d->text : "",
                             last ? d->n_text : 0) != 0;
    }
    if (d->n_ids == 0 && d->n_text > 0 && !cancel)
        cancel = r->on_token(r->arg, -1, d->text, d->n_text) != 0;
    return cancel;
}

int hcache_generate(struct hcache *h, const struct hcache_request *r,
                    struct hcache_result *out, struct hcache_err *err)
{
    struct request *q;
    struct hcache_ticket *t = NULL;
    *out = (struct hcache_result){0};
    if (!service_is_started(h->service))
        h->platform = h->k.platform;
    int rc = make_request(h, r, &q, hcache_inner(err));
    if (rc == 0) {
        q->ask.notify = NULL;
        q->ask.durable = true;
        rc = service_submit(h->service, q, &t, hcache_inner(err));
    }
    if (rc != 0)
        return rc;
    struct hcache_delta d;
    bool cancelled = false;
    int n_prompt = 0;
    do {
        bool stop = !service_run(h->service, t, cancelled ? NULL : r->is_cancelled, r->arg);
        hcache_ticket_read(t, &d);
        if (d.prompt_done > n_prompt)
            r->on_prompt(r->arg, n_prompt = d.prompt_done);
        if (!cancelled && (pass_on(r, &d) || stop)) {
            cancelled = true;
            hcache_ticket_cancel(t);
        }
    } while (!d.ended);
    rc = hcache_ticket_result(t, out, err);
    if (rc == 0 && cancelled)
        out->finish = "cancelled";
    hcache_ticket_free(t);
    return rc;
}

void hcache_result_free(struct hcache_result *r)
{
    free(r->token_ids);
    free(r->text);
    free(r->special);
    free(r->predicted.span);
    free(r->measured.span);
    free(r->embedding);
    free(r->prompt_logprobs);
    *r = (struct hcache_result){0};
}

/* --- serving ---------------------------------------------------------------------------------- */

int hcache_serve_start(struct hcache *h, int max_queue, struct hcache_err *err)
{
    int rc = service_start(h->service, max_queue, hcache_inner(err));
    if (rc == 0)
        share_list(h, true);
    return rc;
}

void hcache_serve_stop(struct hcache *h)
{
    service_stop(h->service);
}

int hcache_submit(struct hcache *h, const struct hcache_request *r,
                  struct hcache_ticket **out, struct hcache_err *err)
{
    struct request *q;
    int rc = make_request(h, r, &q, hcache_inner(err));
    return rc != 0 ? rc : service_submit(h->service, q, out, hcache_inner(err));
}

void hcache_stats(struct hcache *h, struct hcache_stats *out)
{
    service_stats(h->service, out);
}

bool hcache_step_progress(const struct hcache *h, int *layer, int *n_layers)
{
    *layer = weights_reached(&h->k.model->w);
    *n_layers = h->k.model->cfg.n_layers;
    return *layer > 0;
}
