/* request.c - see request.h. */
#include "api/request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum field_kind {
    F_INT,
    F_REAL,
    F_BOOL,
    F_STRING,  /* a name, without zero bytes */
    F_BYTES,   /* a text that is part of the prompt */
    F_TREE,    /* a JSON value that other code checks */
    F_LIST,    /* a list of objects */
    F_CHOICE,  /* tool_choice */
    F_STOP,    /* text, or a list of texts */
    F_OPTIONS, /* stream_options */
    F_LOGPROBS,
    F_FORMAT,     /* response_format: see form.h */
    F_TEXT,       /* text of a response: {"format": ...} */
    F_FORM,       /* a form of the kind `lo` (enum hcache_form_kind) */
    F_FORMS,      /* structured_outputs */
    F_ONE,        /* parallel_tool_calls: false allows one call */
    F_BIAS,       /* logit_bias: an object of numbers by token ids */
    F_IDS,        /* a list of token ids */
    F_PREDICTION, /* {"type": "content", "content": a text or parts of text} */
    F_PAIRS,      /* metadata: at most 16 pairs of a short name and a short text */
    F_IGNORED,    /* accepted; it changes nothing here */
    F_EXTRA, /* as F_IGNORED, for other servers' fields: the answer's usage lists them */
    F_SEED,
    F_EFFORT,   /* how much to think: a word, or an object with `effort` */
    F_BUDGET,   /* a bound on tokens of thoughts */
    F_THINKING, /* {"type": "enabled" | "disabled" | "adaptive"} */
    F_CONFIG,   /* output_config: {"effort", "format"} */
    F_EDITS,    /* context_management: {"edits": [...]} */
    F_JSON,     /* "json", or a JSON schema */
    F_NESTED,   /* an object of fields of the kind `lo` */
    F_SWITCH,   /* true or false, as 1 or 0 */
    F_PROBS,    /* log-probabilities of so many tokens; 0: none */
    F_SAMPLERS, /* names of samplers; those that are left out do nothing */
    /* Not supported, but a neutral value is accepted: null, false, "none", an empty list or object,
     * or the number `lo`. */
    F_NEUTRAL,
};

struct field {
    const char *name; /* or several names with blanks between */
    enum field_kind kind;
    double lo, hi;
    size_t offset;
    unsigned where;
    const char *help;
};

#define BOTH  (REQUEST_CHAT | REQUEST_COMPLETION)
#define RESP  REQUEST_RESPONSE
#define MSG   REQUEST_MESSAGE
#define MSGS  (REQUEST_MESSAGE | REQUEST_COUNT)
#define GEN   (BOTH | RESP | MSG) /* all kinds of requests that generate */
#define OLL   REQUEST_OLLAMA
#define OPT   REQUEST_OPTIONS
#define ANY   (GEN | REQUEST_COUNT)
#define AT(f) offsetof(struct gen_params, f)

