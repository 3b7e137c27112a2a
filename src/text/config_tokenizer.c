/* config_tokenizer.c - tokenizer_config.json and chat_template.jinja to struct tokenizer_config. */
#include "model/config.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "base/json.h"
#include "bpe/tokenizer_json.h"
#include "text/config_special.h"
#include "model/pack_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_CONFIG_MAX_BYTES (16u << 20)

static int read_switch(int *out, const struct json *o, const char *key, struct err *err)
{
    bool on = false;
    int rc = json_opt_bool(o, key, &on, err);
    bool said = json_kind(json_member(o, key)) == JSON_KIND_BOOL;
    *out = said ? on : -1;
    return rc;
}

void tokenizer_config_name(struct tokenizer_config *c, const char *key, const char *text)
{
    if (text == NULL || text[0] == 0)
        return;
    c->names = xrealloc(c->names, (c->n_names + 1) * sizeof *c->names);
    c->names[c->n_names++] = (struct tokenizer_config_name){xstrdup(key), xstrdup(text)};
}

/* Reads the templates: a string, or "default" and "tool_use" of a list of named ones. */
static int read_chat_template(struct tokenizer_config *c, const struct json *o,
                              struct err *err)
{
    const struct json *v = json_member(o, "chat_template");
    const char *s = NULL;
    if (json_kind(v) != JSON_KIND_ARRAY) {
        int rc = json_opt_string(o, "chat_template", &s, err);
        if (rc == 0 && s != NULL)
            c->chat_template = xstrdup(s);
        return rc;
    }
    for (size_t i = 0; i < json_count(v); i++) {
        const struct json *named = json_at(v, i);
        const char *name = json_string_of(json_member(named, "name"), NULL);
        s = json_string_of(json_member(named, "template"), NULL);
        if (name == NULL || s == NULL)
            return err_set(err, ERR_FORMAT,
                           "'chat_template': every entry must have a name and a template");
        if (strcmp(name, "default") == 0 && c->chat_template == NULL)
            c->chat_template = xstrdup(s);
        if (strcmp(name, "tool_use") == 0 && c->tool_template == NULL)
            c->tool_template = xstrdup(s);
    }
    return 0;
}

static int read_added(struct tokenizer_config_added *a, const char *id,
                      const struct json *v, struct err *err)
{
    char *end;
    errno = 0;
    long n = strtol(id, &end, 10);
    if (end == id || *end != 0 || errno != 0 || n < 0 || n > TOKENIZER_MAX_ID)
        return err_set(err, ERR_FORMAT, "'%.40s' is not a token's id", id);
    if (json_kind(v) != JSON_KIND_OBJECT)
        return err_set(err, ERR_FORMAT, "'%s' must be an object", id);
    int rc = config_special_token(a, v, id, false, err);
    if (rc == 0 && a->single_word) {
        free(a->text);
        rc = err_set(err, ERR_UNSUPPORTED, "'%s': 'single_word' is not supported", id);
    }
    a->id = (int32_t)n;
    return rc;
}

static int by_id(const void *a, const void *b)
{
    const struct tokenizer_config_added *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Reads {"32000": {"content": "<pad>", "special": true, ...}, ...}. */
static int read_added_decoder(struct tokenizer_config *out, const struct json *o,
                              struct err *err)
{
    const struct json *list = NULL;
    int rc = json_opt_object(o, "added_tokens_decoder", &list, err);
    if (rc != 0 || list == NULL)
        return rc;
    out->added = xcalloc(json_count(list), sizeof *out->added);
    struct json_iter it = json_begin(list);
    while (rc == 0 && json_next(&it)) {
        rc = read_added(&out->added[out->n_added], it.key, it.value, err);
        if (rc == 0)
            out->n_added++;
        else
            err_wrap(err, "added_tokens_decoder");
    }
    qsort(out->added, out->n_added, sizeof *out->added, by_id);
    return rc;
}

/* Reads tokenizer_config.json and special_tokens_map.json (`map`).  Either may be NULL. */
static int read_files(struct tokenizer_config *out, const struct json *config,
                      const struct json *map, struct err *err)
{
    int rc;
    if (json_member(config, "added_tokens_decoder") != NULL)
        map = NULL;
    if ((rc = config_special_read(out, config, map, err)) != 0 ||
        (rc = read_switch(&out->add_bos_token, config, "add_bos_token", err)) != 0 ||
        (rc = read_switch(&out->add_eos_token, config, "add_eos_token", err)) != 0 ||
        (rc = read_added_decoder(out, config, err)) != 0)
        return rc;
    return read_chat_template(out, config, err);
}

int tokenizer_config_parse(struct tokenizer_config *out, const void *bytes, size_t n,
                           const char *file, struct err *err)
{
    memset(out, 0, sizeof *out);
    out->add_bos_token = out->add_eos_token = -1;
    struct json *root;
    int rc = json_parse(&root, bytes, n, file, err);
    if (rc != 0)
        return rc;
    rc = read_files(out, root, NULL, err);
    if (rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

static int load_files(struct tokenizer_config *out, const char *dir, struct err *err)
{
    struct json *config = NULL, *map = NULL;
    int rc = model_json_read(dir, "tokenizer_config.json", TOKENIZER_CONFIG_MAX_BYTES,
                             &config, err);
    if (rc == 0)
        rc = model_json_read(dir, "special_tokens_map.json", TOKENIZER_CONFIG_MAX_BYTES,
                             &map, err);
    if (rc == 0 && (rc = read_files(out, config, map, err)) != 0)
        err_wrap(err, "%s/tokenizer_config.json%s", dir,
                 map != NULL ? ", special_tokens_map.json" : "");
    json_free(map);
    json_free(config);
    return rc;
}

/* Reads a file with a template, if there is one. */
static int load_template(char **out, const char *dir, const char *name, struct err *err)
{
    char *bytes = NULL;
    size_t n = 0;
    struct err local = {0};
    int rc = model_file_read(dir, name, TOKENIZER_CONFIG_MAX_BYTES, &bytes, &n, &local);
    if (rc == -ENOENT)
        return 0;
    if (rc != 0 && err != NULL)
        *err = local;
    else if (rc == 0 && (utf8_check(bytes, n) != n || strlen(bytes) != n)) {
        free(bytes);
        rc = err_set(err, ERR_FORMAT, "%s/%s: is not UTF-8 text", dir, name);
    } else if (rc == 0) {
        free(*out);
        *out = bytes;
    }
    return rc;
}

int tokenizer_config_load(struct tokenizer_config *out, const char *dir, struct err *err)
{
    memset(out, 0, sizeof *out);
    out->add_bos_token = out->add_eos_token = -1;
    int rc = load_files(out, dir, err);
    if (rc != 0)
        return rc;

    rc = load_template(&out->chat_template, dir, "chat_template.jinja", err);
    if (rc == 0)
        rc = load_template(&out->tool_template, dir,
                           "additional_chat_templates/tool_use.jinja", err);
    return rc;
}

void tokenizer_config_deinit(struct tokenizer_config *c)
{
    free(c->bos_token);
    free(c->eos_token);
    free(c->unk_token);
    free(c->chat_template);
    free(c->tool_template);
    free(c->model_name);
    for (size_t i = 0; i < c->n_names; i++) {
        free(c->names[i].key);
        free(c->names[i].text);
    }
    free(c->names);
    for (size_t i = 0; i < c->n_added; i++)
        free(c->added[i].text);
    free(c->added);
    for (size_t i = 0; i < c->n_special; i++)
        free(c->special[i].text);
    free(c->special);
    memset(c, 0, sizeof *c);
}
