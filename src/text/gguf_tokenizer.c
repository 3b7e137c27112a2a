/* gguf_tokenizer.c - see gguf_tokenizer.h. */
#include "text/gguf_tokenizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "bpe/tokenizer_steps.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name)    "tokenizer.ggml." name
#define METASPACE    "\xE2\x96\x81"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES_LAST  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_PATTERN                                                                     \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                            \
                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_LAST
#define QWEN2_PATTERN                                                                      \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                 \
                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_LAST
#define QWEN35_PATTERN                                                                     \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                         \
                 "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES_LAST
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(end)                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER       \
    "+" LOWER "*" end
#define TEKKEN_PATTERN CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES_LAST
#define GPT4O_PATTERN                                                                      \
    CASED(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES_LAST

/* --- pre-tokenizers, by name -------------------------------------------------------------- */

enum cut {
    CUT_GPT2,   /* pieces by GPT-2's own pattern */
    CUT_DIGITS, /* first each digit alone, then GPT-2's pattern */
    /* first punctuation, then GPT-2's pattern, then digits in groups of three */
    CUT_FALCON,
    CUT_CODER,   /* as in DeepSeek Coder: lines, letters, punctuation, Chinese, digits */
    CUT_PATTERN, /* one pattern, the field `pattern` below */
};

static const struct pre {
    const char *name;
    enum cut cut;
    const char *pattern;
    bool ignore_merges; /* a piece that is itself a token is not split */
    /* whether a BOS token is put before the text if the file does not say */
    bool add_bos;
    bool nfc; /* Hugging Face's tokenizer normalizes the text to NFC */
} pres[] = {
    {"gpt-2", CUT_GPT2, NULL, false, false, false},
    {"phi-2", CUT_GPT2, NULL, false, false, false},
    {"olmo", CUT_GPT2, NULL, false, false, false},
    {"smollm", CUT_DIGITS, NULL, false, false, false},
    {"starcoder", CUT_DIGITS, NULL, false, false, false},
    {"refact", CUT_DIGITS, NULL, false, false, false},
    {"command-r", CUT_DIGITS, NULL, false, false, false},
    {"codeshell", CUT_DIGITS, NULL, false, false, false},
    {"minerva-7b", CUT_DIGITS, NULL, false, false, false},
    {"falcon", CUT_FALCON, NULL, false, false, false},
    {"deepseek-coder", CUT_CODER, NULL, false, false, false},
    {"llama-bpe", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"llama3", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"llama-v3", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"falcon3", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"lfm2", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"pixtral", CUT_PATTERN, LLAMA3_PATTERN, true, true, false},
    {"dbrx", CUT_PATTERN, LLAMA3_PATTERN, false, false, false},
    {"smaug-bpe", CUT_PATTERN, LLAMA3_PATTERN, false, false, false},
    {"qwen2", CUT_PATTERN, QWEN2_PATTERN, false, false, true},
    {"qwen35", CUT_PATTERN, QWEN35_PATTERN, false, false, true},
    {"deepseek-r1-qwen", CUT_PATTERN, QWEN2_PATTERN, false, false, false},
    {"megrez", CUT_PATTERN, QWEN2_PATTERN, false, false, false},
    {"stablelm2", CUT_PATTERN, QWEN2_PATTERN, false, false, false},
    {"tekken", CUT_PATTERN, TEKKEN_PATTERN, true, true, false},
    {"gpt-4o", CUT_PATTERN, GPT4O_PATTERN, false, false, false},
};
enum { N_PRES = sizeof pres / sizeof pres[0] };

static struct pretokenizer_step split(struct tokenizer_json *t, const char *pattern)
{
    return (struct pretokenizer_step){
        .kind = PRETOKENIZER_SPLIT,
        .pattern = tokenizer_json_copy(t, pattern, strlen(pattern)),
        .is_regex = true,
        .behavior = SPLIT_ISOLATED};
}

static void add_step(struct tokenizer_json *t, struct pretokenizer_step s)
{
    t->pretokenizers[t->n_pretokenizers++] = s;
}

static void add_cuts(struct tokenizer_json *t, const struct pre *p)
{
    const struct pretokenizer_step bytes = {.kind = PRETOKENIZER_BYTE_LEVEL};
    const struct pretokenizer_step gpt2 = {.kind = PRETOKENIZER_BYTE_LEVEL,
                                           .use_regex = true};
    switch (p->cut) {
    case CUT_GPT2:
        add_step(t, gpt2);
        break;
    case CUT_DIGITS:
        add_step(
            t, (struct pretokenizer_step){.kind = PRETOKENIZER_DIGITS, .individual = true});
        add_step(t, gpt2);
        break;
    case CUT_FALCON:
        add_step(t, (struct pretokenizer_step){.kind = PRETOKENIZER_PUNCTUATION,
                                               .behavior = SPLIT_CONTIGUOUS});
        add_step(t, gpt2);
        add_step(t, (struct pretokenizer_step){.kind = PRETOKENIZER_DIGITS});
        add_step(t, split(t, "[0-9][0-9][0-9]"));
        break;
    case CUT_CODER:
        add_step(t, split(t, "[\\r\\n]"));
        add_step(t, split(t, "\\s?\\p{L}+"));
        add_step(t, split(t, "\\s?\\p{P}+"));
        add_step(t, split(t, "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80"
                             "\xEA\xB0\x80-\xED\x9F\xBF]+"));
        add_step(t, split(t, "\\p{N}"));
        add_step(t, bytes);
        break;
    case CUT_PATTERN:
        add_step(t, split(t, p->pattern));
        add_step(t, bytes);
        break;
    }
}

static const struct pre *find_pre(const struct gguf *g, struct err *err)
{
    char known[512] = "";
    const char *s = "";
    size_t n = 0, len = 0;
    gguf_string(gguf_find(g, KEY("pre")), &s, &n);
    for (int i = 0; i < N_PRES; i++) {
        if (strlen(pres[i].name) == n && memcmp(pres[i].name, s, n) == 0)
            return &pres[i];
        int k = snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "",
                         pres[i].name);
        len += k > 0 && (size_t)k < sizeof known - len ? (size_t)k : 0;
    }
    err_set(err, ERR_UNSUPPORTED,
            "'" KEY("pre") "': '%.*s' is not supported (empty: the file does not name its "
                           "pre-tokenizer); supported are %s",
            n < 40 ? (int)n : 40, s, known);
    return NULL;
}