/* clang-format off */
static const struct field fields[] = {
    {"model", F_STRING, 0, 256, AT(model), ANY | OLL, "the name that /v1/models shows"},
    {"messages", F_TREE, 0, 0, AT(messages), REQUEST_CHAT | MSGS | OLL, "the conversation"},
    {"prompt", F_TREE, 0, 0, AT(prompt), REQUEST_COMPLETION, "a text, token ids, or a list of either"},
    {"input", F_TREE, 0, 0, AT(prompt), RESP, "a text, or a list of items"},
    {"instructions", F_BYTES, 0, 1 << 24, AT(instructions), RESP, "the system's message"},
    {"system", F_TREE, 0, 0, AT(system), MSGS, "a text, or a list of texts"},
    {"cache_control", F_TREE, 0, 0, AT(cache_control), MSGS, "applies to the whole prompt"},
    {"previous_response_id", F_STRING, 1, 128, AT(previous), RESP, "the response that this one continues"},
    {"conversation", F_TREE, 0, 0, AT(conversation), RESP, "an id, or {\"id\": ...}"},
    {"store", F_BOOL, 0, 0, AT(store), RESP, "keep the response; default true"},
    {"metadata", F_PAIRS, 0, 16, AT(metadata), RESP, "at most 16 texts by names"},
    {"max_output_tokens", F_INT, 1, 1 << 24, AT(max_tokens), RESP, "most tokens to generate"},
    {"max_tokens", F_INT, -1, 1 << 24, AT(max_tokens), BOTH | MSG, "most tokens to generate; -1: to the end of the context. More than the context has left is cut to that"},
    {"n_predict", F_INT, -1, 1 << 24, AT(max_tokens), BOTH, "same as max_tokens"},
    {"max_completion_tokens", F_INT, -1, 1 << 24, AT(max_completion_tokens), REQUEST_CHAT, "same as max_tokens, which it overrides"},
    {"n", F_INT, 1, REQUEST_MAX_N, AT(n), BOTH, "answers"},
    {"temperature", F_REAL, 0, 100, AT(temperature), GEN | OPT, "0 is greedy"},
    {"top_p", F_REAL, 0, 1, AT(top_p), GEN | OPT, "nucleus sampling"},
    {"min_p", F_REAL, 0, 0.999999, AT(min_p), GEN | OPT, "relative to the likeliest token"},
    {"top_k", F_INT, -1, 1 << 24, AT(top_k), GEN | OPT, "0 and -1: all"},
    {"seed", F_SEED, 0, 0, AT(seed), GEN | OPT, "seed of sampling: a 64-bit integer, signed or not"},
    {"stop", F_STOP, 1, HCACHE_MAX_STOP_BYTES, 0, BOTH | RESP | OPT, "a text or a list of at most 16"},
    {"stop_sequences", F_STOP, 1, HCACHE_MAX_STOP_BYTES, 0, MSG, "a list of at most 16"},
    {"close", F_BOOL, 0, 0, AT(close), GEN, "an answer with a form is completed within its tokens"},
    {"ignore_eos", F_BOOL, 0, 0, AT(ignore_eos), GEN, "continue to max_tokens"},
    {"priority", F_INT, -HCACHE_MAX_PRIORITY, HCACHE_MAX_PRIORITY, AT(priority), GEN, "lower runs earlier; default 0"},
    {"timeout_ms", F_INT, 0, HCACHE_MAX_TIMEOUT_MS, AT(timeout_ms), GEN, "ends the answer after this time, keeping the text so far; 0: never"},
    {"cache_salt", F_STRING, 0, 256, AT(cache_salt), GEN, "saved state is shared only under one salt"},
    {"cache_ttl", F_INT, 0, HCACHE_MAX_CACHE_TTL_S, AT(cache_ttl), GEN, "seconds without a use after which saved state expires; 0: never"},
    {"expect_reuse_in", F_INT, 0, HCACHE_MAX_CACHE_TTL_S, AT(expect_reuse_in), GEN, "seconds until this context is probably used again; 0: unknown"},
    {"stream", F_BOOL, 0, 0, AT(stream), GEN | OLL, "server-sent events"},
    {"stream_options", F_OPTIONS, 0, 0, 0, BOTH | RESP, "{\"include_usage\": true}"},
    {"logprobs", F_LOGPROBS, 0, HCACHE_MAX_TOP, 0, BOTH | OLL, "chat: true or false; else a number"},
    {"top_logprobs", F_INT, 0, HCACHE_MAX_TOP, AT(n_top), REQUEST_CHAT | OLL, "needs logprobs"},
    {"response_format", F_FORMAT, 0, 0, 0, BOTH, "form of the answer: text, json_object or json_schema"},
    {"structured_outputs", F_FORMS, 0, 0, 0, BOTH, "form of the answer: {json, regex, choice, grammar}"},
    {"json_schema", F_FORM, HCACHE_FORM_SCHEMA, 0, 0, BOTH, "form of the answer: a JSON schema"},
    {"grammar", F_FORM, HCACHE_FORM_GBNF, 0, 0, BOTH, "form of the answer: a GBNF grammar"},
    {"guided_json", F_FORM, HCACHE_FORM_SCHEMA, 0, 0, BOTH, "same as json_schema"},
    {"guided_regex", F_FORM, HCACHE_FORM_REGEX, 0, 0, BOTH, "form of the answer: a regular expression"},
    {"guided_choice", F_FORM, HCACHE_FORM_CHOICE, 0, 0, BOTH, "form of the answer: a list of texts"},
    {"guided_grammar", F_FORM, HCACHE_FORM_GBNF, 0, 0, BOTH, "same as grammar"},
    {"output_format", F_FORMAT, 0, 0, 0, MSG, "form of the answer: a JSON schema"},
    {"text", F_TEXT, 0, 0, 0, RESP, "{\"format\": ...}: form of the answer"},
    {"tools", F_LIST, 0, 128, AT(tools), REQUEST_CHAT | RESP | MSGS | OLL, "functions that may be called"},
    {"tool_choice", F_CHOICE, 0, 0, 0, REQUEST_CHAT | RESP | MSGS, "auto, none, required (any), allowed_tools, or a function"},
    {"chat_template_kwargs", F_TREE, 0, 0, AT(kwargs), REQUEST_CHAT | RESP | MSGS, "variables of the template"},
    {"logit_bias", F_BIAS, -100, 100, AT(logit_bias), BOTH, "by token id: added to its logit"},
    {"frequency_penalty", F_REAL, -2, 2, AT(frequency_penalty), BOTH | OPT, "subtracted from a token's logit for each time it occurs in the answer"},
    {"presence_penalty", F_REAL, -2, 2, AT(presence_penalty), BOTH | OPT, "subtracted from a token's logit if it occurs in the answer"},
    {"repetition_penalty", F_REAL, 0.01, 100, AT(repetition_penalty), BOTH, "makes tokens that occur in prompt or answer less likely by this factor; 1: no penalty"},
    {"prediction", F_PREDICTION, 0, 0, AT(prediction), REQUEST_CHAT, "{\"type\": \"content\", \"content\": ...}: a text that the answer may repeat in part; it changes no answer"},
    {"stop_token_ids", F_IDS, 0, HCACHE_MAX_STOP_IDS, AT(stop_ids), BOTH, "tokens that end the answer"},
    {"min_tokens", F_INT, 0, 1 << 24, AT(min_tokens), BOTH, "least tokens of the answer"},
    {"max_tool_calls", F_EXTRA, 0, 0, 0, RESP, "ignored: it counts calls of built-in tools, and there are none"},
    {"context_management", F_EDITS, 0, 0, 0, MSGS, "edits of the types clear_thinking_20251015 and clear_tool_uses_20250919"},
    {"include", F_IGNORED, 0, 0, 0, RESP, "ignored: the answer never has the requested parts"},
    {"truncation", F_STRING, 1, 64, AT(truncation), BOTH | RESP | MSG, "auto, disabled, or numbers in the form of --truncate; in a conversation auto is the default"},
    {"reasoning", F_EFFORT, 0, 0, 0, REQUEST_CHAT | RESP, "{\"effort\": ...}, which the template gets as reasoning_effort; max_tokens: most tokens of the thought"},
    {"thinking", F_THINKING, 0, 0, 0, REQUEST_CHAT | MSGS, "{\"type\": \"enabled\"} or disabled, which the template gets as enable_thinking; budget_tokens: most tokens of the thought"},
    {"reasoning_effort", F_EFFORT, 0, 0, 0, REQUEST_CHAT, "none, low, medium or high, which the template gets under this name"},
    {"verbosity", F_IGNORED, 0, 0, 0, REQUEST_CHAT, "ignored"},
    {"container", F_NEUTRAL, 0, 0, 0, MSG, "not supported"},
    {"mcp_servers", F_NEUTRAL, 0, 0, 0, MSGS, "not supported"},
    {"output_config", F_CONFIG, 0, 0, 0, MSGS, "{\"effort\": ..., \"format\": ...}: the template's reasoning_effort, and the form of the answer"},
    {"modalities", F_IGNORED, 0, 0, 0, REQUEST_CHAT, "ignored: only text is generated"},
    {"parallel_tool_calls", F_ONE, 0, 0, 0, REQUEST_CHAT | RESP, "false: a wanted call is the only one"},
    {"metadata", F_IGNORED, 0, 0, 0, BOTH | MSG, "ignored"},
    {"store", F_IGNORED, 0, 0, 0, BOTH, "ignored"},
    {"service_tier", F_IGNORED, 0, 0, 0, GEN, "ignored"},
    {"prompt_cache_key", F_IGNORED, 0, 0, 0, BOTH | RESP, "ignored: prefixes are found by content"},
    {"prompt_cache_retention", F_IGNORED, 0, 0, 0, BOTH | RESP, "ignored: state is kept until room is needed"},
    {"client_metadata", F_EXTRA, 0, 0, 0, RESP | REQUEST_CHAT, "ignored"},
    {"prompt_cache_options", F_EXTRA, 0, 0, 0, BOTH | RESP, "ignored: prefixes are found by content"},
    {"keep_alive", F_EXTRA, 0, 0, 0, BOTH | OLL, "0 unloads one of several models; other values change nothing"},
    {"regex", F_FORM, HCACHE_FORM_REGEX, 0, 0, BOTH, "same as guided_regex"},
    {"thinking_token_budget", F_BUDGET, 0, 0, 0, REQUEST_CHAT, "most tokens of the thought; then the answer begins"},
    {"thinking_budget", F_BUDGET, 0, 0, 0, REQUEST_CHAT, "same as thinking_token_budget"},
    {"repeat_last_n", F_NEUTRAL, 64, 0, 0, BOTH, "not supported"},
    {"add_generation_prompt", F_SWITCH, 0, 0, AT(generation_prompt), REQUEST_CHAT, "false: the prompt ends with the last message"},
    {"continue_final_message", F_SWITCH, 0, 0, AT(continues), REQUEST_CHAT, "the answer goes on in the last message, the assistant's; also the default then"},
    {"add_generation_prompt", F_IGNORED, 0, 0, 0, REQUEST_COMPLETION, "ignored"},
    {"suffix", F_BYTES, 0, 1 << 24, AT(suffix), REQUEST_COMPLETION, "the text behind the hole that the answer fills"},
    {"input_suffix", F_BYTES, 0, 1 << 24, AT(suffix), REQUEST_INFILL, "the text behind the hole"},
    {"input_prefix", F_BYTES, 0, 1 << 24, AT(prefix), REQUEST_INFILL, "the text before the hole and before the prompt"},
    {"input_extra", F_LIST, 0, 1024, AT(extra), REQUEST_INFILL, "other files: filename and text"},
    {"echo", F_BOOL, 0, 0, AT(echo), REQUEST_COMPLETION, "the text begins with the prompt, and so do the log-probabilities"},
    {"n_probs", F_PROBS, 0, HCACHE_MAX_TOP, 0, BOTH, "log-probabilities of so many tokens"},
    {"verbose", F_BOOL, 0, 0, AT(verbose), REQUEST_CHAT, "the answer has the prompt's text, as __verbose.prompt"},
    {"n_cmpl", F_INT, 1, REQUEST_MAX_N, AT(n), BOTH, "same as n"},
    {"samplers", F_SAMPLERS, 0, 0, 0, BOTH, "the samplers that work; their order is fixed"},
    {"timings_per_token", F_BOOL, 0, 0, AT(timings_per_token), BOTH | RESP, "each event of a stream has timings"},
    {"return_tokens", F_BOOL, 0, 0, AT(return_tokens), REQUEST_LLAMA, "the answer has its token ids"},
    {"response_fields", F_TREE, 0, 0, AT(response_fields), REQUEST_LLAMA, "the members of the answer that are wanted"},
    {"return_tokens response_fields", F_EXTRA, 0, 0, 0, BOTH, "ignored: fields of /completion"},
    {"top_n_sigma", F_NEUTRAL, -1, 0, 0, BOTH, "not supported"},
    {"min_keep n_indent adaptive_target", F_NEUTRAL, 0, 0, 0, BOTH, "not supported"},
    {"mirostat_tau mirostat_eta dynatemp_exponent xtc_threshold dry_base dry_allowed_length dry_penalty_last_n "
     "dry_sequence_breakers adaptive_decay n_discard backend_sampling", F_EXTRA, 0, 0, 0, BOTH, "ignored: the sampler is off"},
    {"repeat_penalty", F_REAL, 0.01, 100, AT(repetition_penalty), BOTH | OPT, "same as repetition_penalty"},
    {"prompt", F_BYTES, 0, 1 << 24, AT(prompt), OLL, "the user's message; raw: a text to continue"},
    {"system", F_BYTES, 0, 1 << 24, AT(system), OLL, "the system's message"},
    {"raw", F_BOOL, 0, 0, AT(raw), OLL, "the prompt is a text to continue"},
    {"format", F_JSON, 0, 0, 0, OLL, "form of the answer: \"json\", or a JSON schema"},
    {"think", F_THINKING, 0, 0, 0, OLL, "true or false, which the template gets as enable_thinking; or low, medium, high"},
    {"options", F_NESTED, REQUEST_OPTIONS, 0, 0, OLL, "an object of options"},
    {"template suffix context images width height steps", F_NEUTRAL, 0, 0, 0, OLL, "not supported"},
    {"num_predict", F_INT, -2, 1 << 24, AT(max_tokens), OPT, "most tokens to generate; below 0: to the end of the context"},
    {"typical_p tfs_z", F_NEUTRAL, 1, 0, 0, OPT, "not supported"},
    {"mirostat", F_NEUTRAL, 0, 0, 0, OPT, "not supported"},
    {"repeat_last_n", F_NEUTRAL, 64, 0, 0, OPT, "not supported"},
    {"num_ctx num_keep num_batch num_gpu main_gpu num_thread numa low_vram f16_kv "
     "logits_all vocab_only use_mmap use_mlock embedding_only penalize_newline", F_EXTRA, 0, 0, 0, OPT, "ignored: the server decides"},
    {"functions function_call audio", F_NEUTRAL, 0, 0, 0, REQUEST_CHAT, "not supported"},
    {"length_penalty typical_p tfs_z", F_NEUTRAL, 1, 0, 0, BOTH, "not supported"},
    {"best_of", F_INT, 1, REQUEST_MAX_N, AT(best_of), REQUEST_COMPLETION, "so many answers are generated, and the n with the highest mean log-probability are sent"},
    {"best_of", F_NEUTRAL, 1, 0, 0, REQUEST_CHAT, "not supported"},
    {"return_progress", F_BOOL, 0, 0, AT(return_progress), BOTH | RESP, "a stream tells how much of the prompt is done, as prompt_progress"},
    {"use_beam_search guided_decoding_backend guided_whitespace_pattern "
     "structural_tag ebnf lora lora_path images image_data documents chat_template "
     "include_stop_str_in_output truncate_prompt_tokens "
     "prompt_logprobs allowed_token_ids bad_words no_stop_trim plugins web_search_options "
     "logits_processors custom_logit_processor post_sampling_probs mirostat "
     "dynatemp_range xtc_probability dry_multiplier top_a "
     "thinking_forced_open", F_NEUTRAL, 0, 0, 0, BOTH, "not supported"},
    {"thinking_token_budget", F_NEUTRAL, 0, 0, 0, REQUEST_COMPLETION, "not supported"},
    {"background prompt top_logprobs context_management moderation", F_NEUTRAL, 0, 0, 0, RESP, "not supported"},
    {"user safety_identifier", F_IGNORED, 0, 0, 0, BOTH | RESP, "ignored"},
    {"safeguards speed inference_geo diagnostics betas user_profile_id fallbacks", F_EXTRA, 0, 0, 0, MSGS, "ignored"},
    {"id_slot slot_id n_keep "
     "t_max_predict_ms reasoning_format parse_tool_calls", F_EXTRA, 0, 0, 0, BOTH, "ignored: a field of llama.cpp"},
    {"skip_special_tokens spaces_between_special_tokens request_id "
     "return_tokens_as_token_ids return_token_ids include_reasoning kv_transfer_params "
     "vllm_xargs mm_processor_kwargs allowed_local_media_path separate_reasoning "
     "stream_reasoning rid", F_EXTRA, 0, 0, 0, BOTH, "ignored: a field of vLLM or SGLang"},
    {"provider models route transforms usage preset session_id trace debug", F_EXTRA, 0, 0, 0, BOTH, "ignored: a field of OpenRouter"},
    {"cache_prompt", F_IGNORED, 0, 0, 0, BOTH, "ignored: prefixes are found by content"},
};
/* clang-format on */

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Returns the next name of a row from *at on, and its bytes in *n; NULL: there is none. */
static const char *next_name(const char **at, size_t *n)
{
    const char *name = *at + (**at == ' ');
    *n = strcspn(name, " ");
    *at = name + *n;
    return *n > 0 ? name : NULL;
}

