/* config_pooling.c - how a folder says that its model makes embeddings, or ranks documents.
 *
 * sentence-transformers writes modules.json, a list of the parts of the model with their folders:
 * the transformer, its pooling, and further layers. Older folders have 1_Pooling alone. Nothing in
 * its files names a reranker of Qwen3; as in llama.cpp's converter, its README does. */
#include "model/config_family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "model/pack_file.h"

enum { MAX_BYTES = 1 << 20 };

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

/* Reads a JSON file of the folder, which the caller frees. *out NULL: there is none. */
static int read_json(const char *dir, const char *name, struct json **out, struct err *err)
{
    char *bytes = NULL;
    size_t n = 0;
    struct err local = {0};
    *out = NULL;
    int rc = model_file_read(dir, name, MAX_BYTES, &bytes, &n, &local);
    if (rc == -ENOENT || rc == -ENOTDIR)
        return 0;
    if (rc == 0)
        rc = json_parse(out, bytes, n, name, &local);
    if (rc != 0)
        err_set(err, rc, "%s: %s", dir, local.msg);
    free(bytes);
    return rc;
}

/* Returns what the configuration of a pooling says. Several kinds at once, whose results would be
 * joined, are another pooling. */
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
    int rc = read_json(dir, name, &o, err);
    if (rc == 0 && o != NULL)
        *io = pooling_of(o);
    json_free(o);
    free(name);
    return rc;
}

/* Reads the list of the model's parts. A part that this program does not have, such as a layer
 * behind the pooling, makes it another pooling. */
static int read_modules(const char *dir, const struct json *list, enum pooling *io,
                        struct err *err)
{
    int rc = 0;
    bool other = false;
    for (size_t i = 0; rc == 0 && i < json_count(list); i++) {
        const struct json *o = json_at(list, i);
        const char *type = json_string_of(json_member(o, "type"), NULL);
        const char *path = json_string_of(json_member(o, "path"), NULL);
        const char *last = type != NULL ? strrchr(type, '.') : NULL;
        const char *kind = last != NULL ? last + 1 : "";
        if (strcmp(kind, "Pooling") == 0 && path != NULL)
            rc = read_pooling(dir, path, io, err);
        else
            other |= strcmp(kind, "Transformer") != 0 && strcmp(kind, "Normalize") != 0;
    }
    if (other)
        *io = POOLING_OTHER;
    return rc;
}

/* Returns whether the folder's README says that it is a reranker of Qwen3. */
static bool is_reranker(const char *dir)
{
    char *bytes = NULL;
    size_t n = 0;
    struct err unused = {0};
    bool is = model_file_read(dir, "README.md", MAX_BYTES, &bytes, &n, &unused) == 0 &&
              memmem(bytes, n, "# Qwen3-Reranker", 16) != NULL;
    free(bytes);
    return is;
}

int config_load_pooling(const char *dir, struct model_config *io, struct err *err)
{
    struct json *list;
    int rc = read_json(dir, "modules.json", &list, err);
    if (rc != 0)
        return rc;
    rc = json_kind(list) == JSON_KIND_ARRAY
             ? read_modules(dir, list, &io->pooling, err)
             : read_pooling(dir, "1_Pooling", &io->pooling, err);
    json_free(list);
    if (io->family == FAMILY_QWEN3 &&
        (io->pooling == POOLING_NONE || io->pooling == POOLING_OTHER) && is_reranker(dir))
        io->pooling = POOLING_RANK;
    return rc;
}
