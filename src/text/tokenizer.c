/* tokenizer.c - see tokenizer.h: opening a folder, looking up tokens. tokenizer_encode.c connects
 * the stages of encoding, which are files of lib/bpe. */
#include "text/tokenizer.h"

#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "text/gguf_tokenizer.h"
#include "base/json.h"
#include "checkpoint/gguf_files.h"
#include "model/pack_file.h"
#include "text/tokenizer_impl.h"
#include "bpe/tokenizer_normalize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_MAX_BYTES ((size_t)256 << 20)

/* --- reading the folder ------------------------------------------------------------------- */

static int read_tokenizer_json(struct tokenizer_json *j, const char *dir, struct err *err)
{
    char *path = xasprintf("%s/tokenizer.json", dir), *bytes = NULL;
    size_t n;
    int rc = model_file_read(dir, "tokenizer.json", TOKENIZER_MAX_BYTES, &bytes, &n, err);
    if (rc == 0)
        rc = tokenizer_json_parse(j, bytes, n, path, err);
    free(bytes);
    free(path);
    return rc;
}

static int read_pair(struct tokenizer_json *j, const char *dir, const char *vocab_name,
                     const char *merges_name, struct err *err)
{
    char *vocab_path = xasprintf("%s/%s", dir, vocab_name), *vocab = NULL;
    char *merges_path = xasprintf("%s/%s", dir, merges_name), *merges = NULL;
    size_t n_vocab = 0, n_merges = 0;
    int rc;
    if ((rc = model_file_read(dir, vocab_name, TOKENIZER_MAX_BYTES, &vocab, &n_vocab,
                              err)) == 0 &&
        (rc = model_file_read(dir, merges_name, TOKENIZER_MAX_BYTES, &merges, &n_merges,
                              err)) == 0)
        rc = tokenizer_json_parse_vocab(j, vocab, n_vocab, vocab_path, merges, n_merges,
                                        merges_path, err);
    free(vocab);
    free(merges);
    free(vocab_path);
    free(merges_path);
    return rc;
}

static bool is_named(const struct tokenizer_config *c, const char *text)
{
    for (size_t i = 0; i < c->n_named; i++)
        if (strcmp(c->special[i].text, text) == 0)
            return true;
    return false;
}

static struct tokenizer_added added_of(const struct tokenizer_config_added *c)
{
    return (struct tokenizer_added){.text = {c->text, strlen(c->text)},
                                    .id = c->id,
                                    .special = c->special,
                                    .lstrip = c->lstrip,
                                    .rstrip = c->rstrip,
                                    .normalized = c->normalized};
}

/* Adds the tokens that tokenizer_config.json lists. As in transformers, tokens that tokenizer.json
 * lacks are added, and the other tokens take over the listed flags. */
static int add_listed(struct tokenizer *t, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < t->cfg.n_added; i++) {
        const struct tokenizer_config_added *c = &t->cfg.added[i];
        struct tokenizer_added a = added_of(c);
        a.special = c->special || is_named(&t->cfg, c->text);
        if (a.text.n > 0)
            rc = tokenizer_json_add(&t->j, &a, err);
    }
    return rc == 0 ? 0 : err_wrap(err, "tokenizer_config.json: added_tokens_decoder");
}

/* Adds the special tokens that the folder names: those that the tokenizer lacks get the next free
 * ids, and those of the vocabulary become added tokens.  An added token keeps its flags. */
static int add_special(struct tokenizer *t, struct err *err)
{
    int32_t next = tokenizer_json_next_id(&t->j);
    int rc = 0;
    t->n_listed = t->j.n_ids;
    for (size_t i = 0; rc == 0 && i < t->cfg.n_special; i++) {
        const struct tokenizer_config_added *c = &t->cfg.special[i];
        struct tokenizer_added a = added_of(c);
        if (tokenizer_json_is_added(&t->j, c->text, a.text.n))
            continue;
        if (c->single_word)
            return err_set(err, ERR_UNSUPPORTED,
                           "special token '%.80s': 'single_word' is not supported",
                           c->text);
        a.id = next;
        rc = tokenizer_json_add(&t->j, &a, err);
        int32_t id = rc == 0 ? tokenizer_json_find(&t->j, c->text, a.text.n) : -1;
        next = id >= next ? id + 1 : next;
    }
    return rc;
}