/* Sets *out to a copy of the row that has this name among its names. The copy borrows the name, and
 * has no other. Returns false if requests of this kind have no such field. */
static bool find(const char *name, size_t n, unsigned kind, struct field *out)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const char *at = fields[i].name, *one;
        size_t len;
        while ((fields[i].where & kind) != 0 && (one = next_name(&at, &len)) != NULL)
            if (len == n && memcmp(one, name, n) == 0) {
                *out = fields[i];
                out->name = name;
                return true;
            }
    }
    return false;
}

/* --- faults ----------------------------------------------------------------------------------- */

static int wrong_type(struct fault *f, const char *param, const char *wanted,
                      const struct json *v)
{
    return fault_field(f, param, "must be %-s, it is %-s", wanted, json_kind_name(v));
}

static int read_int(const struct field *d, const struct json *v, int64_t *out,
                    struct fault *f)
{
    if (!json_int_of(v, out))
        return wrong_type(f, d->name, "an integer", v);
    if ((double)*out < d->lo || (double)*out > d->hi)
        return fault_field(f, d->name, "is %lld; it must be %.0f to %.0f", (long long)*out,
                           d->lo, d->hi);
    return 0;
}

/* A seed beyond the signed integers is an unsigned one: the same 64 bits. */
static int read_seed(const struct field *d, const struct json *v, struct gen_params *p,
                     struct fault *f)
{
    size_t n = 0;
    const char *digits = json_big_of(v, &n);
    p->has_seed = true;
    if (json_int_of(v, &p->seed))
        return 0;
    if (digits == NULL)
        return wrong_type(f, d->name, "an integer", v);
    errno = 0;
    unsigned long long seed = strtoull(digits, NULL, 10);
    if (errno != 0 || digits[0] == '-')
        return fault_field(f, d->name, "must be an integer of 64 bits");
    p->seed = (int64_t)seed;
    return 0;
}

