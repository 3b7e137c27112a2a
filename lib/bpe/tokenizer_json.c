/* tokenizer_json.c - see tokenizer_json.h: vocabulary, merges and added tokens.  tokenizer_steps.c
 * reads the other steps. */
#include "bpe/tokenizer_steps.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of the first block and of the largest ones. Sizes double in between, so that a small file
 * costs little memory. */
#define FIRST_BLOCK_BYTES (1u << 12)
#define BLOCK_BYTES       (1u << 20)

/* --- strings ------------------------------------------------------------------------------ */

/* Returns room for n bytes and a final zero. The memory comes in blocks, so strings never move. */
static char *take(struct tokenizer_json *t, size_t n)
{
    if (t->n_blocks == 0 || t->block_cap - t->block_used < n + 1) {
        size_t cap = t->n_blocks == 0 ? FIRST_BLOCK_BYTES : t->block_cap * 2;
        cap = MIN(cap, BLOCK_BYTES);
        t->block_cap = n + 1 > cap ? n + 1 : cap;
        t->block_used = 0;
        t->blocks = xrealloc(t->blocks, (t->n_blocks + 1) * sizeof *t->blocks);
        t->blocks[t->n_blocks++] = xmalloc(t->block_cap);
    }
    char *p = t->blocks[t->n_blocks - 1] + t->block_used;
    t->block_used += n + 1;
    return p;
}

struct tokenizer_text tokenizer_json_copy(struct tokenizer_json *t, const char *s, size_t n)
{
    char *p = take(t, n);
    memcpy(p, s, n);
    p[n] = '\0';
    return (struct tokenizer_text){.s = p, .n = n};
}

/* Returns the slot of a text, or the empty slot where it belongs. */
static uint32_t *text_slot(const struct tokenizer_json *t, const char *s, size_t n,
                           uint64_t hash)
{
    uint32_t *slot = slots_next(&t->by_text, hash, NULL);
    for (; *slot != 0; slot = slots_next(&t->by_text, hash, slot)) {
        const struct tokenizer_text *x = &t->tokens[slots_index(&t->by_text, *slot)];
        if (x->n == n && memcmp(x->s, s, n) == 0)
            break;
    }
    return slot;
}

int32_t tokenizer_json_find(const struct tokenizer_json *t, const char *text, size_t n)
{
    if (t->n_ids == 0)
        return -1;
    return (int32_t)slots_index(&t->by_text, *text_slot(t, text, n, checksum64(text, n)));
}

void tokenizer_json_index(struct tokenizer_json *t, int32_t id)
{
    if (t->by_text.count == t->by_text.max) { /* twice the room, and all texts again */
        size_t max = 2 * t->by_text.max + 64;
        slots_deinit(&t->by_text);
        slots_init(&t->by_text, max, TOKENIZER_MAX_ID + 1);
        for (int32_t i = 0; i < t->n_ids; i++)
            if (t->tokens[i].s != NULL && i != id)
                tokenizer_json_index(t, i);
    }
    uint64_t hash = checksum64(t->tokens[id].s, t->tokens[id].n);
    uint32_t *slot = text_slot(t, t->tokens[id].s, t->tokens[id].n, hash);
    if (*slot == 0)
        slots_set(&t->by_text, slot, hash, (size_t)id);
}

void tokenizer_json_deinit(struct tokenizer_json *t)
{
    for (size_t i = 0; i < t->n_blocks; i++)
        free(t->blocks[i]);
    free(t->blocks);
    free(t->tokens);
    free(t->merges);
    free(t->added);
    free(t->scores);
    free(t->reserved);
    slots_deinit(&t->by_text);
    memset(t, 0, sizeof *t);
}

/* --- vocabulary --------------------------------------------------------------------------- */

/* Sets n_ids from the highest id of the vocabulary and the added tokens; checks that all are in
 * range. */
