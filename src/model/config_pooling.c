/* config_pooling.c - how a folder says that its model makes embeddings, or ranks documents.
 *
 * sentence-transformers writes modules.json, a list of the parts of the model with their folders:
 * the transformer, its pooling, and linear layers behind it. Older folders have 1_Pooling alone.
 * Nothing in its files names a reranker of Qwen3; as in llama.cpp's converter, its README does. */
#include "model/config_family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "model/pack_file.h"

enum { MAX_BYTES = 1 << 20, DENSE_MAX_WIDTH = 1 << 20 };

/* By the values of enum pooling, which are those of GGUF files. */
static const char *const names[] = {"none", "mean", "cls", "last", "rank", "other"};

const char *pooling_name(enum pooling p)
{
    return names[p];
}

enum pooling pooling_of_name(const char *name)
{
    for (int i = 0; i < POOLING_OTHER; i++)
        if (strcmp(names[i], name) == 0)
            return (enum pooling)i;
    return POOLING_OTHER;
}

/* Returns the pooling that a configuration names. Returns POOLING_OTHER if it names none, or
 * several, whose results would be joined. */
static enum pooling pooling_of(const struct json *o)
{
    static const struct {
        const char *key, *word;
        enum pooling is;
    } modes[] = {{"pooling_mode_cls_token", "cls", POOLING_CLS},
                 {"pooling_mode_mean_tokens", "mean", POOLING_MEAN},
                 {"pooling_mode_lasttoken", "lasttoken", POOLING_LAST},
                 {"pooling_mode_max_tokens", "max", POOLING_OTHER},
                 {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len", POOLING_OTHER},
                 {"pooling_mode_weightedmean_tokens", "weightedmean", POOLING_OTHER}};
    const char *word = json_string_of(json_member(o, "pooling_mode"), NULL);
    enum pooling is = POOLING_OTHER;
    int n = 0;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        bool on = false;
        (void)json_bool_of(json_member(o, modes[i].key), &on);
        on |= word != NULL && strcmp(word, modes[i].word) == 0;
        n += on;
        is = on ? modes[i].is : is;
    }
    return n == 1 ? is : POOLING_OTHER;
}

/* Reads the pooling in a folder of the model's. Leaves *io unchanged if it has no such file. */
static int read_pooling(const char *dir, const char *path, enum pooling *io,
                        struct err *err)
{
    struct json *o;
    char *name = xasprintf("%s/config.json", path);
    int rc = model_json_read(dir, name, MAX_BYTES, &o, err);
    if (rc == 0 && o != NULL)
        *io = pooling_of(o);
    json_free(o);
    free(name);
    return rc;
}

/* Returns the last part of the dotted name `key`: the kind of a module or an activation. */
static const char *kind_of(const struct json *o, const char *key)
{
    const char *name = json_string_of(json_member(o, key), NULL);
    const char *last = name != NULL ? strrchr(name, '.') : NULL;
    return last != NULL ? last + 1 : "";
}

/* Reads a linear layer behind the pooling. Sets *known to false for a layer that this program does
 * not have: with a bias, an activation, or another input than the result of the part before. */
static int read_dense(const char *dir, const char *path, struct model_config *io,
                      bool *known, struct err *err)
{
    struct json *o;
    char *name = xasprintf("%s/config.json", path);
    bool has_bias = true;
    int64_t in = 0, out = 0;
    int rc = model_json_read(dir, name, MAX_BYTES, &o, err);
    (void)json_bool_of(json_member(o, "bias"), &has_bias);
    *known = json_int_of(json_member(o, "in_features"), &in) && !has_bias &&
             json_int_of(json_member(o, "out_features"), &out) &&
             strcmp(kind_of(o, "activation_function"), "Identity") == 0 &&
             in == config_embedding_width(io) && out > 0 && out <= DENSE_MAX_WIDTH &&
             io->n_behind < CONFIG_MAX_DENSE;
    if (*known)
        io->dense[io->n_behind++] = (int32_t)out;
    json_free(o);
    free(name);
    return rc;
}

char *config_dense_path(const char *dir, int i)
{
    struct json *list;
    char *out = NULL;
    if (model_json_read(dir, "modules.json", MAX_BYTES, &list, NULL) != 0)
        return NULL;
    for (size_t k = 0; out == NULL && k < json_count(list); k++) {
        const char *path = json_string_of(json_member(json_at(list, k), "path"), NULL);
        if (path != NULL && strcmp(kind_of(json_at(list, k), "type"), "Dense") == 0 &&
            i-- == 0)
            out = xasprintf("%s/model.safetensors", path);
    }
    json_free(list);
    return out;
}

/* Reads the list of the model's parts. A part that this program does not have makes it another
 * pooling. */
static int read_modules(const char *dir, const struct json *list, struct model_config *io,
                        struct err *err)
{
    int rc = 0;
    bool other = false;
    for (size_t i = 0; rc == 0 && i < json_count(list); i++) {
        const struct json *o = json_at(list, i);
        const char *path = json_string_of(json_member(o, "path"), NULL);
        const char *kind = kind_of(o, "type");
        bool known = strcmp(kind, "Transformer") == 0 || strcmp(kind, "Normalize") == 0;
        if (strcmp(kind, "Pooling") == 0 && path != NULL) {
            rc = read_pooling(dir, path, &io->pooling, err);
            known = true;
        } else if (strcmp(kind, "Dense") == 0 && path != NULL) {
            rc = read_dense(dir, path, io, &known, err);
        }
        other |= !known;
    }
    if (other)
        io->pooling = POOLING_OTHER;
    return rc;
}

/* Returns whether the folder's README says that it is a reranker of Qwen3. */
static bool is_reranker(const char *dir)
{
    char *bytes = NULL;
    size_t n = 0;
    bool is = model_file_read(dir, "README.md", MAX_BYTES, &bytes, &n, NULL) == 0 &&
              memmem(bytes, n, "# Qwen3-Reranker", 16) != NULL;
    free(bytes);
    return is;
}

int config_load_pooling(const char *dir, struct model_config *io, struct err *err)
{
    struct json *list;
    int rc = model_json_read(dir, "modules.json", MAX_BYTES, &list, err);
    if (rc != 0)
        return rc;
    rc = json_kind(list) == JSON_KIND_ARRAY
             ? read_modules(dir, list, io, err)
             : read_pooling(dir, "1_Pooling", &io->pooling, err);
    json_free(list);
    if (io->family == FAMILY_QWEN3 &&
        (io->pooling == POOLING_NONE || io->pooling == POOLING_OTHER) && is_reranker(dir))
        io->pooling = POOLING_RANK;
    return rc;
}