static int read_real(const struct field *d, const struct json *v, double *out,
                     struct fault *f)
{
    if (!json_real_of(v, out))
        return wrong_type(f, d->name, "a number", v);
    if (!(*out >= d->lo && *out <= d->hi)) /* a NaN is refused, too */
        return fault_field(f, d->name, "is %g; it must be %g to %g", *out, d->lo, d->hi);
    return 0;
}

static int read_bool(const char *name, const struct json *v, bool *out, struct fault *f)
{
    return json_bool_of(v, out) ? 0 : wrong_type(f, name, "true or false", v);
}

static int wrong_size(struct fault *f, const char *name, size_t n, size_t min, size_t max)
{
    return fault_field(f, name, "has %zu bytes; %zu to %zu are allowed", n, min, max);
}

static int read_bytes(const struct field *d, const struct json *v, const struct json **out,
                      struct fault *f)
{
    size_t n;
    if (json_string_of(v, &n) == NULL)
        return wrong_type(f, d->name, "a string", v);
    if ((double)n < d->lo || (double)n > d->hi)
        return wrong_size(f, d->name, n, (size_t)d->lo, (size_t)d->hi);
    *out = v;
    return 0;
}

static int read_text(const char *name, const struct json *v, size_t min, size_t max,
                     const char **out, struct fault *f)
{
    size_t n;
    *out = json_string_of(v, &n);
    if (*out == NULL)
        return wrong_type(f, name, "a string", v);
    if (strlen(*out) != n)
        return fault_field(f, name, "contains a zero byte");
    if (n < min || n > max)
        return wrong_size(f, name, n, min, max);
    return 0;
}

static int read_stop(const struct field *d, const struct json *v, struct gen_params *p,
                     struct fault *f)
{
    size_t n = json_kind(v) == JSON_KIND_ARRAY ? json_count(v) : 1;
    if (json_kind(v) != JSON_KIND_ARRAY && json_kind(v) != JSON_KIND_STRING)
        return wrong_type(f, d->name, "a string or a list of strings", v);
    p->n_stop = 0;
    if (n > HCACHE_MAX_STOP)
        return fault_field(f, d->name, "has %zu strings; at most %d are allowed", n,
                           HCACHE_MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const struct json *one = json_kind(v) == JSON_KIND_ARRAY ? json_at(v, i) : v;
        size_t n_bytes = 1;
        if (json_string_of(one, &n_bytes) != NULL && n_bytes == 0)
            continue; /* an empty text stops nothing */
        if (read_text(d->name, one, (size_t)d->lo, (size_t)d->hi, &p->stop[p->n_stop], f) !=
            0)
            return -1;
        p->n_stop++;
    }
    return 0;
}

static int read_stream_options(const struct json *v, struct gen_params *p, struct fault *f)
{
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, "stream_options", "an object", v);
    const struct json *u = json_member(v, "include_usage");
    return u == NULL || json_kind(u) == JSON_KIND_NULL
               ? 0
               : read_bool("include_usage", u, &p->include_usage, f);
}

static int read_logprobs(const struct field *d, const struct json *v, struct gen_params *p,
                         struct fault *f)
{
    if (p->kind == REQUEST_CHAT)
        return read_bool(d->name, v, &p->logprobs, f);
    p->logprobs = true;
    return read_int(d, v, &p->n_top, f);
}

/* Returns whether a value is a text among the names, which blanks separate. */
static bool is_among(const struct json *v, const char *names)
{
    const char *own = json_string_of(v, NULL), *one;
    size_t n;
    while (own != NULL && (one = next_name(&names, &n)) != NULL)
        if (strlen(own) == n && memcmp(own, one, n) == 0)
            return true;
    return false;
}

/* Returns whether a list has that text. */
static bool lists(const struct json *list, const char *name)
{
    for (size_t i = 0; i < json_count(list); i++)
        if (is_among(json_at(list, i), name))
            return true;
    return false;
}

static int read_samplers(const char *name, const struct json *v, struct gen_params *p,
                         struct fault *f)
{
    static const char known[] = "top_k top_p min_p temperature penalties dry top_n_sigma "
                                "typ_p typical_p xtc infill adaptive_p";
    if (json_kind(v) != JSON_KIND_ARRAY)
        return wrong_type(f, name, "a list of names", v);
    for (size_t i = 0; i < json_count(v); i++)
        if (!is_among(json_at(v, i), known))
            return fault_field(f, name, "has an unknown name at %zu", i);
    p->samplers = v;
    return 0;
}

/* Turns off the samplers that a request leaves out. */
static void apply_samplers(struct gen_params *p)
{
    if (!lists(p->samplers, "top_k"))
        p->top_k = 0;
    if (!lists(p->samplers, "top_p"))
        p->top_p = 1;
    if (!lists(p->samplers, "min_p"))
        p->min_p = 0;
    if (!lists(p->samplers, "temperature"))
        p->temperature = 1;
    if (!lists(p->samplers, "penalties"))
        p->repetition_penalty = p->presence_penalty = p->frequency_penalty = 0;
}

