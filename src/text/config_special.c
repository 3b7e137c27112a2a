/* config_special.c - see config_special.h.
 *
 * The order and the precedence follow `_from_pretrained` and `__init__` of transformers 5.23.
 * A token is its text, or an object with "content" and flags. */
#include "text/config_special.h"

#include "base/mem.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const standard_keys[] = {"bos_token", "eos_token", "unk_token",
                                            "sep_token", "pad_token", "cls_token",
                                            "mask_token"};
/* Bound on special tokens: finding duplicates compares each token with all others. */
enum { MAX_SPECIAL = 16384 };
enum { N_STANDARD = sizeof standard_keys / sizeof standard_keys[0] };

/* Named tokens.  A key keeps the position at which it was first set. */
struct named {
    const char **keys;
    struct tokenizer_config_added *tokens; /* text NULL: the key has no token */
    size_t n;
};

static bool is_standard(const char *key)
{
    for (int i = 0; i < N_STANDARD; i++)
        if (strcmp(standard_keys[i], key) == 0)
            return true;
    return false;
}

static bool is_token_key(const char *key)
{
    const size_t n = strlen(key);
    return n >= 6 && strcmp(key + n - 6, "_token") == 0;
}

static bool is_present(const struct json *o, const char *key)
{
    return json_member(o, key) != NULL;
}

int config_special_token(struct tokenizer_config_added *out, const struct json *v,
                         const char *key, bool is_special, struct err *err)
{
    struct tokenizer_config_added a = {.id = -1};
    const char *text = json_string_of(v, NULL);
    int rc = 0;
    if (json_kind(v) == JSON_KIND_OBJECT) {
        if ((rc = json_get_string(v, "content", &text, err)) != 0 ||
            (rc = json_opt_bool(v, "special", &a.special, err)) != 0 ||
            (rc = json_opt_bool(v, "lstrip", &a.lstrip, err)) != 0 ||
            (rc = json_opt_bool(v, "rstrip", &a.rstrip, err)) != 0 ||
            (rc = json_opt_bool(v, "single_word", &a.single_word, err)) != 0)
            return err_wrap(err, "'%s'", key);
        a.special |= is_special;
        a.normalized = !a.special; /* default of transformers */
        if ((rc = json_opt_bool(v, "normalized", &a.normalized, err)) != 0)
            return err_wrap(err, "'%s'", key);
    } else if (text == NULL) {
        return err_set(err, ERR_FORMAT,
                       "'%s' must be a token's text or an object, it is %s", key,
                       json_kind_name(v));
    } else {
        a.special = true;
    }
    a.text = xstrdup(text);
    *out = a;
    return 0;
}

/* --- named tokens ------------------------------------------------------------------------- */

/* Sets the token that `key` names, which is special. If v is null, the key has no token. */
static int named_set(struct named *l, const char *key, const struct json *v,
                     struct err *err)
{
    struct tokenizer_config_added a = {0};
    int rc = json_kind(v) != JSON_KIND_NULL ? config_special_token(&a, v, key, true, err)
                                            : 0;
    if (rc != 0)
        return rc;
    size_t i = 0;
    if (l->n == MAX_SPECIAL) {
        free(a.text);
        return err_set(err, ERR_LIMIT, "there are more than %d special tokens",
                       MAX_SPECIAL);
    }
    while (i < l->n && strcmp(l->keys[i], key) != 0)
        i++;
    if (i == l->n) {
        l->keys = xrealloc(l->keys, (l->n + 1) * sizeof *l->keys);
        l->tokens = xrealloc(l->tokens, (l->n + 1) * sizeof *l->tokens);
        l->keys[l->n++] = key;
    } else {
        free(l->tokens[i].text);
    }
    l->tokens[i] = a;
    return 0;
}

static int set_standard(struct named *l, const struct json *config, const struct json *map,
                        struct err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < N_STANDARD; i++) {
        const char *key = standard_keys[i];
        rc = named_set(l, key, json_member(is_present(map, key) ? map : config, key), err);
    }
    return rc;
}

/* Sets the file's other "..._token" members whose JSON value has this kind. */
static int set_others(struct named *l, const struct json *file, enum json_kind kind,
                      struct err *err)
{
    int rc = 0;
    struct json_iter it = json_begin(file);
    while (rc == 0 && json_next(&it))
        if (is_token_key(it.key) && !is_standard(it.key) && json_kind(it.value) == kind)
            rc = named_set(l, it.key, it.value, err);
    return rc;
}

/* Reads an extra_special_tokens that is an object: {"image_token": "<image>"}. */
static int set_extra(struct named *l, const struct json *file, struct err *err)
{
    const struct json *extra = json_member(file, "extra_special_tokens");
    int rc = 0;
    struct json_iter it = json_begin(extra);
    while (rc == 0 && json_next(&it))
        rc = named_set(l, it.key, it.value, err);
    return rc;
}