/* --- tokens ------------------------------------------------------------------------------- */

int gguf_token_type(const struct gguf *g, uint64_t id)
{
    int64_t type = GGUF_TOKEN_NORMAL;
    gguf_int(gguf_find(g, KEY("token_type")), id, &type);
    return type >= 0 && type <= GGUF_TOKEN_BYTE ? (int)type : GGUF_TOKEN_NORMAL;
}

static int add_tokens(struct tokenizer_json *t, const struct gguf *g, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, KEY("tokens"));
    struct gguf_strings it;
    const char *s;
    size_t n;
    if (!gguf_strings_begin(v, &it) || v->n == 0 || v->n > TOKENIZER_MAX_ID)
        return err_set(err, ERR_FORMAT,
                       "'" KEY("tokens") "' must be a list of 1 to %d strings",
                       TOKENIZER_MAX_ID);
    t->n_ids = (int32_t)v->n;
    t->tokens = xcalloc((size_t)t->n_ids, sizeof *t->tokens);
    t->reserved = xcalloc((size_t)t->n_ids, sizeof *t->reserved);
    slots_init(&t->by_text, (size_t)t->n_ids, TOKENIZER_MAX_ID + 1);
    for (int32_t id = 0; gguf_strings_next(&it, &s, &n); id++) {
        int type = gguf_token_type(g, (uint64_t)id);
        if (n > UINT32_MAX / 4 || utf8_check(s, n) != n)
            return err_set(err, ERR_FORMAT, "token %d is not UTF-8 text", id);
        t->reserved[id] = type == GGUF_TOKEN_UNUSED || type == GGUF_TOKEN_BYTE;
        if (n == 0)
            continue; /* an unused id */
        t->tokens[id] = tokenizer_json_copy(t, s, n);
        tokenizer_json_index(t, id);
        int32_t first = tokenizer_json_find(t, s, n);
        if (first != id && !t->reserved[id])
            return err_set(err, ERR_FORMAT, "'%.60s' is token %d and %d", t->tokens[id].s,
                           first, id);
    }
    return 0;
}

/* Collects the tokens that are matched in the text itself.  Only control tokens and the unknown
 * token are special: a user's text never becomes them.  A token that ends a turn by its text is a
 * control token even if the file calls it ordinary, as some published files do. */