static int read_list(const struct field *d, const struct json *v, const struct json **out,
                     struct fault *f)
{
    if (json_kind(v) != JSON_KIND_ARRAY)
        return wrong_type(f, d->name, "a list", v);
    if ((double)json_count(v) > d->hi)
        return fault_field(f, d->name, "has %zu elements; at most %.0f are allowed",
                           json_count(v), d->hi);
    for (size_t i = 0; i < json_count(v); i++) {
        if (json_kind(json_at(v, i)) != JSON_KIND_OBJECT)
            return wrong_type(f, d->name, "a list of objects", json_at(v, i));
    }
    *out = json_count(v) > 0 ? v : NULL;
    return 0;
}

static int read_choice(const struct field *d, const struct json *v, struct gen_params *p,
                       struct fault *f)
{
    bool is_object = (p->kind & MSGS) != 0, one = false;
    p->choice = v;
    const struct json *mode = is_object ? json_member(v, "type") : v;
    p->no_tools = json_string_is(mode, "none");
    if (json_bool_of(json_member(v, "disable_parallel_tool_use"), &one))
        p->one_call = one;
    if (p->no_tools || json_string_is(mode, "auto"))
        return 0;
    return form_read_choice(d->name, v, &p->calls, f);
}

void request_note_ignored(struct gen_params *p, const char *name)
{
    for (int i = 0; i < p->n_ignored; i++)
        if (strcmp(p->ignored[i], name) == 0)
            return;
    if (p->n_ignored < REQUEST_MAX_IGNORED)
        p->ignored[p->n_ignored++] = name;
}

const char *request_server_tool(const char *type)
{
    static const char *const kinds[] = {
        "web_search", "web_fetch",   "code_execution", "code_interpreter", "text_editor",
        "bash",       "computer",    "memory",         "tool_search",      "mcp",
        "advisor",    "file_search", "apply_patch",    "image_generation", "local_shell",
        "shell"};
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(type, kinds[i], strlen(kinds[i])) == 0)
            return kinds[i];
    return NULL;
}

/* Reads a bound on the tokens of thoughts. 0 is no thought, where the template can choose. */
static int read_budget(const char *name, const struct json *v, struct gen_params *p,
                       struct fault *f)
{
    int64_t n;
    if (v == NULL || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (!json_int_of(v, &n) || n < 0 || n > INT32_MAX)
        return fault_set(f, 400, NULL, name,
                         "'%-s': the bound on tokens of thoughts must be 0 or more", name);
    if (n == 0)
        p->thinking = 0;
    p->max_thought = n > 0 ? n : 1;
    return 0;
}

/* Templates know three efforts; clients have words beyond. */
static int read_effort(const char *name, const struct json *v, struct gen_params *p,
                       struct fault *f)
{
    static const char *const words[][2] = {{"minimal", "low"},   {"low", "low"},
                                           {"medium", "medium"}, {"high", "high"},
                                           {"xhigh", "high"},    {"max", "high"}};
    const char *word = NULL;
    if (json_kind(v) == JSON_KIND_OBJECT) {
        if (read_budget(name, json_member(v, "max_tokens"), p, f) != 0)
            return -1;
        v = json_member(v, "effort");
    }
    if (v == NULL || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (read_text(name, v, 1, 32, &word, f) != 0)
        return -1;
    if (strcmp(word, "none") == 0)
        p->thinking = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i][0]) == 0)
            p->effort = words[i][1];
    return p->effort != NULL || p->thinking == 0
               ? 0
               : fault_set(f, 400, "unsupported_value", name,
                           "'%-s': the effort '%.32s' is unknown", name, word);
}

static int read_thinking(const struct field *d, const struct json *v, struct gen_params *p,
                         struct fault *f)
{
    const char *type = json_string_of(json_member(v, "type"), NULL);
    bool on;
    if (json_bool_of(v, &on)) {
        p->thinking = on;
        return 0;
    }
    if (json_kind(v) == JSON_KIND_STRING) {
        p->thinking = 1;
        return read_effort(d->name, v, p, f);
    }
    if (type == NULL)
        return wrong_type(f, d->name, "an object with a type", v);
    if (strcmp(type, "enabled") == 0)
        p->thinking = 1;
    else if (strcmp(type, "disabled") == 0)
        p->thinking = 0;
    else if (strcmp(type, "adaptive") != 0 && strcmp(type, "auto") != 0)
        return fault_set(f, 400, "unsupported_value", d->name,
                         "'%-s' has the unknown type '%.40s'", d->name, type);
    return read_budget(d->name, json_member(v, "budget_tokens"), p, f);
}

static int read_config(const struct field *d, const struct json *v, struct gen_params *p,
                       struct fault *f)
{
    struct json_iter it = json_begin(v);
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, d->name, "an object", v);
    while (json_next(&it)) {
        bool is_effort = strcmp(it.key, "effort") == 0;
        bool is_format = strcmp(it.key, "format") == 0;
        if (is_effort && read_effort(d->name, it.value, p, f) != 0)
            return -1;
        if (is_format && json_kind(it.value) != JSON_KIND_NULL &&
            form_read_format(d->name, it.value, &p->form, f) != 0)
            return -1;
        if (!is_effort && !is_format && json_kind(it.value) != JSON_KIND_NULL)
            return fault_set(f, 400, "unsupported_parameter", d->name,
                             "'%-s.%.40s' is not supported by this server", d->name,
                             it.key);
    }
    return 0;
}

static int read_edits(const struct field *d, const struct json *v, struct gen_params *p,
                      struct fault *f)
{
    const struct json *edits = json_member(v, "edits");
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, d->name, "an object", v);
    for (size_t i = 0; i < json_count(edits); i++) {
        const struct json *type = json_member(json_at(edits, i), "type");
        const char *name = json_string_of(type, NULL);
        if (!is_among(type, "clear_thinking_20251015 clear_tool_uses_20250919"))
            return fault_set(f, 400, "unsupported_value", d->name,
                             "'%-s': edits of the type '%.60s' are not supported", d->name,
                             name != NULL ? name : "?");
    }
    p->edits = json_count(edits) > 0 ? edits : NULL;
    return 0;
}

/* Reads an object whose member `format` gives the answer a form. */
static int read_text_format(const struct field *d, const struct json *v,
                            struct gen_params *p, struct fault *f)
{
    struct json_iter it = json_begin(v);
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, d->name, "an object", v);
    while (json_next(&it)) {
        if (json_kind(it.value) == JSON_KIND_NULL || strcmp(it.key, "verbosity") == 0)
            continue;
        if (strcmp(it.key, "format") != 0)
            return fault_set(f, 400, "unknown_parameter", d->name,
                             "'%-s' has an unknown member '%.100s'", d->name, it.key);
        if (form_read_format(d->name, it.value, &p->form, f) != 0)
            return -1;
    }
    return 0;
}

