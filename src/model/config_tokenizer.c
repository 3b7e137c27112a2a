/* config_tokenizer.c - tokenizer_config.json and chat_template.jinja to struct tokenizer_config. */
#include "model/config.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_CONFIG_MAX_BYTES (16u << 20)

/* A token is written as its text, or as an object whose "content" is its text. */
static int read_token(char **out, const struct json *o, const char *key, struct err *err)
{
    const struct json *v = json_member(o, key);
    const char *s = NULL;
    int rc = json_kind(v) == JSON_KIND_OBJECT ? json_get_string(v, "content", &s, err)
                                              : json_opt_string(o, key, &s, err);
    if (rc == 0 && s != NULL)
        *out = xstrdup(s);
    return rc;
}

static int read_switch(int *out, const struct json *o, const char *key, struct err *err)
{
    bool on = false;
    int rc = json_opt_bool(o, key, &on, err);
    bool said = json_kind(json_member(o, key)) == JSON_KIND_BOOL;
    *out = said ? on : -1;
    return rc;
}

/* The template, or a list of named ones: then the one called "default". */
static int read_chat_template(char **out, const struct json *o, struct err *err)
{
    const struct json *v = json_member(o, "chat_template");
    const char *s = NULL;
    if (json_kind(v) != JSON_KIND_ARRAY) {
        int rc = json_opt_string(o, "chat_template", &s, err);
        if (rc == 0 && s != NULL)
            *out = xstrdup(s);
        return rc;
    }
    for (size_t i = 0; i < json_count(v); i++) {
        const struct json *named = json_at(v, i);
        const char *name = json_string_of(json_member(named, "name"), NULL);
        s = json_string_of(json_member(named, "template"), NULL);
        if (name == NULL || s == NULL)
            return err_set(err, ERR_FORMAT,
                           "'chat_template': every entry must have a name and a template");
        if (strcmp(name, "default") == 0 && *out == NULL)
            *out = xstrdup(s);
    }
    return 0;
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
    if ((rc = read_token(&out->bos_token, root, "bos_token", err)) == 0 &&
        (rc = read_token(&out->eos_token, root, "eos_token", err)) == 0 &&
        (rc = read_token(&out->unk_token, root, "unk_token", err)) == 0 &&
        (rc = read_switch(&out->add_bos_token, root, "add_bos_token", err)) == 0 &&
        (rc = read_switch(&out->add_eos_token, root, "add_eos_token", err)) == 0)
        rc = read_chat_template(&out->chat_template, root, err);
    if (rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

/* 0 with *bytes NULL where there is no such file. */
static int read_optional(const char *path, char **bytes, size_t *n, struct err *err)
{
    struct err local = {0};
    *bytes = NULL;
    int rc = file_read_regular(path, TOKENIZER_CONFIG_MAX_BYTES, bytes, n, &local);
    if (rc == -ENOENT)
        return 0;
    if (rc != 0 && err != NULL)
        *err = local;
    return rc;
}

int tokenizer_config_load(struct tokenizer_config *out, const char *dir, struct err *err)
{
    memset(out, 0, sizeof *out);
    out->add_bos_token = out->add_eos_token = -1;
    char *path = xasprintf("%s/tokenizer_config.json", dir), *bytes;
    size_t n = 0;
    int rc = read_optional(path, &bytes, &n, err);
    if (rc == 0 && bytes != NULL)
        rc = tokenizer_config_parse(out, bytes, n, path, err);
    free(bytes);
    free(path);
    if (rc != 0)
        return rc;

    path = xasprintf("%s/chat_template.jinja", dir);
    rc = read_optional(path, &bytes, &n, err);
    if (rc == 0 && bytes != NULL && (utf8_check(bytes, n) != n || strlen(bytes) != n))
        rc = err_set(err, ERR_FORMAT, "%s: is not UTF-8 text", path);
    if (rc == 0 && bytes != NULL) {
        free(out->chat_template);
        out->chat_template = bytes;
        bytes = NULL;
    }
    free(bytes);
    free(path);
    return rc;
}

void tokenizer_config_deinit(struct tokenizer_config *c)
{
    free(c->bos_token);
    free(c->eos_token);
    free(c->unk_token);
    free(c->chat_template);
    memset(c, 0, sizeof *c);
}