static void add_added(struct tokenizer_json *t, const struct gguf *g)
{
    t->added = xcalloc((size_t)t->n_ids, sizeof *t->added);
    for (int32_t id = 0; id < t->n_ids; id++) {
        int type = gguf_token_type(g, (uint64_t)id);
        bool special = type == GGUF_TOKEN_CONTROL || type == GGUF_TOKEN_UNKNOWN ||
                       token_ends_turn(t->tokens[id].s, t->tokens[id].n);
        if (t->tokens[id].s == NULL || (!special && type != GGUF_TOKEN_USER_DEFINED))
            continue;
        t->added[t->n_added++] = (struct tokenizer_added){
            .text = t->tokens[id], .id = id, .special = special};
    }
    t->added = xrealloc(t->added, (t->n_added + 1) * sizeof *t->added);
}

/* Phi-3's special tokens absorb the white space after them.  GGUF has no field for this, so the
 * model's name decides, as in llama.cpp. */
static void strip_behind_phi3(struct tokenizer_json *t, const struct gguf *g)
{
    const char *s = "";
    size_t n = 0;
    char name[256];
    gguf_string(gguf_find(g, "general.name"), &s, &n);
    n = n < sizeof name ? n : sizeof name - 1;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)tolower((unsigned char)s[i]);
    name[n] = '\0';
    if (strstr(name, "phi-3") == NULL && strstr(name, "phi3") == NULL)
        return;
    for (size_t i = 0; i < t->n_added; i++) {
        const char *text = t->added[i].text.s;
        t->added[i].rstrip = strcmp(text, "<unk>") != 0 && strcmp(text, "<s>") != 0 &&
                             strcmp(text, "<|endoftext|>") != 0;
    }
}

/* Reads the id of the token that metadata `key` names into *out; -1 if the file has none. */
static int token_id(const struct tokenizer_json *t, const struct gguf *g, const char *key,
                    int32_t *out, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    int64_t id = -1;
    if (v != NULL && (v->is_array || !gguf_int(v, 0, &id) || id < 0 || id >= t->n_ids ||
                      t->tokens[id].s == NULL))
        return err_set(err, ERR_FORMAT, "'%s' is none of the %d tokens", key, t->n_ids);
    *out = (int32_t)id;
    return 0;
}

static int opt_bool(const struct gguf *g, const char *key, bool *io, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (v != NULL && !gguf_bool(v, 0, io))
        return err_set(err, ERR_FORMAT, "'%s' must be true or false", key);
    return 0;
}

/* Sets the ids that are put before and after a text. If the file names no BOS (or EOS) token, none
 * is put there, even if the file says that one is added. */
static int add_template(struct tokenizer_json *t, const struct gguf *g, bool add_bos,
                        struct err *err)
{
    bool add_eos = false;
    int32_t bos, eos;
    int rc;
    t->has_template = true;
    if ((rc = opt_bool(g, KEY("add_bos_token"), &add_bos, err)) != 0 ||
        (rc = opt_bool(g, KEY("add_eos_token"), &add_eos, err)) != 0 ||
        (rc = token_id(t, g, KEY("bos_token_id"), &bos, err)) != 0 ||
        (rc = token_id(t, g, KEY("eos_token_id"), &eos, err)) != 0)
        return rc;
    if (add_bos && bos >= 0)
        t->prefix[t->n_prefix++] = bos;
    if (add_eos && eos >= 0)
        t->suffix[t->n_suffix++] = eos;
    return 0;
}

/* --- the two kinds ------------------------------------------------------------------------ */

static int read_gpt2(struct tokenizer_json *t, const struct gguf *g, bool *add_bos,
                     struct err *err)
{
    const struct gguf_value *v = gguf_find(g, KEY("merges"));
    struct gguf_strings it;
    const char *s;
    size_t n;
    bool space = false;
    int rc = opt_bool(g, KEY("add_space_prefix"), &space, err);
    if (rc != 0)
        return rc;
    if (space)
        return err_set(
            err, ERR_UNSUPPORTED,
            "'" KEY("add_space_prefix") "' is not supported in a gpt2 tokenizer");
    const struct pre *p = find_pre(g, err);
    if (p == NULL)
        return ERR_UNSUPPORTED;
    if (!gguf_strings_begin(v, &it) || v->n > (1u << 24))
        return err_set(err, ERR_FORMAT, "'" KEY("merges") "' must be a list of strings");
    t->merges = xcalloc((size_t)v->n + 1, sizeof *t->merges);
    while (rc == 0 && gguf_strings_next(&it, &s, &n))
        rc = tokenizer_json_add_merge(t, s, n, err);
    add_cuts(t, p);
    t->ignore_merges = p->ignore_merges;
    *add_bos = p->add_bos;
    if (p->nfc)
        t->normalizers[t->n_normalizers++] = (struct normalizer_step){
            .kind = NORMALIZER_NFC};
    t->decoders[t->n_decoders++] = (struct decoder_step){.kind = DECODER_BYTE_LEVEL};
    return rc;
}