static int read_json_form(const char *name, const struct json *v, struct gen_params *p,
                          struct fault *f)
{
    const char *text = json_string_of(v, NULL);
    if (text == NULL)
        return form_read_value(name, HCACHE_FORM_SCHEMA, v, &p->form, f);
    if (text[0] != 0 && strcmp(text, "json") != 0)
        return fault_set(f, 400, "unsupported_value", name,
                         "'%-s' must be \"json\" or a JSON schema", name);
    if (text[0] != 0)
        p->form = (struct form_want){.field = name, .kind = HCACHE_FORM_SCHEMA};
    return 0;
}

static int read_prediction(const struct field *d, const struct json *v,
                           const struct json **out, struct fault *f)
{
    const struct json *content = json_member(v, "content");
    size_t n, n_parts = json_kind(content) == JSON_KIND_ARRAY ? json_count(content) : 0;
    if (json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, d->name, "an object", v);
    if (!json_string_is(json_member(v, "type"), "content"))
        return fault_field(f, d->name, "must have the type \"content\"");
    bool good = n_parts > 0 || json_kind(content) == JSON_KIND_STRING;
    for (size_t i = 0; i < n_parts; i++)
        good = good && json_string_of(json_member(json_at(content, i), "text"), &n) != NULL;
    if (!good)
        return fault_field(
            f, d->name,
            "must have a `content` that is a text or a list of parts with text");
    *out = content;
    return 0;
}

void request_prediction(const struct gen_params *p, struct textbuf *out)
{
    const struct json *v = p->prediction;
    bool is_list = json_kind(v) == JSON_KIND_ARRAY;
    size_t n, n_parts = is_list ? json_count(v) : v != NULL;
    for (size_t i = 0; i < n_parts; i++) {
        const struct json *part = is_list ? json_member(json_at(v, i), "text") : v;
        const char *text = json_string_of(part, &n);
        (void)textbuf_try_add(out, text, n); /* without memory less is guessed */
    }
}

/* Reads metadata, with the original API's bounds. */
static int read_pairs(const struct field *d, const struct json *v, const struct json **out,
                      struct fault *f)
{
    const char *text;
    struct json_iter it = json_begin(v);
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_type(f, d->name, "an object", v);
    if ((double)json_count(v) > d->hi)
        return fault_field(f, d->name, "has %zu members; at most %.0f are allowed",
                           json_count(v), d->hi);
    while (json_next(&it)) {
        if (strlen(it.key) > 64)
            return fault_field(f, d->name, "has a name of more than 64 bytes");
        if (read_text(d->name, it.value, 0, 512, &text, f) != 0)
            return -1;
    }
    *out = v;
    return 0;
}

int request_known(const struct json *body, const char *const *names, struct fault *f)
{
    struct json_iter it = json_begin(body);
    if (json_kind(body) != JSON_KIND_OBJECT)
        return fault_set(f, 400, NULL, NULL, "the body must be a JSON object, it is %-s",
                         json_kind_name(body));
    while (json_next(&it)) {
        int i = 0;
        while (names[i] != NULL && strcmp(names[i], it.key) != 0)
            i++;
        if (names[i] == NULL)
            return fault_set(f, 400, "unknown_parameter", it.key,
                             "unknown parameter '%.100s'", it.key);
    }
    return 0;
}

int request_ids(const struct json *list, const char *name, int32_t **out, int *n,
                struct fault *f)
{
    *n = (int)json_count(list);
    *out = xmalloc(((size_t)*n + 1) * sizeof **out);
    for (int i = 0; i < *n; i++) {
        int64_t id;
        if (!json_int_of(json_at(list, (size_t)i), &id) || id < 0 || id > INT32_MAX)
            return fault_set(f, 400, NULL, name, "'%-s' element %d is not a token id", name,
                             i);
        (*out)[i] = (int32_t)id;
    }
    return 0;
}

int request_metadata(const struct json *v, const struct json **out, struct fault *f)
{
    static const struct field d = {.name = "metadata", .hi = 16};
    *out = NULL;
    return json_kind(v) == JSON_KIND_NULL ? 0 : read_pairs(&d, v, out, f);
}

static bool is_neutral(const struct field *d, const struct json *v)
{
    double number;
    bool flag = true;
    const char *text = json_string_of(v, NULL);
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        return true;
    case JSON_KIND_BOOL:
        return json_bool_of(v, &flag) && !flag;
    case JSON_KIND_INT:
    case JSON_KIND_REAL:
        return json_real_of(v, &number) && number == d->lo;
    case JSON_KIND_STRING:
        return text != NULL && (text[0] == 0 || strcmp(text, "none") == 0);
    default:
        return json_count(v) == 0;
    }
}

/* Returns the decimal number that the whole key spells; -1: the key is no number. */
static int64_t id_of(const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > 9 || strspn(key, "0123456789") != n)
        return -1;
    return strtol(key, NULL, 10);
}

/* Reads entry i of logit_bias, an object or a list of pairs, whose keys are token ids or texts. *id
 * gets the id, or -1 for a text, which is in *text. Returns false behind the last entry, and for a
 * malformed one, with *bad set. */
static bool bias_at(const struct json *v, size_t i, struct json_iter *it, const char **text,
                    int64_t *id, double *bias, bool *bad)
{
    const struct json *value = NULL, *pair = json_at(v, i), *token = json_at(pair, 0);
    bool off = true;
    *id = -1;
    *text = NULL;
    *bad = false;
    if (json_kind(v) == JSON_KIND_OBJECT && json_next(it)) {
        *text = it->key;
        value = it->value;
    } else if (pair != NULL) {
        *text = json_string_of(token, NULL);
        value = json_at(pair, 1);
        *bad = json_count(pair) != 2 ||
               (*text == NULL && (!json_int_of(token, id) || *id < 0));
    } else {
        return false;
    }
    if (*text != NULL)
        *id = id_of(*text);
    /* An integer that is no id is not meant as a text. */
    if (*text != NULL && *id < 0)
        *bad |= strspn(*text, "-0123456789") == strlen(*text);
    if (json_bool_of(value, &off) && !off)
        *bias = -100; /* never */
    else
        *bad |= !json_real_of(value, bias) || !(*bias >= -100 && *bias <= 100);
    return !*bad;
}

static int read_bias(const struct field *d, const struct json *v, const struct json **out,
                     struct fault *f)
{
    struct json_iter it = json_begin(v);
    const char *text;
    double bias;
    int64_t id;
    bool bad = false;
    if (json_kind(v) != JSON_KIND_OBJECT && json_kind(v) != JSON_KIND_ARRAY)
        return wrong_type(f, d->name, "an object or a list of pairs", v);
    if (json_count(v) > HCACHE_MAX_BIAS)
        return fault_field(f, d->name, "has %zu members; at most %d are allowed",
                           json_count(v), HCACHE_MAX_BIAS);
    for (size_t i = 0; bias_at(v, i, &it, &text, &id, &bias, &bad);)
        i++;
    if (bad)
        return fault_field(f, d->name,
                           "must give tokens, by id or text, numbers from %.0f to %.0f",
                           d->lo, d->hi);
    *out = v;
    return 0;
}