static int find_n_ids(struct tokenizer_json *t, const struct json *vocab,
                      const struct json *added, struct err *err)
{
    int64_t max = -1, id;
    struct json_iter it = json_begin(vocab);
    while (json_next(&it)) {
        if (!json_int_of(it.value, &id) || id < 0 || id > TOKENIZER_MAX_ID)
            return err_set(err, ERR_FORMAT,
                           "vocab: the id of '%s' must be an integer in 0..%d", it.key,
                           TOKENIZER_MAX_ID);
        max = MAX(id, max);
    }
    for (size_t i = 0; i < json_count(added); i++) {
        int rc = json_get_int(json_at(added, i), "id", 0, TOKENIZER_MAX_ID, &id, err);
        if (rc != 0) {
            err_wrap(err, "added_tokens[%zu]", i);
            return rc;
        }
        max = MAX(id, max);
    }
    if (max < 0)
        return err_set(err, ERR_FORMAT, "the vocabulary is empty");
    t->n_ids = (int32_t)max + 1;
    t->tokens = xcalloc((size_t)t->n_ids, sizeof *t->tokens);
    slots_init(&t->by_text, json_count(vocab) + json_count(added), TOKENIZER_MAX_ID + 1);
    return 0;
}

static int add_token(struct tokenizer_json *t, const char *s, size_t n, int32_t id,
                     struct err *err)
{
    if (t->tokens[id].s != NULL)
        return err_set(err, ERR_FORMAT, "id %d belongs to two tokens, '%s' and '%s'", id,
                       t->tokens[id].s, s);
    t->tokens[id] = tokenizer_json_copy(t, s, n);
    tokenizer_json_index(t, id);
    return 0;
}