/* Refuses a folder with added_tokens.json beside vocab.json: the ids in it would be missing. */
static int refuse_added_tokens_file(const char *dir, struct err *err)
{
    char *path = xasprintf("%s/added_tokens.json", dir), *bytes = NULL;
    size_t n;
    int rc = model_file_read(dir, "added_tokens.json", TOKENIZER_MAX_BYTES, &bytes, &n,
                             NULL);
    free(bytes);
    if (rc != -ENOENT)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "%s: is not supported beside vocab.json; save a tokenizer.json", path);
    else
        rc = 0;
    free(path);
    return rc;
}

static int read_vocab_and_merges(struct tokenizer *t, const char *dir, struct err *err)
{
    int rc = read_pair(&t->j, dir, "vocab.json", "merges.txt", err);
    if (rc == -ENOENT)
        rc = read_pair(&t->j, dir, "encoder.json", "vocab.bpe", err);
    if (rc == -ENOENT)
        return err_set(
            err, rc, "%s: has no tokenizer (tokenizer.json, or vocab.json and merges.txt)",
            dir);
    return rc == 0 ? refuse_added_tokens_file(dir, err) : rc;
}

/* Adds a token that answers must not contain. An id without a token needs no care. */
static void suppress(struct tokenizer *t, int64_t id)
{
    if (id < 0 || id >= t->j.n_ids)
        return;
    t->suppressed = xrealloc(t->suppressed,
                             ((size_t)t->n_suppressed + 1) * sizeof *t->suppressed);
    t->suppressed[t->n_suppressed++] = (int32_t)id;
}

/* Reads suppress_tokens of generation_config.json, if there is such a file. */
static int read_suppressed(struct tokenizer *t, const char *dir, struct err *err)
{
    const struct json *list = NULL;
    struct json *root = NULL;
    int64_t id;
    int rc = model_json_read(dir, "generation_config.json", TOKENIZER_MAX_BYTES, &root,
                             err);
    if (root == NULL)
        return rc;
    rc = json_opt_array(root, "suppress_tokens", &list, err);
    for (size_t i = 0; rc == 0 && i < json_count(list); i++)
        if (json_int_of(json_at(list, i), &id))
            suppress(t, id);
        else
            rc = err_set(err, ERR_FORMAT, "'suppress_tokens' must be a list of integers");
    if (rc != 0)
        err_wrap(err, "%s/generation_config.json", dir);
    json_free(root);
    return rc;
}

/* --- reading a GGUF file ------------------------------------------------------------------ */

/* Copies a string of the metadata. Returns NULL if it is missing, not UTF-8, or has a zero byte. */
static char *gguf_text(const struct gguf *g, const char *key)
{
    const char *s;
    size_t n;
    if (!gguf_string(gguf_find(g, key), &s, &n) || utf8_check(s, n) != n ||
        memchr(s, 0, n) != NULL)
        return NULL;
    return xasprintf("%.*s", (int)n, s);
}

/* Returns the text of the token whose id the key holds. */
static char *gguf_token_text(const struct tokenizer_json *j, const struct gguf *g,
                             const char *key)
{
    int64_t id;
    if (!gguf_int(gguf_find(g, key), 0, &id) || id < 0 || id >= j->n_ids ||
        j->tokens[id].s == NULL)
        return NULL;
    return xstrdup(j->tokens[id].s);
}

/* Reads the list of tokens that answers must not contain. */
static int read_gguf_suppressed(struct tokenizer *t, const struct gguf *g, struct err *err)
{
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.suppress_tokens");
    for (uint64_t i = 0; v != NULL && i < v->n; i++) {
        int64_t id;
        if (!v->is_array || !gguf_int(v, i, &id))
            return err_set(err, ERR_FORMAT,
                           "'tokenizer.ggml.suppress_tokens' must be a list of integers");
        suppress(t, id);
    }
    return 0;
}