static int read_id_list(const struct field *d, const struct json *v,
                        const struct json **out, struct fault *f)
{
    int64_t id;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return wrong_type(f, d->name, "a list", v);
    if ((double)json_count(v) > d->hi)
        return fault_field(f, d->name, "has %zu elements; at most %.0f are allowed",
                           json_count(v), d->hi);
    for (size_t i = 0; i < json_count(v); i++)
        if (!json_int_of(json_at(v, i), &id) || id < 0 || id > INT32_MAX)
            return fault_field(f, d->name, "element %zu is not a token id", i);
    *out = v;
    return 0;
}

int request_shaping(const struct gen_params *p, request_encoder encode,
                    const struct hcache *h, struct request_shaping *out, struct fault *f)
{
    struct json_iter it = json_begin(p->logit_bias);
    struct hcache_shaping *g = &out->shaping;
    struct hcache_err err = {0};
    const char *text;
    double bias;
    int64_t id;
    bool bad;
    *g = (struct hcache_shaping){
        .frequency_penalty = (float)p->frequency_penalty,
        .presence_penalty = (float)p->presence_penalty,
        .repetition_penalty = (float)p->repetition_penalty,
        .bias = out->bias,
        .stop_ids = out->stop_ids,
        .min_tokens = (int)p->min_tokens,
        .max_thought = (int)p->max_thought,
        .prompt_end = p->kind == REQUEST_COMPLETION ? NULL : p->prompt_end};
    for (size_t i = 0; bias_at(p->logit_bias, i, &it, &text, &id, &bias, &bad); i++) {
        int32_t one = (int32_t)id, *ids = NULL;
        int n = 1;
        if (id < 0 && encode(h, text, strlen(text), 0, &ids, &n, &err) != 0)
            return fault_field(f, "logit_bias", "has a text without tokens: %s", err.msg);
        for (int k = 0; k < n && g->n_bias < HCACHE_MAX_BIAS; k++)
            out->bias[g->n_bias++] = (struct hcache_bias){ids != NULL ? ids[k] : one,
                                                          (float)bias};
        free(ids);
    }
    for (int64_t stop = 0; g->n_stop_ids < (int)json_count(p->stop_ids) &&
                           json_int_of(json_at(p->stop_ids, (size_t)g->n_stop_ids), &stop);
         g->n_stop_ids++)
        out->stop_ids[g->n_stop_ids] = (int32_t)stop;
    return 0;
}

static int read_members(const struct json *object, unsigned kind, struct gen_params *out,
                        struct fault *f);

static int read_field(const struct field *d, const struct json *v, struct gen_params *p,
                      struct fault *f)
{
    void *at = (char *)p + d->offset;
    switch (d->kind) {
    case F_INT:
        return read_int(d, v, at, f);
    case F_REAL:
        return read_real(d, v, at, f);
    case F_BOOL:
        return read_bool(d->name, v, at, f);
    case F_STRING:
        return read_text(d->name, v, (size_t)d->lo, (size_t)d->hi, at, f);
    case F_BYTES:
        return read_bytes(d, v, at, f);
    case F_TREE:
        *(const struct json **)at = v;
        return 0;
    case F_LIST:
        return read_list(d, v, at, f);
    case F_CHOICE:
        return read_choice(d, v, p, f);
    case F_STOP:
        return read_stop(d, v, p, f);
    case F_OPTIONS:
        return read_stream_options(v, p, f);
    case F_LOGPROBS:
        return read_logprobs(d, v, p, f);
    case F_FORMAT:
        return form_read_format(d->name, v, &p->form, f);
    case F_TEXT:
        p->text = v;
        return read_text_format(d, v, p, f);
    case F_FORM:
        return form_read_value(d->name, (enum hcache_form_kind)d->lo, v, &p->form, f);
    case F_FORMS:
        return form_read_structured(d->name, v, &p->form, f);
    case F_ONE: {
        bool many = true;
        if (json_kind(v) != JSON_KIND_NULL && read_bool(d->name, v, &many, f) != 0)
            return -1;
        p->one_call = p->one_call || !many;
        return 0;
    }
    case F_BIAS:
        return read_bias(d, v, at, f);
    case F_IDS:
        return read_id_list(d, v, at, f);
    case F_PREDICTION:
        return read_prediction(d, v, at, f);
    case F_PAIRS:
        return read_pairs(d, v, at, f);
    case F_SEED:
        return read_seed(d, v, p, f);
    case F_EFFORT:
        return read_effort(d->name, v, p, f);
    case F_BUDGET:
        return read_budget(d->name, v, p, f);
    case F_THINKING:
        return read_thinking(d, v, p, f);
    case F_CONFIG:
        return read_config(d, v, p, f);
    case F_EDITS:
        return read_edits(d, v, p, f);
    case F_SWITCH: {
        bool on = false;
        if (read_bool(d->name, v, &on, f) != 0)
            return -1;
        *(int *)at = on;
        return 0;
    }
    case F_PROBS:
        if (read_int(d, v, &p->n_top, f) != 0)
            return -1;
        p->logprobs = p->logprobs || p->n_top > 0;
        return 0;
    case F_SAMPLERS:
        return read_samplers(d->name, v, p, f);
    case F_JSON:
        return read_json_form(d->name, v, p, f);
    case F_NESTED:
        return json_kind(v) != JSON_KIND_OBJECT ? wrong_type(f, d->name, "an object", v)
                                                : read_members(v, (unsigned)d->lo, p, f);
    case F_IGNORED:
        return 0;
    case F_EXTRA:
        request_note_ignored(p, d->name);
        return 0;
    case F_NEUTRAL:
        break;
    }
    return is_neutral(d, v) ? 0
                            : fault_set(f, 400, "unsupported_parameter", d->name,
                                        "'%-s' is not supported by this server", d->name);
}

void request_note_prompt(struct gen_params *p, const char *text, size_t n)
{
    size_t k = n < REQUEST_PROMPT_END ? n : REQUEST_PROMPT_END;
    memcpy(p->prompt_end, text + (n - k), k);
    p->prompt_end[k] = 0;
}

bool request_ignores(const void *kind, const char *name, size_t n)
{
    struct field d;
    return find(name, n, *(const unsigned *)kind, &d) &&
           (d.kind == F_IGNORED || d.kind == F_EXTRA);
}

/* Returns 1 + the number of answers in a chat's messages; 0: there are no messages. */
static int turn_of(const struct json *messages)
{
    int turn = json_count(messages) > 0 ? 1 : 0;
    for (size_t i = 0; i < json_count(messages); i++)
        turn += json_string_is(json_member(json_at(messages, i), "role"), "assistant");
    return turn;
}