static int read_vocab(struct tokenizer_json *t, const struct json *vocab, struct err *err)
{
    struct json_iter it = json_begin(vocab);
    while (json_next(&it)) {
        int64_t id = 0;
        json_int_of(it.value, &id); /* find_n_ids has checked the value */
        int rc = add_token(t, it.key, strlen(it.key), (int32_t)id, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* --- merges ------------------------------------------------------------------------------- */

static int add_merge(struct tokenizer_json *t, const char *a, size_t na, const char *b,
                     size_t nb, struct err *err)
{
    char stack[512], *joined = na + nb <= sizeof stack ? stack : xmalloc(na + nb);
    memcpy(joined, a, na);
    memcpy(joined + na, b, nb);
    struct tokenizer_merge m = {
        .left = tokenizer_json_find(t, a, na),
        .right = tokenizer_json_find(t, b, nb),
        .joined = tokenizer_json_find(t, joined, na + nb),
    };
    int rc = 0;
    if (m.left < 0)
        rc = err_set(err, ERR_FORMAT, "merges[%zu]: token '%.*s' is not in the vocabulary",
                     t->n_merges, (int)na, a);
    else if (m.right < 0)
        rc = err_set(err, ERR_FORMAT, "merges[%zu]: token '%.*s' is not in the vocabulary",
                     t->n_merges, (int)nb, b);
    else if (m.joined < 0)
        rc = err_set(err, ERR_FORMAT,
                     "merges[%zu]: token '%.*s%.*s' is not in the vocabulary", t->n_merges,
                     (int)na, a, (int)nb, b);
    else
        t->merges[t->n_merges++] = m;
    if (joined != stack)
        free(joined);
    return rc;
}

/* Adds a merge from a line "a b": one space with at least one byte on either side. */
int tokenizer_json_add_merge(struct tokenizer_json *t, const char *line, size_t n,
                             struct err *err)
{
    const char *space = memchr(line, ' ', n);
    size_t na = space != NULL ? (size_t)(space - line) : 0;
    if (space == NULL || na == 0 || na + 1 == n ||
        memchr(space + 1, ' ', n - na - 1) != NULL)
        return err_set(err, ERR_FORMAT, "merges[%zu]: '%.*s' is not two tokens and a space",
                       t->n_merges, (int)n, line);
    return add_merge(t, line, na, space + 1, n - na - 1, err);
}

/* Reads both forms: "a b", and ["a", "b"] of newer files. */
static int read_merges(struct tokenizer_json *t, const struct json *merges, struct err *err)
{
    t->merges = xcalloc(json_count(merges), sizeof *t->merges);
    for (size_t i = 0; i < json_count(merges); i++) {
        const struct json *v = json_at(merges, i);
        size_t n, na, nb;
        const char *line = json_string_of(v, &n);
        const char *a = json_string_of(json_at(v, 0), &na);
        const char *b = json_string_of(json_at(v, 1), &nb);
        int rc;
        if (line != NULL)
            rc = tokenizer_json_add_merge(t, line, n, err);
        else if (json_count(v) == 2 && a != NULL && b != NULL)
            rc = add_merge(t, a, na, b, nb, err);
        else
            rc = err_set(err, ERR_FORMAT, "merges[%zu] must be \"a b\" or [\"a\", \"b\"]",
                         i);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* --- added tokens ------------------------------------------------------------------------- */

static int read_added_token(struct tokenizer_json *t, const struct json *v, struct err *err)
{
    struct tokenizer_added *a = &t->added[t->n_added];
    const char *text = NULL;
    int64_t id = 0;
    bool single_word = false;
    a->normalized = true; /* the default of Hugging Face's tokenizers */
    int rc;
    if ((rc = json_get_string(v, "content", &text, err)) != 0 ||
        (rc = json_get_int(v, "id", 0, TOKENIZER_MAX_ID, &id, err)) != 0 ||
        (rc = json_opt_bool(v, "special", &a->special, err)) != 0 ||
        (rc = json_opt_bool(v, "lstrip", &a->lstrip, err)) != 0 ||
        (rc = json_opt_bool(v, "rstrip", &a->rstrip, err)) != 0 ||
        (rc = json_opt_bool(v, "single_word", &single_word, err)) != 0 ||
        (rc = json_opt_bool(v, "normalized", &a->normalized, err)) != 0)
        return rc;
    if (text[0] == '\0')
        return err_set(err, ERR_FORMAT, "'content' is empty");
    if (single_word)
        return err_set(err, ERR_UNSUPPORTED, "'single_word' is not supported");
    a->id = (int32_t)id;
    const size_t n = strlen(text);
    int32_t known = tokenizer_json_find(t, text, n);
    if (known >= 0 && known != a->id)
        return err_set(err, ERR_FORMAT, "'%s' has id %d here and %d in the vocabulary",
                       text, a->id, known);
    a->in_vocab = known >= 0;
    if (known < 0 && (rc = add_token(t, text, n, a->id, err)) != 0)
        return rc;
    a->text = t->tokens[a->id];
    t->n_added++;
    return 0;
}

static int read_added(struct tokenizer_json *t, const struct json *list, struct err *err)
{
    t->added = xcalloc(json_count(list), sizeof *t->added);
    for (size_t i = 0; i < json_count(list); i++) {
        int rc = read_added_token(t, json_at(list, i), err);
        if (rc != 0) {
            err_wrap(err, "added_tokens[%zu]", i);
            return rc;
        }
    }
    return 0;
}

static struct tokenizer_added *find_added(struct tokenizer_json *t, int32_t id)
{
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].id == id)
            return &t->added[i];
    return NULL;
}

/* Adds one more id, which has no text yet. */
static void grow_ids(struct tokenizer_json *t)
{
    t->tokens = xrealloc(t->tokens, ((size_t)t->n_ids + 1) * sizeof *t->tokens);
    t->tokens[t->n_ids++] = (struct tokenizer_text){0};
}

int tokenizer_json_add(struct tokenizer_json *t, const struct tokenizer_added *a,
                       struct err *err)
{
    int32_t id = tokenizer_json_find(t, a->text.s, a->text.n);
    struct tokenizer_added *old = id >= 0 ? find_added(t, id) : NULL;
    struct tokenizer_added made = *a;
    if (id < 0) {
        bool is_free = a->id == t->n_ids ||
                       (a->id >= 0 && a->id < t->n_ids && t->tokens[a->id].s == NULL);
        if (!is_free || a->id > TOKENIZER_MAX_ID)
            return err_set(err, ERR_MISMATCH,
                           "token '%.80s' has id %d, but the next free one is %d",
                           a->text.s, a->id, t->n_ids);
        if (a->id == t->n_ids)
            grow_ids(t);
        int rc = add_token(t, a->text.s, a->text.n, id = a->id, err);
        if (rc != 0)
            return rc;
    } else {
        made.in_vocab = old == NULL || old->in_vocab;
    }
    made.id = id;
    made.text = t->tokens[id];
    if (old == NULL) {
        t->added = xrealloc(t->added, (t->n_added + 1) * sizeof *t->added);
        old = &t->added[t->n_added++];
    }
    *old = made;
    return 0;
}

static const char *const turn_ends[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "</s>",
    "<eos>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>", /* DeepSeek */
};

const char *token_end_at(int i)
{
    int n = sizeof turn_ends / sizeof turn_ends[0];
    return i < n ? turn_ends[i] : NULL;
}

bool token_ends_turn(const char *text, size_t n)
{
    for (size_t i = 0; i < sizeof turn_ends / sizeof turn_ends[0]; i++)
        if (strlen(turn_ends[i]) == n && memcmp(turn_ends[i], text, n) == 0)
            return true;
    return false;
}

bool tokenizer_json_is_added(const struct tokenizer_json *t, const char *text, size_t n)
{
    const int32_t id = tokenizer_json_find(t, text, n);
    for (size_t i = 0; id >= 0 && i < t->n_added; i++)
        if (t->added[i].id == id)
            return true;
    return false;
}

int32_t tokenizer_json_next_id(const struct tokenizer_json *t)
{
    int32_t n_vocab = 0, next = 0;
    for (int32_t id = 0; id < t->n_ids; id++)
        n_vocab += t->tokens[id].s != NULL;
    for (size_t i = 0; i < t->n_added; i++) {
        n_vocab -= !t->added[i].in_vocab;
        if (t->added[i].id >= next)
            next = t->added[i].id + 1;
    }
    return next > n_vocab ? next : n_vocab;
}

/* --- the model ---------------------------------------------------------------------------- */

static int refuse_string(const struct json *o, const char *key, struct err *err)
{
    const char *s = "";
    int rc = json_opt_string(o, key, &s, err);
    if (rc == 0 && s[0] != '\0')
        rc = err_set(err, ERR_UNSUPPORTED, "'%s' is not supported", key);
    return rc;
}

/* Reads the options of the model, and refuses those that would change the ids and are not
 * supported. */
static int read_model_options(struct tokenizer_json *t, const struct json *m,
                              struct err *err)
{
    double dropout = 0;
    const char *unk = NULL;
    int rc;
    if ((rc = refuse_string(m, "continuing_subword_prefix", err)) != 0 ||
        (rc = refuse_string(m, "end_of_word_suffix", err)) != 0 ||
        (rc = json_opt_real(m, "dropout", &dropout, err)) != 0 ||
        (rc = json_opt_bool(m, "byte_fallback", &t->byte_fallback, err)) != 0 ||
        (rc = json_opt_bool(m, "fuse_unk", &t->fuse_unk, err)) != 0 ||
        (rc = json_opt_bool(m, "ignore_merges", &t->ignore_merges, err)) != 0 ||
        (rc = json_opt_string(m, "unk_token", &unk, err)) != 0)
        return rc;
    if (dropout != 0)
        return err_set(err, ERR_UNSUPPORTED, "'dropout' is not supported");
    t->unk_id = unk != NULL ? tokenizer_json_find(t, unk, strlen(unk)) : -1;
    if (unk != NULL && t->unk_id < 0)
        return err_set(err, ERR_FORMAT, "'unk_token' '%s' is not in the vocabulary", unk);
    return 0;
}

static int read_model(struct tokenizer_json *t, const struct json *root, struct err *err)
{
    const struct json *m = NULL, *vocab = NULL, *merges = NULL, *added = NULL;
    const char *type = "BPE"; /* early files do not name the type */
    int rc;
    if ((rc = json_get_object(root, "model", &m, err)) != 0 ||
        (rc = json_opt_string(m, "type", &type, err)) != 0)
        return rc;
    if (strcmp(type, "BPE") != 0)
        return err_set(err, ERR_UNSUPPORTED, "model type '%s' is not supported", type);
    if ((rc = json_get_object(m, "vocab", &vocab, err)) != 0 ||
        (rc = json_get_array(m, "merges", &merges, err)) != 0 ||
        (rc = json_opt_array(root, "added_tokens", &added, err)) != 0 ||
        (rc = find_n_ids(t, vocab, added, err)) != 0 ||
        (rc = read_vocab(t, vocab, err)) != 0 || (rc = read_merges(t, merges, err)) != 0 ||
        (rc = read_added(t, added, err)) != 0)
        return rc;
    return read_model_options(t, m, err);
}

/* Refuses fields that the format does not have. Truncation and padding change nothing: see
 * tokenizer_json.h. */
static int check_fields(const struct json *root, struct err *err)
{
    static const char *const known[] = {"version",        "truncation", "padding",
                                        "added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    "model"};
    const size_t n_known = sizeof known / sizeof known[0];
    const char *version = "1.0";
    int rc = json_opt_string(root, "version", &version, err);
    if (rc == 0 && strcmp(version, "1.0") != 0)
        rc = err_set(err, ERR_UNSUPPORTED, "'version' is '%s', only 1.0 is known", version);
    struct json_iter it = json_begin(root);
    while (rc == 0 && json_next(&it)) {
        size_t i = 0;
        while (i < n_known && strcmp(known[i], it.key) != 0)
            i++;
        if (i == n_known)
            rc = err_set(err, ERR_UNSUPPORTED, "'%.80s': this field is not known", it.key);
    }
    return rc;
}

int tokenizer_json_parse(struct tokenizer_json *out, const void *bytes, size_t n,
                         const char *file, struct err *err)
{
    memset(out, 0, sizeof *out);
    struct json *root;
    int rc = json_parse(&root, bytes, n, file, err);
    if (rc != 0)
        return rc;
    if ((rc = check_fields(root, err)) == 0 && (rc = read_model(out, root, err)) == 0)
        rc = tokenizer_json_read_steps(out, root, err);
    if (rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

/* --- vocab.json + merges.txt -------------------------------------------------------------- */

static size_t count_lines(const char *s, size_t n)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n';
    return lines;
}

static int read_merges_txt(struct tokenizer_json *t, const char *s, size_t n,
                           struct err *err)
{
    size_t bad = utf8_check(s, n);
    if (bad != n)
        return err_set(err, ERR_FORMAT, "invalid UTF-8 at byte %zu", bad);
    t->merges = xcalloc(count_lines(s, n), sizeof *t->merges);
    for (size_t at = 0; at < n;) {
        const char *line = s + at, *end = memchr(line, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - line) : n - at;
        at += len + 1;
        if (len == 0 || (len >= 8 && memcmp(line, "#version", 8) == 0))
            continue;
        int rc = tokenizer_json_add_merge(t, line, len, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int tokenizer_json_parse_vocab(struct tokenizer_json *out, const void *vocab,
                               size_t n_vocab, const char *vocab_file, const void *merges,
                               size_t n_merges, const char *merges_file, struct err *err)
{
    memset(out, 0, sizeof *out);
    out->unk_id = -1;
    struct json *root;
    int rc = json_parse(&root, vocab, n_vocab, vocab_file, err);
    if (rc != 0)
        return rc;
    if ((rc = find_n_ids(out, root, NULL, err)) != 0 ||
        (rc = read_vocab(out, root, err)) != 0)
        err_wrap(err, "%s", vocab_file);
    json_free(root);
    if (rc != 0)
        return rc;
    if ((rc = read_merges_txt(out, merges, n_merges, err)) != 0)
        err_wrap(err, "%s", merges_file);
    out->n_pretokenizers = out->n_decoders = 1;
    out->pretokenizers[0] = (struct pretokenizer_step){.kind = PRETOKENIZER_BYTE_LEVEL,
                                                       .use_regex = true};
    out->decoders[0] = (struct decoder_step){.kind = DECODER_BYTE_LEVEL};
    return rc;
}