static void name_gguf_tokens(struct tokenizer *t, const struct gguf *g)
{
    static const char *const names[][2] = {
        {"bos_token", "bos"},       {"eos_token", "eos"},       {"unk_token", "unknown"},
        {"sep_token", "seperator"}, {"sep_token", "separator"}, {"pad_token", "padding"},
        {"cls_token", "cls"},       {"mask_token", "mask"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *key = xasprintf("tokenizer.ggml.%s_token_id", names[i][1]);
        char *text = gguf_token_text(&t->j, g, key);
        tokenizer_config_name(&t->cfg, names[i][0], text);
        free(text);
        free(key);
    }
}

static int read_gguf(struct tokenizer *t, const struct gguf *g, const char *path,
                     struct err *err)
{
    t->cfg = (struct tokenizer_config){.add_bos_token = -1, .add_eos_token = -1};
    int rc = gguf_tokenizer_read(&t->j, g, path, err);
    if (rc == 0) {
        t->cfg.chat_template = gguf_text(g, "tokenizer.chat_template");
        t->cfg.bos_token = gguf_token_text(&t->j, g, "tokenizer.ggml.bos_token_id");
        t->cfg.eos_token = gguf_token_text(&t->j, g, "tokenizer.ggml.eos_token_id");
        t->cfg.unk_token = gguf_token_text(&t->j, g, "tokenizer.ggml.unknown_token_id");
        if ((rc = read_gguf_suppressed(t, g, err)) != 0)
            err_wrap(err, "%s", path);
        t->cfg.tool_template = gguf_text(g, "tokenizer.chat_template.tool_use");
        t->cfg.model_name = gguf_text(g, "general.name");
        name_gguf_tokens(t, g);
    }
    return rc;
}

static int read_gguf_file(struct tokenizer *t, const char *path, struct err *err)
{
    struct gguf_files files;
    int rc = gguf_files_open(&files, path, false, err);
    if (rc == 0)
        rc = read_gguf(t, &files.files[0].g, path, err);
    gguf_files_close(&files);
    return rc;
}

static int read_folder(struct tokenizer *t, const char *dir, struct err *err)
{
    int rc = tokenizer_config_load(&t->cfg, dir, err);
    if (rc == 0)
        rc = read_tokenizer_json(&t->j, dir, err);
    if (rc == 0)
        t->cfg.add_bos_token = t->cfg.add_eos_token = -1;
    if (rc == -ENOENT)
        rc = read_vocab_and_merges(t, dir, err);
    if (rc == 0)
        rc = add_listed(t, err);
    if (rc == 0)
        rc = add_special(t, err);
    return rc == 0 ? read_suppressed(t, dir, err) : rc;
}

/* Reads the tokenizer from a packed file, which holds the files of its source folder or the
 * metadata of its source GGUF file. */
static int read_packed(struct tokenizer *t, const char *path, struct err *err)
{
    struct pack_file f;
    char *bytes;
    size_t n;
    uint64_t file_bytes;
    int rc = pack_file_open(&f, path, err);
    if (rc == 0)
        rc = pack_member_read(&f, "tokenizer.gguf", &bytes, &n, &file_bytes, err);
    pack_file_close(&f);
    if (rc == -ENOENT)
        return read_folder(t, path, err);
    if (rc != 0)
        return rc;
    struct gguf g;
    rc = gguf_parse(&g, bytes, n, file_bytes, path, err);
    if (rc == 0)
        rc = read_gguf(t, &g, path, err);
    gguf_deinit(&g);
    free(bytes);
    return rc;
}

/* --- creating ----------------------------------------------------------------------------- */

/* Finds the texts of added tokens. A token that is matched in normalized text is itself normalized
 * first. */
static int find_added_texts(struct tokenizer *t, struct err *err)
{
    const struct tokenizer_json *j = &t->j;
    t->added_text = xcalloc(j->n_added, sizeof *t->added_text);
    t->added_owned = xcalloc(j->n_added, sizeof *t->added_owned);
    for (size_t i = 0; i < j->n_added; i++) {
        const struct tokenizer_text *s = &j->added[i].text;
        t->added_text[i] = *s;
        if (!j->added[i].normalized)
            continue;
        int rc = tokenizer_normalize(j->normalizers, j->n_normalizers, s->s, s->n,
                                     &t->added_owned[i], &t->added_text[i].n, err);
        if (rc != 0)
            return rc;
        t->added_text[i].s = t->added_owned[i];
    }
    return 0;
}

/* Applies add_bos_token and add_eos_token of tokenizer_config.json to vocab.json and merges.txt.
 * Beside a tokenizer.json transformers ignores these switches: the file's post-processor alone
 * decides which tokens are put around a text. */
static void add_configured_template(struct tokenizer *t)
{
    struct tokenizer_json *j = &t->j;
    if (t->cfg.add_bos_token == 1 && t->bos_id >= 0)
        j->prefix[j->n_prefix++] = t->bos_id;
    if (t->cfg.add_eos_token == 1 && t->eos_id >= 0)
        j->suffix[j->n_suffix++] = t->eos_id;
}

static int find_named(const struct tokenizer *t, const char *name, int32_t *id,
                      struct err *err)
{
    *id = name != NULL ? tokenizer_find(t, name) : -1;
    if (name != NULL && *id < 0)
        return err_set(
            err, ERR_MISMATCH,
            "tokenizer_config.json names '%s', which the tokenizer does not have", name);
    return 0;
}

/* Makes the tables for encoding and decoding from the tokenizer that was read. */
static int compile(struct tokenizer *t, struct err *err)
{
    struct tokenizer_json *j = &t->j;
    int rc;
    if ((rc = find_named(t, t->cfg.bos_token, &t->bos_id, err)) != 0 ||
        (rc = find_named(t, t->cfg.eos_token, &t->eos_id, err)) != 0 ||
        (rc = tokenizer_normalizers_compile(j->normalizers, j->n_normalizers, err)) != 0 ||
        (rc = pretokenizer_create(&t->pre, j->pretokenizers, j->n_pretokenizers, err)) !=
            0 ||
        (rc = token_bytes_init(&t->bytes, j, err)) != 0 ||
        (rc = find_added_texts(t, err)) != 0)
        return rc;
    t->bpe = bpe_create(j, pretokenizer_is_byte_level(t->pre));
    t->special = xcalloc((size_t)j->n_ids, sizeof *t->special);
    for (size_t i = 0; i < j->n_added; i++)
        t->special[j->added[i].id] = j->added[i].special;
    t->added_raw = added_finder_create(j->added, t->added_text, j->n_added, false);
    t->added_normalized = added_finder_create(j->added, t->added_text, j->n_added, true);
    struct tokenizer_text *written = xcalloc(j->n_added + 1, sizeof *written);
    for (size_t i = 0; i < j->n_added; i++)
        written[i] = j->added[i].text;
    t->added_written = added_finder_create(j->added, written, j->n_added, true);
    free(written);
    add_configured_template(t);
    tokenizer_measure(t);
    return 0;
}

int tokenizer_open(struct tokenizer **out, const char *source, struct err *err)
{
    struct tokenizer *t = xcalloc(1, sizeof *t);
    int rc = gguf_files_is(source)  ? read_gguf_file(t, source, err)
             : pack_file_is(source) ? read_packed(t, source, err)
                                    : read_folder(t, source, err);
    if (t->n_listed == 0)
        t->n_listed = t->j.n_ids;
    if (rc == 0 && (rc = compile(t, err)) != 0)
        err_wrap(err, "%s", source);
    if (rc != 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    added_finder_destroy(t->added_raw);
    added_finder_destroy(t->added_normalized);
    added_finder_destroy(t->added_written);
    for (size_t i = 0; i < t->j.n_added && t->added_owned != NULL; i++)
        free(t->added_owned[i]);
    free(t->added_owned);
    free(t->added_text);
    free(t->special);
    free(t->suppressed);
    token_bytes_deinit(&t->bytes);
    bpe_destroy(t->bpe);
    pretokenizer_destroy(t->pre);
    tokenizer_normalizers_free(t->j.normalizers, t->j.n_normalizers);
    tokenizer_json_deinit(&t->j);
    tokenizer_config_deinit(&t->cfg);
    free(t);
}

int tokenizer_first_ids(const char *source, const char *text, size_t n_text, int32_t *ids,
                        int most)
{
    struct tokenizer *t = NULL;
    struct err unused;
    int32_t *all = NULL;
    size_t n = 0;
    if (tokenizer_open(&t, source, &unused) != 0 ||
        tokenizer_encode(t, text, n_text, TOKENIZER_ADD_SPECIAL, &all, &n, &unused) != 0)
        n = 0;
    int n_ids = n < (size_t)most ? (int)n : most;
    if (n_ids > 0)
        memcpy(ids, all, (size_t)n_ids * sizeof *ids);
    free(all);
    tokenizer_close(t);
    return n_ids;
}

/* --- looking things up -------------------------------------------------------------------- */

int32_t tokenizer_size(const struct tokenizer *t)
{
    return t->j.n_ids;
}

int32_t tokenizer_n_listed(const struct tokenizer *t)
{
    return t->n_listed;
}

int tokenizer_check_rows(const struct tokenizer *t, const int32_t *ids, size_t n,
                         int32_t n_rows, struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_rows)
            return err_set(
                err, ERR_USAGE,
                "the text has the token '%.80s' (id %d), for which the model has no "
                "embedding: its last one is %d",
                t->j.tokens[ids[i]].s, ids[i], n_rows - 1);
    return 0;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos_id;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos_id;
}

static bool has_token(const struct tokenizer *t, const char *text)
{
    return tokenizer_json_is_added(&t->j, text, strlen(text));
}

/* Returns whether a text of token_end_at means something else in this tokenizer.  Harmony's <|end|>
 * ends a message inside an answer, if other tokens end the answer.  </s> is ordinary text in
 * Gemma 4 and PLaMo. */
static bool is_no_end(const struct tokenizer *t, const char *text)
{
    if (strcmp(text, "<|end|>") == 0)
        return (has_token(t, "<|return|>") && has_token(t, "<|call|>")) ||
               (has_token(t, "<|calls|>") && has_token(t, "<|flush|>"));
    return strcmp(text, "</s>") == 0 &&
           (has_token(t, "<|tool_response>") || has_token(t, "<|plamo:eos|>"));
}

int tokenizer_ends(const struct tokenizer *t, int32_t ids[TOKENIZER_MAX_ENDS])
{
    const char *text;
    int n = 0;
    if (t->eos_id >= 0)
        ids[n++] = t->eos_id;
    for (int i = 0; (text = token_end_at(i)) != NULL && n < TOKENIZER_MAX_ENDS; i++)
        if (has_token(t, text) && !is_no_end(t, text))
            ids[n++] = tokenizer_find(t, text);
    return n;
}

const int32_t *tokenizer_suppressed(const struct tokenizer *t, int *n)
{
    *n = t->n_suppressed;
    return t->suppressed;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *token)
{
    return tokenizer_json_find(&t->j, token, strlen(token));
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->j.n_ids && t->special[id];
}

int32_t tokenizer_special_at(const struct tokenizer *t, const char *text, size_t n,
                             size_t *len)
{
    char name[80];
    for (size_t k = MIN(n, sizeof name - 1); t != NULL && k >= 3; k--) {
        memcpy(name, text, k);
        name[k] = 0;
        int32_t id = tokenizer_find(t, name);
        if (id >= 0 && tokenizer_is_special(t, id)) {
            *len = k;
            return id;
        }
    }
    return -1;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->j.n_ids)
        return NULL;
    struct tokenizer_text text = token_bytes_of(&t->bytes, id);
    *n = text.n;
    return text.s;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->cfg.chat_template != NULL ? t->cfg.chat_template : t->cfg.tool_template;
}

void tokenizer_set_template(struct tokenizer *t, const char *source)
{
    free(t->cfg.chat_template);
    free(t->cfg.tool_template);
    t->cfg.chat_template = xstrdup(source);
    t->cfg.tool_template = NULL;
}

const char *tokenizer_model_name(const struct tokenizer *t)
{
    return t->cfg.model_name;
}

const char *tokenizer_tool_template(const struct tokenizer *t)
{
    return t->cfg.tool_template;
}

const char *tokenizer_named(const struct tokenizer *t, size_t i, const char **text)
{
    if (i >= t->cfg.n_names)
        return NULL;
    *text = t->cfg.names[i].text;
    return t->cfg.names[i].key;
}