int request_read_truncation(const char *text, bool *truncates,
                            struct hcache_truncation *numbers, struct fault *f)
{
    *numbers = (struct hcache_truncation){0};
    *truncates = strcmp(text, "disabled") != 0;
    if (!*truncates || strcmp(text, "auto") == 0)
        return 0;
    if (hcache_truncation_parse(text, numbers, NULL) == 0 && numbers->ratio > 0)
        return 0;
    return fault_set(f, 400, "unsupported_value", "truncation",
                     "'truncation' is \"%.64s\"; it must be auto or disabled, or a ratio "
                     "above 0 and below 1, then keep=K and context=C",
                     text);
}

static int read_truncation(struct gen_params *p, struct fault *f)
{
    bool truncates;
    if (p->truncation == NULL)
        return 0;
    if (request_read_truncation(p->truncation, &truncates, &p->numbers, f) != 0)
        return -1;
    p->truncation = truncates ? "auto" : "disabled";
    return 0;
}

/* Reads the members of a body, or of an object of options in it. */
static int read_members(const struct json *object, unsigned kind, struct gen_params *out,
                        struct fault *f)
{
    struct json_iter it = json_begin(object);
    struct field d;
    while (json_next(&it)) {
        if (!find(it.key, strlen(it.key), kind, &d))
            return fault_set(f, 400, "unknown_parameter", it.key,
                             "unknown parameter '%.100s'", it.key);
        if (json_kind(it.value) != JSON_KIND_NULL && /* null counts as absent */
            read_field(&d, it.value, out, f) != 0)
            return -1;
    }
    return 0;
}

/* With echo, log-probabilities are also those of the prompt's tokens. */
static int read_echo(struct gen_params *p, struct fault *f)
{
    if (!p->echo || !p->logprobs)
        return 0;
    p->reads = HCACHE_READS_LOGPROBS;
    return p->stream ? fault_set(f, 400, "unsupported_parameter", "echo",
                                 "'echo' with log-probabilities cannot be streamed")
                     : 0;
}

static int read_best_of(struct gen_params *p, bool is_llama, struct fault *f)
{
    if (p->best_of > 0 && p->best_of < p->n)
        return fault_field(f, "best_of", "is %lld; it must be at least n, %lld",
                           (long long)p->best_of, (long long)p->n);
    if (p->best_of > p->n && (p->stream || is_llama))
        return fault_set(f, 400, "unsupported_parameter", "best_of",
                         "'best_of' above n works on /v1/completions without stream only");
    return 0;
}

int request_parse(const struct json *body, unsigned kind, struct gen_params *out,
                  struct fault *f)
{
    bool is_ollama = (kind & REQUEST_OLLAMA) != 0, is_llama = (kind & REQUEST_LLAMA) != 0;
    *out = (struct gen_params){.kind = is_ollama  ? (unsigned)REQUEST_CHAT
                                       : is_llama ? (unsigned)REQUEST_COMPLETION
                                                  : kind,
                               .generation_prompt = -1,
                               .continues = -1,
                               .max_tokens = -1,
                               .max_completion_tokens = -1,
                               .n = 1,
                               .cache_ttl = -1,
                               .thinking = -1,
                               /* each API has defaults of its own */
                               .temperature = is_ollama || is_llama ? 0.8 : 1,
                               .top_p = is_ollama  ? 0.9
                                        : is_llama ? 0.95
                                                   : 1,
                               .top_k = is_ollama || is_llama ? 40 : 0,
                               .min_p = is_llama ? 0.05 : 0,
                               .stream = is_ollama,
                               .store = true};
    if (json_kind(body) != JSON_KIND_OBJECT)
        return fault_set(f, 400, NULL, NULL, "the body must be a JSON object, it is %-s",
                         json_kind_name(body));
    if (read_members(body, is_ollama ? (unsigned)REQUEST_OLLAMA : kind, out, f) != 0)
        return -1;
    if (out->max_completion_tokens >= 0)
        out->max_tokens = out->max_completion_tokens;
    if (out->top_k < 0)
        out->top_k = 0;
    if ((is_ollama || is_llama) && (out->seed == -1 || out->seed == UINT32_MAX))
        out->has_seed = false; /* a seed is drawn */
    if (read_echo(out, f) != 0 || read_best_of(out, is_llama, f) != 0)
        return -1;
    if (out->samplers != NULL)
        apply_samplers(out);
    if (out->generation_prompt == 1 && out->continues == 1)
        return fault_field(f, "continue_final_message",
                           "and 'add_generation_prompt' exclude each other");
    if (out->kind == REQUEST_CHAT && out->n_top > 0 && !out->logprobs)
        return fault_field(f, "top_logprobs", "needs 'logprobs' to be true");
    if (read_truncation(out, f) != 0)
        return -1;
    bool needs_prompt = !is_ollama && (kind & REQUEST_INFILL) == 0;
    if (out->messages == NULL && out->prompt == NULL && needs_prompt)
        return fault_field(f, request_prompt_name(out->kind), "is missing");
    if (kind == REQUEST_MESSAGE && out->max_tokens < 0)
        return fault_field(f, "max_tokens", "is missing");
    out->turn = turn_of(out->messages);
    return 0;
}

struct hcache_truncation request_truncation(const struct gen_params *p,
                                            const struct hcache_truncation *how)
{
    return p->numbers.ratio > 0 ? p->numbers : *how;
}

bool request_truncates(const struct gen_params *p, const struct hcache_truncation *how)
{
    if (how->ratio == 0)
        return false;
    return p->truncation != NULL ? strcmp(p->truncation, "auto") == 0
                                 : p->conversation != NULL;
}

const char *request_prompt_name(unsigned kind)
{
    return kind == REQUEST_COMPLETION ? "prompt"
           : kind == REQUEST_RESPONSE ? "input"
                                      : "messages";
}

const char *request_max_name(const struct gen_params *p)
{
    return p->kind == REQUEST_RESPONSE     ? "max_output_tokens"
           : p->max_completion_tokens >= 0 ? "max_completion_tokens"
                                           : "max_tokens";
}

/* --- the schema ------------------------------------------------------------------------------- */

static struct json *field_schema(const struct field *d)
{
    struct json *o = json_new_object();
    if (d->kind == F_INT || d->kind == F_REAL) {
        json_extend(o, "{type: %s, minimum: %g, maximum: %g}",
                    d->kind == F_INT ? "integer" : "number", d->lo, d->hi);
    } else if (d->kind == F_SEED) {
        json_put_string(o, "type", "integer");
    } else if (d->kind == F_BOOL || d->kind == F_STRING) {
        json_put_string(o, "type", d->kind == F_BOOL ? "boolean" : "string");
    }
    json_put_string(o, "description", d->help);
    return o;
}

struct json *request_schema(unsigned kind)
{
    struct json *o = json_new_object();
    for (int i = 0; i < N_FIELDS; i++) {
        const char *at = fields[i].name, *name;
        size_t n;
        while ((fields[i].where & kind) != 0 && (name = next_name(&at, &n)) != NULL) {
            char one[64];
            snprintf(one, sizeof one, "%.*s", (int)n, name);
            json_put(o, one, field_schema(&fields[i]));
        }
    }
    return o;
}