static int read_named(struct named *l, const struct json *config, const struct json *map,
                      struct err *err)
{
    int rc;
    if ((rc = set_standard(l, config, map, err)) != 0 ||
        (rc = set_others(l, config, JSON_KIND_OBJECT, err)) != 0 ||
        (rc = set_others(l, map, JSON_KIND_OBJECT, err)) != 0 ||
        (rc = set_others(l, map, JSON_KIND_STRING, err)) != 0 ||
        (rc = set_others(l, config, JSON_KIND_STRING, err)) != 0 ||
        (rc = set_extra(l, config, err)) != 0)
        return rc;
    return set_extra(l, map, err);
}

/* --- lists -------------------------------------------------------------------------------- */

static bool is_known(const struct tokenizer_config *c, const char *text)
{
    for (size_t i = 0; i < c->n_special; i++)
        if (strcmp(c->special[i].text, text) == 0)
            return true;
    return false;
}

/* Appends a copy of the token, unless it has no text or is already there. */
static int push(struct tokenizer_config *c, const struct tokenizer_config_added *a,
                struct err *err)
{
    const bool is_full = c->n_special == MAX_SPECIAL;
    if (a->text == NULL || a->text[0] == '\0' || is_full || is_known(c, a->text)) {
        free(a->text);
        return is_full ? err_set(err, ERR_LIMIT, "there are more than %d special tokens",
                                 MAX_SPECIAL)
                       : 0;
    }
    c->special = xrealloc(c->special, (c->n_special + 1) * sizeof *c->special);
    c->special[c->n_special++] = *a;
    return 0;
}

/* Appends the tokens of a file's list `key`. If from_map, the file is special_tokens_map.json,
 * whose objects transformers makes special. */
static int push_list(struct tokenizer_config *c, const struct json *file, const char *key,
                     bool from_map, struct err *err)
{
    const struct json *list = NULL;
    int rc = json_opt_array(file, key, &list, err);
    for (size_t i = 0; rc == 0 && i < json_count(list); i++) {
        const struct json *v = json_at(list, i);
        struct tokenizer_config_added a;
        rc = config_special_token(&a, v, key, from_map, err);
        if (rc == 0)
            rc = push(c, &a, err);
    }
    return rc;
}

#define EXTRA      "extra_special_tokens"
#define ADDITIONAL "additional_special_tokens"

/* Appends the lists of both files.  A file's ADDITIONAL counts only if its EXTRA is missing or
 * empty.  The map's EXTRA is always appended; its ADDITIONAL counts only if tokenizer_config.json
 * has no list. */
static int push_lists(struct tokenizer_config *c, const struct json *config,
                      const struct json *map, struct err *err)
{
    const struct json *extra = json_member(config, EXTRA);
    const enum json_kind kind = json_kind(extra);
    const bool is_empty = json_count(extra) == 0 && kind != JSON_KIND_STRING;
    const bool older = is_present(config, ADDITIONAL) && is_empty;
    const bool has_list = older || (extra != NULL && kind != JSON_KIND_OBJECT);
    int rc = 0;
    if (has_list)
        rc = push_list(c, config, older ? ADDITIONAL : EXTRA, false, err);
    if (rc == 0 && json_kind(json_member(map, EXTRA)) == JSON_KIND_ARRAY)
        return push_list(c, map, EXTRA, true, err);
    if (rc != 0 || has_list)
        return rc;
    const bool from_map = is_present(map, ADDITIONAL);
    return push_list(c, from_map ? map : config, ADDITIONAL, from_map, err);
}

/* --- named tokens, then lists ------------------------------------------------------------- */

static void keep_name(char **out, const struct tokenizer_config_added *a)
{
    *out = a->text != NULL && a->text[0] != '\0' ? xstrdup(a->text) : NULL;
}

int config_special_read(struct tokenizer_config *out, const struct json *config,
                        const struct json *map, struct err *err)
{
    struct named l = {0};
    int rc = read_named(&l, config, map, err);
    if (rc == 0) {
        keep_name(&out->bos_token, &l.tokens[0]);
        keep_name(&out->eos_token, &l.tokens[1]);
        keep_name(&out->unk_token, &l.tokens[2]);
    }
    for (size_t i = 0; i < l.n; i++) {
        tokenizer_config_name(out, l.keys[i], l.tokens[i].text);
        int pushed = push(out, &l.tokens[i], err);
        rc = rc == 0 ? pushed : rc;
    }
    out->n_named = out->n_special;
    free(l.keys);
    free(l.tokens);
    return rc == 0 ? push_lists(out, config, map, err) : rc;
}