static int read_scores(struct tokenizer_json *t, const struct gguf *g, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, KEY("scores"));
    t->scores = xcalloc((size_t)t->n_ids, sizeof *t->scores);
    for (int32_t i = 0; i < t->n_ids; i++) {
        double score;
        if (v == NULL || !v->is_array || !gguf_real(v, (uint64_t)i, &score) ||
            !isfinite((float)score))
            return err_set(err, ERR_FORMAT,
                           "'" KEY("scores") "' must have a number for each of %d tokens",
                           t->n_ids);
        t->scores[i] = (float)score;
    }
    return 0;
}

static bool has_all_bytes(const struct tokenizer_json *t)
{
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        if (tokenizer_json_find(t, name, 6) < 0)
            return false;
    }
    return true;
}

static void add_llama_steps(struct tokenizer_json *t, bool prefix)
{
    struct tokenizer_text space = tokenizer_json_copy(t, " ", 1);
    struct tokenizer_text meta = tokenizer_json_copy(t, METASPACE, 3);
    if (prefix)
        t->normalizers[t->n_normalizers++] = (struct normalizer_step){
            .kind = NORMALIZER_PREPEND, .text = meta};
    t->normalizers[t->n_normalizers++] = (struct normalizer_step){
        .kind = NORMALIZER_REPLACE, .pattern = space, .text = meta};
    t->decoders[t->n_decoders++] = (struct decoder_step){
        .kind = DECODER_REPLACE, .pattern = meta, .text = space};
    if (t->byte_fallback)
        t->decoders[t->n_decoders++] = (struct decoder_step){.kind = DECODER_BYTE_FALLBACK};
    t->decoders[t->n_decoders++] = (struct decoder_step){.kind = DECODER_FUSE};
    if (prefix)
        t->decoders[t->n_decoders++] = (struct decoder_step){
            .kind = DECODER_STRIP, .text = space, .start = 1};
}

static int read_llama(struct tokenizer_json *t, const struct gguf *g, struct err *err)
{
    bool prefix = true, squeeze = false;
    int rc;
    if ((rc = opt_bool(g, KEY("add_space_prefix"), &prefix, err)) != 0 ||
        (rc = opt_bool(g, KEY("remove_extra_whitespaces"), &squeeze, err)) != 0 ||
        (rc = token_id(t, g, KEY("unknown_token_id"), &t->unk_id, err)) != 0)
        return rc;
    if (squeeze || gguf_find(g, KEY("precompiled_charsmap")) != NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "'" KEY("remove_extra_whitespaces") "' and '" KEY(
                           "precompiled_charsmap") "' are not supported");
    t->fuse_unk = true;
    t->byte_fallback = has_all_bytes(t);
    add_llama_steps(t, prefix);
    return read_scores(t, g, err);
}

static int read_tokenizer(struct tokenizer_json *t, const struct gguf *g, struct err *err)
{
    const char *s = "none";
    size_t n = 4;
    gguf_string(gguf_find(g, KEY("model")), &s, &n);
    bool gpt2 = n == 4 && memcmp(s, "gpt2", 4) == 0;
    bool llama = n == 5 && memcmp(s, "llama", 5) == 0;
    if ((n == 4 && memcmp(s, "none", 4) == 0) || (n == 8 && memcmp(s, "no_vocab", 8) == 0))
        return err_set(err, -ENOENT, "has no tokenizer");
    if (!gpt2 && !llama)
        return err_set(err, ERR_UNSUPPORTED,
                       "'" KEY("model") "': '%.*s' is not supported; gpt2 and llama are",
                       n < 40 ? (int)n : 40, s);
    bool add_bos = true;
    int rc = add_tokens(t, g, err);
    if (rc != 0)
        return rc;
    add_added(t, g);
    strip_behind_phi3(t, g);
    rc = gpt2 ? read_gpt2(t, g, &add_bos, err) : read_llama(t, g, err);
    return rc == 0 ? add_template(t, g, add_bos, err) : rc;
}

int gguf_tokenizer_read(struct tokenizer_json *out, const struct gguf *g, const char *file,
                        struct err *err)
{
    memset(out, 0, sizeof *out);
    out->unk_id = -1;
    int rc = read_tokenizer(out, g, err);
    return rc == 0 ? 0 : (err_wrap(err, "%s", file), rc);
}
